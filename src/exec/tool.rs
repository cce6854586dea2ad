//! Runs a tool to its end and returns its output, up to a limit.
//!
//! [`super::run`] is for commands of users, which may leave processes running. A tool does its work
//! and ends. It may hold a file in place of its stdin: a lock on that file then lasts as long as
//! the tool, even if this process is killed meanwhile. A tool that reads its stdin holds no file.

use std::fs::File;
use std::io::{self, ErrorKind, Read, Seek, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Stdio};
use std::time::Instant;

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::signal::{Signal, killpg};

use super::process::{Pid, Process};
use super::stop::{Stop, timeout};
use super::{How, Order, StartError, children, start};

/// The output of a tool.
#[derive(Clone, Debug)]
pub(crate) struct Said {
    pub how: How,
    pub out: Vec<u8>,
    pub err: Vec<u8>,
    /// False if it printed more than the limit.
    pub whole: bool,
}

/// Runs a tool until it ends, times out, or `stop` is requested. Keeps at most `limit` bytes of
/// each of its streams.
pub(crate) fn call(
    order: &Order,
    hold: Option<&File>,
    limit: usize,
    stop: Option<&Stop>,
) -> Result<Said, StartError> {
    let stdin = match (order.stdin, hold) {
        (Some(input), _) => Stdio::from(in_memory(input)?),
        (None, Some(file)) => Stdio::from(file.try_clone()?),
        (None, None) => Stdio::null(),
    };
    let mut child = start::start_on(order, stdin)?;
    let attended = attend(&mut child, order, limit, stop);
    if attended.is_err() {
        let _ = child.kill();
    }
    let status = children::reap(&mut child)?;
    let (cause, out, err) = attended?;
    let how = cause.unwrap_or_else(|| match (status.code(), status.signal()) {
        (Some(code), _) => How::Exited(code),
        (None, signal) => How::Killed(signal.unwrap_or(0)),
    });
    let whole = out.whole && err.whole;
    Ok(Said { how, out: out.bytes, err: err.bytes, whole })
}

/// Creates a file in memory, positioned at its start: unlike a pipe, it needs no writer.
fn in_memory(bytes: &[u8]) -> io::Result<File> {
    let mut file = File::from(memfd_create(c"input", MFdFlags::MFD_CLOEXEC)?);
    file.write_all(bytes)?;
    file.rewind()?;
    Ok(file)
}

/// Reads until the child has exited. Returns the reason why it was ended from here, if it was, and
/// its streams.
fn attend(
    child: &mut Child,
    order: &Order,
    limit: usize,
    stop: Option<&Stop>,
) -> io::Result<(Option<How>, Stream, Stream)> {
    let pid = child.id() as Pid;
    let handle = Process::open(pid)?;
    let mut out = Stream::new(child.stdout.take().map(OwnedFd::from), limit);
    let mut err = Stream::new(child.stderr.take().map(OwnedFd::from), limit);
    let signal = |signal| _ = killpg(nix::unistd::Pid::from_raw(pid), signal);
    let mut cause = None;
    let mut due = order.timeout.and_then(|limit| Instant::now().checked_add(limit));
    loop {
        // After the tool was asked to end, wait only for its end.
        let stopped = stop.filter(|_| cause.is_none()).and_then(|stop| stop.above(0));
        wait([out.fd(), err.fd(), Some(handle.as_fd()), stopped], due)?;
        // Check this first: everything printed before the end is then in the pipes.
        let gone = handle.is_gone();
        out.take()?;
        err.take()?;
        if gone {
            return Ok((cause, out, err));
        }
        let late = due.is_some_and(|due| Instant::now() >= due);
        let stops = cause.is_none() && stop.is_some_and(|stop| stop.level() > 0);
        if late || stops {
            // SIGTERM first, then SIGKILL.
            signal(if cause.is_some() { Signal::SIGKILL } else { Signal::SIGTERM });
            cause.get_or_insert(if stops { How::Stopped } else { How::TimedOut });
            due = Instant::now().checked_add(order.grace);
        }
    }
}

fn wait(fds: [Option<BorrowedFd>; 4], due: Option<Instant>) -> io::Result<()> {
    let watched = fds.iter().flatten().map(|fd| PollFd::new(*fd, PollFlags::POLLIN));
    let mut watched: Vec<PollFd> = watched.collect();
    let left = due.map(|due| due.saturating_duration_since(Instant::now()));
    match poll(&mut watched, left.map_or(PollTimeout::NONE, timeout)) {
        Ok(_) | Err(Errno::EINTR) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

/// The reading end of a pipe, and the bytes read from it.
struct Stream {
    pipe: Option<File>,
    bytes: Vec<u8>,
    limit: usize,
    whole: bool,
}

impl Stream {
    fn new(pipe: Option<OwnedFd>, limit: usize) -> Stream {
        // Non-blocking: a survivor may hold the other end open, and must not delay the caller.
        let _ = pipe.as_ref().map(|pipe| fcntl(pipe, FcntlArg::F_SETFL(OFlag::O_NONBLOCK)));
        Stream { pipe: pipe.map(File::from), bytes: Vec::new(), limit, whole: true }
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.pipe.as_ref().map(AsFd::as_fd)
    }

    /// Reads all available bytes.
    fn take(&mut self) -> io::Result<()> {
        let mut buffer = [0; 16 << 10];
        while let Some(pipe) = &mut self.pipe {
            match pipe.read(&mut buffer) {
                Ok(0) => self.pipe = None,
                Ok(count) => {
                    let kept = count.min(self.limit - self.bytes.len());
                    self.whole &= kept == count;
                    self.bytes.extend_from_slice(&buffer[..kept]);
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::time::Duration;

    use super::*;

    fn sh(script: &str) -> Vec<String> {
        ["sh", "-c", script].map(str::to_owned).to_vec()
    }

    #[test]
    fn both_streams_and_the_exit_code_are_told() {
        let argv = sh("echo out; echo err >&2; exit 3");
        let said = call(&Order::new(&argv, Path::new("/"), "tool"), None, 100, None).unwrap();
        assert_eq!(said.how, How::Exited(3));
        assert_eq!((said.out.as_slice(), said.err.as_slice()), (&b"out\n"[..], &b"err\n"[..]));
        assert!(said.whole);
    }

    #[test]
    fn one_reads_what_it_is_given() {
        let (argv, input) = (sh("wc -c"), vec![b'x'; 300_000]);
        let order = Order { stdin: Some(&input), ..Order::new(&argv, Path::new("/"), "tool") };
        assert_eq!(call(&order, None, 100, None).unwrap().out, b"300000\n");
    }

    #[test]
    fn output_past_the_limit_is_read_and_dropped() {
        let argv = sh("head -c 1000000 /dev/zero");
        let said = call(&Order::new(&argv, Path::new("/"), "tool"), None, 1000, None).unwrap();
        assert_eq!((said.how, said.out.len(), said.whole), (How::Exited(0), 1000, false));
    }

    #[test]
    fn one_that_takes_too_long_is_ended_even_if_it_does_not_want_to() {
        let argv = sh("trap '' TERM; echo in; while :; do sleep 1; done");
        let (timeout, grace) = (Some(Duration::from_millis(200)), Duration::from_millis(50));
        let order = Order { timeout, grace, ..Order::new(&argv, Path::new("/"), "tool") };
        let said = call(&order, None, 100, None).unwrap();
        assert_eq!((said.how, said.out.as_slice()), (How::TimedOut, &b"in\n"[..]));
    }

    #[test]
    fn one_that_waits_for_ever_is_stopped() {
        let argv = sh("echo in; exec sleep 1000");
        let stop = Stop::new().unwrap();
        stop.request(1);
        let order = Order::new(&argv, Path::new("/"), "tool");
        let said = call(&order, None, 100, Some(&stop)).unwrap();
        assert_eq!(said.how, How::Stopped);
    }

    #[test]
    fn a_lock_lasts_as_long_as_the_tool_that_holds_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lock");
        let file = File::create(&path).unwrap();
        file.try_lock().unwrap();
        // What it leaves behind holds the lock on, as an orphan does after a kill.
        let wait = "(while [ ! -e end ]; do sleep 0.01; done) >/dev/null 2>&1 &";
        let argv = sh(&format!("exec 3<&0; {wait} echo left"));
        call(&Order::new(&argv, dir.path(), "tool"), Some(&file), 100, None).unwrap();
        drop(file);
        let again = File::open(&path).unwrap();
        assert!(again.try_lock().is_err());
        std::fs::write(dir.path().join("end"), "").unwrap();
        while again.try_lock().is_err() {
            std::thread::yield_now();
        }
    }
}
