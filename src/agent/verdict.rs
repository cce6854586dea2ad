//! Decides whether an answer counts, and if not, whether a retry can help.

use serde_json::{Value, json};

use super::MachineFault;
use crate::base::time::Time;

/// The assessment of a provider's result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Answered,
    /// The provider works again at this time.
    RetryAt {
        at: Time,
        reason: String,
    },
    /// The provider may work again soon.
    BackOff {
        reason: String,
        /// True for too many requests at once, which is not the fault of this request.
        crowded: bool,
    },
    /// A user must act before it works again: log in, pay, or wait for days.
    NeedsPerson {
        reason: String,
    },
    /// A retry would fail again.
    Fail {
        reason: String,
    },
    /// A limit set by the caller was reached.
    Limit {
        reason: String,
    },
    /// The provider ended without reporting a result.
    Stopped {
        reason: String,
    },
    /// The provider is unusable on this machine, regardless of the request.
    Machine {
        fault: MachineFault,
        reason: String,
    },
}

/// Maximum wait for a retry: one day.
pub(super) const LONGEST_MS: u64 = 86_400_000;

impl Verdict {
    pub(crate) fn word(&self) -> &'static str {
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

    pub(crate) fn reason(&self) -> &str {
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

    /// Returns the time of the next retry, if known.
    pub(crate) fn at(&self) -> Option<Time> {
        match self {
            Verdict::RetryAt { at, .. } => Some(*at),
            _ => None,
        }
    }

    /// Converts a wait that is too long into [`Verdict::NeedsPerson`].
    pub(crate) fn within_a_day(self, now: Time) -> Verdict {
        match self {
            Verdict::RetryAt { at, reason } if at.ms_since(now) > LONGEST_MS => {
                let at = at.to_second();
                Verdict::NeedsPerson { reason: format!("{reason} (not before {at})") }
            }
            other => other,
        }
    }

    /// Converts a retry time that has already passed into a backoff: the real time is unknown.
    pub(crate) fn not_before(self, now: Time) -> Verdict {
        match self {
            Verdict::RetryAt { at, reason } if at <= now => {
                Verdict::BackOff { reason, crowded: true }
            }
            other => other,
        }
    }

    pub(crate) fn to_json(&self) -> Value {
        let mut object = json!({ "kind": self.word(), "reason": self.reason() });
        if let Some(at) = self.at() {
            object["at"] = at.to_second().into();
        }
        if let Verdict::Machine { fault, .. } = self {
            object["fault"] = json!(fault);
        }
        object
    }

    /// Returns the verdict for an HTTP status, or `None` if the status is inconclusive.
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

/// Returns true if a lower-case text says that the connection to the model failed or broke.
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

/// Returns the text in lower case, with one kind of apostrophe.
pub(super) fn plain(text: &str) -> String {
    text.to_lowercase().replace('’', "'")
}

/// Returns the number after a word, skipping spaces, colons, quotes and equals signs: `status:
/// 429`.
pub(super) fn number_after(text: &str, word: &str) -> Option<u64> {
    text.match_indices(word).find_map(|(at, _)| {
        let rest = text[at + word.len()..].trim_start_matches([' ', ':', '"', '=']);
        let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
        rest[..digits].parse().ok()
    })
}
