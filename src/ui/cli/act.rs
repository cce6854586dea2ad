//! What people do to runs and tasks where they look at them, in `top` or in a browser: the verbs do
//! it, in processes of their own. They check, they acknowledge, and a run that goes on does not end
//! when somebody stops looking.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Seek, Write};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use nix::sys::memfd::{MFdFlags, memfd_create};
use serde_json::Value;

use super::common::Surroundings;
use super::show;
use crate::exec::{Errand, Streams};
use crate::ids::RunId;
use crate::ui::board::{Board, Standing};

/// How long a word on a command line may be.
pub const LONGEST: usize = 64 << 10;

/// A question as somebody has seen it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Question {
    pub run: String,
    pub node: String,
    /// The very question: a node may ask again in another round.
    pub step: String,
    /// The digest of what was shown: an answer counts for nothing else.
    pub shown: String,
}

/// Something to be done. Runs and tasks go by their ids.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Deed {
    Approve { asked: Question, comment: String },
    Reject { asked: Question, reason: String },
    Cancel { target: String },
    Retry { target: String, from: Option<String> },
    Enqueue { agent: String, title: String, text: String },
}

/// What came of it.
pub enum Came {
    /// What the verb said.
    Done(Value),
    /// It was taken in, and goes on.
    GoesOn(Rest),
    Refused {
        code: i32,
        message: String,
    },
}

/// A verb that goes on, whether somebody waits for its end or not.
pub struct Rest {
    errand: Errand,
    output: File,
    errors: File,
}

impl Rest {
    /// What came of it, if that comes in time.
    fn wait(&mut self, time: Duration) -> Option<Came> {
        let code = self.errand.wait(time)?;
        Some(came(code, &all(&self.output), &all(&self.errors)))
    }

    /// What comes of it in the end.
    pub fn end(mut self) -> Came {
        loop {
            if let Some(came) = self.wait(Duration::from_secs(3600)) {
                return came;
            }
        }
    }
}

/// Where it is done, and for how long whoever asked for it waits for what comes of it.
pub struct Hands {
    program: PathBuf,
    patience: Duration,
}

impl Hands {
    pub fn new(patience: Duration) -> io::Result<Hands> {
        Ok(Hands { program: std::env::current_exe()?, patience })
    }

    /// Lets a verb do it, and waits until it has, or until it is seen to be done.
    pub fn act(&self, around: &Surroundings, deed: &Deed) -> io::Result<Came> {
        let words = deed.words();
        if words.iter().any(|word| word.contains('\0') || word.len() > LONGEST) {
            let message = "it is too long, or has a zero byte in it".to_owned();
            return Ok(Came::Refused { code: 2, message });
        }
        let look = || board(around).is_some_and(|board| deed.is_seen(&board));
        // What is so before it is asked for is judged by the verb, which is waited for.
        let before = look();
        let (output, errors) = (in_memory()?, in_memory()?);
        let (to, also) = (output.try_clone()?, errors.try_clone()?);
        let streams = Streams { input: deed.input()?, output: to, errors: also };
        let here = std::env::current_dir()?;
        let errand = Errand::start(&self.program, &arguments(around, words), &here, streams)?;
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

/// The board as it is now. Nobody waits for the beats of other machines.
fn board(around: &Surroundings) -> Option<Board> {
    show::board(around, show::queue_if_any(around).ok()?).ok()
}

fn arguments(around: &Surroundings, words: Vec<String>) -> Vec<OsString> {
    let mut arguments: Vec<OsString> = vec!["--json".into(), "--quiet".into()];
    let common = &around.common;
    for (flag, path) in [("--state-dir", &common.state_dir), ("--config", &common.config)] {
        if let Some(path) = path {
            arguments.extend([flag.into(), path.clone().into_os_string()]);
        }
    }
    arguments.extend(words.into_iter().map(OsString::from));
    arguments
}

impl Deed {
    /// The verb and what it is given.
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

    /// What the verb reads.
    fn input(&self) -> io::Result<File> {
        let Deed::Enqueue { text, .. } = self else { return File::open("/dev/null") };
        let mut file = in_memory()?;
        file.write_all(text.as_bytes())?;
        file.rewind()?;
        Ok(file)
    }

    /// Whether it can be seen to be done, before its verb has ended: that may go on with the run.
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

    /// What came of it, in a line.
    pub fn told(&self, came: &Came) -> String {
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
        // The run went on in the process of the verb, as far as it could.
        match said["status"].as_str().filter(|_| said["schema"] == "run/v1") {
            Some("paused") => format!("{what}; it waits for a person"),
            Some(status) => format!("{what}: {status}"),
            None => what,
        }
    }
}

/// A run or a task, told from one another.
fn named(target: &str) -> String {
    let what = if RunId::parse(target).is_some() { "run" } else { "task" };
    format!("{what} {target}")
}

/// What a verb's end means. A run that went on and failed, or paused, was taken up all the same.
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

/// What was written, without moving where it is written on.
fn all(file: &File) -> String {
    const MOST: usize = 256 << 10;
    let mut bytes = vec![0; MOST];
    let read = file.read_at(&mut bytes, 0).unwrap_or(0);
    String::from_utf8_lossy(&bytes[..read]).into_owned()
}
