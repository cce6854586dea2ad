//! `orchestrate graph`: draws a workflow, or a run of it with the state of its steps.

use std::path::{Path, PathBuf};

use super::Common;
use super::invocation::Invocation;
use super::output::{self, put};
use crate::disk::fs::{self, OnVolume as _};
use crate::graph::{self, Graph, dot, mermaid, svg};
use crate::run::failure::Failure;
use crate::run::open::compile_in;
use crate::run::{wording, workflow_file};
use crate::view::{Board, document};

#[derive(clap::Args, Clone, Debug)]
pub(super) struct GraphArgs {
    /// A workflow file, or a run: its id, the beginning of it, or `latest`
    #[arg(value_name = "WORKFLOW|RUN", default_value = "latest")]
    pub target: String,
    /// What is drawn [default: by the ending of the output file, else mermaid]
    #[arg(long, value_enum, value_name = "FORMAT", conflicts_with = "json")]
    pub format: Option<Format>,
    /// Where it is written, instead of standard output
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
pub(super) enum Format {
    /// For Markdown: GitHub and many editors draw it
    Mermaid,
    /// For Graphviz
    Dot,
    /// For browsers
    Svg,
}

pub(super) fn main(args: &GraphArgs, common: &Common) -> Result<u8, Failure> {
    let invocation = Invocation::read(common)?;
    let path = Path::new(&args.target);
    // An existing file, or a name that looks like a path, is a workflow. Any other name is a run.
    let graph = if workflow_file::workflow_path(&invocation, path).is_present_file()
        || looks_like_file(path)
    {
        of_workflow(&invocation, path)?
    } else {
        of_run(&invocation, &args.target)?
    };
    let text = match (common.json, format(args)) {
        (true, _) => format!("{}\n", document("graph/v1", graph.to_json())),
        (false, Format::Mermaid) => mermaid::draw(&graph),
        (false, Format::Dot) => dot::draw(&graph),
        (false, Format::Svg) => svg::draw(&graph),
    };
    let Some(file) = args.output.as_ref().filter(|file| !output::is_stdout(file)) else {
        put(&text)?;
        return Ok(0);
    };
    fs::write(file, text)
        .map_err(|error| Failure::failed(format!("cannot write `{}`: {error}", file.display())))?;
    invocation.note(format!("wrote {}", file.display()));
    Ok(0)
}

fn looks_like_file(path: &Path) -> bool {
    let ending = path.extension().and_then(|ending| ending.to_str());
    path.components().count() > 1 || matches!(ending, Some("yaml" | "yml"))
}

fn format(args: &GraphArgs) -> Format {
    let ending = args.output.as_deref().and_then(Path::extension).and_then(|end| end.to_str());
    args.format.unwrap_or(match ending {
        Some("svg") => Format::Svg,
        Some("dot" | "gv") => Format::Dot,
        _ => Format::Mermaid,
    })
}

fn of_workflow(invocation: &Invocation, path: &Path) -> Result<Graph, Failure> {
    let (_, text) = workflow_file::find_workflow(invocation, path)
        .map_err(|message| workflow_file::no_workflow(invocation, path, message))?;
    let file = path.display().to_string();
    let workspace = invocation.open_workspace()?;
    let (plan, _) = compile_in(&workspace, &invocation.config, &text)
        .map_err(|problems| Failure::in_text(problems, &file, &text))?;
    let title = match plan.name() {
        Some(name) => format!("{name} ({file})"),
        None => file,
    };
    Ok(Graph::new(&title, &plan, None))
}

fn of_run(invocation: &Invocation, name: &str) -> Result<Graph, Failure> {
    let (id, _) = invocation.find_run(name)?;
    let queue = invocation.queue_if_any()?;
    let board = Board::scan(invocation, queue)?;
    let damaged = |error| wording::cannot_read(&id, &error);
    let detail = board.detail(&id).map_err(damaged)?;
    let (plan, run) = board.open(&id).map_err(damaged)?;
    Ok(graph::of_run(&detail, &plan, &run))
}
