//! A second turn for an agent that did not report the result of its work. It asks only for the JSON
//! block, within the remaining time: in the same conversation if that can be continued, otherwise
//! with a copy of the prompt and the answer.
//!
//! A prompt in an argument is part of every command line and cannot be replaced. In that case the
//! engine retries the whole step.

use std::path::Path;
use std::time::{Duration, Instant};

use super::super::work::{Input, Work};
use super::reply::end_of;
use super::{Ran, reply};
use crate::agent::contract::{self, Contract};
use crate::agent::{Outcome, Verdict};
use crate::agent::{echo, faults};
use crate::exec::How;
use crate::workflow::plan::CaptureMode;

/// Returns true if the agent may be asked a second time. A prompt in an argument cannot be
/// replaced.
fn is_asked_again(work: &Work) -> bool {
    let rule = work.answer.as_ref().and_then(|rules| rules.contract);
    (work.repairs || rule.is_some_and(|rule| rule.repair)) && work.stdin.is_some()
}

/// An unusable answer about which the agent may be asked.
pub(super) struct Wanting {
    why: String,
    answered: String,
}

impl Wanting {
    /// Returns the defect of an answer to this work, or `None` if it is usable or must not be asked
    /// about.
    fn of(work: &Work, answered: &str) -> Option<Wanting> {
        if !is_asked_again(work) || faults::notice(answered).is_some() {
            return None;
        }
        let why = match contract::parse(&echo::own_part(answered, &work.asked())) {
            Contract::Found(_) => return None,
            Contract::Missing => "it does not end with a JSON block that says how it went".into(),
            Contract::Invalid(why) => format!("its JSON block does not say how it went: {why}"),
        };
        Some(Wanting { why, answered: answered.to_owned() })
    }

    /// Checks the outcome of an agent's stream.
    pub(super) fn in_heard(work: &Work, outcome: &Outcome) -> Option<Wanting> {
        let answered = outcome.verdict == Verdict::Answered;
        answered.then(|| Wanting::of(work, &outcome.text))?
    }

    /// Checks the printed answer of a child process; reads it from the log if memory does not hold
    /// all.
    pub(super) fn in_printed(work: &Work, ran: &Ran, log: &Path) -> Option<Wanting> {
        let ended_well = ran.ended.how == How::Exited(0);
        let out = ran.out.as_ref().ok().filter(|_| ended_well && is_asked_again(work))?;
        let text = match work.capture {
            CaptureMode::Whole => reply::text(&out.whole).ok()?.0,
            _ if out.truncated => end_of(log).ok()?,
            _ => out.text(),
        };
        Wanting::of(work, &text)
    }

    /// Returns the work of the second turn, or `None` if no time is left. `remembers` is true if
    /// the turn continues the same conversation.
    pub(super) fn turn(&self, work: &Work, remembers: bool, began: Instant) -> Option<Work> {
        let said = match remembers {
            true => contract::ask_for_block(&self.why),
            false => {
                let asked = work.stdin.as_ref().map(Input::bytes).unwrap_or_default();
                let asked = String::from_utf8_lossy(&asked);
                contract::ask_for_block_anew(&self.why, &asked, &self.answered)
            }
        };
        let mut turn = Work { stdin: Some(Input::of(said.into_bytes())), ..work.clone() };
        if let Some(limit) = work.timeout() {
            let left = limit.checked_sub(began.elapsed()).filter(|left| *left > Duration::ZERO)?;
            turn.timeout_ms = Some((left.as_millis() as u64).max(1));
        }
        tracing::info!("step `{}` is asked how its work went", work.step.shown());
        Some(turn)
    }
}
