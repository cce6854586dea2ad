//! The daemon that drives runs.

fn main() -> std::process::ExitCode {
    orchestrate::ui::cli::main_as(&["coordinator"])
}
