//! The three pipes of a child, served in one `poll`.

use std::cell::RefCell;
use std::fs::File;
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::process::{Child, ChildStdin};
use std::time::Instant;

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::Capture;
use super::stop::timeout;

const READ_BYTES: usize = 128 << 10;
/// Size of the pipe for a child that fills its first one. Not larger, because the kernel counts the
/// pages of a user's pipes and eventually makes all new ones tiny.
const PIPE_BYTES: i32 = 256 << 10;

pub(super) struct Pipes<'a> {
    out: Source<'a>,
    err: Source<'a>,
    stdin: Option<Feed<'a>>,
}

impl<'a> Pipes<'a> {
    pub(super) fn new(
        child: &mut Child,
        stdin: Option<&'a [u8]>,
        out: &'a mut Capture,
        err: &'a mut Capture,
    ) -> Pipes<'a> {
        let feed = child.stdin.take().zip(stdin).map(|(pipe, rest)| Feed::new(pipe, rest));
        Pipes {
            out: Source::new(child.stdout.take().map(OwnedFd::from), out),
            err: Source::new(child.stderr.take().map(OwnedFd::from), err),
            // Most inputs fit into the pipe, and then the child sees their end at once.
            stdin: feed.and_then(Feed::go_on),
        }
    }

    /// Waits once and serves the pipes that are ready. Returns true if one of `handles` is ready.
    pub(super) fn turn(
        &mut self,
        handles: &[BorrowedFd],
        stop: Option<BorrowedFd>,
        due: Option<Instant>,
    ) -> io::Result<bool> {
        let mut fds = Vec::with_capacity(handles.len() + 4);
        let out = watch(&mut fds, self.out.fd(), PollFlags::POLLIN);
        let err = watch(&mut fds, self.err.fd(), PollFlags::POLLIN);
        let stdin = self.stdin.as_ref().map(|feed| feed.pipe.as_fd());
        let stdin = watch(&mut fds, stdin, PollFlags::POLLOUT);
        watch(&mut fds, stop, PollFlags::POLLIN);
        let first = fds.len();
        fds.extend(handles.iter().map(|fd| PollFd::new(*fd, PollFlags::POLLIN)));
        let due = due.into_iter().chain(self.out.capture.due()).chain(self.err.capture.due()).min();
        let left = due.map(|due| due.saturating_duration_since(Instant::now()));
        match poll(&mut fds, left.map_or(PollTimeout::NONE, timeout)) {
            Ok(_) => {}
            // The results of `poll` are undefined then.
            Err(Errno::EINTR) => return Ok(false),
            Err(error) => return Err(error.into()),
        }
        let [out, err, stdin] = [out, err, stdin].map(|at| at.and_then(|at| seen(&fds[at])));
        let ended = fds[first..].iter().any(|fd| seen(fd).is_some());
        self.out.take(out)?;
        self.err.take(err)?;
        self.out.capture.catch_up();
        self.err.capture.catch_up();
        if stdin.is_some() {
            self.stdin = self.stdin.take().and_then(Feed::go_on);
        }
        Ok(ended)
    }

    pub(super) fn close_stdin(&mut self) {
        self.stdin = None;
    }

    /// Returns true while a process may still write.
    pub(super) fn are_open(&self) -> bool {
        self.out.pipe.is_some() || self.err.pipe.is_some()
    }

    /// Returns the number of bytes received.
    pub(super) fn taken(&self) -> u64 {
        self.out.taken + self.err.taken
    }
}

fn watch<'f>(
    fds: &mut Vec<PollFd<'f>>,
    fd: Option<BorrowedFd<'f>>,
    flags: PollFlags,
) -> Option<usize> {
    fds.push(PollFd::new(fd?, flags));
    Some(fds.len() - 1)
}

fn seen(fd: &PollFd) -> Option<PollFlags> {
    fd.revents().filter(|flags| !flags.is_empty())
}

/// The reading end of a pipe and the capture of its bytes.
struct Source<'a> {
    pipe: Option<File>,
    capture: &'a mut Capture,
    taken: u64,
    enlarged: bool,
}

thread_local! {
    static BUFFER: RefCell<Vec<u8>> = RefCell::new(vec![0; READ_BYTES]);
}

impl<'a> Source<'a> {
    fn new(pipe: Option<OwnedFd>, capture: &'a mut Capture) -> Source<'a> {
        Source { pipe: pipe.map(File::from), capture, taken: 0, enlarged: false }
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.pipe.as_ref().map(AsFd::as_fd)
    }

    /// Reads the available bytes. The pipe is in blocking mode, but does not block after `poll`
    /// reported it as ready.
    fn take(&mut self, ready: Option<PollFlags>) -> io::Result<()> {
        let Some(ready) = ready else { return Ok(()) };
        // Without a writer no read blocks, so read everything that is left.
        while self.take_once()? && ready.contains(PollFlags::POLLHUP) {}
        Ok(())
    }

    /// Returns false at the end.
    fn take_once(&mut self) -> io::Result<bool> {
        let Some(pipe) = &mut self.pipe else {
            return Ok(false);
        };
        let read = BUFFER.with_borrow_mut(|buffer| {
            let count = pipe.read(buffer)?;
            self.capture.push(&buffer[..count]);
            Ok(count)
        });
        match read {
            Ok(0) => self.pipe = None,
            Ok(count) => {
                self.taken += count as u64;
                self.enlarge(count);
            }
            Err(error) if io::Error::kind(&error) == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
        Ok(self.pipe.is_some())
    }

    fn enlarge(&mut self, count: usize) {
        if !self.enlarged && count >= 64 << 10 {
            self.enlarged = true;
            // A refusal only costs speed.
            let _ = self.pipe.as_ref().map(|pipe| fcntl(pipe, FcntlArg::F_SETPIPE_SZ(PIPE_BYTES)));
        }
    }
}

/// The writing end of a child's stdin and the bytes left to write.
struct Feed<'a> {
    pipe: ChildStdin,
    rest: &'a [u8],
}

impl<'a> Feed<'a> {
    fn new(pipe: ChildStdin, rest: &'a [u8]) -> Feed<'a> {
        let _ = fcntl(&pipe, FcntlArg::F_SETFL(OFlag::O_NONBLOCK));
        Feed { pipe, rest }
    }

    /// Writes as much as fits. Returns `None` if that was all, or if the child does not read it,
    /// which is not an error: the pipe is then closed.
    fn go_on(mut self) -> Option<Feed<'a>> {
        while !self.rest.is_empty() {
            match self.pipe.write(self.rest) {
                Ok(count) => self.rest = &self.rest[count..],
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Some(self),
                Err(_) => return None,
            }
        }
        None
    }
}
