//! Finds the latest output of a running execution.

use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use super::one_line;
use crate::agent::{Kind, Stream};
use crate::disk::fs;

/// Returns the last line in one of these logs; for an agent with streamed output, its last message
/// or action.
pub(crate) fn last_said(logs: &[PathBuf], adapter: Kind) -> Option<String> {
    if !adapter.is_stream() {
        return logs.iter().find_map(|log| last_line(log));
    }
    let end = end_of(logs.first()?, 256 << 10)? + "\n";
    let turn = Stream::new(adapter).push(end.as_bytes()).pop()?.to_string();
    turn.lines().next_back().map(one_line)
}

/// Returns the last line of a log that is being written.
fn last_line(path: &Path) -> Option<String> {
    let text = end_of(path, 512)?;
    text.lines().rev().find(|line| !line.trim().is_empty()).map(one_line)
}

fn end_of(path: &Path, bytes: u64) -> Option<String> {
    let mut file = fs::open(path).ok()?;
    let len = file.metadata().ok()?.len();
    file.seek(SeekFrom::Start(len.saturating_sub(bytes))).ok()?;
    let mut end = Vec::new();
    file.take(bytes).read_to_end(&mut end).ok()?;
    Some(String::from_utf8_lossy(&end).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_thing_said_is_shown_and_not_the_event() {
        let dir = tempfile::tempdir().unwrap();
        let transcript =
            Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/transcripts/claude/tool-error.jsonl");
        let text = std::fs::read_to_string(transcript).unwrap();
        let log = dir.path().join("x.stdout");
        let logs = [log.clone(), dir.path().join("x.stderr")];
        assert_eq!(last_said(&logs, Kind::Claude), None);
        let shown = |adapter: Kind, lines: usize| {
            let text: String = text.split_inclusive('\n').take(lines).collect();
            std::fs::write(&log, text).unwrap();
            last_said(&logs, adapter).unwrap_or_default()
        };
        assert_eq!(shown(Kind::Claude, 2), "Calling Bash.");
        assert_eq!(shown(Kind::Claude, 3), "-> Bash: exit 7");
        assert_eq!(shown(Kind::Claude, 4), "<- failed: Exit code 7");
        assert!(shown(Kind::Plain, 2).ends_with('}'));
    }
}
