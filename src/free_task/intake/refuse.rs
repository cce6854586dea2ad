//! Ends a dropped file that is not a task: moves it to `failed/`, with the reason in its status.

use std::io;

use serde_json::{Map, Value, json};

use super::files::move_unique;
use super::{Intake, Taken};
use crate::base::ids::TaskAttempt;
use crate::base::time::{Clock, SystemClock};
use crate::free_task::parse::{day, made_at};
use crate::queue::name::{ENDING, label};
use crate::queue::{ClaimName, End, TaskName, seal};

/// Worker name in the claim of a file that never became a task.
const INTAKE: &str = "intake";

impl Intake {
    /// Ends a file that is not a task. Writes the status before it moves the file, so that a reader
    /// who sees the file also finds its status.
    pub(super) fn refuse(&self, taken: &Taken, reason: &str) -> io::Result<()> {
        let batch = day(made_at(&taken.id));
        let stem = taken.source.strip_suffix(ENDING).unwrap_or(&taken.source);
        let (id, label) = (taken.id.clone(), label(stem));
        let task = TaskName { priority: 5, id, label, attempt: TaskAttempt::FIRST, crashes: 0 };
        // Derived from the ID, so that every process chooses the same name.
        let claim = taken.id.as_str()[16..].to_ascii_lowercase();
        let name = ClaimName { task, worker: INTAKE.into(), claim };
        let dir = self.layout.end(End::Failed, &batch);
        self.disk.make_dirs(&dir)?;
        let status = dir.join(name.status());
        self.disk.write(&status, &seal::seal(&self.status(taken, reason)))?;
        if self.settings.durable {
            self.disk.sync(&status)?;
            self.disk.sync_dir(&dir)?;
        }
        move_unique(&taken.path, &dir.join(name.ended(&self.me)))?;
        if self.settings.durable { self.disk.sync_dir(&dir) } else { Ok(()) }
    }

    fn status(&self, taken: &Taken, reason: &str) -> Map<String, Value> {
        let status = json!({
            "schema": "status/v1",
            "task_id": taken.id.as_str(),
            "agent": taken.agent,
            "attempt": 1,
            "worker": self.me,
            "timestamp": SystemClock.now(),
            "success": false,
            "exit_code": 2,
            "error": { "reason": "refused", "message": reason },
            "message": reason,
            "source": taken.source,
        });
        match status {
            Value::Object(status) => status,
            _ => Map::new(),
        }
    }
}
