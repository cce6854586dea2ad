//! The targets under libFuzzer; FUZZ_TARGET says which.
#![no_main]
#![allow(clippy::disallowed_methods, reason = "a fuzzer stands outside the program")]

mod targets;

use std::sync::OnceLock;

use libfuzzer_sys::fuzz_target;

static CHOSEN: OnceLock<fn(&[u8])> = OnceLock::new();

fuzz_target!(
    init: {
        let name = std::env::var("FUZZ_TARGET").expect("FUZZ_TARGET says what is fuzzed");
        let found = targets::TARGETS.iter().find(|(known, _)| *known == name);
        let _ = CHOSEN.set(found.unwrap_or_else(|| panic!("there is no target `{name}`")).1);
    },
    |data: &[u8]| {
        if let Some(target) = CHOSEN.get() {
            target(data);
        }
    }
);
