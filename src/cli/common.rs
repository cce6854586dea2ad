//! Functions that several verbs share: they read the invocation's surroundings, load a workflow,
//! and create and drive a run.

use std::ffi::OsString;
use std::io::{IsTerminal, Read};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::poll::{PollFd, PollFlags, poll};
use nix::unistd::geteuid;
use serde_json::{Map, Value};
use tracing::Level;

use super::home;
use super::load::load_text;
use super::pending;
use super::processed::Processed;
use super::request::{self, Kept};
use super::signals::Signals;
use super::{Colour, Common, Failure, LogLevel, show};
use crate::base::program_name::{self, ORCHESTRATE};
use crate::disk::faulty::{self, Faults};
use crate::disk::fs::{self, OnVolume as _};
use crate::engine::run::Address;
use crate::engine::{self, Event, Fault, OnError, Origin, Policy, Request, Run, RunStatus};

use crate::attempt::exec_env::Site;
use crate::attempt::exec_env::{self, Environment, Turns};
use crate::attempt::gates::CONTROL;
use crate::attempt::parking::Parking;
use crate::attempt::prepare::refs::ARTIFACTS;
use crate::attempt::source_files::{self, PartSource};
use crate::attempt::spellbook::{self, Page};
use crate::base::digest::sha256;
use crate::base::ids::RunId;
use crate::base::text::single_line;
use crate::base::time::{self, Clock, SystemClock, Time};
use crate::disk;
use crate::exec::Stop;
use crate::fleet::member::chance;
use crate::run::checkout;
use crate::run::drive::{Drive, Report};
use crate::run::grimoires;
use crate::run::local::{self, Finish};
use crate::run::notify::{Notifier, Notifying};
use crate::run::open::{self, Cure, OpenError};
use crate::run::traces::Traces;
use crate::settings::Config;
use crate::settings::ConfigError;
use crate::store::lock::{self, LockError, RunLock};
use crate::store::{DEFINITION, SETTINGS, Store, StoreError, snapshot};
use crate::view::log;
use crate::view::progress::{Telling, TextReport, seconds};
use crate::view::stderr::talk;
use crate::view::{self, RunView};
use crate::workflow::plan::{Action, Dialect, Isolation};
use crate::workflow::{Plan, Problem};
use crate::workspace::{Workspace, dangling, resolved};
use crate::yaml::problem::{located, nearest};

/// Clock offset in milliseconds, and the disk faults to inject. For tests of a fleet.
pub(crate) const CLOCK_OFFSET: &str = "ORCHESTRATE_CLOCK_OFFSET_MS";
pub(crate) const FAULTS: &str = "ORCHESTRATE_FAULTS";

/// The hint for a disk error that occurred before the run existed.
const RUN_AGAIN: &str = "run it again";
/// Maximum time that a run needs to release the checkout after its status shows that it is over.
const LETTING_GO: Duration = Duration::from_secs(1);

/// Flags that decide how a run goes.
#[derive(clap::Args, Clone, Debug, Default)]
pub(crate) struct RunOptions {
    /// Show where the run is, as it goes
    #[arg(long)]
    pub progress: bool,
    /// Back up the state before each step (the last three are kept)
    #[arg(long)]
    pub backup_state: bool,
    /// What follows a failure that the workflow does not handle
    #[arg(long, value_enum, value_name = "WHAT")]
    pub on_error: Option<OnErrorArg>,
    /// How often a failed provider step is tried again, where it does not say so itself
    #[arg(long, value_name = "N")]
    pub max_retries: Option<u32>,
    /// How many nodes go on at once; steps go one after the other [default: 8]
    #[arg(long, value_name = "N", value_parser = at_least_one)]
    pub jobs: Option<usize>,
    /// How long to wait before trying again
    #[arg(long, value_name = "MS")]
    pub retry_delay: Option<u64>,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
pub(crate) enum OnErrorArg {
    /// End the run; `resume` goes on from there
    Stop,
    /// Run what is left, then end as failed
    Continue,
    /// Ask
    Interactive,
}

impl RunOptions {
    /// Returns the policy of a new run.
    pub(crate) fn new_policy(&self, around: &Surroundings) -> Policy {
        self.policy(Policy::default().limit_visits(around.config.max_visits))
    }

    /// Returns `base`, overridden by these flags.
    pub(crate) fn policy(&self, base: Policy) -> Policy {
        let on_error = self.on_error.map(|choice| match choice {
            OnErrorArg::Stop => OnError::Stop,
            OnErrorArg::Continue => OnError::Continue,
            OnErrorArg::Interactive => OnError::Interactive,
        });
        Policy {
            on_error: on_error.or(base.on_error),
            max_retries: self.max_retries.unwrap_or(base.max_retries),
            retry_delay_ms: self.retry_delay.unwrap_or(base.retry_delay_ms),
            ..base
        }
    }
}

/// The process that drives a run, for checking the flags of that run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Driver {
    /// This process, which also executes every step.
    Alone,
    /// This process; workers execute the steps.
    ForFleet,
    /// A coordinator, at some later time.
    Coordinator,
}

impl Driver {
    /// Returns the driver for a run that this process drives.
    pub(crate) fn here(fleet: bool) -> Driver {
        if fleet { Driver::ForFleet } else { Driver::Alone }
    }
}

impl RunOptions {
    /// Returns one of the flags that are set, or `None`. Only the process that drives a run uses
    /// these flags.
    pub(crate) fn any(&self) -> Option<&'static str> {
        let flags = [
            ("--progress", self.progress),
            ("--backup-state", self.backup_state),
            ("--on-error", self.on_error.is_some()),
            ("--max-retries", self.max_retries.is_some()),
            ("--jobs", self.jobs.is_some()),
            ("--retry-delay", self.retry_delay.is_some()),
        ];
        flags.iter().find(|(_, given)| *given).map(|(flag, _)| *flag)
    }

    /// Rejects all of these flags, for a command that does not drive the run itself. `why` is the
    /// reason for the message.
    pub(crate) fn check_none(&self, why: &str) -> Result<(), Failure> {
        match self.any() {
            Some(flag) => {
                let message = format!("`{flag}` does nothing here: {why}");
                Err(Failure::new(2, message).hint("leave it out"))
            }
            None => Ok(()),
        }
    }

    /// Rejects flags that have no effect for this workflow or this driver, so that the user does
    /// not rely on them.
    pub(crate) fn check(&self, plan: &Plan, driver: Driver) -> Result<(), Failure> {
        let nodes = plan.dialect() == Dialect::Nodes;
        let of_steps = [
            ("--on-error", self.on_error.is_some(), "a node says `trigger_rule`"),
            ("--max-retries", self.max_retries.is_some(), "a node says `retry`"),
            ("--retry-delay", self.retry_delay.is_some(), "a node says `retry: { delay_ms }`"),
        ];
        let given = of_steps.iter().find(|(_, given, _)| *given && nodes);
        if let Some((flag, _, hint)) = given {
            let message = format!("`{flag}` does nothing for a workflow of `nodes:`");
            return Err(Failure::new(2, message).hint(hint));
        }
        if self.jobs.is_some() && !nodes {
            let message = "`--jobs` does nothing for steps, which go one after the other";
            return Err(Failure::new(2, message).hint("leave it out"));
        }
        self.check_driver(driver)
    }

    fn check_driver(&self, driver: Driver) -> Result<(), Failure> {
        if self.jobs.is_some() && driver != Driver::Alone {
            let message = "`--jobs` does nothing for a run of a fleet: its workers say how much \
                           goes on at once";
            return Err(Failure::new(2, message)
                .hint("leave it out; `orchestrate worker AGENT --concurrency N` says it"));
        }
        if driver != Driver::Coordinator {
            return Ok(());
        }
        if matches!(self.on_error, Some(OnErrorArg::Interactive)) {
            let message = "`--on-error interactive` needs a person, and a submitted run has none";
            return Err(Failure::new(2, message)
                .hint("`orchestrate run --fleet` and `orchestrate resume RUN` drive it here"));
        }
        let shown = [("--progress", self.progress), ("--backup-state", self.backup_state)];
        match shown.iter().find(|(_, given)| *given) {
            Some((flag, _)) => {
                let message = format!("`{flag}` does nothing here: a coordinator drives the run");
                Err(Failure::new(2, message).hint(
                    "`orchestrate run --fleet` and `orchestrate resume RUN` drive it here, \
                     `orchestrate logs RUN --follow` looks on",
                ))
            }
            None => Ok(()),
        }
    }
}

/// The environment of this invocation, read once at startup.
#[derive(Clone)]
pub(crate) struct Surroundings {
    pub workspace: PathBuf,
    /// Directory that holds the runs.
    pub state_dir: PathBuf,
    pub environment: Environment,
    pub config: Config,
    pub debug: bool,
    pub common: Common,
}

impl Surroundings {
    pub(crate) fn look(common: &Common) -> Result<Surroundings, Failure> {
        Surroundings::look_by(common, load_config)
    }

    /// Like `look`, but falls back to the built-in settings if the settings are invalid. Also
    /// returns the failure in that case.
    pub(crate) fn look_anyway(common: &Common) -> Result<(Surroundings, Option<Failure>), Failure> {
        let mut wrong = None;
        let around = Surroundings::look_by(common, |common, workspace, environment| {
            load_config(common, workspace, environment).or_else(|failure| {
                wrong = Some(failure);
                Ok(Config::built_in())
            })
        })?;
        Ok((around, wrong))
    }

    /// Like `look_anyway`, but logs a warning about invalid settings.
    pub(crate) fn look_warned(common: &Common) -> Result<Surroundings, Failure> {
        let (around, wrong) = Surroundings::look_anyway(common)?;
        if let Some(failure) = wrong {
            warn_of_settings(&failure);
        }
        Ok(around)
    }

    fn look_by(
        common: &Common,
        load: impl FnOnce(&Common, &Path, &Environment) -> Result<Config, Failure>,
    ) -> Result<Surroundings, Failure> {
        let environment: Environment = std::env::vars_os()
            .filter_map(|(key, value)| Some((key.into_string().ok()?, value)))
            .collect();
        let get = |key: &str| environment.get(key).filter(|value| !value.is_empty());
        let debug = common.debug || get("ORCHESTRATE_DEBUG").is_some_and(|value| value != "0");
        set_up_log(common, get("ORCHESTRATE_LOG_LEVEL"), debug)?;
        be_unreliable(&environment)?;
        let here = std::env::current_dir().map_err(|error| {
            Failure::new(1, format!("cannot find the current directory: {error}"))
        })?;
        let workspace = match get("ORCHESTRATE_WORKSPACE") {
            Some(path) => here.join(path),
            None => workspace_above(&here).unwrap_or_else(|| here.clone()),
        };
        let workspace = workspace.canonicalize().map_err(|error| {
            Failure::new(2, format!("the workspace `{}`: {error}", workspace.display()))
        })?;
        let state_dir = common.state_dir.as_ref().map(|given| here.join(given));
        let state_dir = state_dir
            .or_else(|| get("ORCHESTRATE_STATE_DIR").map(PathBuf::from))
            .unwrap_or_else(|| PathBuf::from(".orchestrate/runs"));
        let state_dir = resolved(&workspace, &state_dir);
        if let Some(given) = &common.state_dir {
            program_name::keep_state_dir(given);
        }
        let config = load(common, &workspace, &environment)?;
        if get("ORCHESTRATE_WORKSPACE").is_none()
            && here.canonicalize().is_ok_and(|h| h != workspace)
        {
            name_workspace(common, &workspace);
        }
        Ok(Surroundings {
            workspace,
            state_dir,
            environment,
            config,
            debug,
            common: common.clone(),
        })
    }

    /// Returns a path of the workspace as the user can open it: relative to the current directory
    /// if it is inside, or else absolute.
    pub(super) fn openable(&self, path: &Path) -> String {
        let whole = self.workspace.join(path);
        let here = std::env::current_dir().ok();
        let inside = here.as_ref().and_then(|here| whole.strip_prefix(here).ok());
        inside.unwrap_or(&whole).display().to_string()
    }

    pub(crate) fn colour(&self) -> bool {
        match self.common.color {
            Colour::Always => true,
            Colour::Never => false,
            Colour::Auto => self.may_colour() && self.has_screen(),
        }
    }

    /// Returns true if `NO_COLOR` is unset or empty.
    pub(crate) fn may_colour(&self) -> bool {
        self.environment.get("NO_COLOR").is_none_or(|value| value.is_empty())
    }

    /// Returns true if stderr is a terminal that supports cursor movement.
    pub(crate) fn has_screen(&self) -> bool {
        std::io::stderr().is_terminal() && !self.is_dumb()
    }

    /// Returns true if `TERM` is unset, empty or `dumb`: a terminal without colours and cursor
    /// movement.
    pub(crate) fn is_dumb(&self) -> bool {
        self.environment.get("TERM").is_none_or(|term| term.is_empty() || term == "dumb")
    }

    /// Prints a message on stderr that is neither data nor an error. Does nothing with `--quiet`.
    pub(crate) fn say(&self, line: impl std::fmt::Display) {
        if !self.common.quiet {
            talk(line);
        }
    }
}

/// Returns the nearest ancestor of `here` that is a workspace, or `None` if there is none or `here`
/// itself is one.
///
/// A workspace decides which programs run. So a directory of another user counts only if that user
/// is root or also owns `here`; otherwise a file in `/tmp` could take over commands.
pub(super) fn workspace_above(here: &Path) -> Option<PathBuf> {
    use std::os::unix::fs::MetadataExt as _;
    let owner = |path: &Path| fs::symlink_metadata(&path).ok().map(|file| file.uid());
    let found = here.ancestors().find(|dir| dir.join(OWN_DIR).is_present_dir())?;
    if found == here {
        return None;
    }
    let mine = [Some(geteuid().as_raw()), Some(0), owner(here)];
    if !mine.contains(&owner(&found.join(OWN_DIR))) {
        tracing::warn!(
            "`{}` belongs to another user and is not used; `cd` there or set \
             ORCHESTRATE_WORKSPACE to use it",
            found.join(OWN_DIR).display()
        );
        return None;
    }
    Some(found.to_owned())
}

/// Prints the workspace, once per process. Called if it is not the current directory.
fn name_workspace(common: &Common, workspace: &Path) {
    static SAID: std::sync::Once = std::sync::Once::new();
    if !common.quiet {
        SAID.call_once(|| talk(format_args!("workspace: {}", workspace.display())));
    }
}

/// Name of the directory that makes its parent a workspace.
const OWN_DIR: &str = ".orchestrate";

/// Sets up a clock offset and disk faults if the environment asks for them. For tests of the fleet.
fn be_unreliable(environment: &Environment) -> Result<(), Failure> {
    let get = |key: &str| Some(environment.get(key)?.to_string_lossy().into_owned());
    let wrong = |key: &str, text: &str, wanted: &str| {
        Failure::new(2, format!("{key} is `{text}`")).hint(format!("it must be {wanted}"))
    };
    if let Some(text) = get(CLOCK_OFFSET).filter(|text| !text.is_empty()) {
        let by = text.parse().map_err(|_| wrong(CLOCK_OFFSET, &text, "milliseconds"))?;
        time::set_wrong(by);
    }
    if let Some(text) = get(FAULTS).filter(|text| !text.is_empty()) {
        let wanted = "SEED,RATE (how many of a thousand calls fail) or SEED,RATE,nolocks|panics";
        let faults = Faults::parse(&text).ok_or_else(|| wrong(FAULTS, &text, wanted))?;
        faulty::fail_by(faults);
    }
    Ok(())
}

fn set_up_log(common: &Common, variable: Option<&OsString>, debug: bool) -> Result<(), Failure> {
    let asked = match (common.log_level, variable) {
        (Some(level), _) => Some(level),
        (None, Some(text)) => {
            let text = text.to_string_lossy();
            let level = <LogLevel as clap::ValueEnum>::from_str(&text, true).map_err(|_| {
                Failure::new(2, format!("ORCHESTRATE_LOG_LEVEL is `{text}`"))
                    .hint("it must be debug, info, warn or error")
            })?;
            Some(level)
        }
        (None, None) => None,
    };
    let level = asked.map(|level| match level {
        LogLevel::Debug => Level::DEBUG,
        LogLevel::Info => Level::INFO,
        LogLevel::Warn => Level::WARN,
        LogLevel::Error => Level::ERROR,
    });
    let shown = match level {
        Some(level) => level,
        None if common.quiet => Level::ERROR,
        None if common.verbose => Level::INFO,
        None => Level::WARN,
    };
    let kept = if debug { Level::DEBUG } else { level.unwrap_or(Level::INFO) };
    log::set_up(shown, kept);
    Ok(())
}

/// Logs a warning that the settings are invalid and the built-in ones are used.
pub(crate) fn warn_of_settings(failure: &Failure) {
    tracing::warn!("the settings are wrong, and those built in are taken: {}", failure.located());
}

fn load_config(
    common: &Common,
    workspace: &Path,
    environment: &Environment,
) -> Result<Config, Failure> {
    let (optional, named) = settings_files(common, workspace, environment);
    Config::load(&optional, named.as_deref()).map_err(|error| bad_config(&error))
}

/// Returns the settings files that are optional, and the one that the user named.
pub(crate) fn settings_files(
    common: &Common,
    workspace: &Path,
    environment: &Environment,
) -> (Vec<PathBuf>, Option<PathBuf>) {
    let home = environment
        .get("XDG_CONFIG_HOME")
        .filter(|path| !path.is_empty())
        .map(PathBuf::from)
        .or_else(|| environment.get("HOME").map(|home| Path::new(home).join(".config")));
    let user = home.map(|home| home.join("orchestrate/config.yaml"));
    let mut optional: Vec<PathBuf> = user.into_iter().collect();
    optional.push(workspace.join(".orchestrate/config.yaml"));
    let named = common.config.clone().or_else(|| {
        environment.get("ORCHESTRATE_CONFIG").filter(|p| !p.is_empty()).map(PathBuf::from)
    });
    (optional, named)
}

pub(crate) fn bad_config(error: &ConfigError) -> Failure {
    let ConfigError { file, text, problems } = error;
    Failure::in_text(problems.clone(), &file.display().to_string(), text)
}

/// Renders problems with their source lines. After 100 problems, only prints the number of the
/// others.
pub(crate) fn show(problems: &[Problem], file: &str, text: &str) -> String {
    const SHOWN: usize = 100;
    let shown = problems.iter().take(SHOWN).map(|problem| problem.show(file, text));
    let mut shown = shown.collect::<Vec<_>>().join("\n");
    if problems.len() > SHOWN {
        shown.push_str(&format!("\nand {} more problems\n", problems.len() - SHOWN));
    }
    shown
}

/// A workflow that was read and compiled.
pub(crate) struct Loaded {
    pub plan: Plan,
    pub file: String,
    pub text: String,
    pub warnings: Vec<Problem>,
    /// The other files that the workflow includes.
    pub parts: Vec<Kept>,
    /// The spells that the workflow uses.
    pub spells: Vec<Page>,
}

impl Loaded {
    pub(crate) fn checksum(&self) -> String {
        checksum(self.text.as_bytes())
    }
}

pub(crate) fn checksum(bytes: &[u8]) -> String {
    format!("sha256:{}", sha256(bytes))
}

fn at_least_one(text: &str) -> Result<usize, String> {
    let number = text.parse().ok().filter(|number| *number > 0);
    number.ok_or_else(|| "it must be a number from 1 on".into())
}

/// Returns the path of a workflow file: relative to the current directory if it exists there, else
/// relative to the workspace.
pub(crate) fn workflow_path(around: &Surroundings, file: &Path) -> PathBuf {
    if file.is_present() { file.to_owned() } else { around.workspace.join(file) }
}

/// Reads and compiles a workflow file, or a grimoire given by its name. The failure contains all
/// problems.
pub(crate) fn load(around: &Surroundings, file: &Path) -> Result<Loaded, Failure> {
    let found = find_workflow(around, file);
    let (file, text) = found.map_err(|message| no_workflow(around, file, message))?;
    load_text(around, &file, &text)
}

/// Returns a failure with this message, and a hint with a similar workflow name if there is one.
pub(crate) fn no_workflow(around: &Surroundings, file: &Path, message: String) -> Failure {
    let failure = Failure::new(2, message);
    match near_workflow(around, file) {
        Some(near) => failure.hint(format!("did you mean `{near}`?")),
        None => failure,
    }
}

/// Returns the name of the existing workflow or built-in grimoire that is most similar to `file`.
pub(crate) fn near_workflow(around: &Surroundings, file: &Path) -> Option<String> {
    let dir = file.parent().unwrap_or(Path::new(""));
    let beside = fs::read_dir(workflow_path(around, &dir.join("."))).into_iter().flatten();
    let is_yaml = |path: &Path| path.extension().is_some_and(|end| end == "yaml" || end == "yml");
    let files = beside.flatten().map(|entry| dir.join(entry.file_name()));
    let mut names: Vec<String> =
        files.filter(|path| is_yaml(path)).map(|path| path.display().to_string()).collect();
    names.sort();
    names.extend(grimoires::built_in().map(str::to_owned));
    let wanted = file.display().to_string();
    let near = nearest(&wanted, names.iter().map(String::as_str));
    near.filter(|near| *near != wanted).map(str::to_owned)
}

/// Returns the display name and the text of a grimoire, or `None` if there is no grimoire of this
/// name.
pub(crate) fn find_grimoire(
    around: &Surroundings,
    name: &str,
) -> Option<Result<(String, String), String>> {
    grimoires::find(name, &|path| {
        let path = Path::new(path);
        let there = workflow_path(around, path).is_present();
        // Do not treat a dangling link as missing: reading it reports the actual error.
        let meant = there || dangling(&around.workspace, path).is_some();
        meant.then(|| read_workflow(around, path))
    })
}

/// Returns the display name and the text of a workflow file, or of a grimoire given by its name.
pub(crate) fn find_workflow(
    around: &Surroundings,
    file: &Path,
) -> Result<(String, String), String> {
    let name = file.display().to_string();
    if !workflow_path(around, file).is_present()
        && let Some(found) = find_grimoire(around, &name)
    {
        return found;
    }
    let text = read_workflow(around, file)?;
    Ok((path_in_workspace(around, file).unwrap_or(name), text))
}

/// Converts a path that is relative to a directory below the workspace into one relative to the
/// workspace. Returns `None` if both are the same.
fn path_in_workspace(around: &Surroundings, file: &Path) -> Option<String> {
    let here = std::env::current_dir().ok()?.canonicalize().ok()?;
    if here == around.workspace || !file.is_present() {
        return None;
    }
    let whole = here.join(file);
    // Resolve links in the directory, but keep the file's own name.
    let whole = whole.parent()?.canonicalize().ok()?.join(whole.file_name()?);
    let inside = whole.strip_prefix(&around.workspace).unwrap_or(&whole);
    Some(inside.to_string_lossy().into_owned())
}

/// Reads a workflow file as text. The error is a complete message.
pub(crate) fn read_workflow(around: &Surroundings, file: &Path) -> Result<String, String> {
    let name = file.display();
    if workflow_path(around, file).is_present_dir() {
        return Err(format!("`{name}` is a directory; name the files in it: {name}/*.yaml"));
    }
    let bytes = read_bounded(&workflow_path(around, file), around.config.input_bytes)
        .map_err(|error| format!("cannot read the workflow `{name}`: {error}"))?;
    String::from_utf8(bytes).map_err(|error| {
        let good = &error.as_bytes()[..error.utf8_error().valid_up_to()];
        let line = good.iter().filter(|byte| **byte == b'\n').count() + 1;
        format!("`{name}` is not UTF-8 text (line {line})")
    })
}

/// Reads a file of at most `limit` bytes. The limit protects against endless devices; a pipe
/// without a writer is an error.
pub(crate) fn read_bounded(path: &Path, limit: u64) -> std::io::Result<Vec<u8>> {
    // With this flag, opening a pipe does not block. It has no effect on regular files.
    let flags = nix::libc::O_NONBLOCK;
    let file = std::fs::OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    let mut bytes = match file.metadata()?.file_type().is_fifo() {
        true => wait_for_writer(&file)?,
        false => Vec::new(),
    };
    file.take(limit + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > limit {
        return Err(std::io::Error::other(format!("it is larger than {limit} bytes")));
    }
    Ok(bytes)
}

/// Waits until a pipe has data or its writer is done, then makes the pipe blocking. Returns the
/// bytes that were read meanwhile. A slow writer is fine, but a pipe without any writer is an
/// error.
fn wait_for_writer(mut pipe: &std::fs::File) -> std::io::Result<Vec<u8>> {
    const PATIENCE: u16 = 3_000;
    let mut begun = Vec::new();
    while begun.is_empty()
        && poll(&mut [PollFd::new(pipe.as_fd(), PollFlags::POLLIN)], PATIENCE)? == 0
    {
        // A read of 0 bytes means that no process has the pipe open for writing.
        let mut byte = [0; 1];
        match pipe.read(&mut byte) {
            Ok(0) => return Err(std::io::Error::other("it is a pipe, and nobody writes to it")),
            Ok(_) => begun.extend(byte),
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
    fcntl(pipe, FcntlArg::F_SETFL(OFlag::empty()))?;
    Ok(begun)
}

pub(crate) fn open_workspace(around: &Surroundings) -> Result<Workspace, Failure> {
    Workspace::open(&around.workspace)
        .map_err(|error| Failure::new(1, format!("cannot open the workspace: {error}")))
}

/// A run that this process owns.
pub(crate) struct Owned {
    pub plan: Plan,
    pub run: Run,
    pub store: Store,
    pub lock: RunLock,
    /// Lock on the checkout, if the run changes the checkout and this process drives it.
    pub checkout: Option<RunLock>,
}

/// The parameters of a new run.
pub(crate) struct NewRun<'a> {
    pub loaded: &'a Loaded,
    pub plan: Plan,
    pub context: Map<String, Value>,
    pub policy: Policy,
    pub only_step: Option<String>,
    /// Destination of the archive of the processed directory after success. Empty means the run's
    /// directory.
    pub archive: Option<String>,
    /// True if the steps are executed as tasks by workers.
    pub fleet: bool,
    /// The request that the run is started for.
    pub request: Option<Box<Request>>,
}

impl<'a> NewRun<'a> {
    /// Returns the parameters to run a whole workflow in this process.
    pub(crate) fn of(loaded: &'a Loaded, context: Map<String, Value>, policy: Policy) -> Self {
        let plan = loaded.plan.clone();
        let (only_step, archive, fleet, request) = (None, None, false, None);
        NewRun { loaded, plan, context, policy, only_step, archive, fleet, request }
    }

    /// Rejects a run that is already known to fail later, before any agent starts.
    pub(crate) fn check(&self) -> Result<(), Failure> {
        let request = self.request.as_deref();
        let bead = request.and_then(|request| request.bead.as_ref());
        self.check_merges(request)?;
        // If only one step runs, problems of the other steps do not matter.
        if self.only_step.is_some() {
            return Ok(());
        }
        let given = spellbook::Given { context: &self.context, bead };
        let beads = request.map(|request| request.beads.clone()).unwrap_or_default();
        let missing = spellbook::missing(&self.plan, &self.loaded.spells, &beads, &given);
        if missing.is_empty() {
            return Ok(());
        }
        let Loaded { file, text, .. } = self.loaded;
        Err(Failure::in_text(located(text, missing), file, text))
    }

    /// Rejects a plan with an unconditional merge step if the run has no branch to merge. Only a
    /// bead with a worktree has one.
    fn check_merges(&self, request: Option<&Request>) -> Result<(), Failure> {
        let mut merge = None;
        self.plan.root().walk(&mut |step| {
            let surely = step.when.is_none() && matches!(step.action, Action::Merge { .. });
            merge = merge.or(surely.then_some(step.name.as_str()));
        });
        let Some(step) = merge else { return Ok(()) };
        let bead = request.filter(|request| request.bead.is_some());
        let why = match bead.map(|request| request.isolation.unwrap_or_default()) {
            None => "the run has no bead",
            Some(Isolation::Workspace) => "its bead is worked on in the workspace",
            Some(Isolation::Worktree) => return Ok(()),
        };
        let message = format!("step `{step}` has nothing to merge: {why}");
        let hint = match bead {
            None => "give the work item: `--bead FILE|ID`",
            Some(_) => "leave out `--isolation workspace`",
        };
        Err(Failure::new(2, message).hint(hint))
    }
}

/// Creates a run: its directory, its first files, its lock, and `latest`. Removes the directory
/// again if the first files cannot be written.
pub(crate) fn create(around: &Surroundings, new: NewRun) -> Result<Owned, Failure> {
    new.check()?;
    // A run of a fleet waits for the checkout when it is driven.
    let checkout = if new.fleet { None } else { take_checkout(around, &new.plan)? };
    let dir = &around.state_dir;
    let warnings = &new.loaded.warnings;
    let cannot = |path: &Path, error: &std::io::Error| {
        let message = format!("cannot make `{}`: {error}", path.display());
        hinted(Failure::new(1, message), error, RUN_AGAIN)
    };
    let now = SystemClock.now();
    disk::machine().make_dirs(dir).map_err(|error| cannot(dir, &error))?;
    keep_from_git(&around.workspace);
    let (id, root) = loop {
        let id = RunId::new(&now.to_stamp(), chance());
        let root = dir.join(id.as_str());
        match fs::create_dir(&root) {
            Ok(()) => break (id, root),
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(cannot(&root, &error)),
        }
    };
    let mut owned = fill(around, new, now, &id, &root).inspect_err(|_| {
        let _ = fs::remove_dir_all(&root);
    })?;
    owned.checkout = checkout;
    keep_log(around, &owned.plan, &root, &id)?;
    for warning in warnings {
        log::keep(Level::WARN, &warning.message);
    }
    point_latest(dir, &id);
    tracing::info!("run {id} of `{}` started", owned.run.origin.workflow_file);
    Ok(owned)
}

/// Creates a run under a given id that does not exist yet, for other processes to drive. The run
/// appears complete or not at all.
pub(crate) fn create_as(around: &Surroundings, new: NewRun, id: &RunId) -> Result<Owned, Failure> {
    new.check()?;
    let dir = &around.state_dir;
    let failed = |error: std::io::Error| Failure::new(1, format!("cannot make run {id}: {error}"));
    let making = dir.join(format!(".{id}.{}", std::process::id()));
    // Remove leftovers of an earlier attempt.
    let _ = fs::remove_dir_all(&making);
    disk::machine().make_dirs(&making).map_err(failed)?;
    keep_from_git(&around.workspace);
    let mut owned = fill(around, new, SystemClock.now(), id, &making).inspect_err(|_| {
        let _ = fs::remove_dir_all(&making);
    })?;
    let root = dir.join(id.as_str());
    crate::disk::rename(&making, &root).map_err(failed)?;
    owned.store.moved_to(&root);
    Ok(owned)
}

/// Hides the engine's files in a workspace from git. A failure is only logged: it affects nothing
/// but the output of `git status`.
pub(crate) fn keep_from_git(workspace: &Path) {
    let own = workspace.join(".orchestrate");
    if let Err(error) = disk::keep_from_git(&*disk::machine(), &own) {
        tracing::warn!("cannot hide `{}` from git: {error}", own.display());
    }
}

/// Writes the first files into a new run's directory.
fn fill(
    around: &Surroundings,
    new: NewRun,
    now: Time,
    id: &RunId,
    root: &Path,
) -> Result<Owned, Failure> {
    let root_then = around.state_dir.join(id.as_str());
    let inside = root_then.strip_prefix(&around.workspace);
    let workspace = inside.is_err().then(|| around.workspace.to_string_lossy().into_owned());
    let relative = inside.unwrap_or(&root_then);
    keep_parts(around, root, &new.plan, new.loaded)
        .map_err(|error| hinted(Failure::new(1, &error), &error.source, RUN_AGAIN))?;
    let origin = Origin {
        run_id: id.as_str().to_owned(),
        workflow_file: new.loaded.file.clone(),
        workflow_checksum: new.loaded.checksum(),
        run_root: relative.to_string_lossy().into_owned(),
        workspace,
        context: new.context,
        policy: new.policy,
        only_step: new.only_step,
        archive: new.archive,
        fleet: new.fleet,
        request: new.request,
        definition: None,
    };
    let plan = source_files::with_commands(new.plan, root);
    let mut run = Run::new(&plan, id.clone(), origin, now);
    let settings = serde_json::to_vec_pretty(&around.config.to_be_kept()).unwrap_or_default();
    let mut frozen = vec![(DEFINITION, new.loaded.text.as_bytes())];
    if !around.config.layers.is_empty() {
        frozen.push((SETTINGS, &settings));
    }
    let store = Store::create(disk::machine(), root, &frozen, &plan, &mut run, now)
        .map_err(|error| hinted(Failure::new(1, &error), &error.source, RUN_AGAIN))?;
    if new.fleet {
        // Other machines look for answers in this directory, so create it before the first answer.
        let control = root.join(CONTROL);
        disk::machine().make_dirs(&control).map_err(|source| {
            let error = StoreError { doing: "make", path: control, source };
            hinted(Failure::new(1, &error), &error.source, RUN_AGAIN)
        })?;
    }
    let taken = if new.fleet { lock::take_if_any(root) } else { lock::take(root) };
    let lock = taken.map_err(|error| cannot_lock(error, root, id))?;
    Ok(Owned { plan, run, store, lock, checkout: None })
}

/// Copies the files that a workflow includes into the run, and creates its artifacts directory.
pub(crate) fn keep_parts(
    around: &Surroundings,
    root: &Path,
    plan: &Plan,
    loaded: &Loaded,
) -> Result<(), StoreError> {
    let wrong = |(path, source)| StoreError { doing: "write", path, source };
    spellbook::keep(root, &loaded.spells).map_err(wrong)?;
    if plan.dialect() != Dialect::Nodes {
        return Ok(());
    }
    let artifacts = root.join(ARTIFACTS);
    let made = disk::machine().make_dirs(&artifacts);
    made.map_err(|error| wrong((artifacts, error)))?;
    let home = request::home(around);
    let kept = loaded.parts.iter().map(|Kept { part, from, text }| {
        let source = PartSource::of(from, text, &around.workspace, home.as_deref());
        (source_files::kept(root, part, from), text.as_slice(), source)
    });
    source_files::keep(root, &kept.collect::<Vec<_>>()).map_err(wrong)
}

/// Starts to write the log of a run.
pub(crate) fn keep_log(
    around: &Surroundings,
    plan: &Plan,
    root: &Path,
    id: &RunId,
) -> Result<(), Failure> {
    let mask = exec_env::mask(plan, &around.environment);
    log::keep_in(root, around.common.trace.then(|| id.to_string()), mask).map_err(|error| {
        let message = format!("cannot write the log in `{}`: {error}", root.display());
        hinted(Failure::new(1, message), &error, "try again")
    })
}

/// Returns the failure for a disk error of an existing run.
pub(crate) fn disk_failure(error: &StoreError, id: &RunId) -> Failure {
    hinted(Failure::new(1, error), &error.source, &format!("`{ORCHESTRATE} resume {id}`"))
}

/// Adds a hint for known kinds of disk errors. `again` is the action that follows the repair.
fn hinted(failure: Failure, error: &std::io::Error, again: &str) -> Failure {
    use std::io::ErrorKind::{PermissionDenied, QuotaExceeded, ReadOnlyFilesystem, StorageFull};
    match error.kind() {
        StorageFull | QuotaExceeded => {
            failure.hint(format!("the disk is full: make room, then {again}"))
        }
        ReadOnlyFilesystem | PermissionDenied if again == RUN_AGAIN => {
            failure.hint("the workspace must be writable, or give `--state-dir`")
        }
        // An existing run cannot be moved to another directory.
        ReadOnlyFilesystem | PermissionDenied => failure.hint("its directory must be writable"),
        _ => failure,
    }
}

/// Returns the failure for an unreadable run: the reason, and a hint.
pub(crate) fn cannot_read(id: &RunId, error: &OpenError) -> Failure {
    if error.is_forbidden() {
        let message = format!("run {id} cannot be read by this user: {error}");
        return Failure::new(1, message).hint("its owner can");
    }
    let failure = Failure::new(7, format!("run {id} cannot be read: {error}"));
    failure.hint(match error.cure() {
        Cure::Restart => begins_anew(id),
        Cure::Remove => only_removed(),
        Cure::Repair => format!(
            "`{ORCHESTRATE} fsck --repair` mends it; `{ORCHESTRATE} resume {id} --repair` mends it \
             and goes on with it"
        ),
    })
}

/// Like [`cannot_read`], and also reports child processes of the run that no process drives any
/// more.
pub(crate) fn cannot_show(run: &RunView, id: &RunId, error: &OpenError) -> Failure {
    let failure = cannot_read(id, error);
    match view::left_behind(run) {
        0 => failure,
        left => {
            let message = format!("{}, but {}", failure.message(), view::still_run(left));
            let ends = format!("`{ORCHESTRATE} cancel {id}` ends what is left");
            failure.told_as(message).and_hint(ends)
        }
    }
}

/// Returns the hint for a run that cannot be repaired but can be restarted.
pub(crate) fn begins_anew(id: &RunId) -> String {
    format!(
        "put the file back from a copy; without one, `{ORCHESTRATE} resume {id} --force-restart` \
         begins anew, and `{ORCHESTRATE} clean --stopped` removes this run by its age"
    )
}

/// Returns the hint for a run that can be neither repaired nor restarted.
pub(crate) fn only_removed() -> String {
    format!(
        "start again with `{ORCHESTRATE} run WORKFLOW`; `{ORCHESTRATE} clean --stopped` removes \
         this run by its age"
    )
}

pub(crate) fn take_lock(root: &Path, id: &RunId) -> Result<RunLock, Failure> {
    lock::take(root).map_err(|error| cannot_lock(error, root, id))
}

/// Locks the checkout for a run that changes it, so that no other such run uses it at the same
/// time. Returns `None` if the plan does not change the checkout.
pub(crate) fn take_checkout(
    around: &Surroundings,
    plan: &Plan,
) -> Result<Option<RunLock>, Failure> {
    if !plan.is_exclusive() {
        return Ok(None);
    }
    // A run's status shows that it is over shortly before it releases the checkout.
    let until = Instant::now() + LETTING_GO;
    loop {
        match try_checkout(around)? {
            Ok(lock) => return Ok(Some(lock)),
            Err(who) if Instant::now() >= until => return Err(checkout_taken(&who)),
            Err(_) => std::thread::sleep(LETTING_GO / 20),
        }
    }
}

/// Locks the checkout. The inner error names the run that holds it.
fn try_checkout(around: &Surroundings) -> Result<Result<RunLock, String>, Failure> {
    let taken = match checkout::take_lock(&around.workspace) {
        Ok(lock) => lock,
        Err(LockError::Held { owner }) => {
            let run = show::run_with_turn(around).map(|run| format!("run {run}"));
            return Ok(Err(run.unwrap_or_else(|| format!("a run of {owner}"))));
        }
        Err(LockError::Io(error)) => {
            let failure = Failure::new(1, format!("cannot lock the checkout: {error}"));
            return Err(hinted(failure, &error, "try again"));
        }
    };
    // A run of a fleet can use the checkout although no process of this machine holds the lock.
    Ok(match show::run_with_turn(around) {
        Some(run) => Err(format!("run {run}")),
        None => Ok(taken),
    })
}

fn checkout_taken(who: &str) -> Failure {
    Failure::new(5, format!("{who} works on this checkout already")).hint(
        "wait for it to end, or say `mutates_checkout: false` in a workflow that changes nothing",
    )
}

/// Returns the failure for a run's lock that cannot be taken.
pub(crate) fn cannot_lock(error: LockError, root: &Path, id: &RunId) -> Failure {
    match error {
        LockError::Held { owner } => {
            Failure::new(5, format!("run {id} is being driven already: {owner} owns it"))
                .hint(format!("`{ORCHESTRATE} status {id}` shows how far it is"))
        }
        LockError::Io(error) if error.kind() == std::io::ErrorKind::NotFound => {
            let message = format!("run {id} is damaged: its `{DEFINITION}` is missing");
            let nothing = open::has_nothing(root);
            Failure::new(7, message).hint(if nothing { only_removed() } else { begins_anew(id) })
        }
        LockError::Io(error) => {
            let message = format!("cannot lock `{}`: {error}", root.display());
            hinted(Failure::new(1, message), &error, "try again")
        }
    }
}

/// Points the link `latest` at a run. A failure is only logged, because the link is a convenience.
fn point_latest(dir: &Path, id: &RunId) {
    let temporary = dir.join(format!(".latest.{}", std::process::id()));
    let made = std::os::unix::fs::symlink(id.as_str(), &temporary)
        .and_then(|()| crate::disk::rename(&temporary, &dir.join("latest")));
    if let Err(error) = made {
        let _ = fs::remove_file(&temporary);
        tracing::warn!("cannot point `latest` at the run: {error}");
    }
}

/// Drives a run to its end and prints the outcome. Returns the exit code and the run.
pub(crate) fn drive(
    around: &Surroundings,
    owned: Owned,
    options: &RunOptions,
    signals: &Signals,
    event: Option<Event>,
) -> Result<(u8, Run), Failure> {
    let mask = exec_env::mask(&owned.plan, &around.environment);
    let report = TextReport::new(telling(around, options), around.colour(), mask);
    let began = SystemClock.now();
    let driven = drive_to_end(around, owned, options, &signals.stop, event, report)?;
    let Driven { plan, run, finish, notifier, held } = driven;
    let took = seconds(SystemClock.now().ms_since(began));
    let code = tell_end(around, &plan, &run, finish, signals.code(), &took);
    drop(held);
    notifier.finish();
    Ok((code, run))
}

/// A run that was driven as far as possible and is still locked by this process.
pub(crate) struct Driven {
    pub plan: Arc<Plan>,
    pub run: Run,
    pub finish: Finish,
    /// Notifier that may still be sending notifications.
    pub notifier: Arc<Notifier>,
    /// The run's lock, and its lock on the checkout.
    pub held: (RunLock, Option<RunLock>),
}

/// Drives a run to its end and passes its events to `report`. `event`, if any, is recorded first.
pub(crate) fn drive_to_end(
    around: &Surroundings,
    owned: Owned,
    options: &RunOptions,
    stop: &Stop,
    event: Option<Event>,
    report: impl Report,
) -> Result<Driven, Failure> {
    let Owned { plan, mut run, mut store, lock, checkout } = owned;
    let began = SystemClock.now();
    let notifier = notifier(around);
    let mut report = Notifying::new(report, &notifier);
    if let Some(event) = event {
        store.record(began, &event).map_err(|error| disk_failure(&error, &run.id))?;
        crate::engine::apply(&plan, &mut run, began, &event);
        report.happened(&plan, &run, &event);
    }
    let site = Site {
        workspace: open_workspace(around)?,
        logs: store.root().join("logs"),
        about: exec_env::about(&run.id, store.root()),
        mask: exec_env::mask(&plan, &around.environment),
        environment: around.environment.clone(),
        hidden: Vec::new(),
        debug: around.debug,
        live: run.origin.fleet,
        grace: around.config.grace,
        silences: around.config.silences,
        input_bytes: around.config.input_bytes,
        parking: Some(Arc::new(Parking::new(
            &around.workspace,
            around.config.back_off,
            around.config.back_off_max,
            true,
        ))),
        turns: Turns::of(&around.config),
        program: exec_env::program(),
        sandboxes: crate::attempt::sandboxes::Sandboxes::of(&around.config, None),
    };
    let root = store.root().to_owned();
    let (id, plan) = (run.id.clone(), Arc::new(plan));
    let backups = options.backup_state || around.debug;
    let drive = Drive::new(Arc::new(site), plan.clone(), run, store, backups);
    let jobs = options.jobs.unwrap_or(local::JOBS);
    let driven = local::drive(drive, &SystemClock, &mut report, stop, jobs);
    let (finish, run) = driven.map_err(|error| disk_failure(&error, &id))?;
    if let Some(destination) = &run.origin.archive
        && run.status == RunStatus::Completed
    {
        Processed::of(around, &plan).archive(Path::new(destination), &root)?;
    }
    Ok(Driven { plan, run, finish, notifier, held: (lock, checkout) })
}

/// Returns the notifier that the settings describe.
pub(crate) fn notifier(around: &Surroundings) -> Arc<Notifier> {
    let traces = Traces::of(&around.environment);
    Arc::new(Notifier::new(around.config.notify.clone(), around.workspace.clone(), traces))
}

/// Returns the amount of progress output for a run.
pub(crate) fn telling(around: &Surroundings, options: &RunOptions) -> Telling {
    match (around.common.quiet, options.progress) {
        (true, _) => Telling::Quiet,
        (false, true) => Telling::Progress { live: around.has_screen() },
        (false, false) => Telling::Plain,
    }
}

pub(crate) fn tell_end(
    around: &Surroundings,
    plan: &Plan,
    run: &Run,
    finish: Finish,
    stopped: u8,
    took: &str,
) -> u8 {
    let (code, word) = match finish {
        Finish::Ended(RunStatus::Completed) => (0, "completed"),
        Finish::Ended(RunStatus::Cancelled) => (4, "cancelled"),
        Finish::Ended(RunStatus::Blocked) => (1, "blocked"),
        Finish::Ended(_) => (1, "failed"),
        Finish::Stopped => (stopped, "stopped"),
        Finish::Paused => (3, "paused"),
    };
    tracing::info!("run {} {word}", run.id);
    let exit = tell_outcome(around, plan, run, code);
    let failed: Vec<_> =
        run.failed_steps.iter().map(|step| format!("`{}`", step.shown())).collect();
    if !failed.is_empty() {
        around.say(format!("failed {}s: {}", plan.unit(), failed.join(", ")));
    }
    let reason = run.error.as_ref().filter(|_| run.status == RunStatus::Cancelled);
    if let Some(error) = run.error.as_ref().filter(|_| reason.is_none()) {
        talk(format_args!("error: {}", single_line(error)));
    }
    if code == 0 {
        around.say(format!("run {} {word} in {took}", run.id));
        return exit;
    }
    if finish == Finish::Paused {
        around.say(format!("run {} waits for a person, after {took}", run.id));
        pending::tell_gates(around, plan, run);
        return exit;
    }
    // Errors are printed with `--quiet` too.
    match reason {
        Some(reason) => {
            talk(format_args!("run {} was cancelled after {took}: {}", run.id, single_line(reason)))
        }
        None => talk(format_args!("run {} {word} in {took}", run.id)),
    }
    let root = around.openable(Path::new(&run.origin.run_root));
    talk(format_args!("  state: {root}/state.json"));
    let failed = run.failed_steps.last().and_then(|path| Address::find(plan, path));
    let record = failed.and_then(|at| run.slot(&at)?.record.as_deref());
    let fault = record.and_then(|record| record.error.as_ref());
    if code == 1 && fault.is_some_and(Fault::is_of_spell) {
        talk("  the run keeps the spells that it began with; mend it, then continue with it:");
        talk(format_args!("  {ORCHESTRATE} resume {} --accept-changes", run.id));
        return exit;
    }
    if !engine::has_more(plan, run) {
        let file = &run.origin.workflow_file;
        talk(format_args!("  no node was executed, and none would be: {ORCHESTRATE} run {file}"));
        return exit;
    }
    // After the last step there is nothing to resume.
    if !run.is_through(plan) {
        // A user who cancels a run rarely wants to continue it, but the hint names the command
        // anyway.
        let (why, verb) =
            if code == 4 { ("take it up again", "retry") } else { ("go on", "resume") };
        talk(format_args!("  {why}: {ORCHESTRATE} {verb} {}", run.id));
    }
    exit
}

/// Writes the summary of the run to stdout, with `--json` only. Returns the exit code of the run,
/// or that of a write failure if the run succeeded.
pub(crate) fn tell_outcome(around: &Surroundings, plan: &Plan, run: &Run, code: u8) -> u8 {
    if !around.common.json {
        return code;
    }
    let mut summary = snapshot::summary(plan, run);
    summary["exit_code"] = code.into();
    match show::put_line(summary) {
        Ok(()) => code,
        Err(failure) => {
            failure.tell(false);
            if code == 0 { failure.code } else { code }
        }
    }
}

/// Finds a run by its id, a unique prefix of its id, or `latest`. Returns its id and directory.
pub(crate) fn find_run(around: &Surroundings, name: &str) -> Result<(RunId, PathBuf), Failure> {
    let dir = &around.state_dir;
    let ids = view::runs_in(dir);
    if name == "latest" {
        let target = fs::read_link(dir.join("latest")).ok();
        let linked = target.and_then(|path| RunId::parse(path.file_name()?.to_str()?));
        let newest = linked.filter(|id| ids.contains(id)).or_else(|| ids.first().cloned());
        // The state directory may also hold runs of other workspaces.
        let is_ours = |id: &&RunId| home::elsewhere(around, &dir.join(id.as_str())).is_none();
        let ours = newest.iter().chain(&ids).find(is_ours).cloned();
        let id = ours.or(newest);
        let id = id.ok_or_else(|| {
            let hint = format!("`{ORCHESTRATE} run WORKFLOW` begins one in `{}`", dir.display());
            Failure::new(2, "there is no run yet").hint(hint)
        })?;
        return Ok((id.clone(), dir.join(id.as_str())));
    }
    let named = |id: &&RunId| !name.is_empty() && id.as_str().starts_with(name);
    let found: Vec<_> = ids.iter().filter(named).collect();
    match found.as_slice() {
        [id] => Ok(((*id).clone(), dir.join(id.as_str()))),
        [] => {
            let hint = format!("`{ORCHESTRATE} status` shows those in `{}`", dir.display());
            Err(Failure::new(2, format!("there is no run `{name}`")).hint(hint))
        }
        several => {
            let list: Vec<_> = several.iter().take(5).map(|id| format!("`{id}`")).collect();
            let more = if several.len() > 5 { ", or another" } else { "" };
            let message = format!("`{name}` could be {}{more}", list.join(" or "));
            Err(Failure::new(2, message).hint("write more of it"))
        }
    }
}
