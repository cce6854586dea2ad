//! The machine that a thread runs on: its clocks, randomness, threads, and identity.
//!
//! **Invariant:** outside of tests this is the machine itself, at no extra cost. In a test, a
//! thread can get a simulated machine, which all other code then uses unchanged.

use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

#[cfg(test)]
pub(crate) use simulated::{Lock, Simulated, enter, is_simulated, try_lock, with};

/// Returns the current time of a monotonic clock.
#[inline]
pub(crate) fn instant() -> Instant {
    #[cfg(test)]
    if let Some(instant) = with(|host| host.instant()) {
        return instant;
    }
    Instant::now()
}

/// Returns the time since `then`.
#[inline]
pub(crate) fn since(then: Instant) -> Duration {
    instant().saturating_duration_since(then)
}

/// Returns the milliseconds since 1970 by the wall clock.
#[inline]
#[expect(clippy::disallowed_methods, reason = "this is where time enters")]
pub(crate) fn wall_ms() -> i64 {
    #[cfg(test)]
    if let Some(now) = with(|host| host.wall_ms()) {
        return now;
    }
    chrono::Utc::now().timestamp_millis()
}

/// Returns the milliseconds of a monotonic clock that continues while the machine sleeps.
pub(crate) fn uptime_ms() -> u64 {
    #[cfg(test)]
    if let Some(now) = with(|host| host.uptime_ms()) {
        return now;
    }
    nix::time::clock_gettime(nix::time::ClockId::CLOCK_BOOTTIME)
        .map(|time| time.tv_sec() as u64 * 1000 + time.tv_nsec() as u64 / 1_000_000)
        .unwrap_or(0)
}

/// Sleeps for `time`.
pub(crate) fn nap(time: Duration) {
    #[cfg(test)]
    if with(|host| host.wait(time, &mut || false)).is_some() {
        return;
    }
    std::thread::sleep(time);
}

/// Waits by calling `real`. A simulated machine instead waits until `ready` returns true or `time`
/// is over.
#[inline]
pub(crate) fn wait(time: Duration, ready: &mut dyn FnMut() -> bool, real: impl FnOnce()) {
    #[cfg(test)]
    if with(|host| host.wait(time, ready)).is_some() {
        return;
    }
    let _ = (time, ready);
    real();
}

/// Signals a change that a thread of this process may wait for. Has an effect only in a simulation.
#[inline]
pub(crate) fn poke() {
    #[cfg(test)]
    with(|host| host.poke());
}

/// Returns a random number from the system's source of randomness, which is suitable for secrets.
pub(crate) fn chance() -> u64 {
    #[cfg(test)]
    if let Some(drawn) = with(|host| host.chance()) {
        return drawn;
    }
    // The standard library's hash maps need the same source: without it, no program starts.
    getrandom::u64().expect("the system has a source of randomness")
}

/// Returns the pid of this process.
pub(crate) fn pid() -> u32 {
    #[cfg(test)]
    if let Some(pid) = with(|host| host.pid()) {
        return pid;
    }
    std::process::id()
}

/// Locks a mutex that is held only for moments by code that does not panic. Ignores poisoning:
/// after a panic, the data is still consistent.
#[inline]
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    #[cfg(test)]
    if is_simulated() {
        return simulated::lock(mutex);
    }
    mutex.lock().unwrap_or_else(|poison| poison.into_inner())
}

/// A thread of this process.
pub(crate) enum Thread {
    Real(std::thread::JoinHandle<()>),
    #[cfg(test)]
    Simulated(u64),
}

/// Starts a thread.
pub(crate) fn spawn(work: impl FnOnce() + Send + 'static) -> Thread {
    #[cfg(test)]
    if is_simulated() {
        return Thread::Simulated(with(|host| host.spawn(Box::new(work))).unwrap_or_default());
    }
    Thread::Real(std::thread::spawn(work))
}

impl Thread {
    /// Wakes the thread if it is parked.
    pub(crate) fn wake(&self) {
        match self {
            Thread::Real(thread) => thread.thread().unpark(),
            #[cfg(test)]
            Thread::Simulated(_) => poke(),
        }
    }

    /// Waits until the thread ends.
    pub(crate) fn join(self) {
        match self {
            Thread::Real(thread) => drop(thread.join()),
            #[cfg(test)]
            Thread::Simulated(thread) => simulated::join(thread),
        }
    }
}

/// Waits until another thread wakes this one, or `time` is over.
pub(crate) fn park(time: Duration, is_over: &dyn Fn() -> bool) {
    wait(time, &mut || is_over(), || std::thread::park_timeout(time));
}

#[cfg(test)]
mod simulated {
    use std::cell::RefCell;
    use std::path::Path;
    use std::sync::{Arc, Mutex, MutexGuard, TryLockError};
    use std::time::{Duration, Instant};

    /// Operations of a simulated machine, for a thread of one of its processes.
    pub(crate) trait Simulated {
        fn instant(&self) -> Instant;
        fn wall_ms(&self) -> i64;
        fn uptime_ms(&self) -> u64;
        /// Lets other threads run until `ready` returns true or the time is over. Checks `ready`
        /// again after a poke.
        fn wait(&self, time: Duration, ready: &mut dyn FnMut() -> bool);
        fn poke(&self);
        fn chance(&self) -> u64;
        fn pid(&self) -> u32;
        fn boot_id(&self) -> String;
        /// Returns the start time of a process of this machine.
        fn start_time(&self, pid: u32) -> Option<u64>;
        fn spawn(&self, work: Box<dyn FnOnce() + Send>) -> u64;
        fn is_over(&self, thread: u64) -> bool;
        /// Takes a kernel lock of this machine. The error is the pid of the holder.
        fn try_lock(&self, path: &Path) -> Result<(), u32>;
        fn unlock(&self, path: &Path);
    }

    thread_local! {
        static HERE: RefCell<Option<Arc<dyn Simulated>>> = const { RefCell::new(None) };
    }

    /// Makes this thread run on a simulated machine from now on, or on the real one again.
    pub(crate) fn enter(host: Option<Arc<dyn Simulated>>) {
        HERE.with(|here| *here.borrow_mut() = host);
    }

    pub(crate) fn is_simulated() -> bool {
        HERE.with(|here| here.borrow().is_some())
    }

    /// Calls `ask` with the simulated machine, if this thread runs on one.
    pub(crate) fn with<T>(ask: impl FnOnce(&dyn Simulated) -> T) -> Option<T> {
        let host = HERE.with(|here| here.borrow().clone())?;
        Some(ask(&*host))
    }

    pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
        loop {
            match mutex.try_lock() {
                Ok(guard) => return guard,
                Err(TryLockError::Poisoned(poison)) => return poison.into_inner(),
                // The holder waits for the disk.
                Err(TryLockError::WouldBlock) => super::nap(Duration::from_micros(200)),
            }
        }
    }

    pub(super) fn join(thread: u64) {
        let over = || with(|host| host.is_over(thread)).unwrap_or(true);
        while !over() {
            with(|host| host.wait(Duration::from_millis(10), &mut || over()));
        }
    }

    /// A lock of a simulated kernel.
    #[derive(Debug)]
    pub(crate) struct Lock(std::path::PathBuf);

    /// Takes a lock. The error is the pid of the holder.
    pub(crate) fn try_lock(path: &Path) -> Result<Lock, u32> {
        let taken = with(|host| host.try_lock(path)).unwrap_or(Ok(()));
        taken.map(|()| Lock(path.to_owned()))
    }

    impl Drop for Lock {
        fn drop(&mut self) {
            with(|host| host.unlock(&self.0));
        }
    }
}
