//! Listed names that were not tried yet. An inbox is listed once and then drained, so that the cost
//! of a claim does not depend on the number of waiting tasks.

use std::collections::{BinaryHeap, HashMap, HashSet, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use super::moves::parent;
use super::name::{ClaimName, TaskName};
use crate::base::host::{self, lock};

/// Maximum number of names kept of a listing: the first in claim order.
const KEPT: usize = 65_536;
/// A listing is repeated only when it is used up, or is older than this
const FRESH: Duration = Duration::from_millis(100);
/// and older than this many times its duration: scans take at most a twentieth of the time.
const SHARE: u32 = 20;
/// After a lost race, the next name is one of this many.
const SPREAD: usize = 16;
/// Time for which a name that could not be moved is skipped.
const STUCK: Duration = Duration::from_secs(60);

/// Rate limit of a scan: the time and the duration of the last one.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Pace {
    last: Option<(Instant, Duration)>,
}

impl Pace {
    /// Returns true if a scan is due: the last one is older than `fresh`, and another would not
    /// exceed its share of the time.
    pub(super) fn is_due(&self, fresh: Duration) -> bool {
        self.last.is_none_or(|(at, took)| host::since(at) > fresh.max(took * SHARE))
    }

    pub(super) fn looked(&mut self, since: Instant) {
        self.last = Some((host::instant(), host::since(since)));
    }

    /// Invalidates the last scan.
    pub(super) fn forget(&mut self) {
        self.last = None;
    }
}

/// The first names of an inbox.
#[derive(Debug, Default)]
pub(super) struct Stock {
    names: VecDeque<Box<str>>,
    pub(super) listed: Pace,
    /// True if another process got the last name taken from here.
    lost: bool,
    /// Unconfirmed claims: the rename reported that the task was gone, which is sometimes wrong.
    pub(super) doubts: Vec<ClaimName>,
    /// Unconfirmed claims that turned out to have succeeded.
    pub(super) found: Vec<ClaimName>,
    pub(super) looked: Pace,
}

impl Stock {
    /// Returns true if the inbox must be listed before the next name is taken.
    pub(super) fn is_due(&self) -> bool {
        self.names.is_empty() || self.listed.is_due(FRESH)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.names.is_empty()
    }

    /// Replaces the names with a new listing.
    pub(super) fn refill(&mut self, first: First, since: Instant) {
        self.names = first.into_sorted();
        self.listed.looked(since);
    }

    /// Removes and returns the next name to try: the first, or after a lost race a random one of
    /// the first, so that workers that drain the same listing do not collide at every name.
    pub(super) fn take(&mut self, random: u64) -> Option<Box<str>> {
        let spread = if self.lost { SPREAD.min(self.names.len()) } else { 1 };
        self.lost = false;
        self.names.remove((random % spread.max(1) as u64) as usize)
    }

    /// Records a claim that was apparently lost to another process.
    pub(super) fn lose(&mut self, name: ClaimName) {
        self.lost = true;
        self.doubts.push(name);
    }
}

/// Files that could not be moved, with the time of the failure. They are skipped for a while;
/// otherwise they would block all names after them.
#[derive(Debug, Default)]
pub(super) struct Stuck(Mutex<HashMap<PathBuf, Instant>>);

impl Stuck {
    pub(super) fn add(&self, path: PathBuf) {
        let mut stuck = lock(&self.0);
        stuck.retain(|_, at| host::since(*at) < STUCK);
        stuck.insert(path, host::instant());
    }

    /// Returns the stuck files of a directory.
    pub(super) fn of(&self, dir: &Path) -> HashSet<String> {
        let stuck = lock(&self.0);
        let here =
            stuck.iter().filter(|(path, at)| host::since(**at) < STUCK && parent(path) == dir);
        here.filter_map(|(path, _)| Some(path.file_name()?.to_str()?.to_owned())).collect()
    }
}

/// Collects the first of many names, in any order and with bounded memory.
pub(super) struct First {
    names: BinaryHeap<Box<str>>,
    limit: usize,
}

impl Default for First {
    fn default() -> Self {
        First { names: BinaryHeap::new(), limit: KEPT }
    }
}

impl First {
    /// Adds a file if it is a task's and among the first. Priority and id come first in a name and
    /// have constant length, so names sort as their tasks do.
    pub(super) fn see(&mut self, file: &str) {
        let full = self.names.len() >= self.limit;
        if full && self.names.peek().is_some_and(|last| file >= &**last) || !TaskName::is_name(file)
        {
            return;
        }
        if full {
            self.names.pop();
        }
        self.names.push(file.into());
    }

    fn into_sorted(self) -> VecDeque<Box<str>> {
        self.names.into_sorted_vec().into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::random::Random;

    fn names() -> Vec<String> {
        let name = |n: u64| format!("{}-{:026}.a01.task", n % 3, n / 3);
        (0..100).map(name).collect()
    }

    fn listed(names: &[String], limit: usize) -> First {
        let mut first = First { limit, ..First::default() };
        names.iter().for_each(|name| first.see(name));
        first
    }

    #[test]
    fn the_first_names_are_kept_in_the_order_of_claims_however_they_come() {
        let mut sorted = names();
        sorted.sort_unstable();
        let mut random = Random::new(1);
        for _ in 0..20 {
            let mut mixed = names();
            mixed.sort_by_cached_key(|_| random.draw());
            mixed.insert(random.below(100), "0-hand-made.task".into());
            for limit in [1, 10, 1_000] {
                let kept = listed(&mixed, limit).into_sorted();
                assert!(
                    kept.iter()
                        .map(|name| &**name)
                        .eq(sorted.iter().take(limit).map(String::as_str))
                );
            }
        }
    }

    #[test]
    fn names_are_taken_in_order_except_after_a_lost_race() {
        let mut stock = Stock::default();
        let since = Instant::now();
        stock.refill(listed(&names(), 100), since);
        let first = stock.take(7).unwrap();
        assert!(first.starts_with("0-00000000000000000000000000"), "{first}");
        let task = TaskName::parse(&first).unwrap();
        stock.lose(ClaimName { task, worker: "w".into(), claim: "c".into() });
        assert!(stock.take(16 + 7).unwrap().starts_with("0-00000000000000000000000008"));
        assert!(stock.take(7).unwrap().starts_with("0-00000000000000000000000001"));
        while stock.take(7).is_some() {}
        assert!(stock.is_due());
    }

    #[test]
    fn an_old_listing_is_made_again_unless_that_takes_long() {
        let ago = |ms| Instant::now().checked_sub(Duration::from_millis(ms)).unwrap();
        let mut stock = Stock::default();
        stock.refill(listed(&names(), 100), Instant::now());
        assert!(!stock.is_due());
        for (took_ms, age_ms, due) in
            [(1, 50, false), (1, 150, true), (20, 150, false), (20, 500, true)]
        {
            stock.listed.last = Some((ago(age_ms), Duration::from_millis(took_ms)));
            assert_eq!(stock.is_due(), due, "took {took_ms}, {age_ms} ago");
        }
    }
}
