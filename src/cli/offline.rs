//! `orchestrate offline`: the offline provider, called like any provider CLI.

use std::io::Read;
use std::path::Path;
use std::process::ExitCode;

use crate::offline::{Options, answer};
use crate::view::stderr::talk;

#[expect(clippy::disallowed_methods, reason = "as a provider it is a program of its own")]
pub(super) fn main(options: &Options) -> ExitCode {
    let mut prompt = Vec::new();
    if let Err(error) = std::io::stdin().lock().read_to_end(&mut prompt) {
        talk(format_args!("error: cannot read the prompt: {error}"));
        return ExitCode::from(2);
    }
    let environment = |name: &str| std::env::var(name).ok();
    let (mut out, mut err) = (std::io::stdout().lock(), std::io::stderr().lock());
    let code = answer(options, &prompt, &environment, Path::new("."), &mut out, &mut err);
    ExitCode::from(u8::try_from(code).unwrap_or(1))
}
