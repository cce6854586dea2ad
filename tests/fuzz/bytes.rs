//! Feeds each target the corpus and random changes of it. The inputs are the same on every run.
//!
//! `ORCHESTRATE_FUZZ_MS` sets how long each target runs; `ORCHESTRATE_FUZZ_SEED` selects other
//! inputs. `tests/fuzz/run` runs the same targets guided by coverage.
#![allow(clippy::disallowed_methods, reason = "the caller of a test chooses its duration and seed")]

use std::panic::AssertUnwindSafe;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::{TARGETS, Target};
use crate::base::random::Random;

/// Time limit for one input, in a debug build on a loaded machine.
const LIMIT: Duration = Duration::from_secs(20);
/// Changed inputs for each target if `ORCHESTRATE_FUZZ_MS` is not set.
const INPUTS: usize = 400;
const LONGEST: usize = 16 * 1024;
/// Texts that have a meaning for at least one reader.
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

fn range(random: &mut Random, length: usize) -> std::ops::Range<usize> {
    let from = random.below(length + 1);
    from..from + random.below((length - from).min(64) + 1)
}

/// Applies one random change to an input.
fn change(random: &mut Random, input: &mut Vec<u8>, others: &[Vec<u8>]) {
    let at = random.below(input.len() + 1);
    match random.below(9) {
        0 if !input.is_empty() => {
            let at = random.below(input.len());
            input[at] ^= 1 << random.below(8);
        }
        1 if !input.is_empty() => {
            let at = random.below(input.len());
            input[at] = random.draw() as u8;
        }
        2 => drop(input.drain(range(random, input.len()))),
        3 => input.truncate(at),
        4 => {
            let copied = input[range(random, input.len())].to_vec();
            let times = 1 + random.below(40);
            input.splice(at..at, copied.repeat(times));
        }
        5 => {
            let other = &others[random.below(others.len())];
            input.splice(at..at, other[range(random, other.len())].to_vec());
        }
        6 => {
            let word = WORDS[random.below(WORDS.len())];
            input.splice(at..at, word.bytes());
        }
        7 => {
            // Deep nesting exhausts the stack of a recursive reader.
            let open = [&b"["[..], b"{\"a\":", b"- ", b"{{if .a}}", b"("][random.below(5)];
            input.splice(at..at, open.repeat(1 + random.below(2000)));
        }
        _ => {
            let cut = range(random, input.len());
            let moved: Vec<u8> = input.drain(cut).collect();
            let at = random.below(input.len() + 1);
            input.splice(at..at, moved);
        }
    }
    input.truncate(LONGEST);
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// Stack of the thread that runs a target: that of the program's main thread. In a debug build a
/// YAML map as the key of a map takes 30 KB for each level, of which the parser accepts 64.
const STACK: usize = 8 << 20;

/// Runs a target on its corpus, then on changed inputs. Saves an input that fails, and names it.
pub(super) fn fuzz(target: Target) {
    let thread = std::thread::Builder::new().stack_size(STACK).spawn(move || fuzz_here(target));
    if let Err(panic) = thread.expect("a thread").join() {
        std::panic::resume_unwind(panic);
    }
}

fn fuzz_here((name, target): Target) {
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
            std::fs::write(&kept, input).expect("a writable temporary directory");
            let how = if went.is_err() { "panicked".into() } else { format!("took {took:?}") };
            panic!("target `{name}` {how}; the input is in `{}`", kept.display());
        }
    };
    seeds.iter().for_each(|seed| give(seed));
    while ends.map_or(given < INPUTS, |ends| Instant::now() < ends) {
        let mut input = seeds[random.below(seeds.len())].clone();
        for _ in 0..1 + random.below(6) {
            change(&mut random, &mut input, &seeds);
        }
        give(&input);
        given += 1;
    }
    if ends.is_some() {
        eprintln!("fuzz: {name}: {given} inputs");
    }
}

#[test]
fn every_target_has_a_corpus() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fuzz/corpus");
    let mut found: Vec<String> = dir
        .read_dir()
        .expect("a corpus")
        .flatten()
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect();
    found.sort();
    let mut known: Vec<&str> = TARGETS.iter().map(|(name, _)| *name).collect();
    known.sort_unstable();
    assert_eq!(found, known);
}
