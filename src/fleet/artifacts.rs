//! Outputs that are kept as artifacts of a kind: `artifacts/nodes/<id>.md` in the run's directory,
//! and beside it what it is, for people and for other tools.
//!
//! **Invariant:** what cannot be kept is told and changes nothing: the run has the output itself.

use std::fs;
use std::io;
use std::path::Path;

use serde_json::json;

use super::prepare::refs::ARTIFACTS;
use super::site::Site;
use crate::disk;
use crate::engine::{Event, Record, Run, StepStatus};
use crate::ids::StepPath;
use crate::workflow::Plan;

/// Where artifacts of nodes lie among a run's artifacts.
const NODES: &str = "nodes";

/// Keeps the output of the step that this event completed, if it is one that is to be kept.
pub fn keep_after(site: &Site, plan: &Plan, run: &Run, event: &Event) {
    let (Event::Ended { step, .. } | Event::Answered { step, .. } | Event::Kept { step }) = event
    else {
        return;
    };
    let Some(path) = StepPath::parse(step) else { return };
    // What ends a round may be the end of the step that the rounds are of.
    let top = path.loops.first().map_or(&path.step, |(name, _)| name);
    if let Some((index, _)) = plan.root.find(top) {
        keep(site, plan, run, index);
    }
}

/// Keeps the output of a step of the workflow, if it has completed and its output has a kind.
pub fn keep(site: &Site, plan: &Plan, run: &Run, index: usize) {
    let step = &plan.root.steps[index];
    let Some(kind) = &step.output_type else { return };
    let Some(slot) = run.body.slots.get(index) else { return };
    if slot.status() != StepStatus::Completed {
        return;
    }
    if let Some(record) = &slot.record
        && let Err(error) = write(&site.root(), run, &step.name, kind, record)
    {
        tracing::warn!("the output of `{}` is not kept as an artifact: {error}", step.name);
    }
}

fn write(root: &Path, run: &Run, name: &str, kind: &str, record: &Record) -> io::Result<()> {
    let dir = root.join(ARTIFACTS).join(NODES);
    fs::create_dir_all(&dir)?;
    let text = dir.join(format!("{name}.md"));
    let size = match &record.whole {
        // It may be larger than memory.
        Some(whole) => put(&text, |way| fs::copy(root.join(&whole.path), way))?,
        None => {
            let output = record.output.as_deref().unwrap_or_default();
            put(&text, |way| fs::write(way, output))?;
            output.len() as u64
        }
    };
    let meta = json!({
        "nodeId": name,
        "outputType": kind,
        "runId": run.id.as_str(),
        "producedAt": record.completed_at.unwrap_or(run.updated_at).to_milli(),
        "path": format!("{NODES}/{name}.md"),
        "size": size,
        "sessionId": null,
    });
    put(&dir.join(format!("{name}.meta.json")), |way| fs::write(way, format!("{meta:#}\n")))
}

/// Makes a file that is seen whole or not at all. It is not synced: whoever drives the run does
/// not wait for what only others read.
fn put<T>(path: &Path, make: impl FnOnce(&Path) -> io::Result<T>) -> io::Result<T> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let way = path.with_file_name(format!(".{name}.tmp"));
    let made = make(&way)?;
    disk::rename(&way, path)?;
    Ok(made)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::record::Whole;
    use crate::engine::run::{Origin, Policy, StepState};
    use crate::ids::RunId;
    use crate::time::Time;
    use crate::workflow::compile;
    use crate::workspace::Workspace;

    #[test]
    fn what_a_completed_node_gave_is_kept_with_what_it_is() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("run");
        fs::create_dir_all(root.join("outputs")).unwrap();
        let site = site(dir.path(), &root);
        let mut plan = plan();
        let mut run = run(&plan);
        let record = Record {
            status: StepStatus::Completed,
            output: Some("# Plan\n".into()),
            completed_at: Some(Time(1_000)),
            ..Record::default()
        };
        let ended = Event::Ended { step: "plan".into(), attempt: 1, record: Box::default() };
        run.body.slots[0].state = StepState::Settled;
        run.body.slots[0].record = Some(Box::new(record.clone()));
        keep_after(&site, &plan, &run, &ended);
        assert!(!root.join("artifacts").exists(), "it has no kind");

        plan.root.steps[0].output_type = Some("plan".into());
        keep_after(&site, &plan, &run, &Event::Woke);
        assert!(!root.join("artifacts").exists(), "nothing ended");
        let inner = Event::Ended { step: "plan.0.say".into(), attempt: 1, record: Box::default() };
        keep_after(&site, &plan, &run, &inner);
        let read = |name: &str| fs::read_to_string(root.join("artifacts/nodes").join(name));
        assert_eq!(read("plan.md").unwrap(), "# Plan\n");
        let meta: serde_json::Value =
            serde_json::from_str(&read("plan.meta.json").unwrap()).unwrap();
        let wanted = json!({
            "nodeId": "plan", "outputType": "plan", "runId": run.id.as_str(),
            "producedAt": "1970-01-01T00:00:01.000Z", "path": "nodes/plan.md", "size": 7,
            "sessionId": null,
        });
        assert_eq!(meta, wanted);

        fs::write(root.join("outputs/plan.1.txt"), "all of it").unwrap();
        let whole = Whole { path: "outputs/plan.1.txt".into(), bytes: 9, sha256: String::new() };
        run.body.slots[0].record = Some(Box::new(Record { whole: Some(whole), ..record.clone() }));
        keep(&site, &plan, &run, 0);
        assert_eq!(read("plan.md").unwrap(), "all of it");

        let failed = Record { status: StepStatus::Failed, output: Some("no".into()), ..record };
        run.body.slots[0].record = Some(Box::new(failed));
        keep(&site, &plan, &run, 0);
        assert_eq!(read("plan.md").unwrap(), "all of it");
        let names = fs::read_dir(root.join("artifacts/nodes")).unwrap().count();
        assert_eq!(names, 2, "nothing else is left there");
    }

    fn site(workspace: &Path, root: &Path) -> Site {
        Site {
            logs: root.join("logs"),
            workspace: Workspace::open(workspace).unwrap(),
            about: Vec::new(),
            environment: Default::default(),
            hidden: Vec::new(),
            debug: false,
            live: false,
            grace: std::time::Duration::ZERO,
            input_bytes: 0,
            mask: Default::default(),
            parking: None,
            program: Default::default(),
            turns: Default::default(),
            sandboxes: Default::default(),
        }
    }

    fn plan() -> Plan {
        let text = "version: \"1.1\"\nsteps: [{ name: plan, command: [\"true\"] }]";
        compile(text, &()).expect("the workflow is valid").plan
    }

    fn run(plan: &Plan) -> Run {
        let id = RunId::new("20250115T143022Z", 7);
        let origin = Origin {
            run_id: id.to_string(),
            workflow_file: String::new(),
            workflow_checksum: String::new(),
            run_root: String::new(),
            context: Default::default(),
            policy: Policy::default(),
            only_step: None,
            archive: None,
            fleet: false,
            request: None,
        };
        Run::new(plan, id, origin, Time(0))
    }
}
