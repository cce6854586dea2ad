//! The daemon that drives runs.

fn main() -> std::process::ExitCode {
    orchestrate::ui::cli::comes_with_the_fleet("coordinator")
}
