//! One more turn for an agent that did not say how its work went: it is asked for the block alone,
//! in the same conversation and in what is left of its time.
//!
//! Where there is no conversation to go on with, the engine lets the whole step be tried again.

use std::time::{Duration, Instant};

use super::super::work::{Input, Work};
use super::session::Session;
use crate::prompt::contract::{self, Contract};
use crate::prompt::limits;
use crate::provider::{Outcome, Verdict};

/// Why an answer cannot be used that the agent may be asked about.
pub fn wanting(work: &Work, session: Option<&Session>, outcome: &Outcome) -> Option<String> {
    let rule = work.answer.as_ref()?.contract?;
    let answered = outcome.verdict == Verdict::Answered && limits::notice(&outcome.text).is_none();
    // What is said in an argument is in the argv that goes on, too, whole.
    if !rule.repair || !answered || work.stdin.is_none() || !session?.goes_on() {
        return None;
    }
    match contract::parse(&outcome.text) {
        Contract::Found(_) => None,
        Contract::Missing => Some("it does not end with a JSON block that says how it went".into()),
        Contract::Invalid(why) => Some(format!("its JSON block does not say how it went: {why}")),
    }
}

/// The turn as work; nothing where no time is left for it.
pub fn turn(work: &Work, why: &str, began: Instant) -> Option<Work> {
    let stdin = Some(Input::of(contract::ask_for_block(why).into_bytes()));
    let mut turn = Work { stdin, ..work.clone() };
    if let Some(limit) = work.timeout() {
        let left = limit.checked_sub(began.elapsed()).filter(|left| *left > Duration::ZERO)?;
        turn.timeout_ms = Some((left.as_millis() as u64).max(1));
    }
    Some(turn)
}
