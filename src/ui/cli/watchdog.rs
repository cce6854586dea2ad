//! Says when the workspace's volume does not respond.
//!
//! While the server of a network volume hangs, every file operation blocks, and the process cannot
//! say why. One thread, the canary, asks the volume how much room it has, which no client answers
//! from a cache. Another thread, the watchdog, says so when the canary gets no answer.
//!
//! **Invariant:** the watchdog never touches the volume. What it counts is time in which this
//! process ran: a process that was stopped, or a machine that slept, is no fault of the volume.

use std::path::PathBuf;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use nix::sys::statvfs::statvfs;

use super::{Common, Verb};
use crate::ui::talk::talk;

/// How long the volume may take to answer.
const LIMIT: Duration = Duration::from_secs(5);
/// How long to wait before the first question: most commands are over by then.
const FIRST: Duration = Duration::from_millis(250);
/// Between two questions.
const PAUSE: Duration = Duration::from_secs(5);
/// The time in which a wait is counted.
const SLICE: Duration = Duration::from_millis(250);
/// Neither thread needs more.
const STACK: usize = 128 << 10;

/// Hears what there is to say in place of standard error: a message while the volume does not
/// respond, `None` when it responds again.
type Listener = Box<dyn Fn(Option<String>) + Send>;

static LISTENER: Mutex<Option<Listener>> = Mutex::new(None);

/// How much is said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Voice {
    /// Nothing: the verb does not use the workspace, or becomes another program.
    None,
    /// That the volume does not respond, once.
    Once,
    /// Each outage, and its end, in the log.
    Always,
}

fn voice(verb: &Verb) -> Voice {
    match verb {
        Verb::Offline(_) | Verb::Confine(_) | Verb::Complete(_) | Verb::Completions(_) => {
            Voice::None
        }
        Verb::Schema(_) | Verb::Help(_) => Voice::None,
        Verb::Worker(_) | Verb::Coordinator(_) | Verb::Serve(_) | Verb::Top(_) => Voice::Always,
        _ => Voice::Once,
    }
}

/// Begins to watch the volumes that a verb uses. Costs one thread, which sleeps at first.
pub fn start(verb: &Verb, common: &Common) {
    let voice = voice(verb);
    if voice == Voice::None {
        return;
    }
    let state_dir = common.state_dir.clone();
    spawn(move || {
        std::thread::sleep(FIRST);
        watch(&places(state_dir), voice);
    });
}

/// Lets a listener hear what there is to say, or standard error again.
pub fn divert(listener: Option<Listener>) {
    *LISTENER.lock().unwrap_or_else(PoisonError::into_inner) = listener;
}

/// A process that gets no more threads works without its watchdog.
fn spawn(work: impl FnOnce() + Send + 'static) {
    let _ = std::thread::Builder::new().stack_size(STACK).spawn(work);
}

/// The directories whose volumes the program uses. Found without asking a volume.
fn places(state_dir: Option<PathBuf>) -> Vec<PathBuf> {
    let workspace = workspace();
    let state_dir = state_dir.or_else(|| set("ORCHESTRATE_STATE_DIR"));
    let state_dir = state_dir.map(|dir| workspace.join(dir));
    std::iter::once(workspace).chain(state_dir).collect()
}

/// The directory that the program was started in or for, as it was given: no volume is asked.
pub fn workspace() -> PathBuf {
    let here = std::env::current_dir().unwrap_or_default();
    set("ORCHESTRATE_WORKSPACE").map_or(here.clone(), |path| here.join(path))
}

/// A path that the environment names.
fn set(name: &str) -> Option<PathBuf> {
    let mut all = std::env::vars_os().filter(|(key, value)| key == name && !value.is_empty());
    all.next().map(|(_, value)| PathBuf::from(value))
}

/// Asks one place after the other for as long as the process lives.
fn watch(places: &[PathBuf], voice: Voice) {
    let (ask, asked) = channel();
    let (answer, answers) = channel();
    spawn(move || serve_canary(&asked, &answer));
    loop {
        for place in places {
            if ask.send(place.clone()).is_err() {
                return;
            }
            let began = Instant::now();
            match is_answered(&answers, LIMIT) {
                Some(true) => continue,
                Some(false) => {}
                None => return,
            }
            say(&format!(
                "the volume of `{}` has not responded for {} s; waiting for it",
                place.display(),
                LIMIT.as_secs()
            ));
            if voice == Voice::Once || answers.recv().is_err() {
                return;
            }
            say_again(&format!(
                "the volume of `{}` responds again, after {} s",
                place.display(),
                began.elapsed().as_secs()
            ));
        }
        std::thread::sleep(PAUSE);
    }
}

/// The canary: it may block for as long as the volume does.
fn serve_canary(asked: &Receiver<PathBuf>, answer: &Sender<()>) {
    while let Ok(place) = asked.recv() {
        // An error is an answer.
        let _ = statvfs(&place);
        if answer.send(()).is_err() {
            return;
        }
    }
}

/// Whether an answer came within the limit; `None` if there is no canary.
fn is_answered(answers: &Receiver<()>, limit: Duration) -> Option<bool> {
    let mut waited = Duration::ZERO;
    while waited < limit {
        match answers.recv_timeout(SLICE) {
            Ok(()) => return Some(true),
            Err(RecvTimeoutError::Disconnected) => return None,
            // However long it took: more than a slice passes only while the process is stopped.
            Err(RecvTimeoutError::Timeout) => waited += SLICE,
        }
    }
    Some(false)
}

fn say(text: &str) {
    match &*LISTENER.lock().unwrap_or_else(PoisonError::into_inner) {
        Some(listener) => listener(Some(text.to_owned())),
        // Not through the log, which may be a file on that volume.
        None => talk(format_args!("warning: {text}")),
    }
}

fn say_again(text: &str) {
    match &*LISTENER.lock().unwrap_or_else(PoisonError::into_inner) {
        Some(listener) => listener(None),
        None => talk(text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_canary_that_answers_is_heard_and_one_that_does_not_is_missed() {
        let (answer, answers) = channel();
        answer.send(()).unwrap();
        assert_eq!(is_answered(&answers, SLICE), Some(true));
        assert_eq!(is_answered(&answers, SLICE), Some(false));
        drop(answer);
        assert_eq!(is_answered(&answers, SLICE), None);
    }
}
