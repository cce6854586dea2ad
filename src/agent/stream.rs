//! Splits output into lines for an adapter as it arrives.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::time::Duration;

use super::redact::shortened;
use super::{Adapter, End, Hide, Kind, Outcome, Silence, TURN_BYTES, Turn, Veil, Verdict, is_talk};
use crate::base::ansi;

/// The longest line that is read: it may contain the whole output of a tool.
const LINE_BYTES: usize = 64 << 20;
/// Number of turns to keep.
const NOTES: usize = 20;

/// The output of one run of a CLI, in any pieces.
pub(crate) struct Stream {
    adapter: Box<dyn Adapter>,
    veil: Veil,
    line: Vec<u8>,
    /// True if the line exceeds the limit; the rest of it is skipped.
    skipping: bool,
    /// True if an event was read.
    events: bool,
    notes: VecDeque<Turn>,
}

impl Stream {
    pub(crate) fn new(kind: Kind) -> Stream {
        Stream {
            adapter: kind.adapter(),
            veil: Veil::default(),
            line: Vec::new(),
            skipping: false,
            events: false,
            notes: VecDeque::new(),
        }
    }

    /// Creates a stream for output that contains secrets. They are redacted in all results except
    /// the answer, the conversation ID, and the turns of lines that are not events.
    pub(crate) fn hiding(kind: Kind, hide: Hide) -> Stream {
        Stream { veil: Veil::of(hide), ..Stream::new(kind) }
    }

    /// Returns the provider's ID of the conversation, once it has printed it.
    pub(crate) fn session(&self) -> Option<&str> {
        self.adapter.session()
    }

    /// Returns the meaning of a lack of output at this point.
    pub(crate) fn silence(&self) -> Silence {
        self.adapter.silence()
    }

    /// Processes the next bytes and returns the turns to display. Lines that are not events are
    /// returned unredacted, because a secret may span several of them.
    pub(crate) fn push(&mut self, bytes: &[u8]) -> Vec<Turn> {
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

    /// Ends the stream. A last line without a newline counts if it can be parsed.
    pub(crate) fn finish(mut self, end: &End) -> Outcome {
        if !self.line.is_empty() {
            self.end_line();
        }
        let end = &End { events: self.events, ..*end };
        let silence = self.adapter.silence();
        let mut outcome = self.adapter.finish(end, &self.veil);
        if let Cow::Owned(stripped) = ansi::strip(&outcome.text) {
            outcome.text = stripped;
        }
        if outcome.verdict == Verdict::Answered && outcome.is_empty() {
            let reason = "its answer is empty".into();
            outcome.verdict = Verdict::BackOff { reason, crowded: false };
        }
        if let (Verdict::Stopped { .. }, Some(limit)) = (&outcome.verdict, end.silent_for)
            && let Some(verdict) = of_silence(silence, limit)
        {
            outcome.verdict = verdict;
        }
        outcome.verdict = outcome.verdict.or_machine_fault(end);
        (outcome.notes, outcome.printed) = (self.notes.into(), end.printed());
        outcome.judged(end.now)
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
        let text = ansi::strip(&text);
        let Some(turns) = self.adapter.line(&text, &self.veil) else {
            return printed(&text).into_iter().collect();
        };
        self.events = true;
        for turn in &turns {
            if self.notes.len() == NOTES {
                self.notes.pop_front();
            }
            self.notes.push_back(turn.clone());
        }
        // Do not keep the buffer of one long line for all later lines.
        if line.capacity() <= 1 << 20 {
            self.line = line;
            self.line.clear();
        }
        turns
    }
}

/// Returns the verdict for a provider that was ended because of its silence.
fn of_silence(silence: Silence, limit: Duration) -> Option<Verdict> {
    let limit = limit.as_secs_f64();
    match silence {
        Silence::Working => None,
        Silence::Waiting => {
            let reason =
                format!("it printed nothing for {limit} s, and may wait for its service by itself");
            Some(Verdict::BackOff { reason, crowded: false })
        }
        Silence::AtLimit(said) => {
            let reason = format!("it waits for a limit by itself, {limit} s already: {said}");
            Some(Verdict::BackOff { reason, crowded: true })
        }
    }
}

/// Converts a line that is not an event into a turn.
fn printed(line: &str) -> Option<Turn> {
    is_talk(line).then(|| Turn::Printed(shortened(line.trim_end(), TURN_BYTES)))
}
