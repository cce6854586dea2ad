//! `top` in a real terminal: driven by keys in tmux, and its screen compared.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use libtest_mimic::Trial;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::shim;
use crate::world::{Started, World, trial, until};

/// A pane of a terminal multiplexer with a server of its own, which ends with it.
struct Pane<'a> {
    world: &'a World,
    socket: PathBuf,
}

impl<'a> Pane<'a> {
    /// Starts a shell line in a pane of this size.
    fn start(world: &'a World, size: (u16, u16), line: &str) -> Pane<'a> {
        let pane = Pane { world, socket: world.outside("tmux") };
        let (columns, rows) = (size.0.to_string(), size.1.to_string());
        let mut command = pane.tmux(&["-f", "/dev/null", "new-session", "-d"]);
        command.args(["-x", &columns, "-y", &rows, line]);
        assert!(command.status().expect("tmux starts").success(), "tmux has a pane");
        pane
    }

    fn tmux(&self, arguments: &[&str]) -> Command {
        let mut command = self.world.command("tmux");
        command.arg("-S").arg(&self.socket).arg("-u").args(arguments).stderr(Stdio::null());
        command.env_remove("TMUX").env("LC_ALL", "C.UTF-8").env("SHELL", "/bin/sh");
        command
    }

    fn keys(&self, keys: &[&str]) {
        let mut command = self.tmux(&["send-keys"]);
        assert!(command.args(keys).status().expect("tmux").success(), "keys {keys:?}");
    }

    fn screen(&self) -> String {
        let output = self.tmux(&["capture-pane", "-p"]).output().expect("tmux");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    fn shows(&self, text: &str) {
        let began = std::time::Instant::now();
        while !self.screen().contains(text) {
            assert!(began.elapsed().as_secs() < 60, "`{text}` is not on:\n{}", self.screen());
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
    }
}

impl Drop for Pane<'_> {
    fn drop(&mut self) {
        let _ = self.tmux(&["kill-server"]).status();
    }
}

/// A screen in which ids, times and the room between columns are always the same.
fn calm(screen: &str) -> String {
    let word = |word: &str| {
        let bytes = word.as_bytes();
        let is_run = word.len() == 23 && word[..8].bytes().all(|b| b.is_ascii_digit());
        let is_clock = word.len() == 9 && bytes[2] == b':' && bytes[5] == b':';
        let is_time = word.ends_with('s') && bytes[0].is_ascii_digit();
        match word {
            _ if is_run => "RUN".to_owned(),
            _ if is_clock || is_time => "TIME".to_owned(),
            // How much fits depends on how wide a time is.
            word if word.ends_with('…') => "…".to_owned(),
            word => word.to_owned(),
        }
    };
    let line = |line: &str| line.split_whitespace().map(word).collect::<Vec<_>>().join(" ");
    screen.lines().map(|one| line(one) + "\n").collect::<String>().trim_end().to_owned()
}

const GATE: &str = "name: release\ndescription: A release.\nnodes:\n\
    - { id: build, bash: 'echo built' }\n\
    - { id: deploy, depends_on: [build], approval: { message: 'Ship 1.2?' } }\n\
    - { id: tell, depends_on: [deploy], bash: 'echo shipped > shipped' }\n";
const FAILS: &str = "version: '1.1'\nsteps: [{ name: Test, command: ['false'] }]\n";

fn workspace() -> World {
    let world = World::with(FAILS);
    world.write("gate.yaml", GATE);
    world.run(&["run", "w.yaml"]).exits(1);
    world.run(&["run", "gate.yaml"]).exits(3);
    world
}

const TOP: &str = "orchestrate top; echo left $?; stty -a | tr ' ;' '\\n\\n' | grep icanon; cat";

/// The board in 80 columns and 24 rows, without colour; a gate is looked at and approved, and the
/// run goes on; the terminal is as it was.
fn looks_and_approves() {
    let world = workspace();
    let pane = Pane::start(&world, (80, 24), &format!("NO_COLOR=1; export NO_COLOR; {TOP}"));
    pane.shows("Ship 1.2?");
    let screen = pane.screen();
    assert!(screen.lines().all(|line| line.chars().count() <= 80), "{screen}");
    let wanted = format!(
        "orchestrate · workspace 1 asked 1 failed TIME\n\
         ASKS\n\
         RUN deploy TIME Ship 1.2?\n\n\
         RUNS\n\
         > RUN paused gate.yaml TIME waits for a person; …\n\
         RUN failed w.yaml TIME at `Test`{}\n\
         Enter open a approve x reject l log c cancel Tab next ? help q quit",
        "\n".repeat(16)
    );
    assert_eq!(calm(&screen), wanted, "{screen}");
    let coloured = pane.tmux(&["capture-pane", "-p", "-e"]).output().expect("tmux").stdout;
    let coloured = String::from_utf8_lossy(&coloured).into_owned();
    let tints = (30..38).chain(90..98).map(|tint| format!("\x1b[{tint}m"));
    assert!(!tints.into_iter().any(|tint| coloured.contains(&tint)), "{coloured:?}");
    pane.keys(&["BTab"]);
    pane.shows("x reject");
    pane.keys(&["Enter"]);
    pane.shows("asked for");
    pane.keys(&["a"]);
    pane.shows("approve `deploy` of run");
    pane.keys(&["fine", "Enter"]);
    pane.shows("completed");
    assert_eq!(world.read("shipped"), "shipped\n");
    assert_eq!(world.status(), "completed");
    pane.keys(&["q"]);
    pane.shows("left 0");
    pane.shows("\nicanon");
}

/// A reason is asked for; what is rejected ends.
fn rejects() {
    let world = workspace();
    let pane = Pane::start(&world, (100, 30), TOP);
    pane.shows("Ship 1.2?");
    pane.keys(&["x"]);
    pane.shows("reject `deploy` of run");
    pane.keys(&["Enter"]);
    pane.shows("say why");
    pane.keys(&["too early", "Enter"]);
    until("it is rejected", || world.status() != "paused" && world.status() != "running");
    assert!(world.read(".orchestrate/runs/latest/journal.jsonl").contains("too early"));
}

const PRINTS: &str = "version: '1.1'\nsteps:\n\
    - { name: Print, agent: engineer, command: [sh, -c, 'for n in $(seq 100); do \
    echo line $n; done; until [ -e more ]; do sleep 0.05; done; echo and more; \
    until [ -e go ]; do sleep 0.05; done'] }\n";

fn fleet() -> (World, Started, Started) {
    let world = World::with(PRINTS);
    let worker = world.start(&["worker", "engineer"]);
    let run = world.start(&["run", "--fleet", "w.yaml"]);
    (world, worker, run)
}

/// What a step prints is followed; then the run is cancelled, after a yes.
fn follows_and_cancels() {
    let (world, _worker, run) = fleet();
    let pane = Pane::start(&world, (80, 24), TOP);
    pane.shows("at `Print`");
    pane.keys(&["Enter"]);
    pane.shows("line 100");
    let tree = pane.screen();
    assert!(tree.contains("> Print  running  engineer"), "{tree}");
    pane.keys(&["Enter"]);
    pane.shows("following");
    pane.shows("line 100");
    world.write("more", "");
    pane.shows("and more");
    let screen = pane.screen();
    let lines: Vec<&str> = screen.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    assert_eq!(lines[1..4], ["following", "line 82", "line 83"], "{screen}");
    assert_eq!(lines[lines.len() - 2], "and more", "{screen}");
    pane.keys(&["Escape"]);
    pane.shows("Esc back");
    pane.keys(&["c"]);
    pane.shows("with everything it has started? y/n");
    pane.keys(&["n"]);
    pane.shows("nothing was done");
    pane.keys(&["c"]);
    pane.shows("y/n");
    pane.keys(&["y"]);
    pane.shows("is cancelled");
    run.wait().exits(4);
}

/// Put to sleep and woken, resized, ended by a signal: the screen is drawn anew, and given back.
fn sleeps_and_ends() {
    let world = workspace();
    let pane = Pane::start(&world, (80, 24), "PS1='$ ' bash --norc --noprofile -i");
    pane.shows("$");
    pane.keys(&["orchestrate top; echo left $?", "Enter"]);
    pane.shows("Ship 1.2?");
    pane.keys(&["C-z"]);
    pane.shows("Stopped");
    pane.keys(&["echo awake; fg; echo left $?", "Enter"]);
    pane.shows("Ship 1.2?");
    assert!(!pane.screen().contains("awake"), "{}", pane.screen());
    let resized = pane.tmux(&["resize-window", "-x", "120", "-y", "40"]).status();
    assert!(resized.expect("tmux").success());
    let wide = || pane.screen().lines().next().is_some_and(|title| title.chars().count() > 110);
    until("it is drawn for the new size", wide);
    let pid = until_pid(&world);
    kill(Pid::from_raw(pid), Signal::SIGTERM).expect("it is there");
    pane.shows("left 143");
    assert!(pane.screen().contains("awake"), "the screen before is back:\n{}", pane.screen());
}

const RETRIES: &str = "version: '1.1'\nsteps: [{ name: Try, command: [sh, -c, \
    'while [ -e slow ] && ! [ -e go ]; do sleep 0.05; done; test -e go'] }]\n";

/// A run that failed is taken up with a key, and goes on when `top` is left.
fn goes_on_with_a_run() {
    let world = World::with(RETRIES);
    world.run(&["run", "w.yaml"]).exits(1);
    let pane = Pane::start(&world, (80, 24), TOP);
    pane.shows("at `Try`");
    world.write("slow", "");
    pane.keys(&["r"]);
    pane.shows("goes on");
    until("it is tried again", || world.state()["steps"]["Try"]["attempt"] == 2);
    pane.keys(&["q"]);
    pane.shows("left 0");
    world.write("go", "");
    until("it ends without anybody who looks on", || world.status() == "completed");
}

const AGAIN: &str = "name: release\ndescription: A release.\nprovider: offline\nnodes:\n\
    - { id: deploy, approval: { message: 'Ship 1.2?', on_reject: { prompt: 'Do better.' } } }\n\
    - { id: tell, depends_on: [deploy], bash: 'echo shipped > shipped' }\n";

/// Somebody else is faster, and the same is asked again of other work: what was typed for the first
/// question does not answer the second.
fn answers_only_what_was_shown() {
    let world = World::with(AGAIN);
    world.run(&["run", "w.yaml"]).exits(3);
    let pane = Pane::start(&world, (100, 30), TOP);
    pane.shows("Ship 1.2?");
    pane.keys(&["r"]);
    pane.shows("waits for a person: approve or reject");
    pane.keys(&["a"]);
    pane.shows("approve `deploy`");
    world.run(&["reject", "latest", "--reason", "too early"]).exits(3);
    pane.keys(&["Enter"]);
    pane.shows("asks nobody anything");
    assert_eq!(world.status(), "paused");
    assert!(!world.exists("shipped"));
}

/// However small the terminal is, it is drawn on, and drawn anew when it grows.
fn fits_any_terminal() {
    let world = workspace();
    let pane = Pane::start(&world, (80, 24), TOP);
    pane.shows("Ship 1.2?");
    for (columns, rows) in [("40", "10"), ("20", "5"), ("4", "2"), ("1", "1"), ("80", "24")] {
        let resized = pane.tmux(&["resize-window", "-x", columns, "-y", rows]).status();
        assert!(resized.expect("tmux").success());
        pane.keys(&["Down", "?"]);
        pane.keys(&["Escape"]);
    }
    pane.shows("Ship 1.2?");
    let screen = pane.screen();
    assert!(screen.lines().all(|line| line.chars().count() <= 80), "{screen}");
    pane.keys(&["q"]);
    pane.shows("left 0");
    pane.shows("\nicanon");
}

/// A shell whose every byte on the terminal is kept in a file.
fn kept_shell(world: &World) -> (Pane<'_>, PathBuf) {
    let pane = Pane::start(world, (80, 24), "PS1='$ ' sh");
    pane.shows("$");
    let kept = world.outside("bytes");
    let into = format!("cat > '{}'", kept.display());
    assert!(pane.tmux(&["pipe-pane", &into]).status().expect("tmux").success());
    (pane, kept)
}

/// A panic while the dashboard is shown restores the terminal before its message is printed.
fn gives_the_terminal_back_after_a_panic() {
    let world = workspace();
    let (pane, kept) = kept_shell(&world);
    // Once the file exists, the clock fails, and the standard library panics.
    let fails = world.outside("clock-fails");
    let line = format!(
        "LD_PRELOAD='{}' FAULTY_CLOCK_FILE='{}' orchestrate top; echo left $?; stty -a | \
         tr ' ;' '\\n\\n' | grep icanon",
        shim::library().display(),
        fails.display(),
    );
    pane.keys(&[&line, "Enter"]);
    pane.shows("Ship 1.2?");
    std::fs::write(fails, "").expect("a file");
    pane.shows("left 134");
    pane.shows("\nicanon");
    let bytes = String::from_utf8_lossy(&std::fs::read(kept).expect("bytes")).into_owned();
    let taken = bytes.find("\x1b[?1049h").expect("the other screen is taken");
    let given = bytes.find("\x1b[?1049l").expect("and given back");
    let told = bytes.find("called `Result::unwrap()`").expect("the message is printed");
    assert!(taken < given && given < told, "{bytes:?}");
    assert!(!bytes[told..].contains("\x1b[?1049h"), "nobody draws over it: {bytes:?}");
}

/// The terminal is closed: it ends.
fn ends_with_its_terminal() {
    let world = workspace();
    let pane = Pane::start(&world, (80, 24), "orchestrate top");
    pane.shows("Ship 1.2?");
    let pid = until_pid(&world);
    drop(pane);
    until("it is gone", || !crate::world::is_alive(pid));
    world.run(&["pending"]).exits(0);
    assert_eq!(world.status(), "paused");
}

/// The process of `top` that works in this workspace.
fn until_pid(world: &World) -> i32 {
    let mut found = None;
    until("top runs", || {
        let entries = std::path::Path::new("/proc").read_dir().into_iter().flatten().flatten();
        let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
        found = pids.into_iter().find(|pid| {
            let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            let is_top = line.ends_with(b"orchestrate\0top\0");
            let cwd = std::fs::read_link(format!("/proc/{pid}/cwd"));
            is_top && cwd.is_ok_and(|cwd| cwd == world.path("").canonicalize().expect("a path"))
        });
        found.is_some()
    });
    found.expect("it was found")
}

pub(crate) fn trials() -> Vec<Trial> {
    let has = Command::new("tmux").arg("-V").stdout(Stdio::null()).status().is_ok();
    if !has {
        eprintln!("SKIPPED: `top` in a real terminal, which needs tmux");
        return Vec::new();
    }
    vec![
        trial("top/looks and approves", looks_and_approves),
        trial("top/rejects", rejects),
        trial("top/follows a log and cancels", follows_and_cancels),
        trial("top/sleeps, is resized and ends", sleeps_and_ends),
        trial("top/goes on with a run", goes_on_with_a_run),
        trial("top/answers only what was shown", answers_only_what_was_shown),
        trial("top/fits any terminal", fits_any_terminal),
        trial("top/gives the terminal back after a panic", gives_the_terminal_back_after_a_panic),
        trial("top/ends with its terminal", ends_with_its_terminal),
    ]
}
