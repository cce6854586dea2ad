//! Waits for files.

use std::time::{Duration, Instant};

use serde_json::{Map, json};

use super::Performed;
use crate::attempt::exec_env::Site;
use crate::attempt::work::Waiting;
use crate::engine::{Fault, Record, StepStatus};
use crate::exec::Stop;

/// Waits for files. Returns `None` if it was stopped.
pub(crate) fn wait(site: &Site, waiting: &Waiting, stop: &Stop) -> Option<Performed> {
    let began = Instant::now();
    let mut polls = 0u64;
    loop {
        let found = site.workspace.glob(&waiting.glob);
        polls += 1;
        let waited = began.elapsed();
        let files = match found {
            Ok(files) => files,
            Err(error) => {
                let message = site.mask.text(&error.to_string());
                let record = Record::refused(2, message, Map::new());
                return Some(Performed::of(record));
            }
        };
        let met = files.len() >= waiting.min_count;
        if met || waited >= waiting.timeout {
            let mut performed = waited_for(waiting, files, waited, polls, met);
            mask_record(site, &mut performed.record);
            return Some(performed);
        }
        let nap = waiting.poll.min(waiting.timeout - waited);
        if !stop.sleep(nap) {
            return None;
        }
    }
}

/// Masks paths and patterns in a record.
fn mask_record(site: &Site, record: &mut Record) {
    for file in record.files.iter_mut().flatten() {
        *file = site.mask.text(file);
    }
    if let Some(error) = &mut record.error {
        error.message = site.mask.text(&error.message);
    }
}

fn waited_for(
    waiting: &Waiting,
    files: Vec<String>,
    waited: Duration,
    polls: u64,
    met: bool,
) -> Performed {
    let mut record = Record {
        status: if met { StepStatus::Completed } else { StepStatus::Failed },
        exit_code: Some(if met { 0 } else { 124 }),
        wait_duration_ms: Some(waited.as_millis() as u64),
        duration_ms: Some(waited.as_millis() as u64),
        poll_count: Some(polls),
        timed_out: Some(!met),
        ..Record::default()
    };
    if !met {
        let limit = waiting.timeout.as_secs_f64();
        let message = format!(
            "waited {limit} s for {} of `{}`, but found {}",
            waiting.min_count,
            waiting.glob,
            files.len()
        );
        let context = [("timeout_sec".to_owned(), json!(limit))].into_iter().collect();
        record.error = Some(Fault { message, exit_code: 124, context, ..Fault::default() });
    }
    record.files = Some(files);
    Performed::of(record)
}
