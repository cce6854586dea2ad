//! A detached child: the caller starts it, may wait for it for a while, and it outlives this
//! process.
//!
//! It writes its output to files, so no process needs to read it.

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::Child;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::process::{Pid, Process};
use super::{children, start};

/// The standard streams of a child.
pub(crate) struct Streams {
    pub input: File,
    pub output: File,
    pub errors: File,
}

pub(crate) struct Errand {
    handle: Process,
    child: Option<Child>,
}

impl Errand {
    /// Starts the child in `directory` and in its own process group, so that Ctrl-C does not reach
    /// it.
    pub(crate) fn start(
        program: &Path,
        arguments: &[OsString],
        directory: &Path,
        streams: Streams,
    ) -> io::Result<Errand> {
        let mut command = start::command(program);
        command.args(arguments).current_dir(directory).process_group(0);
        command.stdin(streams.input).stdout(streams.output).stderr(streams.errors);
        let mut child = children::spawn(&mut command)?;
        let handle = Process::open(child.id() as Pid).inspect_err(|_| {
            let _ = child.kill();
            let _ = children::reap(&mut child);
        })?;
        Ok(Errand { handle, child: Some(child) })
    }

    /// Waits at most `time` for the child's end. Returns its exit code, or `None` if it still runs.
    pub(crate) fn wait(&mut self, time: Duration) -> Option<i32> {
        let until = Instant::now() + time;
        while !self.handle.is_gone() {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return None;
            }
            let left = PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX);
            let mut fds = [PollFd::new(self.handle.as_fd(), PollFlags::POLLIN)];
            let _ = poll(&mut fds, left);
        }
        let status = children::reap(self.child.as_mut()?).ok()?;
        self.child = None;
        Some(status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0)))
    }
}

impl Drop for Errand {
    /// Lets the child continue; when it ends, it is reaped as an orphan.
    fn drop(&mut self) {
        if let Some(child) = self.child.take() {
            children::abandon(child);
        }
    }
}
