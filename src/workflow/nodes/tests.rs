//! What the `nodes:` dialect says, and the plans that come of it.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::{Value, json};

use crate::template::nodes::NodeText;
use crate::workflow::plan::{
    Action, CaptureMode, Code, CommandUse, Gate, JoinRule, Order, Param, PartKind, Prompt,
    Provider, Retries, Rounds, RoundsKind, Runtime, Script, ShellText, Step, Until, When, Which,
    Words,
};
use crate::workflow::{Compiled, Configured, Plan, Severity, compile, read_config};

/// Settings with two providers.
struct Two(BTreeMap<String, Provider>);

impl Two {
    fn new() -> Two {
        let text = "providers: { claude: { command: [a, [\"${allowed_tools}\"], \
                    [\"${denied_tools}\"], [\"${mcp}\"], [\"${settings}\"]] }, \
                    other: { command: [b] } }\n";
        Two(read_config(text).expect("the settings are valid").providers)
    }
}

impl Configured for Two {
    fn providers(&self) -> &BTreeMap<String, Provider> {
        &self.0
    }

    fn default_provider(&self) -> &str {
        "claude"
    }
}

const TOP: &str = "name: w\ndescription: d\n";

/// A workflow of these nodes; the first stands in line 4.
fn workflow(nodes: &str) -> String {
    format!("{TOP}nodes:\n{nodes}")
}

fn compiled(text: &str) -> Compiled {
    match compile(text, &Two::new()) {
        Ok(compiled) => compiled,
        Err(problems) => panic!("{text}\n{problems:#?}"),
    }
}

/// The plan of nodes about which nothing is to be said.
fn plan(nodes: &str) -> Plan {
    let Compiled { plan, warnings, named } = compiled(&workflow(nodes));
    assert!(warnings.is_empty(), "{warnings:#?}");
    assert!(named.paths.is_empty());
    plan
}

fn only(node: &str) -> Step {
    plan(&format!("  - {{ id: a, {node} }}\n")).root.steps.remove(0)
}

fn prompt_of(step: &Step) -> &Prompt {
    match &step.action {
        Action::Prompt(prompt) => prompt,
        other => panic!("{other:?}"),
    }
}

fn rounds_of(step: &Step) -> &Rounds {
    match &step.action {
        Action::Rounds(rounds) => rounds,
        other => panic!("{other:?}"),
    }
}

fn names(steps: &[Step]) -> Vec<&str> {
    steps.iter().map(|step| step.name.as_str()).collect()
}

/// `E` or `W`, the line, the message, and the hint behind a bar.
fn told(text: &str) -> Vec<String> {
    let problems = match compile(text, &Two::new()) {
        Ok(compiled) => compiled.warnings,
        Err(problems) => problems,
    };
    let show = |problem: &crate::workflow::Problem| {
        let kind = if problem.severity == Severity::Error { 'E' } else { 'W' };
        let line = problem.place.map_or(0, |place| place.line);
        let hint = problem.hint.as_ref().map(|hint| format!(" | {hint}")).unwrap_or_default();
        format!("{kind}{line} {}{hint}", problem.message)
    };
    problems.iter().map(show).collect()
}

/// Whether a text begins with the first part, and the others follow in order.
fn like(text: &str, parts: &str) -> bool {
    let mut parts = parts.split("..");
    let mut rest = text.strip_prefix(parts.next().unwrap_or_default());
    for part in parts {
        rest = rest.and_then(|rest| Some(rest.split_once(part)?.1));
    }
    rest.is_some()
}

/// Each workflow is told of exactly these, by parts of what is said.
fn tells(cases: &[(&str, &[&str])]) {
    for (nodes, wanted) in cases {
        let text = workflow(nodes);
        let found = told(&text);
        let all = found.len() == wanted.len() && found.iter().zip(*wanted).all(|(f, w)| like(f, w));
        assert!(all, "{text}\nfound {found:#?}\nwanted {wanted:#?}");
    }
}

const MINUTES_2: Option<Duration> = Some(Duration::from_secs(120));
const MINUTES_30: Option<Duration> = Some(Duration::from_secs(1800));
const AGENT: Option<Retries> =
    Some(Retries { max: 2, delay_ms: Some(3000), which: Which::Transient });

#[test]
fn a_workflow_is_its_top_and_a_graph() {
    let plan = plan(
        "  - { id: a, bash: ls }\n  - { id: ' b ', bash: ls, depends_on: [a, c] }\n  \
         - { id: c, bash: ls, depends_on: [' a'], trigger_rule: one_success }\n",
    );
    assert_eq!((plan.name.as_deref(), plan.description.as_deref()), (Some("w"), Some("d")));
    assert_eq!(names(&plan.root.steps), ["a", "b", "c"]);
    assert_eq!(plan.root.find("b").unwrap().0, 1);
    let edges = plan.root.edges().expect("it is a graph");
    assert_eq!(edges.before, [vec![], vec![0, 2], vec![0]]);
    assert_eq!(edges.after, [vec![1, 2], vec![], vec![1]]);
    use JoinRule::{AllSuccess, OneSuccess};
    assert_eq!(edges.rules, [AllSuccess, AllSuccess, OneSuccess]);
    assert!(plan.strict_flow && plan.providers.is_empty());
}

#[test]
fn a_prompt_goes_to_a_provider() {
    let step = only("prompt: 'do $ARGUMENTS'");
    let prompt = prompt_of(&step);
    assert_eq!(prompt.words, Words::Inline(NodeText::parse("do $ARGUMENTS")));
    assert_eq!(prompt.provider, "claude");
    assert!(prompt.params.is_empty() && prompt.until.is_none() && !prompt.fresh);
    assert_eq!(step.output.capture, CaptureMode::Whole);
    assert_eq!((step.timeout, step.idle_timeout, step.retries), (None, MINUTES_30, AGENT));

    let step = only(
        "prompt: x, provider: other, model: '${m}', context: fresh, timeout: 1500, \
         idle_timeout: 250, retry: { max_attempts: 1, delay_ms: 1000, on_error: all }, \
         output_type: plan, always_run: true, agent: qa, env: { A: b }, secrets: [S], \
         output_format: { type: object, properties: { f: {} } }",
    );
    let prompt = prompt_of(&step);
    assert_eq!(prompt.provider, "other");
    let model = Param::Fixed(Value::String("${m}".into()));
    assert_eq!(prompt.params, BTreeMap::from([("model".to_owned(), model)]));
    assert_eq!(prompt.format, Some(json!({"type": "object", "properties": {"f": {}}})));
    assert!(prompt.fresh && step.always_run);
    assert_eq!(step.timeout, Some(Duration::from_millis(1500)));
    assert_eq!(step.idle_timeout, Some(Duration::from_millis(250)));
    let retries = Retries { max: 1, delay_ms: Some(1000), which: Which::All };
    assert_eq!(step.retries, Some(retries));
    assert_eq!((step.output_type.as_deref(), step.agent.as_deref()), (Some("plan"), Some("qa")));
    assert_eq!(step.env, [("A".to_owned(), "b".to_owned())]);
    assert_eq!(step.secrets, ["S"]);
}

#[test]
fn a_model_goes_with_its_provider() {
    let model = |top: &str, node: &str| {
        let text = format!("{top}\n{TOP}nodes: [{{ id: a, prompt: x, {node} }}]\n");
        let plan = compiled(&text).plan;
        let prompt = prompt_of(&plan.root.steps[0]);
        assert!(plan.providers.contains_key(&prompt.provider));
        let model = prompt.params.get("model").map(|model| match model {
            Param::Fixed(Value::String(model)) => model.clone(),
            other => panic!("{other:?}"),
        });
        format!("{} {}", prompt.provider, model.unwrap_or_default())
    };
    assert_eq!(model("", ""), "claude ");
    assert_eq!(model("model: m", ""), "claude m");
    assert_eq!(model("model: m", "provider: claude"), "claude m");
    assert_eq!(model("model: m", "provider: other"), "other ");
    assert_eq!(model("provider: other\nmodel: m", ""), "other m");
    assert_eq!(model("provider: other\nmodel: m", "provider: claude"), "claude ");
    assert_eq!(model("provider: other\nmodel: m", "model: n"), "other n");
}

#[test]
fn a_command_and_a_named_script_are_parts() {
    let Compiled { plan, named, .. } = compiled(&workflow(
        "  - { id: a, command: do it }\n  - { id: b, command: do it, context: shared }\n  \
         - { id: c, script: go, runtime: bun }\n  - { id: d, script: do it, runtime: uv }\n",
    ));
    let parts: Vec<_> = named.parts.iter().map(|part| (part.kind, part.name.as_str())).collect();
    assert_eq!(parts, [(PartKind::Command, "do it"), (PartKind::Script, "go")]);
    assert_eq!(
        prompt_of(&plan.root.steps[0]).words,
        Words::Command(CommandUse { name: "do it".into(), refs: Vec::new() })
    );
}

#[test]
fn a_script_is_inline_when_it_looks_like_one() {
    let step = only("script: 'print(1)', runtime: uv, deps: [six, 'a==1'], timeout: 5");
    let Action::Script(script) = &step.action else { panic!("{step:?}") };
    let code = Code::Inline(NodeText::parse("print(1)"));
    let deps = vec!["six".to_owned(), "a==1".to_owned()];
    assert_eq!(*script, Script { code, runtime: Runtime::Uv, deps });
    assert_eq!((step.timeout, step.retries), (Some(Duration::from_millis(5)), None));
    for (text, inline) in
        [("go", false), ("go-on_2", false), ("a\nb", true), ("a b", true)].into_iter().chain(
            [";", "(", ")", "{", "}", "&", "|", "<", ">", "$", "`", "\"", "'"].map(|c| (c, true)),
        )
    {
        let step = only(&format!("script: {}, runtime: bun", Value::from(text)));
        let Action::Script(script) = &step.action else { panic!("{step:?}") };
        assert_eq!(matches!(script.code, Code::Inline(_)), inline, "{text}");
        assert_eq!(step.timeout, MINUTES_2);
    }
}

#[test]
fn bash_is_a_shell_with_a_limit() {
    let step = only("bash: 'echo $WORKFLOW_ID'");
    let Action::Shell { script: ShellText::Node(script) } = &step.action else {
        panic!("it is no shell script");
    };
    assert_eq!(script.source(), "echo $WORKFLOW_ID");
    assert_eq!((step.timeout, step.idle_timeout, step.retries), (MINUTES_2, None, None));
    assert_eq!(step.output.capture, CaptureMode::Whole);
    let step = only("bash: ls, retry: { max_attempts: 5 }, timeout: 0.5");
    assert_eq!(
        step.retries,
        Some(Retries { max: 5, delay_ms: Some(3000), which: Which::Transient })
    );
    assert_eq!(step.timeout, Some(Duration::from_micros(500)));
}

#[test]
fn a_loop_is_rounds_of_a_prompt_a_check_and_a_gate() {
    let step = only("loop: { prompt: go, until: DONE, max_iterations: 7 }");
    let rounds = rounds_of(&step);
    assert_eq!((rounds.kind, rounds.most), (RoundsKind::Loop, 7));
    assert_eq!(names(&rounds.block.steps), ["prompt"]);
    assert_eq!(rounds.block.order, Order::Sequence);
    let prompt = prompt_of(&rounds.block.steps[0]);
    assert_eq!(prompt.until, Some(Until { signal: "DONE".into(), strict: false }));
    assert!(!prompt.fresh);
    assert_eq!((step.timeout, step.retries, step.idle_timeout), (None, None, None));

    let step = only(
        "loop: { prompt: go $LOOP_PREV_OUTPUT $LOOP_USER_INPUT, until: DONE, strict: true, \
         max_iterations: 2, fresh_context: true, interactive: true, gate_message: well?, \
         until_bash: test -e x }, provider: other, model: m, timeout: 9, idle_timeout: 8, \
         retry: { max_attempts: 4 }, output_format: { type: object }, output_type: t, \
         agent: qa, env: { A: b }",
    );
    let inner = &rounds_of(&step).block.steps;
    assert_eq!(names(inner), ["prompt", "until_bash", "gate"]);
    assert_eq!(rounds_of(&step).block.find("gate").unwrap().0, 2);
    let prompt = prompt_of(&inner[0]);
    assert_eq!((prompt.provider.as_str(), prompt.fresh), ("other", true));
    assert!(prompt.until.as_ref().is_some_and(|until| until.strict));
    assert!(prompt.params.contains_key("model") && prompt.format.is_some());
    assert_eq!(inner[0].timeout, Some(Duration::from_millis(9)));
    assert_eq!(inner[0].idle_timeout, Some(Duration::from_millis(8)));
    assert_eq!(inner[0].retries.map(|retries| retries.max), Some(4));
    assert_eq!((inner[1].timeout, inner[1].retries), (MINUTES_2, None));
    assert!(inner[..2].iter().all(|step| step.agent.as_deref() == Some("qa")));
    assert!(inner[..2].iter().all(|step| step.output.capture == CaptureMode::Whole));
    assert!(matches!(&inner[2].action, Action::Gate(gate) if gate.message.source() == "well?"));
    assert_eq!((step.output_type.as_deref(), inner[0].output_type.as_deref()), (Some("t"), None));
}

#[test]
fn an_approval_is_a_gate_and_perhaps_a_prompt() {
    let step = only("approval: { message: ok? }, timeout: 5");
    let rounds = rounds_of(&step);
    assert_eq!((rounds.kind, rounds.most), (RoundsKind::Approval, 1));
    let [gate] = rounds.block.steps.as_slice() else { panic!("{rounds:?}") };
    let wanted = Gate { message: NodeText::parse("ok?"), capture: false };
    assert!(matches!(&gate.action, Action::Gate(gate) if *gate == wanted));
    assert_eq!((gate.timeout, step.timeout), (Some(Duration::from_millis(5)), None));

    let step = only(
        "approval: { message: ok?, capture_response: true, on_reject: { prompt: \
         'mend $REJECTION_REASON' } }, provider: other, context: fresh, timeout: 5",
    );
    let rounds = rounds_of(&step);
    assert_eq!(rounds.most, 3);
    assert_eq!(names(&rounds.block.steps), ["gate", "on_reject"]);
    assert!(matches!(&rounds.block.steps[0].action, Action::Gate(gate) if gate.capture));
    let mend = &rounds.block.steps[1];
    assert_eq!(prompt_of(mend).provider, "other");
    assert!(prompt_of(mend).fresh);
    assert_eq!((mend.timeout, mend.idle_timeout, mend.retries), (None, MINUTES_30, AGENT));
    let most = only("approval: { message: ok?, on_reject: { prompt: x, max_attempts: 10 } }");
    assert_eq!(rounds_of(&most).most, 10);
}

#[test]
fn a_cancel_has_a_reason_and_a_condition_its_text() {
    let text = "  - { id: b, bash: ls }\n  \
                - { id: a, cancel: 'no: $b.output', depends_on: [b], when: \
                \"$b.output == 'x'\" }\n";
    let step = plan(text).root.steps.remove(1);
    assert!(
        matches!(&step.action, Action::Cancel { reason } if reason.source() == "no: $b.output")
    );
    let Some(When::Outputs(condition)) = &step.when else { panic!("{step:?}") };
    assert_eq!(condition.text(), "$b.output == 'x'");
}

#[test]
fn the_top_is_checked() {
    let nodes = "nodes: [{ id: a, bash: ls }]\n";
    for (top, wanted) in [
        ("name: w\n", "E1 the workflow has no `description`"),
        ("description: d\n", "E1 the workflow has no `name`"),
        ("name: ' '\ndescription: d\n", "E1 `name` of the workflow is empty"),
        ("name: w\ndescription:\n", "E2 `description` of the workflow must be text, not nothing"),
        ("name: 5\ndescription: d\n", "E1 `name` of the workflow must be text, not a number"),
        (
            "name: w\ndescription: d\ninteractive: 1\n",
            "W3 `interactive` of the workflow must be true or false, not a number, so",
        ),
        ("name: w\ndescription: d\nmutates_checkout: on\n", "W3 `mutates_checkout` of the"),
        ("name: w\ndescription: d\ntags: a\n", "W3 `tags` of the workflow must be a list of text"),
        ("name: w\ndescription: d\ntags: [a, 5]\n", "W3 `tags` of the workflow must be a list"),
        ("name: w\ndescription: d\nprovider: clade\n", "E3 the workflow asks the provider `clade`"),
        ("name: w\ndescription: d\nmodel: large\n", "W3 `model` of the workflow is `large`"),
        (
            "name: w\ndescription: d\nworktree: {}\neffort: high\nbetas: []\n",
            "W3 `worktree`, `effort` and `betas` of the workflow have no effect here",
        ),
        ("name: w\ndescription: d\nversion: '1'\n", "W3 the workflow has no field `version`, so"),
        ("name: w\ndescription: d\ntag: [a]\n", "W3 the workflow has no field `tag`, so it is ign"),
        (
            "name: w\ndescription: d\nretry: {}\n",
            "E3 the workflow has no field `retry` | `retry` b",
        ),
        (
            "name: w\ndescription: d\ninteractiv: on\n",
            "E3 the workflow has no field `interactiv` | ",
        ),
    ] {
        let found = told(&format!("{top}{nodes}"));
        assert!(found.len() == 1 && found[0].starts_with(wanted), "{top}{found:#?}");
    }
    assert_eq!(
        told(&format!("interactive: true\nmutates_checkout: false\ntags: [a, a]\n{TOP}{nodes}")),
        Vec::<String>::new()
    );
}

#[test]
fn the_dialect_is_chosen_by_what_is_there() {
    let both = told("name: w\nsteps: []\nnodes: []\n");
    assert!(both.len() == 1 && both[0].starts_with("E3 the workflow has both"), "{both:?}");
    let neither = told("version: '1.1'\n");
    assert_eq!(neither, ["E1 the workflow has no `steps`, and no `nodes` either"]);
    for (nodes, wanted) in [
        ("[]", "E3 `nodes` has no node in it"),
        ("{}", "E3 `nodes` must be a list of nodes, not a map | begin each node with a dash: `- `"),
        ("", "E3 `nodes` must be a list of nodes, not nothing"),
        ("[x]", "E3 this node must be a map, not text"),
    ] {
        assert_eq!(told(&format!("{TOP}nodes: {nodes}\n")), [wanted]);
    }
}

#[test]
fn ids_are_names_that_can_be_referred_to() {
    tells(&[
        ("  - { bash: ls }\n", &["E4 this node has no `id`"]),
        (
            "  - { name: x, bash: ls }\n",
            &["E4 this node has no `id` | write `id: x`", "W4 ..`name`"],
        ),
        ("  - { id: 5, bash: ls }\n", &["E4 `id` of this node must be text..put it in quotes"]),
        ("  - { id: '', bash: ls }\n", &["E4 `` cannot be the id of a node: it is empty"]),
        ("  - { id: a/b, bash: ls }\n", &["E4 `a/b` cannot be the id of a node: only letters"]),
        ("  - { id: 1a, bash: ls }\n", &["W4 nothing can refer to `1a`"]),
        ("  - { id: a.b, bash: ls }\n", &["W4 nothing can refer to `a.b`"]),
        ("  - { id: CONTEXT, bash: ls }\n", &["W4 nothing can refer to `CONTEXT`"]),
        (
            "  - { id: a, bash: ls }\n  - { id: 'a ', bash: ls }\n",
            &["E5 two nodes have the id `a`"],
        ),
        ("  - { id: a, bash: ls }\n  - { id: A, bash: ls }\n", &["E5 `A` and `a` differ only in"]),
    ]);
}

#[test]
fn exactly_one_mode_is_there() {
    const SEVEN: &str = "`command`, `prompt`, `bash`, `script`, `loop`, `approval`, `cancel`";
    let none = format!("E4 node `a` does nothing | give it one of {SEVEN}");
    let two = format!("E4 node `a` has `prompt` and `bash`, but a node does one thing | ..{SEVEN}");
    tells(&[
        ("  - { id: a }\n", &[&none]),
        ("  - { id: a, promt: x }\n", &[&none, "W4 node `a` has no field `promt`..`prompt`?"]),
        ("  - { id: a, bash: ls, prompt: x }\n", &[&two]),
        ("  - { id: a, bash: ls, prompt: '' }\n", &[&two, "E4 `prompt` of node `a` is empty"]),
        ("  - { id: a, bash: ls, prompt: }\n", &[&two, "E4 `prompt` of node `a` must be text"]),
        ("  - { id: a, prompt: ' ' }\n", &["E4 `prompt` of node `a` is empty"]),
        ("  - { id: a, bash: '' }\n", &["E4 `bash` of node `a` is empty"]),
        ("  - { id: a, cancel: '' }\n", &["E4 `cancel` of node `a` is empty"]),
        ("  - { id: a, include: x }\n", &["E4 node `a` has `include`, which is not supported"]),
        ("  - { id: a, workflow: x }\n", &["E4 node `a` has `workflow`, which is not supported"]),
        ("  - { id: a, loop_group: x }\n", &["E4 node `a` has `loop_group`, which is not supp"]),
    ]);
}

/// Whoever writes another word for a gate must not get a run without one.
#[test]
fn other_words_for_a_safety_are_refused() {
    let refused = |node: &str, key: &str, hint: &str| {
        let told = format!("E4 ..has no field `{key}` | {hint}");
        tells(&[(&format!("  - {{ id: a, {node} }}\n"), &[&told])]);
    };
    for (key, meant) in [
        ("depends", "depends_on"),
        ("depend_on", "depends_on"),
        ("dependsOn", "depends_on"),
        ("dependencies", "depends_on"),
        ("needs", "depends_on"),
        ("after", "depends_on"),
        ("requires", "depends_on"),
        ("waitFor", "depends_on"),
        ("if", "when"),
        ("condition", "when"),
        ("unless", "when"),
        ("only_if", "when"),
        ("onlyIf", "when"),
        ("run-if", "when"),
        ("trigger", "trigger_rule"),
        ("trigger_rules", "trigger_rule"),
        ("approval_required", "approval"),
        ("require_approval", "approval"),
        ("gate", "approval"),
        ("confirm", "approval"),
        ("review", "approval"),
        ("timeout_ms", "timeout"),
        ("deadline", "timeout"),
    ] {
        refused(&format!("bash: ls, {key}: x"), key, &format!("did you mean `{meant}`?"));
    }
    for key in ["reject", "rejects", "on-reject", "onReject", "on_rejection"] {
        let node = format!("approval: {{ message: x, {key}: {{ prompt: x }} }}");
        refused(&node, key, "did you mean `on_reject`?");
    }
    for key in ["timeout_ms", "timeoutSeconds", "deadline"] {
        let node = format!("approval: {{ message: x, {key}: 5 }}");
        refused(&node, key, "did you mean `timeout`? it belongs to a node itself");
    }
}

#[test]
fn unknown_keys_are_told_and_safeties_insisted_on() {
    tells(&[
        (
            "  - { id: a, bash: ls, colour: x }\n",
            &["W4 node `a` has no field `colour`, so it is ign"],
        ),
        ("  - { id: a, bash: ls, output_typ: x }\n", &["W4 ..did you mean `output_type`?"]),
        ("  - { id: a, bash: ls, tags: [x] }\n", &["W4 ..belongs to the top of the workflow"]),
        ("  - { id: a, bash: ls, runtime: bun }\n", &["W4 ..belongs to a `script` node"]),
        ("  - { id: a, bash: ls, deps: [x] }\n", &["W4 ..belongs to a `script` node"]),
        ("  - { id: a, bash: ls, gate_message: x }\n", &["E4 ..belongs inside `loop:`"]),
        ("  - { id: a, bash: ls, message: x }\n", &["E4 ..belongs inside `approval:`"]),
        (
            "  - { id: a, bash: ls, dependsOn: [x] }\n",
            &["E4 ..`dependsOn` | did you mean `depends_on`?"],
        ),
        (
            "  - { id: a, bash: ls, wen: x }\n",
            &["E4 node `a` has no field `wen` | did you mean `when`?"],
        ),
        ("  - { id: a, bash: ls, timout: 5 }\n", &["E4 ..did you mean `timeout`?"]),
        ("  - { id: a, bash: ls, until: x }\n", &["E4 ..`until` belongs inside `loop:`"]),
        (
            "  - { id: a, bash: ls, interactive: true }\n",
            &["E4 ..to the top of the workflow or inside"],
        ),
        (
            "  - { id: a, bash: ls, on_reject: {} }\n",
            &["E4 ..`on_reject` belongs inside `approval:`"],
        ),
        ("  - { id: a, prompt: x, denyed_tools: [] }\n", &["E4 ..did you mean `denied_tools`?"]),
        (
            "  - { id: a, loop: { prompt: x, until: D, max_iterations: 1, untl_bash: x } }\n",
            &["E4 `loop` of node `a` has no field `untl_bash` | did you mean `until_bash`?"],
        ),
        (
            "  - { id: a, loop: { prompt: x, until: D, max_iterations: 1, until_field: x } }\n",
            &["W4 `loop` of node `a` has no field `until_field`, so it is ignored"],
        ),
        (
            "  - { id: a, approval: { message: x, on_rejct: {} } }\n",
            &["E4 ..did you mean `on_reject`?"],
        ),
        (
            "  - { id: a, approval: { message: x, on_reject: { prompt: x, max_atempts: 2 } } }\n",
            &["E4 `on_reject` of `approval` of node `a`..did you mean `max_attempts`?"],
        ),
        ("  - { id: a, bash: ls, 5: x }\n", &["E4 a key of node `a` must be text, not a number"]),
    ]);
}

#[test]
fn limits_of_tools_are_passed_on_or_refused() {
    tells(&[
        ("  - { id: a, prompt: x, allowed_tools: [Read], denied_tools: ['Bash(rm *)'] }\n", &[]),
        ("  - { id: a, prompt: x, provider: other, denied_tools: [], hooks: {} }\n", &[]),
        (
            "  - { id: a, prompt: x, provider: other, allowed_tools: [] }\n",
            &["E4 `allowed_tools` of node `a` is not supported by provider `other` | `claude`"],
        ),
        (
            "  - { id: a, loop: { prompt: x, until: D, max_iterations: 1 }, skills: [s] }\n",
            &["E4 `skills` of node `a` is not supported by provider `claude` | no provider"],
        ),
        (
            "  - { id: a, prompt: x, allowed_tools: ['Bash(git *)'] }\n",
            &["E4 `Bash(git *)` in `allowed_tools` of node `a` is not the name of a tool"],
        ),
        ("  - { id: a, prompt: x, allowed_tools: Read }\n", &["E4 ..must be a list"]),
        (
            "  - { id: a, prompt: x, hooks: { PreTool: [] } }\n",
            &["E4 `hooks` of node `a` has no event `PreTool` | the events are PreToolUse"],
        ),
        (
            "  - { id: a, prompt: x, hooks: { Stop: [{ matcher: x }] } }\n",
            &["E4 `response` of a hook of `Stop` of node `a` must be a map"],
        ),
        (
            "  - { id: a, prompt: x, hooks: { Stop: [{ response: {}, timeot: 5 }] } }\n",
            &["E4 a hook of `Stop` of node `a` has no field `timeot` | did you mean `timeout`?"],
        ),
    ]);
}

#[test]
fn fields_without_effect_are_told_once() {
    tells(&[
        (
            "  - { id: a, prompt: x, agents: {}, effort: high }\n",
            &["W4 `agents` and `effort` of node `a` have no effect here"],
        ),
        (
            "  - { id: a, bash: ls, denied_tools: [Bash], maxBudgetUsd: 1 }\n",
            &["W4 `denied_tools` and `maxBudgetUsd` of node `a` have no effect on a `bash` node"],
        ),
        (
            "  - { id: a, bash: ls, model: m, provider: nobody, output_format: x, pi: {} }\n",
            &["W4 `model`, `provider`, `output_format` and `pi` of node `a` have no effect on"],
        ),
        (
            "  - { id: a, loop: { prompt: x, until: D, max_iterations: 1 }, context: fresh }\n",
            &["W4 `context` of node `a` has no effect on a `loop` node"],
        ),
        (
            "  - { id: a, approval: { message: x }, model: m, retry: { max_attempts: 1 }, agent: \
             q }\n",
            &["W4 `model`, `retry` and `agent` of node `a` have no effect on an `approval` node"],
        ),
        (
            "  - { id: a, approval: { message: x, on_reject: { prompt: x } }, model: m, \
             retry: { max_attempts: 1 } }\n",
            &["W4 `retry` of node `a` has no effect on an `approval` node"],
        ),
        (
            "  - { id: a, cancel: x, timeout: 5, retry: { max_attempts: 1 } }\n",
            &["W4 `timeout` and `retry` of node `a` have no effect on a `cancel` node"],
        ),
    ]);
}

#[test]
fn dependencies_are_ids_of_others() {
    tells(&[
        (
            "  - { id: a, bash: ls, depends_on: b }\n",
            &["E4 `depends_on` of node `a` must be a list of ids..write `depends_on: [b]`"],
        ),
        (
            "  - { id: a, bash: ls, depends_on: [5] }\n",
            &["E4 `depends_on` of node `a` must be a list"],
        ),
        (
            "  - { id: build, bash: ls }\n  - { id: b, bash: ls, depends_on: [biuld] }\n",
            &["E5 node `b` waits for `biuld`, but no node has that id | did you mean `build`?"],
        ),
        (
            "  - { id: b, bash: ls }\n  - { id: a, bash: ls, depends_on: [b, b] }\n",
            &["W5 node `a` waits for `b` twice"],
        ),
        ("  - { id: a, bash: ls, depends_on: [a] }\n", &["E4 node `a` waits for itself"]),
        (
            "  - { id: a, bash: ls, depends_on: [b] }\n  - { id: b, bash: ls, depends_on: [c] }\n  \
             - { id: c, bash: ls, depends_on: [a] }\n  - { id: d, bash: ls, depends_on: [a] }\n",
            &["E4 nodes wait for each other in a circle: `a` → `b` → `c` → `a`"],
        ),
        (
            "  - { id: a, bash: ls, trigger_rule: all_dne }\n",
            &["E4 `trigger_rule` of node `a` is `all_dne`..did you mean `all_done`?"],
        ),
    ]);
}

#[test]
fn numbers_have_bounds() {
    tells(&[
        (
            "  - { id: a, bash: ls, timeout: 0 }\n",
            &["E4 `timeout` of node `a`..greater than 0, not 0"],
        ),
        (
            "  - { id: a, bash: ls, timeout: 5s }\n",
            &["E4 ..a number of milliseconds..| write `timeout: 5000`"],
        ),
        ("  - { id: a, bash: ls, timeout: 90000000 }\n", &["W4 ..1.0 days long | it counts milli"]),
        (
            "  - { id: a, prompt: x, idle_timeout: -1 }\n",
            &["E4 `idle_timeout` of node `a` must be"],
        ),
        ("  - { id: a, bash: ls, retry: 3 }\n", &["E4 ..write `retry: { max_attempts: 3 }`"]),
        ("  - { id: a, bash: ls, retry: {} }\n", &["E4 `retry` of node `a` has no `max_attempts`"]),
        ("  - { id: a, bash: ls, retry: { max_attempts: 6 } }\n", &["E4 ..from 1 to 5, not 6"]),
        (
            "  - { id: a, bash: ls, retry: { max_attempts: 1, delay_ms: 10, on_error: some } }\n",
            &["E4 ..from 1000 to 60000, not 10", "E4 ..`some`, but must be `transient` or `all`"],
        ),
        (
            "  - { id: a, approval: { message: x, on_reject: { prompt: x, max_attempts: 11 } } }\n",
            &["E4 ..from 1 to 10, not 11"],
        ),
    ]);
}

#[test]
fn what_a_mode_needs_must_be_there() {
    tells(&[
        (
            "  - { id: a, command: ../x }\n",
            &["E4 `command` of node `a` is `../x`, which names no file"],
        ),
        ("  - { id: a, command: a/b }\n", &["E4 ..names no file"]),
        ("  - { id: a, command: .x }\n", &["E4 ..names no file"]),
        ("  - { id: a, command: 'a\\b' }\n", &["E4 ..names no file"]),
        ("  - { id: a, command: x.md }\n", &["W4 ..its ending is added to it | write `x`"]),
        ("  - { id: a, command: '' }\n", &["E4 `command` of node `a` is empty"]),
        ("  - { id: a, script: x }\n", &["E4 node `a` has no `runtime` | write `bun` or `uv`"]),
        ("  - { id: a, script: x, runtime: node }\n", &["E4 ..but must be `bun` or `uv`"]),
        (
            "  - { id: a, script: scripts/x.ts, runtime: bun }\n",
            &["E4 `script` of node `a`..names no"],
        ),
        (
            "  - { id: a, script: x, runtime: uv, deps: six }\n",
            &["E4 `deps` of node `a` must be a list"],
        ),
        ("  - { id: a, script: x, runtime: uv, deps: [--index] }\n", &["E4 `--index` in `deps`"]),
        ("  - { id: a, loop: x }\n", &["E4 `loop` of node `a` must be a map, not text"]),
        (
            "  - { id: a, loop: {} }\n",
            &[
                "E4 ..no `prompt`",
                "E4 ..no `until`",
                "E4 `loop` of node `a` has no `max_iterations`",
            ],
        ),
        (
            "  - { id: a, loop: { command: x, until: '', max_iterations: 0 } }\n",
            &["E4 ..has `command`..its `prompt`", "E4 ..`until`..is empty", "E4 ..from 1 to"],
        ),
        (
            "  - { id: a, loop: { prompt: x, until: D, max_iterations: 1, gate_message: x } }\n",
            &["W4 `gate_message` of `loop` of node `a` has no effect | ..`interactive: true`"],
        ),
        (
            "  - { id: a, approval: sure? }\n",
            &["E4 `approval` of node `a` must be a map..write `approval: { message: \"sure?\" }`"],
        ),
        ("  - { id: a, approval: {} }\n", &["E4 `approval` of node `a` has no `message`"]),
        (
            "  - { id: a, approval: { message: x, on_reject: mend } }\n",
            &["E4 ..must be a map, not text | write `on_reject: { prompt: \"mend\" }`"],
        ),
        (
            "  - { id: a, approval: { message: x, on_reject: {} } }\n",
            &["E4 `on_reject` of `approval` of node `a` has no `prompt`"],
        ),
        (
            "  - { id: a, prompt: x, context: new }\n",
            &["E4 ..`new`, but must be `fresh` or `shared`"],
        ),
        ("  - { id: a, prompt: x, output_type: '' }\n", &["E4 `output_type` of node `a` is empty"]),
        (
            "  - { id: a, prompt: x, always_run: 1 }\n",
            &["E4 `always_run` of node `a` must be true"],
        ),
        ("  - { id: a, prompt: x, provider: othr }\n", &["E4 ..`othr`..did you mean `other`?"]),
        ("  - { id: a, prompt: x, provider: zz }\n", &["E4 ..define it under `providers:` in the"]),
        (
            "  - { id: a, prompt: x, model: '@fast' }\n",
            &["W4 `model` of node `a` is `@fast`, which is"],
        ),
        ("  - { id: a, prompt: x, agent: coordinator }\n", &["E4 `coordinator` is no agent"]),
        ("  - { id: a, prompt: x, agent: a/b }\n", &["E4 `a/b` cannot name an agent"]),
        ("  - { id: a, prompt: x, output_format: x }\n", &["E4 ..must be a JSON Schema, not text"]),
        (
            "  - { id: a, prompt: x, output_format: { type: nonsense } }\n",
            &["W4 ..describes no object", "W4 ..is no JSON Schema: ..| it is not enforced"],
        ),
        (
            "  - { id: a, prompt: x, output_format: { type: array } }\n",
            &["W4 ..describes no object"],
        ),
    ]);
    let dropped =
        compiled(&workflow("  - { id: a, prompt: x, output_format: { type: nonsense } }\n"));
    assert_eq!(prompt_of(&dropped.plan.root.steps[0]).format, None);
}

#[test]
fn nobody_is_the_provider_where_none_is_configured() {
    let text = workflow("  - { id: a, prompt: x }\n  - { id: b, prompt: x }\n");
    let problems = compile(&text, &()).expect_err("there is no provider");
    assert_eq!(problems.len(), 1, "{problems:#?}");
    let text = workflow("  - { id: a, bash: x }\n");
    assert!(compile(&text, &()).is_ok());
}

#[test]
fn conditions_that_cannot_be_read_skip_the_node() {
    tells(&[
        (
            "  - { id: a, bash: ls, when: nonsense }\n",
            &["W4 `when` of node `a` cannot be read: `nonsense`..| the node will be skipped"],
        ),
        (
            "  - { id: a, bash: ls, when: '' }\n",
            &["W4 `when` of node `a` cannot be read: a comparison"],
        ),
        ("  - { id: a, bash: ls, when: true }\n", &["E4 `when` of node `a` must be text"]),
        (
            "  - { id: a, bash: ls, when: \"$ARGUMENTS == 'x'\" }\n",
            &["W4 ..`$ARGUMENTS` is a variable"],
        ),
        (
            "  - { id: a, bash: ls, when: \"$x.output == 'x' || $x.output == 'y'\" }\n",
            &["W4 `$x.output` in `when` of node `a` names no node of..: it will be empty"],
        ),
        (
            "  - { id: a, bash: ls, when: \"$x.f == 'x'\" }\n",
            &["W4 `$x.output.f` in `when` of node `a` names no node..: the node will fail"],
        ),
        (
            "  - { id: b, bash: ls }\n  - { id: a, bash: ls, when: \"$b.output == 'x'\" }\n",
            &["W5 `$b.output` is in `when` of node `a`, which does not wait for `b`: it may be"],
        ),
    ]);
}

#[test]
fn references_that_stand_for_nothing_are_told() {
    const TWO: &str = "  - { id: one, prompt: x, output_format: { type: object, properties: \
                       { kind: {} } } }\n  - { id: two, bash: ls, depends_on: [one] }\n";
    let after = |node: &str| format!("{TWO}  - {{ id: a, depends_on: [two], {node} }}\n");
    let beside = |node: &str| format!("{TWO}  - {{ id: a, {node} }}\n");
    let cases: Vec<(String, &[&str])> = vec![
        (after("prompt: '$one.output $two.output $one.output.kind $two.output.any'"), &[]),
        (after("prompt: '$tow.output'"), &["W6 ..names no node..empty | did you mean `two`?"]),
        (after("prompt: '$zz.output.f'"), &["W6 ..names no node..the node will fail"]),
        (
            after("prompt: '$one.output.kinds $one.output.kinds'"),
            &["W6 `$one.output.kinds`..of `one` declares (`kind`)..fail | ..`kind`?"],
        ),
        (
            beside("prompt: '$one.output $two.output.f'"),
            &[
                "W6 `$one.output` is in `prompt` of node `a`, which does not wait for..it may be \
                 empty | add `one` to `depends_on`",
                "W6 `$two.output.f` is in `prompt` of node `a`, which does..the node may fail",
            ],
        ),
        (after("prompt: '$a.output'"), &["W6 ..is the node's own output: it will be empty"]),
        (after("bash: 'echo $zz.output'"), &["W6 `$zz.output` in `bash` of node `a`"]),
        (after("script: '$zz.output', runtime: uv"), &["W6 `$zz.output` in `script` of node"]),
        (after("cancel: '$zz.output'"), &["W6 `$zz.output` in `cancel` of node `a`"]),
        (
            after("approval: { message: $y.output, on_reject: { prompt: $z.output } }"),
            &[
                "W6 `$y.output` in `message` of `approval`",
                "W6 `$z.output` in `prompt` of `on_reject`",
            ],
        ),
        (
            after(
                "loop: { prompt: $w.output, until: D, max_iterations: 1, interactive: true, \
                 gate_message: $x.output, until_bash: echo $y.output }",
            ),
            &[
                "W6 `$w.output` in `prompt`",
                "W6 `$x.output` in `gate_m",
                "W6 `$y.output` in `until_b",
            ],
        ),
    ];
    for (nodes, wanted) in &cases {
        tells(&[(nodes, wanted)]);
    }
}

#[test]
fn variables_have_their_places() {
    tells(&[
        (
            "  - { id: a, prompt: $LOOP_PREV_OUTPUT $REJECTION_REASON $ARGUMENTS }\n",
            &[
                "W4 `$LOOP_PREV_OUTPUT` is empty in `prompt` of node `a`: only a `loop` has it",
                "W4 `$REJECTION_REASON` is empty in `prompt` of node `a`: only `on_reject` has it",
            ],
        ),
        ("  - { id: a, bash: echo $LOOP_USER_INPUT }\n", &["W4 `$LOOP_USER_INPUT` is empty"]),
        (
            "  - { id: a, cancel: $ARGUMENTS }\n",
            &["W4 `$ARGUMENTS` is not replaced in `cancel` of node `a` | there, only"],
        ),
        (
            "  - { id: a, approval: { message: $ARGUMENTS } }\n",
            &["W4 `$ARGUMENTS` is not replaced in `message` of `approval` of node `a`"],
        ),
        (
            "  - { id: a, approval: { message: m, on_reject: { prompt: $LOOP_PREV_OUTPUT } } }\n",
            &["W4 `$LOOP_PREV_OUTPUT` is empty in `prompt` of `on_reject`"],
        ),
        (
            "  - { id: a, loop: { prompt: $REJECTION_REASON, until: D, max_iterations: 1, \
             interactive: true, gate_message: $WORKFLOW_ID, until_bash: \
             test $LOOP_PREV_OUTPUT } }\n",
            &[
                "W4 `$REJECTION_REASON` is empty",
                "W4 `$WORKFLOW_ID` is not replaced in `gate_message`",
            ],
        ),
    ]);
}

#[test]
fn the_syntax_of_the_other_dialect_is_told() {
    tells(&[
        (
            "  - { id: a, prompt: 'do ${steps.A.output} and ${context.x}' }\n",
            &["W4 `${steps.A.output}` is not replaced in `prompt`..this dialect writes `$id"],
        ),
        ("  - { id: a, prompt: 'do ${ARGUMENTS}' }\n", &["W4 ..this dialect writes `$ARGUMENTS`"]),
        ("  - { id: a, prompt: 'do ${x:-y} ${ $ {x} ${}' }\n", &[]),
        ("  - { id: a, bash: 'echo ${x} ${ARGUMENTS} ${x%.*}' }\n", &[]),
        (
            "  - { id: a, bash: 'echo ${steps.A.output}' }\n",
            &["W4 `${steps.A.output}` is not repl"],
        ),
        ("  - { id: a, script: 'console.log(`${a.b}`)', runtime: bun }\n", &[]),
    ]);
}

#[test]
fn references_in_quotes_of_a_shell_are_told() {
    tells(&[
        (
            "  - { id: b, bash: ls }\n  - id: a\n    depends_on: [b]\n    bash: |\n      \
             echo \"$b.output\" \"$b.output\" $b.output\n",
            &[
                "W8 `$b.output` is in double quotes in `bash` of..write `value=$b.output`",
                "W8 `$b.output` is in double quotes in `bash` of node `a`",
            ],
        ),
        (
            "  - { id: b, bash: ls }\n  \
             - { id: a, depends_on: [b], bash: \"echo '$b.output.f'\" }\n",
            &["E5 `$b.output.f` is in single quotes in `bash` of..before it: `'…'$b.output.f'…'`"],
        ),
    ]);
}

#[test]
fn lines_may_end_as_they_do_elsewhere() {
    let text = workflow(
        "  - id: a\n    prompt: |\n      one\n      two\n    when: \"$b.output == 'on'\"\n    \
         depends_on: [b]\n  - id: b\n    bash: yes\n",
    );
    let text = &text.replace('\n', "\r\n");
    let Compiled { plan, warnings, .. } = compiled(text);
    assert!(warnings.is_empty(), "{warnings:#?}");
    assert_eq!(prompt_of(&plan.root.steps[0]).words, Words::Inline(NodeText::parse("one\ntwo\n")));
}

/// Every node refers to the first, to the one before it and to all the way between.
#[test]
fn ten_thousand_nodes_take_no_long_time() {
    const MANY: usize = 10_000;
    let mut text = workflow("  - { id: n0, bash: ls }\n");
    for n in 1..MANY {
        let up = n - 1;
        text.push_str(&format!(
            "  - {{ id: n{n}, depends_on: [n{up}], bash: echo $n0.output $n{}.output }}\n",
            n / 2
        ));
    }
    let circle = text.replace("{ id: n0, bash: ls }", "{ id: n0, bash: ls, depends_on: [n9999] }");
    let unknown = text.replace("depends_on: [n", "depends_on: [m");
    let begun = std::time::Instant::now();
    assert!(compiled(&text).warnings.is_empty());
    assert_eq!(told(&circle).len(), 1);
    assert_eq!(told(&unknown).len(), MANY - 1);
    // In proportion it takes a second or so without optimisation; in squares, minutes.
    assert!(begun.elapsed() < Duration::from_secs(60), "{:?}", begun.elapsed());
}
