//! `orchestrate debug-bundle`: collects the files and reports that a maintainer needs to diagnose a
//! problem remotely into one archive, without secrets.

use std::collections::BTreeSet;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::json;

use super::bundle::{self, Bundle, Contents, Hide, shapes};
use super::common::{self, Surroundings};
use super::show::{self, put, put_json};
use super::{Common, Failure};
use crate::attempt::{credentials, exec_env};
use crate::base::ids::{RunId, counted};
use crate::base::time::{Clock, SystemClock};
use crate::disk::fs::{self, OnVolume as _};
use crate::exec::{self, How, Order};
use crate::queue::{End, Layout};
use crate::run::open;
use crate::store;

/// Timeout of a verb whose output goes into the bundle, and the maximum size of that output.
const PATIENCE: Duration = Duration::from_secs(30);
const SAID: usize = 8 << 20;
/// Maximum part of a file that is searched for secret values, in bytes.
const LOOKED_AT: u64 = 8 << 20;
/// Minimum length of a line of a multi-line key that is hidden by itself.
const LINE_MIN: usize = 16;

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
    let (around, wrong) = Surroundings::look_anyway(common)?;
    let run = find_run(args, &around)?;
    let now = SystemClock.now();
    let stamp: String = now.to_second().chars().filter(|c| !"-:".contains(*c)).collect();
    let top = format!("orchestrate-debug-{stamp}");
    let file = args.output.clone().unwrap_or_else(|| PathBuf::from(format!("{top}.tar.gz")));
    if show::is_stdout(&file) {
        return Err(Failure::new(2, "a bundle is a file that only you can read")
            .hint("`--output FILE` names it"));
    }
    // Check this before spending minutes on the bundle.
    if fs::symlink_metadata(&file).is_ok() {
        return Err(is_there(&file));
    }
    let mut bundle = Bundle::new(hide(&around, run.as_ref()));
    gather(&mut bundle, &around, wrong.as_ref(), run.as_ref());
    let contents = bundle.write(&file, &top, (now.0 / 1000).unsigned_abs());
    let contents = contents.map_err(|error| match error.kind() {
        io::ErrorKind::AlreadyExists => is_there(&file),
        _ => Failure::new(1, format!("cannot write `{}`: {error}", file.display()))
            .hint("`--output FILE` writes it elsewhere"),
    })?;
    tell(&around, &file, run.as_ref(), &contents)?;
    Ok(0)
}

fn is_there(file: &Path) -> Failure {
    Failure::new(2, format!("`{}` is there already", file.display()))
        .hint("`--output FILE` writes it elsewhere")
}

/// Returns the requested run, or the newest if none was requested.
fn find_run(args: &DebugBundleArgs, around: &Surroundings) -> Result<Option<Chosen>, Failure> {
    let chosen = |(id, root)| Chosen { id, root };
    match &args.run {
        Some(name) => common::find_run(around, name).map(chosen).map(Some),
        None => Ok(common::find_run(around, "latest").ok().map(chosen)),
    }
}

struct Chosen {
    id: RunId,
    root: PathBuf,
}

/// Collects all values that are secret or may be secret.
fn hide(around: &Surroundings, run: Option<&Chosen>) -> Hide {
    let (mut declared, mut guessed) = (BTreeSet::new(), BTreeSet::new());
    for (name, value) in &around.environment {
        if shapes::is_secret_variable(name) {
            guessed.insert(value.to_string_lossy().into_owned());
        }
    }
    if let Some(dir) = around.environment.get(credentials::VARIABLE) {
        let found = credentials::read(Path::new(dir)).unwrap_or_default();
        declared.extend(found.into_values().map(|value| value.to_string_lossy().into_owned()));
    }
    let mut texts = settings(around).into_iter().map(|(_, file)| file).collect::<Vec<_>>();
    if let Some(Chosen { root, .. }) = run {
        // The state contains the value of a secret that was given with `--context`.
        texts.extend([store::DEFINITION, store::SETTINGS, store::STATE].map(|f| root.join(f)));
        declared.extend(secrets_of(around, root));
    }
    for file in texts {
        guessed.extend(shapes::values(&beginning(&file)));
    }
    let lines: Vec<String> = declared
        .iter()
        .chain(&guessed)
        .flat_map(|value| value.lines())
        .filter(|line| line.len() >= LINE_MIN)
        .map(str::to_owned)
        .collect();
    guessed.extend(lines);
    Hide::new(declared, guessed)
}

/// Returns the part of a file that is searched for secret values.
fn beginning(file: &Path) -> String {
    let mut bytes = Vec::new();
    let opened = fs::open(file).map(|file| file.take(LOOKED_AT));
    let _ = opened.and_then(|mut file| file.read_to_end(&mut bytes));
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Returns the values of the secrets that a run's steps name.
fn secrets_of(around: &Surroundings, root: &Path) -> Vec<String> {
    let Ok(workspace) = common::open_workspace(around) else { return Vec::new() };
    let plan =
        open::frozen_config(root).and_then(|config| open::frozen_plan(&workspace, &config, root));
    let Ok(plan) = plan else { return Vec::new() };
    let mut values = Vec::new();
    for name in exec_env::secrets(&plan) {
        values.extend(around.environment.get(&name).map(|v| v.to_string_lossy().into_owned()));
    }
    plan.root().walk(&mut |step| {
        let secret = |(name, _): &&(String, String)| {
            step.secrets.contains(name) || shapes::is_secret_variable(name)
        };
        values.extend(step.env.iter().filter(secret).map(|(_, value)| value.clone()));
    });
    values
}

/// Returns the existing settings files, each with its name in the bundle.
fn settings(around: &Surroundings) -> Vec<(String, PathBuf)> {
    let (optional, named) =
        common::settings_files(&around.common, &around.workspace, &around.environment);
    let own = around.workspace.join(".orchestrate/config.yaml");
    let mut found = Vec::new();
    for file in optional {
        let name = if file == own { "workspace" } else { "user" };
        found.push((format!("settings/{name}.yaml"), file));
    }
    found.extend(named.map(|file| ("settings/named.yaml".to_owned(), file)));
    found.retain(|(_, file)| file.is_present());
    found
}

fn gather(
    bundle: &mut Bundle,
    around: &Surroundings,
    wrong: Option<&Failure>,
    run: Option<&Chosen>,
) {
    bundle.json("versions.json", &versions(around));
    if let Some(failure) = wrong {
        bundle.text("settings/wrong.txt", &format!("{}\n", failure.message()));
    }
    for (name, file) in settings(around) {
        bundle.file(&name, &file);
    }
    let names: String = around.environment.keys().map(|name| format!("{name}\n")).collect();
    bundle.text("environment-names.txt", &names);
    let verbs: [(&str, &[&str]); 6] = [
        ("doctor.json", &["doctor"]),
        ("fsck.json", &["fsck"]),
        ("status.json", &["status"]),
        ("workers.json", &["workers", "ls"]),
        ("queue.json", &["queue", "ls"]),
        ("providers.json", &["provider", "ls"]),
    ];
    for (name, verb) in verbs {
        let told = said(around, verb);
        match told {
            Ok(text) => bundle.text(name, &text),
            Err(why) => bundle.miss(name, &why),
        }
    }
    let layout = Layout::new(&around.workspace);
    let own = layout.fleet_file().parent().map(Path::to_owned).unwrap_or_default();
    let mut dirs = vec![layout.inboxes(), layout.ends(End::Processed), layout.ends(End::Failed)];
    dirs.push(own);
    bundle.text("listing.txt", &bundle::listing(&around.workspace, &dirs));
    bundle.file("fleet.json", &layout.fleet_file());
    bundle.directory("workers", &layout.workers(), &|_| true);
    if let Some(run) = run {
        gather_run(bundle, &layout, run);
    }
}

/// Adds a run's files, and the files of its ended tasks.
fn gather_run(bundle: &mut Bundle, layout: &Layout, run: &Chosen) {
    // Skip files that the run's steps created: they belong to the author and explain little.
    let wanted = |name: &str| !name.ends_with(".zip") && !name.ends_with(".html");
    let top = format!("run/{}", run.id);
    let entries = fs::read_dir(&run.root).into_iter().flatten().flatten();
    let mut names: Vec<_> = entries.map(|entry| entry.file_name()).collect();
    names.sort();
    for name in names {
        let (path, shown) = (run.root.join(&name), name.to_string_lossy().into_owned());
        match path.is_present_dir() {
            true if ["artifacts", "parts"].contains(&shown.as_str()) => {}
            true => bundle.directory(&format!("{top}/{shown}"), &path, &wanted),
            false if wanted(&shown) => bundle.file(&format!("{top}/{shown}"), &path),
            false => {}
        }
    }
    for end in [End::Processed, End::Failed, End::Cancelled] {
        let word = match end {
            End::Processed => "processed",
            End::Failed => "failed",
            End::Cancelled => "cancelled",
        };
        let dir = layout.end(end, run.id.as_str());
        bundle.directory(&format!("tasks/{word}"), &dir, &|_| true);
    }
}

fn versions(around: &Surroundings) -> serde_json::Value {
    let line = |file: &str| {
        let text = fs::read_to_string(file).unwrap_or_default();
        text.lines().next().unwrap_or_default().trim().to_owned()
    };
    let release = fs::read_to_string("/etc/os-release").unwrap_or_default();
    let name = release.lines().find_map(|line| line.strip_prefix("PRETTY_NAME="));
    let git = call(&["git".to_owned(), "--version".to_owned()], &around.workspace);
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
fn said(around: &Surroundings, verb: &[&str]) -> Result<String, String> {
    let program = exec_env::program();
    let mut argv = vec![program.to_string_lossy().into_owned(), "--json".to_owned()];
    argv.extend(["--state-dir".to_owned(), around.state_dir.display().to_string()]);
    if let Some(config) = &around.common.config {
        argv.extend(["--config".to_owned(), config.display().to_string()]);
    }
    argv.extend(verb.iter().map(|word| (*word).to_owned()));
    call(&argv, &around.workspace)
}

fn call(argv: &[String], cwd: &Path) -> Result<String, String> {
    let order = Order { timeout: Some(PATIENCE), ..Order::new(argv, cwd, "debug-bundle") };
    let said = exec::call(&order, None, SAID, None).map_err(|error| error.to_string())?;
    let out = String::from_utf8_lossy(&said.out).into_owned();
    match said.how {
        How::TimedOut => Err(format!("it took longer than {} s", PATIENCE.as_secs())),
        _ if out.is_empty() => Err(String::from_utf8_lossy(&said.err).trim().to_owned()),
        _ => Ok(out),
    }
}

fn tell(
    around: &Surroundings,
    file: &Path,
    run: Option<&Chosen>,
    contents: &Contents,
) -> Result<(), Failure> {
    let bytes = file.metadata().map_or(0, |metadata| metadata.len());
    if around.common.json {
        let mut body = serde_json::to_value(contents).unwrap_or_default();
        body["file"] = file.display().to_string().into();
        body["bytes"] = bytes.into();
        body["run_id"] = run.map(|run| run.id.as_str()).into();
        return put_json("debug-bundle/v1", body);
    }
    put(&format!("{}\n", file.display()))?;
    for part in &contents.files {
        let cut = if part.cut > 0 { format!(", {} left out", part.cut) } else { String::new() };
        let bytes = counted(part.bytes, "byte");
        around.say(format!("  {} ({bytes}{cut})", part.path));
    }
    for left in &contents.left_out {
        around.say(format!("  without {}: {}", left.path, left.why));
    }
    around.say(format!(
        "{}, {}; {} hidden, and what looks like one; look through it before you send it",
        counted(contents.files.len(), "file"),
        counted(bytes as usize, "byte"),
        match contents.hidden_values {
            1 => "1 secret value is".to_owned(),
            values => format!("{values} secret values are"),
        }
    ));
    Ok(())
}
