//! `orchestrate demo`: runs a fleet in a scratch directory, without an API key or network: a
//! coordinator and three workers, each in its own process.

mod follow;
mod team;

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use self::follow::Follower;
use self::team::Team;
use super::output::table;
use super::signals::{self, Signals};
use super::top::{self, Left};
use super::{Common, report, submit};
use crate::base::ids::RunId;
use crate::base::program_name;
use crate::cli::invocation::Invocation;
use crate::cli::{failure, outcome};
use crate::disk::fs::{self, OnVolume as _};
use crate::disk::hint::Bell;
use crate::engine::{Policy, RunStatus};
use crate::run::create::NewRun;
use crate::run::failure::{Class, Failure};
use crate::run::{load, log};
use crate::top::{Screen, State};
use crate::view::Board;
use crate::view::progress::seconds;
use crate::view::rows::step_rows;
use crate::view::stderr::talk;
use crate::workspace::resolved;

/// Files of the demo, by their paths in its workspace.
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
pub(super) struct DemoArgs {
    /// Where to work; made if it is not there, and must be empty [default: a new scratch directory]
    #[arg(value_name = "DIR")]
    pub dir: Option<PathBuf>,
}

pub(super) fn main(args: &DemoArgs, common: &Common) -> Result<u8, Failure> {
    let dir = match &args.dir {
        Some(dir) => dir.clone(),
        None => std::env::temp_dir().join(format!("orchestrate-demo-{}", std::process::id())),
    };
    let mut invocation = Invocation::read(common)?;
    lay_out(&dir).map_err(|error| {
        use ErrorKind::{AlreadyExists, DirectoryNotEmpty, NotADirectory};
        let misused = matches!(error.kind(), AlreadyExists | DirectoryNotEmpty | NotADirectory);
        let class = if misused { Class::Invalid } else { Class::Failed };
        Failure::new(class, format!("cannot lay out the demo in `{}`: {error}", dir.display()))
            .hint("name a directory that is empty or not there yet, or none")
    })?;
    move_to(&mut invocation, &dir)?;
    invocation.check_state_dir()?;
    let here = invocation.workspace.display();
    invocation.note(format!("A small team builds a URL shortener in {here}."));
    invocation.note(
        "Its agents answer from a script; the fleet, the files, the tests and the run are real.",
    );
    let signals = signals::listen()?;
    let bell = Arc::new(Bell::default());
    let queue = invocation.open_queue()?;
    let team = Team::start(&invocation, bell.clone())
        .map_err(|error| Failure::failed(format!("cannot start the team: {error}")))?;
    invocation.note("A coordinator and three workers have started: architect, engineer, qa.\n");
    let loaded = load::load(&invocation, Path::new("workflow.yaml"))?;
    let context = loaded.plan.context().clone();
    let new = NewRun { fleet: true, ..NewRun::whole(&loaded, context, Policy::default()) };
    let (plan, run) = submit::put_out(&invocation, &queue, new)?;
    // The coordinator drives the run and writes its log.
    log::keep_no_more();
    let root = invocation.state_dir.join(run.id.as_str());
    let follower = Follower::new(plan, run.id.clone(), root, bell);
    let left = watch(&invocation, follower, &team, &signals)?;
    let died = team.died();
    drop(team);
    let board = Board::scan(&invocation, Some(queue))?;
    tell(&invocation, &board, &run.id, left, died, signals.code())
}

/// Changes to the demo's directory and uses it as the workspace, whatever the environment sets.
fn move_to(invocation: &mut Invocation, dir: &Path) -> Result<(), Failure> {
    let cannot = |error| Failure::failed(format!("cannot work in `{}`: {error}", dir.display()));
    std::env::set_current_dir(dir).map_err(cannot)?;
    invocation.workspace = std::env::current_dir().map_err(cannot)?;
    let state_dir = invocation.common.state_dir.clone();
    let state_dir = state_dir.unwrap_or_else(|| PathBuf::from(".orchestrate/runs"));
    invocation.state_dir = resolved(&invocation.workspace, &state_dir);
    Ok(())
}

/// Shows the run until it is over, the user leaves, or a member of the team has died: on a terminal
/// like `top`, elsewhere line by line.
fn watch(
    invocation: &Invocation,
    mut follower: Follower,
    team: &Team,
    signals: &Signals,
) -> Result<Left, Failure> {
    let screen = top::is_fit(invocation) && crate::top::terminal::has_room();
    if invocation.common.quiet || invocation.common.json || !screen {
        return Ok(follower.tell_all(invocation, team, &signals.stop));
    }
    let run = follower.id.to_string();
    let mut state = State::default();
    state.screens.push(Screen::Run { run: run.clone() });
    top::show(invocation, state, &signals.stop, &|seen| {
        let over = seen.runs.iter().any(|one| one.run_id == run && one.state.is_over());
        over || team.died().is_some()
    })
}

/// Prints the outcome and writes the report.
fn tell(
    invocation: &Invocation,
    board: &Board,
    id: &RunId,
    left: Left,
    died: Option<String>,
    stopped: u8,
) -> Result<u8, Failure> {
    let here = invocation.workspace.display();
    let cannot = |error| Failure::damaged(format!("run {id} cannot be read: {error}"));
    let detail = board.detail(id).map_err(cannot)?;
    let code = match detail.run.recorded {
        Some(RunStatus::Completed) => 0,
        Some(RunStatus::Running | RunStatus::Paused) | None => match left {
            Left::Stopped => stopped,
            // Leaving with a key has the exit code of Ctrl-C.
            Left::Wished | Left::Closed => 130,
            Left::Seen => 1,
        },
        Some(_) => 1,
    };
    let open = board.open(id).map_err(cannot)?;
    let code = outcome::tell_outcome(invocation, &open.0, &open.1, code);
    if let Some(name) = died {
        let message = format!("the {name} of the demo ended before its time");
        let hint = format!("`{here}/{}` has what it said", team::LOG);
        return Ok(failure::print_text(&Failure::failed(message).hint(hint)));
    }
    if !detail.run.state.is_over() {
        talk(format_args!("everything that was started has ended; the workspace is {here}"));
        return Ok(code);
    }
    let took = detail.run.started_at.zip(detail.run.updated_at);
    let took = took.map(|(start, end)| seconds(end.ms_since(start))).unwrap_or_default();
    invocation.note(format!("\nrun {id} {} in {took}", detail.run.state.word()));
    invocation.note(table(&step_rows(&detail.steps, board.now)).trim_end());
    if let Some(usage) = &detail.usage {
        invocation.note(usage.words());
    }
    let file = report::write(board, id, Some(&invocation.workspace.join("report.html")))?;
    if code == 0 {
        tell_what_next(invocation, &file);
    } else {
        invocation.note(format!("\nWhat went wrong is in {}", file.display()));
    }
    Ok(code)
}

fn lay_out(dir: &Path) -> std::io::Result<()> {
    fs::create_dir_all(dir)?;
    if fs::read_dir(dir)?.next().is_some() {
        return Err(std::io::Error::new(ErrorKind::DirectoryNotEmpty, "it is not empty"));
    }
    for (name, text) in FILES.iter().chain([&SCHEMA]) {
        let path = dir.join(name);
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent)?;
        }
        fs::write(path, text)?;
    }
    Ok(())
}

/// Returns the command that starts this program: its name if `PATH` resolves to it, else its path.
fn name_of_this(invocation: &Invocation) -> String {
    const NAME: &str = "orchestrate";
    let Ok(this) = std::env::current_exe() else { return NAME.to_owned() };
    let path = invocation.environment.get("PATH").cloned().unwrap_or_default();
    let mut found = std::env::split_paths(&path).map(|dir| dir.join(NAME));
    let first = found.find(|file| file.is_present_file()).and_then(|file| file.canonicalize().ok());
    match first == this.canonicalize().ok() {
        true => NAME.to_owned(),
        false => program_name::word(&this),
    }
}

fn tell_what_next(invocation: &Invocation, report: &Path) {
    let (dir, enter) = (invocation.workspace.display(), program_name::word(&invocation.workspace));
    let program = name_of_this(invocation);
    invocation.note(format!(
        "\nThe report, for a browser:  {}\n\n\
         What to look at next, in {dir}:\n\
         \x20 workflow.yaml                         who is asked for what, and when\n\
         \x20 artifacts/report.md                   what the architect says of it\n\
         \x20 artifacts/qa/*.verdict.json           the reviews; one asked for more\n\
         \x20 done/                                 the engineer's tasks, moved when done\n\
         \x20 team.log                              what the members of the fleet said\n\
         \x20 .orchestrate/runs/latest/state.json   every step with its result\n\n\
         The same fleet again:  cd {enter} && {program} up\n\
         and beside it:         {program} submit workflow.yaml; {program} top\n\
         Your own:              {program} init DIR",
        report.display()
    ));
}
