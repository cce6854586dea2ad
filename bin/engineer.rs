//! A worker for the agent `engineer`.

fn main() -> std::process::ExitCode {
    orchestrate::ui::cli::main_as(&["worker", "engineer"])
}
