//! The command line.

fn main() -> std::process::ExitCode {
    orchestrate::main()
}
