//! `orchestrate watch`: runs a workflow again whenever it, its prompts, or its schemas change.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use super::invocation::Invocation;
use super::request_args::RequestArgs;
use super::run::{ContextArgs, tell_warnings};
use super::run_options::{Driver, RunOptions};
use super::signals::{self, Signals};
use super::{Common, failure, outcome};
use crate::actions::checkout;
use crate::disk::fs::{self, OnVolume as _};
use crate::disk::hint::{Bell, Hints};
use crate::exec::Stop;
use crate::run::create::NewRun;
use crate::run::failure::Failure;
use crate::run::{load, workflow_file};

#[derive(clap::Args, Clone, Debug)]
pub(super) struct WatchArgs {
    /// The workflow file
    #[arg(value_name = "WORKFLOW")]
    pub workflow: PathBuf,
    #[command(flatten)]
    pub context: ContextArgs,
    #[command(flatten)]
    pub request: RequestArgs,
    #[command(flatten)]
    pub options: RunOptions,
}

/// Time to wait for more changes after one. Editors write in several steps.
const SETTLE: Duration = Duration::from_millis(100);
/// Poll interval, for changes without a notification (for example from another machine).
const LOOK_EVERY: Duration = Duration::from_secs(2);

pub(super) fn main(args: &WatchArgs, common: &Common) -> Result<u8, Failure> {
    let invocation = Invocation::read(common)?;
    // Standard input can be read only once, so read it here for all runs.
    let mut args = args.clone();
    args.request.read_message()?;
    let args = &args;
    let signals = signals::listen()?;
    // A notification is only a hint; the file contents decide.
    let bell = Arc::new(Bell::default());
    let noticed = bell.clone();
    let mut hints = Hints::new(move |_, _| noticed.ring());
    let (stopped, stop) = (bell.clone(), signals.stop.clone());
    std::thread::spawn(move || {
        while stop.sleep(Duration::from_secs(3600)) {}
        stopped.ring();
    });
    let mut seen = false;
    loop {
        let workflow = workflow_file::workflow_path(&invocation, &args.workflow);
        let definition = contents(std::slice::from_ref(&workflow));
        let ran = run_once(&invocation, args, &signals);
        let files = match ran {
            Ok(Ran::Stopped(code)) => return Ok(code),
            Ok(Ran::Ended) => watched(&invocation, args),
            // A workflow that never existed is a typing error. One that disappears may come back.
            Err(failure) if !seen && !workflow.is_present() => return Err(failure),
            Err(failure) => {
                failure::print(&failure, invocation.common.json);
                watched(&invocation, args)
            }
        };
        watch_directories(&mut hints, &files);
        seen = true;
        // Read the contents before the message: a user may edit a file as soon as it appears.
        let mut before = contents(&files);
        before.extend(definition);
        // Missing files are watched too, but not counted.
        let number = match files.iter().filter(|file| file.is_present()).count() {
            1 => "1 file".to_owned(),
            number => format!("{number} files"),
        };
        invocation.note(format!("watching {number} for changes; Ctrl-C ends"));
        if !wait_for_change(&files, &before, &bell, &signals.stop) {
            return Ok(signals.code());
        }
    }
}

enum Ran {
    Ended,
    Stopped(u8),
}

fn run_once(invocation: &Invocation, args: &WatchArgs, signals: &Signals) -> Result<Ran, Failure> {
    let loaded = load::load(invocation, &args.workflow)?;
    tell_warnings(invocation, &loaded);
    args.options.check(&loaded.plan, Driver::Alone)?;
    args.context.check(&loaded.plan)?;
    let context = args.context.merge(&loaded.plan)?;
    args.context.tell_unused(invocation, &loaded)?;
    let request = args.request.input(&loaded.plan)?.resolve(invocation, &loaded.plan, &loaded)?;
    let policy = args.options.new_policy(invocation);
    let new = NewRun { request, ..NewRun::whole(&loaded, context, policy) };
    let owned = checkout::create_run(invocation, new)?;
    invocation.note(format!("run {} of {}", owned.run.id, loaded.file));
    let (code, _) = outcome::drive(invocation, owned, &args.options, signals, None)?;
    if code >= 128 {
        return Ok(Ran::Stopped(code));
    }
    Ok(Ran::Ended)
}

/// Returns the files to watch: the workflow, the input files of its runs, and every prompt, spell,
/// work item, and schema that the workflow names without a variable.
fn watched(invocation: &Invocation, args: &WatchArgs) -> Vec<PathBuf> {
    let mut files = vec![workflow_file::workflow_path(invocation, &args.workflow)];
    files.extend(args.context.file.clone());
    files.extend(args.request.issue_context_file.clone());
    files.extend(load::files_of(invocation, &args.workflow, args.request.bead.as_deref()));
    files
}

/// Contents of files. `None` for a file that cannot be read.
type Contents = BTreeMap<PathBuf, Option<Vec<u8>>>;

fn contents(files: &[PathBuf]) -> Contents {
    files.iter().map(|file| (file.clone(), fs::read(file).ok())).collect()
}

/// Requests notifications for the directories of `files`, as far as they exist.
fn watch_directories(hints: &mut Hints, files: &[PathBuf]) {
    let dirs = files.iter().map(|file| match file.parent() {
        Some(dir) if !dir.as_os_str().is_empty() => dir,
        _ => Path::new("."),
    });
    let dirs: BTreeSet<&Path> = dirs.filter(|dir| dir.is_present_dir()).collect();
    dirs.into_iter().for_each(|dir| _ = hints.add(dir));
}

/// Waits until a file differs from `before`: the workflow from its state before the run, the others
/// (which the run may have written) from their state after it. Returns false if a stop was
/// requested.
fn wait_for_change(files: &[PathBuf], before: &Contents, bell: &Bell, stop: &Stop) -> bool {
    // `SETTLE` also limits how often files in a busy directory are read.
    while stop.sleep(SETTLE) {
        let rings = bell.rings();
        if contents(files) != *before {
            return true;
        }
        bell.wait(rings, LOOK_EVERY);
    }
    false
}
