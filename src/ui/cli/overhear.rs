//! What the agents of a worker say and do, read from their logs as these grow, for a terminal.
//!
//! Nothing depends on it: what is missed here is in the log, which `orchestrate logs` shows.
//!
//! **Invariant:** on a terminal no line is wider than it is, so that none is broken within a word,
//! and what is drawn below can be erased.

use std::collections::HashMap;
use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom};
use std::os::unix::fs::MetadataExt as _;

use crate::fleet::worker::Doing;
use crate::provider::Stream;
use crate::ui::top::text::{cut, printed, width, wrap};

/// So much of a log is read at a time.
const PIECE: u64 = 1 << 20;

/// The agents that are listened to, by their tasks.
#[derive(Default)]
pub struct Overheard(HashMap<String, Ear>);

/// How far one log was read.
struct Ear {
    stream: Stream,
    inode: u64,
    read: u64,
}

impl Ear {
    fn of(doing: &Doing) -> Ear {
        Ear { stream: Stream::new(doing.adapter), inode: 0, read: 0 }
    }

    /// The next turns; nothing once the log is read to its end.
    fn hear(&mut self, doing: &Doing) -> Option<Vec<String>> {
        let mut file = File::open(&doing.logs[0]).ok()?;
        let about = file.metadata().ok()?;
        if about.ino() != self.inode || about.len() < self.read {
            // Another execution began a log of its own.
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
    /// Begins to listen. A log that lies there is of somebody before.
    pub fn begin(&mut self, doing: &Doing) {
        if doing.adapter.is_stream() {
            let mut ear = Ear::of(doing);
            if let Ok(about) = doing.logs[0].metadata() {
                (ear.inode, ear.read) = (about.ino(), about.len());
            }
            self.0.insert(doing.id.clone(), ear);
        }
    }

    /// What was said since, line by line.
    pub fn since(&mut self, doing: &Doing) -> Vec<String> {
        let Some(ear) = self.0.get_mut(&doing.id) else { return Vec::new() };
        let mut lines = Vec::new();
        while let Some(turns) = ear.hear(doing) {
            let all = turns.iter().flat_map(|turn| turn.lines());
            lines.extend(all.filter(|line| !line.trim().is_empty()).map(str::to_owned));
        }
        lines
    }

    /// The rest of it.
    pub fn end(&mut self, doing: &Doing) -> Vec<String> {
        let lines = self.since(doing);
        self.0.remove(&doing.id);
        lines
    }
}

/// Where this many columns are left for it, a text stands beside its head, else below it.
const ROOM: usize = 36;
/// How far it stands in there.
const INDENT: &str = "    ";

/// What was said, laid out for a terminal of so many columns: who says it once, and beside it or
/// below it the lines, broken between words.
pub fn laid_out(head: &str, lines: &[String], columns: usize) -> String {
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
