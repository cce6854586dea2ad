//! The team of the demo: a coordinator and a worker for each agent, as child processes that never
//! outlive this one.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::attempt::documents::COORDINATOR;
use crate::cli::invocation::Invocation;
use crate::cli::up;
use crate::disk::hint::Bell;
use crate::exec::Daemon;

pub(super) const AGENTS: [&str; 3] = ["architect", "engineer", "qa"];
/// Log file for the output of the team, in its workspace.
pub(super) const LOG: &str = "team.log";
/// Variables that would make the team use another workspace.
const ELSEWHERE: [&str; 2] = ["ORCHESTRATE_WORKSPACE", "ORCHESTRATE_STATE_DIR"];
/// Time that the members may take to end before they are asked to hurry.
const PATIENCE: Duration = Duration::from_secs(5);

pub(super) struct Team {
    members: Vec<Arc<Daemon>>,
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    /// True once the members were asked to end.
    asked: AtomicBool,
    ended: AtomicUsize,
    /// The first member that ended without being asked to.
    died: Mutex<Option<String>>,
    bell: Arc<Bell>,
}

impl Team {
    /// Starts all members. `bell` rings whenever a member ends.
    pub(super) fn start(invocation: &Invocation, bell: Arc<Bell>) -> io::Result<Team> {
        let program = std::env::current_exe()?;
        let log = Arc::new(File::create(invocation.workspace.join(LOG))?);
        let shared = Arc::new(Shared { bell, ..Shared::default() });
        let mut team = Team { members: Vec::new(), shared };
        for name in [COORDINATOR].into_iter().chain(AGENTS) {
            team.add(invocation, &program, name, log.clone())?;
        }
        Ok(team)
    }

    fn add(
        &mut self,
        invocation: &Invocation,
        program: &Path,
        name: &'static str,
        log: Arc<File>,
    ) -> io::Result<()> {
        let arguments = up::arguments(invocation, name);
        let (daemon, pipe) = Daemon::start_without(program, &arguments, &ELSEWHERE)?;
        let daemon = Arc::new(daemon);
        let (watched, shared) = (daemon.clone(), self.shared.clone());
        std::thread::spawn(move || {
            watched.await_end();
            if !shared.asked.load(Ordering::SeqCst) {
                let mut died = shared.died.lock().unwrap_or_else(PoisonError::into_inner);
                died.get_or_insert_with(|| name.to_owned());
            }
            shared.ended.fetch_add(1, Ordering::SeqCst);
            shared.bell.ring();
        });
        if let Some(pipe) = pipe {
            std::thread::spawn(move || keep(pipe, name, &log));
        }
        self.members.push(daemon);
        Ok(())
    }

    /// Returns the first member that ended without being asked to.
    pub(super) fn died(&self) -> Option<String> {
        self.shared.died.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Ends all members, however the demo ends.
impl Drop for Team {
    fn drop(&mut self) {
        self.shared.asked.store(true, Ordering::SeqCst);
        for hurry in [false, true] {
            self.members.iter().for_each(|daemon| daemon.ask(hurry));
            let end = Instant::now() + PATIENCE;
            while Instant::now() < end {
                let heard = self.shared.bell.rings();
                if self.shared.ended.load(Ordering::SeqCst) == self.members.len() {
                    break;
                }
                self.shared.bell.wait(heard, end.saturating_duration_since(Instant::now()));
            }
        }
        for daemon in &self.members {
            let _ = daemon.bury();
        }
    }
}

/// Copies the output of a member to the log, with its name in front of each line.
fn keep(pipe: impl Read, name: &str, mut log: &File) {
    for line in BufReader::new(pipe).lines().map_while(Result::ok) {
        // Use one write per line, because other threads write to the log too.
        let _ = log.write_all(format!("{name:<11} | {line}\n").as_bytes());
    }
}
