//! One more turn for an agent that did not say how its work went: it is asked for the block alone,
//! in what is left of its time. In the same conversation, where that can be gone on with; else it
//! is told what was asked and answered.
//!
//! What was asked in an argument stands in every argv: there the engine lets the whole step be
//! tried again.

use std::path::Path;
use std::time::{Duration, Instant};

use super::super::conclude::end_of;
use super::super::work::{Input, Work};
use super::{Ran, reply};
use crate::exec::How;
use crate::prompt::contract::{self, Contract};
use crate::prompt::{echo, limits};
use crate::provider::{Outcome, Verdict};
use crate::workflow::plan::CaptureMode;

/// Whether whoever does this work may be asked once more. What was asked in an argument cannot be
/// asked otherwise.
fn is_asked_again(work: &Work) -> bool {
    let rule = work.answer.as_ref().and_then(|rules| rules.contract);
    (work.repairs || rule.is_some_and(|rule| rule.repair)) && work.stdin.is_some()
}

/// An answer that cannot be used, about which the agent may be asked.
pub(super) struct Wanting {
    why: String,
    answered: String,
}

impl Wanting {
    /// What is wanting in an answer to this work.
    fn of(work: &Work, answered: &str) -> Option<Wanting> {
        if !is_asked_again(work) || limits::notice(answered).is_some() {
            return None;
        }
        let why = match contract::parse(&echo::without_examples(answered, &work.asked())) {
            Contract::Found(_) => return None,
            Contract::Missing => "it does not end with a JSON block that says how it went".into(),
            Contract::Invalid(why) => format!("its JSON block does not say how it went: {why}"),
        };
        Some(Wanting { why, answered: answered.to_owned() })
    }

    /// The same of what was heard of an agent.
    pub(super) fn in_heard(work: &Work, outcome: &Outcome) -> Option<Wanting> {
        let answered = outcome.verdict == Verdict::Answered;
        answered.then(|| Wanting::of(work, &outcome.text))?
    }

    /// The same of what a child printed, all of which is in its log where memory has it not.
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

    /// The turn as work; nothing where no time is left for it. Whoever `remembers` is asked in
    /// the same conversation.
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
