//! Installing the packages that a script names, before it runs: with a limit and a log of its own.
//!
//! Packages for `bun` lie in the workspace, once for each set of them, and whoever wants a set that
//! another is installing waits for it; those for `uv` are where it keeps them, which locks them
//! itself.
//!
//! **Invariant:** a set of packages gets its name only when it is whole, so that neither a crash
//! nor another who installs the same leaves a script with half of them.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::Child;
use super::script::Unready;
use crate::digest::Parts;
use crate::disk;
use crate::exec::{self, Capture, How, Mode, Order, Sweep};
use crate::fleet::member::new_incarnation;
use crate::prompt::limits::{self, FaultClass};
use crate::store::lock::{self, LockError};
use crate::time::{Clock, SystemClock, Time};

/// Where sets of packages lie in a workspace.
const CACHE: &str = ".orchestrate/cache/bun";
/// What those lock who make one, beside them.
const LOCKS: &str = ".orchestrate/cache/bun-locks";
/// How long one who waits for another rests between two looks.
const BETWEEN: Duration = Duration::from_millis(50);
/// How long installing may take. A script's own timeout is for the script.
const LIMIT: Duration = Duration::from_secs(600);
/// What the names of sets begin with that are not whole.
const PARTIAL: &str = ".new-";
/// What says where packages come from, in the workspace.
const SETTINGS: [&str; 2] = [".npmrc", "bunfig.toml"];

/// Installs packages for `bun`, unless they are there. Gives the directory they are in.
pub fn bun(child: &Child, deps: &[String]) -> Result<PathBuf, Unready> {
    let cache = child.site.cwd().join(CACHE);
    let set = cache.join(name(deps));
    // Of those who want the same at once, one installs it and the others wait.
    let lock = child.site.cwd().join(LOCKS).join(name(deps));
    let _turn = loop {
        if set.exists() {
            return Ok(set);
        }
        match lock::take_made(&lock) {
            Ok(turn) => break turn,
            Err(LockError::Held { .. }) if child.stop.sleep(BETWEEN) => {}
            Err(LockError::Held { .. }) => return Err(Unready::Stopped),
            Err(LockError::Io(error)) => return Err(unwritten(error)),
        }
    };
    if set.exists() {
        return Ok(set);
    }
    let partial = cache.join(format!("{PARTIAL}{}", new_incarnation()));
    let installed = begin(child, &cache, &partial).map_err(unwritten).and_then(|()| {
        let argv = ["bun", "add"].map(str::to_owned).into_iter().chain(deps.iter().cloned());
        run(child, argv.collect(), &partial)?;
        finish(&partial, &set).map_err(unwritten)
    });
    if installed.is_err() || partial.exists() {
        let _ = fs::remove_dir_all(&partial);
    }
    installed.map(|()| set)
}

/// Lets `uv` fetch packages, so that running the script with them is quick.
pub fn uv(child: &Child, with: Vec<String>) -> Result<(), Unready> {
    let argv = ["uv", "run", "--no-project"].map(str::to_owned).into_iter().chain(with);
    let argv = argv.chain(["python", "-c", ""].map(str::to_owned)).collect();
    run(child, argv, child.site.cwd())
}

/// What a set is called: by what is in it, and by the machines that it is for.
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
        if settings.is_file() {
            std::os::unix::fs::symlink(&settings, partial.join(settings.file_name().unwrap()))?;
        }
    }
    fs::write(partial.join("package.json"), "{ \"name\": \"packages\", \"private\": true }\n")
}

/// Removes what those left behind who died over it.
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

/// Gives a set its name, all of it on the medium.
fn finish(partial: &Path, set: &Path) -> io::Result<()> {
    nix::unistd::syncfs(File::open(partial)?)?;
    match disk::rename(partial, set) {
        // Somebody was quicker, and has the same.
        Err(_) if set.exists() => Ok(()),
        renamed => renamed,
    }
}

fn unwritten(error: io::Error) -> Unready {
    let message = format!("there is no place for the script's packages: {error}");
    Unready::failed(1, message, FaultClass::Unknown)
}

/// Runs an installer to its end.
fn run(child: &Child, command: Vec<String>, cwd: &Path) -> Result<(), Unready> {
    let site = child.site;
    let shown = site.mask.text(&command.join(" "));
    // Both of its streams are one story.
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
        _ => limits::classify(&tail.join("\n")),
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

/// The ending of the log's name.
pub const LOG: &str = "install.log";
