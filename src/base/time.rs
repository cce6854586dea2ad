//! Time as a value. Only a [`Clock`] reads the current time; all other code receives it.

use chrono::{DateTime, Offset, SecondsFormat, TimeZone, Utc};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::host;

/// Milliseconds since 1970 in UTC.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Time(pub i64);

impl Time {
    /// Returns the time `delay_ms` later.
    pub(crate) fn plus_ms(self, delay_ms: u64) -> Time {
        Time(self.0.saturating_add(i64::try_from(delay_ms).unwrap_or(i64::MAX)))
    }

    /// Returns the milliseconds since `earlier`, or 0 if `earlier` is later, for example after a
    /// clock change.
    pub(crate) fn ms_since(self, earlier: Time) -> u64 {
        u64::try_from(self.0.saturating_sub(earlier.0)).unwrap_or(0)
    }

    fn date(self) -> DateTime<Utc> {
        DateTime::from_timestamp_millis(self.0).unwrap_or(DateTime::<Utc>::MIN_UTC)
    }

    /// Formats as `2025-01-15T14:30:22Z`, which `jq`'s `fromdate` reads.
    pub(crate) fn to_second(self) -> String {
        self.date().to_rfc3339_opts(SecondsFormat::Secs, true)
    }

    /// Formats as `2025-01-15T14:30:22.123Z`.
    pub(crate) fn to_milli(self) -> String {
        self.date().to_rfc3339_opts(SecondsFormat::Millis, true)
    }

    /// Formats as `20250115T143022Z`, suitable for a file name.
    pub(crate) fn to_stamp(self) -> String {
        self.date().format("%Y%m%dT%H%M%SZ").to_string()
    }

    /// Parses any RFC 3339 text.
    pub(crate) fn parse(text: &str) -> Option<Time> {
        DateTime::parse_from_rfc3339(text).ok().map(|date| Time(date.timestamp_millis()))
    }
}

impl Serialize for Time {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let whole = self.0.rem_euclid(1000) == 0;
        serializer.serialize_str(&if whole { self.to_second() } else { self.to_milli() })
    }
}

impl<'de> Deserialize<'de> for Time {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Time::parse(&text).ok_or_else(|| serde::de::Error::custom(format!("`{text}` is no time")))
    }
}

/// The only source of the current time.
pub(crate) trait Clock: Send + Sync {
    fn now(&self) -> Time;
}

/// The machine's clock.
pub(crate) struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Time {
        Time(host::wall_ms())
    }
}

/// Returns the offset of the local time from UTC at a given time, in seconds.
pub(crate) fn utc_offset_s(at: Time) -> i32 {
    let offset = chrono::Local.offset_from_utc_datetime(&at.date().naive_utc());
    offset.fix().local_minus_utc()
}

/// Parses a duration such as `7d`, `1h30m`, `15m`, `2s`, `500ms`. Returns milliseconds.
pub(crate) fn parse_duration(text: &str) -> Option<u64> {
    let mut rest = text;
    let mut total = 0u64;
    while !rest.is_empty() {
        let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
        let number: u64 = rest[..digits].parse().ok()?;
        rest = &rest[digits..];
        let letters = rest.bytes().take_while(u8::is_ascii_alphabetic).count();
        let unit = match &rest[..letters] {
            "ms" => 1,
            "s" => 1_000,
            "m" => 60_000,
            "h" => 3_600_000,
            "d" => 86_400_000,
            "w" => 7 * 86_400_000,
            _ => return None,
        };
        rest = &rest[letters..];
        total = total.checked_add(number.checked_mul(unit)?)?;
    }
    (!text.is_empty()).then_some(total)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_read_back_as_written() {
        let time = Time(1_736_951_422_123);
        assert_eq!(time.to_milli(), "2025-01-15T14:30:22.123Z");
        assert_eq!(time.to_second(), "2025-01-15T14:30:22Z");
        assert_eq!(time.to_stamp(), "20250115T143022Z");
        assert_eq!(Time::parse("2025-01-15T14:30:22.123Z"), Some(time));
    }

    #[test]
    fn durations_need_units() {
        assert_eq!(parse_duration("7d"), Some(604_800_000));
        assert_eq!(parse_duration("1h30m"), Some(5_400_000));
        for bad in ["", "7", "d", "7x", "-1d", "99999999999999999999d"] {
            assert_eq!(parse_duration(bad), None, "{bad}");
        }
    }
}
