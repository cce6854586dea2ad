//! Names of task files. A name says what a task is, which attempt, and who holds it; together
//! with the directory it lies in, that is the task's state.
//!
//! **Invariant:** no name is ever used twice: the attempt grows whenever a task goes back, and a
//! claim carries a random part.

use std::fmt;

/// The ending of every task file.
pub const ENDING: &str = ".task";
const LABEL_MAX: usize = 48;

/// A task's identity: 26 characters that sort by the time they were made.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TaskId(String);

const ALPHABET: &[u8; 32] = b"0123456789ABCDEFGHJKMNPQRSTVWXYZ";

impl TaskId {
    /// Makes an id of a time in milliseconds and 80 random bits.
    pub fn new(at_ms: u64, random: u128) -> Self {
        let mut bits = (u128::from(at_ms & 0xffff_ffff_ffff) << 80) | (random & ((1 << 80) - 1));
        let mut text = [b'0'; 26];
        for place in text.iter_mut().rev() {
            *place = ALPHABET[(bits & 31) as usize];
            bits >>= 5;
        }
        TaskId(String::from_utf8_lossy(&text).into_owned())
    }

    pub fn parse(text: &str) -> Option<Self> {
        let well = text.len() == 26 && text.bytes().all(|b| ALPHABET.contains(&b));
        well.then(|| TaskId(text.to_owned()))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for TaskId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A task that waits: `5-<id>-<label>.a01.task`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct TaskName {
    /// 0 is the most urgent, 9 the least.
    pub priority: u8,
    pub id: TaskId,
    /// For people: the step, or the name of the file that was dropped.
    pub label: String,
    pub attempt: u32,
    /// How many of the attempts before ended with the death of whoever held the task.
    pub crashes: u32,
}

/// A task that somebody holds: `5-<id>-<label>.a01.<worker>.<claim>.task`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ClaimName {
    pub task: TaskName,
    /// Who: an incarnation of a worker, new at every start.
    pub worker: String,
    /// Random, new at every claim.
    pub claim: String,
}

/// Makes a label of any text: what is not fit for a name becomes `-`.
pub fn label(text: &str) -> String {
    let fit = |c: char| if c.is_ascii_alphanumeric() || c == '_' { c } else { '-' };
    let label: String = text.chars().map(fit).take(LABEL_MAX).collect();
    label.trim_matches('-').to_owned()
}

fn is_word(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit())
}

impl TaskName {
    /// The name without its ending, which later names go on from.
    pub fn stem(&self) -> String {
        let label = if self.label.is_empty() { String::new() } else { format!("-{}", self.label) };
        let crashes = if self.crashes > 0 { format!("c{}", self.crashes) } else { String::new() };
        format!("{}-{}{label}.a{:02}{crashes}", self.priority, self.id, self.attempt)
    }

    pub fn file(&self) -> String {
        format!("{}{ENDING}", self.stem())
    }

    pub fn parse(file: &str) -> Option<Self> {
        Self::parse_stem(file.strip_suffix(ENDING)?)
    }

    fn parse_stem(stem: &str) -> Option<Self> {
        let (head, attempt) = stem.rsplit_once(".a")?;
        let (attempt, crashes) = match attempt.split_once('c') {
            Some((attempt, crashes)) => (attempt, crashes.parse().ok()?),
            None => (attempt, 0),
        };
        let (priority, rest) = head.split_once('-')?;
        let (id, label) = match rest.split_once('-') {
            Some((id, text)) if label(text) == text => (id, text),
            Some(_) => return None,
            None => (rest, ""),
        };
        let name = TaskName {
            priority: priority.parse().ok().filter(|p| *p <= 9)?,
            id: TaskId::parse(id)?,
            label: label.to_owned(),
            attempt: attempt.parse().ok().filter(|a| *a > 0)?,
            crashes,
        };
        // One task, one spelling: `a1` and `a01` must not be two names of it.
        (name.stem() == stem).then_some(name)
    }

    /// The same task for its next attempt.
    pub fn next(&self, crashed: bool) -> TaskName {
        let crashes = self.crashes + u32::from(crashed);
        TaskName { attempt: self.attempt + 1, crashes, ..self.clone() }
    }
}

impl ClaimName {
    pub fn stem(&self) -> String {
        format!("{}.{}.{}", self.task.stem(), self.worker, self.claim)
    }

    pub fn file(&self) -> String {
        format!("{}{ENDING}", self.stem())
    }

    pub fn parse(file: &str) -> Option<Self> {
        Self::parse_stem(file.strip_suffix(ENDING)?)
    }

    fn parse_stem(stem: &str) -> Option<Self> {
        let (rest, claim) = stem.rsplit_once('.')?;
        let (task, worker) = rest.rsplit_once('.')?;
        let well = is_word(worker) && is_word(claim);
        let task = TaskName::parse_stem(task)?;
        well.then(|| ClaimName { task, worker: worker.to_owned(), claim: claim.to_owned() })
    }

    /// The name in the directory where the task ends, which says who put it there.
    pub fn ended(&self, by: &str) -> String {
        format!("{}.{by}{ENDING}", self.stem())
    }

    /// Reads the name of a task that has ended.
    pub fn parse_ended(file: &str) -> Option<(Self, String)> {
        let (stem, by) = file.strip_suffix(ENDING)?.rsplit_once('.')?;
        is_word(by).then(|| Some((Self::parse_stem(stem)?, by.to_owned())))?
    }

    /// The name of the status that goes with the claim.
    pub fn status(&self) -> String {
        format!("{}.status.json", self.stem())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn task(label: &str, crashes: u32) -> TaskName {
        let id = TaskId::new(1_736_951_422_123, 0x1234_5678_9abc_def0_1234);
        TaskName { priority: 5, id, label: label.into(), attempt: 2, crashes }
    }

    #[test]
    fn names_read_back_as_written() {
        for name in [task("", 0), task("fix-login", 0), task("L-3-Build", 7)] {
            assert_eq!(TaskName::parse(&name.file()), Some(name.clone()), "{}", name.file());
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
            "55-01JHNG00000000000000000000.a01.task",
            "5-01JHNG00000000000000000000-a/b.a01.task",
            "5-01JHNG00000000000000000000.a01.task.tmp",
            "5-01JHNG00000000000000000000.a01.task~",
        ] {
            assert_eq!(TaskName::parse(file), None, "{file}");
        }
        assert_eq!(label("../Fix login!.v2"), "Fix-login--v2");
    }
}
