//! What a maintainer needs to understand trouble from afar, as one archive without secrets.
//!
//! **Invariant:** every byte and every name in it has been through [`Hide`]. Nothing is changed,
//! links are not followed, and what is large is cut, with a note of how much.

mod hide;
pub(crate) mod shapes;
mod tar;

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use flate2::Compression;
use flate2::write::GzEncoder;
use nix::fcntl::OFlag;
use serde::Serialize;

pub(crate) use hide::{Hidden, Hide};
use tar::Tar;

use crate::disk::fs;

/// How much of one file is kept, and of all.
const FILE_BYTES: usize = 1 << 20;
const ALL_BYTES: usize = 64 << 20;
const FILES: usize = 4000;
/// How many names of the queue are listed.
const LISTED: usize = 20_000;

/// A file of the bundle.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Part {
    pub path: String,
    pub bytes: usize,
    /// How many bytes were left out of its middle.
    #[serde(skip_serializing_if = "is_zero")]
    pub cut: u64,
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// Something that is not in the bundle.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct LeftOut {
    pub path: String,
    pub why: String,
}

/// What is in a bundle, and what is not.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Contents {
    pub files: Vec<Part>,
    pub left_out: Vec<LeftOut>,
    /// How many values were known to be secrets, or taken for some.
    pub hidden_values: usize,
}

/// A bundle being gathered.
pub(crate) struct Bundle {
    hide: Hide,
    parts: Vec<(Part, Vec<u8>)>,
    left_out: Vec<LeftOut>,
    total: usize,
}

impl Bundle {
    pub(crate) fn new(hide: Hide) -> Bundle {
        Bundle { hide, parts: Vec::new(), left_out: Vec::new(), total: 0 }
    }

    /// Adds a text of ours.
    pub(crate) fn text(&mut self, path: &str, text: &str) {
        let hidden = self.hide.text(text);
        self.add(path, hidden);
    }

    /// Adds a document of ours.
    pub(crate) fn json(&mut self, path: &str, document: &impl Serialize) {
        let text = serde_json::to_string_pretty(document).unwrap_or_default();
        self.text(path, &format!("{text}\n"));
    }

    /// Adds a file, or says why it is not there.
    pub(crate) fn file(&mut self, path: &str, file: &Path) {
        let read =
            open(file).and_then(|(mut file, len)| self.hide.read_file(&mut file, len, FILE_BYTES));
        match read {
            Ok(hidden) => self.add(path, hidden),
            Err(error) => self.miss(path, &error.to_string()),
        }
    }

    /// Adds all files of a directory and those below, in order.
    pub(crate) fn directory(&mut self, path: &str, dir: &Path, wanted: &dyn Fn(&str) -> bool) {
        let Ok(entries) = fs::read_dir(dir) else { return };
        let mut entries: Vec<_> = entries.flatten().collect();
        entries.sort_by_key(fs::DirEntry::file_name);
        for entry in entries {
            let name = entry.file_name().to_string_lossy().into_owned();
            let below = format!("{path}/{name}");
            match entry.file_type() {
                Ok(kind) if kind.is_dir() => self.directory(&below, &entry.path(), wanted),
                Ok(kind) if kind.is_file() && wanted(&name) => self.file(&below, &entry.path()),
                Ok(kind) if kind.is_file() => {}
                _ => self.miss(&below, "it is no regular file"),
            }
        }
    }

    /// Says that something could not be had.
    pub(crate) fn miss(&mut self, path: &str, why: &str) {
        let (path, why) = (self.hide.name(path), self.hide.name(why));
        self.left_out.push(LeftOut { path, why });
    }

    fn add(&mut self, path: &str, hidden: Hidden) {
        let Hidden { bytes, cut } = hidden;
        if self.total + bytes.len() > ALL_BYTES || self.parts.len() >= FILES {
            return self.miss(path, "the bundle is full");
        }
        self.total += bytes.len();
        let path = self.hide.name(path).replace("..", "__");
        self.parts.push((Part { path, bytes: bytes.len(), cut }, bytes));
    }

    fn contents(&self) -> Contents {
        Contents {
            files: self.parts.iter().map(|(part, _)| part.clone()).collect(),
            left_out: self.left_out.clone(),
            hidden_values: self.hide.known,
        }
    }

    /// Writes the bundle to a file that is not there yet, for nobody else to read. What was begun
    /// and failed is removed.
    pub(crate) fn write(mut self, file: &Path, top: &str, at_s: u64) -> io::Result<Contents> {
        let contents = self.contents();
        self.json("manifest.json", &contents);
        let out = OpenOptions::new().write(true).create_new(true).mode(0o600).open(file)?;
        let written = self.write_to(out, top, at_s);
        if written.is_err() {
            let _ = fs::remove_file(file);
        }
        written.map(|()| contents)
    }

    fn write_to(self, out: File, top: &str, at_s: u64) -> io::Result<()> {
        let zipped = GzEncoder::new(io::BufWriter::new(out), Compression::default());
        let mut tar = Tar::new(zipped, at_s);
        for (part, bytes) in &self.parts {
            tar.add(&format!("{top}/{}", part.path), bytes)?;
        }
        let mut out = tar.finish()?.finish()?;
        out.flush()?;
        out.into_inner().map_err(|error| error.into_error())?.sync_all()
    }
}

/// Opens a regular file, whatever lies in its place, and tells its length.
fn open(path: &Path) -> io::Result<(File, u64)> {
    // Not blocking: to open a pipe that nobody writes to would wait for ever.
    let flags = OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK;
    let file = OpenOptions::new().read(true).custom_flags(flags.bits()).open(path)?;
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        return Err(io::Error::other("it is no regular file"));
    }
    Ok((file, metadata.len()))
}

/// What lies in directories of a workspace, by name and size, one to a line.
pub(crate) fn listing(root: &Path, dirs: &[PathBuf]) -> String {
    let mut lines = Vec::new();
    for dir in dirs {
        list(root, dir, &mut lines);
    }
    let more = lines.len().saturating_sub(LISTED);
    lines.truncate(LISTED);
    let mut text = lines.concat();
    if more > 0 {
        text.push_str(&format!("and {more} more or their directories\n"));
    }
    text
}

fn list(root: &Path, dir: &Path, into: &mut Vec<String>) {
    let Ok(entries) = fs::read_dir(dir) else { return };
    let mut entries: Vec<_> = entries.flatten().collect();
    entries.sort_by_key(fs::DirEntry::file_name);
    for entry in entries {
        if into.len() > LISTED {
            return;
        }
        let path = entry.path();
        let shown = path.strip_prefix(root).unwrap_or(&path).display().to_string();
        match entry.file_type() {
            Ok(kind) if kind.is_dir() => {
                into.push(format!("{shown}/\n"));
                list(root, &path, into);
            }
            _ => {
                let size = entry.metadata().map_or(0, |metadata| metadata.len());
                into.push(format!("{shown} {size}\n"));
            }
        }
    }
}
