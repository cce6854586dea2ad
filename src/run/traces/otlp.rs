//! Encodes a run as a trace in OTLP's JSON: one span for the run, one for each attempt at a step.

use std::collections::HashMap;
use std::io;
use std::path::Path;

use serde_json::{Value, json};

use super::Ended;
use super::settings::Settings;
use crate::base::digest::sha256;
use crate::base::ids::{Attempt, StepPath};
use crate::base::time::Time;
use crate::disk;
use crate::engine::{Event, Record, StepStatus, TaskRef};
use crate::run::webhook;
use crate::store::History;
use crate::store::journal::Entry;

/// Number of spans per request.
const SPANS: usize = 200;
/// Maximum length of a message.
const MESSAGE_BYTES: usize = 2048;
/// OTLP codes: the kind of a span inside one program, and the two results of a span.
const INTERNAL: u8 = 1;
const WELL: u8 = 1;
const BADLY: u8 = 2;

/// Sends the trace of a run.
pub(crate) fn tell(settings: &Settings, run: &Ended, workspace: &Path) -> io::Result<()> {
    let history = History::read(&*disk::machine(), &workspace.join(&run.run_root))
        .map_err(io::Error::other)?;
    for spans in spans(run, &history.entries).chunks(SPANS) {
        let body = request(settings, spans).to_string();
        webhook::post(&settings.url, &settings.headers, &body, settings.timeout, workspace)?;
    }
    Ok(())
}

/// Builds the body of one request.
fn request(settings: &Settings, spans: &[Value]) -> Value {
    let resource = settings.resource.iter().map(|(key, value)| text(key, value));
    json!({ "resourceSpans": [{
        "resource": { "attributes": resource.collect::<Vec<_>>() },
        "scopeSpans": [{
            "scope": { "name": "orchestrate", "version": env!("CARGO_PKG_VERSION") },
            "spans": spans,
        }],
    }] })
}

/// An attempt in flight.
struct Out<'a> {
    began: Time,
    task: Option<&'a TaskRef>,
    asks: bool,
}

/// Returns the spans of a run: its own first, then those of attempts, in the order of their ends.
fn spans(run: &Ended, entries: &[Entry]) -> Vec<Value> {
    let (Some(first), Some(last)) = (entries.first(), entries.last()) else { return Vec::new() };
    let mut spans = vec![of_run(run, first.at, last.at)];
    let mut out: HashMap<(&StepPath, Attempt), Out> = HashMap::new();
    for Entry { at, event, .. } in entries {
        match event {
            Event::Launched { step, attempt, task } => {
                let task = task.as_ref();
                out.insert((step, *attempt), Out { began: *at, task, asks: false });
            }
            Event::Gated { step, attempt, .. } => {
                out.insert((step, *attempt), Out { began: *at, task: None, asks: true });
            }
            Event::Ended { step, attempt, record } => {
                // An attempt that was refused was never launched.
                let none = Out { began: *at, task: None, asks: false };
                let begun = out.remove(&(step, *attempt)).unwrap_or(none);
                spans.push(of_attempt(run, (step, *attempt), &begun, *at, Some(record)));
            }
            Event::Answered { step, attempt, .. } | Event::Recalled { step, attempt } => {
                if let Some(begun) = out.remove(&(step, *attempt)) {
                    spans.push(of_attempt(run, (step, *attempt), &begun, *at, None));
                }
            }
            _ => {}
        }
    }
    // These attempts have no end: the process that drove the run was killed, or the run ended
    // first.
    let mut left: Vec<_> = out.into_iter().collect();
    left.sort_by_key(|((step, attempt), begun)| (begun.began, step.to_string(), *attempt));
    for (of, begun) in left {
        spans.push(of_attempt(run, of, &begun, last.at, None));
    }
    spans
}

fn of_run(run: &Ended, began: Time, ended: Time) -> Value {
    let status = match run.status {
        "completed" => json!({ "code": WELL }),
        "cancelled" => json!({}),
        _ => json!({ "code": BADLY, "message": short(run.error.as_deref().unwrap_or("failed")) }),
    };
    json!({
        "traceId": trace_id(run),
        "spanId": root_id(run),
        "name": run.workflow,
        "kind": INTERNAL,
        "startTimeUnixNano": nanos(began),
        "endTimeUnixNano": nanos(ended),
        "attributes": [
            text("orchestrate.run.id", &run.id),
            text("orchestrate.workflow", &run.workflow),
            text("orchestrate.status", run.status),
            { "key": "orchestrate.fleet", "value": { "boolValue": run.fleet } },
        ],
        "status": status,
    })
}

fn of_attempt(
    run: &Ended,
    (step, attempt): (&StepPath, Attempt),
    out: &Out,
    ended: Time,
    record: Option<&Record>,
) -> Value {
    let mut attributes = vec![
        text("orchestrate.run.id", &run.id),
        text("orchestrate.step", &step.to_string()),
        number("orchestrate.attempt", u64::from(attempt.number())),
    ];
    if let Some(task) = out.task {
        attributes.push(text("orchestrate.agent", &task.agent));
        attributes.push(text("orchestrate.task.id", &task.id));
    }
    let spent = record.and_then(|record| record.usage.as_ref());
    let provider = spent.map(|spent| &spent.provider).or_else(|| run.providers.get(&step.step));
    attributes.extend(provider.map(|provider| text("orchestrate.provider", provider)));
    let status = match record {
        Some(record) => {
            attributes.extend(of_record(record));
            match (&record.error, record.status) {
                (Some(error), _) => json!({ "code": BADLY, "message": short(&error.message) }),
                (None, StepStatus::Completed) => json!({ "code": WELL }),
                (None, _) => json!({ "code": BADLY, "message": "failed" }),
            }
        }
        None if out.asks => {
            attributes.push(text("orchestrate.status", "answered"));
            json!({ "code": WELL })
        }
        None => {
            attributes.push(text("orchestrate.status", "cut off"));
            json!({ "code": BADLY, "message": "the process that executed it ended" })
        }
    };
    json!({
        "traceId": trace_id(run),
        "spanId": sha256(format!("span/{}/{step}#{attempt}", run.id).as_bytes())[..16],
        "parentSpanId": root_id(run),
        "name": step,
        "kind": INTERNAL,
        "startTimeUnixNano": nanos(out.began),
        "endTimeUnixNano": nanos(ended.max(out.began)),
        "attributes": attributes,
        "status": status,
    })
}

fn of_record(record: &Record) -> Vec<Value> {
    let word = serde_json::to_value(record.status).unwrap_or_default();
    let mut attributes = vec![text("orchestrate.status", word.as_str().unwrap_or_default())];
    if let Some(code) = record.exit_code {
        let value = json!({ "intValue": code.to_string() });
        attributes.push(json!({ "key": "process.exit.code", "value": value }));
    }
    if let Some(error) = &record.error {
        attributes.push(text("error.message", short(&error.message)));
        if let Some(reason) = error.context.get("reason").and_then(Value::as_str) {
            attributes.push(text("error.type", reason));
        }
    }
    if let Some(spent) = &record.usage {
        let counts = [
            ("gen_ai.usage.input_tokens", spent.usage.input_tokens),
            ("gen_ai.usage.output_tokens", spent.usage.output_tokens),
            ("orchestrate.cached_tokens", spent.usage.cached_tokens),
            ("orchestrate.turns", spent.usage.turns),
        ];
        attributes.extend(counts.iter().filter_map(|(key, count)| Some(number(key, (*count)?))));
        if let Some(cost) = spent.usage.cost_usd {
            let value = json!({ "doubleValue": cost });
            attributes.push(json!({ "key": "orchestrate.cost_usd", "value": value }));
        }
        if !spent.usage.at_least.is_empty() {
            let names =
                spent.usage.at_least.iter().filter_map(|number| serde_json::to_value(number).ok());
            let values: Vec<_> = names.map(|name| json!({ "stringValue": name })).collect();
            let value = json!({ "arrayValue": { "values": values } });
            attributes.push(json!({ "key": "orchestrate.at_least", "value": value }));
        }
    }
    attributes
}

fn trace_id(run: &Ended) -> String {
    sha256(format!("trace/{}", run.id).as_bytes())[..32].to_owned()
}

fn root_id(run: &Ended) -> String {
    sha256(format!("span/{}", run.id).as_bytes())[..16].to_owned()
}

/// Formats a time. OTLP's JSON encodes 64-bit numbers as strings.
fn nanos(at: Time) -> String {
    format!("{}", i128::from(at.0.max(0)) * 1_000_000)
}

fn text(key: &str, value: &str) -> Value {
    json!({ "key": key, "value": { "stringValue": value } })
}

fn number(key: &str, value: u64) -> Value {
    json!({ "key": key, "value": { "intValue": value.to_string() } })
}

/// Returns the beginning of a message.
fn short(text: &str) -> &str {
    let end = (0..=MESSAGE_BYTES.min(text.len())).rev().find(|end| text.is_char_boundary(*end));
    &text[..end.unwrap_or(0)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_attempt_is_a_span() {
        let run = Ended {
            id: "20260101T000000Z-aaaaaa".into(),
            workflow: "w.yaml".into(),
            run_root: String::new(),
            status: "failed",
            error: Some("it broke".into()),
            fleet: true,
            providers: Default::default(),
        };
        let task = TaskRef { id: "T".into(), agent: "qa".into(), ticket: "t".into() };
        let launched =
            |step: &str, attempt, task| Event::Launched { step: step.into(), attempt, task };
        let well =
            Record { status: StepStatus::Completed, exit_code: Some(0), ..Record::default() };
        let refused = Record::refused(2, "no such file", Default::default());
        let events = [
            launched("A", Attempt::new(1), Some(task)),
            Event::Ended { step: "A".into(), attempt: Attempt::new(1), record: Box::new(well) },
            Event::Ended { step: "B".into(), attempt: Attempt::new(1), record: Box::new(refused) },
            launched("C", Attempt::new(1), None),
        ];
        let entry = |(index, event): (usize, Event)| Entry {
            seq: index as u64 + 1,
            at: Time(1_000 * (index as i64 + 1)),
            event,
        };
        let entries: Vec<Entry> = events.into_iter().enumerate().map(entry).collect();
        let spans = spans(&run, &entries);
        let told: Vec<_> = spans
            .iter()
            .map(|span| (span["name"].as_str().unwrap(), span["status"]["code"].as_u64()))
            .collect();
        assert_eq!(told, [("w.yaml", Some(2)), ("A", Some(1)), ("B", Some(2)), ("C", Some(2))]);
        assert_eq!(spans[1]["startTimeUnixNano"], "1000000000");
        assert_eq!(spans[1]["endTimeUnixNano"], "2000000000");
        assert!(spans[1]["attributes"].to_string().contains(r#"{"stringValue":"qa"}"#));
        assert!(spans.iter().all(|span| span["traceId"] == spans[0]["traceId"]));
    }
}
