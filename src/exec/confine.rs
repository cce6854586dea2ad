//! The sandbox of a child, which the child enters itself before it executes its program.
//!
//! Landlock restricts files, and a system call filter restricts the network. Both are available to
//! every user, cost the child nothing afterwards, and apply to everything it starts. They cannot be
//! set between `posix_spawn` and the program, so this program is started in between (`orchestrate
//! confine`): it gives up what [`Confinement`] lists and executes the child's program under the
//! same pid.
//!
//! Landlock's network rules cover only TCP; a DNS query over UDP could carry data out. So without
//! network, no sockets can be created except connected pairs, and `io_uring` is blocked because it
//! creates sockets that no filter sees.
//!
//! The child has its own session without a terminal, and may not control devices that are not
//! listed: on the caller's terminal it could type commands into the caller's shell (`TIOCSTI`).
//!
//! **Invariant:** either all restrictions apply, or the program is not started.

use std::ffi::{CString, OsStr};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use landlock::{
    ABI, Access, AccessFs, BitFlags, CompatLevel, Compatible, PathBeneath, PathFd, Ruleset,
    RulesetAttr, RulesetCreated, RulesetCreatedAttr, RulesetStatus, Scope,
};
use nix::libc;
use serde::{Deserialize, Serialize};

/// The restrictions of a child.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Confinement {
    /// Every layer must allow an access.
    pub layers: Vec<Reach>,
    pub no_network: bool,
}

/// The files that a child can access.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Reach {
    /// `None`: all files are writable.
    pub write: Option<Vec<PathBuf>>,
    /// `None`: all files are readable.
    pub read: Option<Vec<PathBuf>>,
}

/// The sandbox features of this machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Powers {
    /// Version of Landlock; 0 if unavailable.
    pub landlock: u32,
    /// True if system calls can be filtered.
    pub seccomp: bool,
}

/// First Landlock version that can prevent truncation of files.
pub(super) const LEAST_LANDLOCK: u32 = 3;
/// First Landlock version that can restrict signals to the sandbox.
pub(crate) const SIGNALS_LANDLOCK: u32 = 6;

/// Newest access rights to restrict. An older kernel restricts those that it supports.
const NEWEST: ABI = ABI::V9;
/// Access rights that the kernel must support, or the program is not started.
const LEAST: ABI = ABI::V3;

/// Queries the machine's sandbox features.
pub(crate) fn powers() -> Powers {
    const VERSION: libc::c_long = 1;
    const IS_THERE: libc::c_long = 2;
    let none = std::ptr::null::<u8>();
    // SAFETY: returns a version number and reads no memory.
    let landlock = unsafe { libc::syscall(libc::SYS_landlock_create_ruleset, none, 0, VERSION) };
    let action = libc::SECCOMP_RET_ERRNO;
    // SAFETY: reads only the integer that it is given.
    let seccomp = unsafe { libc::syscall(libc::SYS_seccomp, IS_THERE, 0, &raw const action) };
    let seccomp = seccomp == 0 && ARCHITECTURE.is_some();
    Powers { landlock: u32::try_from(landlock).unwrap_or(0), seccomp }
}

impl Confinement {
    /// Returns the reason why a machine with these features cannot provide this sandbox, or `None`.
    pub(crate) fn refusal(&self, powers: Powers) -> Option<String> {
        if !self.layers.is_empty() && powers.landlock < LEAST_LANDLOCK {
            let found = match powers.landlock {
                0 => "this kernel has none, or it is switched off".to_owned(),
                version => format!("this kernel has version {version}"),
            };
            return Some(format!(
                "the sandbox needs Landlock {LEAST_LANDLOCK} (Linux 6.2), but {found}"
            ));
        }
        (self.no_network && !powers.seccomp)
            .then(|| "the sandbox needs filters on system calls, which are not to be had".into())
    }

    /// Applies all restrictions to this thread and the program it executes. Irreversible.
    fn enter(&self) -> io::Result<()> {
        leave_terminal()?;
        nix::sys::prctl::set_no_new_privs()?;
        give_up_privileges();
        let powers = powers();
        if let Some(refusal) = self.refusal(powers) {
            return Err(io::Error::other(refusal));
        }
        self.layers.iter().try_for_each(Reach::enter)?;
        if self.no_network { give_up_network() } else { Ok(()) }
    }

    /// Applies all restrictions and executes a program. Returns only on error.
    pub(crate) fn exec(&self, program: &OsStr, argv: &[CString]) -> io::Error {
        let Ok(program) = CString::new(program.as_bytes()) else {
            return io::ErrorKind::InvalidInput.into();
        };
        if let Err(error) = self.enter() {
            return io::Error::other(format!("the sandbox is not to be had: {error}"));
        }
        match nix::unistd::execv(&program, argv) {
            Ok(never) => match never {},
            Err(error) => error.into(),
        }
    }
}

/// Starts a new session, which has no terminal. In the caller's session, the child could type into
/// the caller's shell. Fails for the leader of a process group.
fn leave_terminal() -> io::Result<()> {
    let left = nix::unistd::setsid();
    left.map(drop).map_err(|error| io::Error::other(format!("no session of its own: {error}")))
}

/// Capabilities of root that bypass a sandbox: access to other processes, the kernel, devices, the
/// machine's network, and files by means other than their names.
const PRIVILEGES: [libc::c_ulong; 21] = [
    2,  // DAC_READ_SEARCH
    11, // NET_BROADCAST
    12, // NET_ADMIN
    13, // NET_RAW
    16, // SYS_MODULE
    17, // SYS_RAWIO
    19, // SYS_PTRACE
    20, // SYS_PACCT
    21, // SYS_ADMIN
    22, // SYS_BOOT
    25, // SYS_TIME
    26, // SYS_TTY_CONFIG
    27, // MKNOD
    30, // AUDIT_CONTROL
    32, // MAC_OVERRIDE
    33, // MAC_ADMIN
    34, // SYSLOG
    37, // AUDIT_READ
    38, // PERFMON
    39, // BPF
    40, // CHECKPOINT_RESTORE
];

/// Drops these capabilities. A process that is not root has none of them and cannot gain them.
fn give_up_privileges() {
    for privilege in PRIVILEGES {
        // SAFETY: accesses no memory. Fails for a process without privileges, which is harmless.
        unsafe { libc::prctl(libc::PR_CAPBSET_DROP, privilege, 0, 0, 0) };
    }
}

impl Reach {
    fn enter(&self) -> io::Result<()> {
        let rights = |abi| {
            let reads = self.read.as_ref().map_or(BitFlags::EMPTY, |_| AccessFs::from_read(abi));
            let writes = self.write.as_ref().map_or(BitFlags::EMPTY, |_| AccessFs::from_write(abi));
            (reads, writes)
        };
        let ((reads, writes), (least_reads, least_writes)) = (rights(NEWEST), rights(LEAST));
        let rules = Ruleset::default()
            .set_compatibility(CompatLevel::HardRequirement)
            .handle_access(least_reads | least_writes)
            .and_then(|rules| {
                let rules = rules.set_compatibility(CompatLevel::BestEffort);
                rules.handle_access(reads | writes)?.scope(Scope::from_all(NEWEST))?.create()
            });
        let mut rules = rules.map_err(io::Error::other)?;
        for path in self.read.iter().flatten() {
            rules = allow(rules, path, reads)?;
        }
        for path in self.write.iter().flatten() {
            rules = allow(rules, path, reads | writes)?;
        }
        let status = rules.restrict_self().map_err(io::Error::other)?;
        match status.ruleset {
            RulesetStatus::NotEnforced => Err(io::Error::other("Landlock took nothing away")),
            _ => Ok(()),
        }
    }
}

/// Allows access to a file, or to everything below a directory. The error names the path.
fn allow(
    rules: RulesetCreated,
    path: &Path,
    access: BitFlags<AccessFs>,
) -> io::Result<RulesetCreated> {
    let file = PathFd::new(path).map_err(io::Error::other)?;
    let added = rules.add_rule(PathBeneath::new(file, access));
    added.map_err(|error| io::Error::other(format!("`{}`: {error}", path.display())))
}

fn checked(returned: libc::c_long) -> io::Result<libc::c_long> {
    if returned < 0 { Err(io::Error::last_os_error()) } else { Ok(returned) }
}

/// This machine's architecture, as a seccomp filter sees it. `None` if unsupported.
#[cfg(target_arch = "x86_64")]
const ARCHITECTURE: Option<u32> = Some(0xc000_003e);
#[cfg(target_arch = "aarch64")]
const ARCHITECTURE: Option<u32> = Some(0xc000_00b7);
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
const ARCHITECTURE: Option<u32> = None;

/// First system call number of the second table of x86 (x32).
const OTHER_TABLE: u32 = 0x4000_0000;

fn give_up_network() -> io::Result<()> {
    let Some(architecture) = ARCHITECTURE else { return Err(io::ErrorKind::Unsupported.into()) };
    const LOAD: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
    const EQUAL: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
    const AT_LEAST: u16 = (libc::BPF_JMP | libc::BPF_JGE | libc::BPF_K) as u16;
    const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;
    /// Offsets of the system call number and of the architecture in the filter's input.
    const NUMBER: u32 = 0;
    const CAME_AS: u32 = 4;
    let op = |code, jt, jf, k| libc::sock_filter { code, jt, jf, k };
    let deny = libc::SECCOMP_RET_ERRNO | libc::EPERM as u32;
    let mut filter = [
        op(LOAD, 0, 0, CAME_AS),
        op(EQUAL, 1, 0, architecture),
        // A program for another architecture has different system call numbers.
        op(RETURN, 0, 0, libc::SECCOMP_RET_KILL_PROCESS),
        op(LOAD, 0, 0, NUMBER),
        op(AT_LEAST, 3, 0, OTHER_TABLE),
        op(EQUAL, 2, 0, libc::SYS_socket as u32),
        op(EQUAL, 1, 0, libc::SYS_io_uring_setup as u32),
        op(RETURN, 0, 0, libc::SECCOMP_RET_ALLOW),
        op(RETURN, 0, 0, deny),
    ];
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    const SET_FILTER: libc::c_long = 1;
    // SAFETY: reads the filter program, which outlives the call.
    let done = unsafe { libc::syscall(libc::SYS_seccomp, SET_FILTER, 0, &raw const program) };
    checked(done).map(|_| ())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_machine_cannot_take_away_is_refused() {
        let files = Confinement { layers: vec![Reach::default()], no_network: false };
        let network = Confinement { layers: Vec::new(), no_network: true };
        let powers = |landlock, seccomp| Powers { landlock, seccomp };
        assert!(files.refusal(powers(0, true)).unwrap().contains("has none"));
        assert!(files.refusal(powers(2, true)).unwrap().contains("has version 2"));
        assert_eq!(files.refusal(powers(3, false)), None);
        assert!(network.refusal(powers(9, false)).unwrap().contains("filters on system calls"));
        assert_eq!(network.refusal(powers(0, true)), None);
        assert_eq!(Confinement::default().refusal(powers(0, false)), None);
    }
}
