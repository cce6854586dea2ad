//! Keeps typed outputs as artifacts: `artifacts/nodes/<id>.md` in the run's directory and, next to
//! it, metadata for users and other tools.
//!
//! **Invariant:** an output that cannot be kept causes a warning and nothing else: the run itself
//! has the output.
//!
//! **Invariant:** every artifact belongs to a completed step and lies in the run's directory, even
//! if an agent left symbolic links there.

use std::io::{self, Write as _};
use std::path::Path;

use serde_json::json;

use super::exec_env::Site;
use super::prepare::refs::ARTIFACTS;
use crate::disk::fs;
use crate::engine::{Event, Record, Run, StepStatus};
use crate::workflow::Plan;
use crate::workspace::Workspace;

/// Subdirectory of a run's artifacts that holds the outputs of nodes.
const NODES: &str = "nodes";

/// Keeps the output of the step that this event completed, if the step has an `output_type`.
pub(crate) fn keep_after(site: &Site, plan: &Plan, run: &Run, event: &Event) {
    let (Event::Ended { step, .. }
    | Event::Answered { step, .. }
    | Event::Kept { step }
    | Event::Skipped { step, .. }) = event
    else {
        return;
    };
    // The event that ends a round may also end the loop that contains it.
    if let Some((index, _)) = plan.root().find(step.top_name()) {
        keep(site, plan, run, index);
    }
}

/// Keeps the output of a top-level step if the step has completed and its output has a type. If the
/// step failed or was skipped, removes the artifact of an earlier execution.
pub(crate) fn keep(site: &Site, plan: &Plan, run: &Run, index: usize) {
    let step = &plan.root().steps[index];
    let Some(kind) = &step.output_type else { return };
    let Some(slot) = run.body.slots.get(index) else { return };
    let root = site.root();
    let done = match (slot.status(), &slot.record) {
        (StepStatus::Completed, Some(record)) => write(&root, run, &step.name, kind, record),
        (StepStatus::Failed | StepStatus::Skipped, _) => forget(&root, &step.name),
        _ => Ok(()),
    };
    if let Err(error) = done {
        tracing::warn!("the output of `{}` is not kept as an artifact: {error}", step.name);
    }
}

/// Paths of the text and of its metadata, relative to the run's directory.
fn files(name: &str) -> [String; 2] {
    ["md", "meta.json"].map(|ending| format!("{ARTIFACTS}/{NODES}/{name}.{ending}"))
}

fn write(root: &Path, run: &Run, name: &str, kind: &str, record: &Record) -> io::Result<()> {
    // Agents may write to the artifacts directory. `Workspace` never follows their links out of it.
    let place = Workspace::open(root)?;
    let [text, about] = files(name);
    let size = place.put(&text, |file| match &record.whole {
        // The output may be larger than memory.
        Some(whole) => io::copy(&mut fs::open(root.join(&whole.path))?, file),
        None => {
            let output = record.output.as_deref().unwrap_or_default();
            file.write_all(output.as_bytes()).map(|()| output.len() as u64)
        }
    });
    let meta = json!({
        "nodeId": name,
        "outputType": kind,
        "runId": run.id.as_str(),
        "producedAt": record.completed_at.unwrap_or(run.updated_at).to_milli(),
        "path": format!("{NODES}/{name}.md"),
        "size": size.map_err(io::Error::other)?,
        "sessionId": null,
    });
    let put = place.put(&about, |file| file.write_all(format!("{meta:#}\n").as_bytes()));
    put.map_err(io::Error::other)
}

/// Removes the artifact of an earlier execution.
fn forget(root: &Path, name: &str) -> io::Result<()> {
    let Ok(place) = Workspace::open(root) else { return Ok(()) };
    // The metadata goes first: a text without metadata does not count as an artifact.
    for file in files(name).iter().rev() {
        place.remove(file).map_err(io::Error::other)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::base::ids::{Attempt, RunId, StepPath};
    use crate::base::time::Time;
    use crate::engine::record::Whole;
    use crate::engine::run::{Origin, Policy, StepState};
    use crate::workflow::compile;

    #[test]
    fn what_a_completed_node_gave_is_kept_with_what_it_is() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("run");
        fs::create_dir_all(root.join("outputs")).unwrap();
        let site = site(dir.path(), &root);
        let (plan, without) = (plan("output_type: plan"), plan("always_run: true"));
        let mut run = run(&plan);
        let record = Record {
            status: StepStatus::Completed,
            output: Some("# Plan\n".into()),
            completed_at: Some(Time(1_000)),
            ..Record::default()
        };
        let ended = Event::Ended {
            step: StepPath::top("plan"),
            attempt: Attempt::FIRST,
            record: Box::default(),
        };
        run.body.slots[0].state = StepState::Settled;
        run.body.slots[0].record = Some(Box::new(record.clone()));
        keep_after(&site, &without, &run, &ended);
        assert!(!root.join("artifacts").exists(), "it has no kind");

        keep_after(&site, &plan, &run, &Event::Woke);
        assert!(!root.join("artifacts").exists(), "nothing ended");
        let inner = Event::Ended {
            step: StepPath::parse("plan.0.say").unwrap(),
            attempt: Attempt::FIRST,
            record: Box::default(),
        };
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
        let names = || fs::read_dir(root.join("artifacts/nodes")).unwrap().count();
        assert_eq!(names(), 2, "nothing else is left there");
        keep(&site, &plan, &run, 0);
        assert_eq!(names(), 0, "it gave something once, but no more");
    }

    #[test]
    fn a_link_among_the_artifacts_leads_nowhere_else() {
        let dir = tempfile::tempdir().unwrap();
        let (root, elsewhere) = (dir.path().join("run"), dir.path().join("elsewhere"));
        fs::create_dir_all(root.join("artifacts")).unwrap();
        fs::create_dir(&elsewhere).unwrap();
        let plan = plan("output_type: plan");
        let mut run = run(&plan);
        let record = Record { status: StepStatus::Completed, ..Record::default() };
        run.body.slots[0].state = StepState::Settled;
        run.body.slots[0].record = Some(Box::new(record));
        let nodes = root.join("artifacts/nodes");
        std::os::unix::fs::symlink(&elsewhere, &nodes).unwrap();
        keep(&site(dir.path(), &root), &plan, &run, 0);
        fs::remove_file(&nodes).unwrap();
        fs::create_dir(&nodes).unwrap();
        std::os::unix::fs::symlink(elsewhere.join("x"), nodes.join(".plan.md.tmp")).unwrap();
        std::os::unix::fs::symlink(elsewhere.join("y"), nodes.join("plan.md")).unwrap();
        keep(&site(dir.path(), &root), &plan, &run, 0);
        assert!(nodes.join("plan.md").symlink_metadata().unwrap().is_file());
        assert_eq!(fs::read_dir(elsewhere).unwrap().count(), 0);
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
            silences: Default::default(),
            input_bytes: 0,
            mask: Default::default(),
            parking: None,
            program: Default::default(),
            turns: Default::default(),
            sandboxes: Default::default(),
        }
    }

    fn plan(field: &str) -> Plan {
        let text =
            format!("name: w\ndescription: d\nnodes: [{{ id: plan, bash: 'true', {field} }}]");
        compile(&text, &()).expect("the workflow is valid").plan
    }

    fn run(plan: &Plan) -> Run {
        let id = RunId::new("20250115T143022Z", 7);
        let origin = Origin {
            run_id: id.to_string(),
            workflow_file: String::new(),
            workflow_checksum: String::new(),
            run_root: String::new(),
            workspace: None,
            context: Default::default(),
            policy: Policy::default(),
            only_step: None,
            archive: None,
            fleet: false,
            request: None,
            definition: None,
        };
        Run::new(plan, id, origin, Time(0))
    }
}
