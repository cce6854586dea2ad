//! Inserts the path of the run's directory into work. Work is prepared without it, because the path
//! may differ on the machine that executes the work.

use std::borrow::Cow;
use std::io;
use std::path::{Path, PathBuf};

use crate::attempt::exec_env::Site;
use crate::attempt::prepare::refs::ARTIFACTS;
use crate::attempt::work::{Input, ScriptWork, Source, Work};
use crate::base::digest::sha256;
use crate::disk;
use crate::disk::fs::{self, OnVolume as _};

/// Directory in the run's directory for prepared texts that are too long for an argument.
pub(super) const VALUES: &str = "values";

/// Returns the work with the path of the run's directory, and creates the artifact directory there.
pub(super) fn place<'w>(site: &Site, work: &'w Work) -> io::Result<Cow<'w, Work>> {
    let Some(mark) = work.root.as_deref().filter(|mark| is_meant(work, mark)) else {
        return Ok(Cow::Borrowed(work));
    };
    let root = site.root();
    fs::create_dir_all(root.join(ARTIFACTS))?;
    let path = root.to_string_lossy();
    if path.contains('\n') {
        // A line break might end the text of a script that contains the path.
        return Err(io::Error::other("the path of the run's directory has a line break in it"));
    }
    let put = |text: &mut String| {
        if text.contains(mark) {
            *text = text.replace(mark, &path);
        }
    };
    let mut placed = work.clone();
    let scripts = format!("{mark}/{VALUES}/");
    for argument in &mut placed.argv {
        let is_script = argument.starts_with(&scripts) && argument.ends_with(".sh");
        put(argument);
        if is_script {
            *argument =
                script(&root, Path::new(argument.as_str()), mark)?.to_string_lossy().into_owned();
        }
    }
    // A continued conversation has its own command lines.
    if let Some(session) = &mut placed.session {
        session.resume.iter_mut().for_each(put);
        session.fork.iter_mut().flat_map(|fork| &mut fork.argv).for_each(put);
    }
    placed.env.iter_mut().for_each(|(_, value)| put(value));
    match &mut placed.stdin {
        Some(Input::Text(text)) => put(text),
        Some(input) => *input = Input::of(put_bytes(&input.bytes(), mark, path.as_bytes())),
        None => {}
    }
    if let Some(ScriptWork { source: Source::Text(text), .. }) = &mut placed.script {
        put(text);
    }
    Ok(Cow::Owned(placed))
}

fn is_meant(work: &Work, mark: &str) -> bool {
    let named = |text: &String| text.contains(mark);
    let source = work.script.as_ref().map(|script| &script.source);
    work.argv.iter().any(named)
        || work.env.iter().any(|(_, value)| named(value))
        || matches!(source, Some(Source::Text(text)) if named(text))
        || match &work.stdin {
            Some(Input::Text(text)) => named(text),
            // Compared as bytes, because such input is not text. It is rare.
            Some(input) => find(&input.bytes(), mark).is_some(),
            None => false,
        }
}

fn find(bytes: &[u8], mark: &str) -> Option<usize> {
    bytes.windows(mark.len()).position(|window| window == mark.as_bytes())
}

fn put_bytes(mut bytes: &[u8], mark: &str, path: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(bytes.len());
    while let Some(at) = find(bytes, mark) {
        out.extend_from_slice(&bytes[..at]);
        out.extend_from_slice(path);
        bytes = &bytes[at + mark.len()..];
    }
    out.extend_from_slice(bytes);
    out
}

/// Returns a script file in which the run's directory is inserted.
fn script(root: &Path, file: &Path, mark: &str) -> io::Result<PathBuf> {
    let text = fs::read_to_string(file)?;
    if !text.contains(mark) {
        return Ok(file.to_owned());
    }
    let text = text.replace(mark, &root.to_string_lossy());
    let name = format!("{}.sh", &sha256(text.as_bytes())[..32]);
    let path = root.join(VALUES).join(name);
    leave(&path, &text)?;
    Ok(path)
}

/// Writes a text to a file that is named by its content: a concurrent writer writes the same.
pub(super) fn leave(path: &Path, text: &str) -> io::Result<()> {
    if path.is_present() {
        return Ok(());
    }
    fs::create_dir_all(path.parent().unwrap_or(path))?;
    disk::swap(&*disk::machine(), path, text.as_bytes())
}
