//! The journal: every event of a run, one JSON object per line, with a sequence number and a
//! checksum.
//!
//! **Invariant:** a line counts only if it is complete and its checksum is correct. A bad tail is
//! the result of a crash and is cut before anything is appended. A bad line with good ones after
//! it, or a complete line that this version does not understand, is damage and is never skipped
//! silently.

use std::borrow::Cow;

use serde::Deserialize;

use crate::base::digest::sha256;
use crate::base::json;
use crate::base::time::Time;
use crate::engine::Event;

/// An event, its sequence number and its time. In a line, their fields are on one level.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Entry {
    pub seq: u64,
    pub at: Time,
    pub event: Event,
}

impl Entry {
    /// Returns the entry as one JSON object.
    pub(crate) fn to_json(&self) -> String {
        let Entry { seq, at, event } = self;
        let event = json::to_tagged("event", event).expect("an event is always JSON");
        let at = serde_json::to_string(at).expect("a time is always JSON");
        format!("{{\"seq\":{seq},\"at\":{at},{}", &event[1..])
    }
}

/// The fields of a line that every event has.
#[derive(Deserialize)]
struct Head<'a> {
    seq: u64,
    at: Time,
    #[serde(borrow)]
    event: Cow<'a, str>,
}

/// Content of a journal file.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Journal {
    pub entries: Vec<Entry>,
    /// Length of the good part, in bytes.
    pub good_len: u64,
    /// The first line that cannot be the result of a crash of this program.
    pub damage: Option<Damage>,
}

#[derive(Debug, PartialEq)]
pub(crate) struct Damage {
    pub line: usize,
    pub reason: &'static str,
}

/// Result of decoding one line.
enum Line {
    Good(Box<Entry>),
    /// The checksum is correct, so the line is as it was written, but by an unknown program
    /// version.
    Foreign,
    Bad,
}

const SUM_LEN: usize = 8;
/// Maximum sequence number of an event.
pub(crate) const LAST_SEQ: u64 = u64::MAX / 2;
/// `,"sum":"01234567"}` without the newline.
const TRAILER_LEN: usize = 8 + SUM_LEN + 2;

/// Returns one line of the journal, including the newline.
pub(crate) fn encode(entry: &Entry) -> Vec<u8> {
    let mut line = entry.to_json().into_bytes();
    line.pop();
    let sum = sum(&line);
    line.extend_from_slice(format!(",\"sum\":\"{sum}\"}}\n").as_bytes());
    line
}

/// Returns the beginning of a digest: enough to distinguish a torn line from a complete one.
fn sum(bytes: &[u8]) -> String {
    let mut digest = sha256(bytes);
    digest.truncate(SUM_LEN);
    digest
}

fn decode(line: &[u8]) -> Line {
    let Some(line) = line.strip_suffix(b"\n") else { return Line::Bad };
    let Some(cut) = line.len().checked_sub(TRAILER_LEN) else { return Line::Bad };
    let (head, trailer) = line.split_at(cut);
    if trailer != format!(",\"sum\":\"{}\"}}", sum(head)).as_bytes() {
        return Line::Bad;
    }
    let read = serde_json::from_slice::<Head>(line).and_then(|Head { seq, at, event }| {
        json::from_tagged(&event, line).map(|event| Entry { seq, at, event })
    });
    match read {
        // No run gets that far, and a run could not continue from there.
        Ok(entry) if entry.seq <= LAST_SEQ => Line::Good(Box::new(entry)),
        _ => Line::Foreign,
    }
}

/// Reads a journal up to the first line that cannot be trusted.
pub(crate) fn read(bytes: &[u8]) -> Journal {
    const CHANGED: &str = "it is not as it was written";
    let mut journal = Journal::default();
    let mut bad = None;
    let mut offset = 0;
    for (number, line) in (1..).zip(bytes.split_inclusive(|byte| *byte == b'\n')) {
        offset += line.len() as u64;
        match decode(line) {
            Line::Good(entry) if bad.is_none() && journal.is_next(&entry) => {
                journal.entries.push(*entry);
                journal.good_len = offset;
            }
            Line::Good(_) => {
                let line = bad.unwrap_or(number);
                journal.damage = Some(Damage { line, reason: CHANGED });
                return journal;
            }
            Line::Foreign => {
                let reason = "it was written by another version of this program";
                journal.damage = Some(Damage { line: number, reason });
                return journal;
            }
            Line::Bad => _ = bad.get_or_insert(number),
        }
    }
    journal
}

impl Journal {
    /// Returns true if `entry` directly follows the last one. A gap means that entries are missing.
    fn is_next(&self, entry: &Entry) -> bool {
        self.entries.last().is_none_or(|last| last.seq.checked_add(1) == Some(entry.seq))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::ids::{Attempt, StepPath};

    fn entry(seq: u64) -> Entry {
        let event = Event::Launched {
            step: StepPath::top(&format!("Step{seq}")),
            attempt: Attempt::FIRST,
            task: None,
        };
        Entry { seq, at: Time(1_000 * seq as i64 + 1), event }
    }

    fn journal(seqs: &[u64]) -> Vec<u8> {
        seqs.iter().flat_map(|seq| encode(&entry(*seq))).collect()
    }

    #[test]
    fn what_was_written_is_read() {
        let bytes = journal(&[1, 2, 3]);
        let read = read(&bytes);
        assert_eq!(read.entries, [entry(1), entry(2), entry(3)]);
        assert_eq!((read.good_len, read.damage), (bytes.len() as u64, None));
    }

    #[test]
    fn a_torn_tail_is_cut_at_every_byte() {
        let bytes = journal(&[1, 2, 3]);
        let two = journal(&[1, 2]).len();
        for cut in two..bytes.len() {
            let read = read(&bytes[..cut]);
            assert_eq!(read.entries.len(), 2, "cut at {cut}");
            assert_eq!((read.good_len, read.damage), (two as u64, None));
        }
    }

    #[test]
    fn a_line_of_another_version_is_damage_even_at_the_end() {
        for event in [r#""beamed_up""#, r#""opened","step":"a.b""#] {
            let mut bytes = journal(&[1]);
            let line = format!(r#"{{"seq":2,"at":"2025-01-15T14:30:22Z","event":{event}"#);
            let sum = sum(line.as_bytes());
            bytes.extend_from_slice(format!("{line},\"sum\":\"{sum}\"}}\n").as_bytes());
            let damage = read(&bytes).damage.unwrap();
            assert_eq!(damage.line, 2, "{event}");
            assert!(damage.reason.contains("another version"), "{event}");
        }
    }

    #[test]
    fn a_bad_line_before_good_ones_is_damage() {
        let mut bytes = journal(&[1, 2, 3]);
        let middle = journal(&[1]).len() + 10;
        bytes[middle] ^= 1;
        assert_eq!(read(&bytes).damage.unwrap().line, 2);
        assert_eq!(read(&journal(&[1, 3, 4])).damage.unwrap().line, 2, "a gap is damage too");
    }
}
