//! `orchestrate events`: prints every event of a run in order, and with `--follow` also new ones.
//!
//! The source is the journal. In text output, an event is a sentence; in JSON output, it is the
//! journal entry plus that sentence.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::follow_loop::Vigil;
use super::invocation::Invocation;
use super::output::{self, put_json};
use super::{Common, standing};
use crate::base::ids::RunId;
use crate::disk::{self, fs};
use crate::run::failure::Failure;
use crate::run::open::OpenError;
use crate::run::wording;
use crate::store::History;
use crate::store::journal::Entry;
use crate::view::progress::log_line;
use crate::view::{Board, document, one_line};

#[derive(clap::Args, Clone, Debug)]
pub(super) struct EventsArgs {
    /// The run: its id, the beginning of it, or `latest`
    #[arg(value_name = "RUN", default_value = "latest")]
    pub run: String,
    /// Go on with what happens later, until nobody drives the run any more. With `--json` each
    /// event is a document on a line of its own
    #[arg(short, long)]
    pub follow: bool,
    /// Only the last N
    #[arg(short = 'n', long, value_name = "N")]
    pub last: Option<usize>,
}

pub(super) fn main(args: &EventsArgs, common: &Common) -> Result<u8, Failure> {
    let invocation = Invocation::read(common)?;
    let (id, root) = invocation.find_run(&args.run)?;
    let mut reader = Reader { invocation: &invocation, id, root, seen: 0, size: None };
    let board = reader.board()?;
    let mut shown = reader.new_events(&board)?;
    if let Err(error) = board.open(&reader.id) {
        tracing::warn!("{}", wording::cannot_read(&reader.id, &error).sentence());
    }
    let skipped = args.last.map_or(0, |last| shown.len().saturating_sub(last));
    shown.drain(..skipped);
    match (common.json, args.follow) {
        (true, false) => {
            let events: Vec<Value> = shown.iter().map(|event| event.json.clone()).collect();
            put_json("events/v1", json!({ "run_id": reader.id, "events": events }))?;
            Ok(0)
        }
        (_, false) => {
            // The current state is not an event: the last event already shows that a run is over.
            if reader.print(&shown)? {
                standing::say_standing(&invocation, &board.run(&reader.id));
            }
            Ok(0)
        }
        (_, true) => reader.follow(board, shown),
    }
}

/// An event, rendered for people and for programs.
struct Shown {
    /// `None` for an event that is of no interest to people.
    line: Option<String>,
    json: Value,
}

struct Reader<'a> {
    invocation: &'a Invocation,
    id: RunId,
    root: PathBuf,
    /// Sequence number of the last event that was printed.
    seen: u64,
    /// Size of the journals when they were last read.
    size: Option<u64>,
}

impl Reader<'_> {
    fn board(&self) -> Result<Board, Failure> {
        Board::scan(self.invocation, self.invocation.queue_if_any()?)
    }

    /// Returns the events that were added to the journals since the last call.
    fn new_events(&mut self, board: &Board) -> Result<Vec<Shown>, Failure> {
        let size = journals_size(&self.root);
        if self.size == Some(size) {
            return Ok(Vec::new());
        }
        let history = History::read(&*disk::machine(), &self.root).map_err(|error| {
            // The readability of the rest of the run decides which hint helps.
            let error = board.open(&self.id).err().unwrap_or(OpenError::State(error));
            wording::cannot_read(&self.id, &error)
        })?;
        let opened = board.open(&self.id).or_else(|_| board.open_by_journal(&self.id)).ok();
        self.size = Some(size);
        let new = history.entries.iter().filter(|entry| entry.seq > self.seen);
        let shown = new.map(|entry| {
            let line = match &opened {
                Some((plan, run)) => log_line(plan, run, &entry.event),
                None => Some(bare_line(entry)),
            };
            shown(entry, line.map(|line| one_line(&line)))
        });
        let shown = shown.collect();
        self.seen = history.entries.last().map_or(self.seen, |last| last.seq.max(self.seen));
        Ok(shown)
    }

    /// Prints events, one per line. Returns false if the reader of stdout is gone.
    fn print(&self, events: &[Shown]) -> Result<bool, Failure> {
        let lines = events.iter().filter_map(|event| match self.invocation.common.json {
            true => Some(document("event/v1", &event.json).to_string()),
            false => event.line.clone(),
        });
        output::put_or_stop(&lines.map(|line| line + "\n").collect::<String>())
    }

    fn follow(&mut self, mut board: Board, mut events: Vec<Shown>) -> Result<u8, Failure> {
        let mut vigil = Vigil::begin()?;
        vigil.watch(&self.root);
        let mut waits = standing::Waits::default();
        loop {
            vigil.look();
            waits.say(self.invocation, &board, &self.id);
            let run = board.run(&self.id);
            // Read events again after the owner, so that the last events are not missed.
            events.extend(self.new_events(&board)?);
            if !self.print(&events)? {
                return Ok(0);
            }
            if !run.is_driven() {
                standing::say_standing(self.invocation, &run);
                return Ok(0);
            }
            let was_new = !std::mem::take(&mut events).is_empty();
            if let Some(code) = vigil.wait(was_new) {
                return Ok(code);
            }
            board = self.board()?;
        }
    }
}

/// Renders an event of a run whose workflow cannot be read: its name in the journal, and its step.
fn bare_line(entry: &Entry) -> String {
    let json: Value = serde_json::from_str(&entry.to_json()).unwrap_or_default();
    let text = |key: &str| json.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
    match text("step") {
        step if step.is_empty() => text("event"),
        step => format!("{} `{}`", text("event"), crate::base::ids::shown(&step)),
    }
}

fn shown(entry: &Entry, line: Option<String>) -> Shown {
    let mut json: Value = serde_json::from_str(&entry.to_json()).unwrap_or_default();
    if let (Some(fields), Some(line)) = (json.as_object_mut(), &line) {
        fields.insert("text".into(), Value::from(line.as_str()));
    }
    Shown { line: line.map(|line| format!("{}  {line}", entry.at.to_milli())), json }
}

/// Returns the total size of a run's journals. If it is unchanged, there are no new events.
fn journals_size(root: &Path) -> u64 {
    let entries = fs::read_dir(root).into_iter().flatten().flatten();
    let journals = entries.filter(|e| e.file_name().to_string_lossy().starts_with("journal"));
    journals.filter_map(|entry| Some(entry.metadata().ok()?.len())).sum()
}
