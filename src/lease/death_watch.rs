//! Detects dead holders: by heartbeats that do not change, on this process's own clock.
//!
//! **Invariant:** a holder counts as dead only after its heartbeat was read unchanged at least four
//! times over at least the time to live, with no gap between two readings longer than a third of
//! it. A gap (this process was frozen, or the volume did not answer) restarts the observation, so
//! an outage never makes a holder count as dead.

use std::collections::HashMap;

/// Readings of one holder's heartbeat.
#[derive(Clone, Debug)]
struct Seen {
    beat: Option<Vec<u8>>,
    first_ms: u64,
    last_ms: u64,
    readings: u32,
}

/// Evidence that a holder is dead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Evidence {
    pub span_ms: u64,
    pub readings: u32,
}

/// Monitors the heartbeats of holders. Times are milliseconds of a monotonic clock.
#[derive(Clone, Debug)]
pub(crate) struct DeathWatch {
    ttl_ms: u64,
    seen: HashMap<String, Seen>,
}

impl DeathWatch {
    pub(crate) fn new(ttl_ms: u64) -> Self {
        DeathWatch { ttl_ms, seen: HashMap::new() }
    }

    /// Records a reading of a holder's heartbeat (`None` if the file does not exist). Returns
    /// evidence once the holder counts as dead.
    pub(crate) fn read(
        &mut self,
        worker: &str,
        beat: Option<Vec<u8>>,
        now_ms: u64,
    ) -> Option<Evidence> {
        let fresh = Seen { beat: beat.clone(), first_ms: now_ms, last_ms: now_ms, readings: 1 };
        let seen = self.seen.entry(worker.to_owned()).or_insert_with(|| fresh.clone());
        if seen.readings == 1 && seen.first_ms == now_ms {
            return None;
        }
        let gap = now_ms.saturating_sub(seen.last_ms);
        if seen.beat != beat || gap > self.ttl_ms / 3 {
            *seen = fresh;
            return None;
        }
        seen.last_ms = now_ms;
        seen.readings += 1;
        let span_ms = now_ms.saturating_sub(seen.first_ms);
        let dead = span_ms >= self.ttl_ms && seen.readings >= 4;
        dead.then_some(Evidence { span_ms, readings: seen.readings })
    }

    /// Forgets holders for which `still` returns false: they hold nothing any more.
    pub(crate) fn keep(&mut self, still: impl Fn(&str) -> bool) {
        self.seen.retain(|worker, _| still(worker));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn beat(n: u8) -> Option<Vec<u8>> {
        Some(vec![n])
    }

    #[test]
    fn a_beat_that_stands_still_long_enough_is_death() {
        let mut watch = DeathWatch::new(900);
        for now in [0, 250, 500, 750] {
            assert_eq!(watch.read("w", beat(1), now), None, "{now}");
        }
        assert_eq!(watch.read("w", beat(1), 1000), Some(Evidence { span_ms: 1000, readings: 5 }));
    }

    #[test]
    fn a_changed_beat_a_gap_or_too_few_readings_are_not() {
        let mut watch = DeathWatch::new(900);
        for (n, now) in [(1, 0), (1, 300), (2, 600), (2, 900), (2, 1200)] {
            assert_eq!(watch.read("w", beat(n), now), None, "{now}");
        }
        // Frozen for two seconds: what was seen before says nothing about now.
        for now in [3200, 3500, 3800] {
            assert_eq!(watch.read("w", beat(2), now), None, "{now}");
        }
        assert!(watch.read("w", beat(2), 4100).is_some());
    }

    #[test]
    fn a_holder_without_a_beat_is_watched_as_long() {
        let mut watch = DeathWatch::new(300);
        let readings: Vec<_> = (0..=4).map(|n| watch.read("w", None, n * 100)).collect();
        assert!(readings[..3].iter().all(Option::is_none));
        assert!(readings[3].is_some() && readings[4].is_some());
    }
}
