//! A worker for the agent `engineer`.

fn main() -> std::process::ExitCode {
    orchestrate::ui::cli::comes_with_the_fleet("engineer")
}
