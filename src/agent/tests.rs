//! Every transcript in `tests/transcripts` comes to what is written beside it, however its bytes
//! are cut; and nothing that a provider could print does harm.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::*;
use crate::base::random::Random;

/// A transcript, and how its command line ended.
struct Case {
    name: String,
    kind: Kind,
    stdout: Vec<u8>,
    about: Value,
    stderr_head: Vec<String>,
    stderr_tail: Vec<String>,
    stdout_tail: Vec<String>,
}

impl Case {
    fn end(&self) -> End<'_> {
        let about = &self.about;
        let whole = |key: &str| about.get(key).and_then(Value::as_i64).map(|code| code as i32);
        End {
            exit_code: whole("exit_code"),
            signal: whole("signal"),
            timed_out: about["timed_out"] == true || about["silent_for_s"].is_number(),
            silent_for: about["silent_for_s"].as_u64().map(Duration::from_secs),
            stderr_head: &self.stderr_head,
            stderr_tail: &self.stderr_tail,
            stdout_tail: &self.stdout_tail,
            now: Time::parse(about["now"].as_str().unwrap()).unwrap(),
            utc_offset_s: whole("utc_offset_s").unwrap_or(0),
            events: false,
        }
    }

    fn outcome(&self, piece: usize) -> Outcome {
        let mut stream = Stream::new(self.kind);
        for piece in self.stdout.chunks(piece) {
            stream.push(piece);
        }
        stream.finish(&self.end())
    }
}

fn cases() -> Vec<Case> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/transcripts");
    let mut found = Vec::new();
    for (name, kind) in Kind::ALL {
        let list = fs::read_dir(root.join(name)).unwrap().map(|entry| entry.unwrap().path());
        let mut list: Vec<PathBuf> =
            list.filter(|path| path.extension().is_some_and(|end| end == "json")).collect();
        list.sort();
        for path in list {
            let about: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
            let lines = |key: &str| -> Vec<String> {
                let lines = about[key].as_array().into_iter().flatten();
                lines.map(|line| line.as_str().unwrap().to_owned()).collect()
            };
            let (stderr_head, stderr_tail) = (lines("stderr_head"), lines("stderr_tail"));
            let stdout = fs::read(path.with_extension("jsonl")).unwrap();
            let lines: Vec<&[u8]> = stdout.split(|byte| *byte == b'\n').collect();
            let last = lines[lines.len().saturating_sub(10)..].iter();
            let stdout_tail = last.map(|line| String::from_utf8_lossy(line).into()).collect();
            let stem = path.file_stem().unwrap().to_string_lossy();
            let name = format!("{name}/{stem}");
            found.push(Case { name, kind, stdout, about, stderr_head, stderr_tail, stdout_tail });
        }
    }
    found
}

/// What is wrong with an outcome; absent keys of the expectation are free.
fn faults(outcome: &Outcome, expect: &Value) -> Vec<String> {
    let mut faults = Vec::new();
    let mut check = |what: &str, found: Value, wanted: &Value| {
        if found != *wanted {
            faults.push(format!("{what} is {found}, not {wanted}"));
        }
    };
    let verdict = outcome.verdict.to_json();
    check("verdict", verdict["kind"].clone(), &expect["verdict"]["kind"]);
    check("time", verdict["at"].clone(), &expect["verdict"]["at"]);
    check("text", json!(outcome.text), &expect["text"]);
    check("session", json!(outcome.session), &expect["session"]);
    let usage = |value: &Value| serde_json::from_value::<Usage>(value.clone()).unwrap();
    check("usage", json!(outcome.usage), &json!(usage(&expect["usage"])));
    check("session_lost", json!(outcome.session_lost), &json!(expect["session_lost"] == true));
    check("structured", json!(outcome.structured), &expect["structured"]);
    let denials = expect.get("denials").cloned().unwrap_or(json!([]));
    check("denials", json!(outcome.denials), &denials);
    if let Some(notes) = expect.get("notes").and_then(Value::as_array) {
        let told: Vec<Value> = outcome.notes.iter().map(|turn| json!(turn.to_string())).collect();
        let alike = |(told, wanted): (&Value, &Value)| wanted.is_null() || told == wanted;
        if told.len() != notes.len() || !told.iter().zip(notes).all(alike) {
            faults.push(format!("notes are {told:?}"));
        }
    }
    let reason = expect["verdict"]["reason"].as_str().unwrap_or_default();
    if !outcome.verdict.reason().contains(reason) {
        faults.push(format!("the reason is `{}`", outcome.verdict.reason()));
    }
    let silent = outcome.verdict.reason().is_empty() != (outcome.verdict == Verdict::Answered);
    if silent {
        faults.push("no reason is given".into());
    }
    faults
}

#[test]
fn transcripts_come_to_what_is_expected() {
    let cases = cases();
    assert!(cases.len() > 100, "{}", cases.len());
    let mut wrong = Vec::new();
    for case in &cases {
        for piece in [1 << 20, 7] {
            let found = faults(&case.outcome(piece), &case.about["expect"]);
            wrong.extend(found.iter().map(|fault| format!("{}: {fault}", case.name)));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn no_stream_that_is_cut_anywhere_is_taken_for_an_answer_but_the_whole_one() {
    for case in cases().iter().filter(|case| case.kind.is_stream()) {
        let whole = case.outcome(1 << 20);
        let last = case.stdout.iter().rposition(|byte| !byte.is_ascii_whitespace()).unwrap_or(0);
        // Where events follow the answer, cutting those off leaves it.
        let cuts = (0..last).step_by(37).filter(|_| whole.verdict == Verdict::Answered);
        for at in cuts {
            let mut stream = Stream::new(case.kind);
            stream.push(&case.stdout[..at]);
            let cut = stream.finish(&case.end());
            let same = cut.text == whole.text;
            assert!(cut.verdict != Verdict::Answered || same, "{} cut at {at}", case.name);
        }
    }
}

#[test]
fn whatever_is_printed_can_be_read() {
    let cases = cases();
    let mut random = Random::new(11);
    for _ in 0..300 {
        let case = &cases[random.below(cases.len())];
        let mut bytes = case.stdout.clone();
        for _ in 0..random.below(20) {
            let at = random.below(bytes.len() + 1);
            match random.below(3) {
                0 => bytes.truncate(at),
                1 => bytes.insert(at, random.below(256) as u8),
                _ => _ = bytes.get_mut(at).map(|byte| *byte ^= 1 << random.below(8)),
            }
        }
        let kind = Kind::ALL[random.below(5)].1;
        let mut stream = Stream::new(kind);
        stream.push(&bytes);
        stream.finish(&case.end());
    }
    for kind in Kind::ALL.map(|(_, kind)| kind) {
        let mut stream = Stream::new(kind);
        stream.push("[".repeat(1 << 16).as_bytes());
        stream.push(b"\n{\"type\":{}}\n{\"type\":\"result\",\"usage\":[]}\n");
        stream.finish(&End::default());
    }
}

#[test]
fn a_long_answer_is_cut_and_a_line_past_all_limits_is_passed_over() {
    let long = "ä".repeat(5 << 20);
    let event =
        json!({ "type": "item.completed", "item": { "type": "agent_message", "text": long } });
    let mut stream = Stream::new(Kind::Codex);
    stream
        .push(format!("{{\"type\":\"thread.started\",\"thread_id\":\"t\"}}\n{event}\n").as_bytes());
    let junk = vec![b'x'; 1 << 20];
    for _ in 0..70 {
        stream.push(&junk);
    }
    stream.push(b"\n{\"type\":\"turn.completed\",\"usage\":{}}\n");
    let end = End { exit_code: Some(0), ..End::default() };
    let outcome = stream.finish(&end);
    assert_eq!(outcome.verdict, Verdict::Answered);
    assert!(outcome.truncated && outcome.text.len() <= TEXT_BYTES);
    assert!(outcome.text.len() > TEXT_BYTES - 4);
}

#[test]
fn a_prompt_that_would_be_cut_is_refused() {
    let long = "ä".repeat(600_000).into_bytes();
    assert_eq!(Kind::Codex.refuses(&long), None, "it counts characters");
    let longer = vec![b'x'; (8 << 20) + 1];
    assert_eq!(Kind::Claude.refuses(&longer), None);
    let refusal = Kind::Gemini.refuses(&longer).unwrap();
    assert_eq!(refusal, "the prompt has 8388609 bytes, but gemini takes 8388608");
    assert!(Kind::Codex.refuses(&longer).is_some() && Kind::Plain.refuses(&longer).is_none());
}

#[test]
fn counters_of_a_session_are_told_for_the_run_alone() {
    let usage = |input, cost, counting| Usage {
        input_tokens: Some(input),
        cost_usd: Some(cost),
        counting,
        ..Usage::default()
    };
    let last = usage(1000, 0.5, Counting::Session);
    let run = usage(1500, 0.75, Counting::Session).since(&last);
    assert_eq!((run.input_tokens, run.cost_usd), (Some(500), Some(0.25)));
    let run = usage(1500, 0.75, Counting::CostOfSession).since(&last);
    assert_eq!((run.input_tokens, run.cost_usd), (Some(1500), Some(0.25)));
    let run = usage(1500, 0.75, Counting::ThisRun).since(&last);
    assert_eq!((run.input_tokens, run.cost_usd), (Some(1500), Some(0.75)));
    let anew = usage(10, 0.25, Counting::Session).since(&last);
    assert_eq!((anew.input_tokens, anew.cost_usd), (Some(10), Some(0.25)));
    let mut sum = Usage { input_tokens: Some(1), ..Usage::default() };
    sum.add(&last);
    assert_eq!((sum.input_tokens, sum.cost_usd, sum.turns), (Some(1001), Some(0.5), None));
}

/// What comes of events with a secret in them that goes over two lines, where the secret is hidden.
fn hidden(kind: Kind, events: &[Value]) -> String {
    let hide = |text: &str| text.replace("top\nsecret", "***").replace("top\\nsecret", "***");
    let mut stream = Stream::hiding(kind, Box::new(hide));
    let lines: String = events.iter().map(|event| format!("{event}\n")).collect();
    stream.push(lines.as_bytes());
    let outcome = stream.finish(&End { exit_code: Some(1), ..End::default() });
    let notes = outcome.notes.iter().map(ToString::to_string).collect::<Vec<_>>();
    format!("{} {:?} {:?}", outcome.verdict.reason(), notes, outcome.denials)
}

#[test]
fn a_secret_is_hidden_before_a_text_is_cut_folded_or_split() {
    const SECRET: &str = "top\nsecret";
    for before in [0, 155, 157, 495, 1995, 4091] {
        let long = format!("{}{SECRET}", "x".repeat(before));
        let tool = json!({ "command": long });
        let outcomes = [
            hidden(
                Kind::Claude,
                &[
                    json!({ "type": "assistant", "message": { "content": [
                        { "type": "text", "text": long },
                        { "type": "tool_use", "name": SECRET, "input": tool },
                        { "type": "tool_use", "name": "Odd", "input": { "odd": long } } ] } }),
                    json!({ "type": "user", "message": { "content": [
                        { "type": "tool_result", "is_error": true, "content": long } ] } }),
                    json!({ "type": "result", "is_error": true, "result": long,
                        "permission_denials": [{ "tool_name": "Bash", "tool_input": tool }] }),
                ],
            ),
            hidden(
                Kind::Codex,
                &[
                    json!({ "type": "item.started", "item": { "type": "command_execution",
                        "command": long } }),
                    json!({ "type": "item.completed", "item": { "type": "command_execution",
                        "exit_code": 1, "aggregated_output": long } }),
                    json!({ "type": "error", "message": format!("Reconnecting {long}") }),
                    json!({ "type": "turn.failed", "error": { "message": long } }),
                ],
            ),
            hidden(
                Kind::Gemini,
                &[
                    json!({ "type": "message", "role": "assistant",
                        "content": &long[..long.len() - 6] }),
                    json!({ "type": "message", "role": "assistant", "content": "secret" }),
                    json!({ "type": "tool_use", "tool_name": "run", "parameters": tool }),
                    json!({ "type": "tool_result", "status": "error", "output": long }),
                    json!({ "type": "result", "status": "error", "error": { "message": long } }),
                ],
            ),
            hidden(
                Kind::OpenCode,
                &[
                    json!({ "type": "tool_use", "part": { "tool": "bash", "state": {
                        "input": tool } } }),
                    json!({ "type": "error", "error": { "data": { "message": long } } }),
                ],
            ),
        ];
        for outcome in outcomes {
            assert!(!outcome.contains("top") && !outcome.contains("secret"), "{outcome}");
            assert!(before > 0 || outcome.contains("***"), "{outcome}");
        }
    }
}

#[test]
fn lines_that_are_no_events_are_told_as_they_are() {
    let mut stream = Stream::new(Kind::Claude);
    let turns = stream.push(b"Call Bob.\n{\"type\":\"system\"}\n\n{broken\n  \"a\": 1,\n");
    assert_eq!(turns, [Turn::Printed("Call Bob.".into())]);
    let tail = ["Call Bob.".to_owned(), "{\"type\":\"system\"}".to_owned()];
    let end = End { exit_code: Some(1), stdout_tail: &tail, ..End::default() };
    let outcome = stream.finish(&end);
    assert_eq!(outcome.printed, ["Call Bob."]);
    assert!(outcome.notes.is_empty(), "only who printed it whole knows what to hide in it");
}
