//! A worker for the agent `architect`.

fn main() -> std::process::ExitCode {
    orchestrate::ui::cli::comes_with_the_fleet("architect")
}
