//! Coverage by name: every numbered criterion of all dialects has a case of its number.

use std::path::Path;

use libtest_mimic::{Failed, Trial};

/// A numbered list: the directory of its cases, how their names begin, how their sentences begin,
/// how many there are, and how many digits their names have.
type List = (&'static str, &'static str, &'static str, usize, usize);

const LISTS: [List; 15] = [
    ("steps", "at", "AT-", 55, 2),
    ("steps", "v12", "1.2-", 9, 1),
    ("steps", "v13", "1.3-", 10, 1),
    // The scenarios on references, on the structure of workflows, and the reference of variables.
    ("nodes", "scenario-000", "000-", 11, 2),
    ("nodes", "scenario-001", "001-", 17, 2),
    ("nodes", "scenario-004", "004-", 27, 2),
    // What was decided where those leave something open.
    ("nodes", "row", "row-", 27, 2),
    // The tables behind that: join rules, conditions, references, retries, kinds of nodes, ends.
    ("nodes", "scenario-join", "join-", 6, 1),
    ("nodes", "scenario-when", "when-", 6, 1),
    ("nodes", "scenario-ref", "ref-", 11, 2),
    ("nodes", "scenario-retry", "retry-", 3, 1),
    ("nodes", "scenario-kind", "kind-", 8, 1),
    ("nodes", "scenario-end", "end-", 3, 1),
    ("nodes", "scenario-resume", "resume-", 4, 1),
    // The scenarios on spells and agent steps.
    ("grimoires", "scenario-003", "003-", 13, 2),
];

/// One trial per numbered list.
pub fn trials(cases: &Path) -> Vec<Trial> {
    LISTS
        .into_iter()
        .map(|(dir, prefix, number, count, width)| {
            let dir = cases.join(dir);
            Trial::test(format!("coverage/{prefix}"), move || {
                let missing: Vec<String> = (1..=count)
                    .filter(|n| !covered(&dir, &format!("{prefix}-{n:0width$}-"), number, *n))
                    .map(|n| format!("{number}{n}"))
                    .collect();
                if missing.is_empty() {
                    Ok(())
                } else {
                    Err(Failed::from(format!("no case proves {}", missing.join(", "))))
                }
            })
        })
        .collect()
}

fn covered(dir: &Path, file: &str, number: &str, n: usize) -> bool {
    let Ok(entries) = dir.read_dir() else { return false };
    entries.flatten().any(|entry| {
        entry.file_name().to_string_lossy().starts_with(file)
            && std::fs::read_to_string(entry.path())
                .is_ok_and(|text| text.starts_with(&format!("{number}{n}:")))
    })
}
