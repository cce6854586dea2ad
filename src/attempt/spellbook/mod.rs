//! The spells of a workflow: found and read at load time, with all includes, and copied into each
//! run.
//!
//! **Invariant:** a run that has started does not see later changes of these files.

mod missing;
mod order;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use super::prompt::spell::{self, Found, Read, SPELLS, SYSTEM_PROMPT, SystemPrompt};
use crate::disk;
use crate::disk::fs;
use crate::template::spell::{Fault, MAX_INCLUDES, Spell, includes_itself, too_deep};
use crate::workflow::named::{Mention, Mentioned};
use crate::workflow::{Place, Problem};

pub(crate) use missing::{Beads, Given, doubtful, incurable, missing};

/// Directory of a run's copies, relative to the run's directory.
const KEPT: &str = "parts/spells";
/// Subdirectory for the copies of built-in spells.
const BUILT_IN: &str = "built-in";

/// A spell as it was when a run started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Page {
    /// Its path in the workspace, or in the directory for built-in spells.
    pub path: String,
    pub text: String,
}

/// Maximum number and total size of the spells that a run keeps for includes with computed names.
const MOST_PAGES: usize = 1000;
const MOST_BYTES: usize = 16 << 20;

/// Access to the files of a workspace.
pub(crate) struct Shelf<'s> {
    pub read: Read<'s>,
    /// Lists the names of the files in a directory.
    pub list: &'s dyn Fn(&str) -> Vec<String>,
}

/// Reads all spells that a workflow mentions, as far as they exist. Returns them with all problems
/// and their positions.
pub(crate) fn gather(mentions: &[Mention], shelf: &Shelf) -> (Vec<Page>, Vec<Problem>) {
    let mut gathering = Gathering {
        shelf,
        pages: Vec::new(),
        problems: Vec::new(),
        links: BTreeMap::new(),
        computed: None,
    };
    for Mention { what, place } in mentions {
        match what {
            Mentioned::Spell(name) => gathering.named(name, *place),
            Mentioned::Written(spell) => {
                gathering.includes(spell, spell.file(), &mut Vec::new());
                gathering.depth(spell.file());
                // Other spells inside the workflow may have the same name.
                gathering.links.remove(spell.file());
            }
            Mentioned::SystemPrompt(None) => gathering.usual_system_prompt(*place),
            Mentioned::SystemPrompt(Some(path)) => gathering.own_system_prompt(path, *place),
        }
    }
    if let Some(place) = gathering.computed.take() {
        gathering.everything(place);
    }
    (gathering.pages, gathering.problems)
}

struct Gathering<'r> {
    shelf: &'r Shelf<'r>,
    pages: Vec<Page>,
    problems: Vec<Problem>,
    /// The includes of each spell: paths of the copies, and positions.
    links: BTreeMap<String, Vec<(String, Fault)>>,
    /// The first include with a computed name.
    computed: Option<Fault>,
}

impl Gathering<'_> {
    fn named(&mut self, name: &str, place: Place) {
        match spell::lookup(name, self.shelf.read) {
            Ok(found) => {
                if found.text.trim().is_empty() {
                    let message = format!("spell `{name}` is empty: `{}` has no text", found.file);
                    let hint = "write there what the agent is to do";
                    self.problem(Problem::error(message).at(place).hint(hint));
                }
                let path = page_path(name, &found);
                self.found(&path, found, &mut Vec::new());
                self.depth(&path);
            }
            Err(lost) => self.problem(Problem::error(lost.to_string()).at(place)),
        }
    }

    /// Adds a spell and its includes. Does nothing if the spell is already added.
    fn found(&mut self, path: &str, found: Found, chain: &mut Vec<String>) {
        if self.pages.iter().any(|page| page.path == path) {
            return;
        }
        let parsed = Spell::parse(&found.file, &found.text);
        self.pages.push(Page { path: path.to_owned(), text: found.text });
        match parsed {
            Ok(spell) => self.includes(&spell, path, chain),
            Err(fault) => self.fault(&fault),
        }
    }

    /// Adds the includes of a spell whose copy is at `path`. `chain` contains the spells that led
    /// to it.
    fn includes(&mut self, spell: &Spell, path: &str, chain: &mut Vec<String>) {
        chain.push(path.to_owned());
        for (name, place) in spell.included() {
            let Some(name) = name else {
                self.computed.get_or_insert(place);
                continue;
            };
            let found = match spell::lookup(&name, self.shelf.read) {
                Ok(found) => found,
                Err(lost) => {
                    self.fault(&Fault { message: lost.to_string(), ..place });
                    continue;
                }
            };
            let to = page_path(&name, &found);
            if let Some(first) = chain.iter().position(|link| *link == to) {
                let circle: Vec<&str> = chain[first..].iter().map(String::as_str).collect();
                self.fault(&Fault { message: includes_itself(&name, &circle), ..place });
                continue;
            }
            self.links.entry(path.to_owned()).or_default().push((to.clone(), place));
            self.found(&to, found, chain);
        }
        chain.pop();
    }

    /// Reports includes of a spell that are nested too deeply. Cycles are not among its links.
    fn depth(&mut self, path: &str) {
        let mut level = BTreeSet::from([path.to_owned()]);
        for _ in 0..MAX_INCLUDES {
            let links = level.iter().filter_map(|path| self.links.get(path)).flatten();
            level = links.map(|(to, _)| to.clone()).collect();
        }
        let links = level.iter().filter_map(|path| self.links.get(path)).flatten();
        let deepest: Vec<Fault> = links.map(|(_, place)| place.clone()).collect();
        for place in deepest {
            self.fault(&Fault { message: too_deep(), ..place });
        }
    }

    /// Adds all existing spells, for an include whose name is known only at run time. A fault in
    /// one of them matters only if it is included, so it is not reported.
    fn everything(&mut self, place: Fault) {
        let mut bytes = 0;
        for dir in SPELLS {
            for file in (self.shelf.list)(dir).iter().filter(|file| file.ends_with(".md")) {
                let path = format!("{dir}/{file}");
                let Ok(Some(text)) = (self.shelf.read)(&path) else { continue };
                bytes += text.len();
                if self.pages.len() == MOST_PAGES || bytes > MOST_BYTES {
                    let message = format!(
                        "the name of this include is made of values, and there are more spells \
                         than a run keeps ({MOST_PAGES}, of {MOST_BYTES} bytes)"
                    );
                    let hint = Some("write the names, each behind a condition".into());
                    return self.fault(&Fault { message, hint, ..place });
                }
                if !self.pages.iter().any(|page| page.path == path) {
                    self.pages.push(Page { path, text });
                }
            }
        }
    }

    fn usual_system_prompt(&mut self, place: Place) {
        let (path, text) = match (self.shelf.read)(SYSTEM_PROMPT) {
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
        match (self.shelf.read)(path) {
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
        self.pages.push(Page { path: path.clone(), text });
        match SystemPrompt::parse(&found, self.shelf.read) {
            Ok(system) => {
                self.includes(system.spell(), &path, &mut Vec::new());
                self.depth(&path);
            }
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

/// Returns the path of a spell's copy.
fn page_path(name: &str, found: &Found) -> String {
    match SPELLS.iter().any(|dir| found.file.starts_with(dir)) {
        true => found.file.clone(),
        false => built_in(name.strip_suffix(".md").unwrap_or(name)),
    }
}

fn is_page_of(page: &Page, name: &str) -> bool {
    let dirs = SPELLS.iter().copied().chain([BUILT_IN]);
    dirs.into_iter().any(|dir| page.path == format!("{dir}/{name}.md"))
}

/// Writes the spells of a run into its directory.
pub(crate) fn keep(
    root: &Path,
    pages: &[Page],
) -> Result<(), (std::path::PathBuf, std::io::Error)> {
    let disk = disk::machine();
    for Page { path, text } in pages {
        let path = root.join(KEPT).join(path);
        disk.make_dirs(path.parent().unwrap_or(root))
            .and_then(|()| disk::replace(&*disk, &path, text.as_bytes()))
            .map_err(|error| (path, error))?;
    }
    Ok(())
}

/// Reads a file as it was when the run started.
pub(crate) fn read_kept(root: &Path, path: &str) -> Result<Option<String>, String> {
    match fs::read_to_string(root.join(KEPT).join(path)) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error.to_string()),
    }
}
