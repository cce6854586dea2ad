//! The journal: every event of a run, one JSON object to a line, numbered and summed.
//!
//! **Invariant:** a line counts only if it is whole and its sum is right. A bad tail is what a
//! crash left and is cut before anything is appended; a bad line with good ones after it is
//! damage, and is never passed over in silence.

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::engine::Event;
use crate::time::Time;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Entry {
    pub seq: u64,
    pub at: Time,
    #[serde(flatten)]
    pub event: Event,
}

/// What a journal file holds.
#[derive(Debug, Default, PartialEq)]
pub struct Journal {
    pub entries: Vec<Entry>,
    /// Where the good part ends.
    pub good_len: u64,
    /// The first line that is bad although good ones follow it.
    pub damaged_line: Option<usize>,
}

const SUM_LEN: usize = 8;
/// `,"sum":"01234567"}` without the newline.
const TRAILER_LEN: usize = 8 + SUM_LEN + 2;

/// One line of the journal, newline included.
pub fn encode(entry: &Entry) -> Vec<u8> {
    let mut line = serde_json::to_vec(entry).expect("an event is always JSON");
    line.pop();
    let sum = sum(&line);
    line.extend_from_slice(format!(",\"sum\":\"{sum}\"}}\n").as_bytes());
    line
}

fn sum(bytes: &[u8]) -> String {
    let digest = Sha256::digest(bytes);
    digest[..SUM_LEN / 2].iter().map(|byte| format!("{byte:02x}")).collect()
}

fn decode(line: &[u8]) -> Option<Entry> {
    let (head, trailer) = line.split_at_checked(line.len().checked_sub(TRAILER_LEN)?)?;
    let wanted = format!(",\"sum\":\"{}\"}}", sum(head));
    (trailer == wanted.as_bytes()).then(|| serde_json::from_slice(line).ok())?
}

/// Reads a journal as far as it can be believed.
pub fn read(bytes: &[u8]) -> Journal {
    let mut journal = Journal::default();
    let mut bad_line = None;
    let mut offset = 0;
    for (number, line) in bytes.split_inclusive(|byte| *byte == b'\n').enumerate() {
        offset += line.len() as u64;
        let whole = line.strip_suffix(b"\n").and_then(decode);
        let follows = |entry: &Entry| journal.entries.last().is_none_or(|l| entry.seq == l.seq + 1);
        match whole.filter(|entry| bad_line.is_some() || follows(entry)) {
            Some(_) if bad_line.is_some() => {
                journal.damaged_line = bad_line;
                return journal;
            }
            Some(entry) => {
                journal.entries.push(entry);
                journal.good_len = offset;
            }
            None => bad_line = bad_line.or(Some(number + 1)),
        }
    }
    journal
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(seq: u64) -> Entry {
        let event = Event::Launched { step: format!("Step{seq}"), attempt: 1 };
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
        assert_eq!((read.good_len, read.damaged_line), (bytes.len() as u64, None));
    }

    #[test]
    fn a_torn_tail_is_cut_at_every_byte() {
        let bytes = journal(&[1, 2, 3]);
        let two = journal(&[1, 2]).len();
        for cut in two..bytes.len() {
            let read = read(&bytes[..cut]);
            assert_eq!(read.entries.len(), 2, "cut at {cut}");
            assert_eq!((read.good_len, read.damaged_line), (two as u64, None));
        }
    }

    #[test]
    fn a_bad_line_before_good_ones_is_damage() {
        let mut bytes = journal(&[1, 2, 3]);
        let middle = journal(&[1]).len() + 10;
        bytes[middle] ^= 1;
        assert_eq!(read(&bytes).damaged_line, Some(2));
        assert_eq!(read(&journal(&[1, 3, 4])).damaged_line, Some(2), "a gap is damage too");
    }
}
