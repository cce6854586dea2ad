//! What a grimoire says, and what is wrong with one.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::workflow::named::Mentioned;
use crate::workflow::plan::{Action, OnFail, Provider, RoundsKind, SpellSource, Words};
use crate::workflow::{Compiled, Configured, compile};

struct Robot(BTreeMap<String, Provider>);

impl Configured for Robot {
    fn providers(&self) -> &BTreeMap<String, Provider> {
        &self.0
    }

    fn default_provider(&self) -> &str {
        "robot"
    }
}

fn read(text: &str) -> Result<Compiled, String> {
    let provider = Provider::default();
    let robot = Robot(BTreeMap::from([("robot".to_owned(), provider)]));
    compile(text, &robot).map_err(|problems| {
        let told = problems.iter().map(|problem| {
            let place = problem.place.map(|place| format!("{}:{} ", place.line, place.column));
            format!("{}{}", place.unwrap_or_default(), problem.message)
        });
        told.collect::<Vec<_>>().join("\n")
    })
}

#[test]
fn a_grimoire_is_told_from_steps_by_its_types() {
    let plan = read("name: g\nsteps:\n  - { name: a, type: script, command: x }\n").unwrap().plan;
    assert_eq!(plan.name.as_deref(), Some("g"));
    let versioned =
        "version: '1.4'\nname: g\nsteps:\n  - { name: a, type: script, command: [x] }\n";
    assert!(read(versioned).unwrap_err().contains("the grimoire has no field `version`"));
    let mixed = versioned.to_owned() + "  - { name: b, command: [x] }\n";
    assert!(read(&mixed).unwrap_err().contains("has no field `type`"));
    assert!(read("steps:\n  - { name: a, command: [x] }\n").unwrap_err().contains("no `version`"));
}

#[test]
fn fields_and_what_they_are_without_them() {
    let Compiled { plan, named, .. } = read(
        "
name: g
description: d
timeout: 1h30m
steps:
  - { name: a, type: agent, spell: implement, input: { n: 1, t: '{{.x}}' }, output: r }
  - { name: b, type: agent, spell: review.md, system_prompt: none, contract: none, timeout: 2s }
  - name: l
    type: loop
    steps:
      - { name: c, type: script, command: make, on_fail: continue, on_success: exit_loop, when: 1 }
  - { name: m, type: merge }
",
    )
    .unwrap();
    assert_eq!(plan.timeout, Some(Duration::from_secs(5400)));
    let [a, b, l, m] = plan.root.steps.as_slice() else { panic!("four steps") };
    let spell = |action: &Action| match action {
        Action::Prompt(prompt) => match &prompt.words {
            Words::Spell(spell) => (**spell).clone(),
            _ => panic!("it is a spell"),
        },
        _ => panic!("it is a prompt"),
    };
    assert_eq!(spell(&a.action).source, SpellSource::Named("implement".into()));
    assert_eq!((a.timeout, a.alias.as_deref()), (Some(Duration::from_secs(900)), Some("r")));
    assert!(spell(&a.action).contract && a.on_fail == Some(OnFail::Block));
    assert_eq!(spell(&b.action).source, SpellSource::Named("review".into()));
    assert!(!spell(&b.action).contract);
    let Action::Rounds(rounds) = &l.action else { panic!("it is a loop") };
    assert!(rounds.most == 10 && matches!(rounds.kind, RoundsKind::Steps { .. }));
    let c = &rounds.block.steps[0];
    assert_eq!((c.timeout, c.exit_loop), (Some(Duration::from_secs(300)), true));
    assert_eq!(c.on_fail, Some(OnFail::Continue));
    assert!(matches!(m.action, Action::Merge { review: true, .. }));
    let names: Vec<_> = named.spells.iter().map(|mention| mention.what.clone()).collect();
    let spell = |name: &str| Mentioned::Spell(name.into());
    assert_eq!(names, [spell("implement"), Mentioned::SystemPrompt(None), spell("review")]);
}

#[test]
fn everything_wrong_is_told_at_once_with_its_place() {
    let told = read(
        "
name: g
steps:
  - { name: a-b, type: agent }
  - { name: a_b, type: script, when: maybe, on_fail: retry, colour: red }
  - { name: A-B, type: nothing }
  - { name: previous, type: script, command: x, on_success: exit_loop }
  - name: l
    type: loop
    max_iterations: 0
    steps: []
  - name: inline
    type: agent
    spell: |
      One
        {{if .x}}
  - { name: q, type: script, command: 'echo {{.x', output: bead, timeout: soon }
  - { name: s, type: agent, spell: ../x, input: [1], system_prompt: /etc/x }
",
    )
    .unwrap_err();
    for wanted in [
        "4:5 step `a-b` has no `spell`",
        "5:5 step `a_b` has no `command`",
        "5:13 `a_b` and `a-b` are one name",
        "`when` of step `a_b` is never true or false",
        "`on_fail` of step `a_b` is `retry`",
        "step `a_b` has no field `colour`",
        "`A-B` and `a_b` are one name",
        "`type` of step `A-B` is `nothing`",
        "`previous` cannot name a step",
        "step `previous` is in no loop",
        "10:21 `max_iterations` of step `l`",
        "`steps` of step `l` has no step in it",
        "16:9 `if` is opened here",
        "17:45 `{{` is opened here",
        "`output` of step `q` is `bead`",
        "`timeout` of step `q` is `soon`",
        "`spell` of step `s` is `../x`",
        "`input` of step `s` must be a map",
        "`system_prompt` of step `s` is `/etc/x`",
    ] {
        assert!(told.contains(wanted), "{wanted}\nis not in\n{told}");
    }
}

#[test]
fn what_any_grimoire_needs() {
    for (text, wanted) in [
        ("steps:\n  - { name: a, type: script, command: x }\n", "the grimoire has no `name`"),
        ("name: g\nsteps:\n  - { name: a, type: script, command: x }\n  - x\n", "must be a map"),
        (
            "name: g\nsteps:\n  - { name: a, type: script, command: x }\n  - { name: b }\n",
            "step `b` has no `type`",
        ),
        (
            "name: g\nsteps:\n  - { name: a, type: agent, spell: x, provider: robbot }\n",
            "asks the provider `robbot`",
        ),
        (
            "name: g\nsteps:\n  - { name: a, type: loop, steps: [{ name: a, type: merge }] }\n",
            "two steps are named `a`",
        ),
        (
            "name: g\nsteps:\n  - { name: a, type: merge, command: x }\n",
            "step `a` has no field `command`",
        ),
    ] {
        let told = read(text).unwrap_err();
        assert!(told.contains(wanted), "{told}");
    }
}

#[test]
fn spells_in_steps_need_their_version() {
    let steps = |version: &str| {
        format!("version: '{version}'\nsteps:\n  - {{ name: A, spell: fix, input: {{ a: 1 }} }}\n")
    };
    assert_eq!(read(&steps("1.4")).unwrap().named.spells.len(), 2);
    let told = read(&steps("1.3")).unwrap_err();
    assert!(told.contains("`spell` needs version \"1.4\""), "{told}");
    let both = "version: '1.4'\nsteps:\n  - { name: A, spell: fix, command: [x] }\n";
    assert!(read(both).unwrap_err().contains("but a step does one thing"));
}

#[test]
fn spells_in_nodes_are_a_mode() {
    let node = |rest: &str| format!("name: n\ndescription: d\nnodes:\n  - {{ id: a, {rest} }}\n");
    assert_eq!(read(&node("spell: fix")).unwrap().named.spells.len(), 2);
    let told = read(&node("spell: fix, bash: x")).unwrap_err();
    assert!(told.contains("but a node does one thing"), "{told}");
    let format = "spell: fix, contract: agent, output_format: { type: object }";
    assert!(read(&node(format)).unwrap_err().contains("`contract: agent` and `output_format`"));
}
