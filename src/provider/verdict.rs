//! Whether an answer counts, and if it does not, what another try is worth; and the times that
//! providers tell in words.

use chrono::{NaiveDate, NaiveDateTime, NaiveTime};
use serde_json::{Value, json};

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
}

/// Nobody waits longer than a day.
const LONGEST_MS: u64 = 86_400_000;

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
            | Verdict::Stopped { reason } => reason,
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

/// The time in `try again at Nov 16th, 2026 12:24 AM.`, or on the same day only
/// `try again at 12:32 AM.`: local time, by the minute.
pub(super) fn try_again_at(text: &str, now: Time, utc_offset_s: i32) -> Option<Time> {
    const MARK: &str = "try again at ";
    let lower = plain(text);
    let told = &lower[lower.find(MARK)? + MARK.len()..];
    let end = [told.find("am"), told.find("pm")].into_iter().flatten().min()? + 2;
    let told = told[..end].trim();
    let offset_ms = i64::from(utc_offset_s) * 1000;
    let local = |date: NaiveDateTime| Time(date.and_utc().timestamp_millis() - offset_ms);
    // It is told without seconds, so the minute has to be over.
    let over = |time: Time| time.plus_ms(60_000);
    if let Some((date, time)) = told.rsplit_once(", ").and_then(|(day, rest)| {
        let (year, time) = rest.split_once(' ')?;
        Some((date(day, year)?, clock_time(time)?))
    }) {
        return Some(over(local(date.and_time(time))));
    }
    let time = clock_time(told)?;
    let today = chrono::DateTime::from_timestamp_millis(now.0.checked_add(offset_ms)?)?;
    let at = over(local(today.date_naive().and_time(time)));
    Some(if at < now { at.plus_ms(LONGEST_MS) } else { at })
}

/// `nov 16th` of a year.
fn date(day: &str, year: &str) -> Option<NaiveDate> {
    const MONTHS: [&str; 12] =
        ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"];
    let (month, day) = day.trim().split_once(' ')?;
    let month = MONTHS.iter().position(|name| month.starts_with(name))? as u32 + 1;
    let day = day.trim().trim_end_matches(|c: char| c.is_ascii_alphabetic()).parse().ok()?;
    NaiveDate::from_ymd_opt(year.trim().parse().ok()?, month, day)
}

/// `12:32 am`.
fn clock_time(text: &str) -> Option<NaiveTime> {
    let text = text.trim();
    let (digits, noon) = match text.strip_suffix("am") {
        Some(digits) => (digits, 0),
        None => (text.strip_suffix("pm")?, 12),
    };
    let (hour, minute) = digits.trim().split_once(':')?;
    let hour: u32 = hour.parse().ok().filter(|hour| (1..=12).contains(hour))?;
    NaiveTime::from_hms_opt(hour % 12 + noon, minute.parse().ok()?, 0)
}

/// The seconds in `retry after 3600s`.
pub(super) fn retry_after(text: &str) -> Option<u64> {
    number_after(&plain(text), "retry after ")
}
