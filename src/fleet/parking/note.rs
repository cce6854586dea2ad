//! What is known of an account that is not asked, or of a provider that cannot be used on one
//! machine: why, for how long, and how often already.
//!
//! **Invariant:** no time of another machine decides alone. A rest is counted by whoever waits,
//! from when it first saw the note; the time that a provider told can only shorten it. A clock
//! that is wrong costs one question too early, and nobody rests longer than [`LONGEST`].

use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::provider::{Kind, MachineFault, Verdict};
use crate::queue::seal;
use crate::time::{Clock, SystemClock, Time};

/// Longer than any limit that a provider is known to have, which is a week.
pub const LONGEST: Duration = Duration::from_secs(8 * 86_400);
/// Over how long those who waited begin at most, once it works again.
const EASED_MS: u64 = 60_000;
const SCHEMA: &str = "parked/v1";
/// How much is kept of what a provider said.
const REASON: usize = 400;

/// Why an account is not asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Cause {
    /// It said when it works again.
    Limit,
    /// It could not answer, and did not say for how long.
    Busy,
    /// It works again when a person has done something.
    Person,
    /// It works again, and those who waited do not begin all at once.
    Easing,
    /// It cannot be used on one machine, which no task is to blame for: it is suspended there.
    Machine,
}

impl Cause {
    pub fn word(self) -> &'static str {
        match self {
            Cause::Limit => "limit",
            Cause::Busy => "busy",
            Cause::Person => "person",
            Cause::Easing => "easing",
            Cause::Machine => "machine",
        }
    }
}

/// What a question is put to: an account, through a provider, by a program. All of it is empty for
/// work that asks no provider; only a fault of the whole machine keeps that back.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Target {
    pub account: String,
    pub provider: String,
    pub program: String,
    pub kind: Kind,
}

impl Target {
    /// The file of a suspension on a machine. Two workflows may call different programs by the
    /// name of one provider, so the name of the program is part of it where it differs.
    pub fn machine_file(&self, host: &str) -> String {
        let (provider, host) = (&self.provider, plain(host));
        match self.program.rsplit('/').next().unwrap_or_default() {
            program if program == provider => format!("{provider}!{host}"),
            program => format!("{provider}={}!{host}", plain(program)),
        }
    }

    /// The same for a whole machine, whatever is asked.
    pub fn any() -> Target {
        Target::default()
    }
}

/// What lies in `.orchestrate/parked/`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Note {
    schema: String,
    pub account: String,
    /// The provider that met it.
    pub provider: String,
    pub cause: Cause,
    pub reason: String,
    /// How long it is left alone, counted from when whoever waits saw this first.
    pub rest_ms: u64,
    /// When that is over by the clock of the provider, or of whoever wrote this.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<Time>,
    /// How often in a row it was met.
    pub strikes: u32,
    /// When and where it was met, for people.
    pub at: Time,
    pub host: String,
    /// What is wrong with the machine, and what to do about it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fault: Option<MachineFault>,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub fix: String,
    /// The program that is suspended there.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub program: String,
    /// Tells it from all others.
    pub word: String,
}

/// What is true of every strike of one process.
pub struct Striker<'a> {
    pub target: &'a Target,
    pub host: &'a str,
    pub now: Time,
    pub word: String,
    /// How long a provider is left alone that does not say how long, at first and at most.
    pub first: Duration,
    pub most: Duration,
}

impl Striker<'_> {
    /// What an answer says of the account it is under, after so many strikes. Nothing, if it says
    /// that it may be asked.
    pub fn note(self, verdict: &Verdict, works_at: Option<Time>, strikes: u32) -> Option<Note> {
        let now = self.now;
        let strikes = strikes.saturating_add(1);
        // The rest after so many strikes, where nobody says how long it is.
        let grown = |strikes: u32| {
            self.first.saturating_mul(1 << strikes.saturating_sub(1).min(20)).min(self.most)
        };
        let (cause, rest) = match (verdict, works_at) {
            // Also one that is too far off for a run to wait for.
            (Verdict::RetryAt { .. } | Verdict::NeedsPerson { .. }, Some(at)) => {
                // Whoever was told a time and is turned away again believes it less.
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
    /// The file that it lies in. What a person must do is to be done on one machine, where the
    /// others may well be logged in; and what one machine lacks, others may have.
    pub fn file(&self) -> String {
        match self.cause {
            Cause::Person => file_on(&self.account, &self.host),
            Cause::Machine => {
                let (provider, program) = (self.provider.clone(), self.program.clone());
                Target { provider, program, ..Target::default() }.machine_file(&self.host)
            }
            _ => self.account.clone(),
        }
    }

    /// The only machine that it counts on, where there is one.
    pub fn only_on(&self) -> Option<&str> {
        matches!(self.cause, Cause::Person | Cause::Machine).then_some(self.host.as_str())
    }

    /// How long a worker waits for it that is to end when nothing is left to do: not for a person,
    /// and not for limits that its own process has.
    pub fn wait(&self) -> Duration {
        match self.fault {
            Some(fault) if fault != MachineFault::Locked => Duration::MAX,
            _ => self.left(Duration::ZERO, SystemClock.now()),
        }
    }

    /// How long the account is still left alone, where this was seen so long ago.
    pub fn left(&self, seen: Duration, now: Time) -> Duration {
        if self.cause == Cause::Person {
            return Duration::MAX;
        }
        let rest = Duration::from_millis(self.rest_ms).min(LONGEST).saturating_sub(seen);
        let until = self.until.map(|until| Duration::from_millis(until.ms_since(now)));
        until.map_or(rest, |until| rest.min(until))
    }

    /// The note after it, once somebody was answered.
    pub fn eased(&self, now: Time, word: String) -> Note {
        let rest_ms = self.rest_ms.min(EASED_MS);
        let until = Some(now.plus_ms(rest_ms));
        Note { cause: Cause::Easing, rest_ms, until, at: now, word, ..self.clone() }
    }

    /// Whether `other`, met by somebody who asked before this was known, says more than this.
    pub fn yields_to(&self, other: &Note, left: Duration) -> bool {
        match (self.cause, other.cause) {
            (Cause::Person | Cause::Machine, _) => false,
            (_, Cause::Person | Cause::Limit) | (Cause::Easing, _) => {
                Duration::from_millis(other.rest_ms) > left + Duration::from_secs(1)
            }
            _ => false,
        }
    }

    pub fn sealed(&self) -> Vec<u8> {
        match serde_json::to_value(self) {
            Ok(Value::Object(note)) => seal::seal(&note),
            _ => seal::seal(&Map::new()),
        }
    }

    /// Reads what lies in a file; nothing, if it is no whole note, or one of another file.
    pub fn read(file: &str, bytes: &[u8]) -> Option<Note> {
        let note: Note = serde_json::from_value(Value::Object(seal::unseal(bytes)?)).ok()?;
        (note.schema == SCHEMA && note.file() == file).then_some(note)
    }
}

/// The file of what a person must do on one machine.
pub fn file_on(name: &str, host: &str) -> String {
    format!("{name}@{}", plain(host))
}

/// A text as a part of a file's name.
fn plain(text: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
    text.chars().map(|c| if plain(c) { c } else { '_' }).take(64).collect()
}

/// The file by which one process tries an account, as the so-manieth that tries it after a note.
pub fn trial_file(note: &Note, number: u32) -> String {
    format!("{}~{}~{number}", note.file(), note.word)
}

/// The file of the note, the word and the number of a trial.
pub fn read_trial(file: &str) -> Option<(&str, &str, u32)> {
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
