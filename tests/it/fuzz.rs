//! Every reader against changed input, without coverage: quick, the same every time, and always
//! run. `tests/fuzz/run` does the same led by coverage. ORCHESTRATE_FUZZ_MS is how long each target
//! is tried; ORCHESTRATE_FUZZ_SEED begins elsewhere.

#[path = "../fuzz/targets.rs"]
pub mod targets;

use std::panic::AssertUnwindSafe;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use libtest_mimic::Trial;
use orchestrate::base::random::Random;

use crate::world::trial;

/// What one input may take, in a debug build on a loaded machine.
const LIMIT: Duration = Duration::from_secs(20);
/// How many inputs each target is given where nobody says how long.
const INPUTS: usize = 400;
const LONGEST: usize = 16 * 1024;
/// What means something to one of the readers.
const WORDS: [&str; 36] = [
    "---\n",
    "\n",
    "\0",
    "\u{feff}",
    "${",
    "}",
    "$$",
    "{{",
    "}}",
    "{{end}}",
    "{{range .list}}",
    "{{include \"s\"}}",
    "&a ",
    "*a",
    "!!binary ",
    "? ",
    "<<: *a",
    "[",
    "{",
    "\"",
    "'",
    "\\u0000",
    "\\ud800",
    "..",
    "/",
    "%2F",
    "18446744073709551616",
    "-1",
    "1e999",
    "NaN",
    "steps:",
    "nodes:",
    "```json\n",
    "DONE",
    "\u{202e}",
    "é",
];

fn corpus(target: &str) -> Vec<Vec<u8>> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fuzz/corpus").join(target);
    let files = dir.read_dir().unwrap_or_else(|error| panic!("{}: {error}", dir.display()));
    let mut paths: Vec<PathBuf> = files.flatten().map(|file| file.path()).collect();
    paths.sort();
    assert!(!paths.is_empty(), "{} is empty", dir.display());
    paths.iter().map(|path| std::fs::read(path).expect("a file of the corpus")).collect()
}

pub fn below(random: &mut Random, limit: usize) -> usize {
    if limit == 0 { 0 } else { (random.draw() % limit as u64) as usize }
}

fn range(random: &mut Random, length: usize) -> std::ops::Range<usize> {
    let from = below(random, length + 1);
    from..from + below(random, (length - from).min(64) + 1)
}

/// Changes an input in one of the ways in which bytes go wrong.
fn change(random: &mut Random, input: &mut Vec<u8>, others: &[Vec<u8>]) {
    let at = below(random, input.len() + 1);
    match below(random, 9) {
        0 if !input.is_empty() => {
            let at = below(random, input.len());
            input[at] ^= 1 << below(random, 8);
        }
        1 if !input.is_empty() => {
            let at = below(random, input.len());
            input[at] = random.draw() as u8;
        }
        2 => drop(input.drain(range(random, input.len()))),
        3 => input.truncate(at),
        4 => {
            let copied = input[range(random, input.len())].to_vec();
            let times = 1 + below(random, 40);
            input.splice(at..at, copied.repeat(times));
        }
        5 => {
            let other = &others[below(random, others.len())];
            input.splice(at..at, other[range(random, other.len())].to_vec());
        }
        6 => {
            let word = WORDS[below(random, WORDS.len())];
            input.splice(at..at, word.bytes());
        }
        7 => {
            // Deep nesting is where readers that call themselves end.
            let open = [&b"["[..], b"{\"a\":", b"- ", b"{{if .a}}", b"("][below(random, 5)];
            input.splice(at..at, open.repeat(1 + below(random, 2000)));
        }
        _ => {
            let cut = range(random, input.len());
            let moved: Vec<u8> = input.drain(cut).collect();
            let at = below(random, input.len() + 1);
            input.splice(at..at, moved);
        }
    }
    input.truncate(LONGEST);
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// Gives a target the corpus, then changed inputs. What fails is kept, and named.
fn fuzz((name, target): targets::Target) {
    let seeds = corpus(name);
    let mut random = Random::new(number("ORCHESTRATE_FUZZ_SEED").unwrap_or(1));
    let ends = number("ORCHESTRATE_FUZZ_MS").map(|ms| Instant::now() + Duration::from_millis(ms));
    let mut given = 0;
    let give = |input: &[u8]| {
        let began = Instant::now();
        let went = std::panic::catch_unwind(AssertUnwindSafe(|| target(input)));
        let took = began.elapsed();
        if went.is_err() || took > LIMIT {
            let kept = std::env::temp_dir().join(format!("orchestrate-fuzz-{name}"));
            std::fs::write(&kept, input).expect("a place for what was found");
            let how = if went.is_err() { "panicked".into() } else { format!("took {took:?}") };
            panic!("target `{name}` {how}; the input is in `{}`", kept.display());
        }
    };
    seeds.iter().for_each(|seed| give(seed));
    while ends.map_or(given < INPUTS, |ends| Instant::now() < ends) {
        let mut input = seeds[below(&mut random, seeds.len())].clone();
        for _ in 0..1 + below(&mut random, 6) {
            change(&mut random, &mut input, &seeds);
        }
        give(&input);
        given += 1;
    }
    if ends.is_some() {
        eprintln!("fuzz: {name}: {given} inputs");
    }
}

/// A target without a place in the corpus would be fuzzed from nothing.
fn every_corpus_has_its_target() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fuzz/corpus");
    let mut found: Vec<String> = dir
        .read_dir()
        .expect("a corpus")
        .flatten()
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect();
    found.sort();
    let mut known: Vec<String> = targets::TARGETS.map(|(name, _)| name.to_owned()).to_vec();
    known.sort();
    assert_eq!(found, known);
}

pub fn trials() -> Vec<Trial> {
    let targets = targets::TARGETS.into_iter();
    let each = targets.map(|target| trial(format!("fuzz/{}", target.0), move || fuzz(target)));
    let whole = trial("fuzz/every corpus has its target", every_corpus_has_its_target);
    each.chain([whole]).collect()
}
