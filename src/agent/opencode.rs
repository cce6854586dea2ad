//! `opencode run --format json`.
//!
//! There is no final event: it is done when its last step has finished with `stop` and it ended
//! well. The costs of its steps are added up.

use serde_json::Value;

use super::{
    Adapter, Answer, DENIALS, End, Outcome, Silence, Turn, Usage, Veil, Verdict, money, number,
    text, told_by, total,
};

#[derive(Default)]
pub(super) struct OpenCode {
    session: Option<String>,
    answer: Answer,
    /// Cost of its steps so far.
    usage: Option<Usage>,
    /// The reason for which its last step ended.
    finished: Option<String>,
    error: Option<Fault>,
    /// Tools that it was denied.
    denials: Vec<String>,
}

struct Fault {
    reason: String,
    status: Option<u64>,
    retryable: bool,
    retry_after_s: Option<u64>,
}

impl Adapter for OpenCode {
    fn line(&mut self, line: &str, veil: &Veil) -> Option<Vec<Turn>> {
        told_by(line, |event| self.event(event, veil))
    }

    fn session(&self) -> Option<&str> {
        self.session.as_deref()
    }

    /// It does not report tools before they finish, and never reports waiting.
    fn silence(&self) -> Silence {
        Silence::Waiting
    }

    fn finish(self: Box<Self>, end: &End, _: &Veil) -> Outcome {
        let verdict = match (&self.error, self.finished.as_deref()) {
            (Some(fault), _) => fault.verdict(end),
            (None, Some("stop")) if end.went_well() => Verdict::Answered,
            (None, Some("stop")) => end.after_end(),
            (None, Some("length")) => {
                Verdict::Fail { reason: "its answer was cut off: too many tokens".into() }
            }
            // It gives up after a call that, by its settings, only a user can allow.
            (None, Some(_)) if end.went_well() && !self.denials.is_empty() => {
                let reason = format!("it was not allowed to use: {}", self.denials.join("; "));
                Verdict::Fail { reason }
            }
            // It printed the end of a step, so its events are the expected ones.
            (None, Some(_)) => End { events: false, ..*end }.without_end(self.session.is_some()),
            (None, None) => end.without_end(self.session.is_some()),
        };
        let lost = |line: &String| line.to_lowercase().contains("session not found");
        Outcome {
            session: self.session,
            session_lost: end.stderr_tail.iter().any(lost),
            usage: self.usage.unwrap_or_default(),
            denials: self.denials,
            ..Outcome::new(verdict).answering(self.answer)
        }
    }
}

impl OpenCode {
    fn event(&mut self, event: &Value, veil: &Veil) -> Option<Turn> {
        if let Some(session) = text(event, "sessionID") {
            self.session = Some(session.to_owned());
        }
        let part = event.get("part").unwrap_or(&Value::Null);
        match text(event, "type")? {
            "step_start" => {
                self.finished = None;
                self.error = None;
                None
            }
            "text" => {
                let said = text(part, "text")?;
                self.answer.set(said);
                veil.said(said)
            }
            "tool_use" => {
                let state = part.get("state").unwrap_or(&Value::Null);
                let input = state.get("input").unwrap_or(&Value::Null);
                let called = veil.called(text(part, "tool").unwrap_or("a tool"), input);
                if text(state, "status") != Some("error") {
                    return Some(called);
                }
                let why = text(state, "error").unwrap_or_default();
                if why.contains("rejected permission") && self.denials.len() < DENIALS {
                    self.denials.push(called.to_string().trim_start_matches("-> ").to_owned());
                }
                Some(veil.tool_failed(why))
            }
            "step_finish" => {
                self.finished = text(part, "reason").map(str::to_owned);
                usage(part).add_to(&mut self.usage);
                None
            }
            "error" => {
                self.error = Some(Fault::read(event.get("error").unwrap_or(&Value::Null), veil));
                None
            }
            _ => None,
        }
    }
}

fn usage(part: &Value) -> Usage {
    let tokens = part.get("tokens").unwrap_or(&Value::Null);
    let cache = tokens.get("cache").unwrap_or(&Value::Null);
    Usage {
        input_tokens: total(&[tokens.get("input"), cache.get("read"), cache.get("write")]),
        output_tokens: number(tokens, "output"),
        cached_tokens: number(cache, "read"),
        reasoning_tokens: number(tokens, "reasoning"),
        cost_usd: money(part, "cost"),
        turns: Some(1),
        ..Usage::default()
    }
}

impl Fault {
    fn read(error: &Value, veil: &Veil) -> Fault {
        let data = error.get("data").unwrap_or(&Value::Null);
        let message = text(data, "message").or_else(|| text(error, "message"));
        let whole = error.to_string();
        let name = text(error, "name").or(error.as_str()).unwrap_or(&whole);
        let headers = data.get("responseHeaders").unwrap_or(&Value::Null);
        Fault {
            reason: veil.shortened(message.unwrap_or(name), 2000),
            status: number(data, "statusCode"),
            retryable: data.get("isRetryable").and_then(Value::as_bool).unwrap_or(false),
            retry_after_s: text(headers, "retry-after").and_then(|seconds| seconds.parse().ok()),
        }
    }

    fn verdict(&self, end: &End) -> Verdict {
        let reason = self.reason.clone();
        match (self.status, self.retry_after_s) {
            (Some(401 | 403), _) => Verdict::NeedsPerson { reason },
            (Some(429 | 500..=599), Some(seconds)) => {
                Verdict::RetryAt { at: end.now.plus_ms(seconds.saturating_mul(1000)), reason }
            }
            _ if self.retryable => {
                Verdict::BackOff { reason, crowded: matches!(self.status, Some(429 | 529)) }
            }
            (Some(status), _) => {
                Verdict::of_status(status, &reason).unwrap_or(Verdict::Fail { reason })
            }
            _ => Verdict::Fail { reason },
        }
    }
}
