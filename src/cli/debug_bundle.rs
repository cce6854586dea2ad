//! `orchestrate debug-bundle`: collects the files and reports that a maintainer needs to diagnose a
//! problem remotely into one archive, without secrets.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::json;

use super::Common;
use super::invocation::{self, Invocation};
use super::output::{self, put, put_json};
use crate::attempt::exec_env;
use crate::base::ids::{RunId, counted};
use crate::base::time::{Clock, SystemClock};
use crate::disk::fs::{self, OnVolume as _};
use crate::exec::{self, How, Order};
use crate::health::bundle::{Bundle, Contents};
use crate::queue::{End, Layout};
use crate::run::failure::Failure;
use crate::store;

/// Timeout of a subcommand whose output goes into the bundle, and the maximum size of that output.
const TIMEOUT: Duration = Duration::from_secs(30);
const OUTPUT_BYTES: usize = 8 << 20;

#[derive(clap::Args, Clone, Debug)]
pub(super) struct DebugBundleArgs {
    /// The run it is about: its id, the beginning of it, or `latest` [default: the newest]
    #[arg(value_name = "RUN")]
    pub run: Option<String>,
    /// Where it is written; never over another file [default: orchestrate-debug-TIME.tar.gz here]
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
}

pub(super) fn main(args: &DebugBundleArgs, common: &Common) -> Result<u8, Failure> {
    let (invocation, wrong) = Invocation::read_leniently(common)?;
    let run = find_run(args, &invocation)?;
    let now = SystemClock.now();
    let stamp: String = now.to_second().chars().filter(|c| !"-:".contains(*c)).collect();
    let top = format!("orchestrate-debug-{stamp}");
    let file = args.output.clone().unwrap_or_else(|| PathBuf::from(format!("{top}.tar.gz")));
    if output::is_stdout(&file) {
        return Err(Failure::invalid("a bundle is a file that only you can read")
            .hint("`--output FILE` names it"));
    }
    // Check this before spending minutes on the bundle.
    if fs::symlink_metadata(&file).is_ok() {
        return Err(is_there(&file));
    }
    let mut bundle = Bundle::default();
    gather(&mut bundle, &invocation, wrong.as_ref(), run.as_ref());
    let contents = bundle.write(&file, &top, (now.0 / 1000).unsigned_abs());
    let contents = contents.map_err(|error| match error.kind() {
        io::ErrorKind::AlreadyExists => is_there(&file),
        _ => Failure::failed(format!("cannot write `{}`: {error}", file.display()))
            .hint("`--output FILE` writes it elsewhere"),
    })?;
    print(&invocation, &file, run.as_ref(), &contents)?;
    Ok(0)
}

fn is_there(file: &Path) -> Failure {
    Failure::invalid(format!("`{}` is there already", file.display()))
        .hint("`--output FILE` writes it elsewhere")
}

/// Returns the requested run, or the newest if none was requested.
fn find_run(args: &DebugBundleArgs, invocation: &Invocation) -> Result<Option<Chosen>, Failure> {
    let chosen = |(id, root)| Chosen { id, root };
    match &args.run {
        Some(name) => invocation.find_run(name).map(chosen).map(Some),
        None => Ok(invocation.find_run("latest").ok().map(chosen)),
    }
}

struct Chosen {
    id: RunId,
    root: PathBuf,
}

/// Returns the existing settings files, each with its name in the bundle.
fn settings(invocation: &Invocation) -> Vec<(String, PathBuf)> {
    let (optional, named) = invocation::settings_files(
        &invocation.common,
        &invocation.workspace,
        &invocation.environment,
    );
    let own = invocation.workspace.join(".orchestrate/config.yaml");
    let mut found = Vec::new();
    for file in optional {
        let name = if file == own { "workspace" } else { "user" };
        found.push((format!("settings/{name}"), file));
    }
    found.extend(named.map(|file| ("settings/named".to_owned(), file)));
    found.retain(|(_, file)| file.is_present());
    found
}

fn gather(
    bundle: &mut Bundle,
    invocation: &Invocation,
    wrong: Option<&Failure>,
    run: Option<&Chosen>,
) {
    bundle.json("versions.json", &versions(invocation));
    if wrong.is_some() {
        bundle.miss("settings", "they are invalid: `orchestrate doctor` shows the reason");
    }
    for (name, file) in settings(invocation) {
        bundle.file(&name, &file);
    }
    let names = invocation.environment.keys().map(String::as_str);
    bundle.names("environment-names.txt", names);
    let verbs: [(&str, &[&str]); 6] = [
        ("doctor.json", &["doctor"]),
        ("fsck.json", &["fsck"]),
        ("status.json", &["status"]),
        ("workers.json", &["workers", "ls"]),
        ("queue.json", &["queue", "ls"]),
        ("providers.json", &["provider", "ls"]),
    ];
    for (name, verb) in verbs {
        match output_of(invocation, verb) {
            Ok(text) => bundle.json_text(name, &text),
            Err(why) => bundle.miss(name, why),
        }
    }
    let layout = Layout::new(&invocation.workspace);
    let own = layout.fleet_file().parent().map(Path::to_owned).unwrap_or_default();
    let dirs = [layout.inboxes(), layout.ends(End::Processed), layout.ends(End::Failed), own];
    bundle.listing("listing.txt", &invocation.workspace, &dirs);
    bundle.file("fleet.json", &layout.fleet_file());
    bundle.directory("workers", &layout.workers());
    if let Some(run) = run {
        gather_run(bundle, &layout, run);
    }
}

/// Adds the state, the journals, and the workflow of a run, and the statuses of its ended tasks.
fn gather_run(bundle: &mut Bundle, layout: &Layout, run: &Chosen) {
    let entries = fs::read_dir(&run.root).into_iter().flatten().flatten();
    let mut names: Vec<_> = entries.map(|e| e.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    let journals = names.iter().filter(|name| name.ends_with(".jsonl"));
    for name in journals.map(String::as_str).chain([store::STATE, store::DEFINITION]) {
        bundle.file(&format!("run/{name}"), &run.root.join(name));
    }
    for (end, name) in
        [(End::Processed, "processed"), (End::Failed, "failed"), (End::Cancelled, "cancelled")]
    {
        bundle.directory(&format!("tasks/{name}"), &layout.end(end, run.id.as_str()));
    }
}

fn versions(invocation: &Invocation) -> serde_json::Value {
    let line = |file: &str| {
        let text = fs::read_to_string(file).unwrap_or_default();
        text.lines().next().unwrap_or_default().trim().to_owned()
    };
    let release = fs::read_to_string("/etc/os-release").unwrap_or_default();
    let name = release.lines().find_map(|line| line.strip_prefix("PRETTY_NAME="));
    let git = call(&["git".to_owned(), "--version".to_owned()], &invocation.workspace);
    json!({
        "schema": "versions/v1",
        "orchestrate": env!("CARGO_PKG_VERSION"),
        "system": name.unwrap_or_default().trim_matches('"'),
        "kernel": line("/proc/sys/kernel/osrelease"),
        "architecture": std::env::consts::ARCH,
        "processors": std::thread::available_parallelism().map_or(0, usize::from),
        "git": git.map(|text| text.trim().to_owned()).unwrap_or_default(),
    })
}

/// Returns the JSON output of a verb. It runs in a child process, so that a verb that hangs or
/// fails does not prevent the rest of the bundle.
fn output_of(invocation: &Invocation, verb: &[&str]) -> Result<String, &'static str> {
    let program = exec_env::program();
    let mut argv = vec![program.to_string_lossy().into_owned(), "--json".to_owned()];
    argv.extend(["--state-dir".to_owned(), invocation.state_dir.display().to_string()]);
    if let Some(config) = &invocation.common.config {
        argv.extend(["--config".to_owned(), config.display().to_string()]);
    }
    argv.extend(verb.iter().map(|word| (*word).to_owned()));
    call(&argv, &invocation.workspace)
}

fn call(argv: &[String], cwd: &Path) -> Result<String, &'static str> {
    let order = Order { timeout: Some(TIMEOUT), ..Order::new(argv, cwd, "debug-bundle") };
    let done = exec::call(&order, None, OUTPUT_BYTES, None).map_err(|_| "it did not start")?;
    match done.how {
        How::TimedOut => Err("it took longer than 30 s"),
        _ if done.out.is_empty() => Err("it printed nothing"),
        _ => Ok(String::from_utf8_lossy(&done.out).into_owned()),
    }
}

fn print(
    invocation: &Invocation,
    file: &Path,
    run: Option<&Chosen>,
    contents: &Contents,
) -> Result<(), Failure> {
    let bytes = file.metadata().map_or(0, |metadata| metadata.len());
    if invocation.common.json {
        let mut body = serde_json::to_value(contents).unwrap_or_default();
        body["file"] = file.display().to_string().into();
        body["bytes"] = bytes.into();
        body["run_id"] = run.map(|run| run.id.as_str()).into();
        return put_json("debug-bundle/v1", body);
    }
    put(&format!("{}\n", file.display()))?;
    for part in &contents.files {
        invocation.note(format!("  {} ({})", part.path, counted(part.bytes, "byte")));
    }
    for missing in &contents.left_out {
        invocation.note(format!("  without {}: {}", missing.path, missing.why));
    }
    invocation.note(format!(
        "{}, {}: states, times, and sizes. Prompts, output, logs, and values of settings are not \
         included",
        counted(contents.files.len(), "file"),
        counted(bytes as usize, "byte"),
    ));
    Ok(())
}
