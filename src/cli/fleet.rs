//! Shared code of the fleet's subcommands: opens the queue and reports the activity of a member.

use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::agent_output::{Overheard, laid_out};
use super::invocation::Invocation;
use crate::attempt::credentials;
use crate::attempt::documents::COORDINATOR;
use crate::attempt::exec_env::Environment;
use crate::base::ids::{TaskAttempt, counted};
use crate::base::text::{cut, sanitize, single_line};
use crate::base::time::{Clock, SystemClock};
use crate::disk::fs;
use crate::fleet::member::{self, Process, Registration};
use crate::fleet::systemd::Notifier;
use crate::fleet::worker::{Audience, Doing};
use crate::health::doctor::Times;
use crate::health::doctor::mount::Mount;
use crate::queue::Queue;
use crate::run::failure::{Class, Failure};
use crate::settings::Config;
use crate::view::progress::{seconds, terminal_size};
use crate::view::stderr::{draw, put};
use crate::view::{last_said, one_line};
use crate::yaml::problem::nearest;

/// Returns the failure for a member that had to end because of an I/O error.
pub(super) fn had_to_end(who: &str, error: &std::io::Error) -> Failure {
    let failure = Failure::failed(format!("{who} had to end: {error}"));
    match error.kind() {
        std::io::ErrorKind::PermissionDenied | std::io::ErrorKind::ReadOnlyFilesystem => {
            failure.hint("the workspace must be writable; `orchestrate doctor` tells more")
        }
        _ => failure.hint("`orchestrate doctor` tells more"),
    }
}

/// Returns the settings in force for a member. On a volume that machines share, heartbeats and
/// leases are longer, unless the settings change their defaults.
pub(super) fn settings(invocation: &Invocation) -> Config {
    let mut config = invocation.config.clone();
    let usual = Config::built_in().queue;
    let unset = (config.queue.beat, config.queue.lease) == (usual.beat, usual.lease);
    if unset && Mount::of(&invocation.workspace).is_ok_and(|mount| mount.shared) {
        let times = Times::choose(true, Duration::ZERO);
        config.queue.beat = Duration::from_millis(times.beat_ms);
        config.queue.lease = Duration::from_millis(times.ttl_ms);
    }
    config
}

/// Reads the secrets that systemd passes as files, and adds them to the environment.
pub(super) fn take_credentials(invocation: &mut Invocation) -> Result<Environment, Failure> {
    let Some(dir) = invocation.environment.get(credentials::VARIABLE) else {
        return Ok(Environment::new());
    };
    let found = credentials::read(Path::new(dir)).map_err(|error| {
        Failure::invalid(format!("cannot read the credentials: {error}"))
            .hint("LoadCredential= in the unit names them; see docs/service.md")
    })?;
    invocation.environment.extend(found.clone());
    Ok(found)
}

/// Returns the registered members, without processes of this machine that have exited. Members on
/// other machines are included without a check.
pub(super) fn living(queue: &Queue) -> Vec<Registration> {
    let here = Process::this();
    let lives = |r: &Registration| !here.is_beside(&r.process) || r.process.lives_here();
    member::registrations(queue).unwrap_or_default().into_iter().filter(lives).collect()
}

/// Refuses to serve an inbox that every user can write to, unless the settings allow it.
pub(super) fn check_inbox(
    invocation: &Invocation,
    queue: &Queue,
    agent: &str,
) -> Result<(), Failure> {
    if invocation.config.queue.world_writable {
        return Ok(());
    }
    let looked = queue.unsafe_inbox(agent).map_err(|error| {
        Failure::failed(format!("cannot look at the inbox of `{agent}`: {error}"))
            .hint("`orchestrate doctor` tells more")
    })?;
    let reason = looked.or_else(|| strangers(&invocation.workspace, agent));
    reason.map_or(Ok(()), |reason| {
        let failure = Failure::invalid(reason);
        Err(failure
            .hint("whoever writes there gives orders; `world_writable` of `queue` allows it"))
    })
}

/// Returns a message if an inbox belongs to another user. A group-writable inbox counts as shared
/// on purpose, except for root: only root may give orders to root.
fn strangers(workspace: &Path, agent: &str) -> Option<String> {
    let me = nix::unistd::geteuid().as_raw();
    let inboxes = workspace.join("inbox");
    [inboxes.join(agent), inboxes].iter().find_map(|dir| {
        let seen = fs::metadata(dir).ok()?;
        let (owner, shared) = (seen.uid(), seen.mode() & 0o020 != 0 && me != 0);
        let dir = dir.display();
        (owner != me && owner != 0 && !shared).then(|| {
            format!(
                "`{dir}` belongs to user {owner}, who could give orders to user {me}: serve it \
                 as user {owner}, or make it yours by `chown`"
            )
        })
    })
}

/// Creates the inboxes of agents. Call it before creating anything that needs them.
pub(super) fn open_agents(queue: &Queue, agents: &[String]) -> Result<(), Failure> {
    agents.iter().try_for_each(|agent| queue.open_agent(agent)).map_err(|error| {
        let wrong = error.kind() == std::io::ErrorKind::InvalidInput;
        Failure::new(if wrong { Class::Invalid } else { Class::Failed }, error.to_string())
    })
}

/// Warns about agents of a run that no living worker serves.
pub(super) fn warn_of_absent(invocation: &Invocation, queue: &Queue, agents: &[String]) {
    let living = living(queue);
    for agent in agents {
        warn_of_nobody(invocation, &living, agent, "its steps wait");
    }
}

/// Warns if no living worker serves an agent, and suggests a similar name.
pub(super) fn warn_of_nobody(
    invocation: &Invocation,
    living: &[Registration],
    agent: &str,
    what: &str,
) {
    if living.iter().any(|member| member.agent == agent) {
        return;
    }
    let known = invocation.config.agents();
    let served = living.iter().map(|member| member.agent.as_str());
    let candidates = known.keys().map(String::as_str).chain(served.filter(|a| *a != COORDINATOR));
    let near = nearest(agent, candidates).filter(|_| !known.contains_key(agent));
    let hint = near.map(|near| format!(" (did you mean `{near}`?)")).unwrap_or_default();
    tracing::warn!(
        "no `{agent}` worker is alive{hint}: {what} until one is started with \
         `orchestrate worker {agent}`"
    );
}

/// Prints one line with its time per event. On a terminal it also shows the running tasks and the
/// output of agents.
pub(super) struct Teller {
    name: String,
    quiet: bool,
    colour: bool,
    live: bool,
    /// Output of agents, if it is shown (on a terminal or with `--verbose`).
    overheard: Option<Mutex<Overheard>>,
    systemd: Notifier,
    ready: AtomicBool,
}

impl Teller {
    pub(super) fn new(invocation: &Invocation, name: &str) -> Teller {
        let get = |key: &str| invocation.environment.get(key)?.to_str().map(str::to_owned);
        let live = invocation.has_screen() && !invocation.common.quiet;
        let told = live || invocation.common.verbose;
        Teller {
            overheard: told.then(Mutex::default),
            name: name.to_owned(),
            quiet: invocation.common.quiet,
            colour: invocation.colour(),
            live,
            systemd: Notifier::from(get),
            ready: AtomicBool::new(false),
        }
    }

    /// Omits the member's name: the reader of this output prefixes each line with it.
    pub(super) fn unnamed(self) -> Teller {
        Teller { name: String::new(), ..self }
    }

    /// Notifies systemd that this service is ready (first call) and alive. Returns the watchdog
    /// interval: the time until the next call is due.
    pub(super) fn alive(&self, status: &str) -> Option<Duration> {
        if !self.ready.swap(true, Ordering::SeqCst) {
            self.systemd.ready(status);
        }
        self.systemd.status(status);
        self.systemd.alive();
        self.systemd.watchdog()
    }

    pub(super) fn closing(&self) {
        self.systemd.stopping();
        self.say("takes nothing new; what is at hand is finished. Once more gives it back");
    }

    pub(super) fn say(&self, line: &str) {
        self.put(&format!("{}{line}\n", self.head()));
    }

    /// Returns the prefix of a line: the time and the member's name.
    fn head(&self) -> String {
        let now = SystemClock.now().to_milli();
        let clock = now.get(11..19).unwrap_or(&now);
        let name = if self.name.is_empty() { "" } else { &format!("{} ", self.name) };
        format!("{clock} {name}")
    }

    fn put(&self, lines: &str) {
        if !self.quiet {
            put(lines);
        }
    }

    /// Calls `listen` with the output of agents, or returns `None` if it is not shown.
    fn overhear<T>(&self, listen: impl FnOnce(&mut Overheard) -> T) -> Option<T> {
        let overheard = self.overheard.as_ref()?;
        Some(listen(&mut overheard.lock().unwrap_or_else(|poison| poison.into_inner())))
    }

    fn tell_turns(&self, doing: &Doing, lines: Option<Vec<String>>) {
        let lines = lines.unwrap_or_default();
        let label = one_line(&doing.label);
        if self.live && !lines.is_empty() {
            let head = format!("{}  {label}", self.head());
            return self.put(&laid_out(&head, &lines, terminal_size().0));
        }
        lines.iter().for_each(|line| self.say(&format!("  {label} | {}", sanitize(line))));
    }

    fn paint(&self, code: &str, text: &str) -> String {
        if self.colour { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
    }
}

/// Cuts lines to a terminal's columns and rows: lines that have scrolled away cannot be erased.
fn fitting(
    lines: impl ExactSizeIterator<Item = String>,
    (columns, rows): (usize, usize),
) -> Vec<String> {
    let all = lines.len();
    let most = rows.saturating_sub(2).max(1);
    let shown = if all > most { most - 1 } else { all };
    let mut lines: Vec<String> =
        lines.take(shown).map(|line| cut(line.trim_end(), columns)).collect();
    if shown < all {
        lines.push(cut(&format!("  and {} more", all - shown), columns));
    }
    lines
}

/// Describes a task to the user: its step and run, or its title.
fn called(doing: &Doing) -> String {
    let run = doing.run.as_ref().map(|run| format!(" of {run}")).unwrap_or_default();
    let attempt = match doing.attempt {
        TaskAttempt::FIRST => String::new(),
        attempt => format!(", attempt {attempt}"),
    };
    format!("`{}`{run} (task {}{attempt})", one_line(&doing.label), doing.id)
}

impl Audience for Teller {
    fn started(&self, doing: &Doing) {
        self.overhear(|heard| heard.begin(doing));
        self.say(&format!("{}: started", called(doing)));
    }

    fn ended(&self, doing: &Doing, how: &str, took: Duration) {
        self.tell_turns(doing, self.overhear(|heard| heard.end(doing)));
        let code = if how == "done" { "32" } else { "31" };
        let took = seconds(took.as_millis() as u64);
        let how = self.paint(code, &single_line(how));
        self.say(&format!("{}: {how} ({took})", called(doing)));
    }

    fn note(&self, line: &str) {
        self.say(&sanitize(line));
    }

    fn alive(&self, doing: usize) {
        let _ = self.alive(&format!("{} at hand", counted(doing, "task")));
    }

    fn closing(&self) {
        self.closing();
    }

    fn tick(&self, doing: &[Doing]) -> Option<Duration> {
        for doing in doing {
            self.tell_turns(doing, self.overhear(|heard| heard.since(doing)));
        }
        let soon = (!doing.is_empty()).then_some(Duration::from_millis(250));
        if !self.live {
            return soon.filter(|_| self.overheard.is_some());
        }
        let lines = doing.iter().map(|doing| {
            let since = seconds(doing.since.elapsed().as_millis() as u64);
            // The output of a streaming agent is printed above these lines.
            let last = match doing.adapter.is_stream() {
                true => String::new(),
                false => last_said(&doing.logs, doing.adapter).unwrap_or_default(),
            };
            format!("  {} {since}  {last}", one_line(&doing.label))
        });
        draw(fitting(lines, terminal_size()));
        soon
    }
}

#[cfg(test)]
mod tests {
    use super::fitting;

    #[test]
    fn what_is_drawn_can_be_erased() {
        let lines = |count: usize| (0..count).map(|number| format!("  漢字 {number}  "));
        let drawn = fitting(lines(3), (80, 24));
        assert_eq!(drawn, ["  漢字 0", "  漢字 1", "  漢字 2"]);
        assert_eq!(fitting(lines(3), (6, 24))[0], "  漢…");
        let drawn = fitting(lines(30), (80, 6));
        assert_eq!(drawn, ["  漢字 0", "  漢字 1", "  漢字 2", "  and 27 more"]);
        assert_eq!(fitting(lines(3), (80, 0)), ["  and 3 more"]);
    }
}
