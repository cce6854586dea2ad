//! Output as it comes, cut into lines for an adapter.

use std::collections::VecDeque;

use super::veil::shortened;
use super::{Adapter, End, Hide, Kind, Outcome, TURN_BYTES, Turn, Veil, is_talk};

/// The longest line that is read: a tool's whole output may be in one.
const LINE_BYTES: usize = 64 << 20;
/// How many turns are kept.
const NOTES: usize = 20;

/// The output of one run of a command line, in whatever pieces it comes.
pub struct Stream {
    adapter: Box<dyn Adapter>,
    veil: Veil,
    line: Vec<u8>,
    /// The line is longer than any that is read; what is left of it is passed over.
    skipping: bool,
    notes: VecDeque<Turn>,
}

impl Stream {
    pub fn new(kind: Kind) -> Stream {
        Stream {
            adapter: kind.adapter(),
            veil: Veil::default(),
            line: Vec::new(),
            skipping: false,
            notes: VecDeque::new(),
        }
    }

    /// The same for output that has in it what nobody may see: all that comes of it but the answer
    /// and the name of the conversation is without that.
    pub fn hiding(kind: Kind, hide: Hide) -> Stream {
        Stream { veil: Veil::of(hide), ..Stream::new(kind) }
    }

    /// What the provider calls the conversation, once it said so.
    pub fn session(&self) -> Option<&str> {
        self.adapter.session()
    }

    /// Takes the next bytes, and tells what a person should see of them. Lines that are no events
    /// are told as they come; what nobody may see can go over several of them.
    pub fn push(&mut self, bytes: &[u8]) -> Vec<Turn> {
        let mut turns = Vec::new();
        let mut rest = bytes;
        while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
            self.extend(&rest[..end]);
            turns.extend(self.end_line());
            rest = &rest[end + 1..];
        }
        self.extend(rest);
        turns
    }

    /// Ends the stream. A last line without an end counts if it can be read.
    pub fn finish(mut self, end: &End) -> Outcome {
        if !self.line.is_empty() {
            self.end_line();
        }
        let outcome = self.adapter.finish(end, &self.veil);
        let verdict = outcome.verdict.not_before(end.now);
        let works_at = verdict.at();
        let verdict = verdict.within_a_day(end.now);
        Outcome { notes: self.notes.into(), printed: end.printed(), verdict, works_at, ..outcome }
    }

    fn extend(&mut self, part: &[u8]) {
        if self.skipping || self.line.len() + part.len() > LINE_BYTES {
            self.skipping = true;
            self.line = Vec::new();
            return;
        }
        self.line.extend_from_slice(part);
    }

    fn end_line(&mut self) -> Vec<Turn> {
        let line = std::mem::take(&mut self.line);
        if std::mem::take(&mut self.skipping) {
            return Vec::new();
        }
        let text = String::from_utf8_lossy(&line);
        let Some(turns) = self.adapter.line(&text, &self.veil) else {
            return printed(&text).into_iter().collect();
        };
        for turn in &turns {
            if self.notes.len() == NOTES {
                self.notes.pop_front();
            }
            self.notes.push_back(turn.clone());
        }
        // One long line must not keep its room for all that follow.
        if line.capacity() <= 1 << 20 {
            self.line = line;
            self.line.clear();
        }
        turns
    }
}

/// A line that is no event, as a turn.
fn printed(line: &str) -> Option<Turn> {
    is_talk(line).then(|| Turn::Printed(shortened(line.trim_end(), TURN_BYTES)))
}
