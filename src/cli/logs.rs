//! `orchestrate logs`: shows the output of steps and tasks, also while they run.
//!
//! The logs are files on the volume, so any machine can show them. Output that is too short for a
//! log file is in the state of its run.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{BufRead, BufReader, ErrorKind, Read, Seek, SeekFrom, StdoutLock, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::{Value, json};

use super::follow_loop::Vigil;
use super::invocation::Invocation;
use super::output::put_json;
use super::{Common, standing};
use crate::actions::target::{self, Target};
use crate::agent::{self, Kind};
use crate::base::ids::{Attempt, RunId, StepPath, shown};
use crate::base::time::{Clock, SystemClock, Time, parse_duration};
use crate::disk;
use crate::disk::fs::{self, OnVolume as _};
use crate::engine::run::{Address, Body, Slot, StepState};
use crate::engine::{Record, Run, RunStatus};
use crate::free_task::parse::FreeTask;
use crate::queue::Queue;
use crate::run::failure::Failure;
use crate::run::open::OpenError;
use crate::run::project::unreadable_queue;
use crate::run::wording;
use crate::store::History;
use crate::view::stderr::Tamed;
use crate::view::{
    Board, Found, PlaceView, Standing, StepShown, StepView, Tried, excerpt, is_passed_over, printed,
};
use crate::workflow::plan::{Action, Block, CaptureMode, Dialect, Step};
use crate::workflow::{Configured, Plan};

#[derive(clap::Args, Clone, Debug)]
pub(crate) struct LogsArgs {
    /// A run or a task: its id or the beginning of it; `latest` is the newest run. A step's name
    /// alone is a step of that run
    #[arg(value_name = "RUN|TASK", default_value = "latest")]
    pub target: String,
    /// One step of the run, as `status` calls it: Build, or Work.3.Build in a loop
    #[arg(value_name = "STEP")]
    pub step: Option<String>,
    /// Go on with what is printed later, until it has ended
    #[arg(short, long)]
    pub follow: bool,
    /// Only what was printed to standard output
    #[arg(long, conflicts_with = "stderr")]
    pub stdout: bool,
    /// Only what was printed to standard error
    #[arg(long)]
    pub stderr: bool,
    /// The events that an agent printed, not what they say
    #[arg(long)]
    pub raw: bool,
    /// What an earlier attempt of the step printed
    #[arg(long, value_name = "N", requires = "step")]
    pub attempt: Option<Attempt>,
    /// Only of those that printed something since then: a time, or how long ago: 90s, 15m, 2h
    #[arg(long, value_name = "WHEN", value_parser = since)]
    pub since: Option<Time>,
}

/// Parses a point in time: a timestamp, or a duration before now.
fn since(text: &str) -> Result<Time, String> {
    let ago = |ms: u64| Time(SystemClock.now().0.saturating_sub(i64::try_from(ms).unwrap_or(0)));
    let moment = Time::parse(text).or_else(|| parse_duration(text).map(ago));
    moment.ok_or_else(|| "write 15m or 2026-01-31T10:00:00Z".to_owned())
}

pub(crate) fn main(args: &LogsArgs, common: &Common) -> Result<u8, Failure> {
    let invocation = Invocation::read_warned(common)?;
    if args.follow && invocation.common.json {
        let message = "`--json` is one document, which `--follow` never comes to the end of";
        return Err(Failure::invalid(message).hint("leave one of them out"));
    }
    let queue = invocation.queue_if_any()?;
    let board = Board::scan(&invocation, queue.clone())?;
    let (target, step) = named(args, &invocation, &board)?;
    let source = match target {
        Target::Run(id) => {
            let step = step.map(|step| spelled(&board, &id, step));
            Source::Run { id, step }
        }
        Target::Task(found) if step.is_none() => of_task(&invocation, &board, &found)?,
        Target::Aside(aside) => return Err(target::no_task_yet(&board, &aside)),
        Target::Task(_) => {
            return Err(Failure::invalid("a task has no steps: leave STEP out"));
        }
    };
    let streams = match (args.stdout, args.stderr) {
        (true, _) => vec!["stdout"],
        (_, true) => vec!["stderr"],
        _ => vec!["stdout", "stderr"],
    };
    let (raw, attempt, since) = (args.raw, args.attempt, args.since);
    let reader = Reader { source, streams, raw, attempt, since, tail: None, open: Vec::new() };
    if let Source::Run { id, .. } = &reader.source
        && let Err(error) = board.open(id)
        && reader.executions(&board).is_ok()
    {
        tracing::warn!("{}", wording::cannot_read(id, &error).sentence());
    }
    let mut telling = Telling { invocation: &invocation, queue, reader, out: Tamed::stdout() };
    match (invocation.common.json, args.follow) {
        (true, _) => telling.write_json(&board),
        (false, false) => telling.print_once(&board),
        (false, true) => telling.follow(board),
    }
}

/// Resolves the target and the step. A single name that is neither a run nor a task may be a step
/// of the latest run.
fn named<'a>(
    args: &'a LogsArgs,
    invocation: &Invocation,
    board: &Board,
) -> Result<(Target, Option<&'a str>), Failure> {
    let failure = match target::target(invocation, board, &args.target) {
        Ok(target) => return Ok((target, args.step.as_deref())),
        Err(failure) => failure,
    };
    let latest = invocation.find_run("latest").ok().map(|(id, _)| id);
    match latest.filter(|id| args.step.is_none() && board.step(id, &args.target).is_some()) {
        Some(id) => Ok((Target::Run(id), Some(&args.target))),
        None => Err(failure),
    }
}

/// Returns the path of the step that the user named, or the name itself if no step matches.
fn spelled(board: &Board, id: &RunId, step: &str) -> String {
    let path = |(plan, _): (Plan, Run)| Some(Address::named(&plan, step)?.path(&plan).to_string());
    board.open(id).ok().and_then(path).unwrap_or_else(|| step.to_owned())
}

/// The run, step or free task whose output is shown.
enum Source {
    Run { id: RunId, step: Option<String> },
    Free { id: String, dir: PathBuf, adapter: Kind },
}

/// Returns the source for a task. The output of a step's task is stored with its run.
fn of_task(invocation: &Invocation, board: &Board, found: &Found) -> Result<Source, Failure> {
    let view = board.task(found).map_err(|error| unreadable_queue(&error))?;
    if let Some(id) = view.run_id.as_deref().and_then(RunId::parse) {
        return Ok(Source::Run { id, step: view.step });
    }
    let queue = invocation.need_queue()?;
    let task = queue.read(&found.place, &found.batch);
    let task = task.map_err(|error| unreadable_queue(&error))?;
    let adapter = task.as_ref().and_then(|task| {
        let free = FreeTask::from_document(&task.document).ok()?;
        let provider = free.provider(&invocation.config, &task.agent).ok()?;
        Some(invocation.config.providers().get(&provider)?.adapter)
    });
    let batch = task.map(|task| task.batch);
    let dir = queue.layout.results().join(batch.unwrap_or_else(|| found.batch.clone()));
    Ok(Source::Free { id: view.task, dir, adapter: adapter.unwrap_or_default() })
}

/// An execution whose output can be shown.
struct Execution {
    /// Name of the step, or id of the task.
    name: String,
    /// Path prefix of its log files, relative to `root`.
    stem: String,
    root: PathBuf,
    /// Standard output as stored in the state, once the execution has ended.
    kept: Option<String>,
    attempt: Attempt,
    over: bool,
    ended: Option<Time>,
    /// Adapter that parses its output.
    adapter: Kind,
}

/// An output stream that is being shown.
struct Stream {
    name: String,
    kind: &'static str,
    file: Option<File>,
    /// Attempt that was writing to the file when it was opened.
    of: Attempt,
    /// Last attempt whose stored output was considered.
    told: Attempt,
    /// Number of bytes shown.
    shown: u64,
    /// Start of a line whose end has not arrived.
    rest: Vec<u8>,
    /// Converts an agent's events to readable text.
    agent: Option<agent::Stream>,
    /// Maximum number of bytes to read from the end of a long log.
    tail: Option<u64>,
}

/// Reads existing output, and later output as it arrives.
pub(crate) struct Reader {
    source: Source,
    streams: Vec<&'static str>,
    raw: bool,
    attempt: Option<Attempt>,
    since: Option<Time>,
    /// Maximum number of bytes to read from the end of a long log.
    tail: Option<u64>,
    open: Vec<Stream>,
}

/// Prints the output that a [`Reader`] returns.
struct Telling<'a> {
    invocation: &'a Invocation,
    queue: Option<Arc<Queue>>,
    reader: Reader,
    out: Tamed<StdoutLock<'static>>,
}

impl Reader {
    /// Creates a reader for the end of the output of a run or step, at most `tail` bytes per log,
    /// and for all later output.
    pub(crate) fn of_end(id: RunId, step: Option<String>, tail: u64) -> Reader {
        let (source, streams) = (Source::Run { id, step }, vec!["stdout", "stderr"]);
        let (raw, attempt, since, open) = (false, None, None, Vec::new());
        Reader { source, streams, raw, attempt, since, tail: Some(tail), open }
    }

    /// Returns the output since the last call, and true if more may follow.
    pub(crate) fn more(&mut self, board: &Board) -> Result<(Vec<u8>, bool), Failure> {
        let (executions, more) = self.executions(board)?;
        let mut bytes = Vec::new();
        // Writing to memory cannot fail.
        let _ = self.collect(&executions, !more, &mut bytes);
        Ok((bytes, more))
    }

    /// Returns the executions to show now, and true if more output may follow.
    fn executions(&self, board: &Board) -> Result<(Vec<Execution>, bool), Failure> {
        match &self.source {
            Source::Run { id, step } => self.of_run(board, id, step.as_deref()),
            Source::Free { id, dir, adapter } => {
                let found = target::task(board, id)?;
                let view = board.task(&found).map_err(|error| unreadable_queue(&error))?;
                let over =
                    !matches!(view.place, PlaceView::Waiting { .. } | PlaceView::Claimed { .. });
                let (name, root, attempt) = (id.clone(), dir.clone(), view.attempt.of_free_task());
                let (adapter, kept, stem) = (*adapter, None, id.clone());
                Ok((
                    vec![Execution { name, stem, root, kept, attempt, over, ended: None, adapter }],
                    !over,
                ))
            }
        }
    }

    fn of_run(
        &self,
        board: &Board,
        id: &RunId,
        wanted: Option<&str>,
    ) -> Result<(Vec<Execution>, bool), Failure> {
        let view = board.run(id);
        let goes_on =
            view.is_driven() || (view.state == Standing::Stopped && is_at_work(board, id));
        let open = match board.open(id) {
            Ok(open) => open,
            Err(error) => match board.open_by_journal(id) {
                Ok(open) => open,
                Err(_) => return self.of_unread(board, id, wanted, &error),
            },
        };
        let (plan, run) = (&open.0, &open.1);
        // Records of earlier attempts are only in the journal.
        let passed_over = || run.slots().iter().any(|(_, slot)| is_passed_over(slot));
        let history = match self.attempt.is_some() || passed_over() {
            true => History::read(&*disk::machine(), &board.run_root(id)).unwrap_or_default(),
            false => History::default(),
        };
        let tried = Tried::of(&history);
        let walk = Walk { run_root: board.run_root(id), plan, run, tried: &tried };
        let mut all = Vec::new();
        walk.block(plan.root(), &run.body, "", &mut all);
        if let Some(since) = self.since {
            all.retain(|execution| printed_since(execution, since));
        }
        let Some(wanted) = wanted else { return Ok((all, goes_on)) };
        check_step(plan, run, wanted)?;
        // The name of a node with rounds selects all its rounds.
        let rounds = format!("{wanted}.");
        let inside = |name: &str| plan.dialect() == Dialect::Nodes && name.starts_with(&rounds);
        all.retain(|execution| execution.name == wanted || inside(&execution.name));
        let settled = Address::parse(plan, wanted).and_then(|at| Some(run.slot(&at)?.state));
        let over = settled == Some(StepState::Settled)
            || all.first().is_some_and(|execution| execution.over && execution.name == wanted);
        if let Some(attempt) = self.attempt {
            choose_attempt(&mut all, wanted, attempt, &tried)?;
            return Ok((all, goes_on && !over));
        }
        Ok((all, goes_on && !over))
    }

    /// Returns the log files of a run whose workflow cannot be read. Returns `error`, the reason it
    /// cannot be read, if there are no such files.
    fn of_unread(
        &self,
        board: &Board,
        id: &RunId,
        wanted: Option<&str>,
        error: &OpenError,
    ) -> Result<(Vec<Execution>, bool), Failure> {
        let root = board.run_root(id);
        let stem = |name: &str| {
            let stem = name.strip_suffix(".stdout").or_else(|| name.strip_suffix(".stderr"))?;
            Some(stem.to_owned())
        };
        let names = fs::read_dir(root.join(LOGS)).into_iter().flatten().flatten();
        let stems: BTreeSet<String> =
            names.filter_map(|entry| stem(entry.file_name().to_str()?)).collect();
        let execution = |name: String| Execution {
            stem: format!("{LOGS}{name}"),
            name,
            root: root.clone(),
            kept: None,
            attempt: Attempt::FIRST,
            over: true,
            ended: None,
            adapter: Kind::default(),
        };
        let mut all: Vec<Execution> = stems.into_iter().map(execution).collect();
        all.retain(|execution| wanted.is_none_or(|wanted| execution.name == wanted));
        match all.is_empty() || self.attempt.is_some() {
            true => Err(wording::cannot_read(id, error)),
            false => Ok((all, false)),
        }
    }

    fn shown(&self) -> u64 {
        self.open.iter().map(|stream| stream.shown).sum()
    }

    /// Writes new output; with `all`, also an incomplete last line.
    fn collect(
        &mut self,
        executions: &[Execution],
        all: bool,
        out: &mut dyn Write,
    ) -> std::io::Result<()> {
        let labelled = match &self.source {
            Source::Run { step: Some(step), .. } => executions.iter().any(|one| one.name != *step),
            Source::Run { step: None, .. } => true,
            Source::Free { .. } => false,
        };
        for execution in executions {
            for kind in self.streams.clone() {
                let known = |s: &Stream| s.name == execution.name && s.kind == kind;
                let at = match self.open.iter().position(known) {
                    Some(at) => at,
                    None => {
                        self.open.push(Stream::new(&execution.name, kind, self.tail));
                        self.open.len() - 1
                    }
                };
                let stream = &mut self.open[at];
                let mut bytes = stream.read(execution, self.raw);
                if labelled {
                    bytes = stream.label(bytes, all || execution.over);
                }
                out.write_all(&bytes)?;
            }
        }
        out.flush()
    }
}

impl Telling<'_> {
    fn write_json(&self, board: &Board) -> Result<u8, Failure> {
        let (executions, _) = self.reader.executions(board)?;
        let mut shown = Vec::new();
        for execution in &executions {
            let mut value = json!({ "name": execution.name, "attempt": execution.attempt });
            for kind in &self.reader.streams {
                let mut bytes = Vec::new();
                let log = execution.open(kind);
                let read = log.and_then(|mut file| file.read_to_end(&mut bytes));
                let from_log = read.is_ok();
                let text = match (&execution.kept, *kind) {
                    (Some(kept), "stdout") if !from_log => kept.clone(),
                    _ => String::from_utf8_lossy(&bytes).into_owned(),
                };
                value[*kind] = Value::from(text);
            }
            shown.push(value);
        }
        let id = match &self.reader.source {
            Source::Run { id, .. } => id.to_string(),
            Source::Free { id, .. } => id.clone(),
        };
        put_json("logs/v1", json!({ "id": id, "logs": shown }))?;
        Ok(0)
    }

    fn print_once(&mut self, board: &Board) -> Result<u8, Failure> {
        let (executions, _) = self.reader.executions(board)?;
        if self.print(&executions, true)? && self.reader.shown() == 0 {
            self.invocation.note("nothing was printed");
        }
        Ok(0)
    }

    /// Prints new output until no more can follow.
    fn follow(&mut self, mut board: Board) -> Result<u8, Failure> {
        let mut vigil = Vigil::begin()?;
        let mut waits = standing::Waits::default();
        loop {
            vigil.look();
            if let Source::Run { id, .. } = &self.reader.source {
                waits.say(self.invocation, &board, id);
            }
            let (executions, more) = self.reader.executions(&board)?;
            if let Some(execution) = executions.first() {
                vigil.watch(execution.path("stdout").parent().unwrap_or(&execution.root));
            }
            let before = self.reader.shown();
            if !self.print(&executions, !more)? {
                return Ok(0);
            }
            if !more {
                return self.say_how_it_stands(&board);
            }
            if let Some(code) = vigil.wait(self.reader.shown() > before) {
                return Ok(code);
            }
            // A new snapshot. It does not wait for heartbeats: a member in doubt may still be
            // alive.
            board = Board::scan(self.invocation, self.queue.clone())?;
        }
    }

    /// Reports the final state of a run that was followed to its end.
    fn say_how_it_stands(&self, board: &Board) -> Result<u8, Failure> {
        if let Source::Run { id, step: None } = &self.reader.source {
            standing::say_standing(self.invocation, &board.run(id));
        }
        Ok(0)
    }

    /// Prints new output; with `all`, also an incomplete last line. Returns false if standard
    /// output was closed by its reader.
    fn print(&mut self, executions: &[Execution], all: bool) -> Result<bool, Failure> {
        match self.reader.collect(executions, all, &mut self.out) {
            Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(false),
            Err(error) => Err(Failure::failed(format!("cannot write to standard output: {error}"))),
            Ok(()) => Ok(true),
        }
    }
}

/// Returns true if an execution may have printed at or after `since`, judged by its log files.
fn printed_since(execution: &Execution, since: Time) -> bool {
    let written = |kind: &&str| {
        let file = execution.open(kind).ok()?.metadata().ok()?;
        Some(Time(file.mtime() * 1000 + file.mtime_nsec() / 1_000_000))
    };
    let last = ["stdout", "stderr"].iter().filter_map(written).max();
    // Short output has no log file: it was printed before the step ended.
    !execution.over || last.or(execution.ended).is_none_or(|at| at >= since)
}

/// Keeps only one attempt of a step. Attempts before the last have log files of their own.
fn choose_attempt(
    all: &mut Vec<Execution>,
    step: &str,
    attempt: Attempt,
    tried: &Tried,
) -> Result<(), Failure> {
    all.retain(|execution| execution.name == step);
    let made = all.first().map_or(Attempt::NONE, |execution| execution.attempt);
    if attempt.is_none() || attempt > made {
        let made = match made.number() {
            0 => "was not begun yet".to_owned(),
            1 => "has made one attempt".to_owned(),
            made => format!("has made {made} attempts"),
        };
        let step = shown(step);
        return Err(Failure::invalid(format!("`{step}` {made}, and {attempt} is none of them")));
    }
    for execution in all.iter_mut().filter(|_| attempt < made) {
        execution.stem = format!("{LOGS}{step}.{attempt}");
        execution.kept = tried.record(step, attempt).and_then(printed);
        (execution.attempt, execution.over) = (attempt, true);
    }
    Ok(())
}

/// Returns true if a worker executes a step of a run without a driver: more output may follow.
fn is_at_work(board: &Board, id: &RunId) -> bool {
    let at_work = |step: &StepView| step.state == StepShown::Running;
    board.detail(id).is_ok_and(|detail| detail.steps.iter().any(at_work))
}

/// Prefix of log files in the directory of a run.
const LOGS: &str = "logs/";

impl Execution {
    fn path(&self, kind: &str) -> PathBuf {
        self.root.join(format!("{}.{kind}", self.stem))
    }

    /// Opens a log file. Fails if something else is in its place, for example a link.
    fn open(&self, kind: &str) -> std::io::Result<File> {
        excerpt::open(&self.root, &format!("{}.{kind}", self.stem))
    }
}

impl Stream {
    fn new(name: &str, kind: &'static str, tail: Option<u64>) -> Stream {
        let (name, rest) = (name.to_owned(), Vec::new());
        Stream {
            name,
            kind,
            file: None,
            of: Attempt::NONE,
            told: Attempt::NONE,
            shown: 0,
            rest,
            agent: None,
            tail,
        }
    }

    /// Opens the current log file. With `tail`, skips to the last bytes of a long one.
    fn open(&mut self, execution: &Execution) {
        self.file = execution.open(self.kind).ok();
        let Some((file, tail)) = self.file.as_mut().zip(self.tail) else { return };
        let len = file.metadata().map_or(0, |file| file.len());
        if len > tail && file.seek(SeekFrom::Start(len - tail)).is_ok() {
            // Start with a complete line.
            let mut skipped = BufReader::new(&mut *file);
            let gone = skipped.skip_until(b'\n').unwrap_or(0) as u64;
            let _ = file.seek(SeekFrom::Start(len - tail + gone));
        }
    }

    /// Returns the output since the last call. A log that was renamed because the step is retried
    /// is first read to its end: its file is still open here.
    fn read(&mut self, execution: &Execution, raw: bool) -> Vec<u8> {
        let listens = !raw && self.kind == "stdout" && execution.adapter.is_stream();
        let mut bytes = self.read_on();
        if self.is_another(&execution.path(self.kind)) {
            self.open(execution);
            self.of = execution.attempt;
            bytes = self.readable(bytes);
            self.agent = listens.then(|| agent::Stream::new(execution.adapter));
            let more = self.read_on();
            bytes.extend(self.readable(more));
        } else {
            bytes = self.readable(bytes);
        }
        let kept = execution.kept.as_ref().filter(|_| self.kind == "stdout" && execution.over);
        if let Some(kept) = kept
            && self.told < execution.attempt
        {
            self.told = execution.attempt;
            // A log of this attempt, or its draft, contains all of it and was already shown.
            if execution.open(self.kind).is_err() && !self.had_draft(execution.attempt) {
                bytes.extend_from_slice(kept.as_bytes());
            }
        }
        self.shown += bytes.len() as u64;
        bytes
    }

    /// Converts an agent's events to readable text. Returns other output unchanged.
    fn readable(&mut self, bytes: Vec<u8>) -> Vec<u8> {
        let Some(agent) = &mut self.agent else { return bytes };
        let turns = agent.push(&bytes).into_iter().map(|turn| format!("{turn}\n"));
        turns.collect::<String>().into_bytes()
    }

    fn read_on(&mut self) -> Vec<u8> {
        let mut bytes = Vec::new();
        if let Some(file) = &mut self.file {
            // Show the bytes read before an error; the next call tries the rest again.
            let _ = file.read_to_end(&mut bytes);
        }
        bytes
    }

    /// Returns true if the open file is the removed draft of this attempt. Drafts are removed when
    /// their attempt ends.
    fn had_draft(&self, attempt: Attempt) -> bool {
        let held = self.file.as_ref().and_then(|file| file.metadata().ok());
        self.of == attempt && held.is_some_and(|file| file.nlink() == 0)
    }

    /// Returns true if `path` is now a different file than the open one.
    fn is_another(&self, path: &Path) -> bool {
        let there = fs::symlink_metadata(path).ok().map(|file| (file.dev(), file.ino()));
        let held = self.file.as_ref().and_then(|file| file.metadata().ok());
        there.is_some() && there != held.map(|file| (file.dev(), file.ino()))
    }

    /// Prefixes each line with the step's name. Keeps an incomplete line back, unless `all` is set.
    fn label(&mut self, bytes: Vec<u8>, all: bool) -> Vec<u8> {
        self.rest.extend(bytes);
        let end = match self.rest.iter().rposition(|byte| *byte == b'\n') {
            _ if all => self.rest.len(),
            Some(end) => end + 1,
            None => 0,
        };
        let whole: Vec<u8> = self.rest.drain(..end).collect();
        let (name, sign) = (shown(&self.name), if self.kind == "stderr" { '!' } else { '|' });
        let mut labelled = Vec::with_capacity(whole.len());
        for line in whole.split_inclusive(|byte| *byte == b'\n') {
            labelled.extend_from_slice(format!("{name} {sign} ").as_bytes());
            labelled.extend_from_slice(line.strip_suffix(b"\n").unwrap_or(line));
            labelled.push(b'\n');
        }
        labelled
    }
}

/// Walks over all executions of a run, with the items of loops in order.
struct Walk<'a> {
    run_root: PathBuf,
    plan: &'a Plan,
    run: &'a Run,
    tried: &'a Tried<'a>,
}

impl Walk<'_> {
    fn block(&self, block: &Block, body: &Body, prefix: &str, into: &mut Vec<Execution>) {
        for (step, slot) in block.steps.iter().zip(&body.slots) {
            // A gate has no output: a user answers it.
            if matches!(step.action, Action::Gate(_)) {
                continue;
            }
            let name = format!("{prefix}{}", StepPath::top(&step.name));
            match (step.inner(), &slot.each) {
                (Some(inner), Some(items)) => {
                    for (index, item) in items.iterations.iter().enumerate() {
                        let prefix = format!("{name}.{index}.");
                        self.block(inner, &item.body, &prefix, into);
                    }
                }
                _ => into.extend(self.execution(name, step, slot)),
            }
        }
    }

    fn execution(&self, name: String, step: &Step, slot: &Slot) -> Option<Execution> {
        let mut record = slot.record.as_deref()?;
        let (root, mut stem) = (self.run_root.clone(), format!("{LOGS}{name}"));
        if is_passed_over(slot) {
            // Show the execution of an earlier visit: at the last visit the step was skipped.
            record = self.tried.record(&name, slot.attempts).unwrap_or(record);
            let is_there = |kind: &str| root.join(format!("{stem}.{kind}")).is_present();
            if !is_there("stdout") && !is_there("stderr") {
                stem = format!("{LOGS}{name}.{}", slot.attempts);
            }
        }
        let stands = self.run.status != RunStatus::Running;
        let ended = record.started_at.zip(record.duration_ms).map(|(at, ms)| at.plus_ms(ms));
        Some(Execution {
            stem,
            name,
            ended,
            root,
            kept: self.whole(record).or_else(|| printed(record)).map(|kept| with_end(step, kept)),
            attempt: slot.attempts,
            over: stands || slot.state == StepState::Settled,
            adapter: self.plan.adapter(step),
        })
    }
}

impl Walk<'_> {
    /// Reads an output that is stored in a file of its own.
    fn whole(&self, record: &Record) -> Option<String> {
        let mut bytes = Vec::new();
        let mut file = excerpt::open(&self.run_root, &record.whole.as_ref()?.path).ok()?;
        file.read_to_end(&mut bytes).ok()?;
        Some(String::from_utf8_lossy(&bytes).into_owned())
    }
}

/// Returns the output with its final newline, which the state does not store.
fn with_end(step: &Step, mut kept: String) -> String {
    if step.output.capture == CaptureMode::Whole && !kept.is_empty() && !kept.ends_with('\n') {
        kept.push('\n');
    }
    kept
}

/// Fails unless the plan has this step. The run may not have reached it yet.
fn check_step(plan: &Plan, run: &Run, name: &str) -> Result<(), Failure> {
    let (address, name) = (Address::parse(plan, name), shown(name));
    match address.map(|address| address.step_of(plan).inner().is_some()) {
        Some(false) => Ok(()),
        Some(true) if plan.dialect() == Dialect::Nodes => Ok(()),
        Some(true) => {
            let message = format!("`{name}` is a loop: it is its steps that print");
            Err(Failure::invalid(message).hint(format!("such as `{name}.0.STEP`")))
        }
        None => {
            let names: Vec<_> = plan.root().steps.iter().map(|s| format!("`{}`", s.name)).collect();
            Err(Failure::invalid(format!("run {} has no {} `{name}`", run.id, plan.unit()))
                .hint(format!("there are {}", names.join(", "))))
        }
    }
}
