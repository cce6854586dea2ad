//! Scripts for graphs: something happens, and then exactly this is owed.

use super::*;
use crate::agent::faults::FaultClass;
use crate::base::ids::{Attempt, RunId};
use crate::engine::run::Origin;
use crate::template::nodes::NodeText;
use crate::workflow::Plan;
use crate::workflow::plan::{
    Action, Block, Edges, Gate, JoinRule, Prompt, Retries, Rounds, RoundsKind, ShellText, Step,
    Which, Words,
};

/// `a | b: a | c: a b all_done`: nodes, what each waits for, and its rule. `b!` runs every time,
/// `b*` is a loop with a check, `b?` an approval with rework, `b+` is tried again, `b^` cancels.
fn plan(text: &str) -> Plan {
    let (mut steps, mut before, mut rules) = (Vec::<Step>::new(), Vec::new(), Vec::new());
    for node in text.split('|') {
        let (name, waits) = node.split_once(':').unwrap_or((node, ""));
        let name = name.trim();
        let plain = name.trim_end_matches(['!', '*', '?', '+', '^']);
        let action = match &name[plain.len()..] {
            "*" => rounds(RoundsKind::Loop),
            "?" => rounds(RoundsKind::Approval),
            "^" => Action::Cancel { reason: NodeText::parse("enough") },
            _ => Action::Shell { script: ShellText::Node(NodeText::parse("true")) },
        };
        let mut rule = JoinRule::default();
        let mut upstreams = Vec::new();
        for word in waits.split_whitespace() {
            match JoinRule::ALL.iter().find(|(name, _)| *name == word) {
                Some((_, named)) => rule = *named,
                None => upstreams.push(steps.iter().position(|step| step.name == word).unwrap()),
            }
        }
        let retried = name.ends_with('+');
        let delay_ms = Some(1000);
        steps.push(Step {
            always_run: name.ends_with('!'),
            retries: retried.then_some(Retries { max: 2, delay_ms, which: Which::Transient }),
            ..Step::new(plain, action)
        });
        before.push(upstreams);
        rules.push(rule);
    }
    Plan::of_block(Block::graph(steps, Edges::new(before, rules)))
}

fn rounds(kind: RoundsKind) -> Action {
    let text = || NodeText::parse("x");
    let prompt = |name: &str| {
        let words = Words::Inline(text());
        let provider = "offline".into();
        let (params, format, until) = Default::default();
        Step::new(
            name,
            Action::Prompt(Prompt { words, provider, params, format, until, fresh: false }),
        )
    };
    let gate = Step::new("gate", Action::Gate(Gate { message: text(), capture: true }));
    let steps = match kind {
        RoundsKind::Loop => {
            let script = ShellText::Node(text());
            vec![prompt("prompt"), Step::new("until_bash", Action::Shell { script })]
        }
        _ => vec![gate, prompt("on_reject")],
    };
    Action::Rounds(Rounds { block: Block::sequence(steps), kind, most: 3 })
}

struct Script {
    plan: Plan,
    run: Run,
    room: usize,
    /// Executions go out as tasks.
    fleet: bool,
}

/// Plays lines `WHAT -> OWED`; executions that are owed are launched at once.
fn check(text: &str, lines: &[&str]) -> Script {
    check_in(false, text, lines)
}

fn check_in(fleet: bool, text: &str, lines: &[&str]) -> Script {
    let plan = plan(text);
    let id = RunId::new("20250115T143022Z", 7);
    let origin = Origin {
        run_id: id.as_str().into(),
        workflow_file: "w.yaml".into(),
        workflow_checksum: "sha256:0".into(),
        run_root: ".orchestrate/runs/x".into(),
        workspace: None,
        context: Default::default(),
        policy: Policy::default(),
        only_step: None,
        archive: None,
        fleet: false,
        request: None,
        definition: None,
    };
    let run = Run::new(&plan, id, origin, Time(0));
    let mut script = Script { plan, run, room: 99, fleet };
    for line in lines {
        script.play(line);
    }
    script
}

impl Script {
    fn play(&mut self, line: &str) {
        let (what, wanted) = line.split_once("->").expect("a line has an arrow");
        let at = Time(0);
        if let Some(event) = self.event(what.trim()) {
            self.record(at, &event);
        }
        self.settle_by_itself(at);
        let owed = owed(&self.plan, &self.run, self.room);
        let shown: Vec<String> = owed.iter().map(show).collect();
        let shown = match self.run.status {
            RunStatus::Running => shown.join(", "),
            status => format!("{status:?}").to_lowercase(),
        };
        assert_eq!(shown, wanted.trim(), "after `{line}`");
        for effect in owed {
            if let Effect::Execute { step, attempt } = effect {
                // A gate is not launched: whoever drives the run asks.
                let here = Address::find(&self.plan, &step).expect("there is such a step");
                if matches!(here.step_of(&self.plan).action, Action::Gate(_)) {
                    continue;
                }
                let task = TaskRef { id: "t".into(), agent: "a".into(), ticket: "k".into() };
                let task = self.fleet.then_some(task);
                let launched = Event::Launched { step, attempt, task };
                self.record(at, &launched);
            }
        }
        self.same_after_reading_back();
    }

    /// Applies an event. Whoever read the run's document just before comes to the same.
    fn record(&mut self, at: Time, event: &Event) {
        use crate::store::snapshot::{decode, encode};
        let document = encode(&self.plan, &self.run, 1, 1);
        apply(&self.plan, &mut self.run, at, event);
        if matches!(event, Event::Started { .. }) {
            return;
        }
        let mut theirs = decode(&self.plan, &document).expect("it can be read").run;
        apply(&self.plan, &mut theirs, at, event);
        let text = |run| String::from_utf8(encode(&self.plan, run, 1, 1)).expect("it is text");
        assert_eq!(text(&theirs), text(&self.run), "after {event:?}");
    }

    /// Records what needs nothing from the world.
    fn settle_by_itself(&mut self, at: Time) {
        loop {
            let owed = owed(&self.plan, &self.run, 99);
            let event = owed.into_iter().find_map(|effect| match effect {
                Effect::Skip { step, cause } => {
                    Some(Event::Skipped { step, cause: Some(cause), warning: None })
                }
                Effect::Keep { step } => Some(Event::Kept { step }),
                Effect::Open { step } => Some(Event::Opened { step }),
                _ => None,
            });
            match event {
                Some(event) => self.record(at, &event),
                None => return,
            }
        }
    }

    /// Whoever reads the run's document goes on alike.
    fn same_after_reading_back(&self) {
        let text = crate::store::snapshot::encode(&self.plan, &self.run, 1, 1);
        let loaded = crate::store::snapshot::decode(&self.plan, &text).expect("it can be read");
        let (ours, theirs) = (&self.run, &loaded.run);
        assert_eq!(theirs.status, ours.status);
        assert_eq!(owed(&self.plan, theirs, 99), owed(&self.plan, ours, 99));
        assert_eq!(theirs.body.front, ours.body.front);
    }

    fn event(&self, what: &str) -> Option<Event> {
        let words: Vec<_> = what.split_whitespace().collect();
        let attempt = |step: &str| {
            let here = Address::parse(&self.plan, step).expect("there is such a step");
            self.run.slot(&here).map_or(Attempt::NONE, |slot| slot.attempts)
        };
        let ended = |step: &str, record: Record| Event::Ended {
            step: step.into(),
            attempt: attempt(step),
            record: Box::new(record),
        };
        let failed = |class| {
            let error = Fault { exit_code: 1, class: Some(class), ..Fault::default() };
            Record {
                status: StepStatus::Failed,
                exit_code: Some(1),
                error: Some(error),
                metrics: Some(Default::default()),
                ..Record::default()
            }
        };
        let completed = |output: &str| Record {
            status: StepStatus::Completed,
            exit_code: Some(0),
            output: Some(output.into()),
            ..Record::default()
        };
        Some(match words.as_slice() {
            [] => return None,
            ["start"] => Event::Started { origin: Box::new(self.run.origin.clone()) },
            ["resume"] => Event::Resumed { policy: Policy::default(), asked: false },
            ["resume", "asked"] => Event::Resumed { policy: Policy::default(), asked: true },
            ["rewind", step] => Event::Rewound { step: (*step).into() },
            ["cancel"] => Event::Cancelled { reason: None },
            ["wake"] => Event::Woke,
            ["bar", step] => Event::Skipped {
                step: (*step).into(),
                cause: Some(SkipCause::Condition),
                warning: None,
            },
            ["ask", step] => Event::Gated {
                step: (*step).into(),
                attempt: attempt(step).next(),
                gate: Box::new(GateRecord {
                    message: "well?".into(),
                    shown: "x".into(),
                    subject: None,
                    expires_at: None,
                    answer: None,
                }),
            },
            [word @ ("yes" | "no"), step, comment @ ..] => Event::Answered {
                step: (*step).into(),
                attempt: attempt(step),
                answer: Answer { approve: *word == "yes", comment: comment.join(" "), by: None },
            },
            [step, "fails"] => ended(step, failed(FaultClass::Unknown)),
            [step, "stumbles"] => ended(step, failed(FaultClass::Transient)),
            [step, "done"] => {
                ended(step, Record { until_met: Some(true), ..completed("all done") })
            }
            [step, "says", output] => ended(step, completed(output)),
            _ => panic!("`{what}` is no event"),
        })
    }

    fn status(&self, node: &str) -> StepStatus {
        let (index, _) = self.plan.root().find(node).expect("there is such a node");
        self.run.body.slots[index].status()
    }

    fn output(&self, node: &str) -> &str {
        let (index, _) = self.plan.root().find(node).expect("there is such a node");
        let record = self.run.body.slots[index].record.as_deref();
        record.and_then(|record| record.output.as_deref()).unwrap_or_default()
    }
}

fn show(effect: &Effect) -> String {
    match effect {
        Effect::Execute { step, attempt } => format!("run {step}#{attempt}"),
        Effect::Answer { step, .. } => format!("answer {step}"),
        Effect::Wake { at } => format!("wake {}", at.0),
        other => format!("{other:?}"),
    }
}

#[test]
fn nodes_start_when_their_own_upstreams_have_settled() {
    let script = check(
        "a | b | c: a | d: a b | e: c d",
        &[
            "start -> run a#1, run b#1",
            "a says x -> run c#1",
            "c says x -> ",
            "b says x -> run d#1",
            "d says x -> run e#1",
            "e says x -> completed",
        ],
    );
    assert_eq!(script.status("e"), StepStatus::Completed);
}

#[test]
fn a_failure_stops_nobody_beside_it_and_fails_the_run() {
    let script = check(
        "a | b | c: a | d: c | e: b",
        &["start -> run a#1, run b#1", "a fails -> ", "b says x -> run e#1", "e says x -> failed"],
    );
    assert_eq!(script.status("d"), StepStatus::Skipped);
    assert_eq!(script.run.failed_steps.len(), 1);
}

#[test]
fn each_rule_decides_by_what_came_before() {
    let rule = |rule: &str, first: &str, second: &str| {
        let text = format!("a | b | j: a b {rule}");
        let script = check(&text, &["start -> run a#1, run b#1"]);
        let mut script = script;
        for (node, what) in [("a", first), ("b", second)] {
            let event = match what {
                "skipped" => {
                    // As if its condition had not held.
                    let here = Address::parse(&script.plan, node).unwrap();
                    let slot = script.run.slot_mut(&here).unwrap();
                    slot.state = StepState::Ready;
                    script.event(&format!("bar {node}"))
                }
                what => script.event(&format!("{node} {what}")),
            };
            apply(&script.plan, &mut script.run, Time(0), &event.unwrap());
        }
        let effects = owed(&script.plan, &script.run, 9);
        match effects.first() {
            Some(Effect::Execute { .. }) => "runs",
            Some(Effect::Skip { cause: SkipCause::UpstreamFailed, .. }) => "failed",
            Some(Effect::Skip { .. }) => "skipped",
            _ => "nothing",
        }
    };
    for (name, both, one_failed, one_skipped, none) in [
        ("all_success", "runs", "failed", "skipped", "failed"),
        ("one_success", "runs", "runs", "runs", "failed"),
        ("none_failed_min_one_success", "runs", "failed", "runs", "failed"),
        ("all_done", "runs", "runs", "runs", "runs"),
    ] {
        assert_eq!(rule(name, "says x", "says x"), both, "{name}");
        assert_eq!(rule(name, "says x", "fails"), one_failed, "{name}");
        assert_eq!(rule(name, "says x", "skipped"), one_skipped, "{name}");
        assert_eq!(rule(name, "skipped", "fails"), none, "{name}");
    }
    assert_eq!(rule("none_failed_min_one_success", "skipped", "skipped"), "skipped");
}

#[test]
fn a_skip_carries_the_failure_behind_it() {
    let script = check(
        "a | b: a | ok | join: b ok none_failed_min_one_success",
        &["start -> run a#1, run ok#1", "ok says x -> ", "a fails -> failed"],
    );
    assert_eq!(script.status("join"), StepStatus::Skipped);
}

#[test]
fn a_run_none_of_whose_nodes_completed_has_failed() {
    let mut script = check("a", &["start -> run a#1"]);
    let here = Address::parse(&script.plan, "a").unwrap();
    script.run.slot_mut(&here).unwrap().state = StepState::Ready;
    script.play("bar a -> failed");
    assert!(script.run.error.unwrap().contains("no node completed"));
}

#[test]
fn only_as_much_is_owed_as_there_is_room_for() {
    let mut script = check("a | b | c", &[]);
    script.room = 2;
    script.play("start -> run a#1, run b#1");
    script.room = 1;
    script.play("b says x -> run c#1");
}

#[test]
fn what_takes_no_process_needs_no_room() {
    let mut script = check("a | b | c | d^: a | e: b | f?", &[]);
    script.room = 2;
    script.play("start -> run f.0.gate#1, run a#1, run b#1");
    script.room = 0;
    script.play("ask f.0.gate -> answer f.0.gate");
    script.play("b fails -> answer f.0.gate");
    assert_eq!(script.status("e"), StepStatus::Skipped);
    script.play("a says x -> answer f.0.gate, run d#1");
    script.room = 1;
    script.play(" -> answer f.0.gate, run c#1");
}

#[test]
fn what_may_pass_is_tried_again_each_time_after_twice_as_long() {
    check(
        "a+ | b+",
        &["start -> run a#1, run b#1", "a stumbles -> wake 1000", "b fails -> wake 1000"],
    );
    let mut script = check("a+", &["start -> run a#1", "a stumbles -> wake 1000"]);
    apply(&script.plan, &mut script.run, Time(1000), &Event::Woke);
    script.play(" -> run a#2");
    script.play("a stumbles -> wake 2000");
    apply(&script.plan, &mut script.run, Time(2000), &Event::Woke);
    script.play(" -> run a#3");
    script.play("a stumbles -> failed");
}

#[test]
fn a_loop_goes_round_until_the_agent_or_the_check_says_so() {
    let script = check(
        "l* | z: l",
        &[
            "start -> run l.0.prompt#1",
            "l.0.prompt says one -> run l.0.until_bash#1",
            "l.0.until_bash fails -> run l.1.prompt#1",
            "l.1.prompt done -> run z#1",
            "z says x -> completed",
        ],
    );
    assert_eq!(script.output("l"), "all done");
    let script = check(
        "l*",
        &[
            "start -> run l.0.prompt#1",
            "l.0.prompt says one -> run l.0.until_bash#1",
            "l.0.until_bash says ok -> completed",
        ],
    );
    assert_eq!(script.output("l"), "one");
}

#[test]
fn a_loop_that_is_never_done_or_fails_a_round_fails_its_node() {
    check(
        "l*",
        &[
            "start -> run l.0.prompt#1",
            "l.0.prompt says one -> run l.0.until_bash#1",
            "l.0.until_bash fails -> run l.1.prompt#1",
            "l.1.prompt says one -> run l.1.until_bash#1",
            "l.1.until_bash fails -> run l.2.prompt#1",
            "l.2.prompt says one -> run l.2.until_bash#1",
            "l.2.until_bash fails -> failed",
            // It begins anew, and its attempts count on.
            "resume -> run l.0.prompt#2",
        ],
    );
    check(
        "l*",
        &[
            "start -> run l.0.prompt#1",
            "l.0.prompt says one -> run l.0.until_bash#1",
            "l.0.until_bash fails -> run l.1.prompt#1",
            "l.1.prompt fails -> failed",
            // The round that failed is done again, not the ones before it.
            "resume -> run l.1.prompt#2",
            "l.1.prompt done -> completed",
        ],
    );
}

#[test]
fn an_approval_waits_and_goes_on_or_is_reworked_or_ends_the_run() {
    let ask = |lines: &[&str]| {
        let mut script = check("a? | b: a", &[]);
        let started = script.event("start").unwrap();
        apply(&script.plan, &mut script.run, Time(0), &started);
        apply(&script.plan, &mut script.run, Time(0), &Event::Opened { step: "a".into() });
        for line in lines {
            script.play(line);
        }
        script
    };
    let script = ask(&["ask a.0.gate -> answer a.0.gate"]);
    assert!(script.run.is_paused());
    assert_eq!(script.run.shown_status(), RunStatus::Paused);
    let script = ask(&["ask a.0.gate -> answer a.0.gate", "yes a.0.gate -> run b#1"]);
    assert_eq!(script.output("a"), "Approved");
    let script = ask(&[
        "ask a.0.gate -> answer a.0.gate",
        "yes a.0.gate ship it -> run b#1",
        "yes a.0.gate again -> ",
        "b says x -> completed",
    ]);
    assert_eq!(script.output("a"), "ship it");
    let mut script =
        ask(&["ask a.0.gate -> answer a.0.gate", "no a.0.gate too slow -> run a.0.on_reject#1"]);
    let done = script.event("a.0.on_reject says better").unwrap();
    apply(&script.plan, &mut script.run, Time(0), &done);
    script.play("ask a.1.gate -> answer a.1.gate");
    script.play("no a.1.gate -> run a.1.on_reject#1");
    let done = script.event("a.1.on_reject says better").unwrap();
    apply(&script.plan, &mut script.run, Time(0), &done);
    script.play("ask a.2.gate -> answer a.2.gate");
    script.play("no a.2.gate never -> cancelled");
    assert_eq!(script.run.error.as_deref(), Some("`a` was rejected 3 times: never"));
}

#[test]
fn a_cancel_node_ends_the_run_and_what_goes_on_beside_it() {
    let script = check(
        "a | c^: a | b | d: c",
        &["start -> run a#1, run b#1", "a says x -> run c#1", "c says enough -> cancelled"],
    );
    assert_eq!(script.run.error.as_deref(), Some("enough"));
    assert_eq!(script.status("b"), StepStatus::Failed);
    assert_eq!(script.status("d"), StepStatus::Pending);
}

#[test]
fn resume_keeps_what_completed_and_redoes_what_failed() {
    let script = check(
        "a | b: a | c: b | ok | j: c ok",
        &[
            "start -> run a#1, run ok#1",
            "a says x -> run b#1",
            "ok says y -> ",
            "b fails -> failed",
            "resume -> run b#2",
            "b says z -> run c#1",
            "c says z -> run j#1",
            "j says z -> completed",
        ],
    );
    assert_eq!(script.status("a"), StepStatus::Completed);
}

#[test]
fn a_wish_redoes_what_failed_and_what_runs_every_time_while_a_person_is_asked() {
    let lines = |said: &str, then: &str| {
        check(
            "a! | g?: a | s",
            &[
                "start -> run a#1, run s#1",
                "a says x -> run g.0.gate#1",
                "ask g.0.gate -> answer g.0.gate",
                "s fails -> answer g.0.gate",
                "resume -> answer g.0.gate",
                "resume asked -> run a#2, run s#2",
                // Whoever takes it up meanwhile changes nothing of that.
                "resume -> run a#3, run s#3",
                &format!("a says {said} -> {then}"),
            ],
        )
    };
    let mut same = lines("x", "answer g.0.gate");
    same.play("yes g.0.gate fine -> ");
    same.play("s says y -> completed");
    assert_eq!(same.output("g"), "fine");
    // What was asked is not what would be asked now, so an answer to it is none.
    lines("y", "run g.0.gate#2");
}

#[test]
fn rounds_that_have_begun_go_on_if_they_would_be_given_the_same() {
    let lines = |said: &str, then: &str| {
        check(
            "a! | l*: a",
            &[
                "start -> run a#1",
                "a says x -> run l.0.prompt#1",
                "l.0.prompt says no -> run l.0.until_bash#1",
                "resume asked -> run a#2",
                &format!("a says {said} -> {then}"),
            ],
        )
    };
    let mut same = lines("x", "run l.0.until_bash#2");
    same.play("l.0.until_bash fails -> run l.1.prompt#1");
    lines("y", "run l.0.prompt#2");
}

#[test]
fn a_task_that_is_out_goes_on_with_what_it_was_given() {
    check_in(
        true,
        "a! | l*: a | b: a",
        &[
            "start -> run a#1",
            "a says x -> run l.0.prompt#1, run b#1",
            "resume asked -> run a#2",
            "l.0.prompt says no -> run l.0.until_bash#1",
            "a says y -> ",
            "b says z -> ",
            "l.0.until_bash says fine -> completed",
        ],
    );
}

#[test]
fn a_run_that_is_sent_back_keeps_what_does_not_come_after() {
    let mut script = check(
        "g? | b | h?: b | z: g h",
        &[
            "start -> run g.0.gate#1, run b#1",
            "ask g.0.gate -> answer g.0.gate",
            "b says x -> answer g.0.gate, run h.0.gate#1",
            "ask h.0.gate -> answer g.0.gate, answer h.0.gate",
            "rewind b -> answer g.0.gate, run b#2",
            // Nothing after it stands, though it says the same.
            "b says x -> answer g.0.gate, run h.0.gate#2",
            "yes g.0.gate fine -> run h.0.gate#2",
            "ask h.0.gate -> answer h.0.gate",
            "rewind b -> run b#3",
            "b says x -> run h.0.gate#3",
        ],
    );
    assert_eq!(script.output("g"), "fine");
    script.play("cancel -> cancelled");
    script.play("rewind h -> run h.0.gate#3");
    assert_eq!(script.status("g"), StepStatus::Completed);
}

#[test]
fn what_runs_every_time_makes_others_run_again_only_if_it_says_something_else() {
    let lines = |said: &str, then: &str| {
        check(
            "a! | b: a | f: b",
            &[
                "start -> run a#1",
                "a says x -> run b#1",
                "b says y -> run f#1",
                "f fails -> failed",
                "resume -> run a#2",
                &format!("a says {said} -> {then}"),
            ],
        )
    };
    lines("x", "run f#2");
    lines("z", "run b#2");
}

#[test]
fn going_back_to_a_node_redoes_it_and_all_that_follows() {
    check(
        "a | b: a | c: b | d: a",
        &[
            "start -> run a#1",
            "a says x -> run b#1, run d#1",
            "b says x -> run c#1",
            "d says x -> ",
            "c says x -> completed",
            "rewind b -> run b#2",
            "b says x -> run c#2",
            "c says x -> completed",
        ],
    );
}

#[test]
fn what_was_cut_off_is_made_again_and_gates_stay() {
    let mut script = check("a | b", &["start -> run a#1, run b#1", "a says x -> "]);
    script.play("resume -> run b#2");
    script.play("b says x -> completed");
}

#[test]
fn cancelling_ends_everything() {
    let script =
        check("a | b: a | l*", &["start -> run l.0.prompt#1, run a#1", "cancel -> cancelled"]);
    assert_eq!(script.status("a"), StepStatus::Failed);
    assert_eq!(script.status("l"), StepStatus::Failed);
    let mut script = script;
    script.play("resume -> run l.0.prompt#2, run a#2");
}

#[test]
fn a_gate_behind_a_node_that_is_done_again_asks_anew() {
    let script = check(
        "a | g?: a | b: g",
        &[
            "start -> run a#1",
            "a says x -> run g.0.gate#1",
            "ask g.0.gate -> answer g.0.gate",
            "cancel -> cancelled",
            "rewind a -> run a#2",
            "a says y -> run g.0.gate#2",
            "ask g.0.gate -> answer g.0.gate",
            "yes g.0.gate -> run b#1",
            "b says z -> completed",
        ],
    );
    assert_eq!(script.status("g"), StepStatus::Completed);
}

#[test]
fn tries_are_counted_whoever_reads_the_run_in_between() {
    check("a+ | b: a", &["start -> run a#1", "a stumbles -> wake 1000", "resume -> wake 1000"]);
}
