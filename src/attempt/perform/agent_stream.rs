//! Reads an agent's output stream while the agent runs. The stream decides the outcome, not the
//! exit code alone.

use std::borrow::Cow;
use std::cell::{Cell, RefCell};
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Map, Value};

use super::super::parking::Pass;
use super::super::work::Work;
use super::session::Name;
use super::{mode, output_path};
use crate::agent::echo;
use crate::agent::faults::{self, FaultClass};
use crate::agent::{self, End, MachineFault, Outcome, Silence, Stream, Turn, Usage, Verdict};
use crate::attempt::exec_env::Site;
use crate::base::time::{Clock, SystemClock, Time, utc_offset_s};
use crate::engine::record::Spent;
use crate::exec::{Capture, Captured, How, Mode};
use crate::settings::Silences;

/// Maximum number of lines to show of an agent's last actions before a failure.
const SHOWN: usize = 10;

/// Maximum number of characters of a limit notice to report.
const NOTICE: usize = 300;

/// An agent's output stream while it is read.
pub(crate) struct Ear {
    stream: Rc<RefCell<Stream>>,
    /// Maximum silence, according to the last event of the stream.
    pub idle: Rc<Cell<Option<Duration>>>,
}

/// Returns the maximum silence of an agent: the shorter of the provider's and the step's limit.
fn idle(silences: Silences, silence: &Silence, of_step: Option<Duration>) -> Option<Duration> {
    let own = match silence {
        Silence::Working => None,
        Silence::Waiting => Some(silences.waiting),
        Silence::AtLimit(_) => Some(silences.at_limit),
    };
    [own, of_step].into_iter().flatten().min()
}

/// Opens an agent's output stream, which is also logged whole; `again` appends to the log for
/// another turn. Stores the conversation's ID in `name` as soon as the provider reports it.
pub(crate) fn listen(
    site: &Site,
    work: &Work,
    pass: Arc<Pass>,
    mut name: Option<Name>,
    again: bool,
) -> (Ear, Capture) {
    let mask = site.mask.clone();
    let stream = match mask.is_empty() {
        true => Stream::new(work.adapter),
        false => Stream::hiding(work.adapter, Box::new(move |text| mask.text(text))),
    };
    let (silences, of_step) = (site.silences, work.idle_timeout());
    let limit = Rc::new(Cell::new(idle(silences, &stream.silence(), of_step)));
    let ear = Ear { stream: Rc::new(RefCell::new(stream)), idle: limit.clone() };
    let hearing = ear.stream.clone();
    let mut at_limit = false;
    let (log, path) = (Capture::new(Mode::Tail, site.mask.clone()), site.log(&work.step, "stdout"));
    let log = if again { log.log_on(path) } else { log.log(path) };
    let hear = move |bytes: &[u8]| {
        let turns = hearing.borrow_mut().push(bytes);
        // A tool call proves that the model works; text could be a limit notice.
        if turns.iter().any(|turn| matches!(turn, Turn::Called { .. })) {
            pass.works();
        }
        let stream = hearing.borrow();
        if let (Some(name), Some(session)) = (&mut name, stream.session()) {
            name.keep(session);
        }
        let silence = stream.silence();
        limit.set(idle(silences, &silence, of_step));
        let met = matches!(silence, Silence::AtLimit(_));
        if let (Silence::AtLimit(reason), false) = (silence, at_limit) {
            pass.met(&Verdict::BackOff { reason, crowded: true });
        }
        at_limit = met;
    };
    (ear, log.tap(hear))
}

/// The result of an agent's execution.
pub(crate) struct Heard {
    pub outcome: Outcome,
    /// Cost of this execution alone.
    pub usage: Usage,
    /// True if the execution is not final: its task goes back.
    pub returns: bool,
    /// True if the agent was asked a second time for missing output.
    pub asked_again: bool,
}

/// Output of a child process: the first lines of stderr, and the last lines of both streams.
#[derive(Clone, Copy)]
pub(crate) struct Printed<'a> {
    pub stdout_tail: &'a [String],
    pub stderr_head: &'a [String],
    pub stderr_tail: &'a [String],
}

/// Ends the stream and returns its outcome. `asked` contains the prompts that the agent received.
pub(crate) fn outcome(
    site: &Site,
    ear: Ear,
    how: How,
    printed: Printed,
    asked: &[Cow<str>],
) -> Option<Outcome> {
    let silent_for = ear.idle.get().filter(|_| how == How::Silent);
    let stream = Rc::into_inner(ear.stream)?.into_inner();
    let now = SystemClock.now();
    let (exit_code, signal) = match how {
        How::Exited(code) => (Some(code), None),
        How::Killed(signal) => (None, Some(signal)),
        How::TimedOut | How::Silent | How::Stopped => (None, None),
    };
    let outcome = stream.finish(&End {
        exit_code,
        signal,
        timed_out: matches!(how, How::TimedOut | How::Silent),
        silent_for,
        stderr_head: printed.stderr_head,
        stderr_tail: printed.stderr_tail,
        stdout_tail: printed.stdout_tail,
        now,
        utc_offset_s: utc_offset_s(now),
        events: false,
    });
    if outcome.verdict != Verdict::Answered {
        return Some(outcome);
    }
    let verdict = match echo::only_repeats(&outcome.text, asked) {
        true => Some(back_off("its answer only repeats its prompt")),
        false => of_notice(site, &outcome.text, now),
    };
    Some(match verdict {
        Some(verdict) => Outcome { verdict, ..outcome }.judged(now),
        None => outcome,
    })
}

/// Returns the outcome of an agent whose stdout is its answer, if that is not a valid answer: it is
/// empty, or only a limit notice. Returns `None` for a valid answer. An answer that repeats the
/// prompt is valid: a program like `cat` may stand in for an agent.
pub(crate) fn of_printed(site: &Site, text: &str) -> Option<Outcome> {
    let now = SystemClock.now();
    let verdict = match text.trim().is_empty() {
        true => Some(back_off("its answer is empty")),
        false => of_notice(site, text, now),
    };
    verdict.map(|verdict| Outcome::of_text(text, verdict, now))
}

fn back_off(reason: &str) -> Verdict {
    Verdict::BackOff { reason: reason.into(), crowded: false }
}

/// Returns the verdict on an answer that is only a limit notice: some providers report a limit as
/// if it were their answer.
fn of_notice(site: &Site, text: &str, now: Time) -> Option<Verdict> {
    let class = faults::notice(text)?;
    let said: String = site.mask.text(text).trim().chars().take(NOTICE).collect();
    let reason = format!("the agent's answer is only a limit notice: {said}");
    Some(match (class, agent::told_time(text, now, utc_offset_s(now))) {
        (_, Some(at)) => Verdict::RetryAt { at, reason },
        (FaultClass::Transient, None) => Verdict::BackOff { reason, crowded: true },
        (_, None) => Verdict::NeedsPerson { reason },
    })
}

impl Heard {
    /// Captures the answer as if only it had been printed, but with the byte count of the stream.
    /// Writes the author's own output file only if the answer counts.
    pub(crate) fn answer(
        &self,
        site: &Site,
        work: &Work,
        stream: &Captured,
    ) -> io::Result<Captured> {
        let mut out = Capture::new(mode(work), site.mask.clone()).log(site.log(&work.step, ANSWER));
        if mode(work) == Mode::Whole {
            out = out.whole(site.root().join(output_path(work)));
        }
        if let Some(path) = work.output_file.as_ref().filter(|_| self.counts()) {
            out = out.tee(site.workspace.create(path).map_err(io::Error::other)?, path);
        }
        out.push(self.outcome.text.as_bytes());
        let mut answer = out.finish()?;
        answer.total_bytes = stream.total_bytes;
        Ok(answer)
    }

    fn counts(&self) -> bool {
        self.outcome.verdict == Verdict::Answered
    }

    /// Returns the exit code that represents the outcome.
    pub(crate) fn exit_code(&self, how: How) -> i32 {
        match (&self.outcome.verdict, how) {
            (Verdict::Answered, _) => 0,
            (_, How::TimedOut) | (Verdict::Stopped { .. }, How::Silent) => 124,
            (Verdict::Stopped { .. } | Verdict::Machine { .. }, how) if how.exit_code() != 0 => {
                how.exit_code()
            }
            _ => 1,
        }
    }

    /// Classifies a failure: transient, fatal, or unknown. `None` if the stream does not decide;
    /// then stderr does, as for any command.
    pub(crate) fn class(&self, how: How) -> Option<FaultClass> {
        Some(match &self.outcome.verdict {
            _ if matches!(how, How::TimedOut | How::Silent) => FaultClass::Transient,
            Verdict::RetryAt { .. } | Verdict::BackOff { .. } => FaultClass::Transient,
            Verdict::Answered => FaultClass::Unknown,
            Verdict::Stopped { .. } => return None,
            // The text printed in place of a last event may contain more information.
            Verdict::Machine { fault: MachineFault::Events, .. }
                if !self.outcome.printed.is_empty() =>
            {
                return None;
            }
            Verdict::Machine { fault, .. } if fault.passes() => FaultClass::Transient,
            Verdict::Machine { .. } => FaultClass::Fatal,
            Verdict::NeedsPerson { .. } | Verdict::Fail { .. } | Verdict::Limit { .. } => {
                FaultClass::Fatal
            }
        })
    }

    /// Returns true if the verdict explains the failure, so that no other text is needed.
    pub(crate) fn explains(&self) -> bool {
        !matches!(self.outcome.verdict, Verdict::Stopped { .. })
    }

    /// Returns the lines that were printed in place of a last event.
    pub(crate) fn in_place_of_an_end(&self) -> Vec<String> {
        match self.outcome.verdict {
            Verdict::Stopped { .. } | Verdict::Machine { .. } => self.outcome.printed.clone(),
            _ => Vec::new(),
        }
    }

    /// Describes the failure in a sentence.
    pub(crate) fn message(&self, provider: &str) -> String {
        let reason = self.outcome.verdict.reason();
        match &self.outcome.verdict {
            Verdict::Answered => format!("provider `{provider}` answered"),
            Verdict::RetryAt { at, .. } => {
                let at = at.to_second();
                format!("provider `{provider}` can be asked again at {at}: {reason}")
            }
            Verdict::BackOff { .. } => {
                format!("provider `{provider}` could not answer for now: {reason}")
            }
            Verdict::NeedsPerson { .. } => {
                format!("provider `{provider}` needs a person to act: {reason}")
            }
            Verdict::Fail { .. } => format!("provider `{provider}` failed: {reason}"),
            Verdict::Limit { .. } => {
                format!("provider `{provider}` reached a limit that was set for it: {reason}")
            }
            Verdict::Stopped { .. } => {
                format!("provider `{provider}` did not end well: {reason}")
            }
            Verdict::Machine { .. } => {
                format!("provider `{provider}` cannot be used on this machine: {reason}")
            }
        }
    }

    pub(crate) fn context(&self, how: How) -> Map<String, Value> {
        let mut context = Map::new();
        context.insert("verdict".into(), self.outcome.verdict.to_json());
        if let How::Exited(code) = how {
            context.insert("provider_exit_code".into(), code.into());
        }
        context
    }

    /// Returns the agent's last actions for display, or its printed lines if it did nothing.
    pub(crate) fn tail(&self) -> Vec<String> {
        if self.outcome.notes.is_empty() {
            return self.outcome.printed.clone();
        }
        let notes = self.outcome.notes.iter().map(ToString::to_string);
        let lines: Vec<String> =
            notes.flat_map(|note| note.lines().map(str::to_owned).collect::<Vec<_>>()).collect();
        let from = lines.len().saturating_sub(SHOWN);
        lines[from..].to_vec()
    }

    pub(crate) fn spent(&self, site: &Site, work: &Work) -> Spent {
        Spent {
            provider: work.provider.clone().unwrap_or_default(),
            session: self.outcome.session.as_deref().map(|session| site.mask.text(session)),
            usage: self.usage.clone(),
        }
    }

    /// Returns a warning for the user that is not a failure.
    pub(crate) fn warning(&self) -> Option<String> {
        if self.outcome.truncated {
            return Some("the answer is longer than 8 MiB; the rest is only in the log".into());
        }
        let denials = &self.outcome.denials;
        if !denials.is_empty() {
            return Some(format!("the agent was not allowed to use: {}", denials.join("; ")));
        }
        self.asked_again.then(|| ASKED_AGAIN.into())
    }
}

/// Warning about an agent that reported the result of its work only on request.
pub(crate) const ASKED_AGAIN: &str = "the agent was asked once more how its work went";

/// Suffix of the log with an answer that the state does not contain.
pub(crate) const ANSWER: &str = "answer";
