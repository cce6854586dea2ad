//! Names of dropped files, which may contain any bytes, and moves of such files.

use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use crate::disk;
use crate::disk::fs;
use crate::queue::name::ENDING;
use crate::queue::{Queue, TaskId, TaskName};

/// Maximum length of a dropped file's name, in bytes.
pub(crate) const NAME_MAX: usize = 160;

/// Returns true if this is the name of a dropped file.
pub(crate) fn is_dropped(name: &OsStr) -> bool {
    let bytes = name.as_bytes();
    let task = bytes.ends_with(ENDING.as_bytes()) && !bytes.starts_with(b".");
    task && !name.to_str().is_some_and(TaskName::is_name)
}

/// Returns the files in an inbox that no worker will take, each with the reason.
pub(crate) fn ignored(inbox: &Path) -> Vec<(String, &'static str)> {
    let entries = fs::read_dir(inbox).into_iter().flatten().flatten();
    let mut found: Vec<(String, &'static str)> = entries
        .filter_map(|entry| {
            let known = entry.metadata().ok().filter(std::fs::Metadata::is_file)?;
            let name = entry.file_name();
            // An empty file becomes a task once it has text.
            let empty = (is_dropped(&name) && known.len() == 0).then_some("it is empty");
            Some((shown(&name), empty.or_else(|| reason(&name))?))
        })
        .collect();
    found.sort();
    found
}

/// Returns the files next to the inboxes: no worker takes them.
pub(crate) fn beside_inboxes(inboxes: &Path) -> Vec<String> {
    let entries = fs::read_dir(inboxes).into_iter().flatten().flatten();
    let files = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_file()));
    let mut names: Vec<OsString> = files.map(|entry| entry.file_name()).collect();
    names.retain(|name| !name.as_bytes().starts_with(b"."));
    names.sort();
    names.iter().map(|name| shown(name)).collect()
}

/// Returns the files among `names` that no worker takes and that are not in `reported` yet, each
/// with the reason, and adds them to `reported`.
pub(crate) fn newly_ignored(
    inbox: &Path,
    names: &[OsString],
    reported: &mut HashSet<PathBuf>,
) -> Vec<(String, String)> {
    let mut found = Vec::new();
    for name in names {
        let (Some(reason), path) = (reason(name), inbox.join(name)) else { continue };
        let is_file = || fs::symlink_metadata(&path).is_ok_and(|data| data.is_file());
        if !reported.contains(&path) && is_file() {
            found.push((shown(name), reason.to_owned()));
            reported.insert(path);
        }
    }
    found
}

/// Returns the reason why no worker takes a file of this name. `None` if a worker does, or if no
/// user created the file.
fn reason(name: &OsStr) -> Option<&'static str> {
    let text = name.to_string_lossy();
    let of_system = [".nfs", ".#"].iter().any(|start| text.starts_with(start));
    if is_dropped(name) || TaskName::is_name(&text) || of_system {
        return None;
    }
    let temporary = ["~", ".swp", ".tmp", ".part"].iter().any(|end| text.ends_with(end));
    match (text.ends_with(ENDING), temporary, text.starts_with('.')) {
        (true, _, true) => Some("names of tasks do not start with a dot"),
        // Editors create such files, and rename or remove them.
        (_, true, _) | (_, _, true) => None,
        _ => Some("names of tasks end in `.task`"),
    }
}

/// Returns the names in a directory, unmodified. A missing directory has none.
pub(crate) fn list(dir: &Path) -> io::Result<Vec<OsString>> {
    match fs::read_dir(dir) {
        Ok(entries) => entries.map(|entry| Ok(entry?.file_name())).collect(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) if error.kind() == io::ErrorKind::NotADirectory => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}

/// Returns true if the listing of a file's directory contains the file.
pub(crate) fn is_listed(path: &Path) -> io::Result<bool> {
    let names = list(path.parent().unwrap_or(Path::new("")))?;
    Ok(names.iter().any(|name| Some(name.as_os_str()) == path.file_name()))
}

/// Returns the number of dropped files among the names in an inbox.
pub(crate) fn count_dropped(names: &[String]) -> usize {
    names.iter().filter(|name| is_dropped(OsStr::new(name))).count()
}

/// A dropped file that was moved aside and is not a task yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Aside {
    /// ID of its future task.
    pub id: TaskId,
    pub agent: String,
    /// Original name of the file.
    pub source: String,
    /// The worker that moved it.
    pub worker: String,
}

/// Returns the files that were moved aside under IDs with this prefix, for any agent.
pub(crate) fn aside_by_id(queue: &Queue, prefix: &str) -> io::Result<Vec<Aside>> {
    let named = queue.census().taken_in()?.into_iter().filter_map(|taken| {
        let (id, source) = read_name(taken.path.file_name()?.to_str()?)?;
        Some(Aside { id, agent: taken.agent, source, worker: taken.member })
    });
    Ok(named.filter(|aside| aside.id.as_str().starts_with(prefix)).collect())
}

/// Renames to a name that only this process can choose. Returns false if the source is missing. If
/// the call reports an error, the rename still counts as done if the target is listed.
pub(crate) fn move_unique(from: &Path, to: &Path) -> io::Result<bool> {
    let Err(error) = disk::rename(from, to) else { return Ok(true) };
    if is_listed(to)? {
        return Ok(true);
    }
    if error.kind() == io::ErrorKind::NotFound { Ok(false) } else { Err(error) }
}

/// Converts a file name to a part of another name: escapes `%`, control characters, and invalid
/// UTF-8 as `%` and two hex digits, and truncates a name that is too long.
pub(crate) fn shown(name: &OsStr) -> String {
    let mut out = String::new();
    for chunk in name.as_bytes().utf8_chunks() {
        for c in chunk.valid().chars() {
            match c {
                '%' => out.push_str("%25"),
                c if c.is_control() => c.to_string().bytes().for_each(|b| push_hex(&mut out, b)),
                c => out.push(c),
            }
        }
        chunk.invalid().iter().for_each(|byte| push_hex(&mut out, *byte));
    }
    if out.len() > NAME_MAX {
        let end = (0..=NAME_MAX).rev().find(|at| out.is_char_boundary(*at));
        out.truncate(end.unwrap_or(0));
        // Do not cut through an escape.
        if let Some(at) = out.rfind('%').filter(|at| *at + 3 > out.len()) {
            out.truncate(at);
        }
    }
    out
}

fn push_hex(out: &mut String, byte: u8) {
    out.push_str(&format!("%{byte:02X}"));
}

/// Parses the name of a file that was moved aside into the ID and the original name.
pub(crate) fn read_name(file: &str) -> Option<(TaskId, String)> {
    let (id, shown) = file.split_at_checked(26)?;
    let (id, shown) = (TaskId::parse(id)?, shown.strip_prefix('-')?);
    let mut bytes = Vec::new();
    let mut rest = shown;
    while let Some(at) = rest.find('%') {
        bytes.extend_from_slice(&rest.as_bytes()[..at]);
        let digits = rest.get(at + 1..at + 3)?;
        bytes.push(u8::from_str_radix(digits, 16).ok()?);
        rest = &rest[at + 3..];
    }
    bytes.extend_from_slice(rest.as_bytes());
    Some((id, OsString::from_vec(bytes).to_string_lossy().into_owned()))
}
