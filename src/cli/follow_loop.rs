//! Waits for changes, for verbs that follow output. A file notification ends a wait early; polling
//! with backoff finds changes that cause no notification.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use super::signals::{self, Signals};
use crate::disk::fs::OnVolume as _;
use crate::disk::hint::{Bell, Hints, Patience};
use crate::run::failure::Failure;

/// Poll interval right after a change, and its upper bound while nothing changes.
const LEAST: Duration = Duration::from_millis(50);
const MOST: Duration = Duration::from_millis(500);

pub(crate) struct Vigil {
    signals: Signals,
    bell: Arc<Bell>,
    hints: Hints,
    patience: Patience,
    /// Ring count at the start of the last scan. A higher count ends the next wait at once.
    heard: u64,
    watched: Option<PathBuf>,
}

impl Vigil {
    pub(crate) fn begin() -> Result<Vigil, Failure> {
        let signals = signals::listen()?;
        let bell = Arc::new(Bell::default());
        let ringing = bell.clone();
        let hints = Hints::new(move |_, _| ringing.ring());
        let patience = Patience::new(LEAST, MOST, 1);
        Ok(Vigil { signals, bell, hints, patience, heard: 0, watched: None })
    }

    /// Starts to watch `dir`. Does nothing if `dir` is missing or already watched.
    pub(crate) fn watch(&mut self, dir: &Path) {
        if self.watched.as_deref() != Some(dir) && dir.is_present_dir() {
            self.hints.add(dir);
            self.watched = Some(dir.to_owned());
        }
    }

    /// Marks the start of a scan. A change after this point ends the next [`wait`](Self::wait).
    pub(crate) fn look(&mut self) {
        self.heard = self.bell.rings();
    }

    /// Waits until a change is likely or the poll interval ends. `was_new` resets the backoff.
    /// Returns the exit code if a stop was requested.
    pub(crate) fn wait(&mut self, was_new: bool) -> Option<u8> {
        if was_new {
            self.patience.reset();
        }
        self.bell.wait(self.heard, self.patience.next_wait());
        (self.signals.stop.level() > 0).then(|| self.signals.code())
    }
}
