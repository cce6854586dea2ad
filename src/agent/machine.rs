//! Machine faults: the program, its options, its login or the machine's limits prevent every
//! request there, regardless of its content. No task is to blame.

use serde::{Deserialize, Serialize};

use super::verdict::plain;
use super::{End, Kind, Usage, Verdict};

/// The reason why a provider is unusable on a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum MachineFault {
    /// Its program, or the interpreter of its program, is missing or cannot be executed.
    Program,
    /// Its program does not know an option that the settings give it.
    Option,
    /// Its program ended well, but none of its events is a final event that the adapter knows.
    Events,
    /// Its program cannot read its login or its own settings.
    Login,
    /// Its program found its own database locked by another process.
    Locked,
    /// The machine has too few file descriptors, processes or too little memory.
    Resources,
    /// Several tasks in a row failed for the same reason.
    Repeated,
    /// `orchestrate provider test` failed.
    Test,
}

impl MachineFault {
    /// Returns true if the fault may pass without intervention.
    pub(crate) fn passes(self) -> bool {
        matches!(self, MachineFault::Locked | MachineFault::Resources)
    }

    /// Returns true if a task could cause the fault: by its changes to the provider's command, or
    /// by what it makes the program do.
    pub(crate) fn may_be_of_task(self) -> bool {
        matches!(self, MachineFault::Option | MachineFault::Events)
    }

    /// Returns the fix, as a hint. `name` is the provider, `program` its program.
    pub(crate) fn fix(self, name: &str, program: &str, kind: Kind) -> String {
        let install = |otherwise: String| kind.install_hint().unwrap_or(otherwise);
        match self {
            MachineFault::Program => install(format!("install `{program}` there")),
            MachineFault::Option | MachineFault::Events => match kind.tried() {
                Some(tried) => format!(
                    "install the tested version ({tried}) there, or change provider `{name}` in \
                     the settings"
                ),
                None => format!("change provider `{name}` in the settings"),
            },
            MachineFault::Login => {
                format!("repair its login and its settings there: start `{program}` by hand")
            }
            MachineFault::Locked => "no action is needed if it passes by itself".to_owned(),
            MachineFault::Resources => {
                "raise the limits there (`ulimit -n`, `ulimit -u`) and restart the worker"
                    .to_owned()
            }
            MachineFault::Repeated | MachineFault::Test => {
                format!("run `orchestrate provider test {name}` there")
            }
        }
    }

    /// Finds the fault that a program names in its last message, given in lower case.
    fn in_words(lower: &str) -> Option<MachineFault> {
        const LOCKED: [&str; 3] = ["database is locked", "database table is locked", "sqlite_busy"];
        const RESOURCES: [&str; 3] = ["too many open files", "emfile", "enfile"];
        const SETTINGS: [&str; 8] = [
            "error loading config",
            "failed to read config",
            "configuration error in",
            "is corrupted: json",
            "please fix the configuration file",
            "is not valid json(c)",
            "configuration is invalid at",
            "failed to load auth",
        ];
        const DENIED: [&str; 3] = ["permission denied", "eacces", "eperm"];
        const LOGIN: [&str; 9] = [
            "credential",
            "auth.json",
            "oauth",
            "login",
            "keyring",
            ".claude",
            ".codex",
            ".gemini",
            "opencode",
        ];
        let says = |signs: &[&str]| signs.iter().any(|sign| lower.contains(sign));
        if says(&LOCKED) {
            return Some(MachineFault::Locked);
        }
        if says(&RESOURCES) {
            return Some(MachineFault::Resources);
        }
        (says(&SETTINGS) || says(&DENIED) && says(&LOGIN)).then_some(MachineFault::Login)
    }
}

/// Returns the field that an answer lacks for tracking cost and conversations: events may lose a
/// field without an error. Returns `None` if it lacks nothing.
pub(crate) fn lacking(session: Option<&str>, usage: &Usage) -> Option<&'static str> {
    if session.is_none() {
        return Some("it answers, but names no session");
    }
    let counted = usage.input_tokens.is_some() && usage.output_tokens.is_some();
    (!counted).then_some("it answers, but counts no tokens")
}

impl Verdict {
    /// Converts the verdict to a machine fault if a program that failed names one. A service's
    /// answer, a limit, and a verdict that needs a user stay unchanged.
    pub(super) fn or_machine_fault(self, end: &End) -> Verdict {
        let (Verdict::Fail { reason } | Verdict::Stopped { reason }) = &self else { return self };
        if !end.failed() {
            return self;
        }
        let stderr = end.stderr_tail.iter().rev().map(String::as_str);
        let said = std::iter::once(reason.as_str()).chain(stderr);
        let found = said
            .map(super::plain_line)
            .find_map(|line| MachineFault::in_words(&plain(&line)).map(|fault| (fault, line)));
        match found {
            Some((fault, line)) => {
                let reason = if line.is_empty() { reason.clone() } else { line };
                Verdict::Machine { fault, reason }
            }
            None => self,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_real_programs_name_their_fault() {
        for (words, fault) in [
            ("Error: database is locked", Some(MachineFault::Locked)),
            ("SQLITE_BUSY: database is locked", Some(MachineFault::Locked)),
            ("Error: EMFILE: too many open files, watch", Some(MachineFault::Resources)),
            (
                "Error loading config.toml: Failed to read config file /h/.codex/config.toml: \
                 Permission denied (os error 13)",
                Some(MachineFault::Login),
            ),
            ("Configuration error in /h/.claude.json: JSON Parse error", Some(MachineFault::Login)),
            (
                "Error in /h/.gemini/settings.json: EACCES: permission denied, open \
                 '/h/.gemini/settings.json'",
                Some(MachineFault::Login),
            ),
            ("Config file at /h/opencode.json is not valid JSON(C):", Some(MachineFault::Login)),
            ("EACCES: permission denied, open '/srv/notes.txt'", None),
            ("Not logged in", None),
            ("the turn failed", None),
        ] {
            assert_eq!(MachineFault::in_words(&plain(words)), fault, "{words}");
        }
    }

    #[test]
    fn only_a_program_that_failed_names_a_fault() {
        let tail = ["Error: database is locked".to_owned()];
        let end = |code| End { exit_code: Some(code), stderr_tail: &tail, ..End::default() };
        let stopped = || Verdict::Stopped { reason: "there is no last event".into() };
        let fault = stopped().or_machine_fault(&end(1));
        let reason = "Error: database is locked".to_owned();
        assert_eq!(fault, Verdict::Machine { fault: MachineFault::Locked, reason });
        assert_eq!(stopped().or_machine_fault(&end(0)), stopped());
        assert_eq!(Verdict::Answered.or_machine_fault(&end(1)), Verdict::Answered);
    }
}
