//! Case files: what one looks like, and how it is run.
//!
//! A case opens with a paragraph that says what is proved, beginning with a number or a tag
//! (`AT-20: …`). Sections follow, each under a line `-- NAME --`; the blank lines before the next
//! section are layout. A name that begins with neither `run` nor `expect` is a file to be written
//! into a fresh workspace, executable when it starts with `#!`.
//!
//! | section | means |
//! |---|---|
//! | `run`, `run NAME` | a script for `sh` in the workspace; what is expected after it is its own |
//! | `expect exit` | its exit code; 0 when left out |
//! | `expect stdout`, `expect stderr` | lines that occur in this order, or `(empty)` |
//! | `expect whole stdout`, `expect whole stderr` | all its lines; nothing, if it must be empty |
//! | `expect state.json` | a JSON pattern for the state of the latest run |
//! | `expect file PATH`, `expect log NAME` | the whole text of a file, of a log of the latest run |
//! | `expect json PATH` | a JSON pattern for a file |
//! | `expect no PATH` | nothing is there |
//!
//! The patterns are those of [`crate::pattern`]. A script finds the programs first on its `PATH`,
//! `HOME` and `XDG_CONFIG_HOME` outside the workspace and no `ORCHESTRATE_*` variable. With
//! `LD_PRELOAD=$FAULTY_LIBRARY FAULTY_CLOCK_MS=N`, the clock of a program is wrong.
//!
//! **Invariant:** a case sees nothing of another case, nor of the user who runs it.

use std::collections::{BTreeSet, HashSet};
use std::fmt::Write as _;
use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Component, Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use libtest_mimic::{Failed, Trial};
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use serde_json::Value;

use crate::{pattern, shim, update};

pub(crate) const LATEST: &str = ".orchestrate/runs/latest";

/// How long one script may take. Far above what any needs, so only a hang reaches it.
const DEADLINE: Duration = Duration::from_secs(60);

#[derive(Clone)]
pub(crate) struct Case {
    files: Vec<(String, String)>,
    pub(crate) runs: Vec<Run>,
}

#[derive(Clone)]
pub(crate) struct Run {
    pub(crate) script: String,
    expects: Vec<Expect>,
}

#[derive(Clone)]
enum Expect {
    Exit(i32),
    Stdout(String),
    Stderr(String),
    WholeStdout(String),
    WholeStderr(String),
    File(String, String),
    Json(String, Value),
    No(String),
    /// Nothing, or directories without a file.
    Nothing(String),
}

/// What a script left behind.
pub(crate) struct Outcome {
    pub(crate) exit: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

/// One trial for each case file below `root`, named by its path without the extension.
pub(crate) fn trials(root: &Path, bin: &Path) -> Vec<Trial> {
    let trial = |(name, file): (String, PathBuf)| {
        let bin = bin.to_path_buf();
        Trial::test(name, move || {
            if update::requested() {
                return update::run(&file, &bin).map_err(Failed::from);
            }
            let text = fs::read_to_string(&file)?;
            let case = parse(&text)?;
            run(&case, &bin).map_err(Failed::from)
        })
    };
    named_files(root).into_iter().map(trial).collect()
}

/// The same cases once more with `run --fleet` and workers in processes of their own, if
/// `ORCHESTRATE_TEST_FLEET=1`. `not-in-a-fleet.txt` lists the exceptions with their reasons.
pub(crate) fn fleet_trials(root: &Path, bin: &Path) -> Vec<Trial> {
    if std::env::var_os("ORCHESTRATE_TEST_FLEET").is_none_or(|value| value != "1") {
        return Vec::new();
    }
    let list = read(&root.join("not-in-a-fleet.txt"));
    let left_out: HashSet<&str> =
        list.lines().filter_map(|line| Some(line.split_once(": ")?.0)).collect();
    let trial = |(name, file): (String, PathBuf)| {
        let bin = bin.to_path_buf();
        Trial::test(format!("in-a-fleet/{name}"), move || {
            let text = fs::read_to_string(&file)?;
            let case = parse(&text)?;
            run_in_a_fleet(&case, &bin).map_err(Failed::from)
        })
    };
    let files = named_files(root).into_iter();
    files.filter(|(name, _)| !left_out.contains(name.as_str())).map(trial).collect()
}

pub(crate) fn named_files(root: &Path) -> Vec<(String, PathBuf)> {
    let mut files = Vec::new();
    collect(root, &mut files);
    files.sort();
    let name = |file: &PathBuf| {
        let name = file.strip_prefix(root).unwrap_or(file).with_extension("");
        name.to_string_lossy().into_owned()
    };
    files.into_iter().map(|file| (name(&file), file)).collect()
}

fn collect(directory: &Path, files: &mut Vec<PathBuf>) {
    for entry in directory.read_dir().into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() {
            collect(&path, files);
        } else if path.extension().is_some_and(|extension| extension == "case") {
            files.push(path);
        }
    }
}

pub(crate) fn parse(text: &str) -> Result<Case, String> {
    let mut sections = sections(text).into_iter();
    let (_, title) = sections.next().unwrap_or_default();
    let tag = title.split_once(": ").map(|(tag, _)| tag).unwrap_or_default();
    if tag.is_empty() || tag.contains(char::is_whitespace) {
        return Err("a case begins with what it proves: `TAG: a sentence`".into());
    }
    let mut case = Case { files: Vec::new(), runs: Vec::new() };
    for (name, body) in sections {
        if name == "run" || name.starts_with("run ") {
            case.runs.push(Run { script: body, expects: Vec::new() });
        } else if let Some(kind) = name.strip_prefix("expect ") {
            let run = case.runs.last_mut().ok_or(format!("`{name}` stands before any `run`"))?;
            run.expects.push(expect(kind, body)?);
        } else if !case.runs.is_empty() {
            return Err(format!("the file `{name}` stands after a `run`"));
        } else if inside(&name) {
            case.files.push((name, body));
        } else {
            return Err(format!("`{name}` is no path inside the workspace"));
        }
    }
    if case.runs.is_empty() {
        return Err("a case has at least one `run`".into());
    }
    Ok(case)
}

/// Splits a case into its opening paragraph, under an empty name, and its sections.
pub(crate) fn sections(text: &str) -> Vec<(String, String)> {
    let mut sections = vec![(String::new(), String::new())];
    for line in text.lines() {
        match line.strip_prefix("-- ").and_then(|rest| rest.strip_suffix(" --")) {
            Some(name) => sections.push((name.to_owned(), String::new())),
            None => {
                let (_, body) = sections.last_mut().expect("there is a first section");
                body.push_str(line);
                body.push('\n');
            }
        }
    }
    for (_, body) in &mut sections {
        body.truncate(body.trim_end_matches('\n').len());
        if !body.is_empty() {
            body.push('\n');
        }
    }
    sections
}

fn inside(path: &str) -> bool {
    !path.is_empty()
        && Path::new(path).components().all(|part| matches!(part, Component::Normal(_)))
}

fn expect(kind: &str, body: String) -> Result<Expect, String> {
    let json = |path: &str, body: &str| match serde_json::from_str(body) {
        Ok(value) => Ok(Expect::Json(path.to_owned(), value)),
        Err(error) => Err(format!("`expect {kind}` is no JSON: {error}")),
    };
    match kind.split_once(' ').unwrap_or((kind, "")) {
        ("exit", "") => match body.trim().parse() {
            Ok(code) => Ok(Expect::Exit(code)),
            Err(_) => Err(format!("`expect exit` is no number: {}", body.trim())),
        },
        ("stdout", "") => Ok(Expect::Stdout(body)),
        ("stderr", "") => Ok(Expect::Stderr(body)),
        ("whole", "stdout") => Ok(Expect::WholeStdout(body)),
        ("whole", "stderr") => Ok(Expect::WholeStderr(body)),
        ("state.json", "") => json(&format!("{LATEST}/state.json"), &body),
        ("json", path) if !path.is_empty() => json(path, &body),
        ("file", path) if !path.is_empty() => Ok(Expect::File(path.to_owned(), body)),
        ("log", name) if !name.is_empty() => {
            Ok(Expect::File(format!("{LATEST}/logs/{name}"), body))
        }
        ("no", path) if !path.is_empty() && body.is_empty() => Ok(Expect::No(path.to_owned())),
        _ => Err(format!("`expect {kind}` is no expectation")),
    }
}

/// Where a case runs, and what is kept of it until it is over.
pub(crate) struct Scene {
    pub(crate) root: PathBuf,
    _scratch: tempfile::TempDir,
}

fn run(case: &Case, bin: &Path) -> Result<(), String> {
    let scene = set_up(case)?;
    play(case, &scene.root, bin)
}

/// Workers serve every agent that the case names, and one takes what names none.
fn run_in_a_fleet(case: &Case, bin: &Path) -> Result<(), String> {
    let scene = set_up(case)?;
    let settings = "default_agent: hand\ncommand_agent: hand\ndurability: process\n";
    let file = scene.root.join("config/orchestrate/config.yaml");
    write(&file, settings).map_err(|error| error.to_string())?;
    let shims = scene.root.join("bin");
    let program = bin.join("orchestrate");
    let shim = format!(
        "#!/bin/sh\nif [ \"$1\" = run ]; then shift; set -- run --fleet \"$@\"; fi\n\
         exec '{}' \"$@\"\n",
        program.display()
    );
    write(&shims.join("orchestrate"), &shim).map_err(|error| error.to_string())?;
    let mut agents: BTreeSet<&str> = BTreeSet::from(["hand"]);
    for (_, text) in &case.files {
        let named = text.split("agent:").skip(1).filter_map(|rest| rest.split_whitespace().next());
        agents.extend(named.map(|name| name.trim_matches(['"', '\'', ',', '}'])));
    }
    let mut workers = Vec::new();
    for agent in agents {
        let mut worker = command(&program, &scene.root, bin);
        worker.args(["--quiet", "worker", agent, "--concurrency", "4"]);
        worker.stdout(Stdio::null()).stderr(Stdio::null());
        workers.push(worker.spawn().map_err(|error| format!("starting a worker: {error}"))?);
    }
    let registered = scene.root.join("workspace/.orchestrate/workers");
    let began = Instant::now();
    while registered.read_dir().map_or(0, Iterator::count) < workers.len() {
        if began.elapsed() > DEADLINE {
            return Err("the workers did not come up".into());
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    let played = play(&without_traces(case), &scene.root, &shims);
    for mut worker in workers {
        let group = Pid::from_raw(worker.id().cast_signed());
        let _ = killpg(group, Signal::SIGKILL);
        let _ = worker.wait();
    }
    played
}

/// The same case where workers have been: they make the directories of a queue, so what must not
/// be there is what is in them. They say how much goes on at once, so nobody else may.
fn without_traces(case: &Case) -> Case {
    let mut case = case.clone();
    for run in &mut case.runs {
        run.script = run.script.replace(" --jobs 1", "");
        for expect in &mut run.expects {
            if let Expect::No(path) = expect {
                if path == ".orchestrate" {
                    path.push_str("/runs");
                }
                *expect = Expect::Nothing(std::mem::take(path));
            }
        }
    }
    case
}

pub(crate) fn set_up(case: &Case) -> Result<Scene, String> {
    let scratch = tempfile::tempdir().map_err(|error| error.to_string())?;
    // A real path, so that a workspace behind a symlink is never what makes a case fail.
    let root = scratch.path().canonicalize().map_err(|error| error.to_string())?;
    for directory in ["workspace", "home", "config"] {
        fs::create_dir(root.join(directory)).map_err(|error| error.to_string())?;
    }
    let workspace = root.join("workspace");
    for (name, text) in &case.files {
        write(&workspace.join(name), text).map_err(|error| format!("writing `{name}`: {error}"))?;
    }
    Ok(Scene { root, _scratch: scratch })
}

fn play(case: &Case, root: &Path, bin: &Path) -> Result<(), String> {
    let workspace = root.join("workspace");
    for (index, run) in case.runs.iter().enumerate() {
        let outcome = execute(&run.script, root, bin)?;
        let wrong = judge(run, &outcome, &workspace);
        if !wrong.is_empty() {
            return Err(report(index, run, &outcome, &workspace, &wrong));
        }
    }
    Ok(())
}

fn write(path: &Path, text: &str) -> std::io::Result<()> {
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent)?;
    }
    fs::write(path, text)?;
    if text.starts_with("#!") {
        fs::set_permissions(path, fs::Permissions::from_mode(0o755))?;
    }
    Ok(())
}

/// Runs a script to its end or to the deadline.
///
/// Its output goes to files, not to pipes: a background process that outlives the script would hold
/// a pipe open, and the case would seem to hang.
pub(crate) fn execute(script: &str, root: &Path, bin: &Path) -> Result<Outcome, String> {
    let (stdout, stderr) = (root.join("stdout"), root.join("stderr"));
    let mut command = command(Path::new("sh"), root, bin);
    command
        .arg("-c")
        .arg(script)
        .stdout(File::create(&stdout).map_err(|error| error.to_string())?)
        .stderr(File::create(&stderr).map_err(|error| error.to_string())?);
    let mut child = command.spawn().map_err(|error| format!("starting `sh`: {error}"))?;
    let group = Pid::from_raw(child.id().cast_signed());
    let started = Instant::now();
    let ended = loop {
        match child.try_wait().map_err(|error| error.to_string())? {
            Some(status) => break Some(status),
            None if started.elapsed() > DEADLINE => break None,
            None => std::thread::sleep(Duration::from_millis(5)),
        }
    };
    // What the script left in the background must not outlive its case.
    let _ = killpg(group, Signal::SIGKILL);
    if ended.is_none() {
        let _ = child.wait();
    }
    Ok(Outcome { exit: ended.map(code), stdout: read(&stdout), stderr: read(&stderr) })
}

/// A program in the workspace of a case, in a process group of its own, that sees nothing of the
/// user who runs it.
fn command(program: &Path, root: &Path, bin: &Path) -> Command {
    let mut command = Command::new(program);
    command.current_dir(root.join("workspace"));
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("ORCHESTRATE_") {
            command.env_remove(name);
        }
    }
    let mut path = bin.as_os_str().to_owned();
    path.push(":");
    path.push(std::env::var_os("PATH").unwrap_or_default());
    command
        .env("PATH", path)
        .env("HOME", root.join("home"))
        .env("XDG_CONFIG_HOME", root.join("config"))
        .env("LC_ALL", "C")
        .env("FAULTY_LIBRARY", shim::library())
        .stdin(Stdio::null())
        .process_group(0);
    command
}

/// The exit code as a shell would report it.
fn code(status: ExitStatus) -> i32 {
    use std::os::unix::process::ExitStatusExt as _;
    status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or_default())
}

fn read(path: &Path) -> String {
    fs::read(path).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default()
}

/// Whether a path is a file, or a directory with a file somewhere in it.
fn holds_a_file(path: &Path) -> bool {
    match path.read_dir() {
        Ok(entries) => entries.flatten().any(|entry| holds_a_file(&entry.path())),
        Err(_) => path.symlink_metadata().is_ok(),
    }
}

/// Every expectation that does not hold.
pub(crate) fn judge(run: &Run, outcome: &Outcome, workspace: &Path) -> Vec<String> {
    let mut wrong = Vec::new();
    let wanted = run.expects.iter().find_map(|expect| match expect {
        Expect::Exit(code) => Some(*code),
        _ => None,
    });
    match (wanted.unwrap_or(0), outcome.exit) {
        (_, None) => wrong.push(format!("still running after {} s", DEADLINE.as_secs())),
        (wanted, Some(found)) if wanted != found => {
            wrong.push(format!("exit: expected {wanted}, found {found}"));
        }
        _ => {}
    }
    for expect in &run.expects {
        match expect {
            Expect::Exit(_) => {}
            Expect::Stdout(lines) => {
                wrong.extend(at("stdout", pattern::in_order(lines, &outcome.stdout)));
            }
            Expect::Stderr(lines) => {
                wrong.extend(at("stderr", pattern::in_order(lines, &outcome.stderr)));
            }
            Expect::WholeStdout(text) => {
                wrong.extend(at("stdout", pattern::whole(text, &outcome.stdout)));
            }
            Expect::WholeStderr(text) => {
                wrong.extend(at("stderr", pattern::whole(text, &outcome.stderr)));
            }
            Expect::File(path, text) => match fs::read(workspace.join(path)) {
                Ok(bytes) => {
                    wrong.extend(at(path, pattern::whole(text, &String::from_utf8_lossy(&bytes))));
                }
                Err(error) => wrong.push(format!("{path}: {error}")),
            },
            Expect::Json(path, wanted) => match document(&workspace.join(path)) {
                Ok(found) => {
                    let found = pattern::json(wanted, &found);
                    wrong.extend(found.into_iter().map(|line| format!("{path} at {line}")));
                }
                Err(error) => wrong.push(format!("{path}: {error}")),
            },
            Expect::No(path) => {
                if workspace.join(path).symlink_metadata().is_ok() {
                    wrong.push(format!("{path}: should not be there"));
                }
            }
            Expect::Nothing(path) => {
                if holds_a_file(&workspace.join(path)) {
                    wrong.push(format!("{path}: should not be there"));
                }
            }
        }
    }
    wrong
}

fn at(what: &str, result: Result<(), String>) -> Option<String> {
    result.err().map(|wrong| format!("{what}: {wrong}"))
}

fn document(path: &Path) -> Result<Value, String> {
    let text = fs::read_to_string(path).map_err(|error| error.to_string())?;
    serde_json::from_str(&text).map_err(|error| error.to_string())
}

/// All one needs to mend a case without running it again.
pub(crate) fn report(
    index: usize,
    run: &Run,
    outcome: &Outcome,
    workspace: &Path,
    wrong: &[String],
) -> String {
    let mut text = String::from("\n");
    for line in wrong {
        let _ = writeln!(text, "{}", line.trim_end());
    }
    let exit = outcome.exit.map_or("none".to_owned(), |code| code.to_string());
    let _ = writeln!(text, "\n--- run {}, exit {exit} ---\n{}", index + 1, run.script.trim_end());
    for (name, stream) in [("stdout", &outcome.stdout), ("stderr", &outcome.stderr)] {
        let _ = writeln!(text, "--- {name} ---\n{}", shortened(stream.trim_end()));
    }
    let state = workspace.join(LATEST).join("state.json");
    match document(&state) {
        Ok(value) => {
            let value = serde_json::to_string_pretty(&value).unwrap_or_default();
            let _ = writeln!(text, "--- state.json ---\n{}", shortened(&value));
        }
        Err(_) if !state.exists() => text.push_str("--- no state.json ---\n"),
        Err(error) => {
            let found = read(&state);
            let _ = writeln!(text, "--- state.json: {error} ---\n{}", shortened(&found));
        }
    }
    text
}

/// Cuts the middle out of lines that only a machine would read.
fn shortened(text: &str) -> String {
    let mut short = String::new();
    for line in text.lines() {
        let count = line.chars().count();
        if count > 400 {
            let head: String = line.chars().take(200).collect();
            let tail: String = line.chars().skip(count - 100).collect();
            let _ = writeln!(short, "{head} … {} characters … {tail}", count - 300);
        } else {
            let _ = writeln!(short, "{line}");
        }
    }
    short
}

/// The checks of this module: cases about cases, run with a stand-in for the program.
pub(crate) fn checks() -> Vec<Trial> {
    fn whole(text: &str) -> Result<(), String> {
        let bin = tempfile::tempdir().map_err(|error| error.to_string())?;
        parse(text).and_then(|case| run(&case, bin.path()))
    }
    fn passes(name: &str, text: &'static str) -> Trial {
        Trial::test(format!("case/{name}"), move || whole(text).map_err(Failed::from))
    }
    fn fails(name: &str, with: &'static str, text: &'static str) -> Trial {
        Trial::test(format!("case/{name}"), move || match whole(text) {
            Err(report) if report.contains(with) => Ok(()),
            Err(report) => Err(Failed::from(format!("the report lacks `{with}`: {report}"))),
            Ok(()) => Err(Failed::from("it should fail")),
        })
    }
    vec![
        passes(
            "files are written, blank lines before a section are layout",
            "x: y.\n\n-- a/b.txt --\none\n\n\n-- run --\ncat a/b.txt\n\n\
             -- expect stdout --\none\n\n-- expect file a/b.txt --\none\n",
        ),
        passes(
            "a script with a first line of its own can be executed",
            "x: y.\n\n-- s --\n#!/bin/sh\nexit 3\n-- run --\n./s\n-- expect exit --\n3\n",
        ),
        passes(
            "expectations belong to the run before them",
            "x: y.\n-- run --\nexit 1\n-- expect exit --\n1\n-- run --\ntrue\n-- expect no a --\n",
        ),
        passes(
            "a script sees a clean home and nothing on stdin",
            "x: y.\n-- run --\nls -A \"$HOME\"; ls -A \"$XDG_CONFIG_HOME\"; cat; env | grep \
             ^ORCHESTRATE_\n-- expect exit --\n1\n-- expect stdout --\n(empty)\n-- expect stderr \
             --\n(empty)\n",
        ),
        passes(
            "state and logs are those of the latest run",
            "x: y.\n-- .orchestrate/runs/latest/state.json --\n{\"a\": [1]}\n\
             -- .orchestrate/runs/latest/logs/S.stderr --\noops\n-- run --\ntrue\n\
             -- expect state.json --\n{\"a\": [\"[..]\"]}\n-- expect log S.stderr --\no[..]s\n",
        ),
        fails("a wrong exit is reported", "expected 0, found 4", "x: y.\n-- run --\nexit 4\n"),
        fails(
            "a JSON mismatch names its path",
            "a.json at .k[0]: expected 1, found 2",
            "x: y.\n-- a.json --\n{\"k\": [2]}\n-- run --\ntrue\n-- expect json a.json --\n{\"k\": \
             [1]}\n",
        ),
        fails("a report shows what was printed", "hello", "x: y.\n-- run --\necho hello; exit 1\n"),
        fails("a case needs a sentence", "begins with", "-- run --\ntrue\n"),
        fails("a case needs a run", "at least one", "x: y.\n-- a --\nb\n"),
        fails("an unknown expectation", "no expectation", "x: y.\n-- run --\n-- expect x --\n1\n"),
        fails("a file outside the workspace", "inside", "x: y.\n-- ../a --\n-- run --\ntrue\n"),
    ]
}
