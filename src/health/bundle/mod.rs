//! The archive of `debug-bundle`: facts that a maintainer needs to diagnose a problem remotely.
//!
//! **Invariant:** every document passes [`allowlist::filter`], and every name of a file is one that
//! the program chose or is replaced by its length. The archive therefore contains no output, no
//! prompt, and no value of a setting or variable, so it does not have to recognize secrets.

mod allowlist;
mod tar;

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use flate2::Compression;
use flate2::write::GzEncoder;
use serde::Serialize;
use serde_json::Value;

use crate::base::ids::RunId;
use crate::disk::{self, fs};
use crate::queue::TaskId;
use crate::queue::name::is_word;
use crate::yaml;
use tar::Tar;

/// Maximum size of a document that is read, and of all documents together.
const FILE_BYTES: u64 = 32 << 20;
const ALL_BYTES: usize = 64 << 20;
/// Maximum number of documents, and of listed names.
const FILES: usize = 4000;
const LISTED: usize = 20_000;

/// A document in the archive.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Part {
    pub path: String,
    pub bytes: usize,
}

/// A document that is missing from the archive.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Missing {
    pub path: String,
    pub why: String,
}

/// The table of contents of an archive.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Contents {
    pub files: Vec<Part>,
    pub left_out: Vec<Missing>,
}

/// An archive that is being collected.
#[derive(Default)]
pub(crate) struct Bundle {
    parts: Vec<(Part, Vec<u8>)>,
    left_out: Vec<Missing>,
    total: usize,
}

impl Bundle {
    /// Adds the allowed fields of a JSON document, given as text.
    pub(crate) fn json_text(&mut self, path: &str, text: &str) {
        match serde_json::from_str::<Value>(text) {
            Ok(document) => self.json(path, &document),
            Err(_) => self.miss(path, "it is not JSON"),
        }
    }

    /// Adds the allowed fields of a document.
    pub(crate) fn json(&mut self, path: &str, document: &Value) {
        let mut text = allowlist::filter(document).to_string();
        text.push('\n');
        self.add(path, text.into_bytes());
    }

    /// Adds the names of variables, one per line. A name is not a secret.
    pub(crate) fn names<'n>(&mut self, path: &str, names: impl Iterator<Item = &'n str>) {
        let lines = names.map(|name| format!("{}\n", allowlist::allowed_name(name)));
        self.add(path, lines.collect::<String>().into_bytes());
    }

    /// Adds the allowed fields of a stored document: JSON, JSON lines, or YAML by its extension.
    pub(crate) fn file(&mut self, path: &str, file: &Path) {
        let bytes = match disk::machine().read_regular(file, FILE_BYTES) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return,
            Err(error) => return self.miss(path, &error.to_string()),
        };
        let text = String::from_utf8_lossy(&bytes);
        match file.extension().and_then(|end| end.to_str()) {
            Some("jsonl") => {
                let entries = text.lines().map(serde_json::from_str::<Value>);
                let kept = entries.map(|entry| match entry {
                    Ok(entry) => format!("{}\n", allowlist::filter(&entry)),
                    Err(_) => "\"(not JSON)\"\n".to_owned(),
                });
                self.add(path, kept.collect::<String>().into_bytes());
            }
            Some("yaml" | "yml") => match yaml::parse(&text) {
                Ok(document) => self.json(&format!("{path}.json"), &document.to_json()),
                Err(_) => self.miss(path, "it is not YAML"),
            },
            _ => self.json_text(path, &text),
        }
    }

    /// Adds the JSON documents of a directory. The names become numbers.
    pub(crate) fn directory(&mut self, path: &str, dir: &Path) {
        let entries = fs::read_dir(dir).into_iter().flatten().flatten();
        let mut files: Vec<_> = entries.map(|entry| entry.path()).collect();
        files.sort();
        let documents = files.iter().filter(|file| file.extension().is_none_or(|e| e == "json"));
        for (number, file) in documents.enumerate() {
            self.file(&format!("{path}/{}.json", number + 1), file);
        }
    }

    /// Adds the names and sizes of the files below directories of a workspace.
    pub(crate) fn listing(&mut self, path: &str, root: &Path, dirs: &[PathBuf]) {
        let mut lines = Vec::new();
        dirs.iter().for_each(|dir| list(root, dir, &mut lines));
        let more = lines.len().saturating_sub(LISTED);
        lines.truncate(LISTED);
        if more > 0 {
            lines.push("the listing ends here; there are more files\n".to_owned());
        }
        self.add(path, lines.concat().into_bytes());
    }

    /// Records that a document is missing.
    pub(crate) fn miss(&mut self, path: &str, why: &str) {
        self.left_out.push(Missing { path: path.to_owned(), why: why.to_owned() });
    }

    fn add(&mut self, path: &str, bytes: Vec<u8>) {
        if self.total + bytes.len() > ALL_BYTES || self.parts.len() >= FILES {
            return self.miss(path, "the bundle is full");
        }
        self.total += bytes.len();
        self.parts.push((Part { path: path.to_owned(), bytes: bytes.len() }, bytes));
    }

    /// Writes the archive to a new file that only its owner can read. Removes the file if that
    /// fails.
    pub(crate) fn write(mut self, file: &Path, top: &str, at_s: u64) -> io::Result<Contents> {
        let contents = Contents {
            files: self.parts.iter().map(|(part, _)| part.clone()).collect(),
            left_out: std::mem::take(&mut self.left_out),
        };
        let manifest = serde_json::to_vec(&contents).unwrap_or_default();
        self.add("manifest.json", manifest);
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

fn list(root: &Path, dir: &Path, lines: &mut Vec<String>) {
    let Ok(entries) = fs::read_dir(dir) else { return };
    let mut entries: Vec<_> = entries.flatten().collect();
    entries.sort_by_key(fs::DirEntry::file_name);
    for entry in entries {
        if lines.len() > LISTED {
            return;
        }
        let path = entry.path();
        let components = path.strip_prefix(root).unwrap_or(&path).components();
        let names = components.map(|part| listed_name(&part.as_os_str().to_string_lossy()));
        let shown = names.collect::<Vec<_>>().join("/");
        match entry.file_type() {
            Ok(kind) if kind.is_dir() => {
                lines.push(format!("{shown}/\n"));
                list(root, &path, lines);
            }
            _ => {
                let size = entry.metadata().map_or(0, |metadata| metadata.len());
                lines.push(format!("{shown} {size}\n"));
            }
        }
    }
}

/// Names that the program chooses.
const OWN_NAMES: [&str; 28] = [
    ".lock",
    ".orchestrate",
    "artifacts",
    "beats",
    "cancel",
    "cancelled",
    "claimed",
    "config.yaml",
    "control",
    "delayed",
    "drain",
    "failed",
    "fleet.json",
    "ids",
    "inbox",
    "intake",
    "journal.jsonl",
    "latest",
    "logs",
    "orchestrator.log",
    "pause",
    "processed",
    "quarantine",
    "results",
    "runs",
    "state.json",
    "workers",
    "workflow.yaml",
];

/// Returns a name for the listing: as it is if the program chose it, otherwise its length and its
/// extension. A task keeps its id and attempt, and loses its label.
fn listed_name(name: &str) -> String {
    if OWN_NAMES.contains(&name) || RunId::parse(name).is_some() {
        return name.to_owned();
    }
    let end = name.rsplit('.').next().filter(|end| KNOWN_ENDS.contains(end));
    let end = end.map(|end| format!(".{end}")).unwrap_or_default();
    match name.get(2..28).and_then(TaskId::parse) {
        Some(id) if name.starts_with(|first: char| first.is_ascii_digit()) => {
            let attempt = name.split('.').nth(1).filter(|part| part.starts_with('a'));
            let attempt = attempt.filter(|part| part.len() <= 12 && is_word(part));
            format!("{}-{id}.{}{end}", &name[..1], attempt.unwrap_or_default())
        }
        _ => format!("({} bytes){end}", name.len()),
    }
}

const KNOWN_ENDS: [&str; 6] = ["task", "json", "jsonl", "log", "stdout", "stderr"];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listing_shows_only_names_that_the_program_chose() {
        for own in ["state.json", "20250115T143022Z-abcdef"] {
            assert_eq!(listed_name(own), own);
        }
        let task = "5-01JHNG00000000000000000000-secret.a01.worker1.claim2.task";
        assert_eq!(listed_name(task), "5-01JHNG00000000000000000000.a01.task");
        assert_eq!(listed_name("ghp_0123.task"), "(13 bytes).task");
        assert_eq!(listed_name("Build.stdout"), "(12 bytes).stdout");
    }
}
