//! Finds grimoires by name, in the workspace and among the built-in ones.

use crate::base::ids::name_fault;

/// Directory of a workspace's grimoires.
pub(crate) const GRIMOIRES: &str = ".coven/grimoires";

const BUILT_IN: [(&str, &str); 3] = [
    ("implement-bead", include_str!("../../workflows/grimoires/implement-bead.yaml")),
    ("review-loop", include_str!("../../workflows/grimoires/review-loop.yaml")),
    ("spec-to-beads", include_str!("../../workflows/grimoires/spec-to-beads.yaml")),
];

/// Prefix of a built-in grimoire's name in messages and documents.
const CALLED: &str = "built-in grimoire ";

/// Names of the built-in grimoires.
pub(crate) fn built_in() -> impl Iterator<Item = &'static str> {
    BUILT_IN.iter().map(|(name, _)| *name)
}

pub(crate) fn is_built_in(file: &str) -> bool {
    file.starts_with(CALLED)
}

/// Describes a grimoire for messages.
pub(crate) fn shown(file: &str) -> String {
    match file.strip_prefix(CALLED) {
        Some(name) => format!("{CALLED}`{name}`"),
        None => format!("grimoire `{file}`"),
    }
}

/// Reads a file of the workspace; `None` if it does not exist.
type Read<'r> = &'r dyn Fn(&str) -> Option<Result<String, String>>;

/// Finds a grimoire by its name. Returns its file name for messages and its text; `None` if the
/// name is invalid or unknown.
pub(crate) fn find(name: &str, read: Read) -> Option<Result<(String, String), String>> {
    let name = name.strip_prefix(CALLED).unwrap_or(name);
    if name_fault(name).is_some() {
        return None;
    }
    for ending in ["yaml", "yml"] {
        let file = format!("{GRIMOIRES}/{name}.{ending}");
        if let Some(read) = read(&file) {
            return Some(read.map(|text| (file, text)));
        }
    }
    let (name, text) = BUILT_IN.iter().find(|(known, _)| *known == name)?;
    Some(Ok((format!("{CALLED}{name}"), (*text).to_owned())))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(name: &str) -> String {
        let read = |path: &str| (path == ".coven/grimoires/mine.yml").then(|| Ok("x".to_owned()));
        match find(name, &read) {
            Some(Ok((file, _))) => file,
            Some(Err(error)) => error,
            None => "nothing".into(),
        }
    }

    #[test]
    fn a_grimoire_is_found_by_its_name() {
        assert_eq!(found("mine"), ".coven/grimoires/mine.yml");
        assert_eq!(found("review-loop"), "built-in grimoire review-loop");
        assert_eq!(found("built-in grimoire review-loop"), "built-in grimoire review-loop");
        for name in ["nobody", "../mine", "a/b", ""] {
            assert_eq!(found(name), "nothing", "{name}");
        }
        assert!(is_built_in(&found("review-loop")) && !is_built_in("review-loop"));
    }
}
