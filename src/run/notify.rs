//! Notifications about runs that wait for a user or have ended, as the settings request.
//!
//! A notification goes to a command, as JSON on its stdin and in its environment, and to a webhook,
//! through `curl`. A separate thread sends it: the run never waits for it, and a failure is only
//! logged. It is a convenience; `pending` and `status` always list the runs that wait or have
//! ended.
//!
//! **Invariant:** an event is recorded before its notification is sent. A crash in between loses
//! the notification, never the event.

use std::ffi::OsString;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use serde::Serialize;

use super::drive::Report;
use super::traces::{Ended, Traces};
use super::webhook;
use crate::attempt::gates;
use crate::base::ids::{StepPath, shown};
use crate::base::program_name::ORCHESTRATE;
use crate::base::time::Time;
use crate::engine::run::Address;
use crate::engine::{Choice, Event, Run, RunStatus};
use crate::exec::Stop;
use crate::settings::NotifySettings;
use crate::workflow::Plan;
use crate::workflow::settings::Occasion;

/// The content of a notification.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Notice {
    pub schema: &'static str,
    pub event: Occasion,
    pub run_id: String,
    pub workflow: String,
    pub workspace: String,
    pub run_root: String,
    /// The step that waits or failed, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub step: Option<String>,
    /// The question, or the error.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// Beginning of the agent's last answer, which the user is asked about.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub said: Option<String>,
    pub failed_steps: Vec<String>,
    /// The command to type.
    pub cure: String,
}

/// Classifies an event; `None` if it needs no notification. `before` is the run's status before it.
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

/// Maximum number of characters of an agent's answer in a notification.
const SAID: usize = 2000;

/// Returns the beginning of the agent's answer that a gate asks about.
fn said(plan: &Plan, run: &Run, event: &Event) -> Option<String> {
    let Event::Gated { step, .. } = event else { return None };
    let said = gates::said_before(plan, run, &Address::find(plan, step)?)?.output.as_deref()?;
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
            let node = StepPath::top(step.top_name()).to_string();
            (Some(node), Some(gate.message.clone()))
        }
        _ => {
            let failed = run.failed_steps.first().filter(|_| occasion.is_bad());
            let failed = failed.map(ToString::to_string);
            let record = match event {
                Event::Ended { record, .. } if record.error.is_some() => Some(&**record),
                // A run may end long after the failure that causes it.
                _ => run
                    .failed_steps
                    .first()
                    .and_then(|path| run.slot(&Address::find(plan, path)?)?.record.as_deref()),
            };
            let why = record.and_then(|record| Some(record.error.as_ref()?.message.clone()));
            (failed, run.error.clone().or(why.filter(|_| occasion.is_bad())))
        }
    };
    let cure = match (occasion, &step) {
        (Occasion::Paused, Some(step)) => {
            // The answer applies only to the content of this notification, not to a later question.
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

/// Sends notifications according to the settings.
pub(crate) struct Notifier {
    settings: NotifySettings,
    workspace: PathBuf,
    traces: Traces,
    /// Threads that are sending notifications.
    sending: Mutex<Vec<JoinHandle<()>>>,
}

impl Notifier {
    pub(crate) fn new(settings: NotifySettings, workspace: PathBuf, traces: Traces) -> Notifier {
        Notifier { settings, workspace, traces, sending: Mutex::default() }
    }

    /// Starts to send a notification if the event needs one.
    pub(crate) fn hear(&self, before: RunStatus, plan: &Plan, run: &Run, event: &Event) {
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

    /// Runs work on a thread that only [`Self::finish`] waits for.
    fn begin(&self, work: impl FnOnce() + Send + 'static) {
        let sending = std::thread::spawn(work);
        let mut all = self.sending.lock().unwrap_or_else(|poison| poison.into_inner());
        all.retain(|thread| !thread.is_finished());
        all.push(sending);
    }

    /// Waits for all notifications in progress; each has a timeout.
    pub(crate) fn finish(&self) {
        let all = std::mem::take(&mut *self.sending.lock().unwrap_or_else(|p| p.into_inner()));
        for thread in all {
            let _ = thread.join();
        }
    }
}

/// Sends a notification to every configured recipient.
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
        // A variable cannot contain a zero byte.
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

/// Returns the beginning of a text, so that it fits into an environment.
fn first_bytes(text: &str, limit: usize) -> String {
    let end = (0..=limit.min(text.len())).rev().find(|end| text.is_char_boundary(*end));
    text[..end.unwrap_or(0)].to_owned()
}

/// A report that also sends notifications.
pub(crate) struct Notifying<R> {
    report: R,
    notifier: Arc<Notifier>,
    before: RunStatus,
}

impl<R> Notifying<R> {
    pub(crate) fn new(report: R, notifier: &Arc<Notifier>) -> Self {
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
