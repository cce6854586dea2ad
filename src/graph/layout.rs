//! Assigns the nodes of a graph to rows and columns.
//!
//! A node is in a row below all nodes that it waits for. The number of columns is limited, so that
//! the picture fits into a window; a layer with more nodes takes several rows. Within a row, nodes
//! are ordered by the positions of their neighbors. The cost grows with the number of nodes plus
//! edges, not with their product.

use super::{EdgeKind, Graph};

/// Maximum number of nodes side by side.
pub(super) const WIDEST: usize = 4;

pub(super) struct Layout {
    pub rows: usize,
    pub columns: usize,
    /// Row and column of each node.
    pub places: Vec<(usize, usize)>,
}

/// Places the nodes, at most `widest` of them side by side.
pub(super) fn place(graph: &Graph, widest: usize) -> Layout {
    let count = graph.nodes.len();
    if graph.sequence {
        return Layout {
            rows: count,
            columns: 1,
            places: (0..count).map(|row| (row, 0)).collect(),
        };
    }
    let (mut before, mut after) = (vec![Vec::new(); count], vec![Vec::new(); count]);
    for edge in graph.edges.iter().filter(|edge| edge.kind == EdgeKind::Dependency) {
        before[edge.to].push(edge.from);
        after[edge.from].push(edge.to);
    }
    let mut layers = layers(&before, &after);
    // Order by predecessors, by successors, and by predecessors again.
    for neighbours in [&before, &after, &before] {
        let downwards = !std::ptr::eq(neighbours, &after);
        order(&mut layers, neighbours, count, downwards);
    }
    let columns = layers.iter().map(Vec::len).max().unwrap_or(0).clamp(1, widest);
    let rows: Vec<&[usize]> = layers.iter().flat_map(|layer| layer.chunks(columns)).collect();
    Layout { rows: rows.len(), columns, places: columns_of(&rows, &before, columns, count) }
}

/// Groups nodes by the length of the longest path to them.
fn layers(before: &[Vec<usize>], after: &[Vec<usize>]) -> Vec<Vec<usize>> {
    let mut waits: Vec<usize> = before.iter().map(Vec::len).collect();
    let mut layers = Vec::new();
    let mut layer: Vec<usize> = (0..before.len()).filter(|node| waits[*node] == 0).collect();
    while !layer.is_empty() {
        let mut next = Vec::new();
        for node in &layer {
            for follower in &after[*node] {
                waits[*follower] -= 1;
                if waits[*follower] == 0 {
                    next.push(*follower);
                }
            }
        }
        layers.push(std::mem::replace(&mut layer, next));
    }
    layers
}

/// Sorts the nodes of each layer by the mean position of their neighbors. A node without neighbors
/// keeps its position.
fn order(layers: &mut [Vec<usize>], neighbours: &[Vec<usize>], count: usize, downwards: bool) {
    // Position of a node in its layer, from 0 to 1.
    let mut at = vec![0.0; count];
    let note = |layer: &[usize], at: &mut Vec<f64>| {
        for (index, node) in layer.iter().enumerate() {
            at[*node] = (index as f64 + 0.5) / layer.len() as f64;
        }
    };
    layers.iter().for_each(|layer| note(layer, &mut at));
    let numbers: Vec<usize> = match downwards {
        true => (0..layers.len()).collect(),
        false => (0..layers.len()).rev().collect(),
    };
    for number in numbers {
        let middle = |node: &usize| middle(&neighbours[*node], &at).unwrap_or(at[*node]);
        layers[number].sort_by(|one, other| middle(one).total_cmp(&middle(other)));
        note(&layers[number], &mut at);
    }
}

fn middle(neighbours: &[usize], at: &[f64]) -> Option<f64> {
    let sum: f64 = neighbours.iter().map(|node| at[*node]).sum();
    (!neighbours.is_empty()).then(|| sum / neighbours.len() as f64)
}

/// Assigns a separate column to every node of a row, in the row's order, near its predecessors.
fn columns_of(
    rows: &[&[usize]],
    before: &[Vec<usize>],
    columns: usize,
    count: usize,
) -> Vec<(usize, usize)> {
    let mut places = vec![(0, 0); count];
    let mut at = vec![0.0; count];
    for (number, row) in rows.iter().enumerate() {
        let mut free = 0;
        for (index, node) in row.iter().enumerate() {
            let centred = (columns - row.len()) as f64 / 2.0 + index as f64;
            let wanted = middle(&before[*node], &at).unwrap_or(centred).round() as usize;
            // Keep one column for each of the following nodes of the row.
            let column = wanted.clamp(free, columns - (row.len() - index));
            free = column + 1;
            at[*node] = column as f64;
            places[*node] = (number, column);
        }
    }
    places
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::tests::{dependent, wide};

    #[test]
    fn a_node_stands_below_all_that_it_waits_for() {
        let graph = dependent(&[(0, 1), (0, 2), (1, 3), (2, 3), (0, 3)], 4);
        let layout = place(&graph, WIDEST);
        assert_eq!((layout.rows, layout.columns), (3, 2));
        let rows: Vec<usize> = layout.places.iter().map(|place| place.0).collect();
        assert_eq!(rows, [0, 1, 1, 2]);
    }

    #[test]
    fn no_two_nodes_share_a_place_and_a_wide_layer_takes_several_rows() {
        let layout = place(&wide(50), WIDEST);
        assert_eq!(layout.columns, WIDEST);
        let mut places = layout.places.clone();
        places.sort_unstable();
        places.dedup();
        assert_eq!(places.len(), 52);
        assert!(places.iter().all(|(row, column)| *row < layout.rows && *column < WIDEST));
        assert_eq!(layout.rows, 1 + 50_usize.div_ceil(WIDEST) + 1);
    }

    #[test]
    fn neighbours_stand_near_each_other() {
        // Two chains whose second nodes are written the other way round.
        let graph = dependent(&[(0, 3), (1, 2)], 4);
        let Layout { places, .. } = place(&graph, WIDEST);
        assert_eq!((places[0].1, places[1].1), (places[3].1, places[2].1));
    }

    #[test]
    fn steps_of_a_sequence_stand_below_each_other() {
        let mut graph = dependent(&[(2, 0), (0, 1)], 3);
        graph.sequence = true;
        assert_eq!(place(&graph, WIDEST).places, [(0, 0), (1, 0), (2, 0)]);
    }
}
