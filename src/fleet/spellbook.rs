//! The spells that a workflow is made of: found and read when it is loaded, with all that they
//! include, and kept by the runs of it.
//!
//! **Invariant:** a run that has begun does not see what becomes of the files it began with.

use std::path::Path;

use crate::disk;
use crate::prompt::spell::{self, Found, Read, SPELLS, SYSTEM_PROMPT, SystemPrompt};
use crate::template::spell::{Fault, Spell};
use crate::workflow::plan::{
    Action, Mention, Mentioned, Plan, ShellText, SpellSource, When, Words,
};
use crate::workflow::{Place, Problem, Severity};
use crate::workspace::Workspace;

/// Where a run keeps its copies, in its directory.
const KEPT: &str = "parts/spells";
/// Where the copies of what is built in are among them.
const BUILT_IN: &str = "built-in";

/// A spell as it was when a run began.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page {
    /// Its path in the workspace, or in a directory for what is built in.
    pub path: String,
    pub text: String,
}

/// Reads all spells of a plan. The error tells every problem, with its place.
pub fn gather(plan: &Plan, read: Read) -> Result<Vec<Page>, Vec<Problem>> {
    let mut gathering = Gathering { read, pages: Vec::new(), problems: Vec::new() };
    for Mention { what, place } in &plan.spells {
        match what {
            Mentioned::Spell(name) => gathering.named(name, *place),
            Mentioned::SystemPrompt(None) => gathering.usual_system_prompt(*place),
            Mentioned::SystemPrompt(Some(path)) => gathering.own_system_prompt(path, *place),
        }
    }
    plan.root.walk(&mut |step| {
        if let Some(When::Spell(spell)) = &step.when {
            gathering.includes(spell, &mut Vec::new());
        }
        match &step.action {
            Action::Shell { script: ShellText::Spell(script) } => {
                gathering.includes(script, &mut Vec::new());
            }
            Action::Prompt(prompt) => {
                let Words::Spell(used) = &prompt.words else { return };
                if let SpellSource::Inline(spell) = &used.source {
                    gathering.includes(spell, &mut Vec::new());
                }
                for (_, value) in &used.input {
                    value.spells(&mut |spell| gathering.includes(spell, &mut Vec::new()));
                }
            }
            _ => {}
        }
    });
    match gathering.problems.is_empty() {
        true => Ok(gathering.pages),
        false => Err(gathering.problems),
    }
}

struct Gathering<'r> {
    read: Read<'r>,
    pages: Vec<Page>,
    problems: Vec<Problem>,
}

impl Gathering<'_> {
    fn named(&mut self, name: &str, place: Place) {
        match spell::lookup(name, self.read) {
            Ok(found) => self.found(name, found, &mut Vec::new()),
            Err(lost) => self.problem(Problem::error(lost.to_string()).at(place)),
        }
    }

    /// Adds a spell, and what it includes. One that is there already has been looked into.
    fn found(&mut self, name: &str, found: Found, chain: &mut Vec<String>) {
        let path = page_path(name, &found);
        if chain.contains(&path) || self.pages.iter().any(|page| page.path == path) {
            return;
        }
        let parsed = Spell::parse(&found.file, &found.text);
        self.pages.push(Page { path: path.clone(), text: found.text });
        match parsed {
            Ok(spell) => {
                chain.push(path);
                self.includes(&spell, chain);
                chain.pop();
            }
            Err(fault) => self.fault(&fault),
        }
    }

    fn includes(&mut self, spell: &Spell, chain: &mut Vec<String>) {
        for (name, place) in spell.included() {
            match spell::lookup(&name, self.read) {
                Ok(found) => self.found(&name, found, chain),
                Err(lost) => self.fault(&Fault { message: lost.to_string(), ..place }),
            }
        }
    }

    fn usual_system_prompt(&mut self, place: Place) {
        let (path, text) = match (self.read)(SYSTEM_PROMPT) {
            Ok(Some(text)) => (SYSTEM_PROMPT.to_owned(), text),
            Ok(None) => (built_in("system-prompt"), spell::BUILT_IN_SYSTEM_PROMPT.to_owned()),
            Err(reason) => {
                let message = format!("cannot read `{SYSTEM_PROMPT}`: {reason}");
                return self.problem(Problem::error(message).at(place));
            }
        };
        self.system_prompt(path, text);
    }

    fn own_system_prompt(&mut self, path: &str, place: Place) {
        match (self.read)(path) {
            Ok(Some(text)) => self.system_prompt(path.to_owned(), text),
            Ok(None) => {
                let message = format!("there is no file `{path}`, which is to be a system prompt");
                self.problem(Problem::error(message).at(place));
            }
            Err(reason) => {
                let message = format!("cannot read `{path}`: {reason}");
                self.problem(Problem::error(message).at(place));
            }
        }
    }

    fn system_prompt(&mut self, path: String, text: String) {
        if self.pages.iter().any(|page| page.path == path) {
            return;
        }
        let found = Found { file: path.clone(), text: text.clone() };
        self.pages.push(Page { path, text });
        match SystemPrompt::parse(&found, self.read) {
            Ok(system) => self.includes(system.spell(), &mut Vec::new()),
            Err(fault) => self.fault(&fault),
        }
    }

    fn fault(&mut self, fault: &Fault) {
        self.problem(Problem::from(fault));
    }

    fn problem(&mut self, problem: Problem) {
        if !self.problems.contains(&problem) {
            self.problems.push(problem);
        }
    }
}

fn built_in(name: &str) -> String {
    format!("{BUILT_IN}/{name}.md")
}

/// Where the copy of a spell lies.
fn page_path(name: &str, found: &Found) -> String {
    match SPELLS.iter().any(|dir| found.file.starts_with(dir)) {
        true => found.file.clone(),
        false => built_in(name.strip_suffix(".md").unwrap_or(name)),
    }
}

/// Warns of variables that a run cannot have when its steps need them: no step, input or variable
/// of whoever starts it is called so.
pub fn doubtful(plan: &Plan, pages: &[Page], known: &[&str]) -> Vec<Problem> {
    let mut names: Vec<String> = known.iter().map(|name| folded(name)).collect();
    names.extend(EVERYWHERE.iter().map(|name| folded(name)));
    plan.root.walk(&mut |step| {
        names.push(folded(&step.name));
        names.extend(step.alias.as_deref().map(folded));
    });
    let mut found = Vec::new();
    let mut look = |step: &str, spell: &Spell, own: &[String]| {
        for (name, at) in spell.needs() {
            let folded = folded(&name);
            if !names.contains(&folded) && !own.contains(&folded) {
                let message = format!("`.{name}` is nothing that this run has: `{step}` will fail");
                let hint = Some(format!("give it with `--context {name}=…`, or write `default`"));
                let fault = Fault { message, hint, ..at };
                let problem = Problem { severity: Severity::Warning, ..Problem::from(&fault) };
                if !found.contains(&problem) {
                    found.push(problem);
                }
            }
        }
    };
    plan.root.walk(&mut |step| {
        let name = step.name.as_str();
        if let Some(When::Spell(spell)) = &step.when {
            look(name, spell, &[]);
        }
        match &step.action {
            Action::Shell { script: ShellText::Spell(script) } => look(name, script, &[]),
            Action::Prompt(prompt) => {
                let Words::Spell(used) = &prompt.words else { return };
                used.input.iter().for_each(|(_, value)| {
                    value.spells(&mut |spell| look(name, spell, &[]));
                });
                let own: Vec<_> = used.input.iter().map(|(key, _)| folded(key)).collect();
                match &used.source {
                    SpellSource::Inline(spell) => look(name, spell, &own),
                    SpellSource::Named(named) => {
                        let page = pages.iter().find(|page| is_page_of(page, named));
                        let spell = page.and_then(|page| Spell::parse(&page.path, &page.text).ok());
                        spell.iter().for_each(|spell| look(name, spell, &own));
                    }
                }
            }
            _ => {}
        }
    });
    found
}

/// What spells know wherever they are.
const EVERYWHERE: [&str; 8] =
    ["attempt", "previous", "step", "workflow", "loop", "item", "agent", "no_contract"];

fn folded(name: &str) -> String {
    name.replace('-', "_")
}

fn is_page_of(page: &Page, name: &str) -> bool {
    let dirs = SPELLS.iter().copied().chain([BUILT_IN]);
    dirs.into_iter().any(|dir| page.path == format!("{dir}/{name}.md"))
}

/// Keeps the spells of a run in its directory.
pub fn keep(root: &Path, pages: &[Page]) -> Result<(), (std::path::PathBuf, std::io::Error)> {
    let disk = disk::machine();
    for Page { path, text } in pages {
        let path = root.join(KEPT).join(path);
        disk.make_dirs(path.parent().unwrap_or(root))
            .and_then(|()| disk::replace(&*disk, &path, text.as_bytes()))
            .map_err(|error| (path, error))?;
    }
    Ok(())
}

/// Reads a file as it was when the run began. What the run could not know of then, the name of an
/// include that is made of values, is read as it is now.
pub fn read_kept(
    root: &Path,
    workspace: &Workspace,
    limit: u64,
    path: &str,
) -> Result<Option<String>, String> {
    let kept = root.join(KEPT);
    match std::fs::read_to_string(kept.join(path)) {
        Ok(text) => return Ok(Some(text)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
        Err(error) => return Err(error.to_string()),
    }
    let hidden = match path.rsplit_once('/') {
        Some((dir, file)) if SPELLS.contains(&dir) => {
            let places = SPELLS.iter().copied().chain([BUILT_IN]);
            places.into_iter().any(|dir| kept.join(dir).join(file).exists())
        }
        // What is put around spells is known from the beginning.
        _ => path == SYSTEM_PROMPT,
    };
    if hidden { Ok(None) } else { workspace.read_text(path, limit) }
}
