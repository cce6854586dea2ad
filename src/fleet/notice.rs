//! Notices: a run that waits for a person, or is over, is told to whom the settings name.
//!
//! A notice goes to a command, as JSON on its standard input and in its environment, and to a
//! webhook, through `curl`. It is sent beside the run by a thread of its own: nothing a run does
//! waits for it, and one that cannot be sent is a line in the log. It is a convenience; what
//! waits and what is over is found by `pending` and `status`.
//!
//! **Invariant:** what happened is on record before anybody is told. A crash in between loses the
//! notice, never the fact.

use std::ffi::OsString;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use serde::Serialize;

use super::called::ORCHESTRATE;
use super::config::NotifySettings;
use super::drive::Report;
use super::traces::{Ended, Traces};
use super::{gates, webhook};
use crate::engine::run::Address;
use crate::engine::{Choice, Event, Run, RunStatus};
use crate::exec::Stop;
use crate::ids::{StepPath, shown};
use crate::time::Time;
use crate::workflow::Plan;
use crate::workflow::settings::Occasion;

/// What is told.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Notice {
    pub schema: &'static str,
    pub event: Occasion,
    pub run_id: String,
    pub workflow: String,
    pub workspace: String,
    pub run_root: String,
    /// The step that waits or failed, if it is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub step: Option<String>,
    /// What is asked, or what went wrong.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// What an agent said last, which the person is asked about; the beginning of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub said: Option<String>,
    pub failed_steps: Vec<String>,
    /// What to type.
    pub cure: String,
}

/// What an event is to the outside, if it is anything: `before` is how the run stood.
fn occasion(before: RunStatus, run: &Run, event: &Event) -> Option<Occasion> {
    if matches!(event, Event::Gated { .. }) {
        return Some(Occasion::Paused);
    }
    let occasion = match run.status {
        RunStatus::Completed => Occasion::Completed,
        RunStatus::Failed => Occasion::Failed,
        RunStatus::Blocked => Occasion::Blocked,
        RunStatus::Cancelled => Occasion::Cancelled,
        RunStatus::Running | RunStatus::Paused => return None,
    };
    (before == RunStatus::Running).then_some(occasion)
}

/// How many characters of what an agent said are told.
const SAID: usize = 2000;

/// What an agent said last that a gate is about.
fn said(plan: &Plan, run: &Run, event: &Event) -> Option<String> {
    let Event::Gated { step, .. } = event else { return None };
    let said = gates::said_before(plan, run, &Address::parse(plan, step)?)?.output.as_deref()?;
    let mut head: String = said.chars().take(SAID).collect();
    if head.len() < said.len() {
        head.push('…');
    }
    Some(head)
}

fn notice(occasion: Occasion, plan: &Plan, run: &Run, event: &Event, workspace: &str) -> Notice {
    let id = &run.id;
    let (step, message) = match event {
        Event::Gated { step, gate, .. } => {
            (Some(step.split('.').next().unwrap_or(step).to_owned()), Some(gate.message.clone()))
        }
        _ => {
            let failed = run.failed_steps.first().filter(|_| occasion.is_bad());
            let failed = failed.map(ToString::to_string);
            let record = match event {
                Event::Ended { record, .. } if record.error.is_some() => Some(&**record),
                // The end of a run may come long after what it fails by.
                _ => run
                    .failed_steps
                    .first()
                    .and_then(|path| run.slot(&Address::of(plan, path)?)?.record.as_deref()),
            };
            let why = record.and_then(|record| Some(record.error.as_ref()?.message.clone()));
            (failed, run.error.clone().or(why.filter(|_| occasion.is_bad())))
        }
    };
    let cure = match (occasion, &step) {
        (Occasion::Paused, Some(step)) => {
            // An answer is for what was told here, and for nothing that is asked later.
            let digest = match event {
                Event::Gated { gate, .. } => format!(" --shown {}", gates::short(&gate.shown)),
                _ => String::new(),
            };
            format!("{ORCHESTRATE} approve {id} --step {}{digest}", shown(step))
        }
        (Occasion::Failed, Some(step)) if run.is_through(plan) => {
            let step = step.split('.').next().unwrap_or(step);
            format!("{ORCHESTRATE} retry {id} --from {}", shown(step))
        }
        (Occasion::Failed | Occasion::Blocked, _) => format!("{ORCHESTRATE} resume {id}"),
        (Occasion::Cancelled, _) => format!("{ORCHESTRATE} retry {id}"),
        _ => format!("{ORCHESTRATE} status {id}"),
    };
    Notice {
        schema: "notice/v1",
        event: occasion,
        run_id: id.to_string(),
        workflow: run.origin.workflow_file.clone(),
        workspace: workspace.to_owned(),
        run_root: run.origin.run_root.clone(),
        step,
        message,
        said: said(plan, run, event),
        failed_steps: run.failed_steps.iter().map(ToString::to_string).collect(),
        cure,
    }
}

/// Sends notices, as the settings say.
pub struct Notifier {
    settings: NotifySettings,
    workspace: PathBuf,
    traces: Traces,
    /// Notices that are being sent.
    sending: Mutex<Vec<JoinHandle<()>>>,
}

impl Notifier {
    pub fn new(settings: NotifySettings, workspace: PathBuf, traces: Traces) -> Notifier {
        Notifier { settings, workspace, traces, sending: Mutex::default() }
    }

    /// Looks whether an event is worth a notice, and begins to send it.
    pub fn hear(&self, before: RunStatus, plan: &Plan, run: &Run, event: &Event) {
        if self.settings.is_silent() && !self.traces.are_wanted() {
            return;
        }
        let Some(occasion) = occasion(before, run, event) else { return };
        if self.traces.are_wanted() && occasion != Occasion::Paused {
            let (traces, workspace) = (self.traces.clone(), self.workspace.clone());
            let ended = Ended::of(plan, run, occasion.word());
            self.begin(move || traces.tell(&ended, &workspace));
        }
        if self.settings.is_silent() || !self.settings.on.contains(&occasion) {
            return;
        }
        let notice = notice(occasion, plan, run, event, &self.workspace.to_string_lossy());
        let (settings, workspace) = (self.settings.clone(), self.workspace.clone());
        self.begin(move || {
            for (what, sent) in send(&settings, &workspace, &notice) {
                if let Err(error) = sent {
                    let (id, event) = (&notice.run_id, notice.event.word());
                    tracing::warn!("{what} could not be told that run {id} is {event}: {error}");
                }
            }
        });
    }

    /// Does something that nobody waits for, until the end.
    fn begin(&self, work: impl FnOnce() + Send + 'static) {
        let sending = std::thread::spawn(work);
        let mut all = self.sending.lock().unwrap_or_else(|poison| poison.into_inner());
        all.retain(|thread| !thread.is_finished());
        all.push(sending);
    }

    /// Waits for what is being sent; its time is limited.
    pub fn finish(&self) {
        let all = std::mem::take(&mut *self.sending.lock().unwrap_or_else(|p| p.into_inner()));
        for thread in all {
            let _ = thread.join();
        }
    }
}

/// Sends a notice to everybody who is to have it.
fn send(
    settings: &NotifySettings,
    workspace: &std::path::Path,
    notice: &Notice,
) -> Vec<(&'static str, io::Result<()>)> {
    let body = serde_json::to_string(notice).unwrap_or_default();
    let mut sent = Vec::new();
    let time = settings.timeout;
    if let Some(argv) = &settings.command {
        let said = webhook::call(argv, &format!("{body}\n"), &environment(notice), time, workspace);
        sent.push(("the command", said));
    }
    if let Some(url) = &settings.webhook {
        sent.push(("the webhook", webhook::post(url, &[], &body, time, workspace)));
    }
    sent
}

fn environment(notice: &Notice) -> Vec<(String, OsString)> {
    let empty = String::new();
    let value = |key: &str, value: &str| {
        // No variable can hold a zero byte.
        (format!("ORCHESTRATE_NOTICE_{key}"), OsString::from(value.replace('\0', "\u{fffd}")))
    };
    vec![
        value("EVENT", notice.event.word()),
        value("RUN_ID", &notice.run_id),
        value("WORKFLOW", &notice.workflow),
        value("RUN_ROOT", &notice.run_root),
        value("STEP", notice.step.as_ref().unwrap_or(&empty)),
        value("MESSAGE", &first_bytes(notice.message.as_ref().unwrap_or(&empty), 16 << 10)),
        value("CURE", &notice.cure),
    ]
}

/// The beginning of a text: a variable must fit where a whole environment does.
fn first_bytes(text: &str, limit: usize) -> String {
    let end = (0..=limit.min(text.len())).rev().find(|end| text.is_char_boundary(*end));
    text[..end.unwrap_or(0)].to_owned()
}

/// A report that also sends notices.
pub struct Notifying<R> {
    report: R,
    notifier: Arc<Notifier>,
    before: RunStatus,
}

impl<R> Notifying<R> {
    pub fn new(report: R, notifier: &Arc<Notifier>) -> Self {
        Notifying { report, notifier: notifier.clone(), before: RunStatus::Running }
    }
}

impl<R: Report> Report for Notifying<R> {
    fn happened(&mut self, plan: &Plan, run: &Run, event: &Event) {
        self.report.happened(plan, run, event);
        self.notifier.hear(std::mem::replace(&mut self.before, run.status), plan, run, event);
    }

    fn tick(&mut self, plan: &Plan, run: &Run, now: Time) -> Option<Time> {
        self.report.tick(plan, run, now)
    }

    fn ask(&mut self, run: &Run, step: &StepPath, stop: &Stop) -> Option<Choice> {
        self.report.ask(run, step, stop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_message_is_cut_between_characters() {
        assert_eq!(first_bytes("aäb", 2), "a");
        assert_eq!(first_bytes("aäb", 9), "aäb");
    }
}
