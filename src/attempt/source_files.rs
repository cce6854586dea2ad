//! Additional files of a workflow, command files and scripts: their search path, the copies that a
//! run keeps, and the source of each copy.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::base::digest::sha256;
use crate::disk;
use crate::disk::fs::{self, OnVolume as _};
use crate::workflow::plan::{Part, PartKind, Runtime};
use crate::workflow::{Plan, Problem, front};
use crate::yaml;
use crate::yaml::problem::nearest;
use crate::yaml::without_bom;

/// Subdirectory of a run's directory with the copies.
pub(crate) const PARTS: &str = "parts";
/// File among the copies that lists their sources.
const SOURCES: &str = "sources.json";

/// Location and digest of a part when the run started.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PartSource {
    /// Relative to the workspace; `~/…` in the home directory; else absolute.
    pub from: String,
    pub sha256: String,
}

/// Change of a part since its run started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Since {
    Same,
    Changed,
    Gone,
}

impl Since {
    /// Describes it in words that follow the name of the file.
    pub(crate) fn words(self) -> &'static str {
        match self {
            Since::Same => "is as it was when the run began",
            Since::Changed => "was changed since the run began",
            Since::Gone => "is not there any more",
        }
    }
}

impl PartSource {
    /// Describes a part in its current state.
    pub(crate) fn of(
        from: &Path,
        text: &[u8],
        workspace: &Path,
        home: Option<&Path>,
    ) -> PartSource {
        // Resolve links in the directory, because the workspace's path has none. Keep the file's
        // own name, because the part may refer to files next to that.
        let real = |path: &Path| Path::new(".").join(path).canonicalize().ok();
        let dir = from.parent().and_then(real).unwrap_or_default();
        let whole = dir.join(from.file_name().unwrap_or_default());
        let beneath = |root: &Path| whole.strip_prefix(real(root)?).ok().map(Path::to_owned);
        let at_home = |rest: PathBuf| Path::new("~").join(rest);
        let told = beneath(workspace).or_else(|| home.and_then(beneath).map(at_home));
        let from = told.unwrap_or(whole).to_string_lossy().into_owned();
        PartSource { from, sha256: sha256(text) }
    }

    /// Returns the path of the part on this machine.
    pub(crate) fn path(&self, workspace: &Path, home: Option<&Path>) -> PathBuf {
        match (self.from.strip_prefix("~/"), home) {
            (Some(rest), Some(home)) => home.join(rest),
            _ => workspace.join(&self.from),
        }
    }

    /// Compares the file at `path` with the recorded digest.
    pub(crate) fn since(&self, path: &Path) -> Since {
        // A pipe at this path must not block.
        match path.is_present_file().then(|| disk::machine().read(path)) {
            Some(Ok(bytes)) if sha256(&bytes) == self.sha256 => Since::Same,
            Some(Ok(_)) => Since::Changed,
            Some(Err(_)) | None => Since::Gone,
        }
    }
}

/// The document that lists the sources of a run's parts.
#[derive(Debug, Serialize, Deserialize)]
struct Sources {
    schema: String,
    /// Keyed by the name of the copy in the directory of parts.
    parts: BTreeMap<String, PartSource>,
}

/// Copies the additional files of a workflow into the run and records their sources. The error
/// names the file that cannot be written.
pub(crate) fn keep(
    root: &Path,
    parts: &[(PathBuf, &[u8], PartSource)],
) -> Result<(), (PathBuf, io::Error)> {
    if parts.is_empty() {
        return Ok(());
    }
    let disk = disk::machine();
    let mut sources = Sources { schema: "parts/v1".into(), parts: self::sources(root) };
    let dir = root.join(PARTS);
    let write = |path: &Path, text: &[u8]| {
        disk.make_dirs(path.parent().unwrap_or(root))
            .and_then(|()| disk::replace(&*disk, path, text))
            .map_err(|error| (path.to_owned(), error))
    };
    for (path, text, source) in parts {
        write(path, text)?;
        let name = path.strip_prefix(&dir).unwrap_or(path).to_string_lossy().into_owned();
        sources.parts.insert(name, source.clone());
    }
    let text = serde_json::to_vec_pretty(&sources).unwrap_or_default();
    write(&dir.join(SOURCES), &text)
}

/// Returns the sources of a run's parts, by the names of their copies. Empty for a run of a version
/// that did not record them.
pub(crate) fn sources(root: &Path) -> BTreeMap<String, PartSource> {
    let text = disk::machine().read(&root.join(PARTS).join(SOURCES)).unwrap_or_default();
    serde_json::from_slice::<Sources>(&text).map(|sources| sources.parts).unwrap_or_default()
}

/// Search path of additional files.
pub(crate) struct Library {
    pub workspace: PathBuf,
    /// Directory of the workflow's own file.
    pub beside: Option<PathBuf>,
    pub home: Option<PathBuf>,
}

impl Library {
    /// Returns the directories to search, in order.
    pub(crate) fn places(&self, kind: PartKind) -> Vec<PathBuf> {
        self.rooted(kind).into_iter().map(|(_, place)| place).collect()
    }

    /// Returns each directory to search, with the directory that its files must not lead out of.
    fn rooted(&self, kind: PartKind) -> Vec<(&Path, PathBuf)> {
        let workspace = self.workspace.as_path();
        let home = self.home.as_deref();
        let in_workspace = |place: &str| (workspace, workspace.join(place));
        let at_home = |place: &str| home.map(|home| (home, home.join(place)));
        let mut places = Vec::new();
        match kind {
            PartKind::Command => {
                places.push(in_workspace(".archon/commands"));
                places.push(in_workspace(".archon/commands/defaults"));
                places.extend(at_home(".archon/commands"));
            }
            PartKind::Script => {
                // A workflow of the workspace may link to other places in the workspace.
                let beside = self.beside.as_deref().map(|beside| {
                    let root = if is_inside(beside, workspace) { workspace } else { beside };
                    (root, beside.join("scripts"))
                });
                places.extend(beside);
                places.push(in_workspace("scripts"));
                places.push(in_workspace(".archon/scripts"));
                places.extend(at_home(".archon/scripts"));
            }
        }
        places
    }

    /// Finds the file of a part. The error states the problem and lists all searched directories.
    pub(crate) fn find(&self, part: &Part) -> Result<PathBuf, Problem> {
        let wrong = |message: String| Problem { place: part.place, ..Problem::error(message) };

        let places = self.rooted(part.kind);
        for (root, place) in &places {
            let mut found = candidates(place, part);
            found.sort();
            match found.as_slice() {
                [] => {}
                [one] if is_inside(one, root) => return Ok(one.clone()),
                [one] => {
                    let (file, root) = (one.display(), root.display());
                    return Err(wrong(format!("`{file}` leads out of `{root}`"))
                        .hint(format!("put the file itself into `{}`", place.display())));
                }
                [one, other, ..] => {
                    let (one, other) = (one.display(), other.display());
                    let message = format!("`{}` could be `{one}` or `{other}`", part.name);
                    return Err(wrong(message).hint("give one of them another name"));
                }
            }
        }
        let mut list: Vec<String> = Vec::new();
        for (_, place) in &places {
            // Next to a workflow at the top of the workspace, two of the directories are one.
            let shown = format!("`{}`", self.workspace.join(place).display());
            if !list.contains(&shown) {
                list.push(shown);
            }
        }
        let wanted = match part.kind {
            PartKind::Command => format!("no command file `{}.md`", part.name),
            PartKind::Script => format!("no script `{}.ts`, `.js` or `.py`", part.name),
        };
        let missing = wrong(format!("there is {wanted} in {}", list.join(", ")));
        let known: Vec<_> = places.iter().flat_map(|(_, place)| every(place, part.kind)).collect();
        Err(match nearest(&part.name, known.iter().map(|(name, _)| name.as_str())) {
            Some(near) => missing.hint(format!("did you mean `{near}`?")),
            None => missing,
        })
    }

    /// Returns true if there is no file for a part.
    pub(crate) fn lacks(&self, part: &Part) -> bool {
        self.places(part.kind).iter().all(|place| candidates(place, part).is_empty())
    }

    /// Copies a part into a run that started before the file existed. Does nothing if the run has a
    /// copy.
    pub(crate) fn keep_late(&self, root: &Path, part: &Part, limit: u64) -> Result<(), String> {
        let endings = endings(part.kind).iter().map(|ending| format!("x.{ending}"));
        if endings.map(|name| kept(root, part, Path::new(&name))).any(|copy| copy.is_present_file())
        {
            return Ok(());
        }
        let from = self.find(part).map_err(|problem| problem.message)?;
        let named = |why: String| format!("`{}`: {why}", from.display());
        let length = fs::metadata(&from).map_err(|error| named(error.to_string()))?.len();
        if length > limit {
            return Err(named(format!("it is larger than {limit} bytes")));
        }
        let text = disk::machine().read(&from).map_err(|error| named(error.to_string()))?;
        if let Some(fault) = fault(part, &from.display().to_string(), &text) {
            return Err(fault.message);
        }
        let source = PartSource::of(&from, &text, &self.workspace, self.home.as_deref());
        keep(root, &[(kept(root, part, &from), &text, source)])
            .map_err(|(path, error)| format!("cannot write `{}`: {error}", path.display()))
    }

    /// Returns every part of a kind, with its name and its file.
    pub(crate) fn all(&self, kind: PartKind) -> Vec<(String, PathBuf)> {
        let mut found: Vec<(String, PathBuf)> = Vec::new();
        for (root, place) in self.rooted(kind) {
            for (name, path) in every(&place, kind) {
                let part = Part { kind, name: name.clone(), place: None };
                // Skip a part that another one shadows. If two candidates conflict, list both.
                let is =
                    self.find(&part).map_or(true, |first| first == path) && is_inside(&path, root);
                if is && !found.iter().any(|(_, other)| *other == path) {
                    found.push((name, path));
                }
            }
        }
        found.sort();
        found
    }
}

/// Returns true if a path lies in a directory after symbolic links are resolved.
fn is_inside(path: &Path, root: &Path) -> bool {
    // For a workflow in the current directory, the path of its directory is empty.
    let real = |path: &Path| Path::new(".").join(path).canonicalize();
    matches!((real(path), real(root)), (Ok(path), Ok(root)) if path.starts_with(&root))
}

/// Returns the files of a kind in a directory and its direct subdirectories, with their names.
fn every(place: &Path, kind: PartKind) -> Vec<(String, PathBuf)> {
    let list = |dir: &Path| -> Vec<PathBuf> {
        let entries = fs::read_dir(dir).into_iter().flatten().flatten();
        entries.map(|entry| entry.path()).collect()
    };
    let named = |path: &PathBuf| {
        let ending = path.extension().and_then(|ending| ending.to_str())?;
        let known = endings(kind).contains(&ending) && path.is_present_file();
        let name = path.file_stem()?.to_str()?.to_owned();
        (known && !name.starts_with('.')).then(|| (name, path.clone()))
    };
    let here = list(place);
    let mut found: Vec<_> = here.iter().filter_map(named).collect();
    for dir in here.iter().filter(|path| path.is_present_dir()) {
        let inside: Vec<_> = list(dir).iter().filter_map(named).collect();
        found.extend(inside);
    }
    found
}

/// A command file's description of itself, for users.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct About {
    pub description: Option<String>,
    pub argument_hint: Option<String>,
}

/// Reads the front matter of a command file. It is informative only, so a field that is not YAML
/// text, such as `argument-hint: [issue]`, is taken as written.
pub(crate) fn about(text: &str) -> About {
    let Some(head) = front::split(text).ok().and_then(|parts| parts.head) else {
        return About::default();
    };
    let document = yaml::parse(head).ok();
    let field = |key: &str| {
        let read = document.as_ref().and_then(|document| document.get(key)?.text());
        let line = || head.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'));
        let found = read.or_else(line)?.trim();
        (!found.is_empty()).then(|| found.to_owned())
    };
    About { description: field("description"), argument_hint: field("argument-hint") }
}

/// Returns the files of a part in a directory or, if there are none, in its direct subdirectories.
fn candidates(place: &Path, part: &Part) -> Vec<PathBuf> {
    let here = files(place, part);
    if !here.is_empty() {
        return here;
    }
    let entries = fs::read_dir(place).into_iter().flatten().flatten();
    let dirs = entries.map(|entry| entry.path()).filter(|path| path.is_present_dir());
    dirs.flat_map(|dir| files(&dir, part)).collect()
}

fn files(dir: &Path, part: &Part) -> Vec<PathBuf> {
    let paths = endings(part.kind).iter().map(|ending| dir.join(format!("{}.{ending}", part.name)));
    paths.filter(|path| path.is_present_file()).collect()
}

fn endings(kind: PartKind) -> &'static [&'static str] {
    match kind {
        PartKind::Command => &["md"],
        PartKind::Script => &["ts", "js", "py"],
    }
}

/// Returns the path of a run's copy of a file.
pub(crate) fn kept(root: &Path, part: &Part, from: &Path) -> PathBuf {
    let ending = from.extension().unwrap_or_default().to_string_lossy().into_owned();
    root.join(PARTS).join(folder(part.kind)).join(format!("{}.{ending}", part.name))
}

fn folder(kind: PartKind) -> &'static str {
    match kind {
        PartKind::Command => "commands",
        PartKind::Script => "scripts",
    }
}

/// Returns the prompt in a run's copy of a command file, without its front matter.
pub(crate) fn frozen_command(root: &Path, name: &str) -> Result<String, String> {
    let part = Part { kind: PartKind::Command, name: name.to_owned(), place: None };
    let path = kept(root, &part, Path::new("x.md"));
    let text = fs::read_to_string(&path)
        .map_err(|error| format!("cannot read the command file `{}`: {error}", path.display()))?;
    let prompt = without_front_matter(&text);
    match prompt.trim().is_empty() {
        true => Err(format!("the command file `{name}.md` is empty")),
        false => Ok(prompt.to_owned()),
    }
}

/// Returns the problem with the text of a part, independent of its use in a workflow.
pub(crate) fn fault(part: &Part, file: &str, text: &[u8]) -> Option<Problem> {
    let text = String::from_utf8_lossy(text);
    let says = match part.kind {
        PartKind::Command => without_front_matter(&text),
        PartKind::Script => &text,
    };
    if !says.trim().is_empty() {
        return None;
    }
    let what = match part.kind {
        PartKind::Command => "command file",
        PartKind::Script => "script",
    };
    let problem = Problem::error(format!("the {what} `{file}` is empty"));
    let problem = problem.hint("write into it what is to be done, or name another");
    Some(Problem { place: part.place, ..problem })
}

/// Returns a plan with the references of the run's command files.
pub(crate) fn with_commands(plan: Plan, root: &Path) -> Plan {
    plan.with_commands(|name| frozen_command(root, name).ok())
}

/// Returns the text after the front matter, or the whole text if there is none.
pub(crate) fn without_front_matter(text: &str) -> &str {
    let text = without_bom(text);
    let mut lines = text.split_inclusive('\n');
    if lines.next().is_none_or(|first| first.trim_end() != "---") {
        return text;
    }
    let mut rest = lines;
    while let Some(line) = rest.next() {
        if line.trim_end() == "---" {
            return text.split_at(text.len() - rest.map(str::len).sum::<usize>()).1.trim_start();
        }
    }
    text
}

/// Returns the path of a run's copy of a script, relative to the run's directory, and its source.
/// The extension determines the runtime.
pub(crate) fn frozen_script(
    root: &Path,
    name: &str,
) -> Result<(String, Option<PartSource>), String> {
    let part = Part { kind: PartKind::Script, name: name.to_owned(), place: None };
    for ending in ["ts", "js", "py"] {
        let path = kept(root, &part, Path::new(&format!("x.{ending}")));
        if path.is_present_file() {
            let copy = path.strip_prefix(root).unwrap_or(&path).to_string_lossy().into_owned();
            let named = copy.strip_prefix(PARTS).map(|name| name.trim_start_matches('/'));
            let source = named.and_then(|name| sources(root).remove(name));
            return Ok((copy, source));
        }
    }
    Err(format!("the run has no copy of the script `{name}`"))
}

/// Returns the runtime of a script file.
pub(crate) fn runtime_of(path: &str) -> Option<Runtime> {
    match Path::new(path).extension()?.to_str()? {
        "ts" | "js" => Some(Runtime::Bun),
        "py" => Some(Runtime::Uv),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_file_tells_of_itself() {
        let about_of = |head: &str| about(&format!("---\n{head}---\nDo it.\n"));
        let said = about_of("description: \"Plan: a feature\"\nargument-hint: <issue> [more]\n");
        assert_eq!(said.description.as_deref(), Some("Plan: a feature"));
        assert_eq!(said.argument_hint.as_deref(), Some("<issue> [more]"));
        let said = about_of("description: it: is no YAML\nargument-hint: [issue]\n");
        assert_eq!(said.description.as_deref(), Some("it: is no YAML"));
        assert_eq!(said.argument_hint.as_deref(), Some("[issue]"));
        assert_eq!(about("description: none\n"), About::default());
        assert_eq!(about("---\ndescription:\n---\nx"), About::default());
    }
}
