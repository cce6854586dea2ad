//! Checks the machine's clock: can users, and programs that compare file times, rely on it?
//!
//! The queue itself compares no clocks. Retention, reports, waits until a given time and `make` do.

use std::fs;
use std::path::Path;
use std::time::UNIX_EPOCH;

use super::Finding;
use crate::base::process::uptime_ms;
use crate::base::time::{Clock, SystemClock, Time};

/// A difference that users notice.
const APART_MS: i64 = 2_000;
/// A jump during the examination that a busy machine does not explain.
const JUMP_MS: i64 = 500;
/// An unset clock shows a time before this program existed.
const PROGRAM_MADE: Time = Time(1_767_225_600_000);
/// Maximum number of files per directory that are checked for future times.
const FILES: usize = 2_000;

/// The clocks at the start of an examination.
#[derive(Clone, Copy)]
pub(super) struct Begun {
    wall: Time,
    uptime_ms: u64,
}

impl Begun {
    pub(super) fn now() -> Begun {
        Begun { wall: SystemClock.now(), uptime_ms: uptime_ms() }
    }
}

/// Judges the clock; `written` is a file that was written during the examination.
pub(super) fn look(begun: Begun, workspace: &Path, written: Option<&Path>) -> Finding {
    let now = SystemClock.now();
    let passed = uptime_ms().saturating_sub(begun.uptime_ms) as i64;
    let seen = Seen {
        now,
        jump_ms: now.0 - begun.wall.0 - passed,
        // The file was written between the start and now, so only a time outside that range counts.
        apart_ms: written.and_then(changed_ms).map(|at| {
            let range = begun.wall.0..=now.0;
            if range.contains(&at) { 0 } else { at - begun.wall.0 }
        }),
        future: future(workspace, now),
    };
    judge(&seen)
}

struct Seen {
    now: Time,
    /// Difference between the wall clock's progress and the elapsed time.
    jump_ms: i64,
    /// Offset of the volume's clock from this machine's; positive if it is ahead.
    apart_ms: Option<i64>,
    /// Number of files with a future time, and one of them.
    future: Option<(usize, String)>,
}

fn judge(seen: &Seen) -> Finding {
    const NAME: &str = "clock";
    let Seen { now, jump_ms, apart_ms, future } = seen;
    if *now < PROGRAM_MADE {
        let text = format!("it is {} by the clock, which was never set", now.to_second());
        return Finding::warning(NAME, text, "set it by NTP: `timedatectl set-ntp true`");
    }
    if jump_ms.abs() > JUMP_MS {
        let text = format!("somebody set it by {jump_ms} ms while this looked");
        let cure = "let one program set it, in small steps: `timedatectl timesync-status`";
        return Finding::warning(NAME, text, cure);
    }
    if let Some(apart) = apart_ms.filter(|apart| apart.abs() > APART_MS) {
        let side = if apart < 0 { "behind" } else { "ahead of" };
        let text = format!("the volume's clock is {} s {side} this machine's", apart.abs() / 1000);
        let cure = "set this machine and the volume's server by NTP; the queue compares no \
                    clocks, but `clean` and people do";
        return Finding::warning(NAME, text, cure);
    }
    if let Some((count, example)) = future {
        let text = match count {
            1 => format!("a file is of a time to come: `{example}`"),
            _ => format!("{count} files are of a time to come, among them `{example}`"),
        };
        let cure = "the clock was set back, or that of another machine is ahead: set all by NTP; \
                    `clean` keeps such files until their time";
        return Finding::warning(NAME, text, cure);
    }
    Finding::ok(NAME, format!("{}, as on the volume", now.to_second()))
}

/// Returns the modification time of a file, by the clock of its volume.
fn changed_ms(path: &Path) -> Option<i64> {
    let changed = fs::symlink_metadata(path).ok()?.modified().ok()?;
    i64::try_from(changed.duration_since(UNIX_EPOCH).ok()?.as_millis()).ok()
}

/// Finds files of the engine with a future time.
fn future(workspace: &Path, now: Time) -> Option<(usize, String)> {
    let (mut count, mut example) = (0, None);
    for dir in [".orchestrate", ".orchestrate/runs", ".orchestrate/workers", "processed", "failed"]
    {
        let entries = workspace.join(dir).read_dir().into_iter().flatten().flatten();
        for entry in entries.take(FILES) {
            let late = changed_ms(&entry.path()).is_some_and(|at| at > now.0 + APART_MS);
            if late && entry.file_name() != "doctor" {
                count += 1;
                example.get_or_insert(format!("{dir}/{}", entry.file_name().to_string_lossy()));
            }
        }
    }
    example.map(|example| (count, example))
}

#[cfg(test)]
mod tests {
    use super::super::Verdict;
    use super::*;

    #[test]
    fn a_clock_that_cannot_be_believed_is_told() {
        let now = Time(PROGRAM_MADE.0 + 1);
        let well = || Seen { now, jump_ms: 20, apart_ms: Some(-1_000), future: None };
        assert_eq!(judge(&well()).verdict, Verdict::Ok);
        let told = |seen: Seen, part: &str| {
            let found = judge(&seen);
            assert_eq!(found.verdict, Verdict::Warning);
            assert!(found.text.contains(part) && found.cure.is_some(), "{found:?}");
        };
        told(Seen { now: Time(1000), ..well() }, "never set");
        told(Seen { jump_ms: -3_600_000, ..well() }, "by -3600000 ms");
        told(Seen { apart_ms: Some(-60_000), ..well() }, "60 s behind");
        told(Seen { future: Some((3, "runs/x".into())), ..well() }, "3 files");
    }
}
