//! `orchestrate demo`: a team of agents at work in a scratch directory, with no key and no
//! network.

use std::io::IsTerminal;
use std::path::{Path, PathBuf};

use super::common::{self, NewRun, RunOptions, Surroundings};
use super::{Common, Failure, signals};
use crate::engine::Policy;

/// The files of the demonstration, by their place in its workspace.
const FILES: [(&str, &str); 7] = [
    ("workflow.yaml", include_str!("../../../workflows/demo/workflow.yaml")),
    ("offline.yaml", include_str!("../../../workflows/demo/offline.yaml")),
    ("prompts/design.md", include_str!("../../../workflows/demo/prompts/design.md")),
    ("prompts/implement.md", include_str!("../../../workflows/demo/prompts/implement.md")),
    ("prompts/review.md", include_str!("../../../workflows/demo/prompts/review.md")),
    ("prompts/fix.md", include_str!("../../../workflows/demo/prompts/fix.md")),
    ("prompts/report.md", include_str!("../../../workflows/demo/prompts/report.md")),
];
const SCHEMA: (&str, &str) = (
    "schemas/qa_verdict.schema.json",
    include_str!("../../../workflows/demo/schemas/qa_verdict.schema.json"),
);

#[derive(clap::Args, Clone, Debug)]
pub struct DemoArgs {
    /// Where to work; made if it is not there, and must be empty [default: a new scratch directory]
    #[arg(value_name = "DIR")]
    pub dir: Option<PathBuf>,
}

pub fn main(args: &DemoArgs, common: &Common) -> Result<u8, Failure> {
    let dir = match &args.dir {
        Some(dir) => dir.clone(),
        None => std::env::temp_dir().join(format!("orchestrate-demo-{}", std::process::id())),
    };
    let mut around = Surroundings::look(common)?;
    lay_out(&dir).map_err(|error| {
        Failure::new(1, format!("cannot lay out the demo in `{}`: {error}", dir.display()))
    })?;
    std::env::set_current_dir(&dir)
        .map_err(|error| Failure::new(1, format!("cannot work in `{}`: {error}", dir.display())))?;
    around.workspace = std::env::current_dir()
        .map_err(|error| Failure::new(1, format!("cannot find `{}`: {error}", dir.display())))?;
    let state_dir = common.state_dir.clone();
    around.state_dir =
        around.workspace.join(state_dir.unwrap_or_else(|| PathBuf::from(".orchestrate/runs")));
    around.say(format!("A small team builds a URL shortener in {}.", dir.display()));
    around.say("Its agents answer from a script; the files, the tests and the run are real.\n");
    let loaded = common::load(&around, Path::new("workflow.yaml"))?;
    let context = loaded.plan.context.clone();
    let options = RunOptions {
        // On a terminal a live view; elsewhere the lines of ended steps say enough.
        progress: std::io::stderr().is_terminal(),
        backup_state: false,
        on_error: None,
        max_retries: None,
        retry_delay: None,
        jobs: None,
    };
    let policy = Policy::default();
    let new = NewRun::of(&loaded, context, policy);
    let signals = signals::listen()?;
    let owned = common::create(&around, new)?;
    let (code, _) = common::drive(&around, owned, &options, &signals, None)?;
    if code == 0 {
        tell_what_next(&around, &dir);
    }
    Ok(code)
}

fn lay_out(dir: &Path) -> std::io::Result<()> {
    std::fs::create_dir_all(dir)?;
    if std::fs::read_dir(dir)?.next().is_some() {
        return Err(std::io::Error::other("it is not empty"));
    }
    for (name, text) in FILES.iter().chain([&SCHEMA]) {
        let path = dir.join(name);
        if let Some(parent) = path.parent() {
            std::fs::create_dir_all(parent)?;
        }
        std::fs::write(path, text)?;
    }
    Ok(())
}

fn tell_what_next(around: &Surroundings, dir: &Path) {
    let dir = dir.display();
    let program = std::env::current_exe().unwrap_or_else(|_| PathBuf::from("orchestrate"));
    let program = program.display();
    around.say(format!(
        "\nWhat to look at next, in {dir}:\n\
         \x20 workflow.yaml                         what was asked of whom, and in which order\n\
         \x20 artifacts/report.md                   what the architect says of it\n\
         \x20 artifacts/qa/*.verdict.json           the reviews; one change was sent back first\n\
         \x20 processed/                            the engineer's tasks, moved when done\n\
         \x20 .orchestrate/runs/latest/state.json   every step with its result and its time\n\
         \x20 .orchestrate/runs/latest/logs/        what was said along the way\n\n\
         Run it again:  cd {dir} && {program} run workflow.yaml --progress\n\
         Your own:      README.md, \"Your first workflow\""
    ));
}
