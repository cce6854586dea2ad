//! `orchestrate clean`: old runs removed. A run that is not over is never touched.

use std::path::{Path, PathBuf};

use super::common::Surroundings;
use super::{Common, Failure};
use crate::engine::RunStatus;
use crate::ids::RunId;
use crate::store::{self, lock, snapshot};
use crate::time::{Clock, SystemClock, Time, parse_duration};

#[derive(clap::Args, Clone, Debug)]
pub struct CleanArgs {
    /// Remove runs last touched longer ago than this: 7d, 12h [default: ORCHESTRATE_KEEP_RUNS days]
    #[arg(long, value_name = "AGE")]
    pub older_than: Option<String>,
    /// Also those that were stopped or killed and could be resumed
    #[arg(long)]
    pub stopped: bool,
    /// Show what would be removed, but remove nothing
    #[arg(long)]
    pub dry_run: bool,
}

pub fn main(args: &CleanArgs, common: &Common) -> Result<u8, Failure> {
    let around = Surroundings::look(common)?;
    let age = match &args.older_than {
        Some(text) => parse_duration(text).ok_or_else(|| {
            Failure::new(2, format!("`{text}` is no length of time"))
                .hint("write a number and a unit: 7d, 12h, 30m")
        })?,
        None => days_kept(&around)?.ok_or_else(|| {
            Failure::new(2, "how old may a run be?")
                .hint("give `--older-than 7d`, or set ORCHESTRATE_KEEP_RUNS to a number of days")
        })?,
    };
    let old = old_runs(&around.state_dir, age, args.stopped)?;
    for (id, path) in &old {
        if !args.dry_run {
            remove(path)?;
        }
        if common.json {
            let removed = !args.dry_run;
            let line = serde_json::json!({
                "schema": "clean/v1", "run_id": id.as_str(), "removed": removed,
            });
            println!("{line}");
        } else {
            println!("{} {id}", if args.dry_run { "would remove" } else { "removed" });
        }
    }
    if !args.dry_run {
        mend_latest(&around.state_dir);
    }
    if old.is_empty() {
        around.say("no run is that old");
    }
    Ok(0)
}

/// ORCHESTRATE_KEEP_RUNS in milliseconds, where it is set.
pub fn days_kept(around: &Surroundings) -> Result<Option<u64>, Failure> {
    let Some(text) = around.environment.get("ORCHESTRATE_KEEP_RUNS") else { return Ok(None) };
    match text.to_string_lossy().trim() {
        "" => Ok(None),
        text => match text.parse::<u64>() {
            Ok(days) => Ok(Some(days.saturating_mul(86_400_000))),
            Err(_) => {
                let message = format!("ORCHESTRATE_KEEP_RUNS is `{text}`, not a number of days");
                Err(Failure::new(2, message))
            }
        },
    }
}

/// Removes runs older than ORCHESTRATE_KEEP_RUNS days, where that is set. A run that has ended
/// well stays so if an old one cannot be removed.
pub fn keep_days(around: &Surroundings, age_ms: Option<u64>, current: &RunId) {
    let Some(age_ms) = age_ms else { return };
    let removed = old_runs(&around.state_dir, age_ms, false).and_then(|old| {
        old.iter().filter(|(id, _)| id != current).try_for_each(|(id, path)| {
            tracing::info!("removing run {id}, which is old");
            remove(path)
        })
    });
    if let Err(failure) = removed {
        failure.tell(false);
    }
}

fn old_runs(dir: &Path, age_ms: u64, stopped: bool) -> Result<Vec<(RunId, PathBuf)>, Failure> {
    let entries = match std::fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => {
            return Err(Failure::new(1, format!("cannot list `{}`: {error}", dir.display())));
        }
    };
    let now = SystemClock.now();
    let mut old = Vec::new();
    for entry in entries.flatten() {
        // `latest` and whatever else lies here is no run.
        let Some(id) = entry.file_name().to_str().and_then(RunId::parse) else { continue };
        let path = entry.path();
        let (status, touched) = last_known(&path, &id);
        // One that was stopped can be resumed, and one that cannot be read may be repaired,
        // unless its owner says otherwise.
        let over =
            matches!(status, Some(RunStatus::Completed | RunStatus::Failed | RunStatus::Cancelled))
                || stopped;
        let open = !over || lock::is_held(&path);
        if !open && now.ms_since(touched) > age_ms {
            old.push((id, path));
        }
    }
    old.sort();
    Ok(old)
}

/// How a run stands and when it was last written to, by its state; by its id where that cannot be
/// read.
fn last_known(path: &Path, id: &RunId) -> (Option<RunStatus>, Time) {
    let state = std::fs::read(path.join(store::STATE)).unwrap_or_default();
    let by_id = || {
        let s = id.stamp();
        Time::parse(&format!(
            "{}-{}-{}T{}:{}:{}Z",
            &s[..4],
            &s[4..6],
            &s[6..8],
            &s[9..11],
            &s[11..13],
            &s[13..15]
        ))
    };
    match snapshot::peek(&state) {
        Some((status, at)) => (Some(status), at),
        None => (None, by_id().unwrap_or_default()),
    }
}

fn remove(path: &Path) -> Result<(), Failure> {
    std::fs::remove_dir_all(path)
        .map_err(|error| Failure::new(1, format!("cannot remove `{}`: {error}", path.display())))
}

/// Takes `latest` away when it leads to nothing.
fn mend_latest(dir: &Path) {
    let link = dir.join("latest");
    if link.symlink_metadata().is_ok() && !link.exists() {
        let _ = std::fs::remove_file(link);
    }
}
