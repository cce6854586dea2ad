//! On a terminal: the live view, colours and questions, seen through a real one.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};

use libtest_mimic::Trial;
use nix::fcntl::OFlag;
use nix::libc::{TIOCSWINSZ, ioctl};
use nix::pty::{Winsize, grantpt, posix_openpt, ptsname_r, unlockpt};
use nix::sys::signal::Signal::SIGINT;
use nix::sys::signal::kill;
use nix::unistd::Pid;

use crate::world::{World, trial, until};

const ESCAPE: char = '\x1b';

/// A program at a terminal, of 80 columns unless another width is said.
pub(crate) struct Session {
    child: std::process::Child,
    keyboard: File,
    seen: Arc<Mutex<Vec<u8>>>,
    reader: Option<std::thread::JoinHandle<()>>,
}

impl Session {
    /// Starts a command with all three streams on a new terminal.
    pub(crate) fn start(command: &mut Command) -> Session {
        Session::of_width(command, 80)
    }

    fn of_width(command: &mut Command, columns: u16) -> Session {
        // Not `openpty`: its descriptors would leak into what other threads start meanwhile, and
        // the terminal would not end with the program.
        let flags = OFlag::O_RDWR | OFlag::O_NOCTTY | OFlag::O_CLOEXEC;
        let master = posix_openpt(flags).expect("a terminal");
        grantpt(&master).and_then(|()| unlockpt(&master)).expect("a terminal");
        let name = ptsname_r(&master).expect("a name");
        let slave = File::options().read(true).write(true).open(name).expect("the other side");
        let size = Winsize { ws_row: 24, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
        // SAFETY: the call reads the struct it is given and keeps nothing.
        let sized = unsafe { ioctl(slave.as_raw_fd(), TIOCSWINSZ, &raw const size) };
        assert_eq!(sized, 0, "a terminal has a size");
        let side = || Stdio::from(slave.try_clone().expect("a descriptor"));
        command.stdin(side()).stdout(side()).stderr(side());
        if command.get_envs().all(|(name, _)| name != "TERM") {
            command.env("TERM", "xterm");
        }
        let child = command.spawn().expect("the program starts");
        // The command keeps its copies, and the terminal would never end.
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        drop(slave);
        let keyboard = File::from(OwnedFd::from(master));
        let mut screen = keyboard.try_clone().expect("a descriptor");
        let seen = Arc::new(Mutex::new(Vec::new()));
        let shared = seen.clone();
        let reader = std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            // A terminal whose other side is closed gives an error instead of an end.
            while let Ok(count @ 1..) = screen.read(&mut buffer) {
                shared.lock().expect("a reader").extend_from_slice(&buffer[..count]);
            }
        });
        Session { child, keyboard, seen, reader: Some(reader) }
    }

    fn seen(&self) -> String {
        String::from_utf8_lossy(&self.seen.lock().expect("a reader")).into_owned()
    }

    fn shows(&self, text: &str) {
        until(text, || self.seen().contains(text));
    }

    fn types(&mut self, text: &str) {
        self.keyboard.write_all(text.as_bytes()).expect("a keyboard");
    }

    /// Waits for the end, and gives the exit code and all that was written.
    pub(crate) fn end(mut self) -> (i32, String) {
        let mut status = None;
        until("it ends", || {
            status = self.child.try_wait().expect("a child can be waited for");
            status.is_some()
        });
        self.reader.take().expect("a reader").join().expect("a reader");
        (status.and_then(|status| status.code()).unwrap_or(-1), self.seen())
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What is left on a screen: of the escape codes, only those that move up and erase, and colours.
fn screen(written: &str) -> Vec<String> {
    let mut lines = vec![String::new()];
    let mut rest = written;
    while let Some(next) = rest.chars().next() {
        rest = &rest[next.len_utf8()..];
        match next {
            '\r' => {}
            '\n' => lines.push(String::new()),
            ESCAPE => {
                let end = rest.find(|c: char| c.is_ascii_alphabetic()).expect("a whole code");
                let (number, code) = (&rest[1..end], &rest[end..=end]);
                match code {
                    "A" => {
                        let up: usize = number.parse().expect("a number");
                        assert!(up < lines.len(), "it moves above its own lines");
                        // What is below is erased next; see `J`.
                        lines.truncate(lines.len() - up);
                        lines.last_mut().expect("a line").clear();
                    }
                    "J" | "K" | "m" => {}
                    other => panic!("an escape code that is not known here: {other}"),
                }
                rest = &rest[end + 1..];
            }
            other => lines.last_mut().expect("a line").push(other),
        }
    }
    lines
}

const HOLD: &str = "version: '1.1'\nsteps:\n\
    - { name: First, command: ['true'] }\n\
    - { name: Hold, command: [sh, -c, 'until [ -e go ]; do sleep 0.01; done'] }\n\
    - name: Each\n  for_each:\n    items: [alpha, beta]\n    steps:\n\
    \x20   - { name: Do, command: [sh, -c, 'until [ -e $0 ]; do sleep 0.01; done', '${item}'] }\n";

fn live() {
    let world = World::with(HOLD);
    let session = Session::start(&mut world.orchestrate(&["run", "w.yaml", "--progress"]));
    // The clock goes on by itself.
    until("two times are shown", || {
        let shown = (0..20).map(|second| format!("[2/3] Hold: Running ({second}s)..."));
        shown.filter(|line| session.seen().contains(line)).count() > 1
    });
    world.write("go", "");
    session.shows("[3/3] Each: Running (");
    session.shows("└─ for_each: [1/2] Processing alpha");
    world.write("alpha", "");
    session.shows("└─ for_each: [2/2] Processing beta");
    world.write("beta", "");
    let (exit, written) = session.end();
    assert_eq!(exit, 0, "{written}");
    let left = screen(&written).join("\n");
    for line in ["[1/3] First: completed", "[2/3] Hold: completed", "Each.1.Do: completed"] {
        assert!(left.contains(line), "{left}");
    }
    assert!(!left.contains("Running") && !left.contains("Processing"), "it erases itself:\n{left}");
    assert!(left.trim_end().lines().last().unwrap_or_default().contains("completed in"), "{left}");
}

/// A narrow terminal must not wrap the live lines: they could not be erased any more.
fn long_names() {
    let name = "N".repeat(120);
    let world = World::with(&format!(
        "version: '1.1'\nsteps:\n- name: {name}\n  \
         command: [sh, -c, 'until [ -e go ]; do sleep 0.01; done']\n"
    ));
    let session = Session::start(&mut world.orchestrate(&["run", "w.yaml", "--progress"]));
    session.shows("[1/1] NNN");
    session.shows("\n");
    let live = session.seen();
    world.write("go", "");
    for line in live.split(['\n', ESCAPE]).filter(|line| line.starts_with("[1/1]")) {
        assert!(line.trim_end().chars().count() < 80, "{line}");
    }
    let (exit, written) = session.end();
    let left = screen(&written).into_iter().filter(|line| line.starts_with("[1/1]"));
    assert_eq!((exit, left.count()), (0, 1), "it erases itself: {written}");
}

/// Stopped by Ctrl-C, the view is gone and what to do is said.
fn interrupted() {
    let world = World::with(HOLD);
    let session = Session::start(&mut world.orchestrate(&["run", "w.yaml", "--progress"]));
    session.shows("[2/3] Hold: Running (");
    kill(Pid::from_raw(session.child.id().cast_signed()), SIGINT).expect("it runs");
    let (exit, written) = session.end();
    assert_eq!(exit, 130);
    let left = screen(&written).join("\n");
    assert!(!left.contains("Running") && left.contains("orchestrate resume"), "{left}");
}

/// Without a terminal there are plain lines, each said once.
fn plain() {
    let world = World::with(HOLD);
    for name in ["go", "alpha", "beta"] {
        world.write(name, "");
    }
    let outcome = world.run(&["run", "w.yaml", "--progress"]).exits(0);
    assert!(!outcome.stderr.contains([ESCAPE, '\r']), "{}", outcome.stderr);
    for line in ["[2/3] Hold: completed", "  [1/1] Each.0.Do: completed"] {
        assert_eq!(outcome.stderr.matches(line).count(), 1, "{}", outcome.stderr);
    }
    assert_eq!(outcome.stdout, "", "talk goes to standard error");
}

fn colours() {
    let world = World::with("version: '1.1'\nsteps: [{ name: A, command: ['true'] }]\n");
    let green = "\x1b[32mcompleted\x1b[0m";
    let with = |arguments: &[&str], (name, value): (&str, &str)| {
        let mut command = world.orchestrate(&[&["run", "w.yaml"], arguments].concat());
        let (exit, written) = Session::start(command.env(name, value)).end();
        assert_eq!(exit, 0, "{written}");
        written
    };
    let at_terminal = |arguments: &[&str], no_color: &str| with(arguments, ("NO_COLOR", no_color));
    assert!(!with(&["--progress"], ("TERM", "dumb")).contains(ESCAPE), "it knows no codes");
    assert!(with(&["--color", "always"], ("TERM", "dumb")).contains(green));
    assert!(with(&[], ("LC_ALL", "C")).contains(green));
    assert!(at_terminal(&[], "").contains(green), "an empty NO_COLOR says nothing");
    assert!(!at_terminal(&[], "1").contains(ESCAPE));
    assert!(!at_terminal(&["--color", "never"], "").contains(ESCAPE));
    assert!(at_terminal(&["--color", "always"], "1").contains(green), "a flag wins");
    assert!(world.run(&["run", "w.yaml", "--color", "always"]).stderr.contains(green));
    assert!(!world.run(&["run", "w.yaml"]).stderr.contains(ESCAPE), "no terminal, no colour");
}

/// What a child prints cannot play with the terminal.
fn escapes_of_children() {
    let world = World::with(
        "version: '1.1'\nsteps:\n\
         - name: A\n  \
           command: [sh, -c, 'printf \"\\\\033[2J\\\\033]0;title\\\\007\" >&2; exit 1']\n",
    );
    let (exit, written) = Session::start(&mut world.orchestrate(&["run", "w.yaml"])).end();
    assert_eq!(exit, 1);
    assert!(!written.contains("\x1b[2J") && !written.contains('\x07'), "{written:?}");
}

const FAILS: &str = "version: '1.1'\nsteps:\n\
    - { name: Try, command: [sh, -c, 'echo x >> tries; [ -e go ]'] }\n\
    - { name: Then, command: [sh, -c, 'echo then >> tries'] }\n";
const QUESTION: &str = "[r]etry, [c]ontinue or [s]top? ";

fn asking() -> (World, Session) {
    let world = World::with(FAILS);
    let arguments = ["run", "w.yaml", "--on-error", "interactive"];
    let session = Session::start(&mut world.orchestrate(&arguments));
    session.shows(QUESTION);
    (world, session)
}

fn retry() {
    let (world, mut session) = asking();
    session.types("r\n");
    until("it asks again", || session.seen().matches(QUESTION).count() == 2);
    session.types("what?\n");
    session.shows("none of the answers");
    until("and again", || session.seen().matches(QUESTION).count() == 3);
    world.write("go", "");
    session.types("retry\n");
    assert_eq!(session.end().0, 0);
    assert_eq!(world.lines("tries"), ["x", "x", "x", "then"]);
    assert_eq!(world.status(), "completed");
}

fn goes_on() {
    let (world, mut session) = asking();
    session.types("continue\n");
    let (exit, written) = session.end();
    assert_eq!(exit, 1, "as with `--on-error continue`: {written}");
    assert_eq!(world.lines("tries"), ["x", "then"]);
    assert_eq!(world.state()["failed_steps"], serde_json::json!(["Try"]));
}

fn stop() {
    let (world, mut session) = asking();
    session.types("s\n");
    assert_eq!(session.end().0, 1);
    assert_eq!(world.status(), "failed");
    world.write("go", "");
    world.run(&["resume", "latest"]).exits(0);
    assert_eq!(world.lines("tries"), ["x", "x", "then"]);
}

/// Ctrl-D, and nobody there at all, are answers too.
fn end_of_input() {
    let (world, mut session) = asking();
    session.types("\x04");
    assert_eq!(session.end().0, 1);
    assert_eq!(world.status(), "failed");
    let world = World::with(FAILS);
    world.run(&["run", "w.yaml", "--on-error", "interactive"]).exits(1);
    assert_eq!(world.lines("tries"), ["x"]);
}

/// A signal while a question is open leaves it open; `resume` asks or tries again.
fn signal_in_a_question() {
    let (world, session) = asking();
    kill(Pid::from_raw(session.child.id().cast_signed()), SIGINT).expect("it runs");
    assert_eq!(session.end().0, 130);
    assert_eq!(world.status(), "running");
    let mut session = Session::start(&mut world.orchestrate(&["resume", "latest"]));
    session.shows(QUESTION);
    session.types("c\n");
    assert_eq!(session.end().0, 1);
    assert_eq!(world.lines("tries").last().map(String::as_str), Some("then"));
}

/// A worker shows what it is doing: the task, for how long, and the last line of its output.
fn a_worker() {
    let world = World::with(
        "version: '1.1'\nsteps:\n\
         - { name: Build, agent: engineer, command: [sh, -c, 'echo compiling; printf half; \
         until [ -e go ]; do sleep 0.01; done; printf \"\\e[31m done\"'] }\n",
    );
    let session = Session::start(&mut world.orchestrate(&["worker", "engineer", "--once"]));
    session.shows("serves inbox/engineer");
    let run = world.start(&["run", "--fleet", "w.yaml"]);
    until("two times are shown", || {
        let seen = session.seen();
        let shown = (0..60).map(|tenth| format!("Build 0.{tenth}s  half"));
        shown.filter(|line| seen.contains(line)).count() > 1
    });
    world.write("go", "");
    let (exit, written) = session.end();
    assert_eq!(exit, 0, "{written}");
    let left = screen(&written).join("\n");
    assert!(left.contains("`Build` of") && left.contains(": done ("), "{left}");
    assert!(!left.contains("half"), "what was shown meanwhile is gone: {left}");
    run.wait().exits(0);
}

/// Speaks in a long line and in wide letters, calls a tool that fails, and answers when it may.
const TALKER: &str = r#"cat > /dev/null
say() { printf '{"type":"%s","message":{"content":[%s]}}\n' "$1" "$2"; }
printf '{"type":"system","subtype":"init","session_id":"%s"}\n' "$2"
say assistant '{"type":"text","text":"I look at the files first, because what is there '\
'decides what is to be done.\n\n\tindented"}'
say assistant '{"type":"tool_use","name":"Bash","input":{"command":"make check"}}'
say user '{"type":"tool_result","is_error":true,"content":"Exit code 1\nno rule"}'
say assistant '{"type":"text","text":"漢字漢字漢字漢字漢字漢字漢字漢字漢字漢字漢字漢字漢字漢字漢字漢字漢字漢字漢字漢字"}'
until [ -e go ]; do sleep 0.01; done
printf '{"type":"result","is_error":false,"num_turns":1,"session_id":"%s","result":"done"}\n' "$2"
"#;

/// Is denied a tool, says what would play with a terminal, and ends as it is told.
const DENIED: &str = r#"cat > /dev/null
printf '%s\n' '{"type":"assistant","message":{"content":[{"type":"text","text":"a\u202eb"}]}}'
until [ -e go ]; do sleep 0.01; done
if [ -e bad ]; then
  printf '%s\n' '{"type":"result","is_error":true,"num_turns":1,
"result":"no\u001b[2J \u202e\nmore"}' | tr -d '\n'
  exit 1
fi
printf '%s\n' '{"type":"result","is_error":false,"num_turns":1,"result":"done",
"permission_denials":[{"tool_name":"Write","tool_input":{"file_path":"a"}}]}' | tr -d '\n'
"#;

fn denied(steps: &str) -> World {
    let world = World::with(steps);
    world.write("agent.sh", DENIED);
    world.write("p.txt", "do it\n");
    world.write(
        ".orchestrate/config.yaml",
        "default_provider: robot\nproviders:\n  robot:\n    { adapter: claude, input_mode: stdin, \
         command: [sh, agent.sh] }\n",
    );
    world
}

/// A warning stays where it was said, also while something is drawn below it.
fn warnings_stay() {
    const WARNING: &str = "was not allowed to use: Write: a";
    let world = denied(
        "version: '1.1'\nsteps:\n\
         - { name: Ask, provider: robot, input_file: p.txt }\n\
         - { name: Hold, command: [sh, -c, 'until [ -e then ]; do sleep 0.01; done'] }\n",
    );
    let session = Session::start(&mut world.orchestrate(&["run", "w.yaml", "--progress"]));
    session.shows("[1/2] Ask: Running (");
    world.write("go", "");
    session.shows("[2/2] Hold: Running (1s)");
    world.write("then", "");
    let (exit, written) = session.end();
    let left = screen(&written).join("\n");
    assert!(exit == 0 && left.contains(WARNING) && !left.contains("Running"), "{left}");

    let world = denied("");
    world.write("inbox/engineer/first.task", "do it\n");
    let session = Session::start(&mut world.orchestrate(&["worker", "engineer", "--drain"]));
    session.shows("\n  first ");
    world.write("go", "");
    let (exit, written) = session.end();
    let left = screen(&written).join("\n");
    assert!(exit == 0 && left.contains(": done (") && left.contains(WARNING), "{left}");
}

/// What a provider says of its failure does not play with the terminal of a worker.
fn escapes_of_providers() {
    let world = denied("");
    for name in ["go", "bad"] {
        world.write(name, "");
    }
    world.write("inbox/engineer/first.task", "do it\n");
    let (_, written) =
        Session::start(&mut world.orchestrate(&["worker", "engineer", "--drain"])).end();
    assert!(written.contains("no \u{fffd}"), "{written}");
    assert!(written.contains("a\u{fffd}b"), "{written}");
    assert!(!written.contains('\u{202e}') && !written.contains("\x1b[2J"), "{written}");
}

/// What agents say stands on a worker's terminal in lines that fit it, each task's by itself, and
/// what is drawn below is gone in the end.
fn turns_of_agents() {
    for (columns, wide) in [(100, true), (44, false)] {
        let world = World::new();
        world.write("agent.sh", TALKER);
        world.write(
            ".orchestrate/config.yaml",
            "default_provider: robot\nproviders:\n  robot:\n    adapter: claude\n    \
             input_mode: stdin\n    \
             command: [sh, agent.sh, [new, '${session}'], [on, '${resume}']]\n",
        );
        for title in ["first", "second"] {
            world.write(&format!("inbox/engineer/{title}.task"), "do it\n");
        }
        let mut command =
            world.orchestrate(&["worker", "engineer", "--drain", "--concurrency", "2"]);
        let session = Session::of_width(&mut command, columns);
        until("both have said everything", || session.seen().matches("漢字\r\n").count() > 1);
        until("both are drawn", || {
            let (seen, name) = (session.seen(), |name: &str| format!("\n  {name} "));
            seen.contains(&name("first")) && seen.contains(&name("second"))
        });
        world.write("go", "");
        let (exit, written) = session.end();
        assert_eq!(exit, 0, "{written}");
        let left = screen(&written);
        for line in &left {
            let taken: usize = line.chars().map(|c| if c.is_ascii() { 1 } else { 2 }).sum();
            // What the worker tells of itself is not broken: nobody could copy its names.
            let own = line.contains("(task ") || line.contains(" serves ");
            assert!(taken < columns.into() || own, "{line}");
        }
        let all = left.join("\n");
        for name in ["first", "second"] {
            assert!(!left.iter().any(|line| line.starts_with(&format!("  {name} "))), "{all}");
            let (head, text) = match wide {
                true => {
                    (format!("engineer   {name} | I look at the files first"), "| -> Bash: make")
                }
                false => {
                    (format!("engineer   {name}\n    I look at the files"), "    -> Bash: make")
                }
            };
            assert!(all.contains(&head), "{head}\n{all}");
            assert_eq!(all.matches(text).count(), 2, "{all}");
        }
        let after = if wide { "|     indented" } else { "\n        indented" };
        assert!(all.contains(after) && all.contains("no rule"), "{all}");
    }
}

/// A terminal that answers no question, as those of recorders: the board is drawn all the same.
fn silent() {
    let world = World::with("version: '1.1'\nsteps: [{ name: A, command: ['true'] }]\n");
    world.run(&["run", "w.yaml"]).exits(0);
    let mut session = Session::start(&mut world.orchestrate(&["top"]));
    session.shows("w.yaml");
    // Ctrl-L draws everything anew.
    session.types("\x0c");
    until("it is drawn again", || session.seen().matches("w.yaml").count() > 1);
    session.types("q");
    let (exit, written) = session.end();
    assert_eq!(exit, 0, "{written:?}");
    assert!(!written.contains("\x1b[6n"), "nothing is asked: {written:?}");
}

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("terminal/a worker", a_worker),
        trial("terminal/what a worker's agents say", turns_of_agents),
        trial("terminal/warnings stay", warnings_stay),
        trial("terminal/escape codes of providers", escapes_of_providers),
        trial("terminal/the live view", live),
        trial("terminal/the live view of long names", long_names),
        trial("terminal/the live view, interrupted", interrupted),
        trial("terminal/no terminal, plain lines", plain),
        trial("terminal/colours", colours),
        trial("terminal/one that answers nothing", silent),
        trial("terminal/escape codes of children", escapes_of_children),
        trial("terminal/the answer retry", retry),
        trial("terminal/the answer continue", goes_on),
        trial("terminal/the answer stop", stop),
        trial("terminal/no answer", end_of_input),
        trial("terminal/a signal in a question", signal_in_a_question),
    ]
}
