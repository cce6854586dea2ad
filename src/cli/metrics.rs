//! `orchestrate metrics`: prints metrics for a monitoring system, once or periodically.

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::json;

use super::common::{self, Surroundings};
use super::show::{self, put, put_json};
use super::{Common, Failure, fleet, signals};
use crate::base::time::parse_duration;
use crate::disk;
use crate::exec::Stop;
use crate::view::Board;
use crate::view::metrics::Meter;
use crate::workspace::Workspace;

#[derive(clap::Args, Clone, Debug)]
pub(super) struct MetricsArgs {
    /// Write them to a file, which is replaced whole, for a collector of text files
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Write the file again after this time, such as 15s, until stopped
    #[arg(long, value_name = "TIME", requires = "output")]
    pub every: Option<String>,
}

pub(super) fn main(args: &MetricsArgs, common: &Common) -> Result<u8, Failure> {
    let around = Surroundings::look(common)?;
    let every = args.every.as_deref().map(|text| {
        let ms = parse_duration(text).filter(|ms| *ms > 0);
        ms.map(Duration::from_millis).ok_or_else(|| {
            Failure::new(2, format!("`--every {text}` is no length of time"))
                .hint("it looks like `15s` or `1m`")
        })
    });
    let every = every.transpose()?;
    let mut meter = Meter::default();
    let text = take(&around, &mut meter)?;
    let file = args.output.as_ref().filter(|file| !show::is_stdout(file));
    if let (None, Some(_), Some(_)) = (file, &args.output, every) {
        return Err(Failure::new(2, "`--every` replaces a file, and `-` is standard output")
            .hint("name a file with `-o FILE`"));
    }
    let Some(file) = file else {
        match common.json {
            true => put_json("metrics/v1", json!({ "text": text }))?,
            false => put(&text)?,
        }
        return Ok(0);
    };
    write(file, &text)?;
    let Some(every) = every else { return Ok(0) };
    let signals = signals::listen()?;
    while signals.stop.wait_above(0, every) == 0 {
        write(file, &take(&around, &mut meter)?)?;
    }
    Ok(signals.code())
}

fn take(around: &Surroundings, meter: &mut Meter) -> Result<String, Failure> {
    let board = show::board(around, show::queue_if_any(around)?)?;
    meter.read(&board).map_err(|error| show::unreadable(&error))
}

fn write(file: &Path, text: &str) -> Result<(), Failure> {
    disk::put_out(&*disk::machine(), file, text.as_bytes())
        .map_err(|error| Failure::new(1, format!("cannot write `{}`: {error}", file.display())))
}

/// Periodically writes the metrics file of the settings in a thread of a coordinator, until `stop`.
/// Errors are logged and retried: no work depends on the file.
pub(super) fn beside(around: &Surroundings, stop: &Stop) -> Result<(), Failure> {
    let Some(every) = around.config.metrics.every else { return Ok(()) };
    let file = around.workspace.join(&around.config.metrics.file);
    // Use a separate identity, which also sees the coordinator: a member does not observe itself.
    let queue = fleet::open_queue(around)?;
    let (workspace, stop) = (common::open_workspace(around)?, stop.clone());
    let (state_dir, config) = (around.state_dir.clone(), around.config.clone());
    std::thread::spawn(move || {
        let mut meter = Meter::default();
        let mut failing = false;
        loop {
            let root = workspace.root();
            let written = Workspace::open(root).and_then(|workspace| {
                let board =
                    Board::look(workspace, &state_dir, Some(queue.clone()), config.clone())?;
                disk::put_out(&*disk::machine(), &file, meter.read(&board)?.as_bytes())
            });
            match written {
                Ok(()) => failing = false,
                Err(error) if !std::mem::replace(&mut failing, true) => {
                    tracing::warn!(
                        "cannot write `{}`: {error}; will be tried again",
                        file.display()
                    );
                }
                Err(_) => {}
            }
            if stop.wait_above(0, every) > 0 {
                return;
            }
        }
    });
    Ok(())
}
