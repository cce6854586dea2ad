//! A worker for any agent.

fn main() -> std::process::ExitCode {
    orchestrate::ui::cli::main_as(&["worker"])
}
