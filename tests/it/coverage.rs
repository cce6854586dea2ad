//! Coverage by name: every numbered criterion of the `steps:` dialect has a case of its number.

use std::path::Path;

use libtest_mimic::{Failed, Trial};

/// One trial per numbered list: file prefix, how its sentences begin, and how many there are.
pub fn trials(cases: &Path) -> Vec<Trial> {
    let lists = [("at", "AT-", 55, 2), ("v12", "1.2-", 9, 1), ("v13", "1.3-", 10, 1)];
    lists
        .into_iter()
        .map(|(prefix, number, count, width)| {
            let steps = cases.join("steps");
            Trial::test(format!("coverage/{prefix}"), move || {
                let missing: Vec<String> = (1..=count)
                    .filter(|n| !covered(&steps, &format!("{prefix}-{n:0width$}-"), number, *n))
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

fn covered(steps: &Path, file: &str, number: &str, n: usize) -> bool {
    let Ok(entries) = steps.read_dir() else { return false };
    entries.flatten().any(|entry| {
        entry.file_name().to_string_lossy().starts_with(file)
            && std::fs::read_to_string(entry.path())
                .is_ok_and(|text| text.starts_with(&format!("{number}{n}:")))
    })
}
