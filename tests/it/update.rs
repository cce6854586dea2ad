//! `UPDATE_CASES=1`: rewrites the expectations of a case that does not hold.
//!
//! A line that still matches keeps its holes. A line that changed becomes the line that the program
//! prints now, with the holes of the old one where the text around them is the same. JSON patterns
//! change only where a value differs. Three expectations are never rewritten, because they state an
//! intent: `expect no PATH`, a key or an element that is missing, and a key that must be absent.
//!
//! **Invariant:** each rewritten expectation holds for the output it was made from; otherwise the
//! case fails.

use std::collections::BTreeMap;
use std::fs;
use std::ops::Range;
use std::path::Path;

use libtest_mimic::{Failed, Trial};
use serde_json::Value;

use crate::case::{self, LATEST, Outcome};
use crate::pattern;

/// Cost of a line or a character that has no counterpart on the other side.
const UNPAIRED: u32 = 1000;

/// Returns true if the user asked for new expectations.
pub(crate) fn requested() -> bool {
    std::env::var_os("UPDATE_CASES").is_some_and(|value| value == "1")
}

/// Runs a case and writes its file with the expectations that did not hold replaced.
pub(crate) fn run(file: &Path, bin: &Path) -> Result<(), String> {
    let old = fs::read_to_string(file).map_err(|error| error.to_string())?;
    let (new, wrong) = updated(&old, bin)?;
    if new != old {
        fs::write(file, new).map_err(|error| error.to_string())?;
    }
    if wrong.is_empty() { Ok(()) } else { Err(wrong) }
}

/// Returns the text of the case with new expectations, and a report of those that still fail.
fn updated(text: &str, bin: &Path) -> Result<(String, String), String> {
    let case = case::parse(text)?;
    let scene = case::set_up(&case)?;
    let workspace = scene.root.join("workspace");
    let (mut text, mut report) = (text.to_owned(), String::new());
    for (index, run) in case.runs.iter().enumerate() {
        let outcome = case::execute(&run.script, &scene.root, bin)?;
        if case::judge(run, &outcome, &workspace).is_empty() {
            continue;
        }
        text = rewrite(&text, index, &outcome, &workspace);
        let run = &case::parse(&text)?.runs[index];
        let wrong = case::judge(run, &outcome, &workspace);
        if !wrong.is_empty() {
            report.push_str(&case::report(index, run, &outcome, &workspace, &wrong));
        }
    }
    Ok((text, report))
}

/// Replaces the expectations of one run that do not hold.
fn rewrite(text: &str, index: usize, outcome: &Outcome, workspace: &Path) -> String {
    let mut edits = BTreeMap::new();
    let (mut runs, mut run_section, mut has_exit) = (0, 0, false);
    for (section, (name, body)) in case::sections(text).iter().enumerate() {
        if name == "run" || name.starts_with("run ") {
            runs += 1;
            if runs == index + 1 {
                run_section = section;
                edits.insert(section, body.clone());
            }
        }
        let Some(kind) = name.strip_prefix("expect ").filter(|_| runs == index + 1) else {
            continue;
        };
        has_exit |= kind == "exit";
        if let Some(new) = body_of(kind, body, outcome, workspace) {
            edits.insert(section, new);
        }
    }
    if let (false, Some(exit @ 1..)) = (has_exit, outcome.exit)
        && let Some(body) = edits.get_mut(&run_section)
    {
        body.push_str(&format!("\n-- expect exit --\n{exit}\n"));
    }
    with_bodies(text, &edits)
}

/// Returns the new body of one expectation, or `None` if it stays.
fn body_of(kind: &str, body: &str, outcome: &Outcome, workspace: &Path) -> Option<String> {
    let file = |path: &str| {
        let bytes = fs::read(workspace.join(path)).ok()?;
        Some(String::from_utf8_lossy(&bytes).into_owned())
    };
    let json = |path: &str| {
        let found = serde_json::from_str(&file(path)?).ok()?;
        Some(json_body(body, &found))
    };
    let hidden = |text: String| hide(text, workspace);
    match kind.split_once(' ').unwrap_or((kind, "")) {
        ("exit", _) => outcome.exit.map(|code| format!("{code}\n")),
        ("stdout", _) => Some(hidden(lines_body(body, &outcome.stdout))),
        ("stderr", _) => Some(hidden(lines_body(body, &outcome.stderr))),
        ("whole", "stdout") => Some(hidden(whole_body(body, &outcome.stdout))),
        ("whole", "stderr") => Some(hidden(whole_body(body, &outcome.stderr))),
        ("state.json", _) => json(&format!("{LATEST}/state.json")),
        ("json", path) => json(path),
        ("file", path) => file(path).map(|found| hidden(whole_body(body, &found))),
        ("log", name) => {
            file(&format!("{LATEST}/logs/{name}")).map(|found| hidden(whole_body(body, &found)))
        }
        _ => None,
    }
}

/// Puts a hole where the text names the temporary directory or the ID of the latest run.
fn hide(text: String, workspace: &Path) -> String {
    let mut text = text;
    let run = fs::read_link(workspace.join(LATEST)).unwrap_or_default();
    let root = workspace.parent().unwrap_or(workspace).to_string_lossy().into_owned();
    for name in [root, run.file_name().unwrap_or_default().to_string_lossy().into_owned()] {
        if !name.is_empty() {
            text = text.replace(&name, pattern::HOLE);
        }
    }
    text
}

/// Replaces the bodies of sections by their number; blank lines before the next section stay.
fn with_bodies(text: &str, bodies: &BTreeMap<usize, String>) -> String {
    let (mut new, mut section, mut blank) = (String::new(), 0, String::new());
    for line in text.split_inclusive('\n') {
        if line.starts_with("-- ") && line.trim_end_matches('\n').ends_with(" --") {
            new.push_str(&std::mem::take(&mut blank));
            section += 1;
            new.push_str(line);
            new.push_str(bodies.get(&section).map_or("", String::as_str));
        } else if line == "\n" {
            blank.push('\n');
        } else {
            let layout = std::mem::take(&mut blank);
            if !bodies.contains_key(&section) {
                new.push_str(&layout);
                new.push_str(line);
            }
        }
    }
    new + &blank
}

/// The body of `expect stdout` and `expect stderr`: some of the lines, in order.
fn lines_body(body: &str, found: &str) -> String {
    if pattern::in_order(body, found).is_ok() {
        return body.to_owned();
    }
    if found.is_empty() {
        return "(empty)\n".to_owned();
    }
    let found: Vec<&str> = found.lines().collect();
    if body.trim() == "(empty)" {
        return joined(&found);
    }
    let wanted: Vec<&str> = body.lines().filter(|line| !line.is_empty()).collect();
    joined(&align(&wanted, &found, Extent::Some))
}

/// The body of an expectation of all lines.
fn whole_body(body: &str, found: &str) -> String {
    if pattern::whole(body, found).is_ok() {
        return body.to_owned();
    }
    let wanted: Vec<&str> =
        body.strip_suffix(pattern::NO_NEWLINE).unwrap_or(body).lines().collect();
    let lines: Vec<&str> = found.lines().collect();
    let mut new = joined(&align(&wanted, &lines, Extent::All));
    if !found.is_empty() && !found.ends_with('\n') {
        new.push_str(pattern::NO_NEWLINE);
    }
    new
}

fn joined(lines: &[impl AsRef<str>]) -> String {
    lines.iter().map(|line| format!("{}\n", line.as_ref())).collect()
}

/// The lines of the output that an expectation covers.
#[derive(Clone, Copy, PartialEq)]
enum Extent {
    All,
    Some,
}

/// Pairs the expected lines with the found ones at the least cost, and merges each pair.
///
/// With [`Extent::Some`], found lines may stay without a partner, and an expected line that
/// resembles none stays as it is, so that the case fails.
fn align(wanted: &[&str], found: &[&str], extent: Extent) -> Vec<String> {
    let any = |line: &str| extent == Extent::All && line == pattern::ANY_LINES;
    let pair = |wanted: &str, found: &str| match distance(wanted, found) {
        _ if pattern::line(wanted, found) => Some(0),
        far if extent == Extent::Some && far > 600 => None,
        far => Some(100 + far),
    };
    let skip = if extent == Extent::All { UNPAIRED } else { 0 };
    // `costs[i][j]`: the least cost of what remains after `i` expected and `j` found lines.
    let (rows, columns) = (wanted.len(), found.len());
    let mut costs = vec![vec![(0, Step::End); columns + 1]; rows + 1];
    for i in (0..=rows).rev() {
        for j in (0..=columns).rev() {
            let mut best = (u32::MAX, Step::End);
            let mut offer = |cost: u32, step| best = best.min((cost, step));
            if i == rows && j == columns {
                offer(0, Step::End);
            }
            if i < rows
                && j < columns
                && !any(wanted[i])
                && let Some(cost) = pair(wanted[i], found[j])
            {
                offer(cost + costs[i + 1][j + 1].0, Step::Pair);
            }
            if i < rows {
                let cost = if any(wanted[i]) { 0 } else { UNPAIRED };
                offer(cost + costs[i + 1][j].0, Step::Expected);
            }
            if j < columns {
                let (cost, step) = if i < rows && any(wanted[i]) {
                    (1, Step::Covered)
                } else {
                    (skip, Step::Found)
                };
                offer(cost + costs[i][j + 1].0, step);
            }
            costs[i][j] = best;
        }
    }
    let (mut i, mut j, mut lines) = (0, 0, Vec::new());
    loop {
        match costs[i][j].1 {
            Step::End => return lines,
            Step::Pair => {
                lines.push(merged(wanted[i], found[j]));
                (i, j) = (i + 1, j + 1);
            }
            Step::Expected => {
                if extent == Extent::Some || any(wanted[i]) {
                    lines.push(wanted[i].to_owned());
                }
                i += 1;
            }
            Step::Found => {
                if extent == Extent::All {
                    lines.push(found[j].to_owned());
                }
                j += 1;
            }
            Step::Covered => j += 1,
        }
    }
}

/// One step of an alignment of lines, the preferred one first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Step {
    Pair,
    Expected,
    Found,
    /// A found line that `[...]` stands for.
    Covered,
    End,
}

/// Returns the share of words that differ between two lines, from 0 to 800.
fn distance(one: &str, other: &str) -> u32 {
    fn words(line: &str) -> Vec<&str> {
        let mut words: Vec<&str> =
            line.split(|c: char| !c.is_alphanumeric()).filter(|word| !word.is_empty()).collect();
        words.sort_unstable();
        words
    }
    let (one, other) = (words(one), words(other));
    let (mut i, mut j, mut common) = (0, 0, 0);
    while i < one.len() && j < other.len() {
        match one[i].cmp(other[j]) {
            std::cmp::Ordering::Less => i += 1,
            std::cmp::Ordering::Greater => j += 1,
            std::cmp::Ordering::Equal => (i, j, common) = (i + 1, j + 1, common + 1),
        }
    }
    let most = one.len().max(other.len()).max(1);
    u32::try_from(800 * (most - common) / most).unwrap_or(800)
}

/// One element of a line pattern.
#[derive(Clone, Copy, PartialEq)]
enum Part {
    Literal(char),
    Hole,
}

/// Returns `found` with the holes of `wanted` where the text around them aligns.
///
/// A hole covers one word of the new text: text behind the word is cheaper as a literal, so that a
/// hole never swallows new text in silence.
fn merged(wanted: &str, found: &str) -> String {
    if pattern::line(wanted, found) {
        return wanted.to_owned();
    }
    let mut parts = Vec::new();
    for (index, piece) in wanted.split(pattern::HOLE).enumerate() {
        parts.extend((index > 0).then_some(Part::Hole));
        parts.extend(piece.chars().map(Part::Literal));
    }
    let found: Vec<char> = found.chars().collect();
    let (rows, columns) = (parts.len(), found.len());
    // `costs[i][j]`: the least cost of what remains, and the number of characters that the hole at
    // `i` covers.
    let mut costs = vec![vec![(0u32, 0usize); columns + 1]; rows + 1];
    for i in (0..=rows).rev() {
        for j in (0..=columns).rev() {
            if i == rows {
                costs[i][j] = (u32::try_from(columns - j).unwrap_or(u32::MAX) * UNPAIRED, 0);
                continue;
            }
            let mut best = match parts[i] {
                Part::Literal(c) if j < columns && c == found[j] => costs[i + 1][j + 1].0,
                Part::Literal(_) => costs[i + 1][j].0 + UNPAIRED,
                Part::Hole => costs[i + 1][j].0 + UNPAIRED / 2,
            };
            if j < columns {
                best = best.min(costs[i][j + 1].0 + UNPAIRED);
            }
            let mut covered = 0;
            if parts[i] == Part::Hole {
                for count in 1..=word(&found[j..]) {
                    let cost = costs[i + 1][j + count].0 + cover(&found[j..j + count]);
                    if cost < best {
                        (best, covered) = (cost, count);
                    }
                }
            }
            costs[i][j] = (best, covered);
        }
    }
    emit(&parts, &found, &costs)
}

/// Returns the length of the blanks and the word that `text` starts with.
fn word(text: &[char]) -> usize {
    let ends = |c: &char| c.is_whitespace() || "\"'`,;(){}[]".contains(*c);
    let blanks = text.iter().take_while(|c| c.is_whitespace()).count();
    blanks + text[blanks..].iter().take_while(|c| !ends(c)).count()
}

/// Returns the cost of a hole for `text`: low for times, IDs, counts, and paths.
fn cover(text: &[char]) -> u32 {
    let plain = !text.iter().any(|c| c.is_ascii_digit() || *c == '/');
    u32::try_from(text.len()).unwrap_or(UNPAIRED) + if plain { 5 * UNPAIRED } else { 0 }
}

/// Writes the pattern that an alignment of parts and characters describes.
fn emit(parts: &[Part], found: &[char], costs: &[Vec<(u32, usize)>]) -> String {
    let (mut i, mut j, mut text) = (0, 0, String::new());
    while i < parts.len() {
        let (cost, covered) = costs[i][j];
        if covered > 0 {
            text.push_str(pattern::HOLE);
            (i, j) = (i + 1, j + covered);
            continue;
        }
        let same = j < found.len() && parts[i] == Part::Literal(found[j]);
        if same && cost == costs[i + 1][j + 1].0 {
            text.push(found[j]);
            (i, j) = (i + 1, j + 1);
        } else if j < found.len() && cost == costs[i][j + 1].0 + UNPAIRED {
            text.push(found[j]);
            j += 1;
        } else {
            i += 1;
        }
    }
    text.extend(&found[j..]);
    text
}

/// Replaces the values of a JSON pattern that differ, in the layout of the pattern.
fn json_body(body: &str, found: &Value) -> String {
    let Ok(wanted) = serde_json::from_str::<Value>(body) else { return body.to_owned() };
    let mut edits = Vec::new();
    let mut at = 0;
    changes(&wanted, found, body, &mut at, &mut edits);
    let mut new = body.to_owned();
    for (range, text) in edits.into_iter().rev() {
        new.replace_range(range, &text);
    }
    new
}

/// Walks over a pattern and its text at once; `at` is the start of the pattern's text.
fn changes(
    wanted: &Value,
    found: &Value,
    text: &str,
    at: &mut usize,
    edits: &mut Vec<(Range<usize>, String)>,
) {
    skip(text, at, " \t\r\n,:");
    let start = *at;
    match wanted {
        Value::Object(members) => {
            *at += 1;
            for (key, wanted) in members {
                skip(text, at, " \t\r\n,");
                *at += length(&text[*at..]);
                changes(wanted, found.get(key).unwrap_or(wanted), text, at, edits);
            }
            skip(text, at, " \t\r\n");
            *at += 1;
        }
        Value::Array(elements) => {
            *at += 1;
            for (index, wanted) in elements.iter().enumerate() {
                changes(wanted, found.get(index).unwrap_or(wanted), text, at, edits);
            }
            skip(text, at, " \t\r\n");
            *at += 1;
        }
        _ => {
            *at += length(&text[start..]);
            let intent = wanted == "[absent]" || wanted == "[some]" || wanted == pattern::ANY_LINES;
            if !intent && !pattern::json(wanted, found).is_empty() {
                let new = match (wanted, found) {
                    (Value::String(wanted), Value::String(found)) => {
                        Value::String(merged(wanted, found)).to_string()
                    }
                    _ => found.to_string(),
                };
                edits.push((start..*at, new));
            }
        }
    }
}

/// Advances `at` over the characters in `set`.
fn skip(text: &str, at: &mut usize, set: &str) {
    *at += text[*at..].len() - text[*at..].trim_start_matches(|c| set.contains(c)).len();
}

/// Returns the length of the JSON scalar at the start of `text`.
fn length(text: &str) -> usize {
    if !text.starts_with('"') {
        return text.find([',', ']', '}', ' ', '\n', '\t', '\r']).unwrap_or(text.len());
    }
    let mut escaped = false;
    for (index, c) in text.char_indices().skip(1) {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '"' => return index + 1,
            _ => {}
        }
    }
    text.len()
}

/// Checks that a case turns into another one, and that the result passes unchanged.
fn trial(name: &str, old: &'static str, new: &'static str) -> Trial {
    Trial::test(format!("update/{name}"), move || {
        let scratch = tempfile::tempdir()?;
        let file = scratch.path().join("x.case");
        fs::write(&file, old)?;
        run(&file, scratch.path())?;
        let found = fs::read_to_string(&file)?;
        if found != new {
            return Err(Failed::from(format!("expected:\n{new}\nfound:\n{found}")));
        }
        let (again, _) = updated(&found, scratch.path())?;
        if again == found { Ok(()) } else { Err(Failed::from("a case that holds changed")) }
    })
}

/// Checks that an expectation that states an intent still fails, and that the case stays.
fn stays(name: &str, case: &'static str) -> Trial {
    Trial::test(format!("update/{name}"), move || {
        let (text, report) = updated(case, Path::new("/nonexistent"))?;
        match (text == case, report.is_empty()) {
            (true, false) => Ok(()),
            (false, _) => Err(Failed::from(format!("the case changed:\n{text}"))),
            (_, true) => Err(Failed::from("the case passes")),
        }
    })
}

pub(crate) fn checks() -> Vec<Trial> {
    vec![
        trial(
            "lines that match keep their holes",
            "x: y.\n\n-- run --\nprintf 'a 12 s\\nnew words\\nlast\\n'\n\n\
             -- expect whole stdout --\na [..] s\nold words\n[...]\nlast\n\n\
             -- expect whole stderr --\n",
            "x: y.\n\n-- run --\nprintf 'a 12 s\\nnew words\\nlast\\n'\n\n\
             -- expect whole stdout --\na [..] s\nnew words\n[...]\nlast\n\n\
             -- expect whole stderr --\n",
        ),
        trial(
            "a reworded line keeps its holes",
            "x: y.\n-- run --\necho 'run `r1` has failed at step A, after 12s (see logs)'\n\
             -- expect whole stdout --\nthe run `[..]` failed at A, it took [..]s\n",
            "x: y.\n-- run --\necho 'run `r1` has failed at step A, after 12s (see logs)'\n\
             -- expect whole stdout --\nrun `[..]` has failed at step A, after [..] (see logs)\n",
        ),
        trial(
            "lines in order are replaced by the most similar ones",
            "x: y.\n-- run --\nprintf 'begin\\nnoise\\nstep A has failed\\nend\\n' >&2\n\
             -- expect stderr --\nbegin\nstep A failed\nend\n",
            "x: y.\n-- run --\nprintf 'begin\\nnoise\\nstep A has failed\\nend\\n' >&2\n\
             -- expect stderr --\nbegin\nstep A has failed\nend\n",
        ),
        trial(
            "an exit code is added, output appears and disappears",
            "x: y.\n\n-- run --\necho out; exit 3\n\n-- expect stdout --\n(empty)\n\n\
             -- expect stderr --\ngone\n\n-- run --\ntrue\n\n-- expect exit --\n1\n",
            "x: y.\n\n-- run --\necho out; exit 3\n\n-- expect exit --\n3\n\n\
             -- expect stdout --\nout\n\n-- expect stderr --\n(empty)\n\n-- run --\ntrue\n\n\
             -- expect exit --\n0\n",
        ),
        trial(
            "values of JSON change in place",
            "x: y.\n-- a.json --\n{\"a\":[{\"b\":\"new x9\",\"c\":2}],\"d\":1}\n-- run --\ntrue\n\
             -- expect json a.json --\n{\n  \"a\": [{ \"c\": 1, \"b\": \"old x[..]\" }]\n}\n",
            "x: y.\n-- a.json --\n{\"a\":[{\"b\":\"new x9\",\"c\":2}],\"d\":1}\n-- run --\ntrue\n\
             -- expect json a.json --\n{\n  \"a\": [{ \"c\": 2, \"b\": \"new x[..]\" }]\n}\n",
        ),
        trial(
            "the temporary directory becomes a hole",
            "x: y.\n-- run --\necho \"in $(pwd)\"; printf end\n-- expect whole stdout --\n",
            "x: y.\n-- run --\necho \"in $(pwd)\"; printf end\n-- expect whole stdout --\n\
             in [..]/workspace\nend\n\\ no newline at the end\n",
        ),
        stays("a file that must not exist", "x: y.\n-- run --\ntouch a\n-- expect no a --\n"),
        stays(
            "a key that must be absent",
            "x: y.\n-- a --\n{\"k\":1}\n-- run --\n-- expect json a --\n{\"k\":\"[absent]\"}\n",
        ),
        stays(
            "an expected line that resembles none",
            "x: y.\n-- run --\necho other\n-- expect stdout --\nsome line\n",
        ),
    ]
}
