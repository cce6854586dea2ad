//! The note about a parked account, or about a provider that cannot be used on one machine: the
//! cause, the duration, and the number of failures in a row.
//!
//! **Invariant:** a time of another machine never decides alone. Each process counts a rest from
//! when it first saw the note; the time that a provider reported can only shorten it. A wrong clock
//! costs one premature request, and no rest is longer than [`LONGEST`].

use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::agent::{Kind, MachineFault, Verdict};
use crate::base::time::{Clock, SystemClock, Time};
use crate::queue::seal;

/// Maximum rest. It is longer than any known provider limit (at most a week).
pub(super) const LONGEST: Duration = Duration::from_secs(8 * 86_400);
/// Maximum period over which waiting tasks start, once the account works again.
const EASED_MS: u64 = 60_000;
const SCHEMA: &str = "parked/v1";
/// Maximum number of characters of a provider's message to keep.
const REASON: usize = 400;

/// The reason why an account is not used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Cause {
    /// The provider reported when the account works again.
    Limit,
    /// The provider could not answer, and did not report for how long.
    Busy,
    /// The account works again after a user has acted.
    Person,
    /// The account works again; the waiting tasks start one after the other.
    Easing,
    /// The provider cannot be used on one machine, through no fault of a task: it is suspended
    /// there.
    Machine,
}

impl Cause {
    pub(crate) fn word(self) -> &'static str {
        match self {
            Cause::Limit => "limit",
            Cause::Busy => "busy",
            Cause::Person => "person",
            Cause::Easing => "easing",
            Cause::Machine => "machine",
        }
    }
}

/// The destination of a request: an account, through a provider, by a program. All fields are empty
/// for work that uses no provider; only a fault of the whole machine stops such work.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Target {
    pub account: String,
    pub provider: String,
    pub program: String,
    pub kind: Kind,
}

impl Target {
    /// Returns the file name of a suspension on a machine. Two workflows may use one provider name
    /// for different programs, so the name includes the program's name if it differs.
    pub(crate) fn machine_file(&self, host: &str) -> String {
        let (provider, host) = (&self.provider, plain(host));
        match self.program.rsplit('/').next().unwrap_or_default() {
            program if program == provider => format!("{provider}!{host}"),
            program => format!("{provider}={}!{host}", plain(program)),
        }
    }

    /// Returns the empty target, whose suspension stops every task on a machine.
    pub(crate) fn any() -> Target {
        Target::default()
    }
}

/// A file in `.orchestrate/parked/`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Note {
    schema: String,
    pub account: String,
    /// The provider through which the failure occurred.
    pub provider: String,
    pub cause: Cause,
    pub reason: String,
    /// Duration of the rest, which each waiting process counts from when it first saw this note.
    pub rest_ms: u64,
    /// End of the rest by the clock of the provider, or of the process that wrote this note.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<Time>,
    /// Number of failures in a row.
    pub strikes: u32,
    /// Time and machine of the failure, for display.
    pub at: Time,
    pub host: String,
    /// The fault of the machine, and its fix.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fault: Option<MachineFault>,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub fix: String,
    /// The program that is suspended on that machine.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub program: String,
    /// Random token that identifies this note.
    pub word: String,
}

/// The common data of every note that one process writes.
pub(super) struct Striker<'a> {
    pub target: &'a Target,
    pub host: &'a str,
    pub now: Time,
    pub word: String,
    /// First and maximum rest of a provider that reports no duration.
    pub first: Duration,
    pub most: Duration,
}

impl Striker<'_> {
    /// Returns the note that a verdict leads to, after `strikes` earlier failures in a row. Returns
    /// `None` if the account may still be used.
    pub(super) fn note(
        self,
        verdict: &Verdict,
        works_at: Option<Time>,
        strikes: u32,
    ) -> Option<Note> {
        let now = self.now;
        let strikes = strikes.saturating_add(1);
        // The rest after this number of failures, if the provider reports no duration.
        let grown = |strikes: u32| {
            self.first.saturating_mul(1 << strikes.saturating_sub(1).min(20)).min(self.most)
        };
        let (cause, rest) = match (verdict, works_at) {
            // Includes a time that is too distant for a run to wait for.
            (Verdict::RetryAt { .. } | Verdict::NeedsPerson { .. }, Some(at)) => {
                // A repeated failure after the reported time makes that time less credible.
                let least = match strikes {
                    1 => Duration::from_secs(1),
                    more => grown(more - 1),
                };
                let told = Duration::from_millis(at.ms_since(now));
                (Cause::Limit, told.max(least).min(LONGEST))
            }
            (Verdict::NeedsPerson { .. }, None) => (Cause::Person, Duration::ZERO),
            (Verdict::BackOff { .. }, _) => (Cause::Busy, grown(strikes)),
            (Verdict::Machine { .. }, _) => (Cause::Machine, grown(strikes)),
            _ => return None,
        };
        let rest_ms = rest.as_millis() as u64;
        let reason = verdict.reason();
        let Target { account, provider, program, kind } = self.target;
        let fault = match verdict {
            Verdict::Machine { fault, .. } => Some(*fault),
            _ => None,
        };
        Some(Note {
            schema: SCHEMA.into(),
            account: account.clone(),
            provider: provider.clone(),
            fault,
            fix: fault.map(|fault| fault.fix(provider, program, *kind)).unwrap_or_default(),
            program: fault.map(|_| program.clone()).unwrap_or_default(),
            cause,
            reason: reason.lines().next().unwrap_or_default().chars().take(REASON).collect(),
            rest_ms,
            until: (cause != Cause::Person).then(|| now.plus_ms(rest_ms)),
            strikes,
            at: now,
            host: self.host.into(),
            word: self.word,
        })
    }
}

impl Note {
    /// Returns the file name of the note. The name includes the host if a user must act, because
    /// other machines may be logged in, and if a machine has a fault, because others may not have
    /// it.
    pub(crate) fn file(&self) -> String {
        match self.cause {
            Cause::Person => file_on(&self.account, &self.host),
            Cause::Machine => {
                let (provider, program) = (self.provider.clone(), self.program.clone());
                Target { provider, program, ..Target::default() }.machine_file(&self.host)
            }
            _ => self.account.clone(),
        }
    }

    /// Returns the only machine that the note applies to, or `None` if it applies to all.
    pub(crate) fn only_on(&self) -> Option<&str> {
        matches!(self.cause, Cause::Person | Cause::Machine).then_some(self.host.as_str())
    }

    /// Returns the time that a worker which ends when no task is left waits for this note. It waits
    /// neither for a user nor for a machine fault other than a lock.
    pub(crate) fn wait(&self) -> Duration {
        match self.fault {
            Some(fault) if fault != MachineFault::Locked => Duration::MAX,
            _ => self.left(Duration::ZERO, SystemClock.now()),
        }
    }

    /// Returns the remaining rest, if this process first saw the note `seen` ago.
    pub(crate) fn left(&self, seen: Duration, now: Time) -> Duration {
        if self.cause == Cause::Person {
            return Duration::MAX;
        }
        let rest = Duration::from_millis(self.rest_ms).min(LONGEST).saturating_sub(seen);
        let until = self.until.map(|until| Duration::from_millis(until.ms_since(now)));
        until.map_or(rest, |until| rest.min(until))
    }

    /// Returns the note that replaces this one after an answer.
    pub(crate) fn eased(&self, now: Time, word: String) -> Note {
        let rest_ms = self.rest_ms.min(EASED_MS);
        let until = Some(now.plus_ms(rest_ms));
        Note { cause: Cause::Easing, rest_ms, until, at: now, word, ..self.clone() }
    }

    /// Returns true if `other`, from a request that started before this note was known, has more
    /// information than this note. `left` is the remaining rest of this note.
    pub(crate) fn yields_to(&self, other: &Note, left: Duration) -> bool {
        match (self.cause, other.cause) {
            (Cause::Person | Cause::Machine, _) => false,
            (_, Cause::Person | Cause::Limit) | (Cause::Easing, _) => {
                Duration::from_millis(other.rest_ms) > left + Duration::from_secs(1)
            }
            _ => false,
        }
    }

    pub(crate) fn sealed(&self) -> Vec<u8> {
        match serde_json::to_value(self) {
            Ok(Value::Object(note)) => seal::seal(&note),
            _ => seal::seal(&Map::new()),
        }
    }

    /// Parses a note. Returns `None` if it is not intact, or belongs to another file name.
    pub(crate) fn read(file: &str, bytes: &[u8]) -> Option<Note> {
        let note: Note = serde_json::from_value(Value::Object(seal::unseal(bytes)?)).ok()?;
        (note.schema == SCHEMA && note.file() == file).then_some(note)
    }
}

/// Returns the file name of a note that requires a user to act on one machine.
pub(super) fn file_on(name: &str, host: &str) -> String {
    format!("{name}@{}", plain(host))
}

/// Converts a text to a part of a file name.
fn plain(text: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
    text.chars().map(|c| if plain(c) { c } else { '_' }).take(64).collect()
}

/// Returns the file name of the trial with this number after a note.
pub(super) fn trial_file(note: &Note, number: u32) -> String {
    format!("{}~{}~{number}", note.file(), note.word)
}

/// Parses a trial's file name into the note's file name, the note's token, and the number.
pub(super) fn read_trial(file: &str) -> Option<(&str, &str, u32)> {
    let mut parts = file.split('~');
    let (note, word, number) = (parts.next()?, parts.next()?, parts.next()?.parse().ok()?);
    parts.next().is_none().then_some((note, word, number))
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Time = Time(1_800_000_000_000);

    fn claude() -> Target {
        let [account, provider, program] = ["claude", "claude", "claude"].map(str::to_owned);
        Target { account, provider, program, kind: Kind::Claude }
    }

    fn striker(target: &Target) -> Striker<'_> {
        Striker {
            target,
            host: "here",
            now: NOW,
            word: "w".into(),
            first: Duration::from_secs(5),
            most: Duration::from_secs(900),
        }
    }

    fn limit(in_ms: u64) -> Note {
        let at = NOW.plus_ms(in_ms);
        let verdict = Verdict::RetryAt { at, reason: "limit\nmore".into() };
        striker(&claude()).note(&verdict, Some(at), 0).unwrap()
    }

    fn busy(strikes: u32) -> Note {
        let verdict = Verdict::BackOff { reason: "503".into(), crowded: false };
        striker(&claude()).note(&verdict, None, strikes).unwrap()
    }

    #[test]
    fn a_rest_without_a_time_grows_and_is_bounded() {
        let rests: Vec<u64> = [0, 1, 2, 7, 8, 60, u32::MAX].map(|n| busy(n).rest_ms / 1000).into();
        assert_eq!(rests, [5, 10, 20, 640, 900, 900, 900]);
    }

    #[test]
    fn a_told_time_is_believed_up_to_the_longest() {
        assert_eq!(limit(3_600_000).rest_ms, 3_600_000);
        assert_eq!(limit(u64::MAX / 4).rest_ms, LONGEST.as_millis() as u64);
        assert_eq!(limit(0).rest_ms, 1000, "never at once");
        let days = NOW.plus_ms(5 * 86_400_000);
        let weekly = Verdict::NeedsPerson { reason: "weekly".into() };
        let note = striker(&claude()).note(&weekly, Some(days), 0).unwrap();
        assert_eq!((note.cause, note.rest_ms), (Cause::Limit, 5 * 86_400_000));
    }

    #[test]
    fn a_told_time_that_was_too_short_again_and_again_grows() {
        let at = NOW.plus_ms(300);
        let limit = Verdict::RetryAt { at, reason: "limit".into() };
        let rest = |n| striker(&claude()).note(&limit, Some(at), n).unwrap().rest_ms / 1000;
        let rests: Vec<u64> = [0, 1, 2, 9].map(rest).into();
        assert_eq!(rests, [1, 5, 10, 900]);
    }

    #[test]
    fn a_clock_that_is_wrong_can_only_shorten_a_rest() {
        let note = limit(3_600_000);
        let left = |seen: u64, by_ms: i64| {
            note.left(Duration::from_secs(seen), Time(NOW.0 + by_ms)).as_secs()
        };
        assert_eq!(left(0, 0), 3600);
        assert_eq!(left(600, 600_000), 3000);
        assert_eq!(left(600, -86_400_000), 3000, "a day behind");
        assert_eq!(left(0, 86_400_000), 0, "a day ahead: asked once too early");
        let forged = Note { rest_ms: u64::MAX, until: Some(Time(i64::MAX)), ..note };
        assert_eq!(forged.left(Duration::ZERO, NOW), LONGEST);
    }

    #[test]
    fn who_needs_a_person_is_named_by_the_machine_and_never_lapses() {
        let verdict = Verdict::NeedsPerson { reason: "Not logged in".into() };
        let note = striker(&claude()).note(&verdict, None, 0).unwrap();
        assert_eq!(note.file(), "claude@here");
        assert_eq!(note.left(LONGEST * 2, Time(i64::MAX)), Duration::MAX);
        assert_eq!(file_on("a", "x/../y z"), "a@x_.._y_z");
    }

    #[test]
    fn a_suspension_is_of_one_program_on_one_machine_and_grows() {
        let fault = MachineFault::Program;
        let verdict = Verdict::Machine { fault, reason: "`claude` was not found".into() };
        let suspended = |target: &Target, n| striker(target).note(&verdict, None, n).unwrap();
        let note = suspended(&claude(), 1);
        assert_eq!((note.cause, note.fault), (Cause::Machine, Some(fault)));
        assert_eq!((note.file().as_str(), note.rest_ms), ("claude!here", 10_000));
        assert_eq!(Note::read("claude!here", &note.sealed()), Some(note.clone()));
        assert!(note.until.is_some() && note.fix.contains("npm install"), "{note:?}");
        assert_eq!(note.wait(), Duration::MAX, "a program does not install itself");
        let other = Target { program: "/opt/x/claude".into(), ..claude() };
        assert_eq!(suspended(&other, 0).file(), "claude!here");
        let other = Target { program: "cl aude".into(), ..claude() };
        assert_eq!(suspended(&other, 0).file(), "claude=cl_aude!here");
        assert_eq!(suspended(&Target::any(), 0).file(), "!here");
    }

    #[test]
    fn stragglers_do_not_make_a_rest_longer_unless_they_know_more() {
        let left = |note: &Note| note.left(Duration::ZERO, NOW);
        assert!(!busy(0).yields_to(&busy(3), left(&busy(0))));
        assert!(busy(0).yields_to(&limit(60_000), left(&busy(0))));
        assert!(!limit(60_000).yields_to(&limit(60_500), left(&limit(60_000))));
        assert!(limit(60_000).yields_to(&limit(90_000), left(&limit(60_000))));
        let easing = busy(0).eased(NOW, "e".into());
        assert!(easing.yields_to(&busy(1), Duration::from_secs(2)));
    }

    #[test]
    fn only_a_whole_note_of_its_own_file_is_read() {
        let note = limit(1000);
        let sealed = note.sealed();
        assert_eq!(Note::read("claude", &sealed), Some(note.clone()));
        assert_eq!(Note::read("codex", &sealed), None);
        assert_eq!(Note::read("claude", &sealed[..sealed.len() - 2]), None);
        assert_eq!(Note::read("claude", b""), None);
        assert_eq!(Note::read("claude", b"{\"account\":\"claude\"}\n"), None);
        assert_eq!(read_trial(&trial_file(&note, 3)), Some(("claude", "w", 3)));
        assert_eq!(read_trial("claude"), None);
        assert_eq!(read_trial("a~b~c"), None);
    }
}
