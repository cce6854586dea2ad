//! `orchestrate command`: calls a command file directly, with arguments and without a workflow;
//! also lists the command files.
//!
//! A call is a normal run of a workflow with one node, whose prompt is the user's message. The
//! message is the file's text with the arguments inserted. A message goes into a prompt verbatim,
//! so nothing in the file or in an argument is interpreted as a workflow variable.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::invocation::Invocation;
use super::output::{put, put_json, table};
use super::run_options::RunOptions;
use super::{Common, clean, outcome, signals};
use crate::actions::checkout;
use crate::attempt::source_files;
use crate::base::ids::name_fault;
use crate::disk::fs;
use crate::engine::{Request, Run};
use crate::run::create::NewRun;
use crate::run::failure::Failure;
use crate::run::workflow_file::read_bounded;
use crate::run::{load, part_files};
use crate::template::nodes::positional;
use crate::view::one_line;
use crate::workflow::Configured;
use crate::workflow::plan::{Part, PartKind};

#[derive(clap::Subcommand, Clone, Debug)]
pub(super) enum CommandVerb {
    /// Ask an agent what a command file says, and print the answer
    #[command(after_help = "In the file `$1` to `$9` are the arguments, `$ARGUMENTS` is all of \
        them, and `\\$` is a dollar.")]
    Run(RunArgs),
    /// List the command files that there are
    Ls,
}

#[derive(clap::Args, Clone, Debug)]
pub(super) struct RunArgs {
    /// The command file, by its name without `.md`
    #[arg(value_name = "COMMAND")]
    pub name: String,
    /// Its arguments; after `--` they may begin with a hyphen
    #[arg(value_name = "ARGS")]
    pub args: Vec<String>,
    /// Who answers [default: the settings' `default_provider`]
    #[arg(long, value_name = "PROVIDER")]
    pub provider: Option<String>,
    /// The model that the provider is asked for
    #[arg(long, value_name = "MODEL")]
    pub model: Option<String>,
    /// Print the text that would be sent, and nothing else
    #[arg(long)]
    pub dry_run: bool,
}

pub(super) fn main(verb: &CommandVerb, common: &Common) -> Result<u8, Failure> {
    let invocation = Invocation::read(common)?;
    match verb {
        CommandVerb::Run(args) => run(args, invocation),
        CommandVerb::Ls => list(&invocation),
    }
}

fn run(args: &RunArgs, mut invocation: Invocation) -> Result<u8, Failure> {
    let (file, text) = read(args, &invocation)?;
    let provider = provider(args, &invocation)?;
    if args.dry_run {
        match invocation.common.json {
            true => {
                let document = json!({ "command": args.name, "file": shown(&invocation, &file),
                                       "provider": provider, "text": text });
                put_json("command-dry-run/v1", document)?;
            }
            false => put(&text)?,
        }
        return Ok(0);
    }
    let days = clean::days_kept(&invocation)?;
    let loaded = load::load_text(&invocation, &format!("command {}", args.name), &workflow(args))?;
    let options = RunOptions::default();
    let request = Request { message: text, docs_dir: "docs/".into(), ..Request::default() };
    let (context, policy) = (serde_json::Map::new(), options.new_policy(&invocation));
    let new =
        NewRun { request: Some(Box::new(request)), ..NewRun::whole(&loaded, context, policy) };
    let signals = signals::listen()?;
    let owned = checkout::create_run(&invocation, new)?;
    invocation.note(format!("run {} of {}", owned.run.id, loaded.file));
    let root = owned.store.root().to_owned();
    // The output document is the answer, not the run summary.
    let json = std::mem::take(&mut invocation.common.json);
    let (code, run) = outcome::drive(&invocation, owned, &options, &signals, None)?;
    let answer = if code == 0 { Some(answer(&run, &root)?) } else { None };
    match (json, answer) {
        (true, answer) => {
            let document = json!({ "command": args.name, "run_id": run.id.as_str(),
                                   "status": run.shown_status(), "exit_code": code,
                                   "answer": answer });
            put_json("command-run/v1", document)?;
        }
        (false, Some(answer)) => put(&format!("{answer}\n"))?,
        (false, None) => {}
    }
    clean::keep_days(&invocation, days, &run.id);
    Ok(code)
}

/// Finds the command file and inserts the arguments into its text.
fn read(args: &RunArgs, invocation: &Invocation) -> Result<(PathBuf, String), Failure> {
    let name = &args.name;
    if name.is_empty() || name.contains(['/', '\\']) || name.starts_with('.') {
        let message = format!("`{name}` is no name of a command file");
        return Err(Failure::invalid(message).hint("`orchestrate command ls` lists what there is"));
    }
    let library = part_files::library(invocation, None);
    let part = Part { kind: PartKind::Command, name: name.clone(), place: None };
    let file = library.find(&part).map_err(|missing| {
        let list = || "`orchestrate command ls` lists what there is".to_owned();
        Failure::invalid(missing.message).hint(missing.hint.unwrap_or_else(list))
    })?;
    let unreadable = |error: &dyn std::fmt::Display| {
        let file = shown(invocation, &file);
        Failure::invalid(format!("cannot read the command file `{file}`: {error}"))
    };
    let bytes = read_bounded(&file, invocation.config.input_bytes).map_err(|e| unreadable(&e))?;
    let text = String::from_utf8(bytes).map_err(|_| unreadable(&"it is not UTF-8 text"))?;
    let words: Vec<&str> = args.args.iter().map(String::as_str).collect();
    let text = positional(source_files::without_front_matter(&text), &words);
    if text.trim().is_empty() {
        let file = shown(invocation, &file);
        return Err(Failure::invalid(format!("the command file `{file}` says nothing")));
    }
    Ok((file, text))
}

fn provider(args: &RunArgs, invocation: &Invocation) -> Result<String, Failure> {
    let name = args.provider.as_deref().unwrap_or(&invocation.config.default_provider);
    let known = invocation.config.providers();
    if known.contains_key(name) {
        return Ok(name.to_owned());
    }
    let list: Vec<_> = known.keys().map(|name| format!("`{name}`")).collect();
    let message = format!("there is no provider `{name}`");
    Err(Failure::invalid(message).hint(format!("the settings have {}", list.join(", "))))
}

/// Builds the one-node workflow of a call. JSON is also YAML, so it can contain any text.
fn workflow(args: &RunArgs) -> String {
    let id = if name_fault(&args.name).is_none() { args.name.as_str() } else { "command" };
    let mut document = json!({
        "name": format!("command {}", args.name),
        "description": "A command file that was called directly.",
        "nodes": [{ "id": id, "prompt": "$ARGUMENTS" }],
    });
    for (key, value) in [("provider", &args.provider), ("model", &args.model)] {
        if let Some(value) = value {
            document[key] = Value::from(value.as_str());
        }
    }
    format!("{document:#}\n")
}

/// Returns the output of the only node. A long output is read from its file.
fn answer(run: &Run, root: &Path) -> Result<String, Failure> {
    let record = run.body.slots.first().and_then(|slot| slot.record.as_deref());
    let Some(record) = record else { return Ok(String::new()) };
    let Some(whole) = &record.whole else { return Ok(record.output.clone().unwrap_or_default()) };
    let path = root.join(&whole.path);
    let bytes = fs::read(&path).map_err(|error| {
        Failure::failed(format!("cannot read the answer in `{}`: {error}", path.display()))
    })?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

fn list(invocation: &Invocation) -> Result<u8, Failure> {
    let found = part_files::library(invocation, None).all(PartKind::Command);
    let about = |(name, path): &(String, PathBuf)| {
        let bytes = read_bounded(path, invocation.config.input_bytes).unwrap_or_default();
        let about = source_files::about(&String::from_utf8_lossy(&bytes));
        (name.clone(), about, shown(invocation, path))
    };
    let commands: Vec<_> = found.iter().map(about).collect();
    if invocation.common.json {
        let commands: Vec<Value> = commands
            .iter()
            .map(|(name, about, file)| {
                json!({ "name": name, "description": about.description,
                        "argument_hint": about.argument_hint, "file": file })
            })
            .collect();
        put_json("commands/v1", json!({ "commands": commands }))?;
        return Ok(0);
    }
    if commands.is_empty() {
        invocation.note("there is no command file");
        let places = part_files::library(invocation, None).places(PartKind::Command);
        let places: Vec<_> = places.iter().map(|place| shown(invocation, place)).collect();
        invocation.note(format!("they are looked for in {}", places.join(", ")));
        return Ok(0);
    }
    let line = |text: &Option<String>| text.as_deref().map(one_line).unwrap_or_default();
    let rows: Vec<Vec<String>> = commands
        .iter()
        .map(|(name, about, file)| {
            vec![one_line(name), line(&about.argument_hint), line(&about.description), file.clone()]
        })
        .collect();
    put(&table(&rows))?;
    Ok(0)
}

/// Returns the path relative to the workspace if it is inside it, else unchanged.
fn shown(invocation: &Invocation, path: &Path) -> String {
    path.strip_prefix(&invocation.workspace).unwrap_or(path).display().to_string()
}
