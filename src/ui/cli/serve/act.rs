//! What is done from the page is done by the verbs, in processes of their own: they check, they
//! acknowledge, and a run that goes on does not end with the page.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Seek, Write};
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use nix::sys::memfd::{MFdFlags, memfd_create};
use serde_json::Value;

use super::routes::House;
use crate::exec::{Errand, Streams};
use crate::ids::RunId;
use crate::ui::board::Standing;
use crate::ui::cli::show;

/// How long somebody who has clicked waits for what came of it.
const PATIENCE: Duration = Duration::from_secs(4);
/// How long a word on a command line may be.
pub const LONGEST: usize = 64 << 10;

/// What came of it.
pub enum Came {
    /// What the verb said.
    Done(Value),
    /// It was taken in, and goes on.
    GoesOn,
    Refused {
        code: i32,
        message: String,
    },
}

/// Answers a question, if it is still the one that was looked at.
pub fn answer(
    house: &House,
    id: &RunId,
    step: &str,
    shown: &str,
    approve: bool,
    comment: &str,
) -> io::Result<Came> {
    let mut words = vec![if approve { "approve" } else { "reject" }.to_owned()];
    words.extend([format!("--step={step}"), format!("--shown={shown}")]);
    match approve {
        true if comment.is_empty() => {}
        true => words.push(format!("--comment={comment}")),
        false => words.push(format!("--reason={comment}")),
    }
    words.push(id.to_string());
    let asks = || {
        let gates = house.board().ok()?.gates_of_run(id).ok()?;
        Some(gates.iter().any(|gate| gate.shown == shown && gate.step.to_string() == step))
    };
    // What is not asked is refused by the verb, which is waited for.
    let asked = asks() == Some(true);
    carry_out(house, words, None, &|| asked && asks() == Some(false))
}

pub fn cancel(house: &House, target: &str) -> io::Result<Came> {
    carry_out(house, vec!["cancel".into(), target.to_owned()], None, &|| false)
}

pub fn retry(house: &House, target: &str, from: Option<&str>) -> io::Result<Came> {
    let mut words = vec!["retry".to_owned()];
    words.extend(from.map(|step| format!("--from={step}")));
    words.push(target.to_owned());
    let id = RunId::parse(target);
    carry_out(house, words, None, &|| {
        let state = id.as_ref().and_then(|id| Some(house.board().ok()?.run(id).state));
        matches!(state, Some(Standing::Running | Standing::Queued | Standing::Paused))
    })
}

pub fn enqueue(house: &House, agent: &str, title: &str, text: &str) -> io::Result<Came> {
    let mut words = vec!["enqueue".to_owned()];
    if !title.is_empty() {
        words.push(format!("--title={title}"));
    }
    words.extend(["--".to_owned(), agent.to_owned(), "-".to_owned()]);
    carry_out(house, words, Some(text), &|| false)
}

/// Lets a verb do it, and waits until it has, or until it is seen to be done.
fn carry_out(
    house: &House,
    words: Vec<String>,
    input: Option<&str>,
    is_done: &dyn Fn() -> bool,
) -> io::Result<Came> {
    if words.iter().any(|word| word.contains('\0') || word.len() > LONGEST) {
        let message = "it is too long, or has a zero byte in it".to_owned();
        return Ok(Came::Refused { code: 2, message });
    }
    let common = &house.around.common;
    let mut arguments: Vec<OsString> = vec!["--json".into(), "--quiet".into()];
    for (flag, path) in [("--state-dir", &common.state_dir), ("--config", &common.config)] {
        if let Some(path) = path {
            arguments.extend([flag.into(), path.clone().into_os_string()]);
        }
    }
    arguments.extend(words.into_iter().map(OsString::from));
    let given = match input {
        Some(text) => {
            let mut file = in_memory()?;
            file.write_all(text.as_bytes())?;
            file.rewind()?;
            file
        }
        None => File::open("/dev/null")?,
    };
    let (output, errors) = (in_memory()?, in_memory()?);
    let streams =
        Streams { input: given, output: output.try_clone()?, errors: errors.try_clone()? };
    let here = std::env::current_dir()?;
    let mut errand = Errand::start(&house.program, &arguments, &here, streams)?;
    let until = Instant::now() + PATIENCE;
    loop {
        if let Some(code) = errand.wait(Duration::from_millis(60)) {
            return Ok(came(code, &all(&output), &all(&errors)));
        }
        if is_done() || Instant::now() >= until {
            // Somebody must bury it when it ends.
            std::thread::spawn(move || while errand.wait(Duration::from_secs(3600)).is_none() {});
            return Ok(Came::GoesOn);
        }
    }
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

impl House {
    /// The board as it is now. Nobody waits for the beats of other machines.
    pub fn board(&self) -> Result<crate::ui::board::Board, crate::ui::cli::Failure> {
        show::board_at_once(&self.around, show::queue_if_any(&self.around)?)
    }
}
