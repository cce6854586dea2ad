//! A stop request that `poll` can wait for and a signal handler can make.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::{EfdFlags, EventFd};

/// Asks running children to stop: level 1 gracefully, level 2 at once. Clones share the request,
/// which is never withdrawn.
#[derive(Clone, Debug)]
pub(crate) struct Stop {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    level: AtomicU8,
    /// One per level, readable forever once that level is reached, so that every waiter sees it.
    reached: [EventFd; 2],
}

impl Stop {
    pub(crate) fn new() -> io::Result<Stop> {
        let event = || EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK);
        let reached = [event()?, event()?];
        Ok(Stop { shared: Arc::new(Shared { level: AtomicU8::new(0), reached }) })
    }

    /// Raises the level; never lowers it. Safe to call in a signal handler.
    pub(crate) fn request(&self, level: u8) {
        let before = self.shared.level.fetch_max(level.min(2), Ordering::SeqCst);
        for event in &self.shared.reached[usize::from(before)..usize::from(level.clamp(before, 2))]
        {
            // A write fails only if the counter is full, and then the event is readable too.
            let _ = event.write(1);
        }
    }

    pub(crate) fn level(&self) -> u8 {
        self.shared.level.load(Ordering::SeqCst)
    }

    /// Sleeps until `time` has passed or a stop is requested. Returns true if the whole time
    /// passed.
    pub(crate) fn sleep(&self, time: Duration) -> bool {
        self.wait_above(0, time) == 0
    }

    /// Waits until the level is above `level` or `time` has passed. Returns the current level.
    pub(crate) fn wait_above(&self, level: u8, time: Duration) -> u8 {
        let end = Instant::now() + time;
        while self.level() <= level {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            let mut fds = self.above(level).map(|fd| [PollFd::new(fd, PollFlags::POLLIN)]);
            let _ = poll(fds.as_mut().map_or(&mut [], |fds| &mut fds[..]), timeout(left));
        }
        self.level()
    }

    /// Returns a descriptor that is readable once the level is above `level`, or `None` for level
    /// 2.
    pub(super) fn above(&self, level: u8) -> Option<BorrowedFd<'_>> {
        self.shared.reached.get(usize::from(level)).map(|event| event.as_fd())
    }
}

/// Rounds up, because a wait that ends too early would be repeated in a busy loop.
pub(super) fn timeout(left: Duration) -> PollTimeout {
    let millis = left.as_nanos().div_ceil(1_000_000).min(i32::MAX as u128) as i32;
    PollTimeout::try_from(millis).unwrap_or(PollTimeout::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_level_rises_and_never_falls() {
        let stop = Stop::new().unwrap();
        assert!(stop.sleep(Duration::from_millis(1)));
        stop.request(2);
        stop.request(1);
        assert_eq!(stop.clone().level(), 2);
        assert!(!stop.sleep(Duration::from_secs(60)));
    }

    #[test]
    fn each_level_wakes_once() {
        let stop = Stop::new().unwrap();
        let readable = |level| {
            let mut fds = [PollFd::new(stop.above(level).unwrap(), PollFlags::POLLIN)];
            poll(&mut fds, PollTimeout::ZERO).unwrap() == 1
        };
        assert!(!readable(0));
        stop.request(1);
        assert!(readable(0) && !readable(1));
        stop.request(9);
        assert!(readable(1) && stop.level() == 2);
    }
}
