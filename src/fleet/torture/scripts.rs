//! The workflows that a tortured fleet runs, each with what must come of it.
//!
//! A step may be executed more often than it should without changing where the run goes, so the
//! order of a run's ends is known, but for an end that is followed by another of the same step.

use crate::engine::RunStatus;

/// A workflow and what must come of it.
pub(super) struct Script {
    pub name: &'static str,
    pub yaml: &'static str,
    /// The steps that end, in order, each as often as it is come to.
    pub path: &'static [&'static str],
    pub outcome: RunStatus,
}

/// What every step executes: it leaves a line in `trace`, then does what it is told.
pub(super) const STEP: &str = r#"#!/bin/sh
printf '%s %s %s %s\n' "$ORCHESTRATE_RUN_ID" "$ORCHESTRATE_STEP" "$ORCHESTRATE_ATTEMPT" \
  "${ORCHESTRATE_MARK%%;*}" >> trace
case "$1" in
  nap) exec sleep "$2";;
  flaky) [ "$ORCHESTRATE_ATTEMPT" -ge 2 ];;
  bad) exit 3;;
  is) [ -e "marks/$ORCHESTRATE_RUN_ID.$2" ];;
  make) : > "marks/$ORCHESTRATE_RUN_ID.$2";;
  asked) grep -q '^whole$' || echo "${ORCHESTRATE_MARK%%;*}" >> torn;;
esac
"#;

pub(super) const SCRIPTS: [Script; 9] = [
    Script {
        name: "chain",
        yaml: r#"
version: "1.1"
steps:
  - { name: A, agent: qa, command: [./step] }
  - { name: B, command: [./step] }
  - { name: C, agent: engineer, command: [./step, nap, "0.2"] }
  - { name: D, command: [./step, nap, "0.1"] }
  - { name: E, agent: qa, command: [./step] }
"#,
        path: &["A", "B", "C", "D", "E"],
        outcome: RunStatus::Completed,
    },
    Script {
        name: "loop",
        yaml: r#"
version: "1.1"
steps:
  - { name: Begin, command: [./step] }
  - name: Each
    for_each:
      items: [a, b, c]
      steps:
        - { name: Do, agent: engineer, command: [./step, nap, "0.1"] }
        - { name: Tail, command: [./step, nap, "0.05"] }
  - { name: End, agent: qa, command: [./step] }
"#,
        path: &[
            "Begin",
            "Each.0.Do",
            "Each.0.Tail",
            "Each.1.Do",
            "Each.1.Tail",
            "Each.2.Do",
            "Each.2.Tail",
            "End",
        ],
        outcome: RunStatus::Completed,
    },
    Script {
        name: "round",
        yaml: r#"
version: "1.1"
steps:
  - { name: First, agent: engineer, command: [./step] }
  - name: Check
    command: [./step, is, round]
    on: { success: { goto: Last }, failure: { goto: Mark } }
  - name: Mark
    agent: qa
    command: [./step, make, round]
    on: { success: { goto: First } }
  - { name: Last, command: [./step] }
"#,
        path: &["First", "Check", "Mark", "First", "Check", "Last"],
        outcome: RunStatus::Completed,
    },
    Script {
        name: "flaky",
        yaml: r#"
version: "1.1"
steps:
  - { name: Far, agent: engineer, command: [./step, flaky], retries: { max: 3, delay_ms: 60 } }
  - { name: Near, command: [./step, flaky], retries: { max: 3, delay_ms: 60 } }
  - { name: After, agent: qa, command: [./step] }
"#,
        path: &["Far", "Near", "After"],
        outcome: RunStatus::Completed,
    },
    Script {
        name: "fails",
        yaml: r#"
version: "1.1"
steps:
  - { name: Well, agent: qa, command: [./step] }
  - { name: Bad, agent: engineer, command: [./step, bad] }
  - { name: Never, command: [./step] }
"#,
        path: &["Well", "Bad"],
        outcome: RunStatus::Failed,
    },
    Script {
        name: "mends",
        yaml: r#"
version: "1.1"
steps:
  - name: Bad
    command: [./step, bad]
    on: { failure: { goto: Mend } }
  - { name: Never, command: [./step], on: { success: { goto: _end } } }
  - { name: Mend, agent: qa, command: [./step] }
"#,
        path: &["Bad", "Mend"],
        outcome: RunStatus::Completed,
    },
    Script {
        name: "asks",
        yaml: r#"
version: "1.1"
providers:
  mine: { command: [./step], input_mode: stdin }
steps:
  - { name: Ask, provider: mine, input_file: prompt.md }
  - { name: After, command: [./step] }
"#,
        path: &["Ask", "After"],
        outcome: RunStatus::Completed,
    },
    // From here on they end only if they are cancelled; `plot::FINITE` counts the others.
    Script {
        name: "held",
        yaml: r#"
version: "1.1"
steps:
  - { name: Begin, agent: qa, command: [./step] }
  - { name: Hold, agent: engineer, command: [./step, nap, "3600"] }
"#,
        path: &["Begin", "Hold"],
        outcome: RunStatus::Cancelled,
    },
    Script {
        name: "held-here",
        yaml: r#"
version: "1.1"
steps:
  - { name: Begin, agent: qa, command: [./step] }
  - name: Hold
    command: [./step, nap, "3600"]
    on: { failure: { goto: Never } }
  - { name: Never, command: [./step] }
"#,
        path: &["Begin", "Hold"],
        outcome: RunStatus::Cancelled,
    },
];
