//! The run's directory, put into work where it is meant: it was prepared without it, for it may
//! lie elsewhere on the machine that does the work.

use std::borrow::Cow;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::digest::sha256;
use crate::disk;
use crate::fleet::prepare::refs::{ARTIFACTS, RUN_ROOT};
use crate::fleet::site::Site;
use crate::fleet::work::{Input, ScriptWork, Source, Work};
use crate::workflow::plan::CaptureMode;

/// Where prepared texts lie in the run's directory that are too long for an argument.
pub const VALUES: &str = "values";

/// The work with the run's directory in it, in which there is then a place for artifacts.
pub fn place<'w>(site: &Site, work: &'w Work) -> io::Result<Cow<'w, Work>> {
    // Only nodes may refer to it; what else looks like it is somebody's own text.
    if work.capture != CaptureMode::Whole || !is_meant(work) {
        return Ok(Cow::Borrowed(work));
    }
    let root = site.root();
    fs::create_dir_all(root.join(ARTIFACTS))?;
    let path = root.to_string_lossy();
    if path.contains('\n') {
        // It might end the text of a script that it is put into.
        return Err(io::Error::other("the path of the run's directory has a line break in it"));
    }
    let put = |text: &mut String| {
        if text.contains(RUN_ROOT) {
            *text = text.replace(RUN_ROOT, &path);
        }
    };
    let mut placed = work.clone();
    let scripts = format!("{RUN_ROOT}/{VALUES}/");
    for argument in &mut placed.argv {
        let is_script = argument.starts_with(&scripts) && argument.ends_with(".sh");
        put(argument);
        if is_script {
            *argument = script(&root, Path::new(argument.as_str()))?.to_string_lossy().into_owned();
        }
    }
    placed.env.iter_mut().for_each(|(_, value)| put(value));
    match &mut placed.stdin {
        Some(Input::Text(text)) => put(text),
        Some(input) => *input = Input::of(put_bytes(&input.bytes(), path.as_bytes())),
        None => {}
    }
    if let Some(ScriptWork { source: Source::Text(text), .. }) = &mut placed.script {
        put(text);
    }
    Ok(Cow::Owned(placed))
}

fn is_meant(work: &Work) -> bool {
    let named = |text: &String| text.contains(RUN_ROOT);
    let source = work.script.as_ref().map(|script| &script.source);
    work.argv.iter().any(named)
        || work.env.iter().any(|(_, value)| named(value))
        || matches!(source, Some(Source::Text(text)) if named(text))
        || match &work.stdin {
            Some(Input::Text(text)) => named(text),
            // It is found by its bytes: it is rare that there are such.
            Some(input) => find(&input.bytes()).is_some(),
            None => false,
        }
}

fn find(bytes: &[u8]) -> Option<usize> {
    bytes.windows(RUN_ROOT.len()).position(|window| window == RUN_ROOT.as_bytes())
}

fn put_bytes(mut bytes: &[u8], path: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(bytes.len());
    while let Some(at) = find(bytes) {
        out.extend_from_slice(&bytes[..at]);
        out.extend_from_slice(path);
        bytes = &bytes[at + RUN_ROOT.len()..];
    }
    out.extend_from_slice(bytes);
    out
}

/// A script that was left in a file, with the run's directory in it.
fn script(root: &Path, file: &Path) -> io::Result<PathBuf> {
    let text = fs::read_to_string(file)?;
    if !text.contains(RUN_ROOT) {
        return Ok(file.to_owned());
    }
    let text = text.replace(RUN_ROOT, &root.to_string_lossy());
    let name = format!("{}.sh", &sha256(text.as_bytes())[..32]);
    let path = root.join(VALUES).join(name);
    leave(&path, &text)?;
    Ok(path)
}

/// Leaves a text in a file that is named by its content: whoever else does so leaves the same.
pub fn leave(path: &Path, text: &str) -> io::Result<()> {
    if path.exists() {
        return Ok(());
    }
    fs::create_dir_all(path.parent().unwrap_or(path))?;
    disk::swap(&*disk::machine(), path, text.as_bytes())
}
