//! `orchestrate watch`: run a workflow again whenever it, its prompts or its schemas change.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use super::common::{self, Driver, NewRun, RunOptions, Surroundings};
use super::request::RequestArgs;
use super::run::{ContextArgs, tell_warnings};
use super::signals::{self, Signals};
use super::{Common, Failure, load};
use crate::exec::Stop;
use crate::fleet::hint::{Bell, Hints};

#[derive(clap::Args, Clone, Debug)]
pub struct WatchArgs {
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

/// How long to wait for more changes after one; editors write in several steps.
const SETTLE: Duration = Duration::from_millis(100);
/// Where no notice of changes comes (another machine made them), this is how often we look.
const LOOK_EVERY: Duration = Duration::from_secs(2);

pub fn main(args: &WatchArgs, common: &Common) -> Result<u8, Failure> {
    let around = Surroundings::look(common)?;
    // What comes on standard input comes once, and is for every run.
    let mut args = args.clone();
    args.request.message = args.request.message()?;
    let args = &args;
    let signals = signals::listen()?;
    // Notices are a hint; what counts is the content of the files.
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
        let workflow = common::workflow_path(&around, &args.workflow);
        let definition = contents(std::slice::from_ref(&workflow));
        let ran = run_once(&around, args, &signals);
        let files = match ran {
            Ok(Ran::Stopped(code)) => return Ok(code),
            Ok(Ran::Ended) => watched(&around, args),
            // What was never there is a slip of the pen; what goes away may come back.
            Err(failure) if !seen && !workflow.exists() => return Err(failure),
            Err(failure) => {
                failure.tell(around.common.json);
                watched(&around, args)
            }
        };
        watch_directories(&mut hints, &files);
        seen = true;
        // Whoever reads that it watches may change something at once.
        let mut before = contents(&files);
        before.extend(definition);
        // What is not there yet is looked for, too.
        let number = match files.iter().filter(|file| file.exists()).count() {
            1 => "1 file".to_owned(),
            number => format!("{number} files"),
        };
        around.say(format!("watching {number} for changes; Ctrl-C ends"));
        if !wait_for_change(&files, &before, &bell, &signals.stop) {
            return Ok(signals.code());
        }
    }
}

enum Ran {
    Ended,
    Stopped(u8),
}

fn run_once(around: &Surroundings, args: &WatchArgs, signals: &Signals) -> Result<Ran, Failure> {
    let loaded = common::load(around, &args.workflow)?;
    tell_warnings(around, &loaded);
    args.options.check(&loaded.plan, Driver::Alone)?;
    args.context.check(&loaded.plan)?;
    let context = args.context.merge(&loaded.plan)?;
    args.context.tell_unused(around, &loaded)?;
    let request = args.request.of(around, &loaded.plan, &loaded)?;
    let policy = args.options.new_policy(around);
    let new = NewRun { request, ..NewRun::of(&loaded, context, policy) };
    let owned = common::create(around, new)?;
    around.say(format!("run {} of {}", owned.run.id, loaded.file));
    let (code, _) = common::drive(around, owned, &args.options, signals, None)?;
    if code >= 128 {
        return Ok(Ran::Stopped(code));
    }
    Ok(Ran::Ended)
}

/// The workflow and what its runs are given, and every prompt, spell, work item and schema that it
/// names without a variable.
fn watched(around: &Surroundings, args: &WatchArgs) -> Vec<PathBuf> {
    let mut files = vec![common::workflow_path(around, &args.workflow)];
    files.extend(args.context.file.clone());
    files.extend(args.request.issue_context_file.clone());
    files.extend(load::files_of(around, &args.workflow, args.request.bead.as_deref()));
    files
}

/// What files hold; nothing where one is not there.
type Contents = BTreeMap<PathBuf, Option<Vec<u8>>>;

fn contents(files: &[PathBuf]) -> Contents {
    files.iter().map(|file| (file.clone(), std::fs::read(file).ok())).collect()
}

/// Asks for a notice of every change in the directories of files, as far as they exist.
fn watch_directories(hints: &mut Hints, files: &[PathBuf]) {
    let dirs = files.iter().map(|file| match file.parent() {
        Some(dir) if !dir.as_os_str().is_empty() => dir,
        _ => Path::new("."),
    });
    let dirs: BTreeSet<&Path> = dirs.filter(|dir| dir.is_dir()).collect();
    dirs.into_iter().for_each(|dir| _ = hints.add(dir));
}

/// Waits until a file is not what it was `before`: the workflow before the run, the others (which
/// the run itself may have written) after it. Says no when told to stop.
fn wait_for_change(files: &[PathBuf], before: &Contents, bell: &Bell, stop: &Stop) -> bool {
    // A directory in which much is written is looked at no more often than this, either.
    while stop.sleep(SETTLE) {
        let rings = bell.rings();
        if contents(files) != *before {
            return true;
        }
        bell.wait(rings, LOOK_EVERY);
    }
    false
}
