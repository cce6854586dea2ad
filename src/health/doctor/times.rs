//! Chooses a fleet's poll interval, heartbeat interval and lease.

use std::time::Duration;

use serde::Serialize;

/// Suitable times for a volume, in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Times {
    /// Interval between two heartbeats of a worker.
    pub beat_ms: u64,
    /// Lifetime of a claim without a heartbeat.
    pub ttl_ms: u64,
    /// Poll interval of an inbox, with and without work.
    pub poll_min_ms: u64,
    pub poll_max_ms: u64,
}

/// For volumes on which every process sees every change at once, and dead processes are known by
/// their PID.
const LOCAL: Times = Times { beat_ms: 1_000, ttl_ms: 30_000, poll_min_ms: 100, poll_max_ms: 2_000 };
/// For volumes whose server may be unavailable for a while although no worker is dead.
const NETWORK: Times = Times { beat_ms: 10_000, ttl_ms: 60_000, ..LOCAL };

impl Times {
    /// Returns the times for a volume on which a change takes `lag` to become visible.
    ///
    /// The lease is longer than three heartbeats, each delayed by `lag`, so that slow visibility
    /// does not make a worker look dead.
    pub(crate) fn choose(network: bool, lag: Duration) -> Times {
        let base = if network { NETWORK } else { LOCAL };
        let lag = u64::try_from(lag.as_micros().div_ceil(1_000)).unwrap_or(u64::MAX / 8);
        let slow = (3 * (base.beat_ms + lag) + 1).next_multiple_of(1_000);
        let poll = lag.next_multiple_of(100);
        Times {
            ttl_ms: base.ttl_ms.max(slow),
            poll_min_ms: poll.clamp(base.poll_min_ms, base.poll_max_ms),
            poll_max_ms: base.poll_max_ms.max(poll),
            ..base
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quick_volume_gets_the_usual_times() {
        assert_eq!(Times::choose(false, Duration::from_micros(300)), LOCAL);
        assert_eq!(Times::choose(true, Duration::from_millis(80)), NETWORK);
    }

    #[test]
    fn a_lease_outlasts_three_beats_and_the_lag_whatever_it_is() {
        for network in [false, true] {
            for lag_ms in [0, 1, 99, 100, 101, 2_000, 9_000, 30_000, 300_000] {
                let times = Times::choose(network, Duration::from_millis(lag_ms));
                assert!(times.ttl_ms > 3 * times.beat_ms, "{lag_ms}: {times:?}");
                assert!(times.ttl_ms > 3 * lag_ms, "{lag_ms}: {times:?}");
                assert!(times.poll_min_ms <= times.poll_max_ms, "{lag_ms}: {times:?}");
            }
        }
        let slow = Times::choose(true, Duration::from_secs(20));
        assert_eq!((slow.beat_ms, slow.ttl_ms), (10_000, 91_000));
        assert_eq!((slow.poll_min_ms, slow.poll_max_ms), (2_000, 20_000));
    }
}
