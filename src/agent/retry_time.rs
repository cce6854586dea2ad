//! Parses the times at which providers say that they work again.

use chrono::{Datelike, NaiveDate, NaiveTime};

use super::verdict::{LONGEST_MS, number_after, plain};
use crate::base::time::Time;

const DAY_MS: u64 = LONGEST_MS;

/// Returns the time when, according to a text, a limit ends:
///
/// - at a time of day: `resets 3pm (UTC)`, `resets Nov 20 at 3:30pm`, `try again at 12:32 AM`,
///   `try again at Nov 16th, 2026 12:24 AM`;
/// - after a while: `retry after 3600s`, `will reset after 2h52m39s`, `try again in 5 minutes`;
/// - in seconds since 1970: `usage limit reached|1735689600`.
///
/// A time of day is local time unless the text says UTC: a CLI prints another time zone only if its
/// machine is in that zone.
pub(crate) fn told_time(text: &str, now: Time, utc_offset_s: i32) -> Option<Time> {
    let lower = plain(text);
    let after = || {
        let seconds = wait_s(&lower)?;
        Some(now.plus_ms(seconds.saturating_mul(1000)))
    };
    epoch(&lower).or_else(|| clock(&lower, now, utc_offset_s)).or_else(after)
}

/// Returns the time in seconds since 1970 after a `|`.
fn epoch(lower: &str) -> Option<Time> {
    let digits = lower.split('|').nth(1)?.trim();
    let end = digits.find(|c: char| !c.is_ascii_digit()).unwrap_or(digits.len());
    let seconds: i64 = digits[..end].parse().ok().filter(|_| end >= 10)?;
    seconds.checked_mul(1000).map(Time)
}

fn clock(lower: &str, now: Time, utc_offset_s: i32) -> Option<Time> {
    const MARKS: [&str; 3] = ["try again at ", "resets ", "reset at "];
    let found = MARKS.iter().flat_map(|mark| lower.match_indices(mark));
    found.map(|(at, mark)| &lower[at + mark.len()..]).find_map(|rest| {
        let told = Told::read(rest)?;
        let offset_ms = if told.utc { 0 } else { i64::from(utc_offset_s) * 1000 };
        told.after(now, offset_ms)
    })
}

/// A time of day, with or without a date.
struct Told {
    day: Option<(u32, u32)>,
    year: Option<i32>,
    time: NaiveTime,
    utc: bool,
}

impl Told {
    fn read(rest: &str) -> Option<Told> {
        let is_part = |word: &&str| !word.is_empty() && !matches!(*word, "at" | "on");
        let mut words = rest.split([' ', ',', '\n']).filter(is_part).take(8).peekable();
        let month = words.peek().and_then(|word| month(word));
        let day = match month {
            Some(month) => {
                words.next();
                let day = words.next()?.trim_end_matches(|c: char| c.is_ascii_alphabetic());
                Some((month, day.parse().ok()?))
            }
            None => None,
        };
        let year = words.peek().and_then(|word| word.parse::<i32>().ok());
        let year = year.filter(|year| (2000..10_000).contains(year));
        if year.is_some() {
            words.next();
        }
        let first = words.next()?;
        let half = words.peek().map(|word| word.trim_matches('.'));
        let time = match half {
            Some(half @ ("am" | "pm")) => {
                words.next();
                time_of_day(&format!("{first}{half}"))?
            }
            _ => time_of_day(first.trim_end_matches('.'))?,
        };
        let zone = words.next().map(|word| word.trim_matches(['(', ')', '.']));
        Some(Told { day, year, time, utc: matches!(zone, Some("utc" | "gmt" | "z")) })
    }

    /// Returns the first such time from now on. The text has no seconds, so the minute must be
    /// over.
    fn after(&self, now: Time, offset_ms: i64) -> Option<Time> {
        let here = now.0.checked_add(offset_ms)?;
        let today = chrono::DateTime::from_timestamp_millis(here)?.date_naive();
        let at = |date: NaiveDate| {
            let at = date.and_time(self.time).and_utc().timestamp_millis();
            Time(at - offset_ms).plus_ms(60_000)
        };
        let Some((month, day)) = self.day else {
            let at = at(today);
            return Some(if at < now { at.plus_ms(DAY_MS) } else { at });
        };
        let date = |year| NaiveDate::from_ymd_opt(year, month, day).map(at);
        if let Some(year) = self.year {
            return date(year);
        }
        // Without a year, a date more than 30 days ago is in the next year.
        let at = date(today.year())?;
        let long_over = at.plus_ms(30 * DAY_MS) < now;
        if long_over { date(today.year() + 1) } else { Some(at) }
    }
}

/// Returns the number of a month from its name or abbreviation.
fn month(word: &str) -> Option<u32> {
    const MONTHS: [&str; 12] =
        ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"];
    let number = MONTHS.iter().position(|name| word.starts_with(name))?;
    Some(number as u32 + 1)
}

/// Parses `3pm`, `12:32am`, or `15:04`.
fn time_of_day(word: &str) -> Option<NaiveTime> {
    let (digits, half) = match (word.strip_suffix("am"), word.strip_suffix("pm")) {
        (Some(digits), _) => (digits, Some(0)),
        (_, Some(digits)) => (digits, Some(12)),
        _ => (word, None),
    };
    let (hour, minute) = match digits.split_once(':') {
        Some((hour, minute)) => (hour, minute.parse().ok()?),
        None if half.is_some() => (digits, 0),
        None => return None,
    };
    let hour: u32 = hour.parse().ok()?;
    match half {
        Some(half) if (1..=12).contains(&hour) => {
            NaiveTime::from_hms_opt(hour % 12 + half, minute, 0)
        }
        Some(_) => None,
        None => NaiveTime::from_hms_opt(hour, minute, 0),
    }
}

/// Returns the seconds of a wait.
fn wait_s(lower: &str) -> Option<u64> {
    const MARKS: [&str; 4] = ["reset after ", "resets in ", "try again in ", "retry in "];
    if let Some(seconds) = number_after(lower, "retry after ") {
        return Some(seconds);
    }
    MARKS.iter().find_map(|mark| in_units(&lower[lower.find(mark)? + mark.len()..]))
}

/// Returns the seconds in `2h52m39s`, or in `3 hours and 5 minutes`.
fn in_units(text: &str) -> Option<u64> {
    let mut rest = text;
    let (mut seconds, mut any) = (0_u64, false);
    loop {
        rest = rest.trim_start_matches([' ', ',']);
        rest = rest.strip_prefix("and ").unwrap_or(rest);
        let end = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
        let Ok(count) = rest[..end].parse::<u64>() else { break };
        rest = rest[end..].trim_start_matches(' ');
        let end = rest.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(rest.len());
        let unit = match &rest[..end] {
            "d" | "day" | "days" => 86_400,
            "h" | "hr" | "hrs" | "hour" | "hours" => 3600,
            "m" | "min" | "mins" | "minute" | "minutes" => 60,
            "s" | "sec" | "secs" | "second" | "seconds" => 1,
            _ => break,
        };
        rest = &rest[end..];
        seconds = seconds.saturating_add(count.saturating_mul(unit));
        any = true;
    }
    any.then_some(seconds)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str, offset_h: i32) -> String {
        let now = Time::parse("2026-11-18T08:30:20Z").unwrap();
        let told = told_time(text, now, offset_h * 3600);
        told.map_or("none".into(), Time::to_second)
    }

    #[test]
    fn a_time_of_day_is_the_next_one() {
        for (text, wanted) in [
            ("You've hit your limit · resets 3pm (UTC)", "2026-11-18T15:01:00Z"),
            ("You’ve hit your session limit ∙ resets 3am (UTC)", "2026-11-19T03:01:00Z"),
            ("resets at 12:19am (UTC).", "2026-11-19T00:20:00Z"),
            ("resets 8:30am (UTC)", "2026-11-18T08:31:00Z"),
            ("resets 15:04 UTC", "2026-11-18T15:05:00Z"),
            ("weekly limit · resets Nov 20, 3pm (UTC)", "2026-11-20T15:01:00Z"),
            ("resets Jan 2 at 9:05am (UTC)", "2027-01-02T09:06:00Z"),
            ("or try again at 12:32 PM.", "2026-11-18T12:33:00Z"),
            ("try again at Nov 16th, 2026 12:24 AM.", "2026-11-16T00:25:00Z"),
            ("resets soon", "none"),
            ("resets 13pm", "none"),
            ("resets 3", "none"),
            ("it resets the counter at 3pm", "none"),
        ] {
            assert_eq!(at(text, 0), wanted, "{text}");
        }
    }

    #[test]
    fn without_utc_it_is_local() {
        assert_eq!(at("resets 3pm", 2), "2026-11-18T13:01:00Z");
        assert_eq!(at("resets 3pm (Europe/Athens)", 2), "2026-11-18T13:01:00Z");
        assert_eq!(at("resets 3pm (UTC)", 2), "2026-11-18T15:01:00Z");
        assert_eq!(at("resets 3am (America/New_York)", -5), "2026-11-19T08:01:00Z");
    }

    #[test]
    fn a_wait_is_told_in_units() {
        for (text, wanted) in [
            ("your quota will reset after 2h52m39s.", "2026-11-18T11:22:59Z"),
            ("Suggested retry after 3600s", "2026-11-18T09:30:20Z"),
            ("try again in 1 hour and 5 minutes.", "2026-11-18T09:35:20Z"),
            ("Resets in 3 hr 5 min", "2026-11-18T11:35:20Z"),
            ("reset after a while", "none"),
            ("Claude AI usage limit reached|1794990000", "2026-11-18T08:20:00Z"),
            ("a | b", "none"),
        ] {
            assert_eq!(at(text, 0), wanted, "{text}");
        }
    }
}
