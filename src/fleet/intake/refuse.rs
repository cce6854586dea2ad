//! The end of a dropped file that is no task: it goes to `failed/`, and its status says why.

use std::io;

use serde_json::{Map, Value, json};

use super::files::move_unique;
use super::{Intake, Taken};
use crate::fleet::free::{day, made_at};
use crate::queue::name::{ENDING, label};
use crate::queue::{ClaimName, End, TaskName, seal};
use crate::time::{Clock, SystemClock};

/// Who ends a file that never became a task.
const INTAKE: &str = "intake";

impl Intake {
    /// Ends a file that is no task. Its status lies there before it does, so that whoever sees
    /// the one finds the other.
    pub(super) fn refuse(&self, taken: &Taken, reason: &str) -> io::Result<()> {
        let batch = day(made_at(&taken.id));
        let stem = taken.source.strip_suffix(ENDING).unwrap_or(&taken.source);
        let (id, label) = (taken.id.clone(), label(stem));
        let task = TaskName { priority: 5, id, label, attempt: 1, crashes: 0 };
        // The same whoever does it.
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
