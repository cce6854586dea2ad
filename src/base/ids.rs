//! Identifiers of runs, beads, steps in a run, and attempts.
//!
//! **Invariant:** a value of one of these types is a valid file name; nothing in it leaves a
//! directory.

use std::borrow::Cow;
use std::fmt;
use std::num::ParseIntError;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Maximum length of the name of a step, an agent or a run.
pub(crate) const NAME_MAX: usize = 128;

/// Converts `name` to a valid name: one dash replaces each run of invalid characters. Returns
/// `None` if no valid character is left.
pub(crate) fn plain_name(name: &str) -> Option<String> {
    let mut plain = String::new();
    for c in name.chars().take(NAME_MAX) {
        match c {
            c if c.is_ascii_alphanumeric() => plain.push(c),
            '_' if !plain.is_empty() => plain.push('_'),
            _ if !plain.is_empty() && !plain.ends_with('-') => plain.push('-'),
            _ => {}
        }
    }
    let plain = plain.trim_end_matches('-');
    (!plain.is_empty()).then(|| plain.to_owned())
}

/// Returns the reason why `name` is not a valid name, or `None` if it is.
pub(crate) fn name_fault(name: &str) -> Option<&'static str> {
    let mut bytes = name.bytes();
    match bytes.next() {
        None => return Some("it is empty"),
        Some(first) if !first.is_ascii_alphanumeric() => {
            return Some("it must begin with a letter or a digit");
        }
        Some(_) => {}
    }
    if name.len() > NAME_MAX {
        return Some("it is longer than 128 characters");
    }
    if !bytes.all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-')) {
        return Some("only letters, digits, `.`, `_` and `-` may be in it");
    }
    if name.contains("..") {
        return Some("it contains `..`");
    }
    None
}

/// Returns the reason why `name` is not a valid step name in any dialect, or `None` if it is. A
/// node's name may also begin with `_`.
pub(crate) fn step_fault(name: &str) -> Option<&'static str> {
    match name.strip_prefix('_') {
        Some(_) if name.len() > NAME_MAX => Some("it is longer than 128 characters"),
        // With a letter in place of the `_`, the rest follows the rules of a name.
        Some(rest) => name_fault(&format!("x{rest}")),
        None => match name_fault(name) {
            Some(fault) if fault.starts_with("it must begin") => {
                Some("it must begin with a letter, a digit or `_`")
            }
            fault => fault,
        },
    }
}

/// The identity of a bead and of the resources created for it: a directory name, and a part of a
/// branch name.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct BeadId(String);

impl BeadId {
    /// Returns the reason why `id` is not a valid bead id, or `None` if it is. Rejects everything
    /// that `git` rejects in a branch name.
    pub fn fault(id: &str) -> Option<&'static str> {
        if id.is_empty() {
            return Some("it is empty");
        }
        if id.len() > NAME_MAX {
            return Some("it is longer than 128 characters");
        }
        if !id.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-')) {
            return Some("only letters, digits, `.`, `_` and `-` may be in it");
        }
        if id.contains("..") {
            return Some("it contains `..`");
        }
        if id.starts_with(['-', '.']) {
            return Some("it must not begin with `-` or `.`");
        }
        if id.ends_with('.') || id.ends_with(".lock") {
            return Some("it must not end in `.` or `.lock`");
        }
        None
    }

    pub fn parse(text: &str) -> Result<BeadId, String> {
        match BeadId::fault(text) {
            None => Ok(BeadId(text.to_owned())),
            Some(fault) => Err(format!("`{text}` cannot be an id: {fault}")),
        }
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl From<BeadId> for String {
    fn from(id: BeadId) -> String {
        id.0
    }
}

impl TryFrom<String> for BeadId {
    type Error = String;

    fn try_from(text: String) -> Result<BeadId, String> {
        BeadId::parse(&text)
    }
}

impl fmt::Display for BeadId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A run's identity: its start time, to the second, and six random characters.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct RunId(String);

impl RunId {
    /// Builds an id from the stamp `YYYYMMDDTHHMMSSZ` and a random number.
    pub fn new(stamp: &str, mut random: u64) -> Self {
        const ALPHABET: &[u8; 36] = b"abcdefghijklmnopqrstuvwxyz0123456789";
        let mut id = format!("{stamp}-");
        for _ in 0..6 {
            id.push(ALPHABET[(random % 36) as usize] as char);
            random /= 36;
        }
        RunId(id)
    }

    /// Parses an id. Rejects anything that is not of the form `YYYYMMDDTHHMMSSZ-xxxxxx`.
    pub fn parse(text: &str) -> Option<Self> {
        let (stamp, tail) = text.split_once('-')?;
        let digits = |s: &str| s.bytes().all(|b| b.is_ascii_digit());
        let stamp_ok = stamp.is_ascii()
            && stamp.len() == 16
            && &stamp[8..9] == "T"
            && stamp.ends_with('Z')
            && digits(&stamp[..8])
            && digits(&stamp[9..15]);
        let tail_ok =
            tail.len() == 6 && tail.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit());
        (stamp_ok && tail_ok).then(|| RunId(text.to_owned()))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns the start of the run as `YYYYMMDDTHHMMSSZ`.
    pub fn stamp(&self) -> &str {
        &self.0[..16]
    }
}

impl From<RunId> for String {
    fn from(id: RunId) -> String {
        id.0
    }
}

impl TryFrom<String> for RunId {
    type Error = String;

    fn try_from(text: String) -> Result<RunId, String> {
        RunId::parse(&text).ok_or_else(|| format!("`{text}` is no run id"))
    }
}

impl fmt::Display for RunId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Defines a number that counts executions from 1. Zero, the default, stands for "none yet". The
/// serialized form is the plain number.
macro_rules! execution_number {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[derive(Serialize, Deserialize)]
        #[serde(transparent)]
        pub(crate) struct $name(u32);

        impl $name {
            pub(crate) const NONE: Self = $name(0);
            pub(crate) const FIRST: Self = $name(1);

            pub(crate) const fn new(number: u32) -> Self {
                $name(number)
            }

            pub(crate) const fn number(self) -> u32 {
                self.0
            }

            pub(crate) const fn is_none(&self) -> bool {
                self.0 == 0
            }

            /// Returns the number before this one, or `None` for the first.
            pub(crate) fn previous(self) -> Option<Self> {
                self.0.checked_sub(1).filter(|number| *number > 0).map($name)
            }

            #[must_use]
            pub(crate) const fn next(self) -> Self {
                $name(self.0.saturating_add(1))
            }
        }

        impl From<$name> for Value {
            fn from(number: $name) -> Value {
                number.0.into()
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }

        impl FromStr for $name {
            type Err = ParseIntError;

            fn from_str(text: &str) -> Result<Self, ParseIntError> {
                text.parse().map($name)
            }
        }
    };
}

execution_number! {
    /// Number of an execution of one step, counted over all its visits; a higher attempt fences the
    /// lower ones.
    Attempt
}

execution_number! {
    /// Number of an execution of one task of the queue. It grows whenever the task returns to its
    /// inbox. All executions of a step's task belong to one [`Attempt`] of the step.
    TaskAttempt
}

impl TaskAttempt {
    /// Returns the attempt of a free task, which is not a step: each execution is an attempt.
    pub(crate) const fn of_free_task(self) -> Attempt {
        Attempt(self.0)
    }
}

/// Position of a step in a run: loops from the outside in, each with the index of an item, then the
/// step.
///
/// Written `Loop.3.Step`. A dot inside a name is written `%2E`, so the text form is injective and
/// also serves as the stem of log files. It is for programs: users see the result of [`shown`].
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct StepPath {
    pub loops: Vec<(String, usize)>,
    pub step: String,
}

impl StepPath {
    pub fn top(step: &str) -> Self {
        StepPath { loops: Vec::new(), step: step.to_owned() }
    }

    /// Returns the name of the top-level step that this is or is in.
    pub fn top_name(&self) -> &str {
        self.loops.first().map_or(&self.step, |(name, _)| name)
    }

    /// Parses the text form. Returns `None` if it is not valid.
    pub fn parse(text: &str) -> Option<Self> {
        let mut parts: Vec<String> = text.split('.').map(unescape).collect::<Option<_>>()?;
        let step = parts.pop()?;
        if !parts.len().is_multiple_of(2) || step_fault(&step).is_some() {
            return None;
        }
        let loops = parts
            .chunks(2)
            .map(|pair| {
                let well = step_fault(&pair[0]).is_none();
                well.then(|| pair[1].parse().ok().map(|index| (pair[0].clone(), index)))?
            })
            .collect::<Option<_>>()?;
        let path = StepPath { loops, step };
        // A step has exactly one spelling, because files are named by it.
        (path.to_string() == text).then_some(path)
    }

    /// Returns the path as shown to users.
    pub fn shown(&self) -> String {
        shown(&self.to_string()).into_owned()
    }
}

/// Returns a number with its noun: `1 file`, `2 files`.
pub(crate) fn counted(number: usize, one: &str) -> String {
    match number {
        1 => format!("1 {one}"),
        number => format!("{number} {one}s"),
    }
}

/// Converts the text form of a step's path to the form shown to users: every name as its author
/// wrote it. Text that a user typed in this form stays unchanged, because no name contains a `%`.
/// To find a step that a user named, compare the shown forms.
pub(crate) fn shown(step: &str) -> Cow<'_, str> {
    match step.contains('%') {
        true => Cow::Owned(step.replace("%2E", ".")),
        false => Cow::Borrowed(step),
    }
}

fn unescape(part: &str) -> Option<String> {
    let plain = part.replace("%2E", ".");
    (!plain.contains('%')).then_some(plain)
}

impl From<StepPath> for String {
    fn from(path: StepPath) -> String {
        path.to_string()
    }
}

impl TryFrom<String> for StepPath {
    type Error = String;

    fn try_from(text: String) -> Result<StepPath, String> {
        StepPath::parse(&text).ok_or_else(|| format!("`{text}` is no step"))
    }
}

/// Parses the text form, which tests write by hand.
#[cfg(test)]
impl From<&str> for StepPath {
    fn from(text: &str) -> StepPath {
        StepPath::parse(text).expect("the test names a step")
    }
}

impl fmt::Display for StepPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, index) in &self.loops {
            write!(f, "{}.{index}.", name.replace('.', "%2E"))?;
        }
        f.write_str(&self.step.replace('.', "%2E"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_id_of_a_bead_can_name_a_directory_and_a_branch() {
        for good in ["bd-12", "a", "_x", "1.2.3", "Fix_login-now", "lock"] {
            assert_eq!(BeadId::fault(good), None, "{good}");
        }
        let long = "a".repeat(129);
        for bad in ["", ".", "..", ".a", "-a", "a..b", "a/b", "a b", "a.lock", "a.", "ä", &long] {
            assert!(BeadId::fault(bad).is_some(), "{bad}");
        }
    }

    #[test]
    fn a_run_id_has_one_form() {
        let id = RunId::new("20250115T143022Z", 987_654_321);
        assert_eq!(RunId::parse(id.as_str()), Some(id.clone()));
        assert_eq!(id.stamp(), "20250115T143022Z");
        for bad in ["latest", "20250115T143022Z", "20250115T143022Z-ABCDEF", "../../etc-abcdef"] {
            assert_eq!(RunId::parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn a_step_path_survives_its_text_form() {
        let path =
            StepPath { loops: vec![("A.b".into(), 3), ("Inner".into(), 0)], step: "v1.2".into() };
        assert_eq!(path.to_string(), "A%2Eb.3.Inner.0.v1%2E2");
        assert_eq!(StepPath::parse(&path.to_string()), Some(path));
        for bad in ["Each.+0.Write", "Each.00.Write", "", "a.b", "a.x.b", "../x", "a%2Fb"] {
            assert_eq!(StepPath::parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn people_see_a_name_as_its_author_wrote_it() {
        let path = StepPath { loops: vec![("A.b".into(), 3)], step: "v1.2".into() };
        assert_eq!(path.shown(), "A.b.3.v1.2");
        assert_eq!(shown("A%2Eb.3.v1%2E2"), "A.b.3.v1.2");
        assert_eq!(shown("A.b.3.v1.2"), "A.b.3.v1.2");
    }

    #[test]
    fn names_that_could_leave_a_directory_are_no_names() {
        for bad in ["", "_end", "../../evil", "a/b", "a b", "a..b", ".hidden", "-x", "é"] {
            assert!(name_fault(bad).is_some(), "{bad}");
        }
        for good in ["Build", "a.b", "step-1", "X_9"] {
            assert_eq!(name_fault(good), None, "{good}");
            assert_eq!(step_fault(good), None, "{good}");
        }
        for good in ["_", "_x", "__", "_1.a"] {
            assert_eq!(step_fault(good), None, "{good}");
            assert_eq!(
                StepPath::parse(&StepPath::top(good).to_string()),
                Some(StepPath::top(good))
            );
        }
        let long = format!("_{}", "x".repeat(128));
        for bad in ["", ".a", "-x", "_/a", "_a..b", "_ ", "_é", &long] {
            assert!(step_fault(bad).is_some(), "{bad}");
        }
    }
}
