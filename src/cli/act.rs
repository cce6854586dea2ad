//! Actions that a user takes on runs and tasks in `top` or in a browser. Each action runs the
//! matching verb in a child process: the verb validates and acknowledges it, and a run that the
//! verb continues does not end when the user closes the dashboard.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Seek, Write};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use nix::sys::memfd::{MFdFlags, memfd_create};
use serde_json::Value;

use super::invocation::Invocation;
use crate::base::ids::RunId;
use crate::disk::fs;
use crate::exec::{Errand, Streams};
use crate::view::{Board, Standing};

/// Maximum length of one command line argument, in bytes.
pub(crate) const LONGEST: usize = 64 << 10;

/// A question of a gate, as it was shown to the user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Question {
    pub run: String,
    pub node: String,
    /// Path of the asking step. A node may ask again in another iteration, so its name is not
    /// enough.
    pub step: String,
    /// Digest of the text that was shown. The answer applies only to a question with this digest.
    pub shown: String,
}

/// An action. Runs and tasks are identified by their ids.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Deed {
    Approve { asked: Question, comment: String },
    Reject { asked: Question, reason: String },
    Cancel { target: String },
    Retry { target: String, from: Option<String> },
    Enqueue { agent: String, title: String, text: String },
}

/// The result of an action.
pub(crate) enum Came {
    /// The verb ended and printed this document.
    Done(Value),
    /// The request was accepted and the verb is still running.
    GoesOn(Rest),
    Refused {
        code: i32,
        message: String,
    },
}

/// A verb that is still running. It continues whether or not the caller waits for its end.
pub(crate) struct Rest {
    errand: Errand,
    output: File,
    errors: File,
}

impl Rest {
    /// Returns the result, or `None` if the verb is still running after `time`.
    fn wait(&mut self, time: Duration) -> Option<Came> {
        let code = self.errand.wait(time)?;
        Some(came(code, &all(&self.output), &all(&self.errors)))
    }

    /// Blocks until the verb ends and returns its result.
    pub(crate) fn end(mut self) -> Came {
        loop {
            if let Some(came) = self.wait(Duration::from_secs(3600)) {
                return came;
            }
        }
    }
}

/// The program that runs the verbs, and how long a caller waits for a result.
pub(crate) struct Hands {
    program: PathBuf,
    patience: Duration,
}

impl Hands {
    pub(crate) fn new(patience: Duration) -> io::Result<Hands> {
        Ok(Hands { program: std::env::current_exe()?, patience })
    }

    /// Runs the verb. Returns when it ends, when the board shows its effect, or after the timeout.
    pub(crate) fn act(&self, invocation: &Invocation, deed: &Deed) -> io::Result<Came> {
        let words = deed.words();
        if words.iter().any(|word| word.contains('\0') || word.len() > LONGEST) {
            let message = "it is too long, or has a zero byte in it".to_owned();
            return Ok(Came::Refused { code: 2, message });
        }
        let look = || board(invocation).is_some_and(|board| deed.is_seen(&board));
        // If the board shows the effect before the request, only the verb's own result counts.
        let before = look();
        let (output, errors) = (in_memory()?, in_memory()?);
        let (to, also) = (output.try_clone()?, errors.try_clone()?);
        let streams = Streams { input: deed.input()?, output: to, errors: also };
        let here = std::env::current_dir()?;
        let errand = Errand::start(&self.program, &arguments(invocation, words), &here, streams)?;
        let mut rest = Rest { errand, output, errors };
        let until = Instant::now() + self.patience;
        loop {
            if let Some(came) = rest.wait(Duration::from_millis(60)) {
                return Ok(came);
            }
            if (!before && look()) || Instant::now() >= until {
                return Ok(Came::GoesOn(rest));
            }
        }
    }
}

/// Returns a snapshot of the board. Does not wait for heartbeats of other machines.
fn board(invocation: &Invocation) -> Option<Board> {
    Board::scan(invocation, invocation.queue_if_any().ok()?).ok()
}

fn arguments(invocation: &Invocation, words: Vec<String>) -> Vec<OsString> {
    let mut arguments: Vec<OsString> = vec!["--json".into(), "--quiet".into()];
    let common = &invocation.common;
    for (flag, path) in [("--state-dir", &common.state_dir), ("--config", &common.config)] {
        if let Some(path) = path {
            arguments.extend([flag.into(), path.clone().into_os_string()]);
        }
    }
    arguments.extend(words.into_iter().map(OsString::from));
    arguments
}

impl Deed {
    /// Returns the verb and its arguments.
    fn words(&self) -> Vec<String> {
        let question = |verb: &str, asked: &Question, said: Option<String>| {
            let (step, shown) = (&asked.step, &asked.shown);
            let mut words = vec![verb.to_owned()];
            words.extend([format!("--step={step}"), format!("--shown={shown}")]);
            words.extend(said);
            words.push(asked.run.clone());
            words
        };
        match self {
            Deed::Approve { asked, comment } => {
                let said = (!comment.is_empty()).then(|| format!("--comment={comment}"));
                question("approve", asked, said)
            }
            Deed::Reject { asked, reason } => {
                question("reject", asked, Some(format!("--reason={reason}")))
            }
            Deed::Cancel { target } => vec!["cancel".into(), target.clone()],
            Deed::Retry { target, from } => {
                let mut words = vec!["retry".to_owned()];
                words.extend(from.as_ref().map(|step| format!("--from={step}")));
                words.push(target.clone());
                words
            }
            Deed::Enqueue { agent, title, .. } => {
                let mut words = vec!["enqueue".to_owned()];
                words.extend((!title.is_empty()).then(|| format!("--title={title}")));
                words.extend(["--".to_owned(), agent.clone(), "-".to_owned()]);
                words
            }
        }
    }

    /// Returns the file that becomes the verb's standard input.
    fn input(&self) -> io::Result<File> {
        let Deed::Enqueue { text, .. } = self else { return fs::open("/dev/null") };
        let mut file = in_memory()?;
        file.write_all(text.as_bytes())?;
        file.rewind()?;
        Ok(file)
    }

    /// Returns true if the board shows the effect. The verb may still run then: it may continue the
    /// run.
    fn is_seen(&self, board: &Board) -> bool {
        match self {
            Deed::Approve { asked, .. } | Deed::Reject { asked, .. } => {
                let Some(id) = RunId::parse(&asked.run) else { return false };
                let Ok(gates) = board.gates_of_run(&id) else { return false };
                !gates
                    .iter()
                    .any(|gate| gate.shown == asked.shown && gate.step.to_string() == asked.step)
            }
            Deed::Retry { target, .. } => {
                let state = RunId::parse(target).map(|id| board.run(&id).state);
                matches!(state, Some(Standing::Running | Standing::Queued | Standing::Paused))
            }
            Deed::Cancel { .. } | Deed::Enqueue { .. } => false,
        }
    }

    /// Describes the result in one line.
    pub(crate) fn told(&self, came: &Came) -> String {
        let said = match came {
            Came::Refused { message, .. } => return message.replace('\n', "; "),
            Came::Done(said) => said,
            Came::GoesOn(_) => &Value::Null,
        };
        let what = match self {
            Deed::Approve { asked, .. } => {
                format!("`{}` of run {} approved", asked.node, asked.run)
            }
            Deed::Reject { asked, .. } => format!("`{}` of run {} rejected", asked.node, asked.run),
            Deed::Cancel { target } if matches!(came, Came::GoesOn(_)) => {
                format!("{} is being cancelled", named(target))
            }
            Deed::Cancel { target } => format!("{} is cancelled", named(target)),
            Deed::Retry { target, .. } => match said["schema"].as_str() {
                Some("retry/v1") => format!("{} is given to the coordinators", named(target)),
                Some("requeue/v1") => format!("{} is in its inbox again", named(target)),
                _ => format!("{} goes on", named(target)),
            },
            Deed::Enqueue { agent, .. } => format!("a task was put into inbox/{agent}"),
        };
        if let Some(message) = said["message"].as_str() {
            return format!("{what}; {message}");
        }
        // The verb's process continued the run as far as possible.
        match said["status"].as_str().filter(|_| said["schema"] == "run/v1") {
            Some("paused") => format!("{what}; it waits for a person"),
            Some(status) => format!("{what}: {status}"),
            None => what,
        }
    }
}

/// Returns the id with `run` or `task` in front of it.
fn named(target: &str) -> String {
    let what = if RunId::parse(target).is_some() { "run" } else { "task" };
    format!("{what} {target}")
}

/// Interprets the exit code and output of a verb. A run that was continued and then failed or
/// paused counts as done: the request itself succeeded.
fn came(code: i32, output: &str, errors: &str) -> Came {
    let said: Value = serde_json::from_str(output.lines().last().unwrap_or_default())
        .unwrap_or_else(|_| serde_json::from_str(output).unwrap_or_default());
    if code == 0 || said["schema"] == "run/v1" {
        return Came::Done(said);
    }
    let message = match (said["error"]["message"].as_str(), said["error"]["hint"].as_str()) {
        (Some(message), Some(hint)) => format!("{message}\n{hint}"),
        (Some(message), None) => message.to_owned(),
        _ => errors.trim().to_owned(),
    };
    Came::Refused { code, message }
}

fn in_memory() -> io::Result<File> {
    Ok(memfd_create("errand", MFdFlags::MFD_CLOEXEC)?.into())
}

/// Reads the file from its start, up to `MOST` bytes, without moving the position that the verb
/// writes at.
fn all(file: &File) -> String {
    const MOST: usize = 256 << 10;
    let mut bytes = vec![0; MOST];
    let read = file.read_at(&mut bytes, 0).unwrap_or(0);
    String::from_utf8_lossy(&bytes[..read]).into_owned()
}
