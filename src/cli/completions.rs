//! `orchestrate completions`: prints a script with which a shell completes verbs, flags and the
//! names of a workspace.
//!
//! The scripts for bash, zsh and fish are short: they call the program, which knows the names.
//! Other shells get static lists of verbs and flags.

use clap::{CommandFactory as _, ValueEnum};
use clap_complete::shells::{Elvish, PowerShell};

use super::output::put;
use super::{Cli, Common};
use crate::run::failure::Failure;

#[derive(clap::Args, Clone, Debug)]
#[command(after_help = "Where they go:\n  \
    bash  ~/.local/share/bash-completion/completions/orchestrate\n  \
    zsh   a directory of $fpath, as _orchestrate\n  \
    fish  ~/.config/fish/completions/orchestrate.fish\n\n\
    In bash, zsh and fish the names of runs, steps, agents, providers, spells and so on are those \
    of the workspace.")]
pub(super) struct CompletionsArgs {
    /// The shell
    #[arg(value_name = "SHELL")]
    pub shell: Shell,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(super) enum Shell {
    Bash,
    Elvish,
    Fish,
    Powershell,
    Zsh,
}

pub(super) fn main(args: &CompletionsArgs, _: &Common) -> Result<u8, Failure> {
    match args.shell {
        Shell::Bash => put(include_str!("completions/orchestrate.bash"))?,
        Shell::Fish => put(include_str!("completions/orchestrate.fish"))?,
        Shell::Zsh => put(include_str!("completions/orchestrate.zsh"))?,
        Shell::Elvish => lists(Elvish)?,
        Shell::Powershell => lists(PowerShell)?,
    }
    Ok(0)
}

fn lists(shell: impl clap_complete::Generator) -> Result<(), Failure> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "orchestrate", &mut script);
    put(&String::from_utf8_lossy(&script))
}
