//! Installs the packages of a script before it runs, with their own timeout and log.
//!
//! Packages for `bun` are in the workspace, one directory per set; a process that needs a set which
//! another one is installing waits for it. Packages for `uv` are in its own cache, which `uv`
//! locks.
//!
//! **Invariant:** a set of packages gets its final name only when it is complete, so that neither a
//! crash nor a concurrent installation leaves a script with an incomplete set.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::Child;
use super::script::Unready;
use crate::agent::faults::{self, FaultClass};
use crate::base::digest::Parts;
use crate::base::process::new_incarnation;
use crate::base::time::{Clock, SystemClock, Time};
use crate::disk;
use crate::disk::fs::{self, OnVolume as _};
use crate::exec::{self, Capture, How, Mode, Order, Sweep};
use crate::store::lock::{self, LockError};

/// Directory of the package sets in a workspace.
const CACHE: &str = ".orchestrate/cache/bun";
/// Directory of the lock files for installations.
const LOCKS: &str = ".orchestrate/cache/bun-locks";
/// Poll interval while another process installs the same set.
const BETWEEN: Duration = Duration::from_millis(50);
/// Timeout of an installation. A script's own timeout applies only to the script.
const LIMIT: Duration = Duration::from_secs(600);
/// Name prefix of incomplete sets.
const PARTIAL: &str = ".new-";
/// Files in the workspace that configure the package source.
const SETTINGS: [&str; 2] = [".npmrc", "bunfig.toml"];

/// Installs packages for `bun`, unless they exist. Returns their directory.
pub(super) fn bun(child: &Child, deps: &[String]) -> Result<PathBuf, Unready> {
    let cache = child.site.cwd().join(CACHE);
    let set = cache.join(name(deps));
    // Of several processes that need the same set, one installs it and the others wait.
    let lock = child.site.cwd().join(LOCKS).join(name(deps));
    let _turn = loop {
        if set.is_present() {
            return Ok(set);
        }
        match lock::take_made(&lock) {
            Ok(turn) => break turn,
            Err(LockError::Held { .. }) if child.stop.sleep(BETWEEN) => {}
            Err(LockError::Held { .. }) => return Err(Unready::Stopped),
            Err(LockError::Io(error)) => return Err(unwritten(error)),
        }
    };
    if set.is_present() {
        return Ok(set);
    }
    let partial = cache.join(format!("{PARTIAL}{}", new_incarnation()));
    let installed = begin(child, &cache, &partial).map_err(unwritten).and_then(|()| {
        let argv = ["bun", "add"].map(str::to_owned).into_iter().chain(deps.iter().cloned());
        run(child, argv.collect(), &partial)?;
        finish(&partial, &set).map_err(unwritten)
    });
    if installed.is_err() || partial.is_present() {
        let _ = fs::remove_dir_all(&partial);
    }
    installed.map(|()| set)
}

/// Makes `uv` fetch packages, so that the script starts fast with them.
pub(super) fn uv(child: &Child, with: Vec<String>) -> Result<(), Unready> {
    let argv = ["uv", "run", "--no-project"].map(str::to_owned).into_iter().chain(with);
    let argv = argv.chain(["python", "-c", ""].map(str::to_owned)).collect();
    run(child, argv, child.site.cwd())
}

/// Returns the name of a set: a digest of its packages and the platform.
fn name(deps: &[String]) -> String {
    let mut deps: Vec<&str> = deps.iter().map(|dep| dep.trim()).collect();
    deps.sort_unstable();
    deps.dedup();
    let mut digest = Parts::default();
    let machine = [std::env::consts::OS, std::env::consts::ARCH];
    ["bun"].into_iter().chain(machine).chain(deps).for_each(|part| digest.add(part));
    digest.hex()
}

fn begin(child: &Child, cache: &Path, partial: &Path) -> io::Result<()> {
    fs::create_dir_all(partial)?;
    forget_old(cache);
    for settings in SETTINGS.map(|name| child.site.cwd().join(name)) {
        if settings.is_present_file() {
            std::os::unix::fs::symlink(&settings, partial.join(settings.file_name().unwrap()))?;
        }
    }
    fs::write(partial.join("package.json"), "{ \"name\": \"packages\", \"private\": true }\n")
}

/// Removes incomplete sets of processes that died.
fn forget_old(cache: &Path) {
    let now = SystemClock.now();
    for entry in fs::read_dir(cache).into_iter().flatten().flatten() {
        let is_partial = entry.file_name().to_string_lossy().starts_with(PARTIAL);
        let made = entry.metadata().and_then(|metadata| metadata.modified()).ok();
        let made = made.and_then(|made| made.duration_since(std::time::UNIX_EPOCH).ok());
        let made = made.map_or(now, |made| Time(made.as_millis() as i64));
        if is_partial && now.ms_since(made) > 6 * LIMIT.as_millis() as u64 {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

/// Syncs a set and gives it its final name.
fn finish(partial: &Path, set: &Path) -> io::Result<()> {
    nix::unistd::syncfs(fs::open(partial)?)?;
    match disk::rename(partial, set) {
        // Another process was faster and installed the same set.
        Err(_) if set.is_present() => Ok(()),
        renamed => renamed,
    }
}

fn unwritten(error: io::Error) -> Unready {
    let message = format!("there is no place for the script's packages: {error}");
    Unready::failed(1, message, FaultClass::Unknown)
}

/// Runs an installer until it exits.
fn run(child: &Child, command: Vec<String>, cwd: &Path) -> Result<(), Unready> {
    let site = child.site;
    let shown = site.mask.text(&command.join(" "));
    // Merge stdout and stderr into one log.
    let mut argv = ["sh", "-c", "exec \"$@\" 2>&1", "sh"].map(str::to_owned).to_vec();
    argv.extend(command);
    let log = site.log(child.step, LOG);
    let mut out = Capture::new(Mode::Tail, site.mask.clone()).log(log.clone());
    let mut err = Capture::new(Mode::Tail, site.mask.clone());
    let confine = child.confined.map(|confined| confined.prefix(Some(cwd))).unwrap_or_default();
    let order = Order {
        argv: &argv,
        cwd,
        env: child.env,
        env_remove: child.hidden,
        stdin: None,
        timeout: Some(LIMIT),
        idle: None,
        grace: site.grace,
        mark: child.mark,
        sweep: Sweep::Always,
        confine: &confine,
    };
    let ended = exec::run(&order, &mut out, &mut err, child.stop).map_err(|error| {
        Unready::failed(error.exit_code(), error.to_string(), FaultClass::Fatal)
    })?;
    let why = match ended.how {
        How::Exited(0) => return Ok(()),
        How::Stopped => return Err(Unready::Stopped),
        How::TimedOut | How::Silent => format!("took longer than {} s", LIMIT.as_secs()),
        How::Exited(code) => format!("failed with exit code {code}"),
        How::Killed(signal) => format!("was killed by signal {signal}"),
    };
    let tail = out.finish().map(|out| out.tail).unwrap_or_default();
    let message = format!("the script's packages were not installed: `{shown}` {why}");
    let class = match ended.how {
        How::TimedOut => FaultClass::Transient,
        _ => faults::classify(&tail.join("\n")),
    };
    let mut failed = Unready::failed(ended.how.exit_code(), message, class);
    if let Unready::Failed(record) = &mut failed
        && let Some(error) = &mut record.error
    {
        error.context.insert("log".into(), log.to_string_lossy().into());
        error.stderr_tail = tail;
    }
    Err(failed)
}

/// Suffix of the log's name.
pub(super) const LOG: &str = "install.log";
