//! Metrics for a monitoring system: the content of the board, in Prometheus text format.
//!
//! The metrics cover the runs that exist: `clean` removes runs from every sum, so all metrics are
//! gauges.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write;
use std::io;
use std::time::SystemTime;

use super::{Board, InboxView, RunSpent, Standing, WorkerView};
use crate::attempt::parking::ParkedView;
use crate::base::ids::RunId;
use crate::base::time::Time;
use crate::disk::fs;
use crate::store::STATE;

/// The result of an ended run, and the version of the file that it was read from.
struct Known {
    written: Option<(SystemTime, u64)>,
    state: Standing,
    spent: Option<RunSpent>,
}

/// Collects metrics repeatedly; an ended run is read only once.
#[derive(Default)]
pub(crate) struct Meter {
    over: HashMap<RunId, Known>,
}

impl Meter {
    /// Returns the current metrics.
    pub(crate) fn read(&mut self, board: &Board) -> io::Result<String> {
        let mut runs: BTreeMap<&'static str, usize> =
            Standing::ALL.iter().map(|state| (state.word(), 0)).collect();
        let mut spent = RunSpent::default();
        let ids = board.run_ids();
        self.over.retain(|id, _| ids.contains(id));
        for id in ids {
            let (state, cost) = self.run(board, &id);
            *runs.entry(state.word()).or_default() += 1;
            if let Some(cost) = cost {
                spent.join(&cost);
            }
        }
        let workers: Vec<WorkerView> = board.members.views().collect();
        let gates = board.gates().iter().filter(|gate| !gate.answered).count();
        let seen = Seen {
            runs,
            spent,
            gates,
            inboxes: board.inboxes()?,
            workers,
            failed_tasks: board.failed()?,
            parked: board.parked.clone(),
            now: board.now,
        };
        Ok(seen.text())
    }

    fn run(&mut self, board: &Board, id: &RunId) -> (Standing, Option<RunSpent>) {
        let file = fs::metadata(board.run_root(id).join(STATE)).ok();
        let written = file.and_then(|file| Some((file.modified().ok()?, file.len())));
        if let Some(known) = self.over.get(id).filter(|known| known.written == written) {
            return (known.state, known.spent.clone());
        }
        let (state, spent) = match board.detail(id) {
            Ok(detail) => (detail.run.state, detail.usage),
            Err(error) => (Standing::of_unread(&error), None),
        };
        if state.is_over() {
            self.over.insert(id.clone(), Known { written, state, spent: spent.clone() });
        }
        (state, spent)
    }
}

/// The input of all metrics.
struct Seen {
    runs: BTreeMap<&'static str, usize>,
    spent: RunSpent,
    gates: usize,
    inboxes: Vec<InboxView>,
    workers: Vec<WorkerView>,
    failed_tasks: usize,
    parked: Vec<ParkedView>,
    now: Time,
}

impl Seen {
    fn text(&self) -> String {
        let mut page = Page::default();
        let runs = self.runs.iter().map(|(state, count)| (labels(&[("state", state)]), *count));
        page.family("orchestrate_runs", "Runs that are kept, by where they stand.", runs);
        page.one("orchestrate_gates_open", "Questions that wait for a person.", self.gates);
        let tasks = self.inboxes.iter().flat_map(|inbox| {
            let by = |state, count| (labels(&[("agent", &inbox.agent), ("state", state)]), count);
            [
                by("waiting", inbox.waiting),
                by("claimed", inbox.claimed),
                by("dropped", inbox.dropped),
            ]
        });
        page.family("orchestrate_tasks", "Tasks that are not over, by agent.", tasks);
        let oldest = self.inboxes.iter().map(|inbox| {
            let age_ms = inbox.oldest_at.map_or(0, |at| self.now.ms_since(at));
            (labels(&[("agent", &inbox.agent)]), age_ms as f64 / 1000.0)
        });
        let help = "Age of the task that waits longest; 0 if none does.";
        page.family("orchestrate_oldest_task_seconds", help, oldest);
        let paused = self
            .inboxes
            .iter()
            .map(|inbox| (labels(&[("agent", &inbox.agent)]), u8::from(inbox.paused.is_some())));
        page.family("orchestrate_agent_paused", "1 if an agent's inbox is paused.", paused);
        let parked = self.parked.iter().map(|parked| {
            let (host, cause) = (parked.host.as_deref().unwrap_or_default(), parked.cause.word());
            (labels(&[("provider", &parked.provider), ("cause", cause), ("host", host)]), 1)
        });
        let help = "Providers that are not asked, on one host or, without one, on all.";
        page.family("orchestrate_provider_parked", help, parked);
        page.one(
            "orchestrate_failed_tasks",
            "Tasks in failed/ that belong to no run.",
            self.failed_tasks,
        );
        let mut lives: BTreeMap<(&str, &str), usize> = BTreeMap::new();
        for worker in &self.workers {
            *lives.entry((&worker.agent, worker.life.word())).or_default() += 1;
        }
        let lives = lives
            .into_iter()
            .map(|((agent, life), count)| (labels(&[("agent", agent), ("life", life)]), count));
        let help = "Workers and coordinators, by agent and by whether they live.";
        page.family("orchestrate_workers", help, lives);
        let help = "Newest heartbeat, by agent and machine, by the clock of the volume.";
        page.family("orchestrate_last_beat_timestamp_seconds", help, self.newest_beats());
        self.spent_text(&mut page);
        let help = "When these figures were taken.";
        page.one("orchestrate_metrics_timestamp_seconds", help, self.now.0 as f64 / 1000.0);
        page.text
    }

    /// Returns the newest heartbeat of each agent on each machine. A worker's own id is random and
    /// new at each start, so as a label it would add a series at every restart.
    fn newest_beats(&self) -> impl Iterator<Item = (String, f64)> {
        let mut newest: BTreeMap<(&str, &str), Time> = BTreeMap::new();
        for worker in &self.workers {
            let Some(at) = worker.last_beat.as_deref().and_then(Time::parse) else { continue };
            let beat = newest.entry((&worker.agent, &worker.host)).or_insert(at);
            *beat = at.max(*beat);
        }
        newest.into_iter().map(|((agent, host), at)| {
            (labels(&[("agent", agent), ("host", host)]), at.0 as f64 / 1000.0)
        })
    }

    /// Adds the usage metrics. An unknown value is not zero: a separate metric counts it.
    fn spent_text(&self, page: &mut Page) {
        let RunSpent { usage, answers, cost_unknown, tokens_unknown } = &self.spent;
        let tokens = [
            ("input", usage.input_tokens),
            ("output", usage.output_tokens),
            ("cached", usage.cached_tokens),
            ("reasoning", usage.reasoning_tokens),
        ];
        let tokens = tokens
            .into_iter()
            .filter_map(|(kind, count)| Some((labels(&[("kind", kind)]), count?)));
        page.family("orchestrate_tokens", "Tokens of kept runs, as far as is known.", tokens);
        if let Some(cost) = usage.cost_usd {
            page.one("orchestrate_cost_usd", "What kept runs cost, as far as is known.", cost);
        }
        page.one("orchestrate_answers", "Steps of kept runs that asked a provider.", *answers);
        let help = "Those of them of which it is not known.";
        let unknown = [("cost", *cost_unknown), ("tokens", *tokens_unknown)];
        let unknown = unknown.into_iter().map(|(what, count)| (labels(&[("of", what)]), count));
        page.family("orchestrate_answers_unknown", help, unknown);
    }
}

#[derive(Default)]
struct Page {
    text: String,
}

impl Page {
    fn family<V: std::fmt::Display>(
        &mut self,
        name: &str,
        help: &str,
        values: impl Iterator<Item = (String, V)>,
    ) {
        let _ = writeln!(self.text, "# HELP {name} {help}\n# TYPE {name} gauge");
        for (labels, value) in values {
            let _ = writeln!(self.text, "{name}{labels} {value}");
        }
    }

    fn one(&mut self, name: &str, help: &str, value: impl std::fmt::Display) {
        self.family(name, help, std::iter::once((String::new(), value)));
    }
}

fn labels(pairs: &[(&str, &str)]) -> String {
    let quoted = |text: &str| text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
    let pairs: Vec<_> =
        pairs.iter().map(|(key, value)| format!("{key}=\"{}\"", quoted(value))).collect();
    format!("{{{}}}", pairs.join(","))
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Seen {
        fn empty() -> Seen {
            Seen {
                runs: BTreeMap::new(),
                spent: RunSpent::default(),
                gates: 0,
                inboxes: Vec::new(),
                workers: Vec::new(),
                parked: Vec::new(),
                failed_tasks: 0,
                now: Time(1500),
            }
        }
    }

    #[test]
    fn labels_are_quoted_as_the_format_wants() {
        assert_eq!(labels(&[("a", "x"), ("b", "q\"\\\n")]), "{a=\"x\",b=\"q\\\"\\\\\\n\"}");
    }

    #[test]
    fn a_restarted_worker_adds_no_series() {
        let worker = |id: &str, beat: &str| WorkerView {
            worker: id.into(),
            agent: "qa".into(),
            life: crate::view::Life::Alive { age_ms: None },
            draining: false,
            host: "m1".into(),
            pid: 1,
            started_at: String::new(),
            concurrency: 1,
            run: None,
            claims: 0,
            version: String::new(),
            last_beat: Some(beat.into()),
            heartbeat_age_ms: None,
        };
        let workers =
            vec![worker("aaaa", "2026-01-31T10:00:05Z"), worker("bbbb", "2026-01-31T10:00:00Z")];
        let seen = Seen { workers, ..Seen::empty() };
        let text = seen.text();
        let beats: Vec<_> =
            text.lines().filter(|l| l.starts_with("orchestrate_last_beat")).collect();
        let only = "orchestrate_last_beat_timestamp_seconds{agent=\"qa\",host=\"m1\"} 1769853605";
        assert_eq!(beats, [only]);
    }

    #[test]
    fn what_is_not_known_is_not_zero() {
        let spent =
            RunSpent { answers: 2, cost_unknown: 2, tokens_unknown: 1, ..Default::default() };
        let seen = Seen { spent, ..Seen::empty() };
        let text = seen.text();
        assert!(!text.contains("orchestrate_cost_usd"), "{text}");
        assert!(text.contains("orchestrate_answers_unknown{of=\"cost\"} 2\n"), "{text}");
        assert!(text.contains("orchestrate_metrics_timestamp_seconds 1.5\n"), "{text}");
    }
}
