//! Starts a child, and reports exactly why one cannot be started.
//!
//! Only `posix_spawn` is fast enough: `fork` copies page tables, which takes 45 ms in a parent of
//! one gigabyte. The standard library silently falls back to `fork` for `pre_exec`, `uid`, `gid`,
//! `env_clear`, and for a changed PATH with a program to look up. This module does not use the
//! former and looks up programs itself. That is also cheaper: the C library tries an `execve` in
//! every directory of PATH, and each failing one costs as much as several lookups.

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

/// Longest argument or environment entry that Linux accepts, without its NUL.
pub(crate) const STRING_BYTES: usize = 131_071;
/// Search path for programs if PATH is removed.
const DEFAULT_PATH: &str = "/bin:/usr/bin";
/// Time to wait for a program that another process has open for writing.
const STILL_WRITTEN: Duration = Duration::from_millis(500);
const ABSENT: &str = "it is not there";

/// Variables by which git describes one repository to its child processes, such as hooks. No child
/// inherits them: its `git` would work in that repository instead of the child's own. They are
/// those of `git rev-parse --local-env-vars`, one of earlier versions, and the one that makes git
/// refuse to move refs. Without the count, config keys and values have no effect.
pub(crate) const LOCAL_TO_GIT: [&str; 17] = [
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

/// Variables that make programs print colors without a terminal. No child inherits them: this
/// program reads its output, and the caller meant its own terminal. A step that wants colors sets
/// them in its `env`.
pub(crate) const FORCING_COLORS: [&str; 2] = ["FORCE_COLOR", "CLICOLOR_FORCE"];

/// The reason why a child was not started.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StartError {
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
    /// Returns the exit code by the conventions of shells; 2 if the order itself is invalid.
    pub(crate) fn exit_code(&self) -> i32 {
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

/// Creates a command. Every child's environment starts here; variables set later take precedence.
#[expect(clippy::disallowed_methods, reason = "this is where children are started")]
pub(super) fn command(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(program);
    for name in LOCAL_TO_GIT.iter().chain(&FORCING_COLORS) {
        command.env_remove(name);
    }
    command
}

/// Starts a tool, with a stream of the caller as its stdin. It may outlive this process.
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
        // Find the confined program now: after the start, the error could not be explained well.
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
    // A confined child is not a group leader yet: it starts its own session, and thereby a group.
    command.args(&order.argv[1..]).current_dir(order.cwd);
    order.env_remove.iter().for_each(|name| _ = command.env_remove(name));
    command.envs(order.env.iter().map(|(name, value)| (name, value)));
    command.env(MARK, full_mark(mark));
    command.stdin(stdin);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    spawn(&mut command).map_err(|error| explain(order, error))
}

/// Returns the mark, followed by the marks of the orchestrators that this process runs under: they
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

/// Returns the child's PATH.
#[expect(clippy::disallowed_methods, reason = "what a child inherits is no setting")]
fn path<'a>(order: &Order<'a>) -> &'a OsStr {
    static INHERITED: OnceLock<Option<OsString>> = OnceLock::new();
    let set = order.env.iter().rev().find(|(name, _)| name == "PATH");
    let removed = order.env_remove.contains(&"PATH");
    let inherited = || INHERITED.get_or_init(|| env::var_os("PATH")).as_deref();
    let path = set.map(|(_, path)| path.as_os_str());
    path.or_else(|| inherited().filter(|_| !removed)).unwrap_or(OsStr::new(DEFAULT_PATH))
}

/// Returns the path of a command's program, as [`super::run`] would find it from `cwd`.
pub(crate) fn locate(program: &str, path: &OsStr, cwd: &Path) -> Result<PathBuf, StartError> {
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
            // An unreadable directory gives no information about its contents.
            Some(_) if access(&file, AccessFlags::F_OK) == Err(Errno::EACCES) => {}
            Some(reason) => seen = seen.or(Some(reason)),
            // Absolute, because the child resolves it only after it has changed its directory.
            None => return std::path::absolute(file).map_err(StartError::Other),
        }
    }
    let program = program.to_owned();
    Err(match seen {
        Some(reason) => StartError::NotExecutable { program, reason },
        None => StartError::NotFound { program },
    })
}

/// Returns the reason why this file cannot be executed, as far as it is visible from outside.
fn unusable(file: &Path) -> Option<&'static str> {
    match access(file, AccessFlags::X_OK) {
        // First, because it is the usual result in a search along PATH.
        Err(Errno::ENOENT | Errno::ENOTDIR) => Some(ABSENT),
        _ if file.is_dir() => Some("it is a folder"),
        Err(_) => Some("it has no permission for that"),
        Ok(()) => None,
    }
}

/// Starts the command. A program that was just written may be open for writing a moment longer in
/// children that its writer forked meanwhile, so `ETXTBSY` is retried.
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

/// Finds the cause of an error. The system reports one error code for many causes; the order shows
/// which one applies.
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

/// Returns true if a child could not be started for lack of file descriptors, processes or memory.
pub(crate) fn lacks_resources(error: &io::Error) -> bool {
    const LACKS: [Errno; 4] = [Errno::EMFILE, Errno::ENFILE, Errno::EAGAIN, Errno::ENOMEM];
    error.raw_os_error().is_some_and(|code| LACKS.contains(&Errno::from_raw(code)))
}

/// Returns the error if this process cannot open the few file descriptors needed to start a child
/// and to capture its output, else `None`.
pub(crate) fn lacks_descriptors() -> Option<io::Error> {
    const NEEDED: usize = 16;
    let mut opened = Vec::with_capacity(NEEDED);
    for _ in 0..NEEDED {
        match nix::unistd::dup(io::stderr()) {
            Ok(descriptor) => opened.push(descriptor),
            Err(error @ (Errno::EMFILE | Errno::ENFILE)) => return Some(error.into()),
            // If stderr is closed, it cannot be duplicated.
            Err(_) => return None,
        }
    }
    None
}

/// Returns the error for a command that ended as if it were missing, if it is a script whose
/// interpreter, to be found by `env`, is the missing program.
pub(crate) fn lacks_interpreter(order: &Order) -> Option<StartError> {
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

/// Returns the first line of a script, without its `#!`.
fn first_line(file: &Path) -> Option<String> {
    let mut first = Vec::new();
    std::fs::File::open(file).ok()?.take(LINE).read_to_end(&mut first).ok()?;
    let line = first.strip_prefix(b"#!")?.split(|byte| *byte == b'\n').next()?;
    Some(String::from_utf8_lossy(line).into_owned())
}

/// Returns the program that the first line of a script names.
fn interpreter(file: &Path) -> Option<String> {
    let line = first_line(file)?;
    let name = line.split_whitespace().next()?;
    // A carriage return at the end of the line belongs to the name.
    Some(if line.ends_with('\r') && line.split_whitespace().count() == 1 {
        format!("{name}\\r")
    } else {
        name.to_owned()
    })
}

/// Number of bytes of a script's first line that the system reads.
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
