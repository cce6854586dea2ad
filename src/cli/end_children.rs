//! `orchestrate end-children`: ends the child processes of a process that was killed.

use std::process::ExitCode;

use crate::exec;

#[derive(clap::Args, Clone, Debug)]
pub(super) struct EndChildrenArgs {
    /// The mark of the process
    #[arg(value_name = "MARK")]
    mark: String,
}

pub(super) fn main(args: &EndChildrenArgs) -> ExitCode {
    exec::sweep_if(&|mark| mark == args.mark);
    ExitCode::SUCCESS
}
