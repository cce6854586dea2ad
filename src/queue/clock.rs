//! The volume's own clock: how long ago a member wrote its heartbeat.
//!
//! **Invariant:** both times come from the volume, by the same kind of write. The clocks of two
//! machines are never compared. Nothing is decided by them: they are shown to people.

use std::fs::OpenOptions;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use super::FsQueue;
use crate::disk;

impl FsQueue {
    /// What the volume's clock says now, in milliseconds since 1970: writes a file, as a heartbeat
    /// is written, and reads its time.
    pub fn volume_now_ms(&self) -> io::Result<i64> {
        let probe = self.temporary();
        let now = self.disk.overwrite(&probe, b"\n").and_then(|()| written_ms(&probe));
        let _ = self.disk.remove(&probe);
        now
    }

    /// When a member wrote its last heartbeat, in milliseconds since 1970 by the volume's clock.
    pub fn beat_written_ms(&self, worker: &str) -> io::Result<i64> {
        written_ms(&self.layout.beats().join(worker))
    }
}

/// When a file was last written. Opens it, because a network client may answer a plain `stat` from
/// its cache.
fn written_ms(path: &Path) -> io::Result<i64> {
    let known = disk::open(path, OpenOptions::new().read(true))?.metadata()?;
    Ok(known.mtime() * 1000 + known.mtime_nsec() / 1_000_000)
}
