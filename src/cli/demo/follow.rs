//! Reports on a run that another process drives: reads its journal and reports each event as if
//! this process had driven the run.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use super::team::Team;
use crate::base::ids::RunId;
use crate::cli::invocation::Invocation;
use crate::cli::run_options::{self, RunOptions};
use crate::cli::top::Left;
use crate::disk;
use crate::disk::hint::{Bell, Hints, Patience};
use crate::engine::{Event, Run, RunStatus, apply};
use crate::exec::{Mask, Stop};
use crate::run::drive::Report;
use crate::store::History;
use crate::view::progress::TextReport;
use crate::workflow::Plan;

pub(super) struct Follower {
    pub id: RunId,
    plan: Plan,
    root: PathBuf,
    bell: Arc<Bell>,
    run: Option<Run>,
    /// Number of events that were reported.
    told: usize,
}

impl Follower {
    pub(super) fn new(plan: Plan, id: RunId, root: PathBuf, bell: Arc<Bell>) -> Follower {
        Follower { id, plan, root, bell, run: None, told: 0 }
    }

    /// Reports events until the run is over, the user interrupts, or a member of the team has died.
    pub(super) fn tell_all(&mut self, invocation: &Invocation, team: &Team, stop: &Stop) -> Left {
        let telling = run_options::telling(invocation, &RunOptions::default());
        let mut report = TextReport::new(telling, invocation.colour(), Mask::default());
        let ringing = self.bell.clone();
        let mut hints = Hints::new(move |_, _| ringing.ring());
        hints.add(&self.root);
        let (least, most) = (Duration::from_millis(50), Duration::from_millis(250));
        let mut patience = Patience::new(least, most, 1);
        loop {
            let heard = self.bell.rings();
            if self.tell_new(&mut report) {
                patience.reset();
            }
            let over = self.run.as_ref().is_some_and(|run| run.status != RunStatus::Running);
            if over || team.died().is_some() {
                return Left::Seen;
            }
            self.bell.wait(heard, patience.next_wait());
            if stop.level() > 0 {
                return Left::Stopped;
            }
        }
    }

    /// Reports new events. Returns true if there were any.
    fn tell_new(&mut self, report: &mut dyn Report) -> bool {
        let history = History::read(&*disk::machine(), &self.root).unwrap_or_default();
        let before = self.told;
        for entry in history.entries.iter().skip(before) {
            self.told += 1;
            if let (None, Event::Started { origin }) = (&self.run, &entry.event) {
                let id = self.id.clone();
                self.run = Some(Run::new(&self.plan, id, (**origin).clone(), entry.at));
            }
            if let Some(run) = &mut self.run {
                apply(&self.plan, run, entry.at, &entry.event);
                report.happened(&self.plan, run, &entry.event);
            }
        }
        self.told > before
    }
}
