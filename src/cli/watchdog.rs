//! Reports when the workspace's volume does not respond.
//!
//! While the server of a network volume hangs, every file operation blocks, and the process cannot
//! report why. One thread, the canary, queries the free space of the volume, which no client
//! answers from a cache. Another thread, the watchdog, reports when the canary gets no answer.
//!
//! **Invariant:** the watchdog never accesses the volume. It counts only time in which this process
//! ran: time in which the process was stopped or the machine slept does not count.

use std::path::PathBuf;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use nix::sys::statvfs::statvfs;

use super::{Common, Verb};
use crate::view::stderr::talk;

/// Time that the volume may take to answer.
const LIMIT: Duration = Duration::from_secs(5);
/// Delay before the first query. Most commands end earlier.
const FIRST: Duration = Duration::from_millis(250);
/// Pause between two rounds of queries.
const PAUSE: Duration = Duration::from_secs(5);
/// Unit in which waiting time is counted.
const SLICE: Duration = Duration::from_millis(250);
/// Stack size. Neither thread needs more.
const STACK: usize = 128 << 10;

/// Receives reports in place of stderr: a message while the volume does not respond, `None` when it
/// responds again.
type Listener = Box<dyn Fn(Option<String>) + Send>;

static LISTENER: Mutex<Option<Listener>> = Mutex::new(None);

/// Amount of reporting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Voice {
    /// No reports: the verb does not use the workspace, or executes another program.
    None,
    /// Only the first outage.
    Once,
    /// Each outage and its end.
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

/// Starts to watch the volumes that a verb uses. Costs one thread, which sleeps at first.
pub(super) fn start(verb: &Verb, common: &Common) {
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

/// Sends reports to `listener`, or to stderr if `None`.
pub(super) fn divert(listener: Option<Listener>) {
    *LISTENER.lock().unwrap_or_else(PoisonError::into_inner) = listener;
}

/// Starts a thread. If that fails, the process works without its watchdog.
fn spawn(work: impl FnOnce() + Send + 'static) {
    let _ = std::thread::Builder::new().stack_size(STACK).spawn(work);
}

/// Returns the directories whose volumes the program uses, without accessing a volume.
fn places(state_dir: Option<PathBuf>) -> Vec<PathBuf> {
    let workspace = workspace();
    let state_dir = state_dir.or_else(|| set("ORCHESTRATE_STATE_DIR"));
    let state_dir = state_dir.map(|dir| workspace.join(dir));
    std::iter::once(workspace).chain(state_dir).collect()
}

/// Returns the workspace path as it was given, without accessing a volume.
pub(super) fn workspace() -> PathBuf {
    let here = std::env::current_dir().unwrap_or_default();
    set("ORCHESTRATE_WORKSPACE").map_or(here.clone(), |path| here.join(path))
}

/// Returns a path from an environment variable; `None` if it is unset or empty.
fn set(name: &str) -> Option<PathBuf> {
    let mut all = std::env::vars_os().filter(|(key, value)| key == name && !value.is_empty());
    all.next().map(|(_, value)| PathBuf::from(value))
}

/// Queries the directories in turn until the process ends.
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

/// Runs the canary thread, which may block as long as the volume does.
fn serve_canary(asked: &Receiver<PathBuf>, answer: &Sender<()>) {
    while let Ok(place) = asked.recv() {
        // An error is also an answer.
        let _ = statvfs(&place);
        if answer.send(()).is_err() {
            return;
        }
    }
}

/// Returns true if an answer arrives within `limit` and `None` if the canary thread is gone.
fn is_answered(answers: &Receiver<()>, limit: Duration) -> Option<bool> {
    let mut waited = Duration::ZERO;
    while waited < limit {
        match answers.recv_timeout(SLICE) {
            Ok(()) => return Some(true),
            Err(RecvTimeoutError::Disconnected) => return None,
            // Count one slice regardless of the real time: a wait takes longer only while the
            // process is stopped.
            Err(RecvTimeoutError::Timeout) => waited += SLICE,
        }
    }
    Some(false)
}

fn say(text: &str) {
    match &*LISTENER.lock().unwrap_or_else(PoisonError::into_inner) {
        Some(listener) => listener(Some(text.to_owned())),
        // Do not use the log, which may be a file on that volume.
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
