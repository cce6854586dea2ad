//! DOT output, for Graphviz and compatible programs.

use std::fmt::Write;

use super::{Edge, EdgeKind, Graph, Node, Shape, id, printable};

pub(crate) fn draw(graph: &Graph) -> String {
    let title = escape(&graph.title);
    let mut out = format!(
        "digraph workflow {{\n  graph [label=\"{title}\", labelloc=t, fontname=\"sans-serif\"];\n  \
         node [shape=box, style=filled, fillcolor=\"#ffffff\", fontname=\"sans-serif\"];\n  edge \
         [fontname=\"sans-serif\", fontsize=10];\n"
    );
    nodes(graph, None, 1, &mut out);
    for edge in &graph.edges {
        let _ = writeln!(out, "  {};", arrow(edge));
    }
    out.push_str("}\n");
    out
}

/// Writes the nodes of a loop, or the top-level ones. A loop and its nodes form a cluster.
fn nodes(graph: &Graph, inside: Option<usize>, depth: usize, out: &mut String) {
    let pad = "  ".repeat(depth);
    for (index, node) in graph.nodes_in(inside) {
        let text = format!("{} [{}];", id(index), attributes(node));
        if graph.is_frame(index) {
            let name = escape(&node.name);
            let _ = writeln!(out, "{pad}subgraph cluster_{index} {{\n{pad}  label=\"{name}\";");
            let _ = writeln!(out, "{pad}  {text}");
            self::nodes(graph, Some(index), depth + 1, out);
            let _ = writeln!(out, "{pad}}}");
        } else {
            let _ = writeln!(out, "{pad}{text}");
        }
    }
}

fn attributes(node: &Node) -> String {
    let label = node.lines().iter().map(|line| escape(line)).collect::<Vec<_>>().join("\\n");
    let mut out = format!("label=\"{label}\"");
    let mut styles = vec!["filled"];
    match node.kind.shape() {
        Shape::Box => {}
        Shape::Round => styles.push("rounded"),
        Shape::Double => out.push_str(", peripheries=2"),
        Shape::Hexagon => out.push_str(", shape=hexagon"),
        Shape::Slanted => out.push_str(", shape=parallelogram"),
        Shape::Octagon => out.push_str(", shape=octagon"),
    }
    if node.when.is_some() {
        styles.push("dashed");
    }
    let _ = write!(out, ", style=\"{}\"", styles.join(","));
    if let Some(progress) = &node.progress {
        let ((fill, stroke), class) = (progress.state.colours(), progress.state.word());
        let _ = write!(out, ", class=\"{class}\", fillcolor=\"{fill}\", color=\"{stroke}\"");
    }
    out
}

fn arrow(edge: &Edge) -> String {
    let mut attributes = Vec::new();
    attributes.extend(edge.label.map(|label| format!("label=\"{}\"", escape(label))));
    match edge.kind {
        EdgeKind::Dependency | EdgeKind::Sequence => {}
        // `constraint=false` below: an edge back to a loop must not turn the layout upside down.
        EdgeKind::Goto => attributes.push("style=dashed".to_owned()),
        EdgeKind::Item | EdgeKind::Round => {
            attributes.push("style=dotted, constraint=false".to_owned())
        }
    }
    match attributes.is_empty() {
        true => format!("{} -> {}", id(edge.from), id(edge.to)),
        false => format!("{} -> {} [{}]", id(edge.from), id(edge.to), attributes.join(", ")),
    }
}

/// Escapes text for double quotes. Graphviz interprets entities, so an ampersand becomes one.
pub(crate) fn escape(text: &str) -> String {
    let mut out = String::new();
    for letter in text.chars() {
        match letter {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '&' => out.push_str("&amp;"),
            '\n' => out.push_str("\\n"),
            other => out.push(printable(other)),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotes_backslashes_and_entities_are_text() {
        for (text, wanted) in [
            ("say \"hi\"", "say \\\"hi\\\""),
            ("C:\\N", "C:\\\\N"),
            ("a\nb", "a\\nb"),
            ("&lt;<b>", "&amp;lt;<b>"),
            ("bell\u{7}", "bell\u{fffd}"),
        ] {
            assert_eq!(escape(text), wanted, "{text}");
        }
    }
}
