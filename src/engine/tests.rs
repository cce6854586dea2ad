//! Scripts: at a time, something happens, and then exactly this is owed.

use super::*;
use crate::agent::Usage;
use crate::agent::faults::FaultClass;
use crate::base::ids::{Attempt, RunId, StepPath, TaskAttempt};
use crate::workflow::compile;

/// A run under test. `check` is the only code that knows the engine's interface.
pub(super) struct Script {
    pub(super) plan: Plan,
    pub(super) run: Run,
}

fn check_with(policy: Policy, workflow: &str, lines: &[&str]) -> Script {
    let plan = compile(workflow, &()).expect("the workflow is valid").plan;
    let id = RunId::new("20250115T143022Z", 7);
    let origin = Origin {
        run_id: id.as_str().into(),
        workflow_file: "w.yaml".into(),
        workflow_checksum: "sha256:0".into(),
        run_root: ".orchestrate/runs/x".into(),
        workspace: None,
        context: plan.context().clone(),
        policy,
        only_step: None,
        archive: None,
        fleet: false,
        request: None,
        definition: None,
    };
    let run = Run::new(&plan, id, origin, Time(0));
    let mut script = Script { plan, run };
    for line in lines {
        script.step(line);
    }
    script
}

pub(super) fn check(workflow: &str, lines: &[&str]) -> Script {
    check_with(Policy::default(), workflow, lines)
}

impl Script {
    /// Plays `TIME WHAT -> OWED`. An execution that is owed is launched at once.
    fn step(&mut self, line: &str) {
        let (left, wanted) = line.split_once("->").expect("a line has an arrow");
        let (time, what) = left.trim().split_once(' ').expect("a line has a time");
        let at = Time(time.parse().expect("a time is a number"));
        for event in self.events(what.trim()) {
            apply(&self.plan, &mut self.run, at, &event);
        }
        let owed: Vec<_> = owed(&self.plan, &self.run, 99).iter().map(show).collect();
        let mut shown = owed.join(", ");
        if self.run.status != RunStatus::Running {
            shown = format!("{:?}", self.run.status).to_lowercase();
        }
        assert_eq!(shown, wanted.trim(), "after `{line}`");
        for effect in super::owed(&self.plan, &self.run, 99) {
            if let Effect::Execute { step, attempt } = effect {
                let launched = Event::Launched { step, attempt, task: None };
                apply(&self.plan, &mut self.run, at, &launched);
            }
        }
    }

    fn events(&self, what: &str) -> Vec<Event> {
        let words: Vec<_> = what.split_whitespace().collect();
        match words.as_slice() {
            ["start"] => vec![Event::Started { origin: Box::new(self.run.origin.clone()) }],
            ["wake"] => vec![Event::Woke],
            ["recall", attempt] => {
                let (step, attempt) = attempt.split_once('#').expect("an attempt has a number");
                vec![Event::Recalled { step: step.into(), attempt: attempt.parse().unwrap() }]
            }
            ["resume"] => {
                vec![Event::Resumed { policy: self.run.origin.policy.clone(), asked: false }]
            }
            ["open", step] => vec![Event::Opened { step: (*step).into() }],
            ["skip", step] => {
                vec![Event::Skipped { step: (*step).into(), cause: None, warning: None }]
            }
            ["move", step, index] => {
                let (step, index) = (StepPath::from(*step), index.parse().unwrap());
                let result = run::ItemResult::Failure;
                let moving = Event::Moving {
                    step: step.clone(),
                    index,
                    result,
                    from: "from".into(),
                    to: "to".into(),
                };
                vec![moving, Event::Moved { step, index, error: None }]
            }
            ["back", step, index] => {
                let (step, index) = (StepPath::from(*step), index.parse().unwrap());
                vec![Event::MovedBack { step, index, error: None }]
            }
            ["choose", step, choice] => {
                let choice = match *choice {
                    "retry" => Choice::Retry,
                    "continue" => Choice::Continue,
                    _ => Choice::Stop,
                };
                vec![Event::Decided { step: (*step).into(), choice }]
            }
            [attempt, "exit", code] => vec![ended(attempt, code.parse().unwrap(), None)],
            [attempt, "limit", until] => {
                let until = Time(until.parse().unwrap());
                vec![failed(attempt, FaultClass::Transient, Some(until))]
            }
            [attempt, "fatal"] => vec![failed(attempt, FaultClass::Fatal, None)],
            [attempt, "lines", lines @ ..] => {
                let lines = lines.iter().map(|line| (*line).to_owned()).collect();
                vec![ended(attempt, 0, Some(lines))]
            }
            _ => panic!("`{what}` is no event"),
        }
    }
}

fn ended(attempt: &str, code: i32, lines: Option<Vec<String>>) -> Event {
    let (step, attempt) = attempt.split_once('#').expect("an attempt has a number");
    let status = if code == 0 { StepStatus::Completed } else { StepStatus::Failed };
    let record = Record { status, exit_code: Some(code), lines, ..Record::default() };
    Event::Ended {
        step: step.into(),
        attempt: attempt.parse().expect("an attempt is a number"),
        record: Box::new(record),
    }
}

/// An agent failed, and said what another try is worth.
fn failed(attempt: &str, class: FaultClass, retry_at: Option<Time>) -> Event {
    let Event::Ended { step, attempt, mut record } = ended(attempt, 1, None) else {
        unreachable!()
    };
    record.error = Some(Fault { class: Some(class), retry_at, ..Fault::default() });
    let usage = Usage { turns: Some(1), ..Usage::default() };
    record.usage = Some(Box::new(record::Spent { usage, ..Default::default() }));
    Event::Ended { step, attempt, record }
}

fn show(effect: &Effect) -> String {
    match effect {
        Effect::Execute { step, attempt } => format!("run {step}#{attempt}"),
        Effect::Open { step } => format!("open {step}"),
        Effect::MoveItem { step, index, result } => {
            format!("move {step} {index} {result:?}").to_lowercase().replace("move l", "move L")
        }
        Effect::MoveBack { step, index, .. } => format!("back {step} {index}"),
        Effect::Ask { step } => format!("ask {step}"),
        Effect::Wake { at } => format!("wake {}", at.0),
        Effect::Skip { step, cause } => format!("skip {step} {cause:?}"),
        Effect::Keep { step } => format!("keep {step}"),
        Effect::Answer { step, attempt } => format!("answer {step} {attempt}"),
    }
}

const TWO: &str = "
version: '1.1'
steps:
  - { name: A, command: ['a'] }
  - { name: B, command: ['b'] }
";

const AGENT: &str = "
version: '1.1'
providers: { p: { command: ['p'] } }
steps:
  - { name: A, provider: p }
";

#[test]
fn the_time_that_a_provider_tells_is_waited_for() {
    let script = check(
        AGENT,
        &[
            "0   start         -> run A#1",
            "5   A#1 limit 100 -> wake 100",
            "50  resume        -> wake 100",
            "99  wake          -> wake 100",
            "100 wake          -> run A#2",
            "110 A#2 limit 200 -> wake 200",
            "200 wake          -> run A#3",
            "210 A#3 limit 300 -> wake 300",
            "300 wake          -> run A#4",
            "310 A#4 limit 400 -> failed",
        ],
    );
    let record = script.run.body.slots[0].record.as_deref().unwrap();
    assert_eq!(record.spent().unwrap().turns, Some(4), "every attempt has cost something");
    // A time that has passed is no reason to wait.
    check(AGENT, &["0 start -> run A#1", "5 A#1 limit 3 -> run A#2"]);
    check(AGENT, &["0 start -> run A#1", "5 A#1 exit 1 -> failed"]);
    let never = AGENT.replace("provider: p", "provider: p, retries: { max: 0 }");
    check(&never, &["0 start -> run A#1", "5 A#1 limit 100 -> failed"]);
}

#[test]
fn what_needs_a_person_is_not_tried_again() {
    let thrice = AGENT.replace("provider: p", "provider: p, retries: { max: 3 }");
    check(&thrice, &["0 start -> run A#1", "5 A#1 fatal -> failed"]);
    check(&thrice, &["0 start -> run A#1", "5 A#1 exit 1 -> run A#2"]);
}

#[test]
fn steps_follow_each_other() {
    check(TWO, &["0 start -> run A#1", "5 A#1 exit 0 -> run B#1", "9 B#1 exit 0 -> completed"]);
}

#[test]
fn an_unhandled_failure_ends_the_run_and_resume_tries_that_step_again() {
    check(
        TWO,
        &[
            "0 start       -> run A#1",
            "5 A#1 exit 3  -> failed",
            "9 resume      -> run A#2",
            "10 A#2 exit 0 -> run B#1",
            "11 resume     -> run B#2",
            "12 B#1 exit 1 -> ",
            "13 B#2 exit 0 -> completed",
        ],
    );
}

#[test]
fn a_late_end_of_a_fenced_attempt_changes_nothing() {
    let twice = "
version: '1.1'
steps:
  - { name: A, command: ['a'], retries: { max: 1, delay_ms: 100 } }
  - { name: B, command: ['b'] }
";
    check(
        twice,
        &[
            "0   start      -> run A#1",
            "5   A#1 exit 1 -> wake 105",
            "99  wake       -> wake 105",
            "105 wake       -> run A#2",
            "106 A#1 exit 0 -> ",
            "107 A#2 exit 0 -> run B#1",
        ],
    );
    check(
        twice,
        &[
            "0 start -> run A#1",
            "5 A#1 exit 1 -> wake 105",
            "105 wake -> run A#2",
            "106 A#2 exit 1 -> failed",
        ],
    );
    // Only exit codes 1 and 124 are worth another try.
    check(twice, &["0 start -> run A#1", "5 A#1 exit 2 -> failed"]);
}

#[test]
fn a_rest_is_no_longer_by_the_clock_of_whoever_takes_the_run_up() {
    let rests = "
version: '1.1'
steps:
  - { name: A, command: ['a'], retries: { max: 1, delay_ms: 100 } }
";
    let lines = ["9000 start -> run A#1", "9005 A#1 exit 1 -> wake 9105"];
    // One whose clock is behind, one whose clock is right, one whose clock is ahead.
    for (resumed, wakes) in [(40, 140), (9050, 9105), (99_000, 9105)] {
        let resumed = format!("{resumed} resume -> wake {wakes}");
        check(rests, &[lines[0], lines[1], &resumed]);
    }
}

#[test]
fn an_attempt_that_is_out_can_be_recalled_and_nothing_else_can() {
    let steps = "
version: '1.1'
steps:
  - { name: A, command: ['a'], retries: { max: 1, delay_ms: 0 } }
";
    let task = TaskRef { id: "t".into(), agent: "qa".into(), ticket: "k".into() };
    let mut play = check(steps, &[]);
    play.step("0 start -> run A#1");
    // Nothing is out as a task yet.
    play.step("1 recall A#1 -> ");
    play.run.body.slots[0].record.as_mut().unwrap().task = Some(task);
    play.step("2 recall A#2 -> ");
    play.step("3 recall A#1 -> run A#2");
    // It is no try of its own.
    play.step("4 A#1 exit 0 -> ");
    play.step("5 A#2 exit 1 -> run A#3");
    play.step("6 A#3 exit 1 -> failed");
}

#[test]
fn what_is_executed_again_stays_on_record() {
    let steps = "version: '1.1'\nsteps:\n  - { name: A, command: ['a'] }\n";
    let task = TaskRef { id: "t".into(), agent: "qa".into(), ticket: "k".into() };
    let mut play = check(steps, &["0 start -> run A#1"]);
    let put_back = |attempt, execution, deaths| Event::PutBack {
        step: "A".into(),
        attempt: Attempt::new(attempt),
        execution: TaskAttempt::new(execution),
        deaths,
    };
    let known = |play: &Script| {
        let record = play.run.body.slots[0].record.as_deref().unwrap();
        (record.executions.number(), record.warning.clone())
    };
    // Nothing is out as a task yet.
    apply(&play.plan, &mut play.run, Time(1), &put_back(1, 2, 1));
    assert_eq!(known(&play), (0, None));
    play.run.body.slots[0].record.as_mut().unwrap().task = Some(task);
    apply(&play.plan, &mut play.run, Time(2), &put_back(2, 2, 1));
    assert_eq!(known(&play), (0, None), "of another attempt");
    apply(&play.plan, &mut play.run, Time(3), &put_back(1, 2, 0));
    assert_eq!(known(&play), (2, None), "given back");
    apply(&play.plan, &mut play.run, Time(4), &put_back(1, 3, 1));
    apply(&play.plan, &mut play.run, Time(5), &put_back(1, 2, 0));
    play.step("6 A#1 exit 0 -> completed");
    assert_eq!(known(&play), (3, died_over(1)));
}

#[test]
fn attempts_are_numbered_over_all_visits() {
    let cycle = "
version: '1.1'
steps:
  - { name: A, command: ['a'] }
  - { name: B, command: ['b'], on: { failure: { goto: A } } }
";
    check(
        cycle,
        &[
            "0 start      -> run A#1",
            "1 A#1 exit 0 -> run B#1",
            "2 B#1 exit 1 -> run A#2",
            "3 A#1 exit 0 -> ",
            "4 A#2 exit 0 -> run B#2",
            "5 B#2 exit 0 -> completed",
        ],
    );
}

#[test]
fn a_cycle_that_never_ends_is_ended() {
    let cycle = "
version: '1.1'
steps:
  - { name: A, command: ['a'], on: { always: { goto: A } } }
";
    let policy = Policy { max_visits: 3, ..Policy::default() };
    let script = check_with(
        policy,
        cycle,
        &[
            "0 start -> run A#1",
            "1 A#1 exit 0 -> run A#2",
            "2 A#2 exit 1 -> run A#3",
            "3 A#3 exit 0 -> failed",
        ],
    );
    assert!(script.run.error.unwrap().contains("visited 3 times"));
}

#[test]
fn always_wins_and_a_skipped_step_does_not_jump() {
    let text = "
version: '1.1'
steps:
  - { name: A, command: ['a'], on: { success: { goto: _end }, always: { goto: C } } }
  - { name: B, command: ['b'] }
  - { name: C, command: ['c'], when: { exists: 'x' }, on: { success: { goto: B } } }
  - { name: D, command: ['d'], on: { success: { goto: _end } } }
";
    let script =
        check(text, &["0 start -> run A#1", "1 A#1 exit 0 -> run C#1", "2 C#1 exit 0 -> run B#1"]);
    assert_eq!(script.run.body.slots[2].attempts, Attempt::FIRST);
    check(
        &text.replace("always: { goto: C }", "always: { goto: D }"),
        &["0 start -> run A#1", "1 A#1 exit 1 -> run D#1", "2 D#1 exit 0 -> completed"],
    );
    // Nothing was launched for a step whose condition did not hold.
    let skips = "
version: '1.1'
steps:
  - { name: L, for_each: { items: [], steps: [{ name: S, command: ['s'] }] }, when: { exists: x },
      on: { success: { goto: _end } } }
  - { name: B, command: ['b'] }
";
    check(skips, &["0 start -> open L", "1 skip L -> run B#1"]);
}

const LOOP: &str = "
version: '1.2'
steps:
  - { name: G, command: ['g'], output_capture: lines }
  - name: L
    for_each:
      items_from: steps.G.lines
      on_item_complete: { failure: { move_to: failed } }
      steps:
        - { name: S, command: ['s'], on: { failure: { goto: H } } }
        - { name: T, command: ['t'] }
  - { name: H, command: ['h'] }
";

#[test]
fn a_loop_goes_from_item_to_item() {
    check(
        LOOP,
        &[
            "0 start          -> run G#1",
            "1 G#1 lines a b  -> open L",
            "2 open L         -> run L.0.S#1",
            "3 L.0.S#1 exit 0 -> run L.0.T#1",
            "4 L.0.T#1 exit 0 -> run L.1.S#1",
            "5 L.0.T#1 exit 1 -> ",
            "6 L.1.S#1 exit 0 -> run L.1.T#1",
            "7 L.1.T#1 exit 0 -> run H#1",
        ],
    );
    check(LOOP, &["0 start -> run G#1", "1 G#1 lines -> open L", "2 open L -> run H#1"]);
}

#[test]
fn a_goto_out_of_a_loop_moves_the_item_first() {
    check(
        LOOP,
        &[
            "0 start          -> run G#1",
            "1 G#1 lines a b  -> open L",
            "2 open L         -> run L.0.S#1",
            "3 L.0.S#1 exit 1 -> move L 0 failure",
            "4 move L 0       -> run H#1",
            "5 H#1 exit 0     -> completed",
        ],
    );
}

#[test]
fn a_halted_item_is_moved_and_put_back_when_it_is_tried_again() {
    let script = check(
        LOOP,
        &[
            "0 start          -> run G#1",
            "1 G#1 lines a b  -> open L",
            "2 open L         -> run L.0.S#1",
            "3 L.0.S#1 exit 0 -> run L.0.T#1",
            "4 L.0.T#1 exit 1 -> move L 0 failure",
            "5 resume         -> move L 0 failure",
            "6 move L 0       -> failed",
            "7 resume         -> back L 0",
            "8 back L 0       -> run L.0.T#2",
            "9 L.0.T#2 exit 0 -> run L.1.S#1",
        ],
    );
    assert!(script.run.failed_steps.is_empty());
}

#[test]
fn a_loop_entered_again_fences_its_first_visit() {
    let text = "
version: '1.1'
steps:
  - name: L
    for_each:
      items: [a]
      steps:
        - { name: S, command: ['s'] }
  - { name: B, command: ['b'], on: { success: { goto: L } } }
";
    check(
        text,
        &[
            "0 start          -> open L",
            "1 open L         -> run L.0.S#1",
            "2 L.0.S#1 exit 0 -> run B#1",
            "3 B#1 exit 0     -> open L",
            "4 open L         -> run L.0.S#2",
            "5 L.0.S#1 exit 0 -> ",
            "6 L.0.S#2 exit 0 -> run B#2",
        ],
    );
}

#[test]
fn a_jump_out_of_two_loops_unwinds_both() {
    let text = "
version: '1.2'
steps:
  - name: L
    for_each:
      items: [a, b]
      on_item_complete: { failure: { move_to: failed } }
      steps:
        - name: M
          for_each:
            items: [c]
            steps:
              - { name: S, command: ['s'], on: { failure: { goto: _end } } }
";
    check(
        text,
        &[
            "0 start              -> open L",
            "1 open L             -> open L.0.M",
            "2 open L.0.M         -> run L.0.M.0.S#1",
            "3 L.0.M.0.S#1 exit 1 -> move L 0 failure",
            "4 move L 0           -> completed",
        ],
    );
}

#[test]
fn going_on_after_errors_ends_as_failed_but_lenient_flow_as_completed() {
    let keep_going = Policy { on_error: Some(OnError::Continue), ..Policy::default() };
    let lines = ["0 start -> run A#1", "1 A#1 exit 1 -> run B#1", "2 B#1 exit 0 -> failed"];
    let script = check_with(keep_going, TWO, &lines);
    assert_eq!(script.run.failed_steps, [StepPath::top("A")]);
    let lenient = TWO.replace("steps:", "strict_flow: false\nsteps:");
    check(
        &lenient,
        &["0 start -> run A#1", "1 A#1 exit 1 -> run B#1", "2 B#1 exit 0 -> completed"],
    );
}

#[test]
fn a_person_is_asked_what_follows() {
    let ask = Policy { on_error: Some(OnError::Interactive), ..Policy::default() };
    check_with(
        ask,
        TWO,
        &[
            "0 start             -> run A#1",
            "1 A#1 exit 1        -> ask A",
            "2 choose A retry    -> run A#2",
            "3 A#2 exit 1        -> ask A",
            "4 choose A continue -> run B#1",
            "5 B#1 exit 1        -> ask B",
            "6 choose B stop     -> failed",
            "7 resume            -> run B#2",
        ],
    );
}

#[test]
fn items_that_are_no_array_fail_the_loop_before_it_begins() {
    let text = LOOP.replace("steps.G.lines", "steps.G.json.files");
    let script =
        check(&text, &["0 start -> run G#1", "1 G#1 exit 0 -> open L", "2 open L -> failed"]);
    let slot = &script.run.body.slots[1];
    assert_eq!(slot.record.as_ref().unwrap().exit_code, Some(2));
    assert!(slot.each.is_none());
}
