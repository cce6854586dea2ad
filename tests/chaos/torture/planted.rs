//! Proves that the judge sees each broken promise: facts that keep all promises, with one change.

use libtest_mimic::Trial;

use super::judge::{Ended, Facts, Promises, Run, Task, judge};
use super::schedule::{Drop, Size, schedule};
use super::scripts::SCRIPTS;
use crate::world::trial;

/// IDs of a free task, of the task of a run, of a task of a step, and of a dropped task.
const IDS: [&str; 4] = [
    "01AAAAAAAAAAAAAAAAAAAAAAAA",
    "01BBBBBBBBBBBBBBBBBBBBBBBB",
    "01CCCCCCCCCCCCCCCCCCCCCCCC",
    "01DDDDDDDDDDDDDDDDDDDDDDDD",
];
const CHAIN: usize = 0;

fn promises() -> Promises {
    let mut promises = Promises::default();
    promises.runs.insert("R".into(), CHAIN);
    promises.free.insert(IDS[0].into(), true);
    promises.drops.insert("drop-0.task".into(), Drop::Task(0));
    promises
}

/// Facts that keep the promises: one run, of which the step `A` was a task, and two free tasks.
fn sound() -> Facts {
    let task = |id: &str, kind: &str, run: &str| Task {
        id: id.into(),
        end: "processed",
        mark: format!("task-{id}/claim"),
        kind: kind.into(),
        run: run.into(),
    };
    let end =
        |step: &&str| Ended { step: (*step).into(), attempt: 1, completed: true, launched: true };
    let mut facts = Facts {
        tasks: vec![
            task(IDS[0], "free", ""),
            task(IDS[1], "run", "R"),
            task(IDS[2], "step", "R"),
            task(IDS[3], "free", ""),
        ],
        adopted: vec![format!("{}-drop-0.task", IDS[3])],
        logs: "07:09:24 qa `A` of R (task T1): started\n\
             07:09:24 qa `A` of R (task T1): too late: another worker has it (2.6s)\n\
             07:09:25 qa `A` of R (task T1, attempt 2): done (0.1s)\n\
             07:09:25 qa w is dead (its beat stood still for 1 s, read 4 times): took over 0\n"
            .into(),
        ..Facts::default()
    };
    let ended = SCRIPTS[CHAIN].path.iter().map(end).collect();
    facts.runs.insert("R".into(), Run { status: "completed".into(), ended });
    for step in SCRIPTS[CHAIN].path {
        let mark =
            if *step == "A" { format!("task-{}/claim", IDS[2]) } else { format!("R/{step}") };
        facts.trace += &format!("R {step} 1 {mark}\n");
    }
    for id in [IDS[0], IDS[3]] {
        facts.trace += &format!("- - - task-{id}/claim\n");
    }
    facts
}

fn run(facts: &mut Facts) -> &mut Run {
    facts.runs.get_mut("R").expect("the run")
}

/// A change, and the complaints that it must cause, in order.
type Plant = (fn(&mut Facts), &'static [&'static str]);

const PLANTS: [Plant; 15] = [
    (|facts| facts.runs.clear(), &["run R of chain is lost"]),
    (|facts| run(facts).status = "failed".into(), &["is failed, not completed"]),
    (|facts| facts.tasks[1].end = "failed", &["but its task is Some(\"failed\")"]),
    (|facts| drop(facts.tasks.remove(1)), &["but its task is None"]),
    (
        |facts| {
            let again = Ended { attempt: 2, launched: false, ..run(facts).ended[0].clone() };
            run(facts).ended.insert(1, again);
        },
        &["`A` had completed, and was done again"],
    ),
    (|facts| run(facts).ended.swap(1, 2), &["went [\"A\", \"C\", \"B\""]),
    (|facts| drop(facts.tasks.remove(0)), &["is None, not processed"]),
    (|facts| facts.tasks[0].end = "failed", &["is Some(\"failed\"), not processed"]),
    (|facts| facts.adopted.clear(), &["was taken in 0 times"]),
    (|facts| facts.adopted.push(facts.adopted[0].clone()), &["was taken in 2 times"]),
    (|facts| facts.tasks[3].end = "failed", &["became Some(\"failed\")"]),
    (|facts| facts.trace += "R A 1 task-x\nR A 1 task-x\n", &["claim task-x was executed 2 times"]),
    (
        |facts| facts.trace = facts.trace.lines().skip(1).collect::<Vec<_>>().join("\n"),
        &["attempt 1 of A was never executed", "is done, but"],
    ),
    (
        |facts| facts.torn = format!("task-{}/claim\n", IDS[3]),
        &["was done before its file was whole"],
    ),
    (
        |facts| {
            facts.logs += "qa (task T1): failed: no (0.1s)\nw is dead (read no, read 2 times)\n"
        },
        &["counted as dead too soon", "the end of task T1 was reported 2 times"],
    ),
];

fn every_plant_is_seen() {
    assert_eq!(judge(&promises(), &sound()), [""; 0], "the facts are sound");
    for (number, (plant, wanted)) in PLANTS.into_iter().enumerate() {
        let mut facts = sound();
        plant(&mut facts);
        let found = judge(&promises(), &facts);
        let matches = found.len() == wanted.len()
            && found.iter().zip(wanted).all(|(found, wanted)| found.contains(wanted));
        assert!(matches, "plant {number}: {found:#?}, not {wanted:?}");
    }
}

fn a_schedule_follows_from_its_seed() {
    let size = Size::parse("seed=1,seconds=20,runs=30");
    assert_eq!(schedule(size, 900), schedule(size, 900));
    assert_ne!(schedule(size, 900), schedule(Size { seed: 2, ..size }, 900));
}

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("torture/the judge sees every planted fault", every_plant_is_seen),
        trial("torture/a schedule follows from its seed", a_schedule_follows_from_its_seed),
    ]
}
