//! Scans the workspace on its own thread: when files change, and at regular intervals. At most four
//! times a second.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::{Screen, Seen};
use crate::attempt::parking;
use crate::base::ids::RunId;
use crate::cli::invocation::Invocation;
use crate::cli::logs::Reader;
use crate::disk::fs::OnVolume as _;
use crate::disk::hint::{Bell, Hints};
use crate::queue::Queue;
use crate::run::failure::Failure;
use crate::run::project::unreadable_queue;
use crate::view::{Board, Memory, RunView, Standing};

/// Minimum interval between scans, and its maximum while a run is active and while none is.
const LEAST: Duration = Duration::from_millis(250);
const BUSY: Duration = Duration::from_secs(1);
const IDLE: Duration = Duration::from_secs(2);
/// Number of unfinished runs that are watched for notifications. The others are only polled.
const WATCHED: usize = 100;
/// Number of tasks of a queue that are shown.
const TASKS: usize = 200;
/// Number of bytes read from the end of a log, and number of its lines kept.
const TAIL: u64 = 256 << 10;
const LINES: usize = 5000;

/// The handle of the scanner thread. Dropping it ends the thread.
pub(crate) struct Looker {
    bell: Arc<Bell>,
    wanted: Arc<Mutex<Screen>>,
    over: Arc<AtomicBool>,
}

impl Looker {
    /// Starts to scan. Calls `tell` with each result.
    pub(crate) fn start(invocation: Invocation, tell: impl Fn(Seen) + Send + 'static) -> Looker {
        let looker = Looker {
            bell: Arc::default(),
            wanted: Arc::new(Mutex::new(Screen::Board)),
            over: Arc::default(),
        };
        let (bell, wanted, over) =
            (looker.bell.clone(), looker.wanted.clone(), looker.over.clone());
        std::thread::spawn(move || {
            let mut eyes = Eyes::new(invocation, bell.clone());
            while !over.load(Ordering::SeqCst) {
                let (heard, began) = (bell.rings(), Instant::now());
                let screen = wanted.lock().unwrap_or_else(PoisonError::into_inner).clone();
                let seen = eyes.look(&screen);
                let busy = seen.runs.iter().any(|run| run.state == Standing::Running);
                tell(seen);
                bell.wait(heard, if busy { BUSY } else { IDLE });
                let asked = *wanted.lock().unwrap_or_else(PoisonError::into_inner) != screen;
                // Show a newly opened screen at once; file changes can wait.
                if !asked {
                    std::thread::sleep(LEAST.saturating_sub(began.elapsed()));
                }
            }
        });
        looker
    }

    /// Sets the screen to collect data for, and starts a scan at once.
    pub(crate) fn want(&self, screen: &Screen) {
        *self.wanted.lock().unwrap_or_else(PoisonError::into_inner) = screen.clone();
        self.bell.ring();
    }
}

impl Drop for Looker {
    fn drop(&mut self) {
        self.over.store(true, Ordering::SeqCst);
        self.bell.ring();
    }
}

/// State that is kept between scans.
pub(crate) struct Eyes {
    invocation: Invocation,
    memory: Arc<Memory>,
    queue: Option<Arc<Queue>>,
    hints: Hints,
    watched: HashSet<PathBuf>,
    log: Option<Tail>,
}

/// A log that is being followed.
struct Tail {
    of: Screen,
    reader: Reader,
    lines: Vec<String>,
    /// The beginning of an incomplete line.
    rest: Vec<u8>,
}

impl Eyes {
    pub(crate) fn new(invocation: Invocation, bell: Arc<Bell>) -> Eyes {
        Eyes {
            invocation,
            memory: Arc::default(),
            queue: None,
            hints: Hints::new(move |_, _| bell.ring()),
            watched: HashSet::new(),
            log: None,
        }
    }

    /// Performs one scan: the board, and the contents of `screen`.
    pub(crate) fn look(&mut self, screen: &Screen) -> Seen {
        let place = self.invocation.workspace.file_name().unwrap_or_default();
        let place = place.to_string_lossy().into_owned();
        match self.try_look(screen) {
            Ok(seen) => Seen { place, ..seen },
            Err(failure) => {
                let now = Some(crate::base::time::Clock::now(&crate::base::time::SystemClock));
                Seen { place, now, trouble: Some(failure.sentence()), ..Seen::default() }
            }
        }
    }

    fn try_look(&mut self, screen: &Screen) -> Result<Seen, Failure> {
        if self.queue.is_none() {
            self.queue = self.invocation.queue_if_any()?;
        }
        let board = self.board()?;
        let failed = |error: std::io::Error| unreadable_queue(&error);
        let ids = board.run_ids();
        let runs: Vec<RunView> = ids.iter().map(|id| board.run(id)).collect();
        let open = ids.iter().zip(&runs).filter(|(_, run)| !run.state.is_over());
        let open: Vec<&RunId> = open.map(|(id, _)| id).collect();
        self.watch(&board, &open);
        let detail = match screen {
            Screen::Run { run } => RunId::parse(run).map(|id| match ids.contains(&id) {
                true => board.detail(&id).map_err(|error| error.to_string()),
                false => Err(format!("run {id} is gone")),
            }),
            _ => None,
        };
        let tasks = match screen {
            Screen::Queue { agent } => Some(board.tasks(agent, TASKS).map_err(failed)?),
            _ => None,
        };
        Ok(Seen {
            place: String::new(),
            now: Some(board.now),
            gates: open.iter().flat_map(|id| board.gates_of_run(id).unwrap_or_default()).collect(),
            runs,
            parked: board.parked.iter().map(parking::told).collect(),
            workers: board.members.views().collect(),
            inboxes: board.inboxes().map_err(failed)?,
            failed_tasks: board.failed().map_err(failed)?,
            detail,
            tasks,
            log: self.log(&board, screen)?,
            trouble: None,
        })
    }

    fn board(&self) -> Result<Board, Failure> {
        Board::scan_again(&self.invocation, self.queue.clone(), &self.memory)
    }

    /// Watches the directories where changes are expected.
    fn watch(&mut self, board: &Board, open: &[&RunId]) {
        let mut dirs = vec![self.invocation.state_dir.clone()];
        dirs.extend(open.iter().take(WATCHED).map(|id| board.run_root(id)));
        if let Some(queue) = &self.queue {
            let layout = &queue.layout;
            for agent in queue.agents().unwrap_or_default() {
                dirs.extend([layout.inbox(&agent), layout.claimed(&agent)]);
            }
        }
        for dir in dirs {
            self.watch_dir(&dir);
        }
    }

    fn watch_dir(&mut self, dir: &Path) {
        if !self.watched.contains(dir) && dir.is_present_dir() && self.hints.are_told() {
            self.hints.add(dir);
            self.watched.insert(dir.to_owned());
        }
    }

    /// Returns the end of the open log, and true if more output may follow.
    fn log(
        &mut self,
        board: &Board,
        screen: &Screen,
    ) -> Result<Option<(Vec<String>, bool)>, Failure> {
        let Screen::Log { run, step } = screen else {
            self.log = None;
            return Ok(None);
        };
        let Some(id) = RunId::parse(run) else { return Ok(None) };
        self.watch_dir(&board.run_root(&id).join("logs"));
        if self.log.as_ref().is_none_or(|log| log.of != *screen) {
            let reader = Reader::of_end(id, step.clone(), TAIL);
            let (lines, rest) = (Vec::new(), Vec::new());
            self.log = Some(Tail { of: screen.clone(), reader, lines, rest });
        }
        let Some(tail) = &mut self.log else { return Ok(None) };
        let (bytes, more) = tail.reader.more(board)?;
        tail.add(&bytes, more);
        Ok(Some((tail.lines.clone(), more)))
    }
}

impl Tail {
    fn add(&mut self, bytes: &[u8], more: bool) {
        self.rest.extend_from_slice(bytes);
        let end = match self.rest.iter().rposition(|byte| *byte == b'\n') {
            _ if !more => self.rest.len(),
            Some(end) => end + 1,
            None => 0,
        };
        let whole: Vec<u8> = self.rest.drain(..end).collect();
        self.lines.extend(String::from_utf8_lossy(&whole).lines().map(str::to_owned));
        let old = self.lines.len().saturating_sub(LINES);
        self.lines.drain(..old);
    }
}
