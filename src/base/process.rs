//! Identifies processes of this and other machines, and provides a monotonic clock.

use serde::{Deserialize, Serialize};

use super::digest::sha256;
use super::host;
pub(crate) use super::host::uptime_ms;
use super::random::chance;

/// A process, distinguished from all other processes, including earlier ones.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Process {
    pub host: String,
    /// Boot of the kernel: pids have no meaning in another boot.
    pub boot_id: String,
    /// PID namespace: pids have no meaning in another namespace.
    pub pid_namespace: String,
    pub pid: u32,
    /// In ticks since the kernel started: a reused pid has a different start time.
    pub start_time: u64,
}

impl Process {
    /// Returns this process.
    pub(crate) fn this() -> Process {
        #[cfg(test)]
        if let Some(boot_id) = host::with(|host| host.boot_id()) {
            return Process::simulated(boot_id);
        }
        let boot_id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id");
        let pid_namespace = std::fs::read_link("/proc/self/ns/pid");
        let pid = host::pid();
        Process {
            host: nix::unistd::gethostname().unwrap_or_default().to_string_lossy().into_owned(),
            boot_id: boot_id.unwrap_or_default().trim().to_owned(),
            pid_namespace: pid_namespace.unwrap_or_default().to_string_lossy().into_owned(),
            pid,
            start_time: start_time(pid).unwrap_or(0),
        }
    }

    #[cfg(test)]
    fn simulated(boot_id: String) -> Process {
        let (pid, pid_namespace) = (host::pid(), String::new());
        let start_time = start_time(pid).unwrap_or(0);
        Process { host: boot_id.clone(), boot_id, pid_namespace, pid, start_time }
    }

    /// Returns true if both processes run on one kernel and see each other.
    pub(crate) fn is_beside(&self, other: &Process) -> bool {
        !self.boot_id.is_empty()
            && self.boot_id == other.boot_id
            && self.pid_namespace == other.pid_namespace
    }

    /// Returns true if a signal or a debugger has stopped the process.
    pub(crate) fn is_stopped(&self) -> bool {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.pid)).unwrap_or_default();
        let state = stat.rsplit_once(')').and_then(|(_, rest)| rest.split_whitespace().next());
        matches!(state, Some("T" | "t"))
    }

    /// Returns true if the process runs. Call it only on the process's own machine.
    pub(crate) fn lives_here(&self) -> bool {
        start_time(self.pid) == Some(self.start_time)
    }
}

/// Returns true if a process with this pid exists here and is not a zombie.
pub(crate) fn lives(pid: u32) -> bool {
    start_time(pid).is_some()
}

/// Returns the start time of a process, or `None` if it does not exist or is a zombie.
fn start_time(pid: u32) -> Option<u64> {
    #[cfg(test)]
    if let Some(found) = host::with(|host| host.start_time(pid)) {
        return found;
    }
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name may contain any character, so fields are counted from its end.
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
    let state = fields.next()?;
    if matches!(state, "Z" | "X") {
        return None;
    }
    fields.nth(18)?.parse().ok()
}

/// Returns a unique name for a member.
pub(crate) fn new_incarnation() -> String {
    let Process { host, boot_id, pid, .. } = Process::this();
    sha256(format!("{host}/{boot_id}/{pid}/{:x}", chance()).as_bytes())[..12].to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_knows_itself_and_others() {
        let this = Process::this();
        assert!(this.lives_here() && this.is_beside(&this));
        let gone = Process { start_time: this.start_time + 1, ..this.clone() };
        assert!(!gone.lives_here(), "a pid that was used again is another process");
        let far = Process { boot_id: "another".into(), ..this.clone() };
        assert!(!this.is_beside(&far));
    }
}
