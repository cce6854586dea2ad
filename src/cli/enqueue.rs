//! `orchestrate enqueue`: adds tasks to an agent's inbox.

use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::invocation::Invocation;
use super::{Common, fleet};
use crate::base::random;
use crate::base::time::{Clock, SystemClock};
use crate::disk::fs;
use crate::free_task::parse::FreeTask;
use crate::queue::Task;
use crate::run::failure::Failure;
use crate::workflow::settings::{COORDINATOR, agent_fault};

#[derive(clap::Args, Clone, Debug)]
pub(super) struct EnqueueArgs {
    /// The agent that is to do it
    #[arg(value_name = "AGENT")]
    agent: String,
    /// What is to be done; `-` reads it from standard input
    #[arg(value_name = "TEXT", conflicts_with = "file", allow_hyphen_values = true)]
    text: Option<String>,
    /// Read it from a file, which may begin with front matter
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// How urgent it is: 0 the most, 9 the least [default: 5]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(0..=9))]
    priority: Option<u8>,
    /// What it is called in lists
    #[arg(long, value_name = "TEXT")]
    title: Option<String>,
    /// Who answers, in place of the agent's own provider
    #[arg(long, value_name = "PROVIDER")]
    provider: Option<String>,
    /// The model that the provider is asked for
    #[arg(long, value_name = "MODEL")]
    model: Option<String>,
    /// The work item it belongs to, whose worktree it is done in
    #[arg(long, value_name = "ID|FILE")]
    bead: Option<String>,
    /// The agents that go on with it, one after the other
    #[arg(long, value_name = "AGENT,...", value_delimiter = ',')]
    next: Vec<String>,
    /// Make a task of each line that is not empty
    #[arg(long)]
    each_line: bool,
}

pub(super) fn main(args: &EnqueueArgs, common: &Common) -> Result<u8, Failure> {
    let invocation = Invocation::read(common)?;
    if let Some(fault) = agent_fault(&args.agent) {
        let failure = Failure::invalid(format!("`{}` cannot name an agent: {fault}", args.agent));
        let submit = args.agent == COORDINATOR;
        return Err(if submit {
            failure.hint("use `orchestrate submit WORKFLOW`")
        } else {
            failure
        });
    }
    let tasks = args.tasks(&invocation)?;
    let queue = invocation.open_queue()?;
    fleet::open_agents(&queue, std::slice::from_ref(&args.agent))?;
    let now = SystemClock.now().0.unsigned_abs();
    let limit = invocation.config.queue.crash_limit;
    let put_out =
        |task: &FreeTask| task.task(&args.agent, &queue.new_id(now), &random::unguessable(), limit);
    let tasks: Vec<Task> = tasks.iter().map(put_out).collect();
    queue.enqueue(&tasks).map_err(|error| {
        let agent = &args.agent;
        Failure::failed(format!("cannot put the task into the inbox of `{agent}`: {error}"))
            .hint("nothing was acknowledged; some of it may be there")
    })?;
    let waits = if tasks.len() == 1 { "the task waits" } else { "the tasks wait" };
    fleet::warn_of_nobody(&invocation, &fleet::living(&queue), &args.agent, waits);
    tell(&invocation, &tasks)
        .map_err(|error| Failure::failed(format!("cannot tell the ids: {error}")))?;
    Ok(0)
}

impl EnqueueArgs {
    /// Returns the tasks. They pass the same checks as dropped files.
    fn tasks(&self, invocation: &Invocation) -> Result<Vec<FreeTask>, Failure> {
        // A bead needs no text: it describes the work.
        if self.bead.is_some() && self.text.is_none() && self.file.is_none() && !self.each_line {
            let task = self.check(invocation, FreeTask::default());
            return Ok(vec![task.map_err(Failure::invalid)?]);
        }
        let (text, source) = self.read(invocation)?;
        if !self.each_line {
            let task = self.task(invocation, &text).map_err(Failure::invalid)?;
            return Ok(vec![FreeTask { source, ..task }]);
        }
        let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
        let tasks = lines.map(|(number, line)| {
            // A line is always plain text, even if it looks like a task file.
            let task = FreeTask::plain(line).and_then(|task| self.check(invocation, task));
            task.map_err(|fault| Failure::invalid(format!("line {}: {fault}", number + 1)))
        });
        let tasks: Vec<FreeTask> = tasks.collect::<Result<_, _>>()?;
        if tasks.is_empty() {
            return Err(Failure::invalid("there is no line to make a task of"));
        }
        Ok(tasks)
    }

    fn task(&self, invocation: &Invocation, text: &str) -> Result<FreeTask, String> {
        self.check(invocation, FreeTask::parse(text)?)
    }

    /// Overrides the task's own fields with the flags, and checks the result.
    fn check(&self, invocation: &Invocation, task: FreeTask) -> Result<FreeTask, String> {
        let task = FreeTask {
            title: self.title.clone().or(task.title),
            provider: self.provider.clone().or(task.provider),
            model: self.model.clone().or(task.model),
            priority: self.priority.or(task.priority),
            bead: self.bead.clone().map(Value::String).or(task.bead),
            next: if self.next.is_empty() { task.next } else { self.next.clone() },
            ..task
        };
        task.check(&invocation.config, &self.agent)?;
        Ok(task)
    }

    /// Returns the text, and the name of the file that it comes from.
    fn read(&self, invocation: &Invocation) -> Result<(String, Option<String>), Failure> {
        let most = invocation.config.queue.task_bytes;
        // Each line is a separate task, so the limit for one task is too small.
        let most = if self.each_line { most.max(64 << 20) } else { most };
        let unreadable = |what: &str, error: &dyn std::fmt::Display| {
            Failure::invalid(format!("cannot read {what}: {error}"))
        };
        match (&self.file, self.text.as_deref()) {
            (Some(path), _) => {
                let what = format!("`{}`", path.display());
                let file = fs::open(path).map_err(|error| unreadable(&what, &error))?;
                let text = bounded(file, most).map_err(|error| unreadable(&what, &error))?;
                Ok((text, name_of(path)))
            }
            (None, Some("-")) | (None, None) if self.text.is_some() || self.each_line => {
                let text = bounded(io::stdin(), most);
                Ok((text.map_err(|error| unreadable("standard input", &error))?, None))
            }
            (None, Some(text)) => Ok((text.to_owned(), None)),
            (None, None) => Err(Failure::invalid("nothing was said about what is to be done")
                .hint("give it as an argument, with `--file FILE`, or `-` for standard input")),
        }
    }
}

fn name_of(path: &Path) -> Option<String> {
    Some(path.file_name()?.to_string_lossy().into_owned())
}

/// Reads a text of at most `most` bytes. A longer one is an error.
fn bounded(from: impl Read, most: u64) -> io::Result<String> {
    let mut bytes = Vec::new();
    from.take(most + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > most {
        let why = format!("it is longer than {most} bytes, the most that is taken");
        return Err(io::Error::new(io::ErrorKind::InvalidData, why));
    }
    String::from_utf8(bytes).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        io::Error::new(io::ErrorKind::InvalidData, format!("it is not UTF-8 text (byte {at})"))
    })
}

/// Prints the ids on stdout, one per line.
fn tell(invocation: &Invocation, tasks: &[Task]) -> io::Result<()> {
    let mut out = io::BufWriter::new(io::stdout().lock());
    for task in tasks {
        let id = task.name.id.as_str();
        if invocation.common.json {
            let line = json!({
                "schema": "enqueued/v1",
                "task_id": id,
                "agent": task.agent,
                "priority": task.name.priority,
                "file": format!("inbox/{}/{}", task.agent, task.name.file()),
            });
            writeln!(out, "{line}")?;
        } else {
            writeln!(out, "{id}")?;
        }
    }
    out.flush()
}
