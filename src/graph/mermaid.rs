//! Mermaid output, which GitHub and many editors draw from a code block.

use std::fmt::Write;

use super::{Edge, EdgeKind, Graph, Shape, State, id, printable};

pub(crate) fn draw(graph: &Graph) -> String {
    let mut out = String::from("flowchart TD\n");
    let _ = writeln!(out, "  accTitle: {}", title(&graph.title));
    nodes(graph, None, 1, &mut out);
    for edge in &graph.edges {
        let _ = writeln!(out, "  {}", arrow(edge));
    }
    let conditional = |index: &usize| graph.nodes[*index].when.is_some();
    let members: Vec<_> = (0..graph.nodes.len()).filter(conditional).map(id).collect();
    if !members.is_empty() {
        out.push_str("  classDef conditional stroke-dasharray:5 3\n");
        let _ = writeln!(out, "  class {} conditional", members.join(","));
    }
    for state in State::ALL {
        let nodes = graph.nodes.iter().enumerate();
        let is = nodes.filter(|(_, node)| node.progress.as_ref().is_some_and(|p| p.state == state));
        let members: Vec<_> = is.map(|(index, _)| id(index)).collect();
        if members.is_empty() {
            continue;
        }
        let ((fill, stroke), word) = (state.colours(), state.word());
        let _ = writeln!(out, "  classDef {word} fill:{fill},stroke:{stroke},color:#212529");
        let _ = writeln!(out, "  class {} {word}", members.join(","));
    }
    out
}

/// Writes the nodes of a loop, or the top-level ones. A loop and its nodes form a subgraph.
fn nodes(graph: &Graph, inside: Option<usize>, depth: usize, out: &mut String) {
    let pad = "  ".repeat(depth);
    for (index, node) in graph.nodes_in(inside) {
        let label = node.lines().iter().map(|line| escape(line)).collect::<Vec<_>>().join("<br/>");
        let (open, close) = match node.kind.shape() {
            Shape::Box => ("[", "]"),
            Shape::Round => ("(", ")"),
            Shape::Double => ("[[", "]]"),
            Shape::Hexagon => ("{{", "}}"),
            Shape::Slanted => ("[/", "/]"),
            Shape::Octagon => ("([", "])"),
        };
        let node_text = format!("{}{open}\"{label}\"{close}", id(index));
        if graph.is_frame(index) {
            let _ = writeln!(out, "{pad}subgraph c{index} [\"{}\"]", escape(&node.name));
            let _ = writeln!(out, "{pad}  {node_text}");
            self::nodes(graph, Some(index), depth + 1, out);
            let _ = writeln!(out, "{pad}end");
        } else {
            let _ = writeln!(out, "{pad}{node_text}");
        }
    }
}

fn arrow(edge: &Edge) -> String {
    let line = match edge.kind {
        EdgeKind::Dependency | EdgeKind::Sequence => "-->",
        EdgeKind::Goto | EdgeKind::Item | EdgeKind::Round => "-.->",
    };
    let label = edge.label.map(|label| format!("|\"{}\"|", escape(label))).unwrap_or_default();
    format!("{} {line}{label} {}", id(edge.from), id(edge.to))
}

/// Cleans a title: it is one line, in which `%%`, `#` and `;` have a meaning.
fn title(text: &str) -> String {
    let plain = |c: char| if "%#;{}".contains(c) { ' ' } else { printable(c) };
    text.chars().map(plain).collect::<String>().trim().to_owned()
}

/// Escapes text for double quotes. Letters, digits, blanks and a few signs stay, and a few more
/// signs after a letter or digit. All other characters become their code points, because many have
/// a meaning here: quotes, markup, entities, `%%` comments, formulas and Markdown lists.
pub(crate) fn escape(text: &str) -> String {
    let mut out = String::new();
    let mut after_word = false;
    for (index, letter) in text.chars().map(printable).enumerate() {
        let word = letter.is_alphanumeric() && (index > 0 || letter.is_alphabetic());
        let blank = index > 0 && " ='".contains(letter);
        let sign = after_word && "_-./,()".contains(letter);
        match word || blank || sign {
            true => out.push(letter),
            false => {
                let _ = write!(out, "#{};", u32::from(letter));
            }
        }
        after_word = word;
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_means_something_goes_by_its_number() {
        for (text, wanted) in [
            ("plain text", "plain text"),
            ("my_step-1.x", "my_step-1.x"),
            ("größe 描述", "größe 描述"),
            ("say \"hi\"", "say #34;hi#34;"),
            ("<b>&amp;", "#60;b#62;#38;amp#59;"),
            ("`md`", "#96;md#96;"),
            ("%%{init}%%", "#37;#37;#123;init#125;#37;#37;"),
            ("a#35;", "a#35;35#59;"),
            ("$$x$$", "#36;#36;x#36;#36;"),
            ("1. first", "#49;#46; first"),
            ("- item", "#45; item"),
            ("style:#f", "style#58;#35;f"),
            ("a\nb\u{7}", "a#65533;b#65533;"),
        ] {
            assert_eq!(escape(text), wanted, "{text}");
        }
    }
}
