//! Runs one child: one `poll` loop over its pipes, its end and the stop request.
//!
//! The end of a child is detected on its pidfd, never on its pipes: processes that outlive it may
//! hold them open forever.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ExitStatus};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, killpg};

use super::groups::{self, Noted};
use super::guard;
use super::hunt::Hunt;
use super::pipes::Pipes;
use super::process::{Pid, Process, ticks};
use super::{Capture, Ended, How, Order, StartError, Stop, Sweep, children, start};

/// Time to wait for output of processes that outlive the child: since the last output, and in
/// total.
const QUIET: Duration = Duration::from_millis(200);
const QUIET_IN_ALL: Duration = Duration::from_secs(2);
/// Time for a killed child to die before it is abandoned.
const DEATH: Duration = Duration::from_secs(10);
/// Interval of repeated kills: a killed process may be forking.
const AGAIN: Duration = Duration::from_millis(50);
/// Time for processes left by an agent to clean up.
const SURVIVORS_GRACE: Duration = Duration::from_millis(500);

/// Runs a child to its end. Fails only if it could not be started or its pipes could not be served;
/// the captures report their own write errors.
pub(crate) fn run(
    order: &Order,
    out: &mut Capture,
    err: &mut Capture,
    stop: &Stop,
) -> Result<Ended, StartError> {
    if stop.level() > 0 {
        let took = Duration::ZERO;
        return Ok(Ended { how: How::Stopped, survivors: 0, cut_off: false, took });
    }
    let mut job = Job::start(order, out, err, stop)?;
    job.attend()?;
    let took = job.began.elapsed();
    let how = job.reap()?;
    let survivors = job.count_out()?;
    if survivors > 0 && job.leaves() {
        job.noted.stays();
    }
    job.drain()?;
    Ok(Ended { how, survivors, cut_off: job.pipes.are_open(), took })
}

/// The progress of ending the child from here.
#[derive(Clone, Copy)]
enum Phase {
    Running,
    /// Asked to end; killed at this time.
    Asked(Instant),
    /// Killed; abandoned at this time.
    Killed(Instant),
}

struct Job<'a> {
    order: &'a Order<'a>,
    stop: &'a Stop,
    /// The level of `stop` that has been handled.
    heeded: u8,
    child: Option<Child>,
    noted: Noted,
    pid: Pid,
    handle: Process,
    pipes: Pipes<'a>,
    phase: Phase,
    /// Number of bytes received, and the time when the last ones arrived.
    heard: (u64, Instant),
    /// The reason why it was ended from here, if it was.
    cause: Option<How>,
    began: Instant,
    began_ticks: u64,
}

impl<'a> Job<'a> {
    fn start(
        order: &'a Order<'a>,
        out: &'a mut Capture,
        err: &'a mut Capture,
        stop: &'a Stop,
    ) -> Result<Job<'a>, StartError> {
        let (began, began_ticks) = (Instant::now(), ticks());
        let mut child = start::start(order)?;
        let pid = child.id() as Pid;
        let handle = Process::open(pid).inspect_err(|_| discard(&mut child))?;
        Ok(Job {
            order,
            stop,
            heeded: 0,
            noted: groups::note(pid, !order.confine.is_empty(), order.mark),
            pid,
            handle,
            pipes: Pipes::new(&mut child, order.stdin, out, err),
            child: Some(child),
            phase: Phase::Running,
            heard: (0, began),
            cause: None,
            began,
            began_ticks,
        })
    }

    /// Serves the child until it has exited or is abandoned.
    fn attend(&mut self) -> io::Result<()> {
        while !self.wait()? {
            let (now, level) = (Instant::now(), self.stop.level());
            if guard::due(self.began).is_some_and(|at| now >= at) {
                guard::start_guard();
            }
            if self.pipes.taken() > self.heard.0 {
                self.heard = (self.pipes.taken(), now);
            }
            let late = self.deadline().is_some_and(|at| now >= at);
            let silent = self.patience().is_some_and(|at| now >= at);
            match self.phase {
                Phase::Running if level > 0 => self.begin_end(How::Stopped, level, now),
                Phase::Running if late => self.begin_end(How::TimedOut, level, now),
                Phase::Running if silent => self.begin_end(How::Silent, level, now),
                Phase::Asked(kill_at) if now >= kill_at || level > 1 => self.kill(now),
                Phase::Killed(until) if now >= until => return Ok(()),
                Phase::Killed(_) => _ = self.hunt().strike(),
                _ => {}
            }
            self.heeded = level;
        }
        Ok(())
    }

    fn deadline(&self) -> Option<Instant> {
        self.began.checked_add(self.order.timeout?)
    }

    /// Returns the time when the child will have been silent for too long.
    fn patience(&self) -> Option<Instant> {
        self.heard.1.checked_add(self.order.idle?.get()?)
    }

    /// Serves the pipes until the child has exited (returns true) or something else is due.
    fn wait(&mut self) -> io::Result<bool> {
        let due = match self.phase {
            Phase::Running => {
                let due = self.deadline().into_iter().chain(self.patience());
                due.chain(guard::due(self.began)).min()
            }
            Phase::Asked(kill_at) => Some(kill_at),
            Phase::Killed(_) => Some(Instant::now() + AGAIN),
        };
        let above = self.stop.above(self.heeded);
        self.pipes.turn(&[self.handle.as_fd()], above, due)
    }

    fn begin_end(&mut self, cause: How, level: u8, now: Instant) {
        self.cause = Some(cause);
        if level > 1 {
            return self.kill(now);
        }
        self.signal_group(Signal::SIGTERM);
        self.signal_group(Signal::SIGCONT);
        self.hunt().ask_others();
        self.phase = Phase::Asked(now.checked_add(self.order.grace).unwrap_or(now + DEATH));
    }

    fn kill(&mut self, now: Instant) {
        // First the tree, frozen and complete; then processes that were forked into the group
        // meanwhile.
        self.hunt().strike();
        self.signal_group(Signal::SIGKILL);
        self.phase = Phase::Killed(now + DEATH);
    }

    /// Call it only before the child is reaped: until then its pid cannot become another group's.
    fn signal_group(&self, signal: Signal) {
        let _ = killpg(nix::unistd::Pid::from_raw(self.pid), signal);
    }

    fn hunt(&self) -> Hunt<'a> {
        Hunt::of_child(self.order.mark, self.pid)
    }

    fn reap(&mut self) -> io::Result<How> {
        let Some(mut child) = self.child.take() else {
            return Ok(How::Stopped);
        };
        if !self.handle.is_gone() {
            children::abandon(child);
            return Ok(self.cause.unwrap_or(How::Stopped));
        }
        let status = children::reap(&mut child)?;
        Ok(self.cause.unwrap_or_else(|| how(status)))
    }

    /// Ends the processes that outlived the child, or counts them if they may stay.
    fn count_out(&mut self) -> io::Result<usize> {
        let hunt = self.hunt().without_child(self.began_ticks);
        match self.phase {
            Phase::Running if self.leaves() => Ok(hunt.look(false).alive.len()),
            Phase::Running => Ok(hunt.end(SURVIVORS_GRACE)),
            Phase::Asked(kill_at) => {
                let asked = self.linger(&hunt, kill_at)?;
                Ok(asked.max(hunt.end(Duration::ZERO)))
            }
            Phase::Killed(_) => Ok(hunt.end(Duration::ZERO)),
        }
    }

    /// Returns true if processes that outlive the child are left running.
    fn leaves(&self) -> bool {
        matches!(self.phase, Phase::Running) && self.order.sweep == Sweep::OnStop
    }

    /// Gives the processes that got SIGTERM together with the child the same time to end
    /// themselves.
    fn linger(&mut self, hunt: &Hunt, kill_at: Instant) -> io::Result<usize> {
        let mut most = 0;
        while Instant::now() < kill_at && self.stop.level() < 2 {
            let found = hunt.look(false);
            if found.is_none() {
                break;
            }
            most = most.max(found.alive.len());
            let handles: Vec<BorrowedFd> = found.processes().map(AsFd::as_fd).collect();
            // Without a process to watch, something has just changed: search again.
            let soon = Instant::now() + Duration::from_millis(1);
            let due = if handles.is_empty() { soon } else { kill_at };
            self.pipes.turn(&handles, self.stop.above(self.heeded.max(1)), Some(due))?;
        }
        Ok(most)
    }

    /// Reads the rest of the pipes. If a survivor holds them open, waits only a little.
    fn drain(&mut self) -> io::Result<()> {
        self.pipes.close_stdin();
        let end = Instant::now() + QUIET_IN_ALL;
        let mut quiet_end = Instant::now() + QUIET;
        while self.pipes.are_open() {
            let before = self.pipes.taken();
            self.pipes.turn(&[], self.stop.above(self.heeded), Some(quiet_end.min(end)))?;
            let now = Instant::now();
            if self.pipes.taken() > before {
                quiet_end = now + QUIET;
            }
            if now >= quiet_end.min(end) || self.stop.level() > self.heeded {
                break;
            }
        }
        Ok(())
    }
}

/// Ends the child after an error or a panic too.
impl Drop for Job<'_> {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            self.hunt().strike();
            discard(&mut child);
        }
    }
}

/// Ends a child that cannot be watched.
fn discard(child: &mut Child) {
    let _ = child.kill();
    let _ = children::reap(child);
}

fn how(status: ExitStatus) -> How {
    match (status.code(), status.signal()) {
        (Some(code), _) => How::Exited(code),
        (None, signal) => How::Killed(signal.unwrap_or(0)),
    }
}
