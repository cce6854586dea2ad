//! Where a run is, in a line or two.

use crate::engine::{Run, whereabouts};
use crate::time::Time;
use crate::workflow::Plan;

/// `[2/5] ProcessData: Running (15s)...`, and a line for each loop that is open.
pub fn lines(plan: &Plan, run: &Run, now: Time) -> Vec<String> {
    let here = whereabouts(plan, run);
    let mut lines = Vec::new();
    let Some((number, total, name)) = here.first() else { return lines };
    let since = run
        .body
        .current()
        .and_then(|slot| slot.record.as_ref()?.started_at)
        .map_or(0, |started| now.ms_since(started) / 1000);
    lines.push(format!("[{number}/{total}] {name}: Running ({since}s)..."));
    for (depth, pair) in here[1..].chunks(2).enumerate() {
        let indent = "  ".repeat(depth + 1);
        let (item, items, shown) = &pair[0];
        let shown: String = shown.chars().take(60).filter(|c| !c.is_control()).collect();
        let line = format!("{indent}└─ for_each: [{item}/{items}] Processing {shown}");
        lines.push(line);
    }
    lines
}
