//! `gemini`, with output format `stream-json` or `json`.
//!
//! Its exit code is the HTTP status, of which the system keeps only the low byte: 401 becomes 145.
//! When interrupted, it ends with exit code 0 and without a `result`.

use serde_json::Value;

use super::retry_time::told_time;
use super::verdict::{is_network, number_after, plain};
use super::{
    Adapter, Answer, End, MachineFault, Outcome, Turn, Usage, Veil, Verdict, events, number, text,
    total,
};
use crate::base::time::Time;

/// Maximum size of a document that spans several lines.
const DOCUMENT_BYTES: usize = 16 << 20;

#[derive(Default)]
pub(super) struct Gemini {
    session: Option<String>,
    /// Text since the last tool call.
    answer: Answer,
    /// Text that has not been returned as a turn yet.
    telling: String,
    /// Final result; the error is the reason of the failure.
    last: Option<Result<(), String>>,
    /// The error it reported after all its messages and tool calls.
    error: Option<String>,
    usage: Usage,
    /// Lines that are not events: with `json` they form one document.
    document: String,
}

impl Adapter for Gemini {
    fn line(&mut self, line: &str, veil: &Veil) -> Option<Vec<Turn>> {
        let events = events(line);
        if events.iter().any(|event| text(event, "type").is_some()) {
            return Some(events.iter().flat_map(|event| self.event(event, veil)).collect());
        }
        if self.document.len() + line.len() < DOCUMENT_BYTES {
            self.document.push_str(line);
            self.document.push('\n');
        }
        None
    }

    fn session(&self) -> Option<&str> {
        self.session.as_deref()
    }

    fn finish(mut self: Box<Self>, end: &End, veil: &Veil) -> Outcome {
        if self.last.is_none() {
            self.read_document(veil);
            self.read_error(end);
        }
        let began = self.session.is_some();
        let status = end.exit_code.and_then(status);
        let verdict = match &self.last {
            Some(Ok(())) if end.went_well() => Verdict::Answered,
            Some(Ok(())) => Verdict::Stopped { reason: format!("it answered, but {}", end.how()) },
            Some(Err(message)) => fault(message, status, end),
            None => {
                let said = self.error.clone().or_else(|| end.last_words());
                let words = said.clone().unwrap_or_else(|| end.how());
                let by_exit = of_exit(end.exit_code, &words);
                let by_status = || status.map(|_| fault(&words, status, end));
                let by_words =
                    || said.filter(|_| end.failed()).and_then(|said| passing(&said, end));
                let told = by_exit.or_else(by_status).or_else(by_words);
                let own = self.error.as_ref().filter(|_| end.failed());
                let own = own.map(|error| Verdict::Stopped { reason: error.clone() });
                told.or(own).unwrap_or_else(|| end.without_end(began))
            }
        };
        let lost = |line: &String| plain(line).contains("resuming session");
        Outcome {
            session: self.session,
            session_lost: end.exit_code == Some(42) && end.stderr_tail.iter().any(lost),
            usage: self.usage,
            ..Outcome::new(verdict).answering(self.answer)
        }
    }
}

impl Gemini {
    fn event(&mut self, event: &Value, veil: &Veil) -> Vec<Turn> {
        let kind = text(event, "type").unwrap_or_default();
        if !matches!(kind, "error" | "result") {
            self.error = None;
        }
        if kind == "message" {
            if text(event, "role") == Some("assistant") {
                let said = text(event, "content").unwrap_or_default();
                self.answer.add(said);
                // Keep more than is displayed, so that a secret at the end of the displayed part is
                // complete.
                if self.telling.len() < 2 * super::TURN_BYTES {
                    self.telling.push_str(said);
                }
            }
            return Vec::new();
        }
        // Messages arrive in pieces; return them together when another event arrives.
        let mut turns: Vec<Turn> =
            veil.said(&std::mem::take(&mut self.telling)).into_iter().collect();
        match kind {
            "init" => self.session = text(event, "session_id").map(str::to_owned),
            "tool_use" => {
                let input = event.get("parameters").unwrap_or(&Value::Null);
                turns.push(veil.called(text(event, "tool_name").unwrap_or("a tool"), input));
            }
            "tool_result" => {
                self.answer.set("");
                if text(event, "status") == Some("error") {
                    let error = event.get("error").and_then(|error| text(error, "message"));
                    let why = error.or_else(|| text(event, "output"));
                    turns.push(veil.tool_failed(why.unwrap_or_default()));
                }
            }
            "error" => {
                let why = text(event, "message").unwrap_or_default();
                self.error = Some(veil.shortened(why, 2000)).filter(|why| !why.is_empty());
                turns.push(veil.tool_failed(why));
            }
            "result" => {
                // Without a status, the event comes from another program.
                let Some(status) = text(event, "status") else { return turns };
                let own = event.get("error").and_then(|error| text(error, "message"));
                self.last = Some(match (status, own, self.error.clone()) {
                    ("success", _, None) => Ok(()),
                    // It gave up, but reports success.
                    ("success", _, Some(error)) | (_, None, Some(error)) => Err(error),
                    (_, Some(own), _) => Err(veil.shortened(own, 2000)),
                    (status, ..) => Err(format!("its last event has the status `{status}`")),
                });
                self.usage = usage(event.get("stats").unwrap_or(&Value::Null));
            }
            _ => {}
        }
        turns
    }

    /// Reads the error document, which is on stderr after other output.
    fn read_error(&mut self, end: &End) {
        let Some(start) = end.stderr_tail.iter().rposition(|line| line == "{") else { return };
        let Ok(document) = serde_json::from_str::<Value>(&end.stderr_tail[start..].join("\n"))
        else {
            return;
        };
        if let Some(message) = document.get("error").and_then(|error| text(error, "message")) {
            self.last = Some(Err(super::shortened(message, 2000)));
        }
    }

    /// Reads the one document that `-o json` prints.
    fn read_document(&mut self, veil: &Veil) {
        let start = self.document.find('{').unwrap_or(self.document.len());
        let Ok(document) = serde_json::from_str::<Value>(&self.document[start..]) else { return };
        self.session = text(&document, "session_id").map(str::to_owned).or(self.session.take());
        if let Some(error) = document.get("error").filter(|error| !error.is_null()) {
            let whole = error.to_string();
            let message = text(error, "message").or(error.as_str()).unwrap_or(&whole);
            self.last = Some(Err(veil.shortened(message, 2000)));
            return;
        }
        let Some(response) = text(&document, "response") else { return };
        self.answer.set(response);
        self.last = Some(Ok(()));
        let models = document.get("stats").and_then(|stats| stats.get("models"));
        let models = models.and_then(Value::as_object).into_iter().flatten();
        let mut sum = None;
        for (_, model) in models {
            let tokens = model.get("tokens").unwrap_or(&Value::Null);
            let usage = Usage {
                input_tokens: total(&[tokens.get("prompt").or_else(|| tokens.get("input"))]),
                output_tokens: number(tokens, "candidates"),
                cached_tokens: number(tokens, "cached"),
                reasoning_tokens: number(tokens, "thoughts"),
                ..Usage::default()
            };
            usage.add_to(&mut sum);
        }
        self.usage = sum.unwrap_or_default();
    }
}

fn usage(stats: &Value) -> Usage {
    Usage {
        input_tokens: number(stats, "input_tokens"),
        output_tokens: number(stats, "output_tokens"),
        cached_tokens: number(stats, "cached"),
        ..Usage::default()
    }
}

/// Returns the HTTP status that an exit code stands for.
fn status(exit_code: i32) -> Option<u64> {
    let code = u64::try_from(exit_code).ok()?;
    (144..256).contains(&code).then_some(code + 256)
}

/// Returns the verdict for one of Gemini's own exit codes.
fn of_exit(code: Option<i32>, words: &str) -> Option<Verdict> {
    let reason = words.to_owned();
    match code? {
        41 => Some(Verdict::NeedsPerson { reason }),
        53 => Some(Verdict::Limit { reason }),
        52 => Some(Verdict::Machine { fault: MachineFault::Login, reason }),
        42 | 55 => Some(Verdict::Fail { reason }),
        _ => None,
    }
}

fn fault(message: &str, status: Option<u64>, end: &End) -> Verdict {
    let (lower, reason) = (plain(message), message.to_owned());
    if let Some(at) = told_time(message, end.now, end.utc_offset_s) {
        return Verdict::RetryAt { at, reason };
    }
    if lower.contains("daily quota") {
        return Verdict::RetryAt { at: next_day(end.now), reason };
    }
    if let Some(verdict) = of_exit(end.exit_code, message) {
        return verdict;
    }
    let told = ["\"code\"", "got status", "got"].iter();
    let told = told.filter_map(|word| number_after(&lower, word)).next();
    if let Some(verdict) = status.or(told).and_then(|status| Verdict::of_status(status, message)) {
        return verdict;
    }
    // A model that returned nothing or repeated itself may do better on a retry.
    const PASSING: [&str; 3] = ["please try again", "loop detected", "empty response"];
    let passes = PASSING.iter().any(|sign| lower.contains(sign)) || is_network(&lower);
    // A rejected request is reported with its whole body, which may contain any word.
    match !lower.contains('{') && passes {
        true => Verdict::BackOff { reason, crowded: false },
        false => Verdict::Fail { reason },
    }
}

/// Returns the verdict if a message describes a transient fault.
fn passing(words: &str, end: &End) -> Option<Verdict> {
    let passes =
        |verdict: &Verdict| matches!(verdict, Verdict::BackOff { .. } | Verdict::RetryAt { .. });
    Some(fault(words, None, end)).filter(passes)
}

/// Returns the time when daily quotas reset: midnight in California, which is 08:00 UTC, or 07:00
/// in summer. Uses 08:00, so that no retry is too early.
fn next_day(now: Time) -> Time {
    const DAY: i64 = 86_400_000;
    const MIDNIGHT: i64 = 8 * 3_600_000;
    let today = (now.0 - MIDNIGHT).div_euclid(DAY);
    Time((today + 1) * DAY + MIDNIGHT)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quota_of_a_day_ends_with_the_day_in_california() {
        let at = |text: &str| next_day(Time::parse(text).unwrap()).to_second();
        assert_eq!(at("2026-11-16T17:45:39Z"), "2026-11-17T08:00:00Z");
        assert_eq!(at("2026-11-17T07:59:59Z"), "2026-11-17T08:00:00Z");
        assert_eq!(at("2026-11-17T08:00:00Z"), "2026-11-18T08:00:00Z");
    }
}
