//! A worker for the agent `qa`.

fn main() -> std::process::ExitCode {
    orchestrate::ui::cli::comes_with_the_fleet("qa")
}
