//! `orchestrate doctor`: checks whether this workspace can host a fleet, and prints how to fix
//! problems.

use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::Duration;

use super::invocation::Invocation;
use super::output::{put, put_json};
use super::{Common, signals, watchdog};
use crate::base::text::sanitize;
use crate::exec::{self, Stop};
use crate::health::doctor::{self, Depth, Finding, Patient, Report, Times, Verdict};
use crate::run::failure::Failure;
use crate::view::stderr::talk;

/// Timeout of the examination. A volume that hangs is not waited for.
const LIMIT: Duration = Duration::from_secs(9);
/// Additional time with `--remote`, for the user to start the peer on the other machine.
const WALK: Duration = Duration::from_secs(180);

#[derive(clap::Args, Clone, Debug)]
pub(super) struct DoctorArgs {
    /// Also try the volume out, with two processes that rename, read and lock the same files
    #[arg(long)]
    pub volume: bool,
    /// Let the second process be one on another machine; says what to start there
    #[arg(long, requires = "volume")]
    pub remote: bool,
}

#[derive(clap::Args, Clone, Debug)]
pub(super) struct PeerArgs {
    /// The directory that the first process waits in
    #[arg(value_name = "DIR")]
    pub dir: PathBuf,
}

pub(super) fn main(args: &DoctorArgs, common: &Common) -> Result<u8, Failure> {
    let signals = signals::listen()?;
    // A program that is started to print its version may leave child processes. Only a subreaper
    // can end them.
    exec::become_subreaper()
        .map_err(|error| Failure::failed(format!("cannot look after processes: {error}")))?;
    let limit = if args.remote { LIMIT + WALK } else { LIMIT };
    let (done, examined) = mpsc::channel();
    let (asked, flags, stop) = (args.clone(), common.clone(), signals.stop.clone());
    // Everything that touches the volume runs on its own thread, which is abandoned if the volume
    // does not respond.
    std::thread::spawn(move || {
        let _ = done.send(examine(&asked, &flags, &stop));
    });
    let report = match examined.recv_timeout(limit) {
        Ok(report) => report?,
        Err(_) => Report::of_silence(&watchdog::workspace(), limit),
    };
    if signals.stop.level() > 0 {
        return Ok(signals.code());
    }
    match common.json {
        true => put_json("doctor/v1", &report)?,
        false => put(&sanitize(&told(&report, args.volume, common.quiet)))?,
    }
    Ok(u8::from(!report.fit))
}

/// Examines the workspace. Uses the built-in settings if its own are invalid.
fn examine(args: &DoctorArgs, common: &Common, stop: &Stop) -> Result<Report, Failure> {
    let (invocation, wrong) = Invocation::read_leniently(common)?;
    let depth = match (args.volume, args.remote) {
        (false, _) => Depth::Look,
        (true, false) => Depth::Volume,
        (true, true) => Depth::Remote,
    };
    let patient = Patient {
        workspace: invocation.project.workspace,
        environment: invocation.project.environment,
        config: invocation.project.config,
        program: std::env::current_exe().unwrap_or_else(|_| PathBuf::from("orchestrate")),
        depth,
    };
    let invite = |dir: &Path| invite(&patient.workspace, dir);
    let mut report = doctor::examine(&patient, stop, &invite);
    if let Some(failure) = wrong {
        report.add_wrong("settings", &failure.located(), "mend them; those built in were taken");
    }
    Ok(report)
}

/// The peer process of `doctor --volume`. Prints something only if it fails.
pub(super) fn peer(args: &PeerArgs) -> Result<u8, Failure> {
    let signals = signals::listen()?;
    match doctor::serve(&args.dir, &signals.stop) {
        Ok(()) => Ok(0),
        Err(_) if signals.stop.level() > 0 => Ok(signals.code()),
        Err(error) => {
            let message = format!("cannot take part in `{}`: {error}", args.dir.display());
            Err(Failure::failed(message)
                .hint("start it while `orchestrate doctor --volume --remote` waits there"))
        }
    }
}

fn invite(workspace: &Path, dir: &Path) {
    let dir = dir.strip_prefix(workspace).unwrap_or(dir);
    talk(format_args!("on another machine, in this same workspace, start within three minutes:"));
    talk(format_args!("  orchestrate doctor-peer {}", dir.display()));
}

/// Renders the findings as lines of text.
fn told(report: &Report, tried: bool, quiet: bool) -> String {
    let mut text = String::new();
    if !quiet {
        text += &format!("orchestrate {} in {}\n", report.version, report.workspace.display());
    }
    let is_told = |finding: &&Finding| !quiet || finding.verdict == Verdict::Wrong;
    report.findings.iter().filter(is_told).for_each(|finding| text += &line(finding));
    let wrong = report.findings.iter().filter(|finding| finding.verdict == Verdict::Wrong).count();
    let times = times(&report.times);
    text += &match (report.fit, tried) {
        (false, _) => format!("not fit: {wrong} of the above must be put right first\n"),
        _ if quiet => String::new(),
        (true, true) => format!("fit for a fleet: {times}\n"),
        (true, false) => format!(
            "fit as far as can be seen: {times}\n\
             to try the volume out: orchestrate doctor --volume\n"
        ),
    };
    text
}

fn line(finding: &Finding) -> String {
    let verdict = match finding.verdict {
        Verdict::Ok => "ok",
        Verdict::Warning => "warning",
        Verdict::Wrong => "wrong",
    };
    let cure = finding.cure.as_ref().map(|cure| format!("         cure: {cure}\n"));
    format!("{verdict:<8} {}: {}\n{}", finding.name, finding.text, cure.unwrap_or_default())
}

fn times(times: &Times) -> String {
    let seconds = |ms: u64| format!("{} s", ms as f64 / 1e3);
    format!(
        "a beat every {}, a lease of {}, a poll every {} to {}",
        seconds(times.beat_ms),
        seconds(times.ttl_ms),
        seconds(times.poll_min_ms),
        seconds(times.poll_max_ms)
    )
}
