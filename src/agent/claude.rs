//! `claude -p`, with output format `stream-json` or `json`.
//!
//! The last event is a `result`. Its `subtype` is `success` even if the API rejected the request;
//! `is_error` is reliable. An interrupted program ends with exit code 0 and without a `result`.

use serde_json::Value;

use super::retry_time::told_time;
use super::verdict::plain;
use super::{
    Adapter, Answer, Counting, DENIALS, End, Outcome, Turn, Usage, Veil, Verdict, money, number,
    text, told_by, total,
};
use crate::base::time::Time;

#[derive(Default)]
pub(super) struct Claude {
    session: Option<String>,
    began: bool,
    /// End of the limit that was reached.
    resets_at: Option<Time>,
    result: Option<Result>,
}

/// The relevant parts of the last event.
struct Result {
    answer: Answer,
    is_error: bool,
    subtype: String,
    terminal_reason: String,
    stop_reason: String,
    status: Option<u64>,
    api_error: String,
    reason: String,
    usage: Usage,
    denials: Vec<String>,
    structured: Option<Value>,
}

impl Adapter for Claude {
    fn line(&mut self, line: &str, veil: &Veil) -> Option<Vec<Turn>> {
        told_by(line, |event| self.event(event, veil))
    }

    fn session(&self) -> Option<&str> {
        self.session.as_deref()
    }

    fn finish(self: Box<Self>, end: &End, _: &Veil) -> Outcome {
        let session_lost = self.session_lost(end);
        let session = self.session.clone();
        let Some(result) = self.result else {
            let verdict = end.without_end(self.began);
            return Outcome { session, session_lost, ..Outcome::new(verdict) };
        };
        let verdict = result.verdict(self.resets_at, end);
        Outcome {
            session,
            session_lost,
            usage: result.usage,
            denials: result.denials,
            structured: result.structured,
            ..Outcome::new(verdict).answering(result.answer)
        }
    }
}

impl Claude {
    fn event(&mut self, event: &Value, veil: &Veil) -> Vec<Turn> {
        if let Some(session) = text(event, "session_id") {
            self.session = Some(session.to_owned());
        }
        let kind = text(event, "type").unwrap_or_default();
        self.began |= kind == "system" || kind == "assistant";
        match (kind, text(event, "subtype")) {
            ("system", Some("api_retry")) => vec![retrying(event)],
            ("assistant", _) => {
                blocks(event).filter_map(|block| said_or_called(block, veil)).collect()
            }
            ("user", _) => blocks(event).filter_map(|block| failed(block, veil)).collect(),
            ("rate_limit_event", _) => {
                self.limit(event);
                Vec::new()
            }
            ("result", _) => {
                self.result = Some(Result::read(event, veil));
                Vec::new()
            }
            _ => Vec::new(),
        }
    }

    fn limit(&mut self, event: &Value) {
        let Some(limit) = event.get("rate_limit_info") else { return };
        let seconds = limit.get("resetsAt").and_then(Value::as_i64);
        let at = seconds.and_then(|seconds| seconds.checked_mul(1000)).map(Time);
        self.resets_at = at.filter(|_| text(limit, "status") == Some("rejected"));
    }

    fn session_lost(&self, end: &End) -> bool {
        let said = "no conversation found with session id";
        let lost = |line: &String| plain(line).contains(said);
        end.stderr_tail.iter().any(lost)
            || self.result.as_ref().is_some_and(|result| plain(&result.reason).contains(said))
    }
}

fn blocks(event: &Value) -> impl Iterator<Item = &Value> {
    let content = event.get("message").and_then(|message| message.get("content"));
    content.and_then(Value::as_array).into_iter().flatten()
}

fn said_or_called(block: &Value, veil: &Veil) -> Option<Turn> {
    match text(block, "type")? {
        "text" => veil.said(text(block, "text")?),
        "tool_use" => {
            let input = block.get("input").unwrap_or(&Value::Null);
            Some(veil.called(text(block, "name").unwrap_or("a tool"), input))
        }
        _ => None,
    }
}

fn failed(block: &Value, veil: &Veil) -> Option<Turn> {
    let failed = block.get("is_error").and_then(Value::as_bool) == Some(true);
    if !failed || text(block, "type") != Some("tool_result") {
        return None;
    }
    let content = block.get("content")?;
    let first = content.as_array().and_then(|parts| parts.first());
    let told = content.as_str().or_else(|| first.and_then(|part| text(part, "text")));
    Some(veil.tool_failed(told.unwrap_or_default()))
}

fn retrying(event: &Value) -> Turn {
    let of = |key: &str| number(event, key).map_or("?".into(), |number| number.to_string());
    let why = match number(event, "error_status") {
        Some(status) => format!("status {status}"),
        None => "no connection".into(),
    };
    let delay = number(event, "retry_delay_ms").unwrap_or(0) as f64 / 1000.0;
    let (attempt, most) = (of("attempt"), of("max_retries"));
    Turn::Retrying(format!("{why}: try {attempt} of {most} in {delay:.1} s"))
}

impl Result {
    fn read(event: &Value, veil: &Veil) -> Result {
        let of = |key: &str| text(event, key).unwrap_or_default().to_owned();
        let mut answer = Answer::default();
        answer.add(text(event, "result").unwrap_or_default());
        let is_error = event.get("is_error").and_then(Value::as_bool).unwrap_or(true);
        let errors = event.get("errors").and_then(Value::as_array).into_iter().flatten();
        let errors: Vec<&str> = errors.filter_map(Value::as_str).take(5).collect();
        let mut reason = errors.join("; ");
        if is_error && reason.is_empty() {
            // In this case the text is not an answer.
            reason = std::mem::take(&mut answer.text);
        }
        if reason.is_empty() {
            reason = of("subtype");
        }
        let denials = event.get("permission_denials").and_then(Value::as_array);
        let structured = event.get("structured_output").filter(|value| !value.is_null());
        Result {
            answer,
            is_error,
            subtype: of("subtype"),
            terminal_reason: of("terminal_reason"),
            stop_reason: of("stop_reason"),
            status: number(event, "api_error_status"),
            api_error: of("api_error"),
            reason: veil.shortened(&reason, 2000),
            usage: usage(event),
            denials: denials
                .into_iter()
                .flatten()
                .take(DENIALS)
                .map(|one| denial(one, veil))
                .collect(),
            structured: structured.cloned(),
        }
    }

    fn verdict(&self, resets_at: Option<Time>, end: &End) -> Verdict {
        if self.is_error {
            return self.fault(resets_at, end);
        }
        if !end.went_well() {
            return Verdict::Stopped { reason: format!("it answered, but {}", end.how()) };
        }
        if self.usage.turns == Some(0) {
            let reason = "it took the prompt for a command of its own, and asked no model";
            return Verdict::Fail { reason: reason.into() };
        }
        Verdict::Answered
    }

    fn fault(&self, resets_at: Option<Time>, end: &End) -> Verdict {
        let (reason, lower) = (self.reason.clone(), plain(&self.reason));
        if self.subtype == "error_max_turns" || self.subtype == "error_max_budget_usd" {
            return Verdict::Limit { reason };
        }
        if self.terminal_reason.starts_with("aborted") {
            return Verdict::Stopped { reason };
        }
        let limited = self.status == Some(429) || self.api_error == "usage_limit_reached";
        let told = || told_time(&self.reason, end.now, end.utc_offset_s);
        match resets_at.or_else(told) {
            Some(at) if limited && at > end.now => return Verdict::RetryAt { at, reason },
            // A limit of hours or days; its end is unknown.
            None if self.api_error == "usage_limit_reached" => {
                return Verdict::NeedsPerson { reason };
            }
            _ => {}
        }
        if lower.contains("not logged in") || lower.contains("credit balance") {
            return Verdict::NeedsPerson { reason };
        }
        if self.terminal_reason == "prompt_too_long" || self.stop_reason == "refusal" {
            return Verdict::Fail { reason };
        }
        if let Some(verdict) = self.status.and_then(|status| Verdict::of_status(status, &reason)) {
            return verdict;
        }
        if self.api_error == "connection_failed" || lower.contains("timed out") {
            return Verdict::BackOff { reason, crowded: false };
        }
        Verdict::Fail { reason }
    }
}

fn denial(denial: &Value, veil: &Veil) -> String {
    let tool = veil.shortened(text(denial, "tool_name").unwrap_or("a tool"), 100);
    match veil.brief(denial.get("tool_input").unwrap_or(&Value::Null)) {
        input if input.is_empty() => tool,
        input => format!("{tool}: {input}"),
    }
}

/// Returns the usage. Tokens are those of this run; cost is counted since the conversation began.
fn usage(event: &Value) -> Usage {
    let told = event.get("usage").unwrap_or(&Value::Null);
    let read = ["input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens"];
    let mut usage = Usage {
        input_tokens: total(&read.map(|key| told.get(key))),
        output_tokens: number(told, "output_tokens"),
        cached_tokens: number(told, "cache_read_input_tokens"),
        cost_usd: money(event, "total_cost_usd"),
        turns: number(event, "num_turns"),
        counting: Counting::CostOfSession,
        ..Usage::default()
    };
    let nothing = usage.input_tokens == Some(0) && usage.output_tokens == Some(0);
    if nothing && text(event, "subtype") == Some("error_max_budget_usd") {
        // When its budget is exhausted, it leaves the counters at zero.
        (usage.input_tokens, usage.output_tokens, usage.cached_tokens) = (None, None, None);
    }
    usage
}
