//! Flags that give a new run its message, its issue, its base branch, and its bead.

use std::path::PathBuf;

use crate::run::failure::Failure;
use crate::run::request::RequestInput;
use crate::workflow::Plan;
use crate::workflow::plan::{Dialect, Isolation};

#[derive(clap::Args, Clone, Debug, Default)]
pub(super) struct RequestArgs {
    /// What is wanted: `$ARGUMENTS` in a workflow of nodes; `-` reads standard input
    #[arg(short, long, value_name = "TEXT")]
    pub message: Option<String>,
    /// The issue or pull request that it is about: `$CONTEXT`
    #[arg(long, value_name = "FILE")]
    pub issue_context_file: Option<PathBuf>,
    /// `$BASE_BRANCH`, and where a bead's worktree begins [default: from .archon/config.yaml or the
    /// settings, else the repository's default branch, and for worktrees the one checked out]
    #[arg(long, value_name = "BRANCH")]
    pub base_branch: Option<String>,
    /// The work item: a file, or an id of .beads/issues.jsonl; `{{.bead}}` in spells
    #[arg(long, value_name = "FILE|ID")]
    pub bead: Option<String>,
    /// Where the bead is worked on [default: worktree]
    #[arg(long, value_enum, value_name = "WHERE", requires = "bead")]
    pub isolation: Option<IsolationArg>,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
pub(super) enum IsolationArg {
    /// In a worktree of its own, on a branch of its own
    Worktree,
    /// In the workspace
    Workspace,
}

impl RequestArgs {
    /// Reads the message from standard input if the flag is `-`.
    pub(super) fn read_message(&mut self) -> Result<(), Failure> {
        if self.message.as_deref() == Some("-") {
            self.message = Some(read_stdin()?);
        }
        Ok(())
    }

    /// Returns the inputs of a run of this plan. If the message is `-` and the plan has a use for
    /// it, reads it from standard input.
    pub(super) fn input(&self, plan: &Plan) -> Result<RequestInput, Failure> {
        let message = match self.message.as_deref() {
            Some("-") if plan.dialect() == Dialect::Nodes => Some(read_stdin()?),
            _ => self.message.clone(),
        };
        Ok(RequestInput {
            message,
            issue_context_file: self.issue_context_file.clone(),
            base_branch: self.base_branch.clone(),
            bead: self.bead.clone(),
            isolation: self.isolation.map(|isolation| match isolation {
                IsolationArg::Worktree => Isolation::Worktree,
                IsolationArg::Workspace => Isolation::Workspace,
            }),
        })
    }
}

fn read_stdin() -> Result<String, Failure> {
    std::io::read_to_string(std::io::stdin()).map_err(|error| {
        Failure::invalid(format!("cannot read the message from standard input: {error}"))
    })
}
