//! The members of a tortured fleet: processes that are started, frozen, and killed.

use std::fs::OpenOptions;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::schedule::{AGENTS, Defects};
use crate::shim;
use crate::world::{World, programs};

/// The role of a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    Coordinator,
    /// A worker of one of [`AGENTS`].
    Worker(usize),
}

/// Returns a command with defects. With `machines`, its process sees no other process and no locks,
/// as on a machine of its own.
pub(crate) fn command(
    world: &World,
    arguments: &[&str],
    defects: Defects,
    machines: bool,
) -> Command {
    let mut command = match machines {
        false => world.orchestrate(arguments),
        true => {
            let mut command = world.command("unshare");
            command.args(["-U", "-r", "-p", "-f", "--mount-proc", "--kill-child"]);
            command.arg(programs().join("orchestrate")).args(arguments);
            shim::without_locks(&mut command);
            command
        }
    };
    if defects.clock_ms != 0 {
        shim::set_clock(&mut command, defects.clock_ms);
    }
    if let Some(faults) = defects.disk {
        shim::fail(&mut command, &world.path("").canonicalize().expect("a path"), faults);
    }
    command
}

/// Returns the name of a member's log, which lies beside the workspace.
pub(crate) fn log(number: usize) -> String {
    format!("member{number}.log")
}

/// A place in the fleet, taken by one process after the other.
pub(crate) struct Member {
    role: Role,
    number: usize,
    machines: bool,
    child: Option<Child>,
    pub has_failing_disk: bool,
    pub is_frozen: bool,
}

impl Member {
    pub(crate) fn new(number: usize, role: Role, machines: bool) -> Member {
        Member { role, number, machines, child: None, has_failing_disk: false, is_frozen: false }
    }

    /// Starts a process that appends its output to a log beside the workspace.
    pub(crate) fn start(&mut self, world: &World, defects: Defects) {
        let arguments: &[&str] = match self.role {
            Role::Coordinator => &["coordinator"],
            Role::Worker(agent) => &["worker", AGENTS[agent], "--concurrency", "2"],
        };
        let log = world.outside(&log(self.number));
        let log = OpenOptions::new().create(true).append(true).open(log).expect("a log");
        let mut command = command(world, arguments, defects, self.machines);
        command.stdout(log.try_clone().expect("a log")).stderr(log).process_group(0);
        self.child = Some(command.spawn().expect("a member starts"));
        self.has_failing_disk = defects.disk.is_some();
        self.is_frozen = false;
    }

    /// Returns true if its process runs.
    pub(crate) fn is_up(&mut self) -> bool {
        self.child.as_mut().is_some_and(|child| matches!(child.try_wait(), Ok(None)))
    }

    fn signal(&self, signal: Signal) {
        if let Some(pid) = self.pid() {
            let _ = kill(Pid::from_raw(pid), signal);
        }
    }

    /// The member's own process: the child, or with `machines` the only child of the child.
    fn pid(&self) -> Option<i32> {
        let pid = self.child.as_ref()?.id();
        if !self.machines {
            return Some(pid.cast_signed());
        }
        let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).ok()?;
        children.split_ascii_whitespace().next()?.parse().ok()
    }

    /// Ends it as a power cut would.
    pub(crate) fn kill(&mut self) {
        if self.is_up() {
            self.signal(Signal::SIGKILL);
        }
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
        self.is_frozen = false;
    }

    pub(crate) fn freeze(&mut self) {
        self.signal(Signal::SIGSTOP);
        self.is_frozen = true;
    }

    pub(crate) fn thaw(&mut self) {
        if self.is_frozen && self.is_up() {
            self.signal(Signal::SIGCONT);
        }
        self.is_frozen = false;
    }

    /// Asks it to end. A second request also gives back the tasks that it holds.
    pub(crate) fn ask_to_end(&mut self) {
        if self.is_up() {
            self.signal(Signal::SIGTERM);
        }
    }

    /// Waits for its end. Returns false if it does not end in time.
    pub(crate) fn await_end(&mut self, time: Duration) -> bool {
        let began = Instant::now();
        while self.is_up() {
            if began.elapsed() > time {
                return false;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        true
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        self.kill();
    }
}
