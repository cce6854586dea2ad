//! The files that a workflow is made of beside its own text, command files and scripts: where they
//! are looked for, the copies of them that a run keeps, and where each came from.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::digest::sha256;
use crate::disk;
use crate::workflow::plan::{Part, PartKind, Runtime};
use crate::workflow::{Plan, Problem, front, without_bom, yaml};

/// Where a run keeps them, in its directory.
pub const PARTS: &str = "parts";
/// Says where they came from, among them.
const SOURCES: &str = "sources.json";

/// Where a part lay when the run began, and what was in it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartSource {
    /// From the workspace; `~/…` at home; else from the root of the file system.
    pub from: String,
    pub sha256: String,
}

/// What has become of a part since its run began.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Since {
    Same,
    Changed,
    Gone,
}

impl Since {
    /// The same in words that follow the name of the file.
    pub fn words(self) -> &'static str {
        match self {
            Since::Same => "is as it was when the run began",
            Since::Changed => "was changed since the run began",
            Since::Gone => "is not there any more",
        }
    }
}

impl PartSource {
    /// A part as it lies there now.
    pub fn of(from: &Path, text: &[u8], workspace: &Path, home: Option<&Path>) -> PartSource {
        // The directory is told without links, for the workspace's is; the file by its own name,
        // for what lies beside that is what it may want.
        let real = |path: &Path| Path::new(".").join(path).canonicalize().ok();
        let dir = from.parent().and_then(real).unwrap_or_default();
        let whole = dir.join(from.file_name().unwrap_or_default());
        let beneath = |root: &Path| whole.strip_prefix(real(root)?).ok().map(Path::to_owned);
        let at_home = |rest: PathBuf| Path::new("~").join(rest);
        let told = beneath(workspace).or_else(|| home.and_then(beneath).map(at_home));
        let from = told.unwrap_or(whole).to_string_lossy().into_owned();
        PartSource { from, sha256: sha256(text) }
    }

    /// Where it lies here.
    pub fn path(&self, workspace: &Path, home: Option<&Path>) -> PathBuf {
        match (self.from.strip_prefix("~/"), home) {
            (Some(rest), Some(home)) => home.join(rest),
            _ => workspace.join(&self.from),
        }
    }

    /// Whether what lies there is still what it was.
    pub fn since(&self, path: &Path) -> Since {
        // Whoever left a pipe there does not make us wait.
        match path.is_file().then(|| disk::machine().read(path)) {
            Some(Ok(bytes)) if sha256(&bytes) == self.sha256 => Since::Same,
            Some(Ok(_)) => Since::Changed,
            Some(Err(_)) | None => Since::Gone,
        }
    }
}

/// The document that says where the parts of a run came from.
#[derive(Debug, Serialize, Deserialize)]
struct Sources {
    schema: String,
    /// By the name of the copy in the directory of parts.
    parts: BTreeMap<String, PartSource>,
}

/// Keeps copies of the files that a workflow is made of, and where they came from. The error names
/// the file that cannot be written.
pub fn keep(
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

/// Where the parts of a run came from, by the names of their copies. One that was begun before
/// this was noted does not know.
pub fn sources(root: &Path) -> BTreeMap<String, PartSource> {
    let text = disk::machine().read(&root.join(PARTS).join(SOURCES)).unwrap_or_default();
    serde_json::from_slice::<Sources>(&text).map(|sources| sources.parts).unwrap_or_default()
}

/// Where such files are looked for.
pub struct Library {
    pub workspace: PathBuf,
    /// Where the workflow's own file is.
    pub beside: Option<PathBuf>,
    pub home: Option<PathBuf>,
}

impl Library {
    /// The directories that are looked through, in order.
    pub fn places(&self, kind: PartKind) -> Vec<PathBuf> {
        self.rooted(kind).into_iter().map(|(_, place)| place).collect()
    }

    /// Each of them, after the directory that whatever is found in it must lie in.
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
                // A workflow of the workspace may have links to what is elsewhere in it.
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

    /// Finds the file of a part. The error says what is wrong, with all places that were looked
    /// at.
    pub fn find(&self, part: &Part) -> Result<PathBuf, Problem> {
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
        let list: Vec<_> =
            places.iter().map(|(_, place)| format!("`{}`", place.display())).collect();
        let wanted = match part.kind {
            PartKind::Command => format!("no command file `{}.md`", part.name),
            PartKind::Script => format!("no script `{}.ts`, `.js` or `.py`", part.name),
        };
        Err(wrong(format!("there is {wanted} in {}", list.join(", "))))
    }

    /// Returns whether no file at all is there for a part.
    pub fn lacks(&self, part: &Part) -> bool {
        self.places(part.kind).iter().all(|place| candidates(place, part).is_empty())
    }

    /// Copies a part into a run that began before the file was there. Does nothing if the run has
    /// a copy.
    pub fn keep_late(&self, root: &Path, part: &Part, limit: u64) -> Result<(), String> {
        let endings = endings(part.kind).iter().map(|ending| format!("x.{ending}"));
        if endings.map(|name| kept(root, part, Path::new(&name))).any(|copy| copy.is_file()) {
            return Ok(());
        }
        let from = self.find(part).map_err(|problem| problem.message)?;
        let named = |why: String| format!("`{}`: {why}", from.display());
        let length = std::fs::metadata(&from).map_err(|error| named(error.to_string()))?.len();
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

    /// Every part of a kind that can be found, by name, each with its file.
    pub fn all(&self, kind: PartKind) -> Vec<(String, PathBuf)> {
        let mut found: Vec<(String, PathBuf)> = Vec::new();
        for (root, place) in self.rooted(kind) {
            for (name, path) in every(&place, kind) {
                let part = Part { kind, name: name.clone(), place: None };
                // What another one hides is not there; one of two is, whichever is meant.
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

/// Whether something lies in a directory once symbolic links are followed.
fn is_inside(path: &Path, root: &Path) -> bool {
    // The directory of a workflow that lies right here has no name.
    let real = |path: &Path| Path::new(".").join(path).canonicalize();
    matches!((real(path), real(root)), (Ok(path), Ok(root)) if path.starts_with(&root))
}

/// The files of a kind in a directory and in those in it, with their names.
fn every(place: &Path, kind: PartKind) -> Vec<(String, PathBuf)> {
    let list = |dir: &Path| -> Vec<PathBuf> {
        let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
        entries.map(|entry| entry.path()).collect()
    };
    let named = |path: &PathBuf| {
        let ending = path.extension().and_then(|ending| ending.to_str())?;
        let known = endings(kind).contains(&ending) && path.is_file();
        let name = path.file_stem()?.to_str()?.to_owned();
        (known && !name.starts_with('.')).then(|| (name, path.clone()))
    };
    let here = list(place);
    let mut found: Vec<_> = here.iter().filter_map(named).collect();
    for dir in here.iter().filter(|path| path.is_dir()) {
        let inside: Vec<_> = list(dir).iter().filter_map(named).collect();
        found.extend(inside);
    }
    found
}

/// What a command file tells people of itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct About {
    pub description: Option<String>,
    pub argument_hint: Option<String>,
}

/// What the front matter of a command file says. It is for people alone, so what cannot be read as
/// YAML text, such as `argument-hint: [issue]`, is taken as it is written.
pub fn about(text: &str) -> About {
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

/// The files of a part in a directory, and in the directories in it.
fn candidates(place: &Path, part: &Part) -> Vec<PathBuf> {
    let here = files(place, part);
    if !here.is_empty() {
        return here;
    }
    let entries = std::fs::read_dir(place).into_iter().flatten().flatten();
    let dirs = entries.map(|entry| entry.path()).filter(|path| path.is_dir());
    dirs.flat_map(|dir| files(&dir, part)).collect()
}

fn files(dir: &Path, part: &Part) -> Vec<PathBuf> {
    let paths = endings(part.kind).iter().map(|ending| dir.join(format!("{}.{ending}", part.name)));
    paths.filter(|path| path.is_file()).collect()
}

fn endings(kind: PartKind) -> &'static [&'static str] {
    match kind {
        PartKind::Command => &["md"],
        PartKind::Script => &["ts", "js", "py"],
    }
}

/// Where a run keeps its copy of a file.
pub fn kept(root: &Path, part: &Part, from: &Path) -> PathBuf {
    let ending = from.extension().unwrap_or_default().to_string_lossy().into_owned();
    root.join(PARTS).join(folder(part.kind)).join(format!("{}.{ending}", part.name))
}

fn folder(kind: PartKind) -> &'static str {
    match kind {
        PartKind::Command => "commands",
        PartKind::Script => "scripts",
    }
}

/// The prompt in a run's copy of a command file, without what its front matter tells people.
pub fn frozen_command(root: &Path, name: &str) -> Result<String, String> {
    let part = Part { kind: PartKind::Command, name: name.to_owned(), place: None };
    let path = kept(root, &part, Path::new("x.md"));
    let text = std::fs::read_to_string(&path)
        .map_err(|error| format!("cannot read the command file `{}`: {error}", path.display()))?;
    let prompt = without_front_matter(&text);
    match prompt.trim().is_empty() {
        true => Err(format!("the command file `{name}.md` is empty")),
        false => Ok(prompt.to_owned()),
    }
}

/// What is wrong with the text of a part, whatever a workflow does with it.
pub fn fault(part: &Part, file: &str, text: &[u8]) -> Option<Problem> {
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

/// Lets a plan know what the command files refer to that its run has copies of.
pub fn learn(plan: &mut Plan, root: &Path) {
    plan.learn_commands(|name| frozen_command(root, name).ok());
}

/// The text after a front matter, where there is one.
pub fn without_front_matter(text: &str) -> &str {
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

/// A run's copy of a script, relative to its directory, and where it came from. Its ending says
/// what runs it.
pub fn frozen_script(root: &Path, name: &str) -> Result<(String, Option<PartSource>), String> {
    let part = Part { kind: PartKind::Script, name: name.to_owned(), place: None };
    for ending in ["ts", "js", "py"] {
        let path = kept(root, &part, Path::new(&format!("x.{ending}")));
        if path.is_file() {
            let copy = path.strip_prefix(root).unwrap_or(&path).to_string_lossy().into_owned();
            let named = copy.strip_prefix(PARTS).map(|name| name.trim_start_matches('/'));
            let source = named.and_then(|name| sources(root).remove(name));
            return Ok((copy, source));
        }
    }
    Err(format!("the run has no copy of the script `{name}`"))
}

/// What runs a script file.
pub fn runtime_of(path: &str) -> Option<Runtime> {
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
