//! A child that serves until it is asked to end, and never outlives this process.
//!
//! Its standard input is a pipe that nothing is ever written to. However this process ends, the
//! kernel closes the pipe; the child watches for that and ends itself with everything it has
//! started. A parent-death signal would do only half of it: it must be requested between `fork` and
//! `exec`, which `posix_spawn` does not support, and a child that is killed cannot end its own
//! children.

use std::ffi::OsString;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, ChildStderr, ChildStdin, Stdio};
use std::sync::{Mutex, PoisonError};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::Signal;

use super::process::{Pid, Process};
use super::{How, children, start};

/// A long-running child process.
pub(crate) struct Daemon {
    handle: Process,
    child: Mutex<Option<Child>>,
    /// Write end of the child's stdin. Open as long as the child may live.
    _leash: Option<ChildStdin>,
}

impl Daemon {
    /// Starts the child in its own process group, so that Ctrl-C on a terminal does not reach it.
    /// The caller reads its stderr.
    pub(crate) fn start(
        program: &Path,
        arguments: &[OsString],
    ) -> io::Result<(Daemon, Option<ChildStderr>)> {
        Daemon::start_without(program, arguments, &[])
    }

    /// Does the same, but removes `variables` from the environment.
    pub(crate) fn start_without(
        program: &Path,
        arguments: &[OsString],
        variables: &[&str],
    ) -> io::Result<(Daemon, Option<ChildStderr>)> {
        let mut command = start::command(program);
        command.args(arguments).process_group(0);
        for name in variables {
            command.env_remove(name);
        }
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = children::spawn(&mut command)?;
        let handle = Process::open(child.id() as Pid).inspect_err(|_| {
            let _ = child.kill();
            let _ = children::reap(&mut child);
        })?;
        let (leash, stderr) = (child.stdin.take(), child.stderr.take());
        Ok((Daemon { handle, child: Mutex::new(Some(child)), _leash: leash }, stderr))
    }

    /// Asks the child to end (SIGTERM), or to hurry (SIGINT). The signals differ because two
    /// signals of one kind may be merged.
    pub(crate) fn ask(&self, hurry: bool) {
        self.handle.signal(if hurry { Signal::SIGINT } else { Signal::SIGTERM });
    }

    /// Blocks until the child has ended.
    pub(crate) fn await_end(&self) {
        while !self.handle.is_gone() {
            let mut fds = [PollFd::new(self.handle.as_fd(), PollFlags::POLLIN)];
            let _ = poll(&mut fds, PollTimeout::NONE);
        }
    }

    /// Reaps the child after its end, reaps dead orphans it left to this process, and returns how
    /// it ended.
    pub(crate) fn bury(&self) -> io::Result<How> {
        let child = self.child.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(mut child) = child else { return Ok(How::Stopped) };
        let status = children::reap(&mut child)?;
        children::orphans();
        Ok(match (status.code(), status.signal()) {
            (Some(code), _) => How::Exited(code),
            (None, signal) => How::Killed(signal.unwrap_or(0)),
        })
    }
}
