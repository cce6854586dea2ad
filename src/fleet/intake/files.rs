//! Names of dropped files, as odd as people make them, and how such files are moved.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use super::DONE;
use crate::disk;
use crate::queue::name::ENDING;
use crate::queue::{Layout, TaskId, TaskName};

/// How many bytes of a file's name are kept.
pub const NAME_MAX: usize = 160;

/// Whether a name is that of a file which somebody dropped.
pub fn is_dropped(name: &OsStr) -> bool {
    let bytes = name.as_bytes();
    let task = bytes.ends_with(ENDING.as_bytes()) && !bytes.starts_with(b".");
    task && !name.to_str().is_some_and(TaskName::is_name)
}

/// Returns the files in an inbox that no worker will take, each with the reason.
pub fn ignored(inbox: &Path) -> Vec<(String, &'static str)> {
    let entries = std::fs::read_dir(inbox).into_iter().flatten().flatten();
    let files = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_file()));
    let mut found: Vec<(String, &'static str)> = files
        .filter_map(|entry| Some((shown(&entry.file_name()), reason(&entry.file_name())?)))
        .collect();
    found.sort();
    found
}

/// Why no worker takes a file of this name; `None` if one does, or if it is no file of a person.
fn reason(name: &OsStr) -> Option<&'static str> {
    let text = name.to_string_lossy();
    if is_dropped(name) || TaskName::is_name(&text) || text.starts_with(".nfs") {
        return None;
    }
    let temporary = ["~", ".swp", ".tmp", ".part"].iter().any(|end| text.ends_with(end));
    match (text.ends_with(ENDING), temporary, text.starts_with('.')) {
        (true, _, true) => Some("names of tasks do not start with a dot"),
        // Editors make such files, and rename or remove them.
        (_, true, _) | (_, _, true) => None,
        _ => Some("names of tasks end in `.task`"),
    }
}

/// The names in a directory, as they are; one that is not there has none.
pub fn list(dir: &Path) -> io::Result<Vec<OsString>> {
    match disk::confirmed(&[dir], || std::fs::read_dir(dir)) {
        Ok(entries) => entries.map(|entry| Ok(entry?.file_name())).collect(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) if error.kind() == io::ErrorKind::NotADirectory => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}

/// Whether a file is in its directory.
pub fn is_listed(path: &Path) -> io::Result<bool> {
    let names = list(path.parent().unwrap_or(Path::new("")))?;
    Ok(names.iter().any(|name| Some(name.as_os_str()) == path.file_name()))
}

/// The dropped files of an agent that somebody has moved aside and that are no tasks yet.
pub fn moved_aside(layout: &Layout, agent: &str) -> io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for owner in list(&layout.intake())?.into_iter().filter(|owner| owner != DONE) {
        let dir = layout.intake().join(owner).join(agent);
        let files = list(&dir)?.into_iter();
        let files = files.filter(|file| file.to_str().and_then(read_name).is_some());
        found.extend(files.map(|file| dir.join(file)));
    }
    Ok(found)
}

/// A dropped file that somebody has moved aside, and that is no task yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Aside {
    /// What its task will be called.
    pub id: TaskId,
    pub agent: String,
    /// What the file was called.
    pub source: String,
    /// Who moved it.
    pub worker: String,
}

/// The files that were moved aside under ids that begin so, whoever they are for.
pub fn aside_by_id(layout: &Layout, prefix: &str) -> io::Result<Vec<Aside>> {
    let mut found = Vec::new();
    for owner in list(&layout.intake())?.into_iter().filter(|owner| owner != DONE) {
        for agent in list(&layout.intake().join(&owner))? {
            for file in list(&layout.intake().join(&owner).join(&agent))? {
                let Some((id, source)) = file.to_str().and_then(read_name) else { continue };
                if id.as_str().starts_with(prefix) {
                    let agent = agent.to_string_lossy().into_owned();
                    let worker = owner.to_string_lossy().into_owned();
                    found.push(Aside { id, agent, source, worker });
                }
            }
        }
    }
    Ok(found)
}

/// Renames to a name that only this process can have chosen. False if there was nothing to
/// rename. Whatever the call said: it happened if the target is listed.
pub fn move_unique(from: &Path, to: &Path) -> io::Result<bool> {
    let Err(error) = disk::rename(from, to) else { return Ok(true) };
    if is_listed(to)? {
        return Ok(true);
    }
    if error.kind() == io::ErrorKind::NotFound { Ok(false) } else { Err(error) }
}

/// A file's name as a part of another: what could not be read back is written as `%` and two
/// digits, and it is cut where it is too long.
pub fn shown(name: &OsStr) -> String {
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
        // Not through the middle of an escape.
        if let Some(at) = out.rfind('%').filter(|at| *at + 3 > out.len()) {
            out.truncate(at);
        }
    }
    out
}

fn push_hex(out: &mut String, byte: u8) {
    out.push_str(&format!("%{byte:02X}"));
}

/// Reads the name of a file that was moved aside: the id, and what it was called.
pub fn read_name(file: &str) -> Option<(TaskId, String)> {
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
