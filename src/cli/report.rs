//! `orchestrate report`: writes everything known about a run to one HTML file, to keep, send or
//! print.

use std::path::{Path, PathBuf};

use super::Common;
use super::invocation::Invocation;
use super::output::{self, put, put_json};
use crate::base::ids::RunId;
use crate::disk;
use crate::report::{self, Amount, Report};
use crate::run::failure::Failure;
use crate::run::wording;
use crate::view::Board;

/// File name of the report in the run's directory.
pub(crate) const FILE: &str = "report.html";

#[derive(clap::Args, Clone, Debug)]
pub(crate) struct ReportArgs {
    /// The run: its id, the beginning of it, or `latest`
    #[arg(value_name = "RUN", default_value = "latest")]
    pub run: String,
    /// Where it is written; `-` is standard output [default: report.html in the run's directory]
    #[arg(short, long, value_name = "FILE", conflicts_with = "json")]
    pub output: Option<PathBuf>,
}

pub(crate) fn main(args: &ReportArgs, common: &Common) -> Result<u8, Failure> {
    let invocation = Invocation::read(common)?;
    let (id, _) = invocation.find_run(&args.run)?;
    let queue = invocation.queue_if_any()?;
    let board = Board::scan(&invocation, queue)?;
    if invocation.common.json {
        put_json("report/v1", tell(&board, &id)?)?;
        return Ok(0);
    }
    if args.output.as_deref().is_some_and(output::is_stdout) {
        put(&report::page::page(&tell(&board, &id)?, &|_| None))?;
        return Ok(0);
    }
    let file = write(&board, &id, args.output.as_deref())?;
    let shown = match &args.output {
        Some(given) => given.display().to_string(),
        None => invocation.openable(&file),
    };
    put(&format!("{shown}\n"))?;
    Ok(0)
}

/// Writes the report of a run, by default into its directory. Returns the path of the file.
pub(crate) fn write(board: &Board, id: &RunId, to: Option<&Path>) -> Result<PathBuf, Failure> {
    let report = tell(board, id)?;
    let root = board.run_root(id);
    let file = to.map_or_else(|| root.join(FILE), Path::to_owned);
    // Links to the run's files work only if the page is next to them.
    let beside = to.is_none();
    let page = report::page::page(&report, &|file| beside.then(|| report::parts::address(file)));
    let cannot = |error: &std::io::Error| {
        Failure::failed(format!("cannot write `{}`: {error}", file.display()))
            .hint("`--output FILE` writes it elsewhere, `--output -` to standard output")
    };
    disk::put_out(&*disk::machine(), &file, page.as_bytes()).map_err(|error| cannot(&error))?;
    Ok(file)
}

fn tell(board: &Board, id: &RunId) -> Result<Report, Failure> {
    report::gather(board, id, Amount::WHOLE).map_err(|error| wording::cannot_read(id, &error))
}
