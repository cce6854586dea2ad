//! Doing the work: a child run to its end and its output read, or files waited for.

use std::ffi::OsString;
use std::time::{Duration, Instant};

use serde_json::{Map, Value, json};

use super::prepare::{Unusable, mask_json, mask_map, missing_secrets, usable_schema};
use super::site::Site;
use super::work::{Input, Waiting, Work};
use crate::disk;
use crate::engine::record::Metrics;
use crate::engine::{Fault, Record, StepStatus};
use crate::exec::{self, Capture, Captured, Ended, How, Mode, Order, Stop};
use crate::ids::{Attempt, StepPath};
use crate::workflow::plan::{CaptureMode, Require};
use crate::workspace::PathError;

/// What came of an execution.
pub struct Performed {
    pub record: Record,
    /// Processes that were left running, as plain commands may.
    pub left_running: usize,
}

/// Runs a child, its processes to be known by `mark`. Nothing comes back when it was stopped: the
/// attempt then stays open.
pub fn run(site: &Site, work: &Work, mark: &str, stop: &Stop) -> Option<Performed> {
    if let Err(missing) = missing_secrets(&work.secrets, &site.environment) {
        let context = mask_map(site, missing.context);
        let record = Record::refused(2, site.mask.text(&missing.message), context);
        return Some(Performed { record, left_running: 0 });
    }
    let env = environment(site, work);
    if site.debug {
        note_environment(site, work, &env);
    }
    let began = Instant::now();
    let (mut out, mut err) = match open_captures(site, work) {
        Ok(captures) => captures,
        Err(error) => {
            // A path that can never be written is not worth another try; a full disk may be.
            let code = if error.is_final() { 2 } else { 1 };
            return Some(refused(site, work, code, error.to_string()));
        }
    };
    let mut argv = std::borrow::Cow::Borrowed(&work.argv);
    // Whichever `orchestrate` is on the PATH, a step that calls it means this one.
    if argv.first().is_some_and(|program| program == "orchestrate") {
        argv.to_mut()[0] = site.program.to_string_lossy().into_owned();
    }
    let stdin = work.stdin.as_ref().map(Input::bytes);
    let hidden: Vec<&str> =
        OF_OUTER_RUN.into_iter().chain(site.hidden.iter().map(String::as_str)).collect();
    let order = Order {
        argv: &argv,
        cwd: site.cwd(),
        env: &env,
        env_remove: &hidden,
        stdin: stdin.as_deref(),
        timeout: work.timeout(),
        idle: work.idle_timeout(),
        grace: site.grace,
        mark,
        sweep: work.sweep(),
    };
    let ended = match exec::run(&order, &mut out, &mut err, stop) {
        Ok(ended) => ended,
        Err(error) => return Some(refused(site, work, error.exit_code(), error.to_string())),
    };
    if ended.how == How::Stopped {
        return None;
    }
    if ended.cut_off {
        tracing::warn!("a process that step `{}` left running held its output open", work.step);
    }
    let mut result = Outcome { site, work, ended: &ended, record: Record::default() };
    match (out.finish(), err.finish()) {
        (Ok(out), Ok(err)) => result.read(&out, &err),
        (Err(error), _) | (_, Err(error)) => result.fail(1, error.to_string(), Map::new()),
    }
    let mut record = result.record;
    record.duration_ms = Some(began.elapsed().as_millis() as u64);
    let left = if work.asks { 0 } else { ended.survivors };
    Some(Performed { record, left_running: left })
}

/// What is laid over the inherited environment: who is calling, then the step's own `env`.
/// Secrets are inherited already.
fn environment(site: &Site, work: &Work) -> Vec<(String, OsString)> {
    let mut env: Vec<(String, OsString)> = site.about.clone();
    env.push(("ORCHESTRATE_STEP".into(), work.step.to_string().into()));
    env.push(("ORCHESTRATE_ATTEMPT".into(), work.attempt.to_string().into()));
    env.extend(work.item.iter().map(|item| ("ORCHESTRATE_ITEM".into(), item.into())));
    env.extend(work.agent.iter().map(|agent| ("ORCHESTRATE_AGENT".into(), agent.into())));
    env.extend(work.env.iter().map(|(key, value)| (key.clone(), value.into())));
    env
}

/// What an outer run may have said of its own step, and this one may not say of its.
const OF_OUTER_RUN: [&str; 2] = ["ORCHESTRATE_ITEM", "ORCHESTRATE_AGENT"];

fn open_captures(site: &Site, work: &Work) -> Result<(Capture, Capture), PathError> {
    let mode = match work.capture {
        CaptureMode::Text => Mode::Text,
        CaptureMode::Lines => Mode::Lines,
        CaptureMode::Json => Mode::Json,
        CaptureMode::Whole => Mode::Text,
    };
    let mut out =
        Capture::new(mode, site.mask.clone()).log(site.log(&work.step, "stdout")).live(site.live);
    if let Some(path) = &work.output_file {
        out = out.tee(site.workspace.create(path)?, path);
    }
    let err = Capture::new(Mode::Tail, site.mask.clone()).log(site.log(&work.step, "stderr"));
    Ok((out, err))
}

/// Log files are named by step; those of an earlier attempt are kept under its number.
pub fn keep_earlier_logs(site: &Site, step: &StepPath, attempt: Attempt) {
    if attempt > 1 {
        keep_logs(site, step, &(attempt - 1).to_string());
    }
}

/// The same for a task that was begun and not ended by somebody before: its number is added.
pub fn keep_begun_logs(site: &Site, work: &Work, task_attempt: Attempt) {
    if task_attempt > 1 {
        keep_logs(site, &work.step, &format!("{}-{}", work.attempt, task_attempt - 1));
    }
}

fn keep_logs(site: &Site, step: &StepPath, number: &str) {
    for ending in ["stdout", "stderr"] {
        let path = site.log(step, ending);
        let kept = site.log(step, &format!("{number}.{ending}"));
        // There is often none, and a log that cannot be kept is no reason to fail a step.
        let _ = disk::rename(&path, &kept);
    }
}

/// What a child finds in its environment: names only, but for the step's own.
fn note_environment(site: &Site, work: &Work, env: &[(String, OsString)]) {
    let inherited = site.environment.keys().map(|name| format!("environment: {name}"));
    let own =
        env.iter().map(|(name, value)| format!("environment: {name}={}", value.to_string_lossy()));
    site.keep_notes(&work.step, &inherited.chain(own).collect::<Vec<_>>());
}

/// A step that could not be started.
fn refused(site: &Site, work: &Work, code: i32, message: String) -> Performed {
    let mut context = Map::new();
    context.insert("substituted_command".into(), command(site, work));
    let mut record = Record::refused(code, site.mask.text(&message), context);
    record.debug = work.debug.clone();
    Performed { record, left_running: 0 }
}

/// The argv for people to see: masked, and an argument of kilobytes cut short.
fn command(site: &Site, work: &Work) -> Value {
    const SHOWN: usize = 2048;
    let show = |arg: &String| {
        let text = site.mask.text(arg);
        match text.char_indices().nth(SHOWN) {
            Some((cut, _)) => format!("{}… ({} bytes)", &text[..cut], text.len()),
            None => text,
        }
    };
    work.argv.iter().map(show).collect::<Vec<_>>().into()
}

/// A result in the making.
struct Outcome<'a> {
    site: &'a Site,
    work: &'a Work,
    ended: &'a Ended,
    record: Record,
}

impl Outcome<'_> {
    fn read(&mut self, out: &Captured, err: &Captured) {
        let code = self.ended.how.exit_code();
        self.record.exit_code = Some(code);
        self.record.debug = self.work.debug.clone();
        self.record.truncated = Some(out.truncated);
        self.record.metrics = Some(Metrics {
            exec_ms: self.ended.took.as_millis() as u64,
            stdout_bytes: out.total_bytes,
            stderr_bytes: err.total_bytes,
        });
        let parsed = self.keep_output(out);
        self.record.status = StepStatus::Completed;
        if code != 0 {
            self.fail(code, self.failure_message(), self.failure_context());
        } else if let Err(fault) = parsed {
            self.fail(2, fault.message, fault.context);
        }
        if let Some(error) = &mut self.record.error {
            error.stdout_tail = out.tail.clone();
            error.stderr_tail = err.tail.clone();
        }
    }

    fn failure_message(&self) -> String {
        match self.ended.how {
            How::TimedOut => {
                let limit = self.work.timeout().unwrap_or_default().as_secs_f64();
                format!("Command timed out after {limit} s")
            }
            How::Silent => {
                let limit = self.work.idle_timeout().unwrap_or_default().as_secs_f64();
                format!("Command printed nothing for {limit} s")
            }
            How::Killed(signal) => format!("Command was killed by signal {signal}"),
            How::Exited(code) => format!("Command failed with exit code {code}"),
            How::Stopped => "Command was stopped".into(),
        }
    }

    fn failure_context(&self) -> Map<String, Value> {
        let mut context = Map::new();
        let (name, limit) = match self.ended.how {
            How::TimedOut => ("timeout_sec", self.work.timeout()),
            How::Silent => ("idle_timeout_sec", self.work.idle_timeout()),
            _ => return context,
        };
        context.insert(name.into(), json!(limit.unwrap_or_default().as_secs_f64()));
        context
    }

    fn fail(&mut self, code: i32, message: String, mut context: Map<String, Value>) {
        self.record.status = StepStatus::Failed;
        self.record.exit_code = Some(code);
        context.insert("substituted_command".into(), command(self.site, self.work));
        let message = self.site.mask.text(&message);
        let context = mask_map(self.site, context);
        self.record.error = Some(Fault { message, exit_code: code, context, ..Fault::default() });
    }

    /// Puts the output into the record by its mode; the error is why it cannot be used.
    fn keep_output(&mut self, out: &Captured) -> Result<(), Unusable> {
        match self.work.capture {
            CaptureMode::Text | CaptureMode::Whole => {
                self.record.output = Some(out.text());
                Ok(())
            }
            CaptureMode::Lines => {
                self.record.output_capture = Some(CaptureMode::Lines);
                self.record.lines = Some(out.lines.clone());
                Ok(())
            }
            CaptureMode::Json => self.keep_json(out),
        }
    }

    fn keep_json(&mut self, out: &Captured) -> Result<(), Unusable> {
        self.record.output_capture = Some(CaptureMode::Json);
        let parsed = if out.truncated {
            Err(("overflow", "output is larger than 1 MiB".to_owned()))
        } else {
            out.json().map_err(|error| ("invalid", error.to_string()))
        };
        match parsed {
            Ok(value) => {
                self.record.truncated = Some(false);
                let checked = check_json(self.site, self.work, &value);
                self.record.json = Some(mask_json(self.site, value));
                checked
            }
            Err((reason, message)) => {
                self.keep_unparsed(out, reason);
                if self.work.allow_parse_error {
                    return Ok(());
                }
                let context = [("json_parse_error".to_owned(), json!({ "reason": reason }))];
                Err(Unusable {
                    message: format!("JSON parse failed: {message}"),
                    context: context.into_iter().collect(),
                })
            }
        }
    }

    /// Keeps what could not be parsed: its head in the record, all of it in the log.
    fn keep_unparsed(&mut self, out: &Captured, reason: &str) {
        let diagnosis = json!({ "reason": reason });
        self.record.debug.insert("json_parse_error".into(), diagnosis);
        if self.work.allow_parse_error {
            let mut head = out.head.clone();
            self.record.truncated = Some(exec::capture::cut(&mut head, exec::capture::TEXT_BYTES));
            self.record.output = Some(String::from_utf8_lossy(&head).into_owned());
        }
        let path = self.site.log(&self.work.step, "stdout");
        if let Err(error) = out.write_log(&path) {
            tracing::warn!("cannot write `{}`: {error}", path.display());
        }
    }
}

fn check_json(site: &Site, work: &Work, value: &Value) -> Result<(), Unusable> {
    if let Some(path) = &work.schema {
        check_schema(site, path, value)?;
    }
    for require in &work.require {
        if let Some(reason) = unmet(require, value) {
            let message = format!("JSON output does not meet `{}`: {reason}", require.pointer);
            let detail = json!({ "pointer": require.pointer, "reason": reason });
            let context = [("json_require_failed".to_owned(), detail)].into_iter().collect();
            return Err(Unusable { message, context });
        }
    }
    Ok(())
}

fn check_schema(site: &Site, path: &str, value: &Value) -> Result<(), Unusable> {
    let validator = usable_schema(site, path)?;
    let errors: Vec<_> = validator
        .iter_errors(value)
        .take(20)
        .map(|error| match error.instance_path().to_string() {
            place if place.is_empty() => error.to_string(),
            place => format!("{place}: {error}"),
        })
        .collect();
    if errors.is_empty() {
        return Ok(());
    }
    Err(Unusable {
        message: format!("JSON output does not match the schema `{path}`: {}", errors[0]),
        context: [("json_schema_errors".to_owned(), json!(errors))].into_iter().collect(),
    })
}

/// Why a value does not meet a requirement, or nothing when it does.
fn unmet(require: &Require, value: &Value) -> Option<String> {
    let found = value.pointer(&require.pointer);
    let found = match (found, require.exists) {
        (None, false) => return None,
        (Some(_), false) => return Some("it is there but must not be".into()),
        (None, true) => return Some("it is missing".into()),
        (Some(found), true) => found,
    };
    if let Some(wanted) = &require.equals
        && !same(found, wanted)
    {
        return Some(format!("it is {found}, not {wanted}"));
    }
    let kind = match found {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    };
    match &require.kind {
        Some(wanted) if wanted != kind => Some(format!("it is of type {kind}, not {wanted}")),
        _ => None,
    }
}

/// Equal as JSON: numbers by value, so that 1 is 1.0.
fn same(a: &Value, b: &Value) -> bool {
    match (a.as_f64(), b.as_f64()) {
        (Some(a_number), Some(b_number)) => a == b || a_number == b_number,
        _ => a == b,
    }
}

/// Waits for files. Nothing comes back when it was stopped.
pub fn wait(site: &Site, waiting: &Waiting, stop: &Stop) -> Option<Performed> {
    let began = Instant::now();
    let mut polls = 0u64;
    loop {
        let found = site.workspace.glob(&waiting.glob);
        polls += 1;
        let waited = began.elapsed();
        let files = match found {
            Ok(files) => files,
            Err(error) => {
                let message = site.mask.text(&error.to_string());
                let record = Record::refused(2, message, Map::new());
                return Some(Performed { record, left_running: 0 });
            }
        };
        let met = files.len() >= waiting.min_count;
        if met || waited >= waiting.timeout {
            let mut performed = waited_for(waiting, files, waited, polls, met);
            mask_record(site, &mut performed.record);
            return Some(performed);
        }
        let nap = waiting.poll.min(waiting.timeout - waited);
        if !stop.sleep(nap) {
            return None;
        }
    }
}

/// Masks what a record says of paths and patterns.
fn mask_record(site: &Site, record: &mut Record) {
    for file in record.files.iter_mut().flatten() {
        *file = site.mask.text(file);
    }
    if let Some(error) = &mut record.error {
        error.message = site.mask.text(&error.message);
    }
}

fn waited_for(
    waiting: &Waiting,
    files: Vec<String>,
    waited: Duration,
    polls: u64,
    met: bool,
) -> Performed {
    let mut record = Record {
        status: if met { StepStatus::Completed } else { StepStatus::Failed },
        exit_code: Some(if met { 0 } else { 124 }),
        wait_duration_ms: Some(waited.as_millis() as u64),
        duration_ms: Some(waited.as_millis() as u64),
        poll_count: Some(polls),
        timed_out: Some(!met),
        ..Record::default()
    };
    if !met {
        let limit = waiting.timeout.as_secs_f64();
        let message = format!(
            "waited {limit} s for {} of `{}`, but found {}",
            waiting.min_count,
            waiting.glob,
            files.len()
        );
        let context = [("timeout_sec".to_owned(), json!(limit))].into_iter().collect();
        record.error = Some(Fault { message, exit_code: 124, context, ..Fault::default() });
    }
    record.files = Some(files);
    Performed { record, left_running: 0 }
}
