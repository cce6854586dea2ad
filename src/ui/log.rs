//! Where log lines go: a run's `logs/orchestrator.log`, and standard error for those who should
//! see them at once.

use std::fmt::{self, Write as _};
use std::fs::File;
use std::io::Write as _;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::{Context, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;

use crate::exec::Mask;
use crate::time::{Clock, SystemClock};
use crate::ui::talk::{folded, talk};

/// The open log of the run that this process drives.
static RUN_LOG: Mutex<Option<RunLog>> = Mutex::new(None);

/// Nothing is shown, because something else has the screen.
static HUSHED: AtomicBool = AtomicBool::new(false);

struct RunLog {
    file: File,
    /// Put on every line, where traces are asked for.
    trace: Option<String>,
    mask: Mask,
}

struct Lines {
    shown: Level,
    kept: Level,
}

/// Sets the levels for this process; the first call counts.
pub fn set_up(shown: Level, kept: Level) {
    let _ = tracing_subscriber::registry().with(Lines { shown, kept }).try_init();
}

/// Lets nothing be shown as long as something else has the screen. Lines are kept as ever.
pub fn hush(on: bool) {
    HUSHED.store(on, Ordering::SeqCst);
}

/// Begins to keep lines in a run's log.
pub fn keep_in(root: &Path, trace: Option<String>, mask: Mask) -> std::io::Result<()> {
    let path = root.join("logs").join("orchestrator.log");
    let file = File::options().create(true).append(true).open(path)?;
    *RUN_LOG.lock().unwrap_or_else(|poison| poison.into_inner()) =
        Some(RunLog { file, trace, mask });
    Ok(())
}

/// Ends to keep lines: the run is somebody else's now.
pub fn keep_no_more() {
    *RUN_LOG.lock().unwrap_or_else(|poison| poison.into_inner()) = None;
}

impl<S: Subscriber> Layer<S> for Lines {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let level = *event.metadata().level();
        // Libraries have things to say too, but not to our users.
        if !event.metadata().target().starts_with("orchestrate")
            || level > self.kept.max(self.shown)
        {
            return;
        }
        let mut line = Text::default();
        event.record(&mut line);
        // What somebody else wrote begins no line of ours.
        if line.0.contains('\n') {
            line.0 = folded(&line.0);
        }
        if level <= self.kept {
            keep(level, &line.0);
        }
        if level <= self.shown && !HUSHED.load(Ordering::SeqCst) {
            let label = match level {
                Level::ERROR => "error: ",
                Level::WARN => "warning: ",
                _ => "",
            };
            talk(format_args!("{label}{}", line.0));
        }
    }
}

/// Keeps a line in the run's log without showing it.
pub fn keep(level: Level, text: &str) {
    let mut log = RUN_LOG.lock().unwrap_or_else(|poison| poison.into_inner());
    if let Some(log) = log.as_mut() {
        let trace = log.trace.as_ref().map(|t| format!(" trace_id={t}")).unwrap_or_default();
        let text = log.mask.text(text);
        let now = SystemClock.now().to_milli();
        // A line of log that cannot be written is no reason to stop a run.
        let _ = log.file.write_all(format!("{now} {level:<5}{trace} {text}\n").as_bytes());
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
