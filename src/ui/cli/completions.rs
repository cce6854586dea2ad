//! `orchestrate completions`: what a shell needs to complete verbs and flags.

use clap::CommandFactory as _;

use super::show::put;
use super::{Cli, Common, Failure};

#[derive(clap::Args, Clone, Debug)]
#[command(after_help = "Where they go:\n  \
    bash  ~/.local/share/bash-completion/completions/orchestrate\n  \
    zsh   a directory of $fpath, as _orchestrate\n  \
    fish  ~/.config/fish/completions/orchestrate.fish")]
pub struct CompletionsArgs {
    /// The shell
    #[arg(value_name = "SHELL")]
    pub shell: clap_complete::Shell,
}

pub fn main(args: &CompletionsArgs, _: &Common) -> Result<u8, Failure> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "orchestrate", &mut script);
    put(&String::from_utf8_lossy(&script))?;
    Ok(0)
}
