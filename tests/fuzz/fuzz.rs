//! Runs one fuzz target under libFuzzer. The environment variable FUZZ_TARGET names it.
#![no_main]
#![allow(clippy::disallowed_methods, reason = "a fuzzer stands outside the program")]

use std::sync::OnceLock;

use libfuzzer_sys::fuzz_target;
use orchestrate::fuzz_targets::TARGETS;

static CHOSEN: OnceLock<fn(&[u8])> = OnceLock::new();

fuzz_target!(
    init: {
        let name = std::env::var("FUZZ_TARGET").expect("FUZZ_TARGET is not set");
        let found = TARGETS.iter().find(|(known, _)| *known == name);
        let _ = CHOSEN.set(found.unwrap_or_else(|| panic!("there is no target `{name}`")).1);
    },
    |data: &[u8]| {
        if let Some(target) = CHOSEN.get() {
            target(data);
        }
    }
);
