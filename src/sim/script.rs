//! Random workflows of all three languages, and what must come of them.
//!
//! A step's name says how it ends: `ok` does, `bad` fails, `flaky` fails twice and then does. What
//! a run comes to follows from its text alone, whatever happens to those who drive it.

use std::collections::BTreeSet;

use crate::base::ids::Attempt;
use crate::base::random::Random;
use crate::engine::RunStatus;

/// A workflow, and what must come of it.
#[derive(Clone, Debug)]
pub(super) struct Story {
    pub text: String,
    pub status: RunStatus,
    /// The steps that are executed, each to its end.
    pub executed: BTreeSet<String>,
    /// It asks somebody.
    pub gates: bool,
    /// Somebody says no, which ends it: what went on beside may be executed or not.
    pub vetoed: bool,
}

pub(super) const AGENTS: [&str; 2] = ["qa", "dev"];

/// How an attempt at a step ends, by its name.
pub(super) fn exit_code(step: &str, attempt: Attempt) -> i32 {
    let name = step.rsplit('.').next().unwrap_or(step);
    if name.starts_with("bad") {
        return 1;
    }
    i32::from(name.starts_with("flaky") && attempt <= Attempt::new(2))
}

pub(super) fn story(random: &mut Random) -> Story {
    match random.below(3) {
        0 => steps(random),
        1 => nodes(random),
        _ => grimoire(random),
    }
}

/// A run with a task, an execution of the coordinator's own that is tried again, and a question.
pub(super) fn quiet() -> Story {
    let text = "name: w\ndescription: what it is for\nnodes:\n  \
                - { id: ok0, bash: x, agent: dev }\n  \
                - { id: gate1, approval: { message: m }, depends_on: [ok0] }\n  \
                - { id: ok2, bash: x, depends_on: [gate1] }\n  \
                - { id: ok3, bash: x, agent: dev, depends_on: [ok2] }\n";
    let executed = ["ok0", "ok2", "ok3"].map(str::to_owned).into();
    let (text, status) = (text.to_owned(), RunStatus::Completed);
    Story { text, status, executed, gates: true, vetoed: false }
}

/// A run whose tasks do not wait for one another.
pub(super) fn wide(tasks: usize) -> Story {
    let mut text = "name: w\ndescription: what it is for\nnodes:\n".to_owned();
    for number in 0..tasks {
        text += &format!("  - {{ id: ok{number}, bash: x, agent: {} }}\n", AGENTS[0]);
    }
    let executed = (0..tasks).map(|number| format!("ok{number}")).collect();
    Story { text, status: RunStatus::Completed, executed, gates: false, vetoed: false }
}

fn agent(random: &mut Random) -> String {
    match random.below(4) {
        0 => String::new(),
        n => format!(", agent: {}", AGENTS[n % 2]),
    }
}

/// `steps:`, one after the other, with loops, retries and ways around a failure.
fn steps(random: &mut Random) -> Story {
    let mut text = "version: '1.1'\nsteps:\n".to_owned();
    let mut executed = BTreeSet::new();
    let mut status = RunStatus::Completed;
    let count = 1 + random.below(4);
    let mut skip_to = 0;
    for number in 0..count {
        let to = agent(random);
        let reached = status == RunStatus::Completed && number >= skip_to;
        match random.below(8) {
            0 => {
                text += &format!(
                    "  - name: loop{number}\n    for_each:\n      items: [a, b]\n      \
                     steps:\n        - {{ name: ok, command: [x]{to} }}\n"
                );
                if reached {
                    executed.extend((0..2).map(|item| format!("loop{number}.{item}.ok")));
                }
            }
            1 => {
                let retries = "retries: { max: 2, delay_ms: 100 }";
                text += &format!("  - {{ name: flaky{number}, command: [x], {retries}{to} }}\n");
                if reached {
                    executed.insert(format!("flaky{number}"));
                }
            }
            2 if number + 1 < count => {
                // A failure that leads past the next step, to the end.
                let on = "on: { failure: { goto: _end } }";
                text += &format!("  - {{ name: bad{number}, command: [x], {on}{to} }}\n");
                if reached {
                    executed.insert(format!("bad{number}"));
                    skip_to = count;
                }
            }
            3 => {
                text += &format!("  - {{ name: bad{number}, command: [x]{to} }}\n");
                if reached {
                    executed.insert(format!("bad{number}"));
                    status = RunStatus::Failed;
                }
            }
            _ => {
                text += &format!("  - {{ name: ok{number}, command: [x]{to} }}\n");
                if reached {
                    executed.insert(format!("ok{number}"));
                }
            }
        }
    }
    Story { text, status, executed, gates: false, vetoed: false }
}

/// `nodes:`, each waiting for some before it by one of the join rules, some tried again, with a
/// person asked now and then, who says no to a veto.
fn nodes(random: &mut Random) -> Story {
    let mut text = "name: w\ndescription: what it is for\nnodes:\n".to_owned();
    let mut executed = BTreeSet::new();
    let mut status = RunStatus::Completed;
    // By number: the name, and whether it comes to a good end.
    let mut known: Vec<(String, bool)> = Vec::new();
    let (mut gates, mut vetoed) = (false, false);
    for number in 0..1 + random.below(5) {
        let waits: Vec<usize> = (0..number).filter(|_| random.below(3) == 0).collect();
        let mut well = waits.iter().map(|before| known[*before].1);
        let (rule, reached) = match random.below(6) {
            0 if !waits.is_empty() => (", trigger_rule: all_done", true),
            1 if !waits.is_empty() => (", trigger_rule: one_success", well.any(|well| well)),
            _ => ("", well.all(|well| well)),
        };
        let names: Vec<&str> = waits.iter().map(|before| known[*before].0.as_str()).collect();
        let waits = format!(", depends_on: [{}]{rule}", names.join(", "));
        let (kind, well) = match random.below(16) {
            0 | 1 => ("bad", false),
            2 => ("gate", true),
            3 => ("veto", false),
            4 => ("flaky", true),
            _ => ("ok", true),
        };
        let name = format!("{kind}{number}");
        if kind == "gate" || kind == "veto" {
            gates = true;
            vetoed |= reached && kind == "veto";
            text += &format!("  - {{ id: {name}, approval: {{ message: m }}{waits} }}\n");
        } else {
            let to = agent(random);
            let retry = match kind {
                "flaky" => ", retry: { max_attempts: 2, delay_ms: 1000, on_error: all }",
                _ => "",
            };
            text += &format!("  - {{ id: {name}, bash: \"x\"{waits}{retry}{to} }}\n");
            if reached {
                executed.insert(name.clone());
            }
        }
        if reached && !well {
            status = RunStatus::Failed;
        }
        known.push((name, reached && well));
    }
    if vetoed {
        status = RunStatus::Cancelled;
    }
    Story { text, status, executed, gates, vetoed }
}

/// A grimoire: scripts, some of which may fail, and loops of them.
fn grimoire(random: &mut Random) -> Story {
    let mut text = "name: g\nsteps:\n".to_owned();
    let mut executed = BTreeSet::new();
    let mut status = RunStatus::Completed;
    for number in 0..1 + random.below(4) {
        let reached = status == RunStatus::Completed;
        let (name, carry_on) = match random.below(6) {
            0 => (format!("bad{number}"), true),
            1 => (format!("bad{number}"), false),
            2 => {
                text += &format!(
                    "  - name: loop{number}\n    type: loop\n    max_iterations: 2\n    \
                     on_max_iterations: continue\n    steps:\n      \
                     - {{ name: ok{number}, type: script, command: 'x' }}\n"
                );
                if reached {
                    executed.extend((0..2).map(|round| format!("loop{number}.{round}.ok{number}")));
                }
                continue;
            }
            _ => (format!("ok{number}"), false),
        };
        let on_fail = if carry_on { ", on_fail: continue" } else { "" };
        text += &format!("  - {{ name: {name}, type: script, command: 'x'{on_fail} }}\n");
        if reached {
            executed.insert(name.clone());
            if name.starts_with("bad") && !carry_on {
                status = RunStatus::Blocked;
            }
        }
    }
    Story { text, status, executed, gates: false, vetoed: false }
}
