//! The spells that a workflow is made of: found and read when it is loaded, with all that they
//! include, and kept by the runs of it.
//!
//! **Invariant:** a run that has begun does not see what becomes of the files it began with.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::{Map, Value};

use crate::disk;
use crate::prompt::spell::{self, Found, Read, SPELLS, SYSTEM_PROMPT, SystemPrompt};
use crate::template::spell::{Fault, MAX_INCLUDES, Spell};
use crate::workflow::named::{Mention, Mentioned};
use crate::workflow::plan::{
    Action, Block, Plan, Prompt, ShellText, SpellSource, SpellUse, Step, SystemPromptUse, When,
    Words,
};
use crate::workflow::{Place, Problem};
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

/// Reads all spells that a workflow mentions, as far as they are there, and tells every problem
/// with its place.
pub fn gather(mentions: &[Mention], read: Read) -> (Vec<Page>, Vec<Problem>) {
    let mut gathering = Gathering { read, pages: Vec::new(), problems: Vec::new() };
    for Mention { what, place } in mentions {
        match what {
            Mentioned::Spell(name) => gathering.named(name, *place),
            Mentioned::Written(spell) => gathering.includes(spell, &mut Vec::new()),
            Mentioned::SystemPrompt(None) => gathering.usual_system_prompt(*place),
            Mentioned::SystemPrompt(Some(path)) => gathering.own_system_prompt(path, *place),
        }
    }
    (gathering.pages, gathering.problems)
}

struct Gathering<'r> {
    read: Read<'r>,
    pages: Vec<Page>,
    problems: Vec<Problem>,
}

impl Gathering<'_> {
    fn named(&mut self, name: &str, place: Place) {
        match spell::lookup(name, self.read) {
            Ok(found) => {
                if found.text.trim().is_empty() {
                    let message = format!("spell `{name}` is empty: `{}` has no text", found.file);
                    let hint = "write there what the agent is to do";
                    self.problem(Problem::error(message).at(place).hint(hint));
                }
                self.found(name, found, &mut Vec::new());
            }
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

/// What a run is given when it is started, beside what its steps come to.
pub struct Given<'g> {
    /// Its variables.
    pub context: &'g Map<String, Value>,
    /// Its work item.
    pub bead: Option<&'g Value>,
}

/// Tells of variables that no step of a run can ever have where its spells read them: no step,
/// input, work item or variable of whoever starts it is called so.
pub fn missing(plan: &Plan, pages: &[Page], given: &Given) -> Vec<Problem> {
    let mut results: BTreeMap<String, bool> = BTreeMap::new();
    plan.root.walk(&mut |step| {
        // An agent, and a command that prints JSON, may give anything.
        let script = matches!(step.action, Action::Shell { script: ShellText::Spell(_) });
        for name in [Some(&step.name), step.alias.as_ref()].into_iter().flatten() {
            *results.entry(folded(name)).or_insert(true) &= script;
        }
    });
    let mut missing = Missing { pages, given, results, found: Vec::new() };
    missing.block(&plan.root, false);
    missing.found
}

struct Missing<'m> {
    pages: &'m [Page],
    given: &'m Given<'m>,
    /// The names of results, and whether all of their fields are known.
    results: BTreeMap<String, bool>,
    found: Vec<Problem>,
}

/// A step, as to what is known there.
#[derive(Clone, Copy)]
struct At<'s> {
    step: &'s Step,
    looped: bool,
}

impl Missing<'_> {
    fn block(&mut self, block: &Block, looped: bool) {
        for step in &block.steps {
            self.step(At { step, looped });
            if let Some(inner) = step.inner() {
                self.block(inner, true);
            }
        }
    }

    fn step(&mut self, at: At) {
        if let Some(When::Spell(spell)) = &at.step.when {
            self.look(at, spell, &[], 0);
        }
        match &at.step.action {
            Action::Shell { script: ShellText::Spell(script) } => self.look(at, script, &[], 0),
            Action::Prompt(Prompt { words: Words::Spell(used), .. }) => self.used(at, used),
            _ => {}
        }
    }

    fn used(&mut self, at: At, used: &SpellUse) {
        for (_, value) in &used.input {
            value.spells(&mut |spell| self.look(at, spell, &[], 0));
        }
        let mut own: Vec<String> = used.input.iter().map(|(key, _)| folded(key)).collect();
        if !used.contract {
            own.push("no_contract".into());
        }
        match &used.source {
            SpellSource::Inline(spell) => self.look(at, spell, &own, 0),
            SpellSource::Named(name) => self.named(at, name, &own, 0),
        }
        own.push("spell_content".into());
        match &used.system_prompt {
            SystemPromptUse::None => {}
            SystemPromptUse::Default => self.page(at, SYSTEM_PROMPT, &own, 0),
            SystemPromptUse::File(path) => self.page(at, path, &own, 0),
        }
    }

    fn named(&mut self, at: At, name: &str, own: &[String], depth: usize) {
        let name = name.strip_suffix(".md").unwrap_or(name);
        let page = self.pages.iter().find(|page| is_page_of(page, name));
        if let Some(page) = page {
            self.page(at, &page.path, own, depth);
        }
    }

    fn page(&mut self, at: At, path: &str, own: &[String], depth: usize) {
        let page = self.pages.iter().find(|page| page.path == path);
        let spell = page.and_then(|page| Spell::parse(&page.path, &page.text).ok());
        if let Some(spell) = spell {
            self.look(at, &spell, own, depth);
        }
    }

    /// Looks at one spell with variables of its own, and at those that it includes.
    fn look(&mut self, at: At, spell: &Spell, own: &[String], depth: usize) {
        let known = |path: &[String]| self.unknown(at, path, own).is_none();
        let reads = spell.reads(&known);
        let name = &at.step.name;
        for (path, place) in reads.paths {
            let Some(end) = self.unknown(at, &path, own) else { continue };
            let written = path[..=end].join(".");
            let message = format!("`.{written}` is nothing that this run has: `{name}` would fail");
            let guard =
                format!("where it may be missing, write `{{{{if .{written}}}}}` or `default`");
            let hint = match end {
                0 => match written.as_str() {
                    "bead" | "task" => format!("give it with `--bead FILE|ID`; {guard}"),
                    "loop" | "item" => format!("only a step in a loop has it; {guard}"),
                    "agent" => format!("only a step with `agent` has it; {guard}"),
                    name => format!("give it with `--context {name}=…`; {guard}"),
                },
                _ => guard,
            };
            let fault = Fault { message, hint: Some(hint), ..place };
            let problem = Problem::from(&fault);
            if !self.found.contains(&problem) {
                self.found.push(problem);
            }
        }
        for (name, given, _) in reads.includes.iter().filter(|_| depth < MAX_INCLUDES) {
            let own: Vec<String> =
                own.iter().cloned().chain(given.iter().map(|key| folded(key))).collect();
            self.named(at, name, &own, depth + 1);
        }
    }

    /// The first name of a path that can never be there, by its number.
    fn unknown(&self, at: At, path: &[String], own: &[String]) -> Option<usize> {
        let name = folded(path.first()?);
        let context = self.given.context.keys().any(|key| folded(key) == name);
        if own.contains(&name) {
            return None;
        }
        let fields: Option<&[&str]> = match name.as_str() {
            "workflow" => Some(&["name", "run_id"]),
            "step" => Some(&["name"]),
            "attempt" => None,
            "loop" if at.looped => Some(&["name", "index", "iteration", "total"]),
            "item" if at.looped => None,
            "agent" if at.step.agent.is_some() => None,
            "previous" => None,
            // What it has is known if it is the run's own.
            "bead" | "task" if at.step.bead.is_some() => None,
            "bead" | "task" => match self.given.bead {
                Some(Value::Object(bead)) => {
                    let field = path.get(1)?;
                    return (!bead.contains_key(field)).then_some(1);
                }
                _ if context => None,
                _ => return Some(0),
            },
            _ if context => None,
            name => match self.results.get(name) {
                Some(true) => Some(&RESULT),
                Some(false) => None,
                None => return Some(0),
            },
        };
        let (fields, field) = (fields?, path.get(1)?);
        (!context && !fields.contains(&field.as_str())).then_some(1)
    }
}

/// What the result of a script has.
const RESULT: [&str; 9] = [
    "attempt",
    "error",
    "exit_code",
    "failed",
    "output",
    "outputs",
    "status",
    "success",
    "summary",
];

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
