//! The members of a tortured fleet, as processes of their own.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::plot::{AGENTS, Temper};

/// What a member is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    Coordinator,
    /// A worker of one of [`AGENTS`].
    Worker(usize),
}

/// Starts programs in the workspace that is tortured.
#[derive(Clone)]
pub(crate) struct Stage {
    pub program: PathBuf,
    pub workspace: PathBuf,
    /// Logs lie here, outside of the workspace.
    pub beside: PathBuf,
    /// The variables that a member finds, but for its temper.
    pub environment: BTreeMap<String, std::ffi::OsString>,
    /// What the variables are called that make a clock wrong and a disk fail.
    pub clock_variable: &'static str,
    pub faults_variable: &'static str,
    /// Each member sees no process but its own, as on a machine of its own, and no lock.
    pub machines: bool,
}

impl Stage {
    #[expect(
        clippy::disallowed_methods,
        reason = "members are no children that work: they are started, frozen and killed as a \
                  whole, and must not be found by a mark"
    )]
    fn command(&self, arguments: &[&str], temper: Temper) -> Command {
        let mut command = match self.machines {
            true => Command::new("unshare"),
            false => Command::new(&self.program),
        };
        if self.machines {
            command.args(["-U", "-r", "-p", "-f", "--mount-proc", "--kill-child"]);
            command.arg(&self.program);
        }
        command
            .args(arguments)
            .current_dir(&self.workspace)
            .env_clear()
            .envs(&self.environment)
            .env("XDG_CONFIG_HOME", &self.beside)
            .stdin(Stdio::null());
        if temper.clock_ms != 0 {
            command.env(self.clock_variable, temper.clock_ms.to_string());
        }
        let (seed, rate) = temper.faults.unwrap_or_default();
        if self.machines {
            command.env(self.faults_variable, format!("{seed},{rate},nolocks"));
        } else if rate > 0 {
            command.env(self.faults_variable, format!("{seed},{rate}"));
        }
        command
    }

    /// Runs a verb to its end: its exit code and what it printed.
    pub(crate) fn call(
        &self,
        arguments: &[&str],
        temper: Temper,
    ) -> io::Result<(Option<i32>, String)> {
        let log = log(&self.beside.join("calls.log"))?;
        let output = self.command(arguments, temper).stderr(log).output()?;
        let text = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        Ok((output.status.code(), text))
    }
}

fn log(path: &Path) -> io::Result<File> {
    OpenOptions::new().create(true).append(true).open(path)
}

/// A place in the fleet, taken by one process after the other.
pub(super) struct Member {
    pub role: Role,
    pub temper: Temper,
    number: usize,
    stage: Stage,
    child: Option<Child>,
    frozen: bool,
}

impl Member {
    pub(super) fn new(number: usize, role: Role, stage: &Stage) -> Member {
        let temper = Temper { clock_ms: 0, faults: None };
        Member { role, temper, number, stage: stage.clone(), child: None, frozen: false }
    }

    pub(super) fn start(&mut self, temper: Temper) -> io::Result<()> {
        self.temper = temper;
        let log = log(&self.stage.beside.join(format!("member{}.log", self.number)))?;
        let arguments: &[&str] = match self.role {
            Role::Coordinator => &["coordinator"],
            Role::Worker(agent) => &["worker", AGENTS[agent], "--concurrency", "2"],
        };
        let mut command = self.stage.command(arguments, temper);
        self.child = Some(command.stdout(log.try_clone()?).stderr(log).spawn()?);
        self.frozen = false;
        Ok(())
    }

    /// Whether its process runs.
    pub(super) fn is_up(&mut self) -> bool {
        let ended = match &mut self.child {
            None => return false,
            Some(child) => child.try_wait(),
        };
        if matches!(ended, Ok(None)) {
            return true;
        }
        self.child = None;
        false
    }

    pub(super) fn is_frozen(&self) -> bool {
        self.frozen
    }

    fn signal(&self, signal: Signal) {
        // Not waited for yet, so the pid is its own.
        if let Some(pid) = self.pid() {
            let _ = kill(Pid::from_raw(pid), signal);
        }
    }

    /// The member's own process, which is the child or the child's only one.
    fn pid(&self) -> Option<i32> {
        let pid = self.child.as_ref()?.id();
        if !self.stage.machines {
            return Some(pid.cast_signed());
        }
        let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).ok()?;
        children.split_ascii_whitespace().next()?.parse().ok()
    }

    pub(super) fn kill(&mut self) {
        self.signal(Signal::SIGKILL);
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
        self.frozen = false;
    }

    pub(super) fn freeze(&mut self) {
        self.signal(Signal::SIGSTOP);
        self.frozen = true;
    }

    pub(super) fn thaw(&mut self) {
        self.signal(Signal::SIGCONT);
        self.frozen = false;
    }

    pub(super) fn ask_to_end(&self) {
        self.signal(Signal::SIGTERM);
    }

    /// Waits for its end. Says whether it came in time.
    pub(super) fn await_end(&mut self, time: Duration) -> bool {
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
