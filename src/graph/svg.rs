//! SVG output, for any browser, without another program.
//!
//! Nodes are in rows and columns; edges run in the gaps between them and in the margins, so that
//! none crosses a node.

use std::collections::BTreeSet;
use std::fmt::Write;

use super::layout::{Layout, WIDEST, place};
use super::{EdgeKind, Graph, Node, Shape, State, columns, printable, shorten, shorten_middle};

/// Maximum width: a window of eighty columns.
const WIDTH: usize = 760;
const MARGIN: usize = 40;
/// Space between two columns.
const GUTTER: usize = 24;
/// Space between two rows.
const GAP: usize = 54;
const TOP: usize = 56;
const LINE: usize = 15;
/// Maximum width of a box, indentation per loop, and approximate width of a character.
const WIDEST_BOX: usize = 320;
const INDENT: usize = 18;
const LETTER: f64 = 6.4;

const STYLE: &str = "text{font:11px sans-serif;fill:#212529}.name{font-weight:bold}\
    .title{font-size:14px;font-weight:bold}.label{font-size:9px;paint-order:stroke;\
    stroke:#fff;stroke-width:3px}.edge{fill:none;stroke:#868e96;stroke-width:1.2}\
    .goto{stroke-dasharray:5 3}.item{stroke-dasharray:2 3}\
    .shape{fill:#fff;stroke:#495057;stroke-width:1.2}.conditional .shape{stroke-dasharray:5 3}\
    .cluster{fill:#f8f9fa;stroke:#adb5bd}";

pub(crate) fn draw(graph: &Graph) -> String {
    let drawing = Drawing::new(graph);
    let Drawing { width, height, .. } = drawing;
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" \
         viewBox=\"0 0 {width} {height}\" role=\"img\">\n"
    );
    let title = escape(&graph.title);
    let _ = writeln!(out, "<title>{title}</title>\n<style>{STYLE}{}</style>", state_styles());
    out.push_str(
        "<defs><marker id=\"arrow\" viewBox=\"0 0 8 8\" refX=\"7\" refY=\"4\" markerWidth=\"7\" \
         markerHeight=\"7\" orient=\"auto\"><path d=\"M0,0L8,4L0,8z\" fill=\"#868e96\"/></marker>\
         </defs>\n",
    );
    let _ = writeln!(out, "<rect width=\"{width}\" height=\"{height}\" fill=\"#fff\"/>");
    let most = ((width - 2 * MARGIN) as f64 / (LETTER * 1.3)) as usize;
    let title = escape(&shorten(&graph.title, most));
    let _ = writeln!(out, "<text class=\"title\" x=\"{MARGIN}\" y=\"24\">{title}</text>");
    drawing.clusters(&mut out);
    drawing.edges(&mut out);
    for (index, node) in graph.nodes.iter().enumerate() {
        drawing.node(index, node, &mut out);
    }
    if graph.has_states() {
        drawing.legend(&mut out);
    }
    out.push_str("</svg>\n");
    out
}

/// Draws the graph as a part of a page that has its own title and style sheet. `link` returns the
/// target of a node.
pub(crate) fn draw_in_page(graph: &Graph, link: &dyn Fn(&Node) -> Option<String>) -> String {
    // The space for the title is not needed.
    const CUT: usize = TOP - 14;
    let drawing = Drawing::new(graph);
    let Drawing { width, height, .. } = drawing;
    let shown = height - CUT - 30 - (GAP - 14);
    let mut out = format!(
        "<svg class=\"graph\" width=\"{width}\" height=\"{shown}\" \
         viewBox=\"0 {CUT} {width} {shown}\" role=\"img\"><title>{}</title>\n\
         <defs><marker id=\"arrow\" viewBox=\"0 0 8 8\" refX=\"7\" refY=\"4\" markerWidth=\"7\" \
         markerHeight=\"7\" orient=\"auto\"><path class=\"tip\" d=\"M0,0L8,4L0,8z\"/></marker>\
         </defs>\n",
        escape(&graph.title)
    );
    drawing.clusters(&mut out);
    drawing.edges(&mut out);
    for (index, node) in graph.nodes.iter().enumerate() {
        let link = link(node);
        if let Some(link) = &link {
            let _ = write!(out, "<a href=\"{}\">", escape(link));
        }
        drawing.node(index, node, &mut out);
        if link.is_some() {
            out.push_str("</a>\n");
        }
    }
    out.push_str("</svg>\n");
    out
}

fn state_styles() -> String {
    let style = |state: &State| {
        let (fill, stroke) = state.colours();
        format!(".{} .shape{{fill:{fill};stroke:{stroke}}}", state.word())
    };
    State::ALL.iter().map(style).collect()
}

struct Drawing<'a> {
    graph: &'a Graph,
    layout: Layout,
    lines: Vec<Vec<String>>,
    /// Size of the whole picture, and of a box.
    width: usize,
    height: usize,
    box_width: usize,
    box_height: usize,
    deepest: usize,
}

impl<'a> Drawing<'a> {
    /// Creates a drawing with the maximum number of columns that keeps all names distinct.
    fn new(graph: &'a Graph) -> Drawing<'a> {
        let drawings = (1..=WIDEST).rev().map(|widest| Drawing::with_columns(graph, widest));
        let mut last = None;
        for drawing in drawings {
            if drawing.tells_apart() {
                return drawing;
            }
            last = Some(drawing);
        }
        last.unwrap_or_else(|| Drawing::with_columns(graph, WIDEST))
    }

    /// Returns true if nodes with different names look different.
    fn tells_apart(&self) -> bool {
        let names: BTreeSet<&str> = self.names().collect();
        let shown: BTreeSet<String> = names.iter().map(|name| self.short(name)).collect();
        shown.len() == names.len()
    }

    fn names(&self) -> impl Iterator<Item = &str> {
        self.lines.iter().filter_map(|lines| Some(lines.first()?.as_str()))
    }

    /// Returns the number of characters per line of a box.
    fn letters(&self) -> usize {
        ((self.box_width - 22) as f64 / LETTER) as usize
    }

    /// Shortens a name to fit into a box. Names are bold, and thus a little wider than other text.
    fn short(&self, name: &str) -> String {
        shorten_middle(name, self.letters() * 9 / 10)
    }

    fn with_columns(graph: &'a Graph, widest: usize) -> Drawing<'a> {
        let layout = place(graph, widest);
        let deepest = graph.nodes.iter().map(|node| node.depth).max().unwrap_or(0);
        let gutters = GUTTER * (layout.columns - 1);
        let indents = 2 * INDENT * deepest;
        let room = WIDTH.saturating_sub(2 * MARGIN + gutters + indents);
        let box_width = (room / layout.columns).clamp(120, WIDEST_BOX);
        // A picture with one column is narrow; its title and legend still need space.
        let width = (2 * MARGIN + gutters + indents + box_width * layout.columns).max(480);
        let lines: Vec<Vec<String>> = graph.nodes.iter().map(Node::lines).collect();
        let most = lines.iter().map(Vec::len).max().unwrap_or(1);
        let box_height = most * LINE + 12;
        let height = TOP + layout.rows * (box_height + GAP) + 30;
        Drawing { graph, layout, lines, width, height, box_width, box_height, deepest }
    }

    fn x(&self, node: usize) -> usize {
        let column = self.layout.places[node].1;
        MARGIN + column * (self.box_width + GUTTER) + self.graph.nodes[node].depth * INDENT
    }

    fn y(&self, node: usize) -> usize {
        TOP + self.layout.places[node].0 * (self.box_height + GAP)
    }

    /// Draws a frame around every loop, from its row to the last of its nodes.
    fn clusters(&self, out: &mut String) {
        let nodes = &self.graph.nodes;
        let frames = nodes.iter().enumerate().filter(|(index, _)| self.graph.is_frame(*index));
        for (index, node) in frames {
            let inside = nodes[index + 1..].iter().take_while(|other| other.depth > node.depth);
            let last = index + inside.count();
            let (x, y) = (self.x(index) - 10, self.y(index) - 10);
            let width = self.box_width + 20 + 2 * INDENT * (self.deepest - node.depth);
            let height = self.y(last) + self.box_height + 10 - y;
            let _ = writeln!(
                out,
                "<rect class=\"cluster\" x=\"{x}\" y=\"{y}\" width=\"{width}\" \
                 height=\"{height}\" rx=\"6\"/>"
            );
        }
    }

    fn edges(&self, out: &mut String) {
        let mut leaving = vec![0; self.graph.nodes.len()];
        for edge in &self.graph.edges {
            leaving[edge.from] += 1;
        }
        let mut begun = vec![0; self.graph.nodes.len()];
        let mut labelled = vec![false; self.graph.nodes.len()];
        for (number, edge) in self.graph.edges.iter().enumerate() {
            let class = match edge.kind {
                EdgeKind::Dependency | EdgeKind::Sequence => "edge",
                EdgeKind::Goto => "edge goto",
                EdgeKind::Item | EdgeKind::Round => "edge item",
            };
            // In a sequence, edges of different meaning leave at different points; in a graph, all
            // edges are of one kind and leave together.
            let (nth, of) = match self.graph.sequence {
                true => (begun[edge.from], leaving[edge.from]),
                false => (0, 1),
            };
            begun[edge.from] += 1;
            let from = self.x(edge.from) + self.box_width * (nth + 1) / (of + 1);
            let to = self.x(edge.to) + self.box_width / 2;
            let path = self.way(edge.from, edge.to, from, to, number, nth);
            let _ =
                writeln!(out, "<path class=\"{class}\" marker-end=\"url(#arrow)\" d=\"{path}\"/>");
            let Some(label) = edge.label.map(escape) else { continue };
            let (x, y) = match edge.kind {
                // Show the rule of a join once, where the edges arrive.
                EdgeKind::Dependency if labelled[edge.to] => continue,
                EdgeKind::Dependency => (to + 6, self.y(edge.to) - 4),
                _ => (from + 4, self.y(edge.from) + self.box_height + 10),
            };
            labelled[edge.to] |= edge.kind == EdgeKind::Dependency;
            let _ = writeln!(out, "<text class=\"label\" x=\"{x}\" y=\"{y}\">{label}</text>");
        }
    }

    /// Returns the path of an edge: down, along the gap below and, if the target is not in the next
    /// row, along a gutter or a margin to the gap above the target.
    fn way(
        &self,
        source: usize,
        target: usize,
        from: usize,
        to: usize,
        number: usize,
        nth: usize,
    ) -> String {
        let ((row, column), (end_row, end_column)) =
            (self.layout.places[source], self.layout.places[target]);
        let start = self.y(source) + self.box_height;
        let end = self.y(target);
        let lane = start + 14 + (column * 3 + nth) % 9 * 3;
        if end_row == row + 1 {
            return match from == to {
                true => format!("M{from},{start}V{end}"),
                false => format!("M{from},{start}V{lane}H{to}V{end}"),
            };
        }
        let shift = number % 6 * 3;
        let side = if end_row <= row {
            self.width - MARGIN + 6 + shift
        } else if self.graph.sequence || column <= end_column {
            let depth = self.graph.nodes[target].depth * INDENT;
            self.x(target) - depth - 4 - shift
        } else {
            self.x(target) + self.box_width + 4 + shift
        };
        let above = end - 9;
        format!("M{from},{start}V{lane}H{side}V{above}H{to}V{end}")
    }

    fn node(&self, index: usize, node: &Node, out: &mut String) {
        let mut classes = vec!["node"];
        classes.extend(node.progress.as_ref().map(|progress| progress.state.word()));
        if node.when.is_some() {
            classes.push("conditional");
        }
        let (x, y) = (self.x(index), self.y(index));
        let tip = escape(&self.lines[index].join("\n"));
        let shape = self.shape(node.kind.shape(), x, y);
        let _ = writeln!(out, "<g class=\"{}\"><title>{tip}</title>{shape}", classes.join(" "));
        let middle = x + self.box_width / 2;
        for (number, line) in self.lines[index].iter().enumerate() {
            let class = if number == 0 { " class=\"name\"" } else { "" };
            let line = match number {
                0 => escape(&self.short(line)),
                _ => escape(&shorten(line, self.letters())),
            };
            let y = y + 18 + number * LINE;
            let _ = writeln!(
                out,
                "<text{class} x=\"{middle}\" y=\"{y}\" text-anchor=\"middle\">{line}</text>"
            );
        }
        out.push_str("</g>\n");
    }

    fn shape(&self, shape: Shape, x: usize, y: usize) -> String {
        let (width, height) = (self.box_width, self.box_height);
        let (right, bottom) = (x + width, y + height);
        let rect = |inset: usize, round: usize| {
            let (x, y) = (x + inset, y + inset);
            let (width, height) = (width - 2 * inset, height - 2 * inset);
            format!(
                "<rect class=\"shape\" x=\"{x}\" y=\"{y}\" width=\"{width}\" \
                 height=\"{height}\" rx=\"{round}\"/>"
            )
        };
        let polygon = |points: &[(usize, usize)]| {
            let points: Vec<_> = points.iter().map(|(x, y)| format!("{x},{y}")).collect();
            format!("<polygon class=\"shape\" points=\"{}\"/>", points.join(" "))
        };
        match shape {
            Shape::Box => rect(0, 0),
            Shape::Round => rect(0, 10),
            Shape::Double => rect(0, 0) + &rect(3, 0),
            Shape::Hexagon => polygon(&[
                (x + 10, y),
                (right - 10, y),
                (right, y + height / 2),
                (right - 10, bottom),
                (x + 10, bottom),
                (x, y + height / 2),
            ]),
            Shape::Slanted => {
                polygon(&[(x + 10, y), (right, y), (right - 10, bottom), (x, bottom)])
            }
            Shape::Octagon => polygon(&[
                (x + 9, y),
                (right - 9, y),
                (right, y + 9),
                (right, bottom - 9),
                (right - 9, bottom),
                (x + 9, bottom),
                (x, bottom - 9),
                (x, y + 9),
            ]),
        }
    }

    fn legend(&self, out: &mut String) {
        let y = self.height - 26;
        let mut x = MARGIN;
        for state in State::ALL {
            let (fill, stroke) = state.colours();
            let word = state.word();
            let _ = writeln!(
                out,
                "<rect x=\"{x}\" y=\"{y}\" width=\"12\" height=\"12\" fill=\"{fill}\" \
                 stroke=\"{stroke}\"/><text class=\"label\" x=\"{}\" y=\"{}\">{word}</text>",
                x + 16,
                y + 10
            );
            x += 22 + word.chars().map(columns).sum::<usize>() * 5;
        }
    }
}

/// Escapes text for an element or an attribute.
pub(crate) fn escape(text: &str) -> String {
    let mut out = String::new();
    for letter in text.chars() {
        match letter {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            '\n' => out.push('\n'),
            other => out.push(printable(other)),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::tests::{balanced, dependent, wide};

    #[test]
    fn markup_is_text() {
        assert_eq!(escape("<a b=\"c\">&'\n\u{1}"), "&lt;a b=&quot;c&quot;&gt;&amp;&#39;\n\u{fffd}");
    }

    #[test]
    fn it_is_whole_and_no_wider_than_a_window() {
        let mut graph = wide(50);
        graph.nodes[1].name = "</text><script>alert('x')</script>".repeat(5);
        let picture = draw(&graph);
        balanced(&picture).unwrap();
        assert!(!picture.contains("<script"));
        let width: usize =
            picture.split("width=\"").nth(1).unwrap().split('"').next().unwrap().parse().unwrap();
        assert!(width <= WIDTH, "{width}");
        assert_eq!(picture.matches("marker-end").count(), 100, "an arrow for every edge");
    }

    #[test]
    fn names_with_a_common_beginning_are_told_apart() {
        let mut graph = wide(50);
        for (number, node) in graph.nodes.iter_mut().enumerate() {
            node.name = format!("a-node-with-quite-a-long-name-{number}");
        }
        let names = |picture: &str| -> BTreeSet<String> {
            let bold = picture.split("<text class=\"name\"").skip(1);
            bold.filter_map(|text| Some(text.split(['>', '<']).nth(1)?.to_owned())).collect()
        };
        assert_eq!(names(&draw(&graph)).len(), graph.nodes.len());
        // Where the ends are the same too, the boxes are wider.
        for (number, node) in graph.nodes.iter_mut().enumerate() {
            node.name = format!("check-module-{number}-against-the-rules");
        }
        assert_eq!(names(&draw(&graph)).len(), graph.nodes.len());
    }

    #[test]
    fn in_a_page_it_has_no_style_of_its_own() {
        let mut graph = wide(3);
        graph.nodes[0].name = "<script>".into();
        let picture = draw_in_page(&graph, &|node| Some(format!("#\"{}", node.name)));
        balanced(&picture).unwrap();
        assert!(!picture.contains("<script") && !picture.contains("style"));
        assert_eq!(picture.matches("<a href=\"#&quot;").count(), graph.nodes.len());
    }

    #[test]
    fn no_arrow_crosses_a_node() {
        let edges: Vec<(usize, usize)> = (0..40)
            .flat_map(|to| {
                [1, 3, 7]
                    .into_iter()
                    .filter_map(move |by| Some((to - by.min(to), to)).filter(|(a, b)| a != b))
            })
            .collect();
        let graph = dependent(&edges, 40);
        let drawing = Drawing::new(&graph);
        for (number, edge) in graph.edges.iter().enumerate() {
            let from = drawing.x(edge.from) + drawing.box_width / 2;
            let to = drawing.x(edge.to) + drawing.box_width / 2;
            let way = drawing.way(edge.from, edge.to, from, to, number, 0);
            for node in 0..graph.nodes.len() {
                assert!(!crosses(&drawing, node, &way), "{} to {}: {way}", edge.from, edge.to);
            }
        }
    }

    /// Whether a way of horizontal and vertical lines goes through the inside of a node.
    fn crosses(drawing: &Drawing, node: usize, way: &str) -> bool {
        let (left, top) = (drawing.x(node), drawing.y(node));
        let (right, bottom) = (left + drawing.box_width, top + drawing.box_height);
        let numbers: Vec<usize> =
            way.split(|c: char| !c.is_ascii_digit()).filter_map(|n| n.parse().ok()).collect();
        let letters: Vec<char> = way.chars().filter(char::is_ascii_alphabetic).collect();
        let (mut x, mut y) = (numbers[0], numbers[1]);
        for (letter, number) in letters[1..].iter().zip(&numbers[2..]) {
            let (from_x, from_y) = (x, y);
            if *letter == 'H' {
                x = *number
            } else {
                y = *number
            }
            let (x1, x2) = (x.min(from_x), x.max(from_x));
            let (y1, y2) = (y.min(from_y), y.max(from_y));
            if x2 > left && x1 < right && y2 > top && y1 < bottom {
                return true;
            }
        }
        false
    }
}
