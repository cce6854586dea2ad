//! A worker for any agent.

mod beside;

fn main() -> std::process::ExitCode {
    beside::become_verb(&["worker"])
}
