//! Signal handling: the first signal requests a stop, the second one speeds it up.
//!
//! The handler only raises a [`Stop`], which every waiting thread observes. No thread has to wait
//! for signals, so a run of one short step does not pay for one.

use std::sync::Arc;
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};
use std::time::Duration;

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use crate::exec::{self, Stop};
use crate::run::failure::Failure;

/// The signal state of this process.
pub(crate) struct Signals {
    pub stop: Stop,
    first: Arc<AtomicI32>,
}

impl Signals {
    /// Returns the exit code of a stopped process: 128 plus the first signal received.
    pub(crate) fn code(&self) -> u8 {
        let signal = match self.first.load(Ordering::SeqCst) {
            0 => SIGTERM,
            signal => signal,
        };
        128 + u8::try_from(signal).unwrap_or(0)
    }
}

impl Signals {
    /// Treats the end of standard input as a second signal. The parent process holds the other end
    /// of the pipe, so the end of input means that the parent is gone.
    pub(crate) fn heed_leash(&self) {
        let stop = self.stop.clone();
        std::thread::spawn(move || {
            let _ = std::io::copy(&mut std::io::stdin().lock(), &mut std::io::sink());
            stop.request(2);
        });
    }
}

/// Time that child processes get to exit by themselves.
const GRACE: Duration = Duration::from_secs(5);

/// Exits at the first signal, after terminating all child processes. For verbs that may stop at any
/// point because the next invocation continues the work. A `git` process that survived would keep
/// the locks that it was given.
pub(super) fn end_with_children() -> Result<(), Failure> {
    let signals = listen()?;
    std::thread::spawn(move || {
        while signals.stop.sleep(Duration::from_secs(3600)) {}
        exec::end_all(&signals.stop, GRACE);
        std::process::exit(i32::from(signals.code()));
    });
    Ok(())
}

/// Installs the signal handlers, makes this process the subreaper of its descendants, and makes
/// child processes die with this process.
pub(super) fn listen() -> Result<Signals, Failure> {
    let failed = |error: std::io::Error| Failure::failed(format!("cannot listen: {error}"));
    let stop = Stop::new().map_err(failed)?;
    let first = Arc::new(AtomicI32::new(0));
    let count = Arc::new(AtomicU32::new(0));
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        let (asked, came, count) = (stop.clone(), first.clone(), count.clone());
        let heard = move || {
            let _ = came.compare_exchange(0, signal, Ordering::SeqCst, Ordering::SeqCst);
            // Two handlers may run at the same time. Each must count, so that the second speeds up
            // the stop.
            let before = count.fetch_add(1, Ordering::SeqCst);
            asked.request(if before == 0 { 1 } else { 2 });
        };
        // SAFETY: the handler only uses atomics and writes to an eventfd.
        unsafe { signal_hook::low_level::register(signal, heard) }.map_err(failed)?;
    }
    exec::become_subreaper().map_err(failed)?;
    // If the executable's path is unknown (very unlikely), children run without a guard.
    if let Ok(program) = std::env::current_exe() {
        exec::guard_children(program);
    }
    Ok(Signals { stop, first })
}
