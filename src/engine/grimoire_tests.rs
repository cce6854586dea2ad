//! Scripts for grimoires: at a time, something happens, and then exactly this is owed.

use super::StepStatus;
use super::tests::check;
use crate::base::ids::Attempt;

const BLOCKS: &str = "
name: g
steps:
  - { name: a, type: script, command: 'a', on_fail: continue }
  - { name: b, type: script, command: 'b' }
  - { name: c, type: script, command: 'c' }
";

#[test]
fn a_failure_blocks_and_resume_begins_with_that_step() {
    check(
        BLOCKS,
        &[
            "0 start       -> run a#1",
            "1 a#1 exit 1  -> run b#1",
            "2 b#1 exit 3  -> blocked",
            "3 b#1 exit 0  -> blocked",
            "4 resume      -> run b#2",
            "5 b#2 exit 0  -> run c#1",
            "6 c#1 exit 0  -> completed",
        ],
    );
}

#[test]
fn what_was_cut_off_is_owed_again() {
    check(
        BLOCKS,
        &[
            "0 start      -> run a#1",
            "1 resume     -> run a#2",
            "2 a#1 exit 0 -> ",
            "3 a#2 exit 0 -> run b#1",
        ],
    );
}

const LOOP: &str = "
name: g
steps:
  - name: l
    type: loop
    max_iterations: 2
    steps:
      - { name: x, type: script, command: 'x', on_fail: continue }
      - { name: y, type: script, command: 'y', on_success: exit_loop }
  - { name: z, type: script, command: 'z' }
";

#[test]
fn a_loop_goes_round_until_a_step_ends_it() {
    check(
        LOOP,
        &[
            "0 start          -> open l",
            "1 open l         -> run l.0.x#1",
            "2 l.0.x#1 exit 1 -> run l.0.y#1",
            "3 l.0.y#1 exit 0 -> run z#1",
            "4 z#1 exit 0     -> completed",
        ],
    );
}

#[test]
fn a_skipped_step_does_not_end_its_loop_and_the_last_round_blocks() {
    let script = check(
        LOOP,
        &[
            "0 start          -> open l",
            "1 open l         -> run l.0.x#1",
            "2 l.0.x#1 exit 0 -> run l.0.y#1",
            "3 skip l.0.y     -> ",
        ],
    );
    // It had been launched, so it can be skipped no more.
    assert_eq!(script.run.body.slots[0].each.as_ref().unwrap().iterations.len(), 1);
    let rounds = LOOP.replace(", on_success: exit_loop", "");
    let script = check(
        &rounds,
        &[
            "0 start          -> open l",
            "1 open l         -> run l.0.x#1",
            "2 l.0.x#1 exit 0 -> run l.0.y#1",
            "3 l.0.y#1 exit 0 -> run l.1.x#1",
            "4 l.1.x#1 exit 0 -> run l.1.y#1",
            "5 l.1.y#1 exit 0 -> blocked",
            "6 resume         -> open l",
            "7 open l         -> run l.0.x#2",
        ],
    );
    assert_eq!(script.run.failed_steps, []);
}

#[test]
fn the_last_round_may_also_be_passed_or_fail_the_run() {
    let rounds = LOOP
        .replace(", on_success: exit_loop", "")
        .replace("max_iterations: 2", "max_iterations: 1\n    on_max_iterations: HOW");
    let lines = |end: &'static str| {
        [
            "0 start          -> open l",
            "1 open l         -> run l.0.x#1",
            "2 l.0.x#1 exit 0 -> run l.0.y#1",
            end,
        ]
    };
    let script = check(&rounds.replace("HOW", "continue"), &lines("3 l.0.y#1 exit 0 -> run z#1"));
    assert_eq!(script.run.body.slots[0].status(), StepStatus::Completed);
    let script = check(&rounds.replace("HOW", "exit"), &lines("3 l.0.y#1 exit 0 -> failed"));
    assert_eq!(script.run.body.slots[0].status(), StepStatus::Failed);
}

#[test]
fn a_failure_inside_a_loop_is_taken_up_inside_of_it() {
    check(
        LOOP,
        &[
            "0 start          -> open l",
            "1 open l         -> run l.0.x#1",
            "2 l.0.x#1 exit 0 -> run l.0.y#1",
            "3 l.0.y#1 exit 1 -> blocked",
            "4 resume         -> run l.0.y#2",
            "5 l.0.y#2 exit 0 -> run z#1",
        ],
    );
}

const NESTED: &str = "
name: g
steps:
  - name: o
    type: loop
    steps:
      - name: i
        type: loop
        steps:
          - { name: x, type: script, command: 'x', on_success: exit_loop }
      - { name: y, type: script, command: 'y', on_fail: continue, on_success: exit_loop }
  - { name: z, type: script, command: 'z' }
";

#[test]
fn exit_loop_ends_the_innermost_loop() {
    check(
        NESTED,
        &[
            "0 start              -> open o",
            "1 open o             -> open o.0.i",
            "2 open o.0.i         -> run o.0.i.0.x#1",
            "3 o.0.i.0.x#1 exit 0 -> run o.0.y#1",
            "4 o.0.y#1 exit 1     -> open o.1.i",
            "5 open o.1.i         -> run o.1.i.0.x#1",
            "6 o.1.i.0.x#1 exit 4 -> blocked",
            "7 resume             -> run o.1.i.0.x#2",
            "8 o.1.i.0.x#2 exit 0 -> run o.1.y#1",
            "9 o.1.y#1 exit 0     -> run z#1",
        ],
    );
}

#[test]
fn a_loop_past_its_time_blocks_where_it_would_go_on() {
    let timed = LOOP.replace("max_iterations: 2", "max_iterations: 9\n    timeout: 100ms");
    check(
        &timed,
        &[
            "0 start            -> open l",
            "1 open l           -> run l.0.x#1",
            "50 l.0.x#1 exit 0  -> run l.0.y#1",
            "101 l.0.y#1 exit 0 -> run z#1",
        ],
    );
    check(
        &timed,
        &[
            "0 start            -> open l",
            "1 open l           -> run l.0.x#1",
            "101 l.0.x#1 exit 0 -> blocked",
            "900 resume         -> open l",
            "901 open l         -> run l.0.x#2",
            "950 l.0.x#2 exit 0 -> run l.0.y#2",
        ],
    );
}

#[test]
fn a_run_past_its_time_is_blocked_before_its_next_step() {
    let timed = BLOCKS.replace("name: g", "name: g\ntimeout: 100ms");
    let script = check(
        &timed,
        &[
            "0 start         -> run a#1",
            "100 a#1 exit 0  -> blocked",
            "500 resume      -> run b#1",
            "590 b#1 exit 0  -> run c#1",
            "900 c#1 exit 0  -> completed",
        ],
    );
    assert_eq!(script.run.error, None);
}

#[test]
fn a_merge_asks_and_goes_on_by_the_answer() {
    use super::{Answer, Event, GateRecord, RunStatus, apply};
    use crate::base::time::Time;
    let text = "
name: g
steps:
  - { name: m, type: merge }
  - { name: z, type: script, command: 'z' }
";
    let mut script = check(text, &["0 start -> run m#1"]);
    let mut happen = |event: Event| apply(&script.plan, &mut script.run, Time(1), &event);
    // `check` launches what is owed; a merge that asks is not launched, so that is taken back.
    let policy = super::Policy::default();
    happen(Event::Resumed { policy: policy.clone(), asked: false });
    let gate = GateRecord {
        message: "Merge?".into(),
        shown: "abc".into(),
        subject: None,
        expires_at: None,
        answer: None,
    };
    happen(Event::Gated {
        step: "m".into(),
        attempt: Attempt::new(2),
        gate: Box::new(gate.clone()),
    });
    let said = |approve| Answer { approve, comment: "no".into(), by: None };
    happen(Event::Answered { step: "m".into(), attempt: Attempt::new(2), answer: said(false) });
    assert_eq!(script.run.status, RunStatus::Blocked);
    let mut happen = |event: Event| apply(&script.plan, &mut script.run, Time(2), &event);
    happen(Event::Resumed { policy, asked: false });
    happen(Event::Gated { step: "m".into(), attempt: Attempt::new(3), gate: Box::new(gate) });
    happen(Event::Answered { step: "m".into(), attempt: Attempt::new(3), answer: said(true) });
    assert_eq!(script.run.shown_status(), RunStatus::Running);
    let owed = super::owed(&script.plan, &script.run, 9);
    let step = crate::base::ids::StepPath::top("m");
    assert_eq!(owed, [super::Effect::Execute { step, attempt: Attempt::new(4) }]);
    let record = script.run.body.slots[0].record.as_ref().unwrap();
    assert!(record.gate.as_ref().unwrap().answer.as_ref().unwrap().approve);
}
