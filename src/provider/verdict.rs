//! Whether an answer counts, and if it does not, what another try is worth.

use serde_json::{Value, json};

use super::MachineFault;
use crate::time::Time;

/// What is to be thought of how a provider ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    Answered,
    /// It will work again at this time.
    RetryAt {
        at: Time,
        reason: String,
    },
    /// It may work again soon.
    BackOff {
        reason: String,
        /// Too much was asked at once, which no question is to blame for.
        crowded: bool,
    },
    /// It works again when a person has done something: logged in, paid, waited for days.
    NeedsPerson {
        reason: String,
    },
    /// It would fail again.
    Fail {
        reason: String,
    },
    /// A limit that the caller has set was reached.
    Limit {
        reason: String,
    },
    /// It ended without saying how it went.
    Stopped {
        reason: String,
    },
    /// It cannot be used on this machine, whatever it is asked.
    Machine {
        fault: MachineFault,
        reason: String,
    },
}

/// Nobody waits longer than a day.
pub(super) const LONGEST_MS: u64 = 86_400_000;

impl Verdict {
    pub fn word(&self) -> &'static str {
        match self {
            Verdict::Answered => "answered",
            Verdict::RetryAt { .. } => "retry_at",
            Verdict::BackOff { .. } => "back_off",
            Verdict::NeedsPerson { .. } => "needs_person",
            Verdict::Fail { .. } => "fail",
            Verdict::Limit { .. } => "limit",
            Verdict::Stopped { .. } => "stopped",
            Verdict::Machine { .. } => "machine_fault",
        }
    }

    pub fn reason(&self) -> &str {
        match self {
            Verdict::Answered => "",
            Verdict::RetryAt { reason, .. }
            | Verdict::BackOff { reason, .. }
            | Verdict::NeedsPerson { reason }
            | Verdict::Fail { reason }
            | Verdict::Limit { reason }
            | Verdict::Stopped { reason }
            | Verdict::Machine { reason, .. } => reason,
        }
    }

    /// When it may be tried again, where that is known.
    pub fn at(&self) -> Option<Time> {
        match self {
            Verdict::RetryAt { at, .. } => Some(*at),
            _ => None,
        }
    }

    /// The same, with a wait that is too long left to people.
    pub fn within_a_day(self, now: Time) -> Verdict {
        match self {
            Verdict::RetryAt { at, reason } if at.ms_since(now) > LONGEST_MS => {
                let at = at.to_second();
                Verdict::NeedsPerson { reason: format!("{reason} (not before {at})") }
            }
            other => other,
        }
    }

    /// The same, with a time that is over or comes at once taken for what it is worth: nobody
    /// knows when.
    pub fn not_before(self, now: Time) -> Verdict {
        match self {
            Verdict::RetryAt { at, reason } if at <= now => {
                Verdict::BackOff { reason, crowded: true }
            }
            other => other,
        }
    }

    pub fn to_json(&self) -> Value {
        let mut object = json!({ "kind": self.word(), "reason": self.reason() });
        if let Some(at) = self.at() {
            object["at"] = at.to_second().into();
        }
        if let Verdict::Machine { fault, .. } = self {
            object["fault"] = json!(fault);
        }
        object
    }

    /// What an HTTP status says, where it says anything.
    pub(super) fn of_status(status: u64, reason: &str) -> Option<Verdict> {
        let reason = reason.to_owned();
        match status {
            401..=403 => Some(Verdict::NeedsPerson { reason }),
            408 | 429 | 500..=599 => {
                Some(Verdict::BackOff { reason, crowded: matches!(status, 429 | 529) })
            }
            400..=499 => Some(Verdict::Fail { reason }),
            _ => None,
        }
    }
}

/// Whether it says, in lower case, that the way to the model was shut or broke off.
pub(super) fn is_network(lower: &str) -> bool {
    const SIGNS: [&str; 17] = [
        "fetch failed",
        "api error: terminated",
        "econn",
        "epipe",
        "ehostunreach",
        "enetunreach",
        "etimedout",
        "enotfound",
        "eai_again",
        "socket hang up",
        "connection failed",
        "stream disconnected",
        "network error",
        "timed out",
        "timeout",
        "service unavailable",
        "high demand",
    ];
    SIGNS.iter().any(|sign| lower.contains(sign))
}

/// In lower case, with one kind of apostrophe.
pub(super) fn plain(text: &str) -> String {
    text.to_lowercase().replace('’', "'")
}

/// The number that follows a word, past blanks and a colon: `status: 429`.
pub(super) fn number_after(text: &str, word: &str) -> Option<u64> {
    text.match_indices(word).find_map(|(at, _)| {
        let rest = text[at + word.len()..].trim_start_matches([' ', ':', '"', '=']);
        let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
        rest[..digits].parse().ok()
    })
}
