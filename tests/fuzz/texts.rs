//! Every text in the repository that a person could have written for the program.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// Returns the files of the examples, the corpus, and the cases as file names and contents.
pub(super) fn texts() -> BTreeSet<(String, String)> {
    let mut found = BTreeSet::new();
    for dir in ["workflows", "config", "tests/fuzz/corpus", "tests/cases"] {
        collect(&Path::new(env!("CARGO_MANIFEST_DIR")).join(dir), &mut found);
    }
    found
}

fn collect(path: &Path, into: &mut BTreeSet<(String, String)>) {
    if path.is_dir() {
        let entries = path.read_dir().expect("a directory").flatten();
        return entries.for_each(|entry| collect(&entry.path(), into));
    }
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let Ok(text) = fs::read_to_string(path) else { return };
    if name.ends_with(".case") {
        into.extend(files_of_case(&text).filter(|(name, _)| is_written_by_people(name)));
    } else if is_written_by_people(&name) {
        into.insert((name.into_owned(), text));
    }
}

fn is_written_by_people(name: &str) -> bool {
    [".yaml", ".yml", ".md", ".task"].iter().any(|ending| name.ends_with(ending))
}

/// The sections of a case that are files. Sections start with a line `-- NAME --`.
fn files_of_case(text: &str) -> impl Iterator<Item = (String, String)> {
    let sections = text.split("\n-- ").skip(1).filter_map(|part| part.split_once(" --\n"));
    let files =
        sections.filter(|(name, _)| !name.starts_with("run") && !name.starts_with("expect"));
    files.map(|(name, body)| (name.to_owned(), format!("{}\n", body.trim_end_matches('\n'))))
}
