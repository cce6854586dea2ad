//! Recovery of files that a dead process had moved aside. This process takes them over one by one;
//! the ID in each name shows if the task is already published.

use std::io;
use std::time::{Duration, Instant};

use super::files::{list, move_unique, read_name};
use super::{DONE, Intake, Taken};
use crate::disk::fs;

impl Intake {
    /// Takes over the files that a dead process had moved aside; the next scan continues with them.
    /// Returns their number.
    pub(crate) fn recover(&mut self, dead: &str) -> io::Result<usize> {
        let theirs = self.layout.intake().join(dead);
        let before = self.taken.len();
        for agent in list(&theirs)?.iter().filter_map(|name| name.to_str()) {
            // For example, a worker cannot adopt a run.
            if !self.adopt.serves(agent) {
                continue;
            }
            let mine = self.aside(&self.me, agent);
            self.disk.make_dirs(&mine)?;
            for file in list(&theirs.join(agent))? {
                let Some((id, source)) = file.to_str().and_then(read_name) else { continue };
                let path = mine.join(&file);
                if move_unique(&theirs.join(agent).join(&file), &path)? {
                    let now = Instant::now();
                    self.taken.push(Taken::new(agent, id, source, path, now, true));
                }
            }
            // Fails if another process still uses the directory.
            let _ = fs::remove_dir(theirs.join(agent));
        }
        let _ = fs::remove_dir(&theirs);
        Ok(self.taken.len() - before)
    }

    /// Calls [`Self::recover_all`] at most once per `every`, or at once if a member died. The
    /// periodic call is needed because the process that detected the death may not serve the files'
    /// agents.
    pub(crate) fn recover_if_due(
        &mut self,
        somebody_died: bool,
        every: Duration,
        lives: &dyn Fn(&str) -> io::Result<bool>,
    ) -> io::Result<usize> {
        if !somebody_died && self.recovered.is_some_and(|at| at.elapsed() < every) {
            return Ok(0);
        }
        let found = self.recover_all(lives)?;
        self.recovered = Some(Instant::now());
        Ok(found)
    }

    /// Recovers the files of every process that is not alive. Calls `lives` after it listed the
    /// owners, so that a process that starts meanwhile does not count as dead.
    pub(crate) fn recover_all(
        &mut self,
        lives: &dyn Fn(&str) -> io::Result<bool>,
    ) -> io::Result<usize> {
        let mut found = 0;
        for owner in list(&self.layout.intake())? {
            let Some(owner) = owner.to_str().filter(|owner| *owner != DONE) else { continue };
            if owner != self.me && !lives(owner)? {
                found += self.recover(owner)?;
            }
        }
        Ok(found)
    }
}
