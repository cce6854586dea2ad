//! Random workflows of all three languages, and what must come of them.
//!
//! A step's name says how it ends: `ok` does, `bad` fails, `flaky` fails twice and then does. What
//! a run comes to follows from its text alone, whatever happens to those who drive it.

use std::collections::BTreeSet;

use crate::engine::RunStatus;
use crate::random::Random;

/// A workflow, and what must come of it.
#[derive(Clone, Debug)]
pub struct Story {
    pub text: String,
    pub status: RunStatus,
    /// The steps that are executed, each to its end.
    pub executed: BTreeSet<String>,
    /// It asks somebody.
    pub gates: bool,
}

pub const AGENTS: [&str; 2] = ["qa", "dev"];

/// How an attempt at a step ends, by its name.
pub fn exit_code(step: &str, attempt: u32) -> i32 {
    let name = step.rsplit('.').next().unwrap_or(step);
    if name.starts_with("bad") {
        return 1;
    }
    i32::from(name.starts_with("flaky") && attempt <= 2)
}

pub fn story(random: &mut Random) -> Story {
    match random.below(3) {
        0 => steps(random),
        1 => nodes(random),
        _ => grimoire(random),
    }
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
    Story { text, status, executed, gates: false }
}

/// `nodes:`, each waiting for some before it, with a person asked now and then.
fn nodes(random: &mut Random) -> Story {
    let mut text = "name: w\ndescription: what it is for\nnodes:\n".to_owned();
    let mut executed = BTreeSet::new();
    let mut status = RunStatus::Completed;
    // By number: the name, and whether it comes to a good end.
    let mut known: Vec<(String, bool)> = Vec::new();
    let mut gates = false;
    for number in 0..1 + random.below(5) {
        let waits: Vec<usize> = (0..number).filter(|_| random.below(3) == 0).collect();
        let reached = waits.iter().all(|before| known[*before].1);
        let names: Vec<&str> = waits.iter().map(|before| known[*before].0.as_str()).collect();
        let waits = format!(", depends_on: [{}]", names.join(", "));
        let (name, well) = match random.below(8) {
            0 => (format!("bad{number}"), false),
            1 => (format!("gate{number}"), true),
            _ => (format!("ok{number}"), true),
        };
        if name.starts_with("gate") {
            gates = true;
            text += &format!("  - {{ id: {name}, approval: {{ message: m }}{waits} }}\n");
        } else {
            let to = agent(random);
            text += &format!("  - {{ id: {name}, bash: \"x\"{waits}{to} }}\n");
            if reached {
                executed.insert(name.clone());
            }
        }
        if reached && !well {
            status = RunStatus::Failed;
        }
        known.push((name, reached && well));
    }
    Story { text, status, executed, gates }
}

/// A grimoire: scripts, some of which may fail.
fn grimoire(random: &mut Random) -> Story {
    let mut text = "name: g\nsteps:\n".to_owned();
    let mut executed = BTreeSet::new();
    let mut status = RunStatus::Completed;
    for number in 0..1 + random.below(4) {
        let (name, carry_on) = match random.below(5) {
            0 => (format!("bad{number}"), true),
            1 => (format!("bad{number}"), false),
            _ => (format!("ok{number}"), false),
        };
        let on_fail = if carry_on { ", on_fail: continue" } else { "" };
        text += &format!("  - {{ name: {name}, type: script, command: 'x'{on_fail} }}\n");
        if status == RunStatus::Completed {
            executed.insert(name.clone());
            if name.starts_with("bad") && !carry_on {
                status = RunStatus::Blocked;
            }
        }
    }
    Story { text, status, executed, gates: false }
}
