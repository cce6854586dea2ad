//! A worker for any agent.

fn main() -> std::process::ExitCode {
    orchestrate::ui::cli::comes_with_the_fleet("worker")
}
