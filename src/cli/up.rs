//! `orchestrate up`: runs a coordinator and a worker for each agent in one terminal.
//!
//! Each is a separate process, so a crash does not affect the others; the crashed process is
//! restarted. No child outlives this process, even if this process is killed: each child holds one
//! end of a pipe, and exits together with its own children when the other end closes.

use std::ffi::OsString;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender};
use std::time::{Duration, Instant};

use super::invocation::Invocation;
use super::{Common, LogLevel, signals};
use crate::attempt::documents::COORDINATOR;
use crate::base::ids::name_fault;
use crate::base::text::colored;
use crate::exec::{Daemon, How, Stop};
use crate::run::failure::Failure;

#[derive(clap::Args, Clone, Debug)]
pub(super) struct UpArgs {
    /// The agents to start a worker for [default: all that the settings name]
    #[arg(long, value_name = "AGENT,...", value_delimiter = ',')]
    pub agents: Vec<String>,
}

/// Delay before a crashed process is restarted: initial and maximum.
const AGAIN: Duration = Duration::from_secs(1);
const AGAIN_MOST: Duration = Duration::from_secs(60);
/// ANSI colors that are readable on light and dark backgrounds.
const COLOURS: [&str; 6] = ["36", "33", "35", "32", "34", "31"];
/// Maximum length of a forwarded line. A longer line is split.
const LINE: u64 = 64 << 10;

pub(super) fn main(args: &UpArgs, common: &Common) -> Result<u8, Failure> {
    let invocation = Invocation::read(common)?;
    invocation.check_state_dir()?;
    let agents = agents(args, &invocation)?;
    invocation.open_queue()?;
    let signals = signals::listen()?;
    let program = std::env::current_exe()
        .map_err(|error| Failure::failed(format!("cannot find this program: {error}")))?;
    let mut house = House::new(&invocation, program, agents);
    house.say_all();
    house.keep(&signals.stop)
}

fn agents(args: &UpArgs, invocation: &Invocation) -> Result<Vec<String>, Failure> {
    let mut agents = args.agents.clone();
    if agents.is_empty() {
        agents = invocation.config.agents().keys().cloned().collect();
    }
    for agent in &agents {
        if let Some(fault) = name_fault(agent) {
            return Err(Failure::invalid(format!("`{agent}` cannot name an agent: {fault}")));
        }
    }
    agents.retain(|agent| agent != COORDINATOR);
    agents.sort();
    agents.dedup();
    Ok(agents)
}

/// A child process that this program keeps running.
struct Post {
    name: String,
    /// Prefix of each forwarded line.
    prefix: String,
    arguments: Vec<OsString>,
    daemon: Option<Arc<Daemon>>,
    began: Instant,
    /// Delay after the next crash, and the time of a pending restart.
    pause: Duration,
    again: Option<Instant>,
}

/// A message to the main loop.
enum Heard {
    /// The child at this index has exited.
    Ended(usize),
    Signal,
}

struct House {
    program: PathBuf,
    posts: Vec<Post>,
    tell: Sender<Heard>,
    heard: Receiver<Heard>,
    quiet: bool,
    /// Exit code of this program.
    code: u8,
}

impl House {
    fn new(invocation: &Invocation, program: PathBuf, agents: Vec<String>) -> House {
        let (tell, heard) = mpsc::channel();
        let names: Vec<String> = [COORDINATOR.to_owned()].into_iter().chain(agents).collect();
        let width = names.iter().map(String::len).max().unwrap_or(0);
        let posts = names.into_iter().enumerate().map(|(place, name)| {
            let colour = COLOURS[place % COLOURS.len()];
            let prefix = match invocation.colour() {
                true => format!("\x1b[{colour}m{name:<width$} |\x1b[0m "),
                false => format!("{name:<width$} | "),
            };
            let arguments = arguments(invocation, &name);
            let (began, pause) = (Instant::now(), AGAIN);
            Post { name, prefix, arguments, daemon: None, began, pause, again: Some(began) }
        });
        let (posts, quiet) = (posts.collect(), invocation.common.quiet);
        House { program, posts, tell, heard, quiet, code: 0 }
    }

    fn say_all(&self) {
        if !self.quiet {
            let names: Vec<_> = self.posts.iter().map(|post| post.name.as_str()).collect();
            say(&format!("starting {}; Ctrl-C ends them", names.join(", ")));
        }
    }

    /// Keeps all children running until a stop is requested and all have exited.
    fn keep(&mut self, stop: &Stop) -> Result<u8, Failure> {
        self.listen_to(stop.clone());
        let mut told = 0;
        loop {
            let level = stop.level();
            while told < level {
                told += 1;
                self.ask_all(told > 1);
            }
            if level == 0 {
                self.start_due(stop);
            }
            if self.posts.iter().all(|post| post.daemon.is_none() && post.again.is_none()) {
                return Ok(self.code);
            }
            let due = self.posts.iter().filter_map(|post| post.again).min();
            let nap = due.map_or(Duration::from_secs(3600), |due| {
                due.saturating_duration_since(Instant::now())
            });
            if let Ok(Heard::Ended(place)) = self.heard.recv_timeout(nap) {
                self.bury(place, stop)?;
            }
        }
    }

    fn listen_to(&self, stop: Stop) {
        let tell = self.tell.clone();
        std::thread::spawn(move || {
            for level in 0..2 {
                while stop.wait_above(level, Duration::from_secs(3600)) <= level {}
                if tell.send(Heard::Signal).is_err() {
                    return;
                }
            }
        });
    }

    /// Asks all children to exit. The first request lets them finish their tasks; with `hurry`,
    /// they return their tasks to the queue.
    fn ask_all(&mut self, hurry: bool) {
        for post in &mut self.posts {
            post.again = None;
            if let Some(daemon) = &post.daemon {
                daemon.ask(hurry);
            }
        }
        if !self.quiet {
            say(match hurry {
                false => "waiting until what is at hand is finished; Ctrl-C again gives it back",
                true => "stopping what is at hand",
            });
        }
    }

    fn start_due(&mut self, stop: &Stop) {
        let now = Instant::now();
        for place in 0..self.posts.len() {
            if self.posts[place].again.is_some_and(|due| due <= now) {
                self.start(place, stop);
            }
        }
    }

    fn start(&mut self, place: usize, stop: &Stop) {
        let post = &mut self.posts[place];
        post.again = None;
        post.began = Instant::now();
        let (daemon, pipe) = match Daemon::start(&self.program, &post.arguments) {
            Ok(started) => started,
            Err(error) => {
                say(&format!("{}cannot be started: {error}", post.prefix));
                self.code = 1;
                return stop.request(1);
            }
        };
        let daemon = Arc::new(daemon);
        let (watched, tell) = (daemon.clone(), self.tell.clone());
        std::thread::spawn(move || {
            watched.await_end();
            let _ = tell.send(Heard::Ended(place));
        });
        if let Some(pipe) = pipe {
            let prefix = post.prefix.clone();
            std::thread::spawn(move || pass_on(pipe, &prefix));
        }
        post.daemon = Some(daemon);
    }

    /// Handles the exit of a child: after a crash, schedules a restart with backoff.
    fn bury(&mut self, place: usize, stop: &Stop) -> Result<(), Failure> {
        let post = &mut self.posts[place];
        let Some(daemon) = post.daemon.take() else { return Ok(()) };
        let how = daemon.bury().map_err(|error| {
            Failure::failed(format!("cannot look after `{}`: {error}", post.name))
        })?;
        let prefix = &post.prefix;
        if stop.level() > 0 || how == How::Exited(0) {
            if !self.quiet {
                say(&format!("{prefix}ended"));
            }
            return Ok(());
        }
        if how == How::Exited(2) {
            // A restart would fail in the same way.
            say(&format!("{prefix}refused to work; the others are ended too"));
            self.code = 2;
            stop.request(1);
            return Ok(());
        }
        if post.began.elapsed() > AGAIN_MOST {
            post.pause = AGAIN;
        }
        post.again = Some(Instant::now() + post.pause);
        let (died, seconds) = (in_words(how), post.pause.as_secs());
        say(&format!("{prefix}died unexpectedly ({died}); it is started again in {seconds} s"));
        post.pause = (post.pause * 2).min(AGAIN_MOST);
        Ok(())
    }
}

fn in_words(how: How) -> String {
    match how {
        How::Exited(code) => format!("exit code {code}"),
        How::Killed(signal) => format!("signal {signal}"),
        How::TimedOut | How::Silent | How::Stopped => "stopped".to_owned(),
    }
}

/// Returns the arguments of a child: its verb and the global flags of this process.
pub(super) fn arguments(invocation: &Invocation, name: &str) -> Vec<OsString> {
    let verb: &[&str] = match name {
        COORDINATOR => &["coordinator", "--leash"],
        agent => &["worker", "--leash", agent],
    };
    let mut arguments: Vec<OsString> = verb.iter().map(Into::into).collect();
    let Common { debug, trace, quiet, verbose, log_level, state_dir, config, .. } =
        &invocation.common;
    let flags =
        [("--debug", debug), ("--trace", trace), ("--quiet", quiet), ("--verbose", verbose)];
    arguments.extend(flags.iter().filter(|(_, set)| **set).map(|(flag, _)| flag.into()));
    if let Some(level) = log_level {
        arguments.extend(["--log-level", level_word(*level)].map(OsString::from));
    }
    let paths = [("--state-dir", state_dir), ("--config", config)];
    for (flag, path) in paths {
        if let Some(path) = path.as_deref().map(Path::as_os_str) {
            arguments.extend([OsString::from(flag), path.to_owned()]);
        }
    }
    let colour = if invocation.colour() { "always" } else { "never" };
    arguments.extend(["--color", colour].map(OsString::from));
    arguments
}

fn level_word(level: LogLevel) -> &'static str {
    match level {
        LogLevel::Debug => "debug",
        LogLevel::Info => "info",
        LogLevel::Warn => "warn",
        LogLevel::Error => "error",
    }
}

/// Prints one line to stderr in a single write, because other threads write there too. Errors are
/// ignored.
fn say(line: &str) {
    let _ = std::io::stderr().write_all(format!("{line}\n").as_bytes());
}

/// Forwards lines to stderr, each in one write with its prefix.
fn pass_on(pipe: impl Read, prefix: &str) {
    let mut lines = BufReader::new(pipe);
    loop {
        let mut line = Vec::new();
        match (&mut lines).take(LINE).read_until(b'\n', &mut line) {
            Ok(0) | Err(_) => return,
            Ok(_) => {}
        }
        if line.last() != Some(&b'\n') {
            line.push(b'\n');
        }
        let line = colored(&String::from_utf8_lossy(&line));
        let _ = std::io::stderr().write_all(&[prefix.as_bytes(), line.as_bytes()].concat());
    }
}
