//! A worker for the agent `architect`.

fn main() -> std::process::ExitCode {
    orchestrate::ui::cli::main_as(&["worker", "architect"])
}
