//! The graph of a `nodes:` workflow: ids, dependencies, and order.
//!
//! **Invariant:** every function takes time proportional to the text and does not recurse.

use std::cell::Cell;
use std::collections::{HashMap, HashSet};

use crate::base::ids::{plain_name, step_fault};
use crate::template::nodes::{NodeText, Piece};
use crate::workflow::fields::{Fields, Findings, suggest};
use crate::yaml::problem::{Place, Problem};
use crate::yaml::{Node, Value};

/// Maximum number of suggestions; users stop reading them after this many.
const SUGGESTIONS: usize = 20;

/// The ids of all nodes.
pub(crate) struct Ids {
    pub by_name: HashMap<String, usize>,
    /// Number of suggestions left.
    suggestions: Cell<usize>,
}

/// Returns the id of a node, without surrounding white space.
pub(crate) fn id(node: &Node) -> Option<&str> {
    node.get("id").and_then(Node::text).map(str::trim)
}

impl Ids {
    /// Returns the ids of a workflow that was read before.
    pub(crate) fn known(by_name: HashMap<String, usize>) -> Ids {
        Ids { by_name, suggestions: Cell::new(SUGGESTIONS) }
    }

    /// Collects the ids. Reports ids that are invalid, duplicate, or impossible to refer to.
    pub(crate) fn collect(findings: &Findings, nodes: &[Node]) -> Ids {
        let mut by_name = HashMap::new();
        let mut folded: HashMap<String, &str> = HashMap::new();
        for (index, node) in nodes.iter().enumerate() {
            let Some(id_node) = node.get("id") else {
                if matches!(node.value, Value::Map(_)) {
                    let problem = Problem::error("this node has no `id`").at(node.place);
                    findings.add(match node.get("name").and_then(Node::text) {
                        Some(name) => problem.hint(format!("write `id: {name}`, not `name`")),
                        None => problem,
                    });
                }
                continue;
            };
            // An id that is not text is reported when the node is read.
            let Some(id) = id(node) else { continue };
            let place = id_node.place;
            if let Some(fault) = step_fault(id) {
                let message = format!("`{id}` cannot be the id of a node: {fault}");
                let plain = plain_name(id).unwrap_or_else(|| format!("node-{}", index + 1));
                let hint = format!(
                    "files are named by it: write letters of a to z, digits, `.`, `_` and `-`, at \
                     most 128, as in `{plain}`, and what people should read into `description`"
                );
                findings.add(Problem::error(message).at(place).hint(hint));
            } else if let Some(problem) = unreferable(id) {
                findings.add(problem.at(place));
            }
            match folded.insert(id.to_lowercase(), id) {
                Some(other) if other == id => {
                    findings.error(place, format!("two nodes have the id `{id}`"));
                }
                // Both nodes would write the same log file on a file system that ignores case.
                Some(other) => findings.error(
                    place,
                    format!("`{id}` and `{other}` differ only in upper and lower case"),
                ),
                None => {}
            }
            by_name.entry(id.to_owned()).or_insert(index);
        }
        Ids::known(by_name)
    }

    /// Adds the id that was probably meant as a hint. The number of suggestions is limited: users
    /// stop reading them, and each one compares all ids.
    pub(crate) fn suggest(&self, problem: Problem, word: &str) -> Problem {
        match self.suggestions.get().checked_sub(1) {
            Some(left) => {
                self.suggestions.set(left);
                suggest(problem, word, self.by_name.keys().map(String::as_str))
            }
            None => problem,
        }
    }
}

/// Returns a warning for an id that no text can refer to, or `None` if the id is fine.
fn unreferable(id: &str) -> Option<Problem> {
    let text = NodeText::parse(&format!("${id}.output"));
    let whole = matches!(text.pieces(), [Piece::Ref(reference)] if reference.node == id);
    let message = format!("nothing can refer to `{id}`: `${id}.output` means something else");
    (!whole).then(|| {
        let hint = "begin an id with a letter or `_`, go on with letters, digits, `-` and `_`, and \
                    do not take the name of a variable";
        Problem::warning(message).hint(hint)
    })
}

/// Reads the dependencies of a node, as node indexes.
pub(crate) fn depends(fields: &Fields, ids: &Ids, own: Option<usize>) -> Vec<usize> {
    if let Some(node) = fields.get("depends_on")
        && let Some(text) = node.text()
    {
        let message = format!("`depends_on` of {} must be a list of ids, not text", fields.what);
        let cure = format!("write `depends_on: [{}]`", text.trim());
        fields.findings.add(Problem::error(message).at(node.place).hint(cure));
        return Vec::new();
    }
    let mut found = Vec::new();
    let mut seen = HashSet::new();
    for (name, place) in fields.texts("depends_on").unwrap_or_default() {
        let name = name.trim();
        let what = &fields.what;
        match ids.by_name.get(name) {
            None => {
                let message = format!("{what} waits for `{name}`, but no node has that id");
                fields.findings.add(ids.suggest(Problem::error(message).at(place), name));
            }
            Some(index) if Some(*index) == own => {
                fields.findings.error(place, format!("{what} waits for itself"));
            }
            Some(index) if !seen.insert(*index) => {
                fields.findings.warn(place, format!("{what} waits for `{name}` twice"));
            }
            Some(index) => found.push(*index),
        }
    }
    found
}

/// Returns the nodes in topological order. On failure, returns the dependency cycles, each starting
/// with its first node in the text.
pub(crate) fn order(
    before: &[Vec<usize>],
    after: &[Vec<usize>],
) -> Result<Vec<usize>, Vec<Vec<usize>>> {
    let mut waits: Vec<usize> = before.iter().map(Vec::len).collect();
    let mut order: Vec<usize> = (0..before.len()).filter(|node| waits[*node] == 0).collect();
    let mut done = 0;
    while let Some(node) = order.get(done).copied() {
        done += 1;
        for next in &after[node] {
            waits[*next] -= 1;
            if waits[*next] == 0 {
                order.push(*next);
            }
        }
    }
    if order.len() == before.len() {
        return Ok(order);
    }
    // Each remaining node waits for another remaining node, so every walk ends in a cycle.
    let mut seen = vec![usize::MAX; before.len()];
    let mut circles = Vec::new();
    for start in (0..before.len()).filter(|node| waits[*node] > 0) {
        let mut walk = Vec::new();
        let mut at = start;
        while seen[at] == usize::MAX {
            seen[at] = start;
            walk.push(at);
            let left = |node: &&usize| waits[**node] > 0;
            let Some(next) = before[at].iter().find(left) else { break };
            at = *next;
        }
        // A walk that reaches a node of an earlier walk leads to a cycle that is already known.
        let Some(begin) = walk.iter().position(|node| *node == at && seen[at] == start) else {
            continue;
        };
        let mut circle = walk.split_off(begin);
        let first = circle.iter().enumerate().min_by_key(|(_, node)| **node);
        let first = first.map_or(0, |(position, _)| position);
        circle.rotate_left(first);
        circles.push(circle);
    }
    Err(circles)
}

/// Reports nodes that wait for each other.
pub(crate) fn tell_circle(findings: &Findings, nodes: &[Node], circle: &[usize]) {
    let name = |index: &usize| format!("`{}`", id(&nodes[*index]).unwrap_or_default());
    let mut names: Vec<_> = circle.iter().map(name).collect();
    names.extend(circle.first().map(name));
    let Some(first) = circle.first().map(|index| &nodes[*index]) else { return };
    let next = circle.get(1).and_then(|index| id(&nodes[*index]));
    let place = place_of_dependency(first, next).unwrap_or(first.place);
    let message = format!("nodes wait for each other in a circle: {}", names.join(" → "));
    findings.error(place, message);
}

/// Returns the place in a node's `depends_on` that names another node.
pub(crate) fn place_of_dependency(node: &Node, on: Option<&str>) -> Option<Place> {
    let depends = node.get("depends_on")?;
    let Value::List(items) = &depends.value else { return Some(depends.place) };
    let found = items.iter().find(|item| item.text().map(str::trim) == on);
    Some(found.map_or(depends.place, |item| item.place))
}

/// Returns, for each pair, true if the second node is a direct or indirect dependency of the first.
///
/// Follows 64 nodes at once through the whole graph, so that even one pair for every node is cheap.
pub(crate) fn comes_before(
    order: &[usize],
    before: &[Vec<usize>],
    pairs: &[(usize, usize)],
) -> Vec<bool> {
    let mut targets: Vec<usize> = pairs.iter().map(|(_, target)| *target).collect();
    targets.sort_unstable();
    targets.dedup();
    let mut by_target: HashMap<usize, Vec<usize>> = HashMap::new();
    for (index, (_, target)) in pairs.iter().enumerate() {
        by_target.entry(*target).or_default().push(index);
    }
    let mut found = vec![false; pairs.len()];
    let mut reached = vec![0u64; before.len()];
    let mut own = vec![0u64; before.len()];
    for batch in targets.chunks(u64::BITS as usize) {
        own.fill(0);
        for (bit, target) in batch.iter().enumerate() {
            own[*target] |= 1 << bit;
        }
        for node in order {
            let sum = before[*node].iter().fold(0, |sum, up| sum | reached[*up] | own[*up]);
            reached[*node] = sum;
        }
        for (bit, target) in batch.iter().enumerate() {
            for pair in &by_target[target] {
                found[*pair] = reached[pairs[*pair].0] & (1 << bit) != 0;
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::random::Random;
    use crate::workflow::plan::Edges;

    fn ordered(before: &[Vec<usize>]) -> Result<Vec<usize>, Vec<Vec<usize>>> {
        let edges = Edges::new(before.to_vec(), Vec::new());
        order(&edges.before, &edges.after)
    }

    #[test]
    fn every_node_follows_those_it_waits_for() {
        assert_eq!(ordered(&[vec![1, 2], vec![2], vec![]]), Ok(vec![2, 1, 0]));
        assert_eq!(ordered(&[]), Ok(vec![]));
    }

    #[test]
    fn circles_are_told_one_by_one() {
        // 0 and 1 in a circle, 2 behind it, 3 → 5 → 4 → 3 another.
        let before = [vec![1], vec![0], vec![1], vec![5], vec![3], vec![4], vec![]];
        assert_eq!(ordered(&before), Err(vec![vec![0, 1], vec![3, 5, 4]]));
        // Into a circle from a node that is no part of it and stands first.
        assert_eq!(ordered(&[vec![2], vec![2], vec![1]]), Err(vec![vec![1, 2]]));
    }

    #[test]
    fn a_long_circle_is_told_whole() {
        const LONG: usize = 50_000;
        let before: Vec<_> = (0..LONG).map(|node| vec![(node + 1) % LONG]).collect();
        assert_eq!(ordered(&before), Err(vec![(0..LONG).collect()]));
    }

    #[test]
    fn what_comes_before_is_found_at_any_distance() {
        let mut random = Random::new(7);
        for _ in 0..20 {
            let count = 1 + random.below(150);
            let before: Vec<Vec<usize>> = (0..count)
                .map(|node| (0..node).filter(|_| random.below(count) < 2).collect())
                .collect();
            let order = ordered(&before).unwrap();
            let pairs: Vec<_> =
                (0..count).flat_map(|node| (0..count).map(move |up| (node, up))).collect();
            let mut wanted = vec![HashSet::new(); count];
            for node in 0..count {
                for up in &before[node] {
                    let all: Vec<_> = wanted[*up].iter().copied().chain([*up]).collect();
                    wanted[node].extend(all);
                }
            }
            let found = comes_before(&order, &before, &pairs);
            for ((node, up), found) in pairs.iter().zip(found) {
                assert_eq!(found, wanted[*node].contains(up), "{up} before {node}");
            }
        }
    }
}
