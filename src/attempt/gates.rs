//! Answers of users: small files in a run's `control` directory, which any user with access to the
//! volume can drop there.
//!
//! **Invariant:** a gate is answered only once: the file is written completely under another name
//! and then linked to its own, which fails if that exists.
//!
//! **Invariant:** an answer applies to the content that the user saw: it names that content, it was
//! not there before the gate asked, and it came in time.

use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::base::ids::{Attempt, StepPath};
use crate::base::process;
use crate::base::time::Time;
use crate::disk;
use crate::engine::run::{Address, Run};
use crate::engine::{Answer, GateRecord, Record};
use crate::workflow::Plan;
use crate::workflow::plan::{Action, Block, RoundsKind};

/// Directory of a run into which users drop answers.
pub(crate) const CONTROL: &str = "control";
/// Maximum size of an answer file.
const MOST_BYTES: u64 = 1 << 20;

/// An answer, as its file contains it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct AnswerFile {
    #[serde(default = "schema")]
    pub schema: String,
    pub approve: bool,
    #[serde(default)]
    pub comment: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
    /// Digest of the content that the user saw.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shown: Option<String>,
}

fn schema() -> String {
    "answer/v1".into()
}

impl AnswerFile {
    pub(crate) fn new(
        approve: bool,
        comment: String,
        by: Option<String>,
        shown: String,
    ) -> AnswerFile {
        AnswerFile { schema: schema(), approve, comment, by, shown: Some(shown) }
    }
}

/// Returns the path of the diff that the reviewer of a merge sees, relative to the run's directory.
pub(crate) fn review(subject: &str) -> String {
    format!("reviews/{}.diff", subject.get(..32).unwrap_or(subject))
}

/// Returns the path of the answer to a gate: one name per attempt.
pub(crate) fn path(root: &Path, step: &StepPath, attempt: Attempt) -> PathBuf {
    root.join(CONTROL).join(format!("{step}.{attempt}.answer"))
}

/// Shortens the digest of the shown content to the part that users type.
pub(crate) fn short(shown: &str) -> &str {
    const SHORT: usize = 12;
    shown.get(..SHORT).unwrap_or(shown)
}

/// Returns the valid answer to a gate, if there is one. Moves an invalid answer aside, where users
/// can find it.
pub(crate) fn answer(
    root: &Path,
    step: &StepPath,
    attempt: Attempt,
    gate: &GateRecord,
) -> Option<Answer> {
    let path = path(root, step, attempt);
    match judged(&path, &gate.shown, gate.expires_at) {
        Ok(file) => {
            file.map(|file| Answer { approve: file.approve, comment: file.comment, by: file.by })
        }
        Err(reason) => {
            refuse(&path, &reason);
            None
        }
    }
}

/// Reads the file at `path` and returns it if it is a valid answer to this gate. The error states
/// why it is not.
fn judged(
    path: &Path,
    shown: &str,
    expires_at: Option<Time>,
) -> Result<Option<AnswerFile>, String> {
    let Some(file) = read(path)? else { return Ok(None) };
    if !is_in_time(path, expires_at) {
        return Err("it came when the time to answer was over".into());
    }
    match file.shown.as_deref() {
        Some(known) if known == shown => Ok(Some(file)),
        Some(_) => Err("it is about something that was shown before and has changed".into()),
        None => {
            Err("it does not say what was `shown`, which `orchestrate pending --json` tells"
                .to_owned())
        }
    }
}

/// Moves an invalid answer aside, so that a valid one can be given. Several processes may do so at
/// once: the moved file is checked again, and put back if it is valid.
pub(crate) fn clear_void(
    root: &Path,
    step: &StepPath,
    attempt: Attempt,
    shown: &str,
) -> io::Result<()> {
    let (disk, path) = (disk::machine(), path(root, step, attempt));
    if judged(&path, shown, None).is_ok() {
        return Ok(());
    }
    let taken = own_name(root, step, attempt);
    match disk.rename(&path, &taken) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        renamed => renamed?,
    }
    match judged(&taken, shown, None) {
        Err(_) => disk.rename(&taken, &aside(&path)),
        Ok(_) => match disk.link(&taken, &path) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
            _ => disk.remove(&taken),
        },
    }
}

/// Returns a unique name. A process ID would not be unique: another machine may use it too.
fn own_name(root: &Path, step: &StepPath, attempt: Attempt) -> PathBuf {
    root.join(CONTROL).join(format!(".{step}.{attempt}.{}", process::new_incarnation()))
}

/// Returns true if a gate has a valid answer.
pub(crate) fn is_answered(path: &Path, shown: &str, expires_at: Option<Time>) -> bool {
    matches!(judged(path, shown, expires_at), Ok(Some(_)))
}

/// Returns the reason why the answer that was dropped for this gate is invalid, if there is one.
pub(crate) fn refused(path: &Path, shown: &str) -> Option<String> {
    let wrong = |path: &Path| judged(path, shown, None).err();
    wrong(path).or_else(|| wrong(&aside(path)))
}

/// Path that an invalid answer is moved to.
fn aside(path: &Path) -> PathBuf {
    path.with_extension("answer-refused")
}

/// Returns true if an answer came in time. The process that drives the run may see it later, so the
/// file's time decides: it comes from the clock of the volume, which the author of the answer does
/// not set.
fn is_in_time(path: &Path, expires_at: Option<Time>) -> bool {
    let Some(Time(last)) = expires_at else { return true };
    let came = disk::machine().changed_ms(path).ok().flatten();
    came.is_none_or(|came| came <= last)
}

/// Returns the record of the agent step that a gate asks about: the last one before the gate or, if
/// a rejection started this round, the last one of the previous round.
pub(crate) fn said_before<'r>(plan: &Plan, run: &'r Run, here: &Address) -> Option<&'r Record> {
    let prompt = |block: &Block, last: usize| {
        block.steps[..last].iter().rposition(|step| matches!(step.action, Action::Prompt(_)))
    };
    let block = here.block(plan);
    let at = match prompt(block, here.step) {
        Some(step) => Address { step, ..here.clone() },
        None => {
            let around = here.parent()?;
            let rounds = around.step_of(plan).rounds()?;
            if rounds.kind != RoundsKind::Approval {
                return None;
            }
            let step = prompt(block, block.steps.len())?;
            let mut loops = here.loops.clone();
            let (_, round) = loops.last_mut()?;
            *round = round.checked_sub(1)?;
            Address { loops, step }
        }
    };
    run.slot(&at)?.record.as_deref()
}

/// Moves an answer aside that was there before the gate asked. Call it right before the gate asks.
pub(crate) fn clear(root: &Path, step: &StepPath, attempt: Attempt) {
    let path = path(root, step, attempt);
    if matches!(read(&path), Ok(None)) {
        return;
    }
    refuse(&path, "it was there before anything was asked");
}

fn refuse(path: &Path, reason: &str) {
    tracing::warn!("the answer `{}` does not count: {reason}", path.display());
    if let Err(error) = disk::machine().rename(path, &aside(path)) {
        tracing::warn!("cannot put `{}` aside: {error}", path.display());
    }
}

/// Reads an answer. An I/O error counts as no answer yet; any other error is a fault of the file.
fn read(path: &Path) -> Result<Option<AnswerFile>, String> {
    let bytes = match disk::machine().read_regular(path, MOST_BYTES) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::InvalidData => return Err(error.to_string()),
        Err(_) => return Ok(None),
    };
    serde_json::from_slice(&bytes).map(Some).map_err(|error| format!("it cannot be read: {error}"))
}

/// Writes an answer; it is durable when this returns. Returns true if it is the first one.
pub(crate) fn give(
    root: &Path,
    step: &StepPath,
    attempt: Attempt,
    answer: &AnswerFile,
) -> io::Result<bool> {
    let disk = disk::machine();
    let dir = root.join(CONTROL);
    disk.make_dirs(&dir)?;
    let path = path(root, step, attempt);
    let whole = own_name(root, step, attempt);
    let text = serde_json::to_vec_pretty(answer).map_err(io::Error::from)?;
    disk.write(&whole, &text)?;
    disk.sync(&whole)?;
    let linked = disk.link(&whole, &path);
    let _ = disk.remove(&whole);
    match linked {
        Ok(()) => disk.sync_dir(&dir).map(|()| true),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(false),
        Err(error) => Err(error),
    }
}
