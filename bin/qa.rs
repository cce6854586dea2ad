//! A worker for the agent `qa`.

mod beside;

fn main() -> std::process::ExitCode {
    beside::become_verb(&["worker", "qa"])
}
