//! The workflows of a tortured fleet, each with its expected result.
//!
//! A repeated execution of a step does not change where the run goes. So the order in which steps
//! end is known, except that an end may be followed by another end of the same step.

/// A workflow and its expected result.
pub(crate) struct Script {
    pub name: &'static str,
    pub yaml: &'static str,
    /// The steps that end, in order.
    pub path: &'static [&'static str],
    /// The final status of the run.
    pub outcome: &'static str,
}

/// The program of every step: adds a line to `trace`, then acts as its arguments say. A provider
/// (`asked`) also notes in `torn` that it was given half a text.
pub(crate) const STEP: &str = r#"#!/bin/sh
printf '%s %s %s %s\n' "$ORCHESTRATE_RUN_ID" "$ORCHESTRATE_STEP" "$ORCHESTRATE_ATTEMPT" \
  "${ORCHESTRATE_MARK%%;*}" >> trace
case "$1" in
  nap) exec sleep "$2";;
  flaky) [ "$ORCHESTRATE_ATTEMPT" -ge 2 ];;
  bad) exit 3;;
  is) [ -e "marks/$ORCHESTRATE_RUN_ID.$2" ];;
  make) : > "marks/$ORCHESTRATE_RUN_ID.$2";;
  asked)
    text=$(cat)
    case "$text" in
      # Three failures in a row with one reason, numbers aside, suspend a provider.
      *fails*) echo "$$" | tr 0-9 a-j >&2; exit 3;;
      *whole*) ;;
      *) echo "${ORCHESTRATE_MARK%%;*}" >> torn;;
    esac;;
esac
"#;

/// Number of scripts, from the first one, that end by themselves.
pub(crate) const FINITE: usize = 7;

pub(crate) const SCRIPTS: [Script; 9] = [
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
        outcome: "completed",
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
        outcome: "completed",
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
        outcome: "completed",
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
        outcome: "completed",
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
        outcome: "failed",
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
        outcome: "completed",
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
        outcome: "completed",
    },
    // The scripts from here on end only if they are cancelled: see `FINITE`.
    Script {
        name: "held",
        yaml: r#"
version: "1.1"
steps:
  - { name: Begin, agent: qa, command: [./step] }
  - { name: Hold, agent: engineer, command: [./step, nap, "3600"] }
"#,
        path: &["Begin", "Hold"],
        outcome: "cancelled",
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
        outcome: "cancelled",
    },
];
