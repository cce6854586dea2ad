//! A worker for the agent `engineer`.

mod beside;

fn main() -> std::process::ExitCode {
    beside::become_verb(&["worker", "engineer"])
}
