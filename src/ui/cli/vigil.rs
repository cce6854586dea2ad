//! Waiting for something to be new, for verbs that follow: files that change are a hint, and from
//! time to time it is looked all the same.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use super::Failure;
use super::signals::{self, Signals};
use crate::fleet::hint::{Bell, Hints, Patience};

/// Between two looks, while something is new and while nothing is.
const LEAST: Duration = Duration::from_millis(50);
const MOST: Duration = Duration::from_millis(500);

pub struct Vigil {
    signals: Signals,
    bell: Arc<Bell>,
    hints: Hints,
    patience: Patience,
    /// How often the bell had rung before the last look.
    heard: u64,
    watched: Option<PathBuf>,
}

impl Vigil {
    pub fn begin() -> Result<Vigil, Failure> {
        let signals = signals::listen()?;
        let bell = Arc::new(Bell::default());
        let ringing = bell.clone();
        let hints = Hints::new(move |_, _| ringing.ring());
        let patience = Patience::new(LEAST, MOST, 1);
        Ok(Vigil { signals, bell, hints, patience, heard: 0, watched: None })
    }

    /// Hears of changes in a directory from now on.
    pub fn watch(&mut self, dir: &Path) {
        if self.watched.as_deref() != Some(dir) && dir.is_dir() {
            self.hints.add(dir);
            self.watched = Some(dir.to_owned());
        }
    }

    /// Begins a look: what changes after this ends the next wait.
    pub fn look(&mut self) {
        self.heard = self.bell.rings();
    }

    /// Waits until something may be new. An exit code, if it is asked to end.
    pub fn wait(&mut self, was_new: bool) -> Option<u8> {
        if was_new {
            self.patience.reset();
        }
        self.bell.wait(self.heard, self.patience.next_wait());
        (self.signals.stop.level() > 0).then(|| self.signals.code())
    }
}
