//! Reports when a volume that the command uses does not respond.
//!
//! While the server of a network volume hangs, every file operation blocks, and the process cannot
//! report why. One thread, the canary, queries the free space of each volume, which no client
//! answers from a cache. Another thread, the watchdog, reports when the canary gets no answer.
//!
//! **Invariant:** the watchdog never accesses the volume. It counts only time in which this process
//! ran: time in which the process was stopped or the machine slept does not count.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
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
const PAUSE: Duration = Duration::from_secs(1);
/// Maximum number of directories and files whose volumes are watched.
const PLACES: usize = 32;
/// Unit in which waiting time is counted.
const SLICE: Duration = Duration::from_millis(250);
/// Stack size. Neither thread needs more.
const STACK: usize = 128 << 10;

/// Receives reports in place of stderr: a message while the volume does not respond, `None` when it
/// responds again.
type Listener = Box<dyn Fn(Option<String>) + Send>;

static LISTENER: Mutex<Option<Listener>> = Mutex::new(None);

/// Returns true if a verb executes another program, or its stderr belongs to a shell's prompt.
fn is_mute(verb: &Verb) -> bool {
    matches!(verb, Verb::Offline(_) | Verb::Confine(_) | Verb::Complete(_))
}

/// Starts to watch the volumes that a verb uses. Costs one thread, which sleeps at first.
pub(super) fn start(verb: &Verb, common: &Common) {
    if is_mute(verb) {
        return;
    }
    let state_dir = common.state_dir.clone();
    spawn(move || {
        std::thread::sleep(FIRST);
        watch(&places(state_dir), LIMIT, &say, |place| {
            // An error is also an answer.
            let _ = statvfs(place);
        });
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

/// Returns the places whose volumes the program uses, without accessing a volume: the workspace,
/// the current directory, the places that the environment names, and each argument that looks like
/// a path. A place that does not exist costs one query.
fn places(state_dir: Option<PathBuf>) -> Vec<PathBuf> {
    let workspace = workspace();
    let state_dir = state_dir.or_else(|| set("ORCHESTRATE_STATE_DIR"));
    let state_dir = state_dir.map(|dir| workspace.join(dir));
    let named = ["ORCHESTRATE_CONFIG", "XDG_CONFIG_HOME", "HOME"].into_iter().filter_map(set);
    let arguments = std::env::args_os().skip(1).filter_map(|argument| path_in(&argument));
    let others = state_dir.into_iter().chain(named).chain(arguments);
    let mut places = vec![workspace];
    for place in [here()].into_iter().chain(others.map(|path| here().join(path))) {
        if !places.contains(&place) {
            places.push(place);
        }
    }
    places.truncate(PLACES);
    places
}

/// Returns the path in an argument: `a/b` or `--flag=a/b`.
fn path_in(argument: &OsStr) -> Option<PathBuf> {
    let bytes = argument.as_bytes();
    let is_flag = bytes.starts_with(b"-");
    let start = if is_flag { bytes.iter().position(|byte| *byte == b'=')? + 1 } else { 0 };
    let path = &bytes[start..];
    path.contains(&b'/').then(|| PathBuf::from(OsStr::from_bytes(path)))
}

/// Returns the workspace path as it was given, without accessing a volume.
pub(super) fn workspace() -> PathBuf {
    set("ORCHESTRATE_WORKSPACE").map_or_else(here, |path| here().join(path))
}

fn here() -> PathBuf {
    std::env::current_dir().unwrap_or_default()
}

/// Returns a path from an environment variable; `None` if it is unset or empty.
fn set(name: &str) -> Option<PathBuf> {
    let mut all = std::env::vars_os().filter(|(key, value)| key == name && !value.is_empty());
    all.next().map(|(_, value)| PathBuf::from(value))
}

/// Queries the places in turn until the process ends. Reports each outage of longer than `limit`,
/// and its end.
fn watch(
    places: &[PathBuf],
    limit: Duration,
    report: &dyn Fn(Report),
    query: impl Fn(&Path) + Send + 'static,
) {
    let (ask, asked) = channel();
    let (answer, answers) = channel();
    spawn(move || serve_canary(&asked, &answer, query));
    loop {
        for place in places {
            if ask.send(place.clone()).is_err() {
                return;
            }
            let began = Instant::now();
            match is_answered(&answers, limit) {
                Some(true) => continue,
                Some(false) => report(Report::Silent { place, limit }),
                None => return,
            }
            if answers.recv().is_err() {
                return;
            }
            report(Report::Back { place, after: began.elapsed() });
        }
        std::thread::sleep(PAUSE);
    }
}

/// Runs the canary thread, which may block as long as a volume does.
fn serve_canary(asked: &Receiver<PathBuf>, answer: &Sender<()>, query: impl Fn(&Path)) {
    while let Ok(place) = asked.recv() {
        query(&place);
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

/// A change in the state of a volume.
#[derive(Debug, PartialEq, Eq)]
enum Report<'a> {
    Silent { place: &'a Path, limit: Duration },
    Back { place: &'a Path, after: Duration },
}

fn say(report: Report) {
    let listener = LISTENER.lock().unwrap_or_else(PoisonError::into_inner);
    match report {
        Report::Silent { place, limit } => {
            let (place, seconds) = (place.display(), limit.as_secs());
            let text = format!(
                "the volume of `{place}` has not responded for {seconds} s; waiting for it"
            );
            match &*listener {
                Some(listener) => listener(Some(text)),
                // Do not use the log, which may be a file on that volume.
                None => talk(format_args!("warning: {text}")),
            }
        }
        Report::Back { place, after } => match &*listener {
            Some(listener) => listener(None),
            None => talk(format_args!(
                "the volume of `{}` responds again, after {} s",
                place.display(),
                after.as_secs()
            )),
        },
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

    #[test]
    fn every_outage_is_reported_with_its_end() {
        let (block, blocked) = channel::<bool>();
        let (tell, told) = channel();
        let watched = std::thread::spawn(move || {
            let report = |report: Report| match report {
                Report::Silent { place, .. } => tell.send((place.to_owned(), true)).unwrap(),
                Report::Back { place, .. } => tell.send((place.to_owned(), false)).unwrap(),
            };
            // The canary ends when the test drops its side, and the watchdog with it.
            watch(&["a".into()], SLICE, &report, move |_| assert!(blocked.recv().unwrap()));
        });
        for _ in 0..2 {
            assert_eq!(told.recv().unwrap(), ("a".into(), true));
            block.send(true).unwrap();
            assert_eq!(told.recv().unwrap(), ("a".into(), false));
        }
        drop(block);
        watched.join().unwrap();
    }

    #[test]
    fn an_argument_is_a_path_if_it_has_a_slash() {
        let path = |argument: &str| path_in(OsStr::new(argument));
        assert_eq!(path("/mnt/w.yaml"), Some("/mnt/w.yaml".into()));
        assert_eq!(path("--output=out/r.html"), Some("out/r.html".into()));
        for other in ["w.yaml", "--json", "-o", "--context=a=b", ""] {
            assert_eq!(path(other), None, "{other}");
        }
    }
}
