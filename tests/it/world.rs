//! What the coded tests share: a fresh workspace, the program started in it, and waiting until
//! something is so.
//!
//! **Invariant:** a test waits for a condition, never for a length of time; what a test started is
//! gone when its [`World`] is dropped.

use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use libtest_mimic::Trial;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use sha2::{Digest as _, Sha256};
use tempfile::TempDir;

/// Far above what anything here needs, so only a hang reaches it.
const DEADLINE: Duration = Duration::from_secs(60);

/// A trial of a function that panics where something is wrong.
pub(crate) fn trial(name: impl Into<String>, test: impl FnOnce() + Send + 'static) -> Trial {
    Trial::test(name, move || {
        test();
        Ok(())
    })
}

/// The directory of the programs under test.
pub(crate) fn programs() -> PathBuf {
    std::env::var_os("ORCHESTRATE_BIN_DIR").map(PathBuf::from).unwrap_or_else(|| {
        let program = Path::new(env!("CARGO_BIN_EXE_orchestrate"));
        program.parent().expect("a program is in a directory").to_path_buf()
    })
}

/// Writes an object on one line. Its last member is the SHA-256 of all bytes before that member,
/// cut to a number of digits: the `seal` of a task has 64, the `sum` of a journal's event 8.
pub(crate) fn with_digest(object: &Value, key: &str, digits: usize) -> String {
    let text = object.to_string();
    let text = text.strip_suffix('}').expect("an object");
    let digest: String = Sha256::digest(text).iter().map(|byte| format!("{byte:02x}")).collect();
    format!("{text},\"{key}\":\"{}\"}}\n", &digest[..digits])
}

/// A workspace of its own, with a home that nobody lives in.
pub(crate) struct World {
    scratch: TempDir,
    root: PathBuf,
    started: AtomicUsize,
}

/// What the program left behind.
#[derive(Debug)]
pub(crate) struct Outcome {
    /// As a shell would report it.
    pub exit: i32,
    pub stdout: String,
    pub stderr: String,
}

impl World {
    pub(crate) fn new() -> World {
        let scratch = tempfile::tempdir().expect("a scratch directory");
        let root = scratch.path().canonicalize().expect("a real path");
        for directory in ["workspace", "home", "config"] {
            fs::create_dir(root.join(directory)).expect("a directory");
        }
        World { scratch, root, started: AtomicUsize::new(0) }
    }

    /// A workspace with one file, `w.yaml`.
    pub(crate) fn with(workflow: &str) -> World {
        let world = World::new();
        world.write("w.yaml", workflow);
        world
    }

    /// A path in the workspace.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.root.join("workspace").join(name)
    }

    /// A path beside the workspace.
    pub(crate) fn outside(&self, name: &str) -> PathBuf {
        self.scratch.path().join(name)
    }

    /// Writes a file, executable when it starts with `#!`.
    pub(crate) fn write(&self, name: &str, content: impl AsRef<[u8]>) {
        let (path, content) = (self.path(name), content.as_ref());
        fs::create_dir_all(path.parent().expect("a parent")).expect("a directory");
        fs::write(&path, content).unwrap_or_else(|error| panic!("writing `{name}`: {error}"));
        if content.starts_with(b"#!") {
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("a mode");
        }
    }

    /// What a file of the workspace holds; nothing where there is none.
    pub(crate) fn read(&self, name: &str) -> String {
        let bytes = fs::read(self.path(name)).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    pub(crate) fn lines(&self, name: &str) -> Vec<String> {
        self.read(name).lines().map(str::to_owned).collect()
    }

    pub(crate) fn exists(&self, name: &str) -> bool {
        self.path(name).symlink_metadata().is_ok()
    }

    /// The names in a directory, sorted.
    pub(crate) fn list(&self, name: &str) -> Vec<String> {
        let entries = self.path(name).read_dir().into_iter().flatten().flatten();
        let mut names: Vec<_> =
            entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
        names.sort();
        names
    }

    /// The state of the latest run.
    pub(crate) fn state(&self) -> Value {
        let text = self.read(".orchestrate/runs/latest/state.json");
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("state.json: {error}\n{text}"))
    }

    pub(crate) fn status(&self) -> String {
        self.state()["status"].as_str().unwrap_or_default().to_owned()
    }

    /// The id of the latest run.
    pub(crate) fn run_id(&self) -> String {
        let link = fs::read_link(self.path(".orchestrate/runs/latest")).expect("a latest run");
        link.to_string_lossy().into_owned()
    }

    /// The processes that carry the mark of one of this workspace's runs, or that of a task and
    /// work here.
    pub(crate) fn processes(&self) -> Vec<i32> {
        let runs = self.list(".orchestrate/runs");
        let mut found =
            processes(|mark| runs.iter().any(|run| mark.starts_with(&format!("{run}/"))));
        let works_here = |pid: &i32| {
            fs::read_link(format!("/proc/{pid}/cwd")).is_ok_and(|cwd| cwd.starts_with(&self.root))
        };
        found.extend(processes(|mark| mark.starts_with("task-")).iter().filter(|p| works_here(p)));
        found
    }

    /// Any program, in the workspace and with a clean environment.
    pub(crate) fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        for (name, _) in std::env::vars_os() {
            let name = name.to_string_lossy().into_owned();
            if name.starts_with("ORCHESTRATE_") || name == "NO_COLOR" {
                command.env_remove(name);
            }
        }
        let mut path = programs().into_os_string();
        path.push(":");
        path.push(std::env::var_os("PATH").unwrap_or_default());
        command
            .current_dir(self.path(""))
            .env("PATH", path)
            .env("HOME", self.root.join("home"))
            .env("XDG_CONFIG_HOME", self.root.join("config"))
            .env("LC_ALL", "C")
            .stdin(Stdio::null());
        command
    }

    /// The program under test with these arguments.
    pub(crate) fn orchestrate(&self, arguments: &[&str]) -> Command {
        let program = programs().join("orchestrate");
        let mut command = self.command(&program.to_string_lossy());
        command.args(arguments);
        command
    }

    /// Starts a command with its output going to files, in a process group of its own.
    pub(crate) fn spawn(&self, command: &mut Command) -> Started {
        let number = self.started.fetch_add(1, Ordering::SeqCst);
        let file = |name: &str| self.root.join(format!("{name}.{number}"));
        let (stdout, stderr) = (file("stdout"), file("stderr"));
        command
            .stdout(File::create(&stdout).expect("a file"))
            .stderr(File::create(&stderr).expect("a file"))
            .process_group(0);
        let child = command.spawn().expect("the program starts");
        Started { child, ended: None, stdout, stderr }
    }

    pub(crate) fn start(&self, arguments: &[&str]) -> Started {
        self.spawn(&mut self.orchestrate(arguments))
    }

    /// A worker of an agent, which serves its inbox.
    pub(crate) fn worker(&self, agent: &str, flags: &[&str]) -> Started {
        let started = self.start(&[&["worker", agent], flags].concat());
        until("it serves", || started.stderr().contains("serves inbox"));
        started
    }

    /// A coordinator, which drives runs.
    pub(crate) fn coordinator(&self) -> Started {
        let started = self.start(&["coordinator"]);
        until("it drives", || started.stderr().contains("drives the runs"));
        started
    }

    /// Hands a workflow over. Gives the id of its run.
    pub(crate) fn submit(&self, file: &str) -> String {
        self.run(&["submit", file, "--quiet"]).exits(0).stdout.trim().to_owned()
    }

    /// Runs the program to its end.
    pub(crate) fn run(&self, arguments: &[&str]) -> Outcome {
        self.start(arguments).wait()
    }
}

impl Drop for World {
    fn drop(&mut self) {
        for pid in self.processes() {
            let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
        }
    }
}

/// A program that was started. It is killed when dropped.
pub(crate) struct Started {
    child: Child,
    ended: Option<ExitStatus>,
    stdout: PathBuf,
    stderr: PathBuf,
}

impl Started {
    pub(crate) fn pid(&self) -> Pid {
        Pid::from_raw(self.child.id().cast_signed())
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill(self.pid(), signal).expect("it is there to be signalled");
    }

    pub(crate) fn is_running(&mut self) -> bool {
        if self.ended.is_none() {
            self.ended = self.child.try_wait().expect("a child can be waited for");
        }
        self.ended.is_none()
    }

    pub(crate) fn stdout(&self) -> String {
        text(&self.stdout)
    }

    pub(crate) fn stderr(&self) -> String {
        text(&self.stderr)
    }

    /// Waits for its end.
    pub(crate) fn wait(mut self) -> Outcome {
        let began = Instant::now();
        while self.is_running() {
            assert!(began.elapsed() < DEADLINE, "still running:\n{}", self.stderr());
            std::thread::sleep(Duration::from_millis(1));
        }
        let status = self.ended.expect("it has ended");
        let exit = status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or_default());
        Outcome { exit, stdout: text(&self.stdout), stderr: text(&self.stderr) }
    }

    /// Ends it as a power cut would, and nothing of what it started.
    pub(crate) fn kill(mut self) {
        let _ = self.child.kill();
        self.ended = self.child.wait().ok();
    }
}

impl Started {
    /// Ends it as [`Started::kill`] does, with the guard that would end what it has started.
    pub(crate) fn kill_unguarded(self) {
        self.signal(Signal::SIGSTOP);
        let threads = fs::read_dir(format!("/proc/{}/task", self.pid())).expect("its threads");
        for thread in threads.flatten() {
            let list = fs::read_to_string(thread.path().join("children")).unwrap_or_default();
            for child in list.split_whitespace() {
                if text(Path::new(&format!("/proc/{child}/cmdline"))).contains("end-children") {
                    let guard = Pid::from_raw(child.parse().expect("a pid"));
                    kill(guard, Signal::SIGKILL).expect("it is there to be signalled");
                }
            }
        }
        self.kill();
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        if self.ended.is_none() {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

impl Outcome {
    /// Insists on an exit code.
    #[track_caller]
    pub(crate) fn exits(self, code: i32) -> Outcome {
        assert_eq!(self.exit, code, "the exit code of:\n{}\n{}", self.stdout, self.stderr);
        self
    }

    /// Insists on what was said on standard error.
    #[track_caller]
    pub(crate) fn says(self, part: &str) -> Outcome {
        assert!(self.stderr.contains(part), "`{part}` is not said in:\n{}", self.stderr);
        self
    }
}

fn text(path: &Path) -> String {
    String::from_utf8_lossy(&fs::read(path).unwrap_or_default()).into_owned()
}

/// Waits until something is so.
#[track_caller]
pub(crate) fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < DEADLINE, "it never came to be: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// The living processes with a mark that is wanted; one may carry the marks of several.
pub(crate) fn processes(wanted: impl Fn(&str) -> bool) -> Vec<i32> {
    let entries = Path::new("/proc").read_dir().into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    pids.filter(|pid| {
        let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        let mut variables = environment.split(|byte| *byte == 0);
        variables.any(|variable| {
            let mark = variable.strip_prefix(b"ORCHESTRATE_MARK=");
            let mark = mark.map(|mark| String::from_utf8_lossy(mark).into_owned());
            mark.is_some_and(|mark| mark.split(';').any(&wanted)) && is_alive(*pid)
        })
    })
    .collect()
}

/// Whether a process is there and not merely waiting to be reaped.
pub(crate) fn is_alive(pid: i32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = stat.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next());
    state.is_some_and(|state| state != 'Z' && state != 'X')
}

/// Numbers that look random and follow from a seed.
pub(crate) struct Dice(u64);

impl Dice {
    pub(crate) fn new(seed: u64) -> Dice {
        Dice(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    /// A number below `end`.
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % end
    }
}

/// What to tell if the test fails: a seed, say.
pub(crate) struct Told(pub String);

impl Drop for Told {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{}", self.0);
        }
    }
}
