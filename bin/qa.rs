//! A worker for the agent `qa`.

fn main() -> std::process::ExitCode {
    orchestrate::ui::cli::main_as(&["worker", "qa"])
}
