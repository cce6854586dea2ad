//! Finds and reads the text of a workflow: a file, or a grimoire given by its name.

use std::io::Read;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::poll::{PollFd, PollFlags, poll};

use super::failure::Failure;
use super::grimoires;
use super::project::Project;
use crate::disk::fs::{self, OnVolume as _};
use crate::workspace::dangling;
use crate::yaml::problem::nearest;

/// Returns the path of a workflow file: relative to the current directory if it exists there, else
/// relative to the workspace.
pub(crate) fn workflow_path(project: &Project, file: &Path) -> PathBuf {
    if file.is_present() { file.to_owned() } else { project.workspace.join(file) }
}

/// Returns a failure with this message, and a hint with a similar workflow name if there is one.
pub(crate) fn no_workflow(project: &Project, file: &Path, message: String) -> Failure {
    let failure = Failure::invalid(message);
    match near_workflow(project, file) {
        Some(near) => failure.hint(format!("did you mean `{near}`?")),
        None => failure,
    }
}

/// Returns the name of the existing workflow or built-in grimoire that is most similar to `file`.
pub(crate) fn near_workflow(project: &Project, file: &Path) -> Option<String> {
    let dir = file.parent().unwrap_or(Path::new(""));
    let beside = fs::read_dir(workflow_path(project, &dir.join("."))).into_iter().flatten();
    let is_yaml = |path: &Path| path.extension().is_some_and(|end| end == "yaml" || end == "yml");
    let files = beside.flatten().map(|entry| dir.join(entry.file_name()));
    let mut names: Vec<String> =
        files.filter(|path| is_yaml(path)).map(|path| path.display().to_string()).collect();
    names.sort();
    names.extend(grimoires::built_in().map(str::to_owned));
    let wanted = file.display().to_string();
    let near = nearest(&wanted, names.iter().map(String::as_str));
    near.filter(|near| *near != wanted).map(str::to_owned)
}

/// Returns the display name and the text of a grimoire, or `None` if there is no grimoire of this
/// name.
pub(crate) fn find_grimoire(
    project: &Project,
    name: &str,
) -> Option<Result<(String, String), String>> {
    grimoires::find(name, &|path| {
        let path = Path::new(path);
        let there = workflow_path(project, path).is_present();
        // Do not treat a dangling link as missing: reading it reports the actual error.
        let meant = there || dangling(&project.workspace, path).is_some();
        meant.then(|| read_workflow(project, path))
    })
}

/// Returns the display name and the text of a workflow file, or of a grimoire given by its name.
pub(crate) fn find_workflow(project: &Project, file: &Path) -> Result<(String, String), String> {
    let name = file.display().to_string();
    if !workflow_path(project, file).is_present()
        && let Some(found) = find_grimoire(project, &name)
    {
        return found;
    }
    let text = read_workflow(project, file)?;
    Ok((path_in_workspace(project, file).unwrap_or(name), text))
}

/// Converts a path that is relative to a directory below the workspace into one relative to the
/// workspace. Returns `None` if both are the same.
fn path_in_workspace(project: &Project, file: &Path) -> Option<String> {
    let here = std::env::current_dir().ok()?.canonicalize().ok()?;
    if here == project.workspace || !file.is_present() {
        return None;
    }
    let whole = here.join(file);
    // Resolve links in the directory, but keep the file's own name.
    let whole = whole.parent()?.canonicalize().ok()?.join(whole.file_name()?);
    let inside = whole.strip_prefix(&project.workspace).unwrap_or(&whole);
    Some(inside.to_string_lossy().into_owned())
}

/// Reads a workflow file as text. The error is a complete message.
pub(crate) fn read_workflow(project: &Project, file: &Path) -> Result<String, String> {
    let name = file.display();
    if workflow_path(project, file).is_present_dir() {
        return Err(format!("`{name}` is a directory; name the files in it: {name}/*.yaml"));
    }
    let bytes = read_bounded(&workflow_path(project, file), project.config.input_bytes)
        .map_err(|error| format!("cannot read the workflow `{name}`: {error}"))?;
    String::from_utf8(bytes).map_err(|error| {
        let good = &error.as_bytes()[..error.utf8_error().valid_up_to()];
        let line = good.iter().filter(|byte| **byte == b'\n').count() + 1;
        format!("`{name}` is not UTF-8 text (line {line})")
    })
}

/// Reads a file of at most `limit` bytes. The limit protects against endless devices; a pipe
/// without a writer is an error.
pub(crate) fn read_bounded(path: &Path, limit: u64) -> std::io::Result<Vec<u8>> {
    // With this flag, opening a pipe does not block. It has no effect on regular files.
    let flags = nix::libc::O_NONBLOCK;
    let file = std::fs::OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    let mut bytes = match file.metadata()?.file_type().is_fifo() {
        true => wait_for_writer(&file)?,
        false => Vec::new(),
    };
    file.take(limit + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > limit {
        return Err(std::io::Error::other(format!("it is larger than {limit} bytes")));
    }
    Ok(bytes)
}

/// Waits until a pipe has data or its writer is done, then makes the pipe blocking. Returns the
/// bytes that were read meanwhile. A slow writer is fine, but a pipe without any writer is an
/// error.
fn wait_for_writer(mut pipe: &std::fs::File) -> std::io::Result<Vec<u8>> {
    const PATIENCE: u16 = 3_000;
    let mut begun = Vec::new();
    while begun.is_empty()
        && poll(&mut [PollFd::new(pipe.as_fd(), PollFlags::POLLIN)], PATIENCE)? == 0
    {
        // A read of 0 bytes means that no process has the pipe open for writing.
        let mut byte = [0; 1];
        match pipe.read(&mut byte) {
            Ok(0) => return Err(std::io::Error::other("it is a pipe, and nobody writes to it")),
            Ok(_) => begun.extend(byte),
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
    fcntl(pipe, FcntlArg::F_SETFL(OFlag::empty()))?;
    Ok(begun)
}
