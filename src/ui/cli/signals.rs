//! Signals: the first one stops everything, the second hurries.
//!
//! The handler does nothing but raise a [`Stop`], which whoever waits can see; so no thread has
//! to wait for signals, and a run of one short step does not pay for one.

use std::sync::Arc;
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};
use std::time::Duration;

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use super::Failure;
use crate::exec::{self, Stop};

/// What a program hears of signals.
pub struct Signals {
    pub stop: Stop,
    first: Arc<AtomicI32>,
}

impl Signals {
    /// The exit code of a program that was stopped.
    pub fn code(&self) -> u8 {
        let signal = match self.first.load(Ordering::SeqCst) {
            0 => SIGTERM,
            signal => signal,
        };
        128 + u8::try_from(signal).unwrap_or(0)
    }
}

impl Signals {
    /// Takes the end of standard input for a second signal: whoever started this process holds
    /// the other end, and is gone.
    pub fn heed_leash(&self) {
        let stop = self.stop.clone();
        std::thread::spawn(move || {
            let _ = std::io::copy(&mut std::io::stdin().lock(), &mut std::io::sink());
            stop.request(2);
        });
    }
}

/// How long children may take to end themselves.
const GRACE: Duration = Duration::from_secs(5);

/// For verbs that may be broken off anywhere, since the next call goes on: at the first signal,
/// what they have at work is ended, and then this process. A `git` that went on alone would hold
/// the locks that it was given.
pub fn end_with_children() -> Result<(), Failure> {
    let signals = listen()?;
    std::thread::spawn(move || {
        while signals.stop.sleep(Duration::from_secs(3600)) {}
        exec::end_all(&signals.stop, GRACE);
        std::process::exit(i32::from(signals.code()));
    });
    Ok(())
}

/// Begins to listen, to adopt orphans of children, and to let children die with this process.
pub fn listen() -> Result<Signals, Failure> {
    let failed = |error: std::io::Error| Failure::new(1, format!("cannot listen: {error}"));
    let stop = Stop::new().map_err(failed)?;
    let first = Arc::new(AtomicI32::new(0));
    let count = Arc::new(AtomicU32::new(0));
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        let (asked, came, count) = (stop.clone(), first.clone(), count.clone());
        let heard = move || {
            let _ = came.compare_exchange(0, signal, Ordering::SeqCst, Ordering::SeqCst);
            // Handlers of two signals may run at once: each must count, so that the second hurries.
            let before = count.fetch_add(1, Ordering::SeqCst);
            asked.request(if before == 0 { 1 } else { 2 });
        };
        // SAFETY: the handler touches atomics and writes to an eventfd, nothing else.
        unsafe { signal_hook::low_level::register(signal, heard) }.map_err(failed)?;
    }
    exec::become_subreaper().map_err(failed)?;
    // Without its own path, which is next to impossible, it is as if it had no guard.
    if let Ok(program) = std::env::current_exe() {
        exec::guard_children(program);
    }
    Ok(Signals { stop, first })
}
