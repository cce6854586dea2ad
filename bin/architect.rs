//! A worker for the agent `architect`.

mod beside;

fn main() -> std::process::ExitCode {
    beside::become_verb(&["worker", "architect"])
}
