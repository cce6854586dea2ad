//! Reads the volume's clock, to compute the age of a member's heartbeat.
//!
//! **Invariant:** both times come from the volume, by the same kind of write. The clocks of two
//! machines are never compared. The times are only displayed; no decision depends on them.

use std::fs::OpenOptions;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use super::Queue;
use crate::disk;

impl Queue {
    /// Returns the current time of the volume's clock, in milliseconds since 1970. Writes a file,
    /// as a heartbeat is written, and reads its modification time.
    pub(crate) fn volume_now_ms(&self) -> io::Result<i64> {
        let probe = self.temporary();
        let now = self.disk.overwrite(&probe, b"\n").and_then(|()| written_ms(&probe));
        let _ = self.disk.remove(&probe);
        now
    }

    /// Returns the time of a member's last heartbeat, in milliseconds since 1970 by the volume's
    /// clock.
    pub(crate) fn beat_written_ms(&self, worker: &str) -> io::Result<i64> {
        written_ms(&self.layout.beats().join(worker))
    }
}

/// Returns the modification time of a file. Opens it, because a network client may answer a plain
/// `stat` from its cache.
fn written_ms(path: &Path) -> io::Result<i64> {
    let known = disk::open(path, OpenOptions::new().read(true))?.metadata()?;
    Ok(known.mtime() * 1000 + known.mtime_nsec() / 1_000_000)
}
