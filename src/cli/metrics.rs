//! `orchestrate metrics`: prints metrics for a monitoring system, once or periodically.

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::json;

use super::invocation::Invocation;
use super::output::{self, put, put_json};
use super::{Common, signals};
use crate::base::time::parse_duration;
use crate::disk;
use crate::exec::Stop;
use crate::run::failure::Failure;
use crate::run::project::unreadable_queue;
use crate::view::Board;
use crate::view::metrics::Meter;

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
    let invocation = Invocation::read(common)?;
    let every = args.every.as_deref().map(|text| {
        let ms = parse_duration(text).filter(|ms| *ms > 0);
        ms.map(Duration::from_millis).ok_or_else(|| {
            Failure::invalid(format!("`--every {text}` is no length of time"))
                .hint("it looks like `15s` or `1m`")
        })
    });
    let every = every.transpose()?;
    let mut meter = Meter::default();
    let text = take(&invocation, &mut meter)?;
    let file = args.output.as_ref().filter(|file| !output::is_stdout(file));
    if let (None, Some(_), Some(_)) = (file, &args.output, every) {
        return Err(Failure::invalid("`--every` replaces a file, and `-` is standard output")
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
        write(file, &take(&invocation, &mut meter)?)?;
    }
    Ok(signals.code())
}

fn take(invocation: &Invocation, meter: &mut Meter) -> Result<String, Failure> {
    let board = Board::scan(invocation, invocation.queue_if_any()?)?;
    meter.read(&board).map_err(|error| unreadable_queue(&error))
}

fn write(file: &Path, text: &str) -> Result<(), Failure> {
    disk::put_out(&*disk::machine(), file, text.as_bytes())
        .map_err(|error| Failure::failed(format!("cannot write `{}`: {error}", file.display())))
}

/// Periodically writes the metrics file of the settings in a thread of a coordinator, until `stop`.
/// Errors are logged and retried: no work depends on the file.
pub(super) fn beside(invocation: &Invocation, stop: &Stop) -> Result<(), Failure> {
    let Some(every) = invocation.config.metrics.every else { return Ok(()) };
    let file = invocation.workspace.join(&invocation.config.metrics.file);
    // Use a separate identity, which also sees the coordinator: a member does not observe itself.
    let queue = invocation.open_queue()?;
    let (project, stop) = (invocation.project.clone(), stop.clone());
    std::thread::spawn(move || {
        let mut meter = Meter::default();
        let mut failing = false;
        loop {
            let board = Board::scan(&project, Some(queue.clone()))
                .map_err(|failure| std::io::Error::other(failure.message().to_owned()));
            let written = board.and_then(|board| {
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
