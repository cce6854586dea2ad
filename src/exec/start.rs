//! Starting a child, and saying exactly why one cannot be started.
//!
//! Only `posix_spawn` will do: `fork` copies page tables, which takes 45 ms in a parent of a
//! gigabyte. The standard library falls back to `fork` silently for `pre_exec`, `uid`, `gid`,
//! `env_clear`, and for a changed PATH with a program to look up; the first are not used here,
//! and programs are looked up here. That is also the cheaper way: the C library tries an `execve`
//! in every folder of PATH, and each failing one costs as much as several looks.

use std::env;
use std::ffi::{OsStr, OsString};
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::unistd::{AccessFlags, access};

use super::{MARK, Order, children, guard};

/// Longest argument or environment entry that Linux takes, without its NUL.
pub const STRING_BYTES: usize = 131_071;
/// Where programs are looked up if PATH is removed.
const DEFAULT_PATH: &str = "/bin:/usr/bin";
/// How long a program that somebody has open for writing is waited for.
const STILL_WRITTEN: Duration = Duration::from_millis(500);
const ABSENT: &str = "it is not there";

/// What git says of one repository to those that it calls, a hook for one. No child inherits it:
/// its `git` would work in that repository, and not in the one that the child was put into. They
/// are those of `git rev-parse --local-env-vars`, one of earlier versions, and the one by which
/// git refuses to move refs. Without the count, keys and values of settings mean nothing.
pub const LOCAL_TO_GIT: [&str; 17] = [
    "GIT_ALTERNATE_OBJECT_DIRECTORIES",
    "GIT_CONFIG",
    "GIT_CONFIG_PARAMETERS",
    "GIT_CONFIG_COUNT",
    "GIT_OBJECT_DIRECTORY",
    "GIT_DIR",
    "GIT_WORK_TREE",
    "GIT_IMPLICIT_WORK_TREE",
    "GIT_GRAFT_FILE",
    "GIT_INDEX_FILE",
    "GIT_NO_REPLACE_OBJECTS",
    "GIT_REPLACE_REF_BASE",
    "GIT_PREFIX",
    "GIT_SHALLOW_FILE",
    "GIT_COMMON_DIR",
    "GIT_NAMESPACE",
    "GIT_QUARANTINE_PATH",
];

/// What makes programs print colors although no terminal shows them. No child inherits it: its
/// output is read by this program, and the caller meant its own terminal. A step that wants colors
/// says so in its `env`.
pub const FORCING_COLORS: [&str; 2] = ["FORCE_COLOR", "CLICOLOR_FORCE"];

/// Why a child was not started.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error("there is no program to run: the command is empty")]
    Empty,
    #[error("`{program}` was not found{}", found_hint(.program))]
    NotFound { program: String },
    #[error("`{program}` is a script for `{interpreter}`, which was not found")]
    NoInterpreter { program: String, interpreter: String },
    #[error("`{program}` cannot be executed: {reason}")]
    NotExecutable { program: String, reason: &'static str },
    #[error(
        "argument {argument} is {bytes} bytes long, but the system takes at most {limit}; \
         pass it on standard input or in a file"
    )]
    TooLong { argument: usize, bytes: usize, limit: usize },
    #[error(
        "the environment variable `{name}` takes {bytes} bytes, but the system takes at most \
         {limit}"
    )]
    TooLongVariable { name: String, bytes: usize, limit: usize },
    #[error(
        "the arguments take {bytes} bytes, which together with the environment is more than the \
         system takes"
    )]
    TooLongTogether { bytes: usize },
    #[error("`{cwd}` is not a folder to run in: {source}")]
    BadCwd { cwd: String, source: io::Error },
    #[error("{place} has a NUL byte, which the system cannot pass on")]
    NulByte { place: String },
    #[error("cannot start a process: {0}")]
    Other(#[from] io::Error),
}

fn found_hint(program: &str) -> &'static str {
    if program.contains('/') { "" } else { " in PATH" }
}

impl StartError {
    /// The exit code by the customs of shells; 2 where the order itself is wrong.
    pub fn exit_code(&self) -> i32 {
        match self {
            StartError::NotFound { .. } | StartError::NoInterpreter { .. } => 127,
            StartError::NotExecutable { .. } => 126,
            StartError::Other(_) => 1,
            _ => 2,
        }
    }
}

pub(super) fn start(order: &Order) -> Result<Child, StartError> {
    let stdin = if order.stdin.is_some() { Stdio::piped() } else { Stdio::null() };
    start_marked(order, &format!("{};{}", order.mark, guard::own_mark()), stdin)
}

/// A program to start. Every child's environment begins here; what is set for it comes after, and
/// wins.
#[expect(clippy::disallowed_methods, reason = "this is where children are started")]
pub(super) fn command(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(program);
    for name in LOCAL_TO_GIT.iter().chain(&FORCING_COLORS) {
        command.env_remove(name);
    }
    command
}

/// The same for a tool, with something of the caller's as its input. It may outlive this process.
pub(super) fn start_on(order: &Order, stdin: Stdio) -> Result<Child, StartError> {
    start_marked(order, order.mark, stdin)
}

fn start_marked(order: &Order, mark: &str, stdin: Stdio) -> Result<Child, StartError> {
    check(order)?;
    let program = &order.argv[0];
    let bad = |error| bad_cwd(order).unwrap_or(error);
    let mut command = match order.confine {
        [] if program.contains('/') => command(program),
        [] => command(look_up(program, path(order), order.cwd).map_err(bad)?),
        // What it becomes is found now: later nobody could say well why it was not.
        [confiner, rest @ ..] => {
            let found = locate(program, path(order), order.cwd).map_err(bad)?;
            let mut command = command(confiner);
            command.args(rest).arg("--").arg(found).arg(program);
            command
        }
    };
    if order.confine.is_empty() {
        command.arg0(program).process_group(0);
    }
    // One that is confined leads no group yet: it begins a session, and by that a group, itself.
    command.args(&order.argv[1..]).current_dir(order.cwd);
    order.env_remove.iter().for_each(|name| _ = command.env_remove(name));
    command.envs(order.env.iter().map(|(name, value)| (name, value)));
    command.env(MARK, full_mark(mark));
    command.stdin(stdin);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    spawn(&mut command).map_err(|error| explain(order, error))
}

/// The mark, and after it those of the orchestrators that this process itself runs under: they
/// must find our children too.
#[expect(clippy::disallowed_methods, reason = "a mark of ours is no setting")]
fn full_mark(mark: &str) -> OsString {
    static OUTER: OnceLock<Option<OsString>> = OnceLock::new();
    let mut full = OsString::from(mark);
    if let Some(outer) = OUTER.get_or_init(|| env::var_os(MARK)) {
        full.push(";");
        full.push(outer);
    }
    full
}

fn check(order: &Order) -> Result<(), StartError> {
    if order.argv.first().is_none_or(String::is_empty) {
        return Err(StartError::Empty);
    }
    for (argument, text) in order.argv.iter().enumerate() {
        if text.contains('\0') {
            return Err(StartError::NulByte { place: format!("argument {argument}") });
        }
        if text.len() > STRING_BYTES {
            let (bytes, limit) = (text.len(), STRING_BYTES);
            return Err(StartError::TooLong { argument, bytes, limit });
        }
    }
    order.env.iter().try_for_each(|(name, value)| check_variable(name, value))
}

fn check_variable(name: &str, value: &OsStr) -> Result<(), StartError> {
    if name.contains('\0') || value.as_bytes().contains(&0) {
        let place = format!("the environment variable `{}`", name.replace('\0', "?"));
        return Err(StartError::NulByte { place });
    }
    let bytes = name.len() + 1 + value.len();
    if bytes > STRING_BYTES {
        let name = name.to_owned();
        return Err(StartError::TooLongVariable { name, bytes, limit: STRING_BYTES });
    }
    Ok(())
}

/// The child's PATH.
#[expect(clippy::disallowed_methods, reason = "what a child inherits is no setting")]
fn path<'a>(order: &Order<'a>) -> &'a OsStr {
    static INHERITED: OnceLock<Option<OsString>> = OnceLock::new();
    let set = order.env.iter().rev().find(|(name, _)| name == "PATH");
    let removed = order.env_remove.contains(&"PATH");
    let inherited = || INHERITED.get_or_init(|| env::var_os("PATH")).as_deref();
    let path = set.map(|(_, path)| path.as_os_str());
    path.or_else(|| inherited().filter(|_| !removed)).unwrap_or(OsStr::new(DEFAULT_PATH))
}

/// Where the program of a command lies, as [`super::run`] would find it in this folder.
pub fn locate(program: &str, path: &OsStr, cwd: &Path) -> Result<PathBuf, StartError> {
    if !program.contains('/') {
        return look_up(program, path, cwd);
    }
    let (file, program) = (cwd.join(program), program.to_owned());
    match unusable(&file) {
        None => Ok(file),
        Some(ABSENT) => Err(StartError::NotFound { program }),
        Some(reason) => Err(StartError::NotExecutable { program, reason }),
    }
}

fn look_up(program: &str, path: &OsStr, cwd: &Path) -> Result<PathBuf, StartError> {
    let mut seen = None;
    for folder in env::split_paths(path) {
        let file = cwd.join(folder).join(program);
        match unusable(&file) {
            Some(ABSENT) => {}
            // A folder that we may not look into tells nothing of what is in it.
            Some(_) if access(&file, AccessFlags::F_OK) == Err(Errno::EACCES) => {}
            Some(reason) => seen = seen.or(Some(reason)),
            // Absolute, because the child looks for it only after it has changed its folder.
            None => return std::path::absolute(file).map_err(StartError::Other),
        }
    }
    let program = program.to_owned();
    Err(match seen {
        Some(reason) => StartError::NotExecutable { program, reason },
        None => StartError::NotFound { program },
    })
}

/// Why this file cannot be executed, as far as it can be told from outside.
fn unusable(file: &Path) -> Option<&'static str> {
    match access(file, AccessFlags::X_OK) {
        // First, as it is the usual answer in a search along PATH.
        Err(Errno::ENOENT | Errno::ENOTDIR) => Some(ABSENT),
        _ if file.is_dir() => Some("it is a folder"),
        Err(_) => Some("it has no permission for that"),
        Ok(()) => None,
    }
}

/// Starts it. A program that was written just now is held open a moment longer by any child that
/// its writer forked meanwhile: that passes by itself.
fn spawn(command: &mut Command) -> io::Result<Child> {
    let until = Instant::now() + STILL_WRITTEN;
    loop {
        match children::spawn(command) {
            Err(error) if is_busy(&error) && Instant::now() < until => {
                std::thread::sleep(Duration::from_millis(10));
            }
            outcome => return outcome,
        }
    }
}

fn is_busy(error: &io::Error) -> bool {
    error.raw_os_error().map(Errno::from_raw) == Some(Errno::ETXTBSY)
}

/// The system gives one number for many causes; the order shows which it was.
fn explain(order: &Order, error: io::Error) -> StartError {
    if let Some(bad_cwd) = bad_cwd(order) {
        return bad_cwd;
    }
    let program = order.argv[0].clone();
    let file = locate(&program, path(order), order.cwd).ok();
    match error.raw_os_error().map(Errno::from_raw) {
        Some(Errno::ENOENT) if file.is_some() => {
            let interpreter = file.as_deref().and_then(interpreter);
            let interpreter = interpreter.unwrap_or_else(|| "its interpreter".to_owned());
            StartError::NoInterpreter { program, interpreter }
        }
        Some(Errno::ENOENT | Errno::ENOTDIR) => StartError::NotFound { program },
        Some(Errno::EACCES | Errno::EPERM) => {
            let file = order.cwd.join(&program);
            let reason = program.contains('/').then(|| unusable(&file)).flatten();
            let reason = reason.unwrap_or("it has no permission for that");
            StartError::NotExecutable { program, reason }
        }
        Some(Errno::ENOEXEC) => StartError::NotExecutable {
            program,
            reason: "it is neither a program nor a script with `#!`",
        },
        Some(Errno::ETXTBSY) => {
            StartError::NotExecutable { program, reason: "it is being written" }
        }
        Some(Errno::E2BIG) => {
            let bytes = order.argv.iter().map(|argument| argument.len() + 1).sum();
            StartError::TooLongTogether { bytes }
        }
        _ => StartError::Other(error),
    }
}

/// Whether a child could not be started for want of file descriptors, processes or memory.
pub fn lacks_resources(error: &io::Error) -> bool {
    const LACKS: [Errno; 4] = [Errno::EMFILE, Errno::ENFILE, Errno::EAGAIN, Errno::ENOMEM];
    error.raw_os_error().is_some_and(|code| LACKS.contains(&Errno::from_raw(code)))
}

/// Why this process cannot open the few file descriptors that it takes to start a child and to
/// keep its output; nothing, if it can.
pub fn lacks_descriptors() -> Option<io::Error> {
    const NEEDED: usize = 16;
    let mut opened = Vec::with_capacity(NEEDED);
    for _ in 0..NEEDED {
        match nix::unistd::dup(io::stderr()) {
            Ok(descriptor) => opened.push(descriptor),
            Err(error @ (Errno::EMFILE | Errno::ENFILE)) => return Some(error.into()),
            // Without a standard error there is nothing to copy.
            Err(_) => return None,
        }
    }
    None
}

/// Why a command that ended as if it was not there did so, where it is a script of which `env` was
/// to find the interpreter: that is what is not there.
pub fn lacks_interpreter(order: &Order) -> Option<StartError> {
    let program = order.argv.first()?;
    let file = locate(program, path(order), order.cwd).ok()?;
    let line = first_line(&file)?;
    let mut words = line.split_whitespace();
    words.next().filter(|word| word.ends_with("/env"))?;
    let interpreter = words.find(|word| !word.starts_with('-') && !word.contains('='))?;
    let found = locate(interpreter, path(order), order.cwd);
    matches!(found, Err(StartError::NotFound { .. })).then(|| StartError::NoInterpreter {
        program: program.clone(),
        interpreter: interpreter.to_owned(),
    })
}

/// The first line of a script, behind its `#!`.
fn first_line(file: &Path) -> Option<String> {
    let mut first = Vec::new();
    std::fs::File::open(file).ok()?.take(LINE).read_to_end(&mut first).ok()?;
    let line = first.strip_prefix(b"#!")?.split(|byte| *byte == b'\n').next()?;
    Some(String::from_utf8_lossy(line).into_owned())
}

/// The program that the first line of a script names.
fn interpreter(file: &Path) -> Option<String> {
    let line = first_line(file)?;
    let name = line.split_whitespace().next()?;
    // The end of a line that is written on another system belongs to the name.
    Some(if line.ends_with('\r') && line.split_whitespace().count() == 1 {
        format!("{name}\\r")
    } else {
        name.to_owned()
    })
}

/// So much of a script's first line is looked at by the system.
const LINE: u64 = 255;

fn bad_cwd(order: &Order) -> Option<StartError> {
    let cwd = order.cwd.display().to_string();
    cwd_error(order.cwd).map(|source| StartError::BadCwd { cwd, source })
}

fn cwd_error(cwd: &Path) -> Option<io::Error> {
    match std::fs::metadata(cwd) {
        Ok(folder) if folder.is_dir() => access(cwd, AccessFlags::X_OK).err().map(Into::into),
        Ok(_) => Some(Errno::ENOTDIR.into()),
        Err(error) => Some(error),
    }
}
