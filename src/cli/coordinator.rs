//! `orchestrate coordinator`: drives every submitted run; also drives the one run of `run --fleet`.

use std::fs::OpenOptions;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::Value;

use super::fleet::{self, Teller};
use super::invocation::Invocation;
use super::run_options::{self, RunOptions};
use super::signals::{self, Signals};
use super::{Common, metrics, outcome};
use crate::actions::checkout;
use crate::attempt::documents::{self, RunTask};
use crate::attempt::exec_env::{self, Environment, Site};
use crate::base::digest::sha256;
use crate::base::ids::{RunId, StepPath, shown};
use crate::base::program_name::ORCHESTRATE;
use crate::base::time::{Clock, SystemClock};
use crate::engine::{Choice, Event, Policy, Run, RunStatus};
use crate::exec::{self, Mask, Stop};
use crate::fleet::coordinator::{Coordinator, Left, Reports, Setup};
use crate::free_task::intake::{Adopt, Adopted, Dropped, FreeTasks};
use crate::free_task::parse::made_at;
use crate::queue::{Claim, Queue, Task};
use crate::run::checkout::Before;
use crate::run::create::{self, NewRun};
use crate::run::drive::Report;
use crate::run::failure::{Class, Failure};
use crate::run::local::{self, Finish};
use crate::run::locked::LockedRun;
use crate::run::notify::{Notifier, Notifying};
use crate::run::processed::Processed;
use crate::run::request::RequestInput;
use crate::run::{load, log, wording};
use crate::view::progress::{Telling, TextReport, log_line, seconds, warning_of};
use crate::view::stderr::talk;
use crate::view::{Board, Life, PlaceView, StepView, TaskView, one_line};
use crate::workflow::{Plan, Problem};
use crate::{disk, yaml};

#[derive(clap::Args, Clone, Debug)]
pub(super) struct CoordinatorArgs {
    /// End, and give back what is at hand, when standard input ends
    #[arg(long, hide = true)]
    pub leash: bool,
}

pub(super) fn main(args: &CoordinatorArgs, common: &Common) -> Result<u8, Failure> {
    let mut invocation = Invocation::read(common)?;
    let credentials = fleet::take_credentials(&mut invocation)?;
    invocation.check_state_dir()?;
    let queue = invocation.open_queue()?;
    fleet::check_inbox(&invocation, &queue, documents::COORDINATOR)?;
    let signals = signals::listen()?;
    exec::start_guard();
    // Every run has a few open files, and there may be thousands of runs.
    raise_limit();
    let mut teller = Teller::new(&invocation, documents::COORDINATOR);
    if args.leash {
        signals.heed_leash();
        teller = teller.unnamed();
    }
    teller.say(&format!("coordinator {} drives the runs of inbox/coordinator", queue.me()));
    let teller = Arc::new(teller);
    let told = teller.clone();
    let alive = Box::new(move || told.alive("drives runs"));
    let setup = setup(&invocation, queue.clone(), false)?;
    let notifier = local::notifier(&invocation);
    metrics::beside(&invocation, &signals.stop)?;
    let adopt: Option<Box<dyn Adopt>> = Some(Box::new(Submissions {
        free: FreeTasks { config: invocation.config.clone() },
        invocation,
        queue,
    }));
    let setup = Setup { credentials, alive, adopt, ..setup };
    let mut daemon = Daemon { teller, notifier: notifier.clone() };
    let served = Coordinator::new(setup).serve(None, &signals.stop, &mut daemon);
    notifier.finish();
    served.map_err(|error| fleet::had_to_end("the coordinator", &error))?;
    Ok(0)
}

/// Raises this process's limit of open files to the hard limit, but at most 65,536.
fn raise_limit() {
    use nix::sys::resource::{Resource, getrlimit, setrlimit};
    if let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_NOFILE)
        && let wanted = hard.min(1 << 16)
        && soft < wanted
        && let Err(error) = setrlimit(Resource::RLIMIT_NOFILE, wanted, hard)
    {
        tracing::warn!("only {soft} files can be open at once ({error})");
    }
}

fn setup(invocation: &Invocation, queue: Arc<Queue>, backups: bool) -> Result<Setup, Failure> {
    Ok(Setup {
        queue,
        workspace: invocation.open_workspace()?,
        config: fleet::settings(invocation),
        environment: invocation.environment.clone(),
        credentials: Environment::new(),
        program: crate::attempt::exec_env::program(),
        debug: invocation.debug,
        backups,
        adopt: None,
        alive: Box::new(|| None),
    })
}

/// Returns the task that makes a coordinator drive a new run.
pub(super) fn task_of(queue: &Queue, run: &Run) -> Task {
    let now = SystemClock.now();
    let task = RunTask { run_id: run.id.clone(), run_root: run.origin.run_root.clone() };
    let id = queue.new_id(now.0 as u64);
    documents::run_task(&id, &task, &run.origin.workflow_file, now)
}

/// Returns every agent that executes steps of a plan.
pub(super) fn agents_of(invocation: &Invocation, plan: &Plan) -> Vec<String> {
    let config = &invocation.config;
    let mut agents: Vec<String> = plan
        .agents()
        .into_iter()
        .filter_map(|(agent, asks)| match (agent, asks) {
            (Some(agent), _) => Some(agent),
            (None, true) => Some(config.default_agent.clone()),
            (None, false) => config.command_agent.clone(),
        })
        .collect();
    agents.sort();
    agents.dedup();
    agents
}

/// Runs a workflow with the fleet's workers, driven by this process.
pub(super) fn run(
    invocation: &Invocation,
    new: NewRun,
    options: &RunOptions,
    signals: &Signals,
) -> Result<(u8, Run), Failure> {
    invocation.check_state_dir()?;
    let queue = invocation.open_queue()?;
    let agents = agents_of(invocation, &new.plan);
    fleet::open_agents(&queue, &agents)?;
    fleet::warn_of_absent(invocation, &queue, &agents);
    let owned = checkout::create_run(invocation, NewRun { fleet: true, ..new })?;
    invocation.note(format!("run {} of {}", owned.run.id, owned.run.origin.workflow_file));
    let LockedRun { plan, run, mut store, lock, .. } = owned;
    let saved = store.save(&plan, &run, SystemClock.now());
    saved.map_err(|error| wording::disk_failure(&error, &run.id))?;
    let task = task_of(&queue, &run);
    let claim = queue.enqueue_claimed(&task).map_err(|error| cannot_put_out(&run.id, &error))?;
    drop((store, lock));
    drive(invocation, queue, (claim, Back::Owner), plan, options, signals)
}

/// The owner of a run that is stopped before it is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Back {
    /// The user who started it: the run stays stopped until it is resumed.
    Owner,
    /// Any coordinator, as before.
    Queue,
}

pub(super) fn cannot_put_out(run: &RunId, error: &std::io::Error) -> Failure {
    Failure::failed(format!("cannot put run {run} out: {error}"))
        .hint(format!("`{ORCHESTRATE} resume {run}` tries again"))
}

/// Drives one run that this process has claimed, and prints the outcome.
pub(super) fn drive(
    invocation: &Invocation,
    queue: Arc<Queue>,
    (claim, back): (Claim, Back),
    plan: Plan,
    options: &RunOptions,
    signals: &Signals,
) -> Result<(u8, Run), Failure> {
    let began = SystemClock.now();
    let mask = exec_env::mask(&plan, &invocation.environment);
    let telling = run_options::telling(invocation, options);
    let notifier = local::notifier(invocation);
    let colour = invocation.colour();
    let mut one = One { telling, colour, mask, notifier: notifier.clone(), left: None };
    let setup = setup(invocation, queue.clone(), options.backup_state || invocation.debug)?;
    Coordinator::new(setup)
        .giving_back(back == Back::Queue)
        .serve(Some(claim), &signals.stop, &mut one)
        .map_err(|error| Failure::failed(format!("the run had to be left: {error}")))?;
    let (run, left) =
        one.left.ok_or_else(|| Failure::failed("the run could not be taken up; see above"))?;
    let took = seconds(SystemClock.now().ms_since(began));
    let finish = match left {
        Left::Ended(status) => Finish::Ended(status),
        Left::GivenBack => Finish::Stopped,
        Left::Paused => Finish::Paused,
        Left::Lost => {
            let message = format!("another coordinator has taken run {} over", run.id);
            return Err(Failure::owned(message).hint(format!("{ORCHESTRATE} status {}", run.id)));
        }
    };
    if run.status == RunStatus::Completed
        && let Some(destination) = &run.origin.archive
    {
        let root = invocation.state_dir.join(run.id.as_str());
        Processed::of(invocation, &plan).archive(Path::new(destination), &root)?;
    }
    let code = outcome::tell_end(invocation, &plan, &run, finish, signals.code(), &took);
    if left == Left::GivenBack && back == Back::Queue {
        tell_given_back(invocation, &queue);
    }
    if left == Left::GivenBack {
        tell_left_behind(invocation, queue, &run.id);
    }
    notifier.finish();
    Ok((code, run))
}

/// Prints which process continues a run that this process no longer drives.
fn tell_given_back(invocation: &Invocation, queue: &Arc<Queue>) {
    let board = Board::scan(invocation, Some(queue.clone()));
    match board.map_or(0, |board| board.coordinators()) {
        0 => talk(format_args!(
            "  or let a coordinator go on with it, as soon as there is one: orchestrate coordinator"
        )),
        _ => talk(format_args!("  but a coordinator goes on with it by itself")),
    }
}

/// Prints the tasks of a run that this process no longer drives and that are running or may still
/// start: a worker finishes a task that it has started.
fn tell_left_behind(invocation: &Invocation, queue: Arc<Queue>, id: &RunId) {
    // An unreachable queue was reported before.
    let Ok(board) = Board::scan(invocation, Some(queue)) else { return };
    let Ok(detail) = board.detail(id) else { return };
    let mut left = false;
    for StepView { step, task, .. } in &detail.steps {
        let Some(TaskView { task, agent, place, .. }) = task else { continue };
        let step = shown(step);
        match place {
            PlaceView::Claimed { worker, host, life, .. } if *life != Life::Dead => {
                let host = host.as_ref().map(|host| format!(" on {host}")).unwrap_or_default();
                talk(format_args!(
                    "  still at work: {agent} worker {worker}{host} finishes `{step}`"
                ));
                talk(format_args!("  follow it: {ORCHESTRATE} logs {id} {step} --follow"));
            }
            PlaceView::Waiting { .. } => {
                talk(format_args!("  still waits: `{step}`, as task {task} in inbox/{agent}"));
            }
            _ => continue,
        }
        left = true;
    }
    if left {
        talk(format_args!("  end that too: {ORCHESTRATE} cancel {id}"));
    }
}

/// Turns files that users drop into the coordinator's inbox into runs, and files that dead workers
/// had taken out of their inboxes into tasks.
struct Submissions {
    free: FreeTasks,
    invocation: Invocation,
    queue: Arc<Queue>,
}

impl Adopt for Submissions {
    /// Runs of its own inbox, and tasks that a dead worker had begun to adopt.
    fn serves(&self, agent: &str) -> bool {
        agent == documents::COORDINATOR || self.free.serves(agent)
    }

    fn adopt(&mut self, dropped: &Dropped) -> std::io::Result<Adopted> {
        if dropped.agent != documents::COORDINATOR {
            return self.free.adopt(dropped);
        }
        Ok(match self.submit(dropped) {
            Ok(task) => Adopted::Task(Box::new(task)),
            Err(failure) => {
                let reason = one_line(failure.message());
                // A disk failure does not make the file invalid.
                if failure.class == Class::Failed {
                    return Err(std::io::Error::other(reason));
                }
                Adopted::Refused(reason)
            }
        })
    }
}

impl Submissions {
    /// Accepts a workflow, or a map that names one: `workflow: FILE`, with an optional `context`
    /// and `message`.
    fn submit(&self, dropped: &Dropped) -> Result<Task, Failure> {
        let invocation = &self.invocation;
        let shown =
            |problem: Problem| Failure::in_text(vec![problem], dropped.source, dropped.text);
        let said = yaml::parse(dropped.text).map_err(shown)?.to_json();
        let (loaded, own) = match said.get("workflow").and_then(Value::as_str) {
            Some(file) => {
                let known = |key: &String| ["workflow", "context", "message"].contains(&&**key);
                let keys = said.as_object().into_iter().flat_map(|map| map.keys());
                if let Some(key) = keys.clone().find(|key| !known(key)) {
                    let message = format!("it has an unknown key `{key}`");
                    return Err(Failure::invalid(message)
                        .hint("`workflow`, `context` and `message` are known"));
                }
                let path = open_workspace_path(invocation, file)?;
                (load::load(invocation, &path)?, said.get("context").cloned())
            }
            None => (load::load_text(invocation, dropped.source, dropped.text)?, None),
        };
        let mut context = loaded.plan.context().clone();
        if let Some(Value::Object(own)) = own {
            context.extend(own);
        }
        let policy = Policy::default().limit_visits(invocation.config.max_visits);
        let message = said.get("message").and_then(Value::as_str).map(str::to_owned);
        let input = RequestInput { message, ..RequestInput::default() };
        let request = input.resolve(invocation, &loaded.plan, &loaded)?;
        let new = NewRun { fleet: true, request, ..NewRun::whole(&loaded, context, policy) };
        let agents = agents_of(invocation, &loaded.plan);
        fleet::open_agents(&self.queue, &agents)?;
        // Adopting the same file twice must not create two runs, so derive the id from the file's.
        let stamp = made_at(dropped.id).to_stamp();
        let digest = sha256(dropped.id.as_str().as_bytes());
        let random = u64::from_str_radix(&digest[..16], 16).unwrap_or_default();
        let id = RunId::new(&stamp, random);
        let root = invocation.state_dir.join(id.as_str());
        let made = disk::exists(&root)
            .map_err(|error| Failure::failed(format!("cannot look for run {id}: {error}")))?;
        let (run_root, file) = if made {
            (
                root.strip_prefix(&invocation.workspace).unwrap_or(&root).to_owned(),
                loaded.file.clone(),
            )
        } else {
            let mut owned = create::create_as(invocation, new, &id)?;
            let saved = owned.store.hand_over(&owned.plan, &owned.run, SystemClock.now());
            saved.map_err(|error| wording::disk_failure(&error, &id))?;
            let origin = owned.run.origin;
            (PathBuf::from(origin.run_root), origin.workflow_file)
        };
        fleet::warn_of_absent(invocation, &self.queue, &agents);
        let task = RunTask { run_id: id, run_root: run_root.to_string_lossy().into_owned() };
        Ok(documents::run_task(dropped.id, &task, &file, SystemClock.now()))
    }
}

/// Returns a path that a dropped file names. Fails if it leaves the workspace.
fn open_workspace_path(invocation: &Invocation, file: &str) -> Result<PathBuf, Failure> {
    let workspace = invocation.open_workspace()?;
    workspace.check(file).map_err(Failure::invalid)?;
    Ok(PathBuf::from(file))
}

/// Reports on the one run that the user started.
struct One {
    telling: Telling,
    colour: bool,
    mask: Mask,
    notifier: Arc<Notifier>,
    left: Option<(Run, Left)>,
}

impl Reports for One {
    fn about(&mut self, _: &Run, _: &Site) -> Box<dyn Report> {
        let report = TextReport::new(self.telling, self.colour, self.mask.clone());
        Box::new(Notifying::new(report, &self.notifier))
    }

    fn note(&mut self, line: &str) {
        tracing::warn!("{line}");
    }

    fn waits(&mut self, run: &Run, before: &Before) {
        if self.telling != Telling::Quiet {
            talk(format_args!(
                "run {} waits for its turn: {before} works on this checkout",
                run.id
            ));
        }
    }

    fn left(&mut self, run: &Run, how: Left) {
        self.left = Some((run.clone(), how));
    }
}

/// Reports on many runs: the events of each go into its own log.
struct Daemon {
    teller: Arc<Teller>,
    notifier: Arc<Notifier>,
}

impl Reports for Daemon {
    fn about(&mut self, run: &Run, site: &Site) -> Box<dyn Report> {
        self.teller.say(&format!("run {} of {}: taken up", run.id, run.origin.workflow_file));
        log::keep_of(run.id.as_str(), &site.root(), site.mask.clone());
        let report = Logged { path: log::path(&site.root()) };
        Box::new(Notifying::new(report, &self.notifier))
    }

    fn note(&mut self, line: &str) {
        self.teller.say(line);
    }

    fn closing(&mut self) {
        self.teller.closing();
    }

    fn left(&mut self, run: &Run, how: Left) {
        let how = match how {
            Left::Ended(status) => format!("{status:?}").to_lowercase(),
            Left::GivenBack => "given back".to_owned(),
            Left::Paused => "waits for a person".to_owned(),
            Left::Lost => "taken over by another coordinator".to_owned(),
        };
        self.teller.say(&format!("run {}: {how}", run.id));
        log::keep_of_no_more(run.id.as_str());
    }
}

/// Writes the log of one run among many.
struct Logged {
    path: PathBuf,
}

impl Report for Logged {
    fn happened(&mut self, plan: &Plan, run: &Run, event: &Event) {
        let now = SystemClock.now().to_milli();
        let told = log_line(plan, run, event).map(|line| format!("{now} INFO  {line}\n"));
        let warned = warning_of(plan, event).map(|line| format!("{now} WARN  {line}\n"));
        let lines: String = told.into_iter().chain(warned).collect();
        if lines.is_empty() {
            return;
        }
        let file = OpenOptions::new().create(true).append(true).open(&self.path);
        // A log line that cannot be written does not stop a run.
        let _ = file.and_then(|mut file| file.write_all(lines.as_bytes()));
    }

    /// There is no user to ask.
    fn ask(&mut self, _: &Run, _: &StepPath, _: &Stop) -> Option<Choice> {
        Some(Choice::Stop)
    }
}
