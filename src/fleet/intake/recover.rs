//! Going on with what a dead process had begun: its files are taken over one by one, and the id
//! that each carries says whether its task is out already.

use std::io;
use std::time::{Duration, Instant};

use super::files::{list, move_unique, read_name};
use super::{DONE, Intake, Taken};

impl Intake {
    /// Goes on with the files that a dead process had moved aside, from the next scan on. Says
    /// how many there are.
    pub fn recover(&mut self, dead: &str) -> io::Result<usize> {
        let theirs = self.layout.intake().join(dead);
        let before = self.taken.len();
        for agent in list(&theirs)?.iter().filter_map(|name| name.to_str()) {
            // A worker would make nothing of a run.
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
            // Gone, unless somebody else is at it.
            let _ = std::fs::remove_dir(theirs.join(agent));
        }
        let _ = std::fs::remove_dir(&theirs);
        Ok(self.taken.len() - before)
    }

    /// The same from time to time, and at once if somebody died: whoever found a process dead may
    /// be one that could make nothing of its files.
    pub fn recover_if_due(
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

    /// Recovers the files of every process that does not live. `lives` is asked after it was seen
    /// what each left, so a process that comes up meanwhile is not taken for dead.
    pub fn recover_all(&mut self, lives: &dyn Fn(&str) -> io::Result<bool>) -> io::Result<usize> {
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
