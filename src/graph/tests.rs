//! Pictures of whole plans, and graphs for the tests of each format.

use super::*;
use crate::workflow::compile;

/// Returns a graph with these dependencies.
pub(super) fn dependent(edges: &[(usize, usize)], count: usize) -> Graph {
    let node = |index: usize| Node {
        name: format!("node {index}"),
        path: format!("node {index}"),
        kind: Kind::Bash,
        detail: None,
        agent: None,
        when: None,
        join: JoinRule::default(),
        most: None,
        inside: None,
        depth: 0,
        progress: None,
    };
    let edge = |(from, to): &(usize, usize)| Edge {
        from: *from,
        to: *to,
        kind: EdgeKind::Dependency,
        label: None,
    };
    Graph {
        title: "a graph".into(),
        sequence: false,
        nodes: (0..count).map(node).collect(),
        edges: edges.iter().map(edge).collect(),
    }
}

/// Returns one node, then `count` parallel nodes, then one.
pub(super) fn wide(count: usize) -> Graph {
    let edges: Vec<_> = (1..=count).flat_map(|node| [(0, node), (node, count + 1)]).collect();
    dependent(&edges, count + 2)
}

/// Checks that every element that is opened is closed again, in order.
pub(super) fn balanced(text: &str) -> Result<(), String> {
    let mut open = Vec::new();
    for piece in text.split('<').skip(1) {
        let (tag, rest) = piece.split_once('>').ok_or(format!("`<{piece}` does not end"))?;
        if rest.contains('>') {
            return Err(format!("a bare `>` in `{rest}`"));
        }
        let name = |tag: &str| tag.split_whitespace().next().unwrap_or_default().to_owned();
        match tag.strip_prefix('/') {
            Some(closed) if open.pop().as_deref() != Some(closed) => {
                return Err(format!("`</{closed}>` closes what is not open"));
            }
            Some(_) => {}
            None if tag.matches('"').count() % 2 == 1 => return Err(format!("`<{tag}>`")),
            None if tag.ends_with('/') => {}
            None => open.push(name(tag)),
        }
    }
    for entity in text.split('&').skip(1) {
        let known = ["amp;", "lt;", "gt;", "quot;", "#39;"];
        if !known.iter().any(|name| entity.starts_with(name)) {
            return Err(format!("a bare `&` before `{}`", shorten(entity, 20)));
        }
    }
    if open.is_empty() { Ok(()) } else { Err(format!("{open:?} stay open")) }
}

fn plan(text: &str) -> Plan {
    compile(text, &()).expect("it is valid").plan
}

const STEPS: &str = r#"
version: "1.1"
steps:
  - name: List
    command: ["ls"]
    output_capture: lines
    on: { failure: { goto: _end } }
  - name: Each
    for_each:
      items_from: steps.List.lines
      steps:
        - { name: Build, command: ["make"], on: { failure: { goto: Fix } } }
        - { name: Test, command: ["true"], on: { success: { goto: After } } }
        - { name: Fix, agent: engineer, command: ["true"], when: { exists: "bugs/*.md" } }
  - { name: After, command: ["true"], on: { always: { goto: List } } }
"#;

fn arrows(graph: &Graph) -> Vec<String> {
    let name = |index: usize| graph.nodes[index].name.as_str();
    let show = |edge: &Edge| {
        let label = edge.label.map(|label| format!(" {label}")).unwrap_or_default();
        format!("{}>{}{label}", name(edge.from), name(edge.to))
    };
    graph.edges.iter().map(show).collect()
}

#[test]
fn a_sequence_has_what_follows_what_and_where_control_may_jump() {
    let graph = Graph::new("w.yaml", &plan(STEPS), None);
    assert!(graph.sequence);
    assert_eq!(
        arrows(&graph),
        [
            "List>end failure",
            "List>Each",
            "Each>Build each item",
            "Build>Fix failure",
            "Build>Test",
            "Test>After success",
            "Fix>Each next item",
            "Each>After",
            "After>List always",
        ]
    );
    let inside: Vec<_> = graph.nodes.iter().map(|node| (node.inside, node.depth)).collect();
    let body = (Some(1), 1);
    assert_eq!(inside, [(None, 0), (None, 0), body, body, body, (None, 0), (None, 0)]);
    assert_eq!(graph.nodes[4].lines(), ["Fix", "command, agent engineer", "when bugs/*.md exists"]);
}

#[test]
fn a_loop_over_items_is_a_part_of_its_own_in_every_format() {
    let graph = Graph::new("w.yaml", &plan(STEPS), None);
    let text = mermaid::draw(&graph);
    let part =
        text.split("subgraph c1 [\"Each\"]").nth(1).and_then(|text| text.split("\n  end").next());
    let part = part.expect("a subgraph");
    assert!(part.contains("n1[[") && part.contains("n4[\"Fix<br/>") && !part.contains("n5"));
    assert!(text.contains("class n4 conditional"));
    let text = dot::draw(&graph);
    let part =
        text.split("subgraph cluster_1 {").nth(1).and_then(|text| text.split("\n  }").next());
    let part = part.expect("a cluster");
    assert!(part.contains("n1 [") && part.contains("n4 [") && !part.contains("n5 ["));
    assert!(text.contains("n0 -> n6 [label=\"failure\", style=dashed];"), "{text}");
    assert_eq!(text.matches('{').count(), text.matches('}').count());
    let text = svg::draw(&graph);
    balanced(&text).unwrap();
    assert_eq!(text.matches("class=\"cluster\"").count(), 1);
}

const ROUNDS: &str = r#"
name: g
steps:
  - { name: first, type: script, command: "true" }
  - name: again
    type: loop
    steps:
      - { name: test, type: script, command: "true", on_success: exit_loop }
      - { name: fix, type: script, command: "true" }
  - { name: last, type: script, command: "true" }
"#;

#[test]
fn so_is_a_loop_that_goes_in_rounds() {
    let graph = Graph::new("g.yaml", &plan(ROUNDS), None);
    assert_eq!(
        arrows(&graph),
        [
            "first>again",
            "again>test each round",
            "test>last exit_loop",
            "test>fix",
            "fix>again next round",
        ]
    );
    let [text, picture] = [mermaid::draw(&graph), svg::draw(&graph)];
    let part = text.split("subgraph c1 [\"again\"]").nth(1).and_then(|t| t.split("\n  end").next());
    assert!(part.is_some_and(|part| part.contains("n3[") && !part.contains("n4[")), "{text}");
    assert!(dot::draw(&graph).contains("subgraph cluster_1 {"));
    balanced(&picture).unwrap();
    assert_eq!(picture.matches("class=\"cluster\"").count(), 1);
    assert_eq!(picture.matches("marker-end").count(), graph.edges.len());
}

#[test]
fn joins_are_said_and_waiting_for_one_twice_is_one_arrow() {
    let mut graph = dependent(&[], 3);
    let edges = Edges::new(
        vec![vec![], vec![0, 0], vec![0, 1]],
        vec![JoinRule::AllSuccess, JoinRule::AllSuccess, JoinRule::AllDone],
    );
    graph.nodes[2].join = JoinRule::AllDone;
    let level = Level { nodes: vec![0, 1, 2], inner: Vec::new() };
    let mut drawing = Drawing { graph, seen: None, end: None };
    drawing.dependencies(&edges, &level);
    let graph = drawing.graph;
    assert_eq!(
        arrows(&graph),
        ["node 0>node 1", "node 0>node 2 all_done", "node 1>node 2 all_done"]
    );
    assert!(mermaid::draw(&graph).contains("n1 -->|\"all_done\"| n2\n"));
    assert!(dot::draw(&graph).contains("n1 -> n2 [label=\"all_done\"];\n"));
    assert_eq!(svg::draw(&graph).matches(">all_done<").count(), 1, "once, where they meet");
    let document = graph.to_json();
    assert_eq!(document["nodes"][2]["trigger_rule"], "all_done");
    assert_eq!(document["edges"][2]["label"], "all_done");
}

#[test]
fn states_are_a_word_and_a_colour() {
    let mut graph = dependent(&[(0, 1)], 2);
    let progress = |state, attempts, done| Some(Progress { state, attempts, done, items: None });
    graph.nodes[0].progress = progress(State::Completed, Attempt::new(3), None);
    graph.nodes[1].progress = progress(State::Paused, Attempt::FIRST, Some(2));
    graph.nodes[1].most = Some(5);
    assert_eq!(graph.nodes[0].lines()[2], "completed, 3 attempts");
    assert_eq!(graph.nodes[1].lines()[2], "asking, round 2 of 5");
    let text = mermaid::draw(&graph);
    assert!(text.contains("classDef completed fill:#d3f9d8"));
    assert!(text.contains("class n1 asking\n"));
    assert!(dot::draw(&graph).contains("class=\"asking\""));
    let text = svg::draw(&graph);
    balanced(&text).unwrap();
    assert!(text.contains("<g class=\"node asking\">"));
    assert_eq!(text.matches(">interrupted<").count(), 1, "the legend has every state");
    assert_eq!(graph.to_json()["nodes"][1]["rounds"], 2);
}

#[test]
fn text_is_shortened_by_how_wide_it_is() {
    assert_eq!(shorten("as  it\nis", 9), "as it is");
    assert_eq!(shorten("12345", 5), "12345");
    assert_eq!(shorten("123456", 5), "1234…");
    assert_eq!(shorten("描述描述", 5), "描述…");
}

#[test]
fn two_thousand_nodes_are_no_matter() {
    let edges: Vec<_> = (1..2000_usize)
        .flat_map(|node| [(node / 2, node), (node.saturating_sub(7), node)])
        .filter(|(from, to)| from != to)
        .collect();
    let began = std::time::Instant::now();
    let graph = dependent(&edges, 2000);
    let all = [svg::draw(&graph), mermaid::draw(&graph), dot::draw(&graph)];
    assert!(all.iter().all(|text| text.contains("node 1999")));
    let whole = svg::draw(&wide(2000));
    assert!(whole.contains("node 1999"));
    assert!(began.elapsed().as_secs() < 4, "{:?}", began.elapsed());
}
