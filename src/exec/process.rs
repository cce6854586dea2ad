//! Other processes, as shown by `/proc` and pidfds.
//!
//! Everything read here may be outdated immediately; a process that is gone is `None`.

use std::fs::{self, File};
use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::path::Path;
use std::sync::OnceLock;

use nix::libc;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::Signal;

use super::MARK;

pub(super) type Pid = i32;

/// A handle to one process. It never refers to another process that reuses the pid.
#[derive(Debug)]
pub(super) struct Process {
    pub(super) pid: Pid,
    fd: OwnedFd,
}

impl Process {
    pub(super) fn open(pid: Pid) -> io::Result<Process> {
        // SAFETY: takes two integers; a result of 0 or more is a new descriptor without an owner.
        let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: see above.
        Ok(Process { pid, fd: unsafe { OwnedFd::from_raw_fd(fd as i32) } })
    }

    /// Sends a signal. A process that is gone is not an error.
    pub(super) fn signal(&self, signal: Signal) {
        let no_info = std::ptr::null::<libc::siginfo_t>();
        // SAFETY: the descriptor is open; a null siginfo is allowed and means a plain `kill`.
        unsafe {
            let fd = self.fd.as_raw_fd();
            libc::syscall(libc::SYS_pidfd_send_signal, fd, signal as i32, no_info, 0);
        }
    }

    /// Returns true once the process has exited, reaped or not.
    pub(super) fn is_gone(&self) -> bool {
        let mut fds = [PollFd::new(self.fd.as_fd(), PollFlags::POLLIN)];
        poll(&mut fds, PollTimeout::ZERO).is_ok_and(|ready| ready > 0)
    }
}

impl AsFd for Process {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Fields of `/proc/<pid>/stat`.
#[derive(Debug)]
pub(super) struct Stat {
    /// True for a zombie.
    pub(super) ended: bool,
    /// True if the process is exiting: it no longer runs code and has no environment, but is not
    /// yet a zombie.
    pub(super) ending: bool,
    pub(super) parent: Pid,
    pub(super) group: Pid,
    pub(super) session: Pid,
    /// Start time in clock ticks after boot.
    pub(super) started: u64,
}

pub(super) fn stat(pid: Pid) -> Option<Stat> {
    // One line of at most 52 numbers. Read it in one call: a scan of all processes does this a
    // thousand times, and `fs::read` would start with 32 bytes.
    let mut line = [0; 1280];
    let length = File::open(format!("/proc/{pid}/stat")).ok()?.read(&mut line).ok()?;
    let bytes = &line[..length];
    // The name is in parentheses and may contain any character, including parentheses.
    let after_name = bytes.iter().rposition(|byte| *byte == b')')? + 2;
    let text = std::str::from_utf8(bytes.get(after_name..)?).ok()?;
    let fields: Vec<&str> = text.split(' ').collect();
    // If only the main thread has ended, the process still runs although it is shown as a zombie.
    let whole = fields.get(17)?.parse::<u32>().ok()? <= 1;
    let ended = whole && matches!(*fields.first()?, "Z" | "X" | "x");
    let flags: u32 = fields.get(6)?.parse().ok()?;
    Some(Stat {
        ended,
        ending: whole && !ended && flags & PF_EXITING != 0,
        parent: fields.get(1)?.parse().ok()?,
        group: fields.get(2)?.parse().ok()?,
        session: fields.get(3)?.parse().ok()?,
        started: fields.get(19)?.parse().ok()?,
    })
}

/// A kernel flag in `/proc/<pid>/stat`.
const PF_EXITING: u32 = 4;

/// Returns the value of [`MARK`] in a process's environment.
pub(super) fn mark(pid: Pid) -> Option<Vec<u8>> {
    let environ = fs::read(format!("/proc/{pid}/environ")).ok()?;
    let value =
        |entry: &[u8]| Some(entry.strip_prefix(MARK.as_bytes())?.strip_prefix(b"=")?.to_vec());
    environ.split(|byte| *byte == 0).find_map(value)
}

/// Returns the children of a process.
pub(super) fn children(pid: Pid) -> Vec<Pid> {
    if !lists_children() {
        return pids().filter(|child| stat(*child).is_some_and(|s| s.parent == pid)).collect();
    }
    let threads = numbers(format!("/proc/{pid}/task").as_ref());
    threads.flat_map(|thread| thread_children(pid, thread)).collect()
}

/// Returns the children of this process's main thread. They include all adopted processes, because
/// the kernel assigns orphans to the first living thread.
pub(super) fn children_of_main_thread() -> Vec<Pid> {
    let own = own_pid();
    if lists_children() { thread_children(own, own) } else { children(own) }
}

fn thread_children(pid: Pid, thread: Pid) -> Vec<Pid> {
    let list = fs::read_to_string(format!("/proc/{pid}/task/{thread}/children"));
    list.unwrap_or_default().split_ascii_whitespace().filter_map(|pid| pid.parse().ok()).collect()
}

/// Returns false on kernels built without these lists.
fn lists_children() -> bool {
    static LISTS: OnceLock<bool> = OnceLock::new();
    *LISTS.get_or_init(|| Path::new("/proc/thread-self/children").exists())
}

/// Returns every process that is visible to this one.
pub(super) fn pids() -> impl Iterator<Item = Pid> {
    numbers("/proc".as_ref())
}

fn numbers(dir: &Path) -> impl Iterator<Item = Pid> + use<> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

pub(super) fn own_pid() -> Pid {
    std::process::id() as Pid
}

/// Returns the clock ticks since boot, comparable to [`Stat::started`].
pub(super) fn ticks() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: writes one timespec, which lives on our stack.
    unsafe { libc::clock_gettime(libc::CLOCK_BOOTTIME, &mut now) };
    // SAFETY: reads a system constant.
    let per_second = unsafe { libc::sysconf(libc::_SC_CLK_TCK) }.max(1) as u64;
    now.tv_sec as u64 * per_second + now.tv_nsec as u64 * per_second / 1_000_000_000
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_can_be_read() {
        let stat = stat(own_pid()).unwrap();
        assert_eq!(stat.parent, nix::unistd::getppid().as_raw());
        assert!(!stat.ended && stat.group > 0 && stat.started <= ticks());
        assert!(!Process::open(own_pid()).unwrap().is_gone());
    }

    #[test]
    fn a_pid_that_is_not_there_is_nothing() {
        assert!(stat(0).is_none() && mark(0).is_none() && children(0).is_empty());
        assert!(Process::open(0).is_err());
    }
}
