//! Reports a run's progress to the user: a line for each step that ends and, on a terminal, a live
//! view of its position.

use std::os::fd::AsFd;

use nix::poll::{PollFd, PollFlags, poll};
use tracing::Level;

use super::position;
use super::stderr::{draw, erase, put};
use crate::base::ansi;
use crate::base::ids::{Attempt, StepPath, counted, shown};
use crate::base::text::{sanitize, single_line};
use crate::base::time::Time;
use crate::engine::run::{Address, ItemResult, StepState};
use crate::engine::{self, Choice, Event, Record, Run, SkipCause, StepStatus, died_over};
use crate::exec::{Mask, Stop};
use crate::run::drive::Report;
use crate::run::log;
use crate::workflow::Plan;
use crate::workflow::plan::{Action, Rounds, RoundsKind};

/// Verbosity of the report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Telling {
    /// Errors only.
    Quiet,
    /// A line for each step that ended.
    Plain,
    /// Also the run's current position.
    Progress {
        /// True if the lines are redrawn in place.
        live: bool,
    },
}

/// A report on stderr.
pub(crate) struct TextReport {
    telling: Telling,
    live: bool,
    colour: bool,
    last: Vec<String>,
    /// Input that was read and not yet used.
    typed: Vec<u8>,
    mask: Mask,
}

impl TextReport {
    pub(crate) fn new(telling: Telling, colour: bool, mask: Mask) -> Self {
        let live = matches!(telling, Telling::Progress { live: true });
        TextReport { telling, live, colour, last: Vec::new(), typed: Vec::new(), mask }
    }

    fn say(&mut self, line: &str) {
        put(&format!("{}\n", self.mask.text(line)));
    }

    fn paint(&self, status: StepStatus, text: &str) -> String {
        let code = match status {
            StepStatus::Completed => "32",
            StepStatus::Failed => "31",
            StepStatus::Skipped => "33",
            _ => return text.to_owned(),
        };
        if self.colour { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
    }

    fn ended(&mut self, plan: &Plan, run: &Run, step: &StepPath) {
        let address = Address::find(plan, step);
        let Some(address) = address else { return };
        // The result of a gate is reported with its node.
        if matches!(address.step_of(plan).action, Action::Gate(_)) && self.telling != Telling::Quiet
        {
            return;
        }
        let Some(record) = run.slot(&address).and_then(|slot| slot.record.as_deref()) else {
            return;
        };
        let total = address.block(plan).steps.len();
        let place = format!("{}[{}/{total}]", "  ".repeat(address.loops.len()), address.step + 1);
        let agent = address.step_of(plan).agent.as_ref().map(|agent| format!(" ({agent})"));
        let agent = agent.unwrap_or_default();
        let step = step.shown();
        // A check with a negative result is not a failure.
        if is_check(plan, &address) && record.exit_code.is_some() && record.metrics.is_some() {
            return self.checked(&format!("{place} {step}"), &step, record);
        }
        let line = format!("{place} {step}{agent}: {}", self.outcome(record, run, &address));
        self.say(&line);
        if record.status == StepStatus::Failed {
            self.explain(record);
        }
    }

    /// Reports the result of a loop's check. A check that could not run uses up a round, so it is
    /// reported even in quiet mode.
    fn checked(&mut self, place: &str, step: &str, record: &Record) {
        if self.telling != Telling::Quiet {
            let done = record.status == StepStatus::Completed;
            let word = if done { "done" } else { "not done yet" };
            let time = seconds(record.duration_ms.unwrap_or(0));
            self.say(&format!("{place}: {word} ({time})"));
        }
        if let Some(why) = engine::unmade(record.exit_code) {
            let said = record.error.as_ref().and_then(|error| error.stderr_tail.last());
            let said = said.map(|line| format!(": {}", excerpt(line))).unwrap_or_default();
            let line = format!("`{step}` could not be made, which counts as not done: {why}{said}");
            log::keep(Level::WARN, &line);
            self.say(&format!("warning: {line}"));
        }
    }

    /// Reports an event of a node that happened without an execution.
    fn node(&mut self, plan: &Plan, step: &StepPath, what: &str) {
        let Some(address) = Address::find(plan, step) else { return };
        let index = address.top();
        let steps = &plan.root().steps;
        self.say(&format!("[{}/{}] {}: {what}", index + 1, steps.len(), steps[index].name));
    }

    /// Reports the nodes that are not executed again.
    fn completed_before(&mut self, plan: &Plan, run: &Run) {
        let steps = plan.root().steps.iter().zip(&run.body.slots);
        for (step, _) in steps.filter(|(_, slot)| slot.before) {
            self.node(plan, &StepPath::top(&step.name), "completed before");
        }
    }

    /// Reports the loops that ended with this event: those around its step, innermost first.
    fn loops_ended(&mut self, plan: &Plan, run: &Run, event: &Event) {
        let (step, is_loop) = match event {
            Event::Ended { step, .. }
            | Event::Skipped { step, .. }
            | Event::Answered { step, .. } => (step, false),
            Event::Opened { step } | Event::Moved { step, .. } => (step, true),
            _ => return,
        };
        let address = Address::find(plan, step);
        let mut here = address.and_then(|at| if is_loop { Some(at) } else { at.parent() });
        while let Some(at) = here {
            let Some(slot) = run.slot(&at) else { return };
            let (Some(each), Some(record)) = (&slot.each, &slot.record) else { return };
            if slot.state != StepState::Settled {
                return;
            }
            if let Action::Rounds(rounds) = &at.step_of(plan).action {
                // A loop can fail without a failed step inside, so this may be the only report of
                // it.
                if self.telling != Telling::Quiet || record.status == StepStatus::Failed {
                    let line = self.rounds_ended(plan, run, &at, rounds.kind);
                    self.say(&line);
                }
                here = at.parent();
                continue;
            }
            if self.telling == Telling::Quiet {
                here = at.parent();
                continue;
            }
            let left = each.index < each.items.len();
            let with = |wanted| each.iterations.iter().filter(|i| i.result == Some(wanted)).count();
            let failed = with(ItemResult::Failure);
            let failed = if failed > 0 { format!(", {failed} failed") } else { String::new() };
            let word = match (left, failed.is_empty()) {
                (true, _) => "left",
                (false, true) => "completed",
                (false, false) => "ended",
            };
            let items = match left {
                true => {
                    let all = counted(each.items.len(), "item");
                    format!("{} of {all}", each.iterations.len())
                }
                false => counted(each.items.len(), "item"),
            };
            let total = at.block(plan).steps.len();
            let line = format!(
                "{}[{}/{total}] {}: {} ({items}{failed}, {})",
                "  ".repeat(at.loops.len()),
                at.step + 1,
                at.path(plan).shown(),
                self.paint(record.status, word),
                seconds(record.duration_ms.unwrap_or(0)),
            );
            self.say(&line);
            here = at.parent();
        }
    }

    /// Describes the end of a step with rounds.
    fn rounds_ended(&self, plan: &Plan, run: &Run, at: &Address, kind: RoundsKind) -> String {
        let total = at.block(plan).steps.len();
        let slot = run.slot(at);
        let record = slot.and_then(|slot| slot.record.as_deref()).cloned().unwrap_or_default();
        let rounds =
            slot.and_then(|slot| slot.each.as_ref()).map_or(0, |each| each.iterations.len());
        let word = match (record.status, kind) {
            (StepStatus::Completed, RoundsKind::Approval) => "approved",
            (StepStatus::Completed, _) => "completed",
            _ => "failed",
        };
        let rounds = match (kind, rounds) {
            (RoundsKind::Approval, _) => String::new(),
            (_, 1) => "1 round, ".into(),
            (_, rounds) => format!("{rounds} rounds, "),
        };
        let why = record.error.as_ref().map(|error| format!(": {}", single_line(&error.message)));
        format!(
            "{}[{}/{total}] {}: {} ({rounds}{}){}",
            "  ".repeat(at.loops.len()),
            at.step + 1,
            at.path(plan).shown(),
            self.paint(record.status, word),
            seconds(record.duration_ms.unwrap_or(0)),
            why.unwrap_or_default(),
        )
    }

    fn outcome(&self, record: &Record, run: &Run, address: &Address) -> String {
        let time = seconds(record.duration_ms.unwrap_or(0));
        let code = record.exit_code.unwrap_or(0);
        let again = run.slot(address).is_some_and(|slot| {
            record.status == StepStatus::Failed && slot.status() == StepStatus::Pending
        });
        let attempt = if record.attempt > Attempt::FIRST {
            format!(", attempt {}", record.attempt)
        } else {
            String::new()
        };
        match record.status {
            StepStatus::Failed => {
                let word = self.paint(StepStatus::Failed, "failed");
                let next = if again { "; trying again" } else { "" };
                format!("{word} with exit code {code} ({time}{attempt}){next}")
            }
            StepStatus::Skipped => {
                let why = match (&record.warning, record.skip_cause) {
                    // The warning itself was reported when it occurred.
                    (Some(_), _) => " (its condition cannot be read)".into(),
                    (None, Some(SkipCause::UpstreamFailed)) => " (what it needs failed)".into(),
                    (None, Some(SkipCause::UpstreamSkipped)) => {
                        " (what it needs was skipped)".into()
                    }
                    (None, _) => String::new(),
                };
                format!("{}{why}", self.paint(StepStatus::Skipped, "skipped"))
            }
            _ => format!("{} ({time}{attempt})", self.paint(StepStatus::Completed, "completed")),
        }
    }

    fn explain(&mut self, record: &Record) {
        let Some(error) = &record.error else { return };
        self.say(&format!("      {}", single_line(&error.message)));
        let tail =
            if error.stderr_tail.is_empty() { &error.stdout_tail } else { &error.stderr_tail };
        for line in tail.iter().skip(tail.len().saturating_sub(5)) {
            self.say(&format!("      | {}", excerpt(line)));
        }
    }
}

/// Returns true if a step is a merge; no other report mentions that a merge was rejected.
fn merges(plan: &Plan, step: &StepPath) -> bool {
    let address = Address::find(plan, step);
    address.is_some_and(|at| matches!(at.step_of(plan).action, Action::Merge { .. }))
}

/// Returns true if a step is the check of a loop of rounds.
fn is_check(plan: &Plan, address: &Address) -> bool {
    let around = address.parent().map(|around| &around.step_of(plan).action);
    matches!(around, Some(Action::Rounds(Rounds { kind: RoundsKind::Loop, .. })))
        && matches!(address.step_of(plan).action, Action::Shell { .. })
}

/// Describes the meaning of a kept result for a step.
fn kept_words(plan: &Plan, run: &Run, step: &StepPath) -> &'static str {
    let slot = Address::find(plan, step).and_then(|address| run.slot(&address));
    match slot.is_some_and(|slot| slot.before) {
        true => "completed before",
        false => "goes on where it stood",
    }
}

/// Returns true if a step has finally failed.
fn failed(plan: &Plan, run: &Run, step: &StepPath) -> bool {
    let address = Address::find(plan, step);
    let slot = address.and_then(|address| run.slot(&address).map(|slot| slot.status()));
    slot == Some(StepStatus::Failed)
}

/// Shortens a child's line for display, without characters that move the cursor or change colors.
/// For a line that was overwritten with carriage returns, returns its last state.
pub(crate) fn excerpt(line: &str) -> String {
    const SHOWN: usize = 200;
    let line = ansi::strip(line);
    let last = line.trim_end_matches('\r').rsplit('\r').next().unwrap_or_default();
    let mut shown = sanitize(&last.chars().take(SHOWN).collect::<String>());
    if last.chars().count() > SHOWN {
        shown.push('…');
    }
    shown
}

/// Formats a duration that is known only to the second.
pub(crate) fn whole_seconds(ms: u64) -> String {
    match ms {
        0..60_000 => format!("{}s", ms / 1000),
        _ => seconds(ms),
    }
}

pub(crate) fn seconds(ms: u64) -> String {
    match ms {
        0..10_000 => format!("{}.{}s", ms / 1000, ms % 1000 / 100),
        10_000..60_000 => format!("{}s", ms / 1000),
        60_000..3_600_000 => format!("{}m{:02}s", ms / 60_000, ms / 1000 % 60),
        3_600_000..86_400_000 => format!("{}h{:02}m", ms / 3_600_000, ms / 60_000 % 60),
        _ => format!("{}d{:02}h", ms / 86_400_000, ms / 3_600_000 % 24),
    }
}

impl Report for TextReport {
    fn happened(&mut self, plan: &Plan, run: &Run, event: &Event) {
        if let Some(line) = log_line(plan, run, event) {
            tracing::info!("{line}");
        }
        if let Some(warning) = warning_of(plan, event) {
            tracing::warn!("{warning}");
        }
        match event {
            Event::Ended { step, .. }
                if self.telling != Telling::Quiet || failed(plan, run, step) =>
            {
                self.ended(plan, run, step);
            }
            Event::Opened { step } if failed(plan, run, step) => self.ended(plan, run, step),
            _ if self.telling == Telling::Quiet => {}
            Event::Skipped { step, .. } => self.ended(plan, run, step),
            Event::Resumed { asked: true, .. } => self.completed_before(plan, run),
            Event::Kept { step } => {
                let what = kept_words(plan, run, step);
                self.node(plan, step, &format!("{what} (it would be given the same)"));
            }
            Event::Gated { step, .. } => self.node(plan, step, "asks a person"),
            Event::Answered { step, answer, .. } if !answer.approve && merges(plan, step) => {
                self.node(plan, step, &format!("rejected: {}", excerpt(&answer.comment)));
            }
            _ => {}
        }
        self.loops_ended(plan, run, event);
    }

    fn tick(&mut self, plan: &Plan, run: &Run, now: Time) -> Option<Time> {
        if !matches!(self.telling, Telling::Progress { .. }) {
            return None;
        }
        let lines = position::lines(plan, run, now);
        let lines: Vec<_> = lines.iter().map(|line| self.mask.text(line)).collect();
        let steady = |lines: &[String]| -> Vec<String> {
            lines.iter().map(|l| l.split(" (").next().unwrap_or_default().to_owned()).collect()
        };
        if self.live {
            let (width, _) = terminal_size();
            draw(lines.iter().map(|line| line.chars().take(width).collect()).collect());
        } else {
            let before = steady(&self.last);
            for (line, steady) in lines.iter().zip(steady(&lines)) {
                if !before.contains(&steady) {
                    self.say(line);
                }
            }
        }
        self.last = lines;
        Some(now.plus_ms(if self.live { 200 } else { 1000 }))
    }

    fn ask(&mut self, run: &Run, step: &StepPath, stop: &Stop) -> Option<Choice> {
        let step = step.shown();
        self.say(&format!("step `{step}` failed; run {} waits for you", run.id));
        loop {
            put("[r]etry, [c]ontinue or [s]top? ");
            let line = match self.read_line(stop) {
                Line::Read(line) => line,
                // The next message starts on its own line.
                Line::End => {
                    put("\n");
                    return Some(Choice::Stop);
                }
                Line::Stopped => {
                    put("\n");
                    return None;
                }
            };
            match line.trim().to_lowercase().as_str() {
                "r" | "retry" => return Some(Choice::Retry),
                "c" | "continue" => return Some(Choice::Continue),
                "s" | "stop" => return Some(Choice::Stop),
                other => self.say(&format!("`{other}` is none of the answers")),
            }
        }
    }
}

impl Drop for TextReport {
    fn drop(&mut self) {
        erase();
    }
}

/// Result of a wait for a line.
enum Line {
    Read(String),
    End,
    Stopped,
}

impl TextReport {
    /// Reads a line from stdin, and gives up if the run is stopped meanwhile. Bypasses the standard
    /// library's buffer, which cannot report if it holds a complete line.
    fn read_line(&mut self, stop: &Stop) -> Line {
        let stdin = std::io::stdin();
        loop {
            if let Some(end) = self.typed.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.typed.drain(..=end).collect();
                return Line::Read(String::from_utf8_lossy(&line).into_owned());
            }
            if stop.level() > 0 {
                return Line::Stopped;
            }
            let mut fds = [PollFd::new(stdin.as_fd(), PollFlags::POLLIN)];
            if poll(&mut fds, 100u16).unwrap_or(0) == 0 {
                continue;
            }
            let mut piece = [0; 256];
            match nix::unistd::read(stdin.as_fd(), &mut piece) {
                Ok(0) if self.typed.is_empty() => return Line::End,
                Ok(0) => self.typed.push(b'\n'),
                Ok(count) => self.typed.extend_from_slice(&piece[..count]),
                Err(nix::errno::Errno::EINTR) => {}
                Err(_) => return Line::End,
            }
        }
    }
}

/// Returns the number of usable columns and rows of stderr's terminal.
pub(crate) fn terminal_size() -> (usize, usize) {
    let mut size = nix::libc::winsize { ws_row: 0, ws_col: 0, ws_xpixel: 0, ws_ypixel: 0 };
    // SAFETY: the call fills in the struct it is given and keeps nothing.
    let done = unsafe { nix::libc::ioctl(2, nix::libc::TIOCGWINSZ, &raw mut size) };
    let given = |told: u16, usual: usize| match (done, told) {
        (0, 1..) => usize::from(told),
        _ => usual,
    };
    (given(size.ws_col, 80) - 1, given(size.ws_row, 24))
}

/// Returns the warning of an event, although nothing failed.
pub(crate) fn warning_of(plan: &Plan, event: &Event) -> Option<String> {
    match event {
        // The warning of a skipped step was reported when it occurred.
        Event::Ended { step, record, .. } if record.status != StepStatus::Skipped => {
            let warning = record.warning.as_ref()?;
            Some(format!("{} `{}`: {warning}", plan.unit(), step.shown()))
        }
        Event::PutBack { step, deaths, .. } => {
            Some(format!("{} `{}`: {}", plan.unit(), step.shown(), died_over(*deaths)?))
        }
        Event::Moved { step, index, error: Some(error) } => {
            Some(format!("item {index} of `{}` was not moved: {error}", step.shown()))
        }
        _ => None,
    }
}

/// Returns the line for an event in a run's log.
pub(crate) fn log_line(plan: &Plan, run: &Run, event: &Event) -> Option<String> {
    let unit = plan.unit();
    Some(match event {
        Event::Started { .. } => format!("run {} started", run.id),
        Event::Resumed { .. } => format!("run {} resumed", run.id),
        Event::Launched { step, attempt, task: None } => {
            format!("{unit} `{}` started, attempt {attempt}", step.shown())
        }
        Event::Launched { step, attempt, task: Some(task) } => {
            let (step, agent, id) = (step.shown(), &task.agent, &task.id);
            format!("{unit} `{step}` put out to `{agent}`, attempt {attempt}, task {id}")
        }
        Event::Ended { step, attempt, record } => {
            let code = record.exit_code.unwrap_or(0);
            let error = record.error.as_ref().map(|e| format!(": {}", e.message));
            let (step, error) = (step.shown(), error.unwrap_or_default());
            format!("{unit} `{step}` ended with {code}, attempt {attempt}{error}")
        }
        Event::Skipped { step, cause, warning } => {
            let why = match (cause, warning) {
                (_, Some(warning)) => format!(": {warning}"),
                (Some(SkipCause::UpstreamFailed), _) => ": what it depends on failed".into(),
                (Some(SkipCause::UpstreamSkipped), _) => ": what it depends on was skipped".into(),
                _ => String::new(),
            };
            format!("{unit} `{}` skipped{why}", step.shown())
        }
        Event::Kept { step } => {
            format!("{unit} `{}` kept: it would be given the same", step.shown())
        }
        Event::Gated { step, .. } => format!("{unit} `{}` asks a person", step.top_name()),
        Event::Answered { step, answer, .. } => {
            let word = if answer.approve { "approved" } else { "rejected" };
            let by = answer.by.as_ref().map(|by| format!(" by {by}")).unwrap_or_default();
            format!("{unit} `{}` was {word}{by}", step.top_name())
        }
        Event::Opened { step } => return opened_line(plan, run, step),
        Event::Moving { from, to, .. } => format!("moving `{from}` to `{to}`"),
        Event::Moved { error: Some(error), .. } => format!("not moved: {error}"),
        Event::MovedBack { step, index, error } => {
            let how = error.as_deref().unwrap_or("yes");
            format!("item {index} of `{}` put back: {how}", step.shown())
        }
        Event::Cancelled { reason } => {
            let why = reason.as_ref().map(|reason| format!(": {reason}")).unwrap_or_default();
            format!("run {} cancelled{why}", run.id)
        }
        Event::Recalled { step, attempt } => {
            let step = step.shown();
            format!("the task of `{step}`, attempt {attempt}, is nowhere: it is made anew")
        }
        Event::PutBack { step, attempt, execution, deaths } => {
            let why = if *deaths > 0 { "its worker died" } else { "its worker gave it back" };
            let step = step.shown();
            format!("{unit} `{step}` is put back: {why}; attempt {attempt}, execution {execution}")
        }
        Event::Edited { .. } => format!("run {} continues with the edited workflow", run.id),
        Event::Rewound { step } => format!("run {} goes on from `{}`", run.id, shown(step)),
        Event::Decided { step, choice } => {
            format!("{unit} `{}`: {choice:?} was chosen", step.shown())
        }
        Event::Moved { error: None, .. } | Event::Woke => return None,
    })
}

fn opened_line(plan: &Plan, run: &Run, step: &StepPath) -> Option<String> {
    let (at, step) = (Address::find(plan, step)?, step.shown());
    if matches!(at.step_of(plan).action, Action::Rounds(_)) {
        return Some(format!("{} `{step}` began", plan.unit()));
    }
    let slot = run.slot(&at)?;
    let error = slot.record.as_ref().and_then(|record| record.error.as_ref());
    match (&slot.each, error) {
        (Some(each), _) => {
            Some(format!("loop `{step}` entered with {}", counted(each.items.len(), "item")))
        }
        (None, Some(error)) => Some(format!("loop `{step}` could not begin: {}", error.message)),
        (None, None) => None,
    }
}
