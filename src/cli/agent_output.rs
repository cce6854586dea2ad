//! Reads the messages and actions of a worker's agents from their growing logs, for a terminal.
//!
//! No other code depends on it: output that is missed here is in the log (`orchestrate logs`).
//!
//! **Invariant:** no line is wider than the terminal. The terminal therefore breaks no line within
//! a word, and the status lines drawn below can be erased.

use std::collections::HashMap;
use std::io::{Read as _, Seek as _, SeekFrom};
use std::os::unix::fs::MetadataExt as _;

use crate::agent::Stream;
use crate::base::text::{cut, printed, width, wrap};
use crate::disk::fs;
use crate::fleet::worker::Doing;

/// Maximum number of bytes to read from a log at a time.
const PIECE: u64 = 1 << 20;

/// Read positions in the logs of running agents, by task id.
#[derive(Default)]
pub(crate) struct Overheard(HashMap<String, Ear>);

/// Read position in one log.
struct Ear {
    stream: Stream,
    inode: u64,
    read: u64,
}

impl Ear {
    fn of(doing: &Doing) -> Ear {
        Ear { stream: Stream::new(doing.adapter), inode: 0, read: 0 }
    }

    /// Reads the next turns. Returns `None` at the end of the log, or if it cannot be read.
    fn hear(&mut self, doing: &Doing) -> Option<Vec<String>> {
        let mut file = fs::open(&doing.logs[0]).ok()?;
        let about = file.metadata().ok()?;
        if about.ino() != self.inode || about.len() < self.read {
            // Another execution has created a new log.
            *self = Ear { inode: about.ino(), ..Ear::of(doing) };
        }
        file.seek(SeekFrom::Start(self.read)).ok()?;
        let mut bytes = Vec::new();
        file.take(PIECE).read_to_end(&mut bytes).ok()?;
        self.read += bytes.len() as u64;
        let turns = self.stream.push(&bytes);
        (!bytes.is_empty()).then(|| turns.iter().map(ToString::to_string).collect())
    }
}

impl Overheard {
    /// Starts to read a task's log. Skips existing content: it belongs to an earlier execution.
    pub(crate) fn begin(&mut self, doing: &Doing) {
        if doing.adapter.is_stream() {
            let mut ear = Ear::of(doing);
            if let Ok(about) = doing.logs[0].metadata() {
                (ear.inode, ear.read) = (about.ino(), about.len());
            }
            self.0.insert(doing.id.clone(), ear);
        }
    }

    /// Returns the lines since the last call.
    pub(crate) fn since(&mut self, doing: &Doing) -> Vec<String> {
        let Some(ear) = self.0.get_mut(&doing.id) else { return Vec::new() };
        let mut lines = Vec::new();
        while let Some(turns) = ear.hear(doing) {
            let all = turns.iter().flat_map(|turn| turn.lines());
            lines.extend(all.filter(|line| !line.trim().is_empty()).map(str::to_owned));
        }
        lines
    }

    /// Returns the remaining lines and stops reading the log.
    pub(crate) fn end(&mut self, doing: &Doing) -> Vec<String> {
        let lines = self.since(doing);
        self.0.remove(&doing.id);
        lines
    }
}

/// Minimum width of text next to its head. If less is left, the text goes below the head.
const ROOM: usize = 36;
/// Indentation of text below its head.
const INDENT: &str = "    ";

/// Formats an agent's lines for a terminal with `columns` columns: the head once, and the lines
/// next to it or below it, wrapped between words.
pub(crate) fn laid_out(head: &str, lines: &[String], columns: usize) -> String {
    const BAR: &str = "| ";
    let taken = width(head) + 1 + BAR.len();
    let beside = columns.saturating_sub(taken) >= ROOM;
    let (first, others) = match beside {
        true => (format!("{head} {BAR}"), " ".repeat(taken - BAR.len()) + BAR),
        false => (INDENT.to_owned(), INDENT.to_owned()),
    };
    let room = columns.saturating_sub(width(&others)).max(1);
    let mut out = if beside { String::new() } else { cut(head, columns) + "\n" };
    let lines = lines.iter().flat_map(|line| wrap(&printed(line), room));
    for (index, line) in lines.enumerate() {
        let before = if index == 0 { &first } else { &others };
        out.push_str(format!("{before}{line}").trim_end());
        out.push('\n');
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn laid(lines: &[&str], columns: usize) -> String {
        let lines: Vec<String> = lines.iter().map(|line| (*line).to_owned()).collect();
        laid_out("12:00:00 qa   t", &lines, columns)
    }

    #[test]
    fn what_is_said_fits_the_terminal() {
        let lines = ["one two three four five six seven eight nine ten", "\tx\x1b[2Jy"];
        assert_eq!(
            laid(&lines, 56),
            "12:00:00 qa   t | one two three four five six seven\n\
             \x20               | eight nine ten\n\
             \x20               |     xy\n"
        );
        assert_eq!(
            laid(&lines, 30),
            "12:00:00 qa   t\n    one two three four five\n    six seven eight nine ten\n\
             \x20       xy\n"
        );
        let wide = laid(&[&"漢字".repeat(40)], 21);
        assert!(wide.lines().all(|line| width(line) <= 21), "{wide}");
        assert_eq!(laid(&["abc"], 0), "\n    a\n    b\n    c\n", "it ends, whatever the width");
    }
}
