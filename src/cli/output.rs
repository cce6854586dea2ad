//! Writes data to stdout: text, lines, tables, and JSON documents.

use std::io::Write;
use std::path::Path;

use serde::Serialize;

use crate::run::failure::Failure;
use crate::view::document;
use crate::view::stderr::Tamed;

/// Returns true if `file` is `-`, which means standard output.
pub(crate) fn is_stdout(file: &Path) -> bool {
    file == Path::new("-")
}

/// Writes data to stdout. A closed pipe is not an error.
pub(crate) fn put(text: &str) -> Result<(), Failure> {
    put_or_stop(text).map(|_| ())
}

/// Writes data to stdout. Returns false if the pipe is closed, so that the caller can stop.
pub(crate) fn put_or_stop(text: &str) -> Result<bool, Failure> {
    let mut out = Tamed::stdout();
    written(out.write_all(text.as_bytes()).and_then(|()| out.flush()))
}

/// Converts the result of a write. Returns false if the pipe is closed.
pub(crate) fn written(outcome: std::io::Result<()>) -> Result<bool, Failure> {
    match outcome {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(Failure::failed(format!("cannot write to standard output: {error}"))),
    }
}

/// Writes one line to stdout.
pub(crate) fn put_line(line: impl std::fmt::Display) -> Result<(), Failure> {
    put(&format!("{line}\n"))
}

/// Writes one JSON document: the schema, then the fields of `body`.
pub(crate) fn put_json(schema: &str, body: impl Serialize) -> Result<(), Failure> {
    put(&format!("{}\n", document(schema, body)))
}

/// Formats rows as aligned columns. Two spaces precede each column.
pub(crate) fn table(rows: &[Vec<String>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column));
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut text = String::new();
    for row in rows {
        let cells = row.iter().zip(&widths).map(|(cell, width)| format!("  {cell:<width$}"));
        text.push_str(cells.collect::<String>().trim_end());
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest() {
        let row = |cells: &[&str]| cells.iter().map(|cell| (*cell).to_owned()).collect();
        let rows: Vec<Vec<String>> = vec![row(&["a", "äöü", "x"]), row(&["bcd", "e"])];
        assert_eq!(table(&rows), "  a    äöü  x\n  bcd  e\n");
    }
}
