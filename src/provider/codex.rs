//! `codex exec --json`.
//!
//! The last event is `turn.completed` or `turn.failed`; an `error` before it is not final. The
//! answer is the last message. Counters run over the whole thread, and money is not told.

use serde_json::Value;

use super::verdict::{is_network, number_after, plain, try_again_at};
use super::{
    Adapter, Answer, Counting, End, Outcome, Turn, Usage, Veil, Verdict, number, text, told,
};

#[derive(Default)]
pub(super) struct Codex {
    session: Option<String>,
    answer: Answer,
    usage: Usage,
    /// How the last turn ended, and why it failed.
    last: Option<Result<(), String>>,
}

impl Adapter for Codex {
    fn line(&mut self, line: &str, veil: &Veil) -> Option<Vec<Turn>> {
        told(line, |event| self.event(event, veil))
    }

    fn session(&self) -> Option<&str> {
        self.session.as_deref()
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
        match text(event, "type")? {
            "thread.started" => {
                self.session = text(event, "thread_id").map(str::to_owned);
                None
            }
            "turn.started" => {
                self.last = None;
                None
            }
            "item.started" => called(event.get("item")?, veil),
            "item.completed" => self.item(event.get("item")?, veil),
            "error" => {
                let message = text(event, "message")?;
                let again = message.starts_with("Reconnecting");
                again.then(|| Turn::Retrying(veil.shortened(message, 300)))
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
        return match try_again_at(message, end.now, end.utc_offset_s) {
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
    // A refused request is told as its whole body, in which any word may stand.
    let body = message.trim_start().starts_with('{');
    let crowded = lower.contains("429");
    match !body && (crowded || is_network(&lower)) {
        true => Verdict::BackOff { reason, crowded },
        false => Verdict::Fail { reason },
    }
}
