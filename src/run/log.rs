//! Destinations of log lines: a run's `logs/orchestrator.log`, and stderr for immediate display.

use std::collections::BTreeMap;
use std::fmt::{self, Write as _};
use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard};

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::{Context, SubscriberExt};
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt;

use crate::base::text::single_line;
use crate::base::time::{Clock, SystemClock};
use crate::exec::Mask;

/// The open log of the run that this process drives.
static RUN_LOG: Mutex<Option<RunLog>> = Mutex::new(None);

/// The logs of the runs that a coordinator drives, by run ID.
static LOGS: Mutex<BTreeMap<String, RunLog>> = Mutex::new(BTreeMap::new());

/// True if no line is printed, because a full-screen view is active.
static HUSHED: AtomicBool = AtomicBool::new(false);

struct RunLog {
    /// A coordinator may drive more runs than it can have open files.
    place: Place,
    /// Added to every line, if traces are enabled.
    trace: Option<String>,
    mask: Mask,
}

enum Place {
    Open(File),
    At(PathBuf),
}

impl RunLog {
    fn keep(&mut self, level: Level, text: &str) {
        let trace = self.trace.as_ref().map(|t| format!(" trace_id={t}")).unwrap_or_default();
        let text = self.mask.text(text);
        let now = SystemClock.now().to_milli();
        let line = format!("{now} {level:<5}{trace} {text}\n");
        // A log line that cannot be written must not stop a run.
        let _ = match &mut self.place {
            Place::Open(file) => file.write_all(line.as_bytes()),
            Place::At(path) => File::options()
                .create(true)
                .append(true)
                .open(path)
                .and_then(|mut file| file.write_all(line.as_bytes())),
        };
    }
}

/// Returns the path of a run's log.
pub(crate) fn path(root: &Path) -> PathBuf {
    root.join("logs").join("orchestrator.log")
}

fn locked<T>(mutex: &'static Mutex<T>) -> MutexGuard<'static, T> {
    mutex.lock().unwrap_or_else(|poison| poison.into_inner())
}

/// Starts to write the lines about one of many runs to its own log.
pub(crate) fn keep_of(id: &str, root: &Path, mask: Mask) {
    let log = RunLog { place: Place::At(path(root)), trace: None, mask };
    locked(&LOGS).insert(id.to_owned(), log);
}

/// Stops to write the lines about this run to its log.
pub(crate) fn keep_of_no_more(id: &str) {
    locked(&LOGS).remove(id);
}

struct Lines {
    shown: Level,
    kept: Level,
    print: fn(&str),
}

/// Sets the levels for this process, and the function that prints a line; only the first call
/// counts.
pub(crate) fn set_up(shown: Level, kept: Level, print: fn(&str)) {
    let _ = tracing_subscriber::registry().with(Lines { shown, kept, print }).try_init();
}

/// Suppresses printing while a full-screen view is active. Lines are still written to logs.
pub(crate) fn hush(on: bool) {
    HUSHED.store(on, Ordering::SeqCst);
}

/// Starts to write lines to a run's log.
pub(crate) fn keep_in(root: &Path, trace: Option<String>, mask: Mask) -> std::io::Result<()> {
    let file = File::options().create(true).append(true).open(path(root))?;
    *locked(&RUN_LOG) = Some(RunLog { place: Place::Open(file), trace, mask });
    Ok(())
}

/// Stops to write to the run's log: another process owns the run now.
pub(crate) fn keep_no_more() {
    *locked(&RUN_LOG) = None;
}

/// The run that a span is about.
struct OfRun(String);

impl Visit for OfRun {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        if field.name() == "id" {
            self.0 = format!("{value:?}");
        }
    }
}

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for Lines {
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        let meta = attributes.metadata();
        if meta.name() == "run"
            && meta.target().starts_with("orchestrate")
            && let Some(span) = context.span(id)
        {
            let mut run = OfRun(String::new());
            attributes.record(&mut run);
            span.extensions_mut().insert(run);
        }
    }

    fn on_event(&self, event: &Event<'_>, context: Context<'_, S>) {
        let level = *event.metadata().level();
        // Users do not see the log lines of libraries.
        if !event.metadata().target().starts_with("orchestrate")
            || level > self.kept.max(self.shown)
        {
            return;
        }
        let mut line = Text::default();
        event.record(&mut line);
        // Untrusted text must not start a new line.
        if line.0.contains('\n') {
            line.0 = single_line(&line.0);
        }
        let spans = context.event_scope(event).into_iter().flatten();
        let mut runs = spans.filter_map(|span| Some(span.extensions().get::<OfRun>()?.0.clone()));
        let run = runs.next().filter(|run| locked(&LOGS).contains_key(run));
        if level <= self.kept {
            let mut logs = locked(&LOGS);
            match run.as_ref().and_then(|run| logs.get_mut(run)) {
                Some(log) => log.keep(level, &line.0),
                None => keep(level, &line.0),
            }
        }
        if level <= self.shown && !HUSHED.load(Ordering::SeqCst) {
            let label = match level {
                Level::ERROR => "error: ",
                Level::WARN => "warning: ",
                _ => "",
            };
            // A process that drives many runs names the run.
            let run = run.filter(|run| !line.0.contains(run.as_str()));
            let run = run.map(|run| format!("run {run}: ")).unwrap_or_default();
            (self.print)(&format!("{label}{run}{}", line.0));
        }
    }
}

/// Writes a line to the run's log without printing it.
pub(crate) fn keep(level: Level, text: &str) {
    if let Some(log) = locked(&RUN_LOG).as_mut() {
        log.keep(level, text);
    }
}

#[derive(Default)]
struct Text(String);

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let _ = match field.name() {
            "message" => write!(self.0, "{value:?}"),
            name => write!(self.0, " {name}={value:?}"),
        };
    }
}
