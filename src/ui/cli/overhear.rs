//! What the agents of a worker say and do, read from their logs as these grow, for a terminal.
//!
//! Nothing depends on it: what is missed here is in the log, which `orchestrate logs` shows.

use std::collections::HashMap;
use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom};
use std::os::unix::fs::MetadataExt as _;

use crate::fleet::worker::Doing;
use crate::provider::Stream;

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
