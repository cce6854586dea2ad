//! `orchestrate clean`: old runs removed. A run that somebody drives is never touched.

use std::path::{Path, PathBuf};

use super::common::Surroundings;
use super::{Common, Failure};
use crate::ids::RunId;
use crate::store::{self, lock, snapshot};
use crate::time::{Clock, SystemClock, Time, parse_duration};

#[derive(clap::Args, Clone, Debug)]
pub struct CleanArgs {
    /// Remove runs last touched longer ago than this: 7d, 12h
    #[arg(long, value_name = "AGE")]
    pub older_than: String,
    /// Show what would be removed, but remove nothing
    #[arg(long)]
    pub dry_run: bool,
}

pub fn main(args: &CleanArgs, common: &Common) -> Result<u8, Failure> {
    let around = Surroundings::look(common)?;
    let age = parse_duration(&args.older_than).ok_or_else(|| {
        Failure::new(2, format!("`{}` is no length of time", args.older_than))
            .hint("write a number and a unit: 7d, 12h, 30m")
    })?;
    let old = old_runs(&around.state_dir, age)?;
    for (id, path) in &old {
        if !args.dry_run {
            remove(path)?;
        }
        if common.json {
            println!("{}", serde_json::json!({ "run_id": id.as_str(), "removed": !args.dry_run }));
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

/// Removes runs older than ORCHESTRATE_KEEP_RUNS days, where that is set.
pub fn keep_days(around: &Surroundings, current: &RunId) -> Result<(), Failure> {
    let Some(text) = around.environment.get("ORCHESTRATE_KEEP_RUNS") else { return Ok(()) };
    let days: u64 = match text.to_string_lossy().trim() {
        "" => return Ok(()),
        text => text.parse().map_err(|_| {
            Failure::new(2, format!("ORCHESTRATE_KEEP_RUNS is `{text}`, not a number of days"))
        })?,
    };
    for (id, path) in old_runs(&around.state_dir, days.saturating_mul(86_400_000))? {
        if id != *current {
            remove(&path)?;
            tracing::info!("removed run {id}, older than {days} days");
        }
    }
    Ok(())
}

fn old_runs(dir: &Path, age_ms: u64) -> Result<Vec<(RunId, PathBuf)>, Failure> {
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
        if now.ms_since(last_touched(&path, &id)) > age_ms && !lock::is_held(&path) {
            old.push((id, path));
        }
    }
    old.sort();
    Ok(old)
}

/// When a run was last written to, by its state; by its id where that cannot be read.
fn last_touched(path: &Path, id: &RunId) -> Time {
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
    snapshot::peek(&state).map(|(_, at)| at).or_else(by_id).unwrap_or_default()
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
