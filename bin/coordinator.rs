//! The daemon that drives runs.

mod beside;

fn main() -> std::process::ExitCode {
    beside::become_verb(&["coordinator"])
}
