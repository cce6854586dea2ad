//! `codex exec --json`.
//!
//! The last event is `turn.completed` or `turn.failed`; an `error` before it is not final. The
//! answer is the last message. Counters cover the whole thread, and cost is not reported.

use std::collections::HashSet;

use serde_json::Value;

use super::retry_time::told_time;
use super::verdict::{is_network, number_after, plain};
use super::{
    Adapter, Answer, Counting, End, Outcome, Silence, Turn, Usage, Veil, Verdict, number, text,
    told_by,
};

#[derive(Default)]
pub(super) struct Codex {
    session: Option<String>,
    answer: Answer,
    usage: Usage,
    /// Result of the last turn; the error is the reason of the failure.
    last: Option<Result<(), String>>,
    /// The running tools, by ID.
    tools: HashSet<String>,
    /// The rate limit it waits for, until the next event.
    at_limit: Option<String>,
}

impl Adapter for Codex {
    fn line(&mut self, line: &str, veil: &Veil) -> Option<Vec<Turn>> {
        told_by(line, |event| self.event(event, veil))
    }

    fn session(&self) -> Option<&str> {
        self.session.as_deref()
    }

    fn silence(&self) -> Silence {
        match &self.at_limit {
            Some(said) => Silence::AtLimit(said.clone()),
            None if !self.tools.is_empty() => Silence::Working,
            None => Silence::Waiting,
        }
    }

    fn finish(self: Box<Self>, end: &End, _: &Veil) -> Outcome {
        let lost = |line: &String| plain(line).contains("no rollout found for thread id");
        let session_lost = end.stderr_tail.iter().any(lost);
        let verdict = match &self.last {
            None => end.without_end(self.session.is_some()),
            Some(Ok(())) if end.went_well() => Verdict::Answered,
            Some(Ok(())) => Verdict::Stopped { reason: format!("it answered, but {}", end.how()) },
            Some(Err(message)) => fault(message, end),
        };
        Outcome {
            session: self.session,
            session_lost,
            usage: self.usage,
            ..Outcome::new(verdict).answering(self.answer)
        }
    }
}

impl Codex {
    fn event(&mut self, event: &Value, veil: &Veil) -> Option<Turn> {
        let kind = text(event, "type")?;
        self.at_limit = None;
        match kind {
            "thread.started" => {
                self.session = text(event, "thread_id").map(str::to_owned);
                None
            }
            "turn.started" => {
                self.last = None;
                self.tools.clear();
                None
            }
            "item.started" => {
                let item = event.get("item")?;
                let called = called(item, veil)?;
                self.tools.extend(text(item, "id").map(str::to_owned));
                Some(called)
            }
            "item.completed" => {
                let item = event.get("item")?;
                self.tools.remove(text(item, "id").unwrap_or_default());
                self.item(item, veil)
            }
            "error" => {
                let message = text(event, "message")?;
                if !message.starts_with("Reconnecting") {
                    return None;
                }
                let told = veil.shortened(message, 300);
                let limited = number_after(&plain(message), "status") == Some(429);
                self.at_limit = limited.then(|| told.clone());
                Some(Turn::Retrying(told))
            }
            "turn.completed" => {
                self.last = Some(Ok(()));
                self.usage = usage(event.get("usage").unwrap_or(&Value::Null));
                None
            }
            "turn.failed" => {
                let error = event.get("error").unwrap_or(&Value::Null);
                let message = text(error, "message").unwrap_or("the turn failed");
                self.last = Some(Err(veil.shortened(message, 2000)));
                None
            }
            _ => None,
        }
    }

    fn item(&mut self, item: &Value, veil: &Veil) -> Option<Turn> {
        match text(item, "type")? {
            "agent_message" => {
                let said = text(item, "text")?;
                self.answer.set(said);
                veil.said(said)
            }
            "command_execution" => {
                let code =
                    item.get("exit_code").and_then(Value::as_i64).filter(|code| *code != 0)?;
                let output = veil.text(text(item, "aggregated_output").unwrap_or_default());
                let last = output.trim().lines().next_back().unwrap_or_default();
                Some(veil.tool_failed(format!("exit code {code} {last}").trim()))
            }
            "error" => Some(veil.tool_failed(text(item, "message")?)),
            _ => None,
        }
    }
}

fn called(item: &Value, veil: &Veil) -> Option<Turn> {
    let kind = text(item, "type")?;
    let tool = text(item, "tool").unwrap_or(kind);
    (kind != "agent_message" && kind != "reasoning").then(|| veil.called(tool, item))
}

fn usage(usage: &Value) -> Usage {
    Usage {
        input_tokens: number(usage, "input_tokens"),
        output_tokens: number(usage, "output_tokens"),
        cached_tokens: number(usage, "cached_input_tokens"),
        reasoning_tokens: number(usage, "reasoning_output_tokens"),
        counting: Counting::Session,
        ..Usage::default()
    }
}

fn fault(message: &str, end: &End) -> Verdict {
    let (lower, reason) = (plain(message), message.to_owned());
    if lower.contains("usage limit") {
        return match told_time(message, end.now, end.utc_offset_s) {
            Some(at) => Verdict::RetryAt { at, reason },
            None => Verdict::NeedsPerson { reason },
        };
    }
    const OF_PEOPLE: [&str; 4] = [
        "insufficient_quota",
        "check your plan and billing",
        "not logged in",
        "missing environment variable",
    ];
    if OF_PEOPLE.iter().any(|sign| lower.contains(sign)) {
        return Verdict::NeedsPerson { reason };
    }
    if let Some(status) = number_after(&lower, "status")
        && let Some(verdict) = Verdict::of_status(status, message)
    {
        return verdict;
    }
    // A rejected request is reported with its whole body, which may contain any word.
    let body = message.trim_start().starts_with('{');
    let crowded = lower.contains("429");
    match !body && (crowded || is_network(&lower)) {
        true => Verdict::BackOff { reason, crowded },
        false => Verdict::Fail { reason },
    }
}
