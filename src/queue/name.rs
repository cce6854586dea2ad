//! Names of task files. A name states the task, the attempt, and the holder. Together with its
//! directory, it is the task's state.
//!
//! **Invariant:** no name is used twice: the attempt grows whenever a task goes back to its inbox,
//! and a claim carries a random part.

use std::fmt;

use crate::base::ids::TaskAttempt;

/// Suffix of every task file.
pub(crate) const ENDING: &str = ".task";
const LABEL_MAX: usize = 48;
const ID_LEN: usize = 26;

/// A task's identity: 26 characters that sort by creation time.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct TaskId(String);

const ALPHABET: &[u8; 32] = b"0123456789ABCDEFGHJKMNPQRSTVWXYZ";

impl TaskId {
    /// Creates an id from a time in milliseconds and 80 random bits.
    pub(crate) fn new(at_ms: u64, random: u128) -> Self {
        let mut bits = (u128::from(at_ms & 0xffff_ffff_ffff) << 80) | (random & ((1 << 80) - 1));
        let mut text = [b'0'; ID_LEN];
        for place in text.iter_mut().rev() {
            *place = ALPHABET[(bits & 31) as usize];
            bits >>= 5;
        }
        TaskId(String::from_utf8_lossy(&text).into_owned())
    }

    pub(crate) fn parse(text: &str) -> Option<Self> {
        is_id(text).then(|| TaskId(text.to_owned()))
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for TaskId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Name of a waiting task: `5-<id>-<label>.a01.task`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct TaskName {
    /// 0 is the most urgent, 9 the least.
    pub priority: u8,
    pub id: TaskId,
    /// Text for users: the step, or the name of the dropped file.
    pub label: String,
    pub attempt: TaskAttempt,
    /// Number of earlier attempts that ended with the death of the task's holder.
    pub crashes: u32,
}

/// Name of a claimed task: `5-<id>-<label>.a01.<worker>.<claim>.task`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ClaimName {
    pub task: TaskName,
    /// The holder: an incarnation of a worker, new at every start.
    pub worker: String,
    /// Random token, new at every claim.
    pub claim: String,
}

/// Converts any text to a label: characters that are not allowed in a name become `-`.
pub(crate) fn label(text: &str) -> String {
    let fit = |c: char| if c.is_ascii_alphanumeric() || c == '_' { c } else { '-' };
    let label: String = text.chars().map(fit).take(LABEL_MAX).collect();
    label.trim_matches('-').to_owned()
}

/// Returns true if a text can be the worker or claim part of a name.
pub(crate) fn is_word(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit())
}

impl TaskName {
    /// Returns the name without its suffix. The names of claims start with it.
    pub(crate) fn stem(&self) -> String {
        let label = if self.label.is_empty() { String::new() } else { format!("-{}", self.label) };
        let crashes = if self.crashes > 0 { format!("c{}", self.crashes) } else { String::new() };
        format!("{}-{}{label}.a{:02}{crashes}", self.priority, self.id, self.attempt)
    }

    pub(crate) fn file(&self) -> String {
        format!("{}{ENDING}", self.stem())
    }

    pub(crate) fn parse(file: &str) -> Option<Self> {
        Self::parse_stem(file.strip_suffix(ENDING)?)
    }

    /// Returns true if a file name is a valid task name. Does not allocate, so it can check a
    /// million names.
    pub(crate) fn is_name(file: &str) -> bool {
        file.strip_suffix(ENDING).and_then(Parts::of).is_some()
    }

    /// Returns true if a file name is a valid name of the task `id`.
    pub(crate) fn is_name_of(file: &str, id: &TaskId) -> bool {
        file.get(2..28) == Some(id.as_str()) && Self::is_name(file)
    }

    fn parse_stem(stem: &str) -> Option<Self> {
        let parts = Parts::of(stem)?;
        Some(TaskName {
            priority: parts.priority,
            id: TaskId(parts.id.to_owned()),
            label: parts.label.to_owned(),
            attempt: parts.attempt,
            crashes: parts.crashes,
        })
    }

    /// Returns the name of the same task for its next attempt.
    pub(crate) fn next(&self, crashed: bool) -> TaskName {
        let crashes = self.crashes.saturating_add(u32::from(crashed));
        TaskName { attempt: self.attempt.next(), crashes, ..self.clone() }
    }
}

/// Parts of a stem `5-<id>-<label>.a01c2`. A task has exactly one spelling: `a1` is not `a01`.
struct Parts<'a> {
    priority: u8,
    id: &'a str,
    label: &'a str,
    attempt: TaskAttempt,
    crashes: u32,
}

impl<'a> Parts<'a> {
    fn of(stem: &'a str) -> Option<Self> {
        let (priority, rest) = stem.split_once('-')?;
        let priority = match priority.as_bytes() {
            [digit @ b'0'..=b'9'] => digit - b'0',
            _ => return None,
        };
        let (id, rest) = rest.split_at_checked(ID_LEN)?;
        let (label, counts) = rest.split_once(".a")?;
        let label = match label.strip_prefix('-') {
            Some(text) if is_label(text) => text,
            None if label.is_empty() => "",
            _ => return None,
        };
        let (attempt, crashes) = match counts.split_once('c') {
            Some((attempt, crashes)) => (attempt, number(crashes, 1)?),
            None => (counts, 0),
        };
        let attempt = TaskAttempt::new(number(attempt, 2)?);
        is_id(id).then_some(Parts { priority, id, label, attempt, crashes })
    }
}

/// Parses a nonzero number with at least `width` digits and no unneeded leading zeros.
fn number(text: &str, width: usize) -> Option<u32> {
    let spelt = text.len() == width || (text.len() > width && !text.starts_with('0'));
    let digits = text.bytes().all(|b| b.is_ascii_digit());
    if spelt && digits { text.parse().ok().filter(|n| *n > 0) } else { None }
}

fn is_label(text: &str) -> bool {
    let fit = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-');
    (1..=LABEL_MAX).contains(&text.len())
        && text.bytes().all(fit)
        && !text.starts_with('-')
        && !text.ends_with('-')
}

fn is_id(text: &str) -> bool {
    text.len() == ID_LEN && text.bytes().all(|b| ALPHABET.contains(&b))
}

impl ClaimName {
    pub(crate) fn stem(&self) -> String {
        format!("{}.{}.{}", self.task.stem(), self.worker, self.claim)
    }

    pub(crate) fn file(&self) -> String {
        format!("{}{ENDING}", self.stem())
    }

    pub(crate) fn parse(file: &str) -> Option<Self> {
        Self::parse_stem(file.strip_suffix(ENDING)?)
    }

    fn parse_stem(stem: &str) -> Option<Self> {
        let (rest, claim) = stem.rsplit_once('.')?;
        let (task, worker) = rest.rsplit_once('.')?;
        let well = is_word(worker) && is_word(claim);
        let task = TaskName::parse_stem(task)?;
        well.then(|| ClaimName { task, worker: worker.to_owned(), claim: claim.to_owned() })
    }

    /// Returns the name in the directory that the task ends in. `by` is the process that moved it.
    pub(crate) fn ended(&self, by: &str) -> String {
        format!("{}.{by}{ENDING}", self.stem())
    }

    /// Parses the name of an ended task.
    pub(crate) fn parse_ended(file: &str) -> Option<(Self, String)> {
        let (stem, by) = file.strip_suffix(ENDING)?.rsplit_once('.')?;
        is_word(by).then(|| Some((Self::parse_stem(stem)?, by.to_owned())))?
    }

    /// Returns the name of the status file of the claim.
    pub(crate) fn status(&self) -> String {
        format!("{}.status.json", self.stem())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn task(label: &str, crashes: u32) -> TaskName {
        let id = TaskId::new(1_736_951_422_123, 0x1234_5678_9abc_def0_1234);
        TaskName { priority: 5, id, label: label.into(), attempt: TaskAttempt::new(2), crashes }
    }

    #[test]
    fn names_read_back_as_written() {
        for name in [task("", 0), task("fix-login", 0), task("L-3-Build", 7)] {
            assert_eq!(TaskName::parse(&name.file()), Some(name.clone()), "{}", name.file());
            assert!(TaskName::is_name_of(&name.file(), &name.id));
            let claim = ClaimName { task: name, worker: "w0rker".into(), claim: "abc123".into() };
            assert_eq!(ClaimName::parse(&claim.file()), Some(claim.clone()));
            let ended = claim.ended("other1");
            assert_eq!(ClaimName::parse_ended(&ended), Some((claim, "other1".into())));
        }
    }

    #[test]
    fn ids_sort_by_time() {
        let ids: Vec<_> = [1u64, 2, 999, 1_000_000, 1 << 40]
            .map(|at| TaskId::new(at, u128::MAX - u128::from(at)).to_string())
            .to_vec();
        assert!(ids.is_sorted(), "{ids:?}");
    }

    #[test]
    fn what_people_drop_is_not_canonical() {
        for file in [
            "fix-login.task",
            "5-x.a01.task",
            "5-01JHNG00000000000000000000.a1.task",
            "5-01JHNG00000000000000000000.a00.task",
            "5-01JHNG00000000000000000000.a001.task",
            "5-01JHNG00000000000000000000.a+1.task",
            "5-01JHNG00000000000000000000.a01c0.task",
            "5-01JHNG00000000000000000000.a01c01.task",
            "5-01JHNG00000000000000000000-.a01.task",
            "5-01JHNG00000000000000000000--x.a01.task",
            "5-01JHNG00000000000000000000-x.y.a01.task",
            "5-01JHNG0000000000000000000.a01.task",
            "5-01JHNG000000000000000000é.a01.task",
            "55-01JHNG00000000000000000000.a01.task",
            "5-01JHNG00000000000000000000-a/b.a01.task",
            "5-01JHNG00000000000000000000.a01.task.tmp",
            "5-01JHNG00000000000000000000.a01.task~",
        ] {
            assert_eq!(TaskName::parse(file), None, "{file}");
            assert!(!TaskName::is_name(file), "{file}");
        }
        assert_eq!(label("../Fix login!.v2"), "Fix-login--v2");
    }
}
