//! What one process learns from how its own tasks end at a provider: whether the same failure
//! comes again and again, and whether a fault of the machine is one of the task after all.

use std::collections::HashMap;

/// So many tasks in a row that fail for the same reason are no accident.
const IN_A_ROW: usize = 3;
/// How many tasks are remembered that met a fault of the machine.
const KNOWN: usize = 10_000;
/// How much of a reason is compared.
const REASON: usize = 300;

/// How tasks ended, by the file that a suspension of their provider lies in.
#[derive(Debug, Default)]
pub struct Streaks {
    providers: HashMap<String, Streak>,
    /// How many answers a provider had given when a task met a fault of the machine.
    met: HashMap<String, u64>,
}

#[derive(Debug, Default)]
struct Streak {
    answers: u64,
    /// Why the last tasks failed, and which they are.
    reason: String,
    tasks: Vec<String>,
}

impl Streaks {
    /// Counts an answer, which ends a row of failures.
    pub fn answered(&mut self, provider: &str) {
        let streak = self.providers.entry(provider.to_owned()).or_default();
        streak.answers += 1;
        streak.tasks.clear();
    }

    /// Counts a failure. Returns whether it is one too many in a row.
    pub fn failed(&mut self, provider: &str, task: &str, reason: &str) -> bool {
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

    /// Notes that a task met a fault of the machine. Returns whether the task is to blame: it met
    /// one before, and the provider has answered another task here since then.
    pub fn blames(&mut self, provider: &str, task: &str) -> bool {
        let answers = self.providers.get(provider).map_or(0, |streak| streak.answers);
        if self.met.len() >= KNOWN {
            self.met.clear();
        }
        self.met.insert(task.to_owned(), answers).is_some_and(|before| answers > before)
    }
}

/// Whether two reasons are the same but for numbers, ids and times.
pub fn is_same(one: &str, other: &str) -> bool {
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
