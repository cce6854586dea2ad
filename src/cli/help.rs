//! `orchestrate help`: explains all verbs, one verb, or a concept; writes manual pages.

use std::fmt::Write as _;
use std::path::PathBuf;

use clap::CommandFactory as _;
use serde_json::json;

use super::output::{put, put_json};
use super::{Cli, Common};
use crate::disk::fs;
use crate::run::failure::Failure;
use crate::view::stderr::talk;
use crate::yaml::problem::nearest;

/// Short help pages: name, description, text.
const TOPICS: [(&str, &str, &str); 7] = [
    ("dialects", "the three workflow languages", include_str!("../../docs/help/dialects.txt")),
    ("variables", "how values get into commands", include_str!("../../docs/help/variables.txt")),
    ("tasks", "work without a workflow", include_str!("../../docs/help/tasks.txt")),
    ("gates", "where a run waits for a person", include_str!("../../docs/help/gates.txt")),
    ("layout", "the files of a workspace", include_str!("../../docs/help/layout.txt")),
    ("lints", "warnings about workflows", include_str!("../../docs/help/lints.txt")),
    ("exit-codes", "exit codes of orchestrate", include_str!("../../docs/help/exit-codes.txt")),
];

/// Complete documentation pages, for users who have the program but not its source.
const BOOKS: [(&str, &str, &str); 13] = [
    ("steps", "the `steps:` dialect", include_str!("../../docs/steps.md")),
    ("nodes", "the `nodes:` dialect", include_str!("../../docs/nodes.md")),
    ("grimoires", "the grimoire dialect", include_str!("../../docs/grimoires.md")),
    ("spells", "templates for prompts", include_str!("../../docs/spells.md")),
    ("offline", "the provider that needs no key", include_str!("../../docs/offline.md")),
    ("running", "run and resume a workflow", include_str!("../../docs/run.md")),
    ("fleet", "run a fleet", include_str!("../../docs/fleet.md")),
    ("monitor", "see what happens", include_str!("../../docs/monitor.md")),
    ("configure", "all settings and variables", include_str!("../../docs/configure.md")),
    ("troubleshoot", "find and fix problems", include_str!("../../docs/troubleshoot.md")),
    ("tasks-full", "tasks and their front matter", include_str!("../../docs/tasks.md")),
    ("layout-full", "all files and directories", include_str!("../../inbox-layout.md")),
    ("lints-full", "all lints and their fixes", include_str!("../../docs/lints.md")),
];

/// Verbs grouped by purpose. Verbs in no group follow after the groups.
const GROUPS: [(&str, &[&str]); 6] = [
    ("Begin", &["init", "demo", "doctor", "help"]),
    ("Write workflows", &["validate", "schema", "graph", "spell", "command", "provider"]),
    ("Run them here", &["run", "resume", "run-step", "watch"]),
    ("Run a fleet", &["up", "coordinator", "worker", "submit", "enqueue", "service"]),
    (
        "See what happens",
        &["status", "ps", "top", "logs", "events", "why", "pending", "report", "serve", "metrics"],
    ),
    (
        "Take a hand in it",
        &["approve", "reject", "cancel", "retry", "queue", "workers", "worktree"],
    ),
];

#[derive(clap::Args, Clone, Debug)]
pub(super) struct HelpArgs {
    /// A verb, or a concept such as `variables`
    #[arg(value_name = "TOPIC", conflicts_with = "man")]
    pub topic: Vec<String>,
    /// Write manual pages into a directory instead, one for each verb
    #[arg(long, value_name = "DIR")]
    pub man: Option<PathBuf>,
}

pub(super) fn main(args: &HelpArgs, common: &Common) -> Result<u8, Failure> {
    if let Some(dir) = &args.man {
        return manual(dir, common);
    }
    let mut command = Cli::command();
    let Some(first) = args.topic.first() else {
        return tell(None, &about(&command), &root(), common);
    };
    if let Some((name, about, page)) = pages().find(|(name, _, _)| name == first) {
        return tell(Some(name), about, page, common);
    }
    command.build();
    let mut here = &mut command;
    for word in &args.topic {
        let known: Vec<String> =
            here.get_subcommands().map(|verb| verb.get_name().to_owned()).collect();
        here = match here.find_subcommand_mut(word) {
            Some(found) => found,
            None => return Err(unknown(word, &known)),
        };
    }
    let text = here.render_long_help().to_string();
    tell(Some(&args.topic.join(" ")), &about(here), &text, common)
}

fn tell(topic: Option<&str>, about: &str, text: &str, common: &Common) -> Result<u8, Failure> {
    match common.json {
        true => put_json("help/v1", json!({ "topic": topic, "about": about, "text": text }))?,
        false => put(text)?,
    }
    Ok(0)
}

/// Returns the one-line description of a verb.
fn about(command: &clap::Command) -> String {
    command.get_about().map(ToString::to_string).unwrap_or_default()
}

fn pages() -> impl Iterator<Item = &'static (&'static str, &'static str, &'static str)> + Clone {
    TOPICS.iter().chain(&BOOKS)
}

/// Returns the name and the description of each help topic: pages, then visible verbs.
pub(super) fn topics() -> Vec<(String, String)> {
    let command = Cli::command();
    let verbs = command.get_subcommands().filter(|verb| !verb.is_hide_set());
    let verbs = verbs.map(|verb| (verb.get_name().to_owned(), about(verb)));
    let pages = pages().map(|(name, about, _)| ((*name).to_owned(), (*about).to_owned()));
    pages.chain(verbs).collect()
}

fn unknown(word: &str, verbs: &[String]) -> Failure {
    let topics = pages().map(|(name, _, _)| *name);
    let known = verbs.iter().map(String::as_str).chain(topics.clone());
    let failure = Failure::invalid(format!("there is no help on `{word}`"));
    match nearest(word, known) {
        Some(near) => failure.hint(format!("did you mean `orchestrate help {near}`?")),
        None => {
            let topics: Vec<_> = topics.collect();
            failure.hint(format!("a verb, or one of {}", topics.join(", ")))
        }
    }
}

/// Returns the overview: all verbs in groups, then the pages.
pub(super) fn root() -> String {
    let command = Cli::command();
    let verbs: Vec<(&str, String)> = command
        .get_subcommands()
        .filter(|verb| !verb.is_hide_set())
        .map(|verb| (verb.get_name(), about(verb)))
        .collect();
    let mut out = format!("{}\n\nUsage: orchestrate <VERB> [OPTIONS]\n", about(&command));
    let mut group = |title: &str, names: &mut dyn Iterator<Item = &(&str, String)>| {
        let mut lines = String::new();
        for (name, about) in names {
            _ = writeln!(lines, "  {name:<13} {about}");
        }
        if !lines.is_empty() {
            _ = write!(out, "\n{title}:\n{lines}");
        }
    };
    for (title, names) in GROUPS {
        let found = names.iter().filter_map(|name| verbs.iter().find(|(verb, _)| verb == name));
        group(title, &mut { found });
    }
    let grouped = |name: &str| GROUPS.iter().any(|(_, names)| names.contains(&name));
    group("Look after it", &mut verbs.iter().filter(|(name, _)| !grouped(name)));
    let named = |(name, about, _): &(&'static str, &'static str, &'static str)| {
        (*name, (*about).to_owned())
    };
    group("Concepts (orchestrate help TOPIC)", &mut TOPICS.map(|page| named(&page)).iter());
    group("In full (orchestrate help TOPIC)", &mut BOOKS.map(|page| named(&page)).iter());
    out += "\nFlags of a verb: orchestrate help VERB, or orchestrate VERB --help.\n\
            Flags that every verb takes: -q, -v, --json, --color, --config, --state-dir,\n\
            --log-level, --debug, --trace; --version.\n";
    out
}

fn manual(dir: &PathBuf, common: &Common) -> Result<u8, Failure> {
    let cannot = |error: std::io::Error| {
        Failure::failed(format!("cannot write manual pages into `{}`: {error}", dir.display()))
    };
    fs::create_dir_all(dir).map_err(cannot)?;
    clap_mangen::generate_to(Cli::command(), dir).map_err(cannot)?;
    if !common.quiet {
        talk(format_args!("to read one: man -l {}/orchestrate.1", dir.display()));
    }
    Ok(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_fit_into_80_columns() {
        for (name, _, page) in TOPICS {
            for line in page.lines() {
                assert!(line.chars().count() <= 80, "{name}: {line}");
            }
        }
        for line in root().lines() {
            assert!(line.chars().count() <= 80, "{line}");
        }
    }

    #[test]
    fn no_verb_is_shown_twice_or_not_at_all() {
        let help = root();
        for verb in Cli::command().get_subcommands().filter(|verb| !verb.is_hide_set()) {
            let lines = help.lines().filter(|line| {
                line.strip_prefix("  ").and_then(|l| l.split(' ').next()) == Some(verb.get_name())
            });
            assert_eq!(lines.count(), 1, "{}", verb.get_name());
        }
    }

    #[test]
    fn every_lint_is_told_of() {
        let page = TOPICS.iter().find(|(name, _, _)| *name == "lints").expect("a page").2;
        let docs = include_str!("../../docs/lints.md");
        for id in crate::workflow::lint::ALL {
            assert!(page.contains(id) && docs.contains(&format!("## {id}")), "{id}");
        }
    }
}
