//! The files that a workflow is made of beside its own text, command files and scripts: where they
//! are looked for, and the copies of them that a run keeps.

use std::path::{Path, PathBuf};

use crate::workflow::plan::{Part, PartKind, Runtime};
use crate::workflow::{Plan, Problem, front, without_bom, yaml};

/// Where a run keeps them, in its directory.
pub const PARTS: &str = "parts";

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

/// A run's copy of a script, relative to its directory. Its ending says what runs it.
pub fn frozen_script(root: &Path, name: &str) -> Result<String, String> {
    let part = Part { kind: PartKind::Script, name: name.to_owned(), place: None };
    for ending in ["ts", "js", "py"] {
        let path = kept(root, &part, Path::new(&format!("x.{ending}")));
        if path.is_file() {
            let relative = path.strip_prefix(root).unwrap_or(&path);
            return Ok(relative.to_string_lossy().into_owned());
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
