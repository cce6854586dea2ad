//! Statistics of one process about its own tasks at a provider. They detect repeated identical
//! failures, and tasks that cause an apparent machine fault themselves.

use std::collections::HashMap;

/// Number of tasks in a row with the same failure after which the provider is suspended.
const IN_A_ROW: usize = 3;
/// Maximum number of remembered tasks that met a machine fault, or backed off.
const KNOWN: usize = 10_000;
/// Maximum number of characters of a reason to compare.
const REASON: usize = 300;

/// Outcomes of tasks, by the file name of their provider's suspension.
#[derive(Debug, Default)]
pub(super) struct Streaks {
    providers: HashMap<String, Streak>,
    /// Number of answers of the provider when a task last met a machine fault, by task.
    met: HashMap<String, u64>,
    /// Number of back-offs, by task.
    back_offs: HashMap<String, u32>,
}

#[derive(Debug, Default)]
struct Streak {
    answers: u64,
    /// The reason of the last failures, and the tasks that failed.
    reason: String,
    tasks: Vec<String>,
}

impl Streaks {
    /// Counts an answer, which ends a streak of failures.
    pub(super) fn answered(&mut self, provider: &str) {
        let streak = self.providers.entry(provider.to_owned()).or_default();
        streak.answers += 1;
        streak.tasks.clear();
    }

    /// Counts a failure. Returns true if the streak has reached `IN_A_ROW` tasks.
    pub(super) fn failed(&mut self, provider: &str, task: &str, reason: &str) -> bool {
        let streak = self.providers.entry(provider.to_owned()).or_default();
        if !is_same(&streak.reason, reason) {
            streak.tasks.clear();
        }
        streak.reason = reason.to_owned();
        if streak.tasks.len() < IN_A_ROW && !streak.tasks.iter().any(|known| known == task) {
            streak.tasks.push(task.to_owned());
        }
        streak.tasks.len() == IN_A_ROW
    }

    /// Counts a back-off of a task, and returns the sum.
    pub(super) fn backs_off(&mut self, task: &str) -> u32 {
        if self.back_offs.len() >= KNOWN {
            self.back_offs.clear();
        }
        let count = self.back_offs.entry(task.to_owned()).or_default();
        *count += 1;
        *count
    }

    /// Records that a task met a machine fault. Returns true if the task is to blame: it met a
    /// fault before, and the provider has answered another task in this process since then.
    pub(super) fn blames(&mut self, provider: &str, task: &str) -> bool {
        let answers = self.providers.get(provider).map_or(0, |streak| streak.answers);
        if self.met.len() >= KNOWN {
            self.met.clear();
        }
        self.met.insert(task.to_owned(), answers).is_some_and(|before| answers > before)
    }
}

/// Returns true if two reasons differ only in numbers, IDs, and times.
pub(super) fn is_same(one: &str, other: &str) -> bool {
    let words = |reason: &str| -> Vec<String> {
        let line: String = reason.lines().next().unwrap_or_default().chars().take(REASON).collect();
        let counts = |word: &&str| !word.contains(|c: char| c.is_ascii_digit());
        line.split_whitespace().filter(counts).map(str::to_lowercase).collect()
    };
    words(one) == words(other)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_different_tasks_in_a_row_with_one_reason_are_too_many() {
        let mut streaks = Streaks::default();
        assert!(!streaks.failed("p", "1", "exit code 7 at 10:00"));
        assert!(!streaks.failed("p", "1", "exit code 7 at 10:01"), "the same task");
        assert!(!streaks.failed("p", "2", "exit code 7 at 10:02"));
        assert!(!streaks.failed("q", "3", "exit code 7 at 10:02"), "another provider");
        assert!(streaks.failed("p", "3", "exit code 7 at 10:03"));
        assert!(streaks.failed("p", "3", "exit code 7 at 10:09"), "still");
        assert!(!streaks.failed("p", "4", "something else"));
        assert!(!streaks.failed("p", "5", "something else"));
        streaks.answered("p");
        assert!(!streaks.failed("p", "6", "something else"), "an answer ends the row");
    }

    #[test]
    fn a_task_that_alone_meets_a_fault_is_to_blame() {
        let mut streaks = Streaks::default();
        assert!(!streaks.blames("p", "1"));
        assert!(!streaks.blames("p", "1"), "nothing was answered since");
        streaks.answered("q");
        assert!(!streaks.blames("p", "1"), "another provider was");
        streaks.answered("p");
        assert!(streaks.blames("p", "1"));
        assert!(!streaks.blames("p", "2"));
    }
}
