//! Coverage by name: every numbered criterion of all dialects has a case of its number, and every
//! verb one that compares all it prints.

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

/// What a verb is asked in its case: to tell people, to tell programs, to tell of nothing, and
/// something it refuses.
const KINDS: [&str; 4] = ["plain", "json", "empty", "error"];

/// One trial per numbered list, and one for the verbs.
pub(crate) fn trials(cases: &Path) -> Vec<Trial> {
    let faces = cases.join("faces");
    let verbs = Trial::test("coverage/every verb", move || {
        let missing: Vec<String> = verbs().iter().flat_map(|verb| untold(&faces, verb)).collect();
        match missing.is_empty() {
            true => Ok(()),
            false => Err(Failed::from(missing.join("\n"))),
        }
    });
    std::iter::once(verbs).chain(lists(cases)).collect()
}

/// Every verb that `orchestrate help` lists, before its concepts.
fn verbs() -> Vec<String> {
    let program = crate::world::programs().join("orchestrate");
    let help = std::process::Command::new(program).arg("help").output().expect("it starts").stdout;
    let help = String::from_utf8_lossy(&help).into_owned();
    let verbs = help.split("\nConcepts").next().unwrap_or_default().lines();
    let named = verbs.filter_map(|line| line.strip_prefix("  ")?.split(' ').next());
    named.map(str::to_owned).collect()
}

/// What the case of a verb lacks. A kind may be left out with a reason: `No empty: …`.
fn untold(faces: &Path, verb: &str) -> Vec<String> {
    let text = std::fs::read_to_string(faces.join(format!("{verb}.case"))).unwrap_or_default();
    let head = text.split("\n-- ").next().unwrap_or_default();
    let lacks = |kind: &&&str| {
        if head.contains(&format!("No {kind}: ")) {
            return false;
        }
        let run = text.split(&format!("\n-- run {kind} --\n")).nth(1).unwrap_or_default();
        let run = run.split("\n-- run ").next().unwrap_or_default();
        let told = ["stdout", "stderr"].map(|stream| format!("-- expect whole {stream} --"));
        !told.iter().all(|told| run.contains(told))
    };
    KINDS.iter().filter(lacks).map(|kind| format!("faces/{verb}.case: no whole `{kind}`")).collect()
}

fn lists(cases: &Path) -> Vec<Trial> {
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
