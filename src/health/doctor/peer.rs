//! The second process: responds to the tests of the first one.

use std::fs;
use std::io::{self, ErrorKind};
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use nix::errno::Errno;

use super::talk::{self, BLOCK, DRAFTS, END, FAILED, LATE, PING, PONG, POST, Reads, Side};
use crate::disk::rename;
use crate::exec::Stop;

/// Longer than the first process takes, so that only its death causes this timeout.
const PATIENCE: Duration = Duration::from_secs(15);

/// Responds in a directory where a first process waits, until that has no more tests.
pub(crate) fn serve(dir: &Path, stop: &Stop) -> io::Result<()> {
    let gone = AtomicBool::new(false);
    let side = Side { dir, stop, gone: &gone, until: Instant::now() + PATIENCE };
    renew(dir);
    // If the first process is on another machine, this is its only way to learn the reason.
    answer(&side).inspect_err(|error| drop(side.post(FAILED, &error.to_string())))
}

/// Lists the parent directories of one that another machine has just created: this machine may have
/// cached its absence.
fn renew(dir: &Path) {
    let mut above: Vec<_> = dir.ancestors().skip(1).collect();
    above.reverse();
    for dir in above {
        let dir = if dir.as_os_str().is_empty() { Path::new(".") } else { dir };
        let _ = fs::read_dir(dir).map(Iterator::count);
    }
}

fn answer(side: &Side) -> io::Result<()> {
    side.post("ready", &std::process::id())?;
    answer_pings(side)?;
    let go = side.hear("go")?;
    side.post("raced", &side.race(go, "there")?)?;
    side.hear::<()>("replacing")?;
    side.post("read", &read_replaced(side)?)?;
    side.hear::<()>("locking")?;
    side.post("tried", &talk::lock(&side.dir.join(talk::LOCKED))?.is_some())?;
    side.hear::<()>("looked")?;
    fs::write(side.path(DRAFTS, LATE), "")?;
    rename(&side.path(DRAFTS, LATE), &side.path(LATE, LATE))?;
    side.post("made", &())
}

fn answer_pings(side: &Side) -> io::Result<()> {
    side.wait("a ping", PING, side.until, |side| {
        for name in side.list(PING)?.into_iter().filter(|name| !name.starts_with('.')) {
            match rename(&side.path(PING, &name), &side.path(PONG, &name)) {
                Ok(()) if name == END => return Ok(Some(())),
                Ok(()) => {}
                // It was answered already, but the listing is stale.
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
        Ok(None)
    })
}

/// Reads a file repeatedly while the other side replaces it.
fn read_replaced(side: &Side) -> io::Result<Reads> {
    let path = side.dir.join(talk::REPLACED);
    let mut seen = Reads::default();
    while Instant::now() < side.until && side.stop.level() == 0 {
        // Also read after the last replacement, so that there is at least one read.
        let last = side.list(POST)?.iter().any(|name| name == talk::REPLACED);
        for _ in 0..16 {
            seen.reads += 1;
            match fs::read(&path) {
                Ok(bytes) => {
                    let whole = bytes.len() == BLOCK && bytes.iter().all(|b| *b == bytes[0]);
                    seen.torn += u64::from(!whole);
                }
                Err(error) if error.kind() == ErrorKind::NotFound => seen.missing += 1,
                // The server has dropped the old file; readers retry.
                Err(error) if error.raw_os_error() == Some(Errno::ESTALE as i32) => {}
                Err(error) => return Err(error),
            }
        }
        if last {
            return Ok(seen);
        }
    }
    Ok(seen)
}
