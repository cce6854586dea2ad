//! Real children: how they start, end and are ended. No test sleeps; each waits for what it
//! expects.

use std::cell::Cell;
use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use super::process::{self, Pid, stat};
use super::whole::WHOLE_BYTES;
use super::*;

/// A child to be, with settings that suit most tests.
struct Trial {
    argv: Vec<String>,
    env: Vec<(String, OsString)>,
    env_remove: Vec<&'static str>,
    stdin: Option<Vec<u8>>,
    timeout: Option<Duration>,
    idle: Option<Duration>,
    grace: Duration,
    mark: String,
    sweep: Sweep,
    dir: tempfile::TempDir,
    stop: Stop,
}

struct Outcome {
    ended: Ended,
    out: Captured,
    err: Captured,
}

fn trial(argv: &[&str]) -> Trial {
    static COUNT: AtomicUsize = AtomicUsize::new(0);
    become_subreaper().unwrap();
    let count = COUNT.fetch_add(1, Ordering::SeqCst);
    Trial {
        argv: argv.iter().map(|s| s.to_string()).collect(),
        env: Vec::new(),
        env_remove: Vec::new(),
        stdin: None,
        timeout: Some(Duration::from_secs(60)),
        idle: None,
        grace: Duration::from_secs(60),
        mark: format!("test-{}-{count}.", std::process::id()),
        sweep: Sweep::Always,
        dir: tempfile::tempdir().unwrap(),
        stop: Stop::new().unwrap(),
    }
}

fn sh(script: &str) -> Trial {
    trial(&["sh", "-c", script])
}

impl Trial {
    fn order(&self) -> Order<'_> {
        Order {
            argv: &self.argv,
            cwd: self.dir.path(),
            env: &self.env,
            env_remove: &self.env_remove,
            stdin: self.stdin.as_deref(),
            timeout: self.timeout,
            idle: None,
            grace: self.grace,
            mark: &self.mark,
            sweep: self.sweep,
            confine: &[],
        }
    }

    fn try_run(&self) -> Result<Outcome, StartError> {
        let mut out = Capture::new(Mode::Text, Mask::default());
        let mut err = Capture::new(Mode::Tail, Mask::default());
        let idle = Cell::new(self.idle);
        let order = Order { idle: Some(&idle), ..self.order() };
        let ended = run(&order, &mut out, &mut err, &self.stop)?;
        Ok(Outcome { ended, out: out.finish().unwrap(), err: err.finish().unwrap() })
    }

    fn run(&self) -> Outcome {
        self.try_run().unwrap()
    }

    fn how(&self) -> How {
        self.run().ended.how
    }

    /// Runs it in another thread, and `then` here once the file `ready` is there.
    fn run_and(&self, then: impl FnOnce()) -> Outcome {
        thread::scope(|scope| {
            let running = scope.spawn(|| self.run());
            until("the child is ready", || self.dir.path().join("ready").exists());
            then();
            running.join().unwrap()
        })
    }

    /// The pid that the child wrote into this file.
    fn pid(&self, file: &str) -> Pid {
        fs::read_to_string(self.dir.path().join(file)).unwrap().trim().parse().unwrap()
    }
}

fn until(what: &str, condition: impl Fn() -> bool) {
    let end = Instant::now() + Duration::from_secs(30);
    while !condition() {
        assert!(Instant::now() < end, "waited in vain until {what}");
        thread::yield_now();
    }
}

/// Neither running nor a zombie.
fn is_gone(pid: Pid) -> bool {
    stat(pid).is_none()
}

fn is_running(pid: Pid) -> bool {
    stat(pid).is_some_and(|stat| !stat.ended)
}

fn script(dir: &Path, text: &str, mode: u32) -> PathBuf {
    let file = dir.join("script");
    fs::write(&file, text).unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(mode)).unwrap();
    file
}

#[test]
fn exit_codes_and_signals_are_told() {
    assert_eq!(trial(&["true"]).how(), How::Exited(0));
    assert_eq!(sh("exit 7").how(), How::Exited(7));
    assert_eq!(sh("exit 143").how(), How::Exited(143));
    let killed = sh("kill -9 $$").how();
    assert_eq!((killed, killed.exit_code()), (How::Killed(9), 137));
    assert_eq!((How::TimedOut.exit_code(), How::Stopped.exit_code()), (124, 143));
}

#[test]
fn output_goes_where_it_belongs() {
    let outcome = sh("echo out; echo err >&2; pwd").run();
    assert!(outcome.out.text().starts_with("out\n/"));
    assert_eq!(outcome.err.tail, ["err"]);
    assert_eq!(outcome.ended.survivors, 0);
    assert!(!outcome.ended.cut_off);
}

#[test]
fn bytes_pass_untouched() {
    let outcome = sh(r"printf '\377\376\000x'").run();
    assert_eq!(outcome.out.head, b"\xff\xfe\0x");
}

#[test]
fn the_environment_is_laid_over_and_the_later_wins() {
    let mut child = sh("echo $A$B$HOME; echo $ORCHESTRATE_MARK");
    let pair = |name: &str, value: &str| (name.to_owned(), OsString::from(value));
    child.env = vec![pair("A", "1"), pair("B", "2"), pair("A", "3")];
    child.env_remove = vec!["HOME"];
    let text = child.run().out.text();
    assert!(text.starts_with(&format!("32\n{}", child.mark)), "{text}");
}

#[test]
fn a_program_that_is_still_open_for_writing_is_waited_for() {
    let child = trial(&["./script"]);
    let file = script(child.dir.path(), "#!/bin/sh\necho whole\n", 0o755);
    let writer = fs::OpenOptions::new().append(true).open(&file).unwrap();
    let error = child.try_run().err().unwrap();
    assert_eq!(error.to_string(), "`./script` cannot be executed: it is being written");
    let ends = thread::spawn(move || drop(writer));
    assert_eq!(child.run().out.text(), "whole\n");
    ends.join().unwrap();
}

#[test]
fn a_program_is_looked_up_in_the_path_of_the_child() {
    let mut child = trial(&["script"]);
    let file = script(child.dir.path(), "#!/bin/sh\necho found $0\n", 0o755);
    child.env = vec![("PATH".into(), child.dir.path().into())];
    assert_eq!(child.run().out.text(), format!("found {}\n", file.display()));
    child.env = vec![("PATH".into(), "/nowhere:.".into())];
    assert!(child.run().out.text().starts_with("found"));
    fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).unwrap();
    let error = child.try_run().err().unwrap();
    assert!(matches!(error, StartError::NotExecutable { .. }), "{error}");
    child.env = vec![("PATH".into(), "/nowhere".into())];
    assert_eq!(child.try_run().err().unwrap().to_string(), "`script` was not found in PATH");
    let mut child = trial(&["sh", "-c", "echo $0 ${PATH-none}"]);
    child.env_remove = vec!["PATH"];
    assert!(child.run().out.text().starts_with("sh "));
}

#[test]
fn what_cannot_be_started_is_told_apart() {
    let check = |child: Trial, code: i32, message: &str| {
        let error = child.try_run().err().expect(message);
        assert_eq!((error.exit_code(), error.to_string().as_str()), (code, message));
    };
    check(trial(&[]), 2, "there is no program to run: the command is empty");
    check(trial(&["no-such-program"]), 127, "`no-such-program` was not found in PATH");
    check(trial(&["./no-such"]), 127, "`./no-such` was not found");
    check(trial(&["/"]), 126, "`/` cannot be executed: it is a folder");
    check(trial(&["a\0b"]), 2, "argument 0 has a NUL byte, which the system cannot pass on");

    let child = trial(&["./script"]);
    script(child.dir.path(), "x", 0o644);
    check(child, 126, "`./script` cannot be executed: it has no permission for that");
    let child = trial(&["./script"]);
    script(child.dir.path(), "x", 0o755);
    let reason = "it is neither a program nor a script with `#!`";
    check(child, 126, &format!("`./script` cannot be executed: {reason}"));
    let child = trial(&["./script"]);
    script(child.dir.path(), "#!/no/such/shell\n", 0o755);
    let message = "`./script` is a script for `/no/such/shell`, which was not found";
    check(child, 127, message);
}

#[test]
fn a_folder_that_is_not_there_is_named() {
    let child = trial(&["true"]);
    let cwd = child.dir.path().join("gone");
    let order = Order { cwd: &cwd, ..child.order() };
    let mut captures = [0, 1].map(|_| Capture::new(Mode::Text, Mask::default()));
    let [out, err] = &mut captures;
    let error = run(&order, out, err, &child.stop).unwrap_err();
    assert!(matches!(error, StartError::BadCwd { .. }) && error.exit_code() == 2);
}

#[test]
fn what_is_too_long_is_told_before_anything_starts() {
    let long = "x".repeat(131_072);
    match trial(&["true", "a", &long]).try_run() {
        Err(StartError::TooLong { argument: 2, bytes: 131_072, limit: 131_071 }) => {}
        other => panic!("{:?}", other.err()),
    }
    assert_eq!(trial(&["true", &long[1..]]).how(), How::Exited(0));
    let many: Vec<&str> = std::iter::once("true").chain([&long[1..]; 100]).collect();
    let together = trial(&many).try_run().err().unwrap();
    assert!(matches!(together, StartError::TooLongTogether { .. }), "{together}");
    let mut child = trial(&["true"]);
    child.env = vec![("NAME".into(), long.into())];
    let variable = child.try_run().err().unwrap();
    assert!(matches!(variable, StartError::TooLongVariable { .. }), "{variable}");
}

#[test]
fn input_reaches_the_child_whole() {
    let mut child = trial(&["cat"]);
    child.stdin = Some((0..1 << 20).map(|n| (n % 251) as u8).collect());
    let mut out = Capture::new(Mode::Json, Mask::default());
    let mut err = Capture::new(Mode::Tail, Mask::default());
    run(&child.order(), &mut out, &mut err, &child.stop).unwrap();
    assert!(out.finish().unwrap().head == child.stdin.unwrap());
}

#[test]
fn a_child_that_does_not_read_its_input_is_well() {
    let mut child = trial(&["true"]);
    child.stdin = Some(vec![b'x'; 1 << 20]);
    assert_eq!(child.how(), How::Exited(0));
    let mut child = sh("exec <&-; echo closed");
    child.stdin = Some(vec![b'x'; 1 << 20]);
    assert_eq!(child.run().out.text(), "closed\n");
    assert_eq!(trial(&["cat"]).how(), How::Exited(0), "no input is an empty one");
}

#[test]
fn a_broken_pipe_ends_a_writer_in_the_child() {
    let outcome = sh("yes | head -1").run();
    assert_eq!((outcome.ended.how, outcome.out.text().as_str()), (How::Exited(0), "y\n"));
    assert_eq!(outcome.err.total_bytes, 0);
}

#[test]
fn much_output_does_not_stay_in_memory() {
    let outcome = sh("head -c 67108864 /dev/zero; head -c 8000000 /dev/zero >&2").run();
    assert_eq!((outcome.out.total_bytes, outcome.err.total_bytes), (64 << 20, 8_000_000));
    assert_eq!((outcome.out.head.len(), outcome.out.head.capacity()), (8192, 8192));
    assert!(outcome.out.truncated);
}

#[test]
fn a_whole_text_of_many_bytes_does_not_stay_in_memory_either() {
    let child = sh("head -c 67108864 /dev/zero");
    let file = child.dir.path().join("outputs/text");
    let mut out = Capture::new(Mode::Whole, Mask::default()).whole(file.clone());
    let mut err = Capture::new(Mode::Tail, Mask::default());
    run(&child.order(), &mut out, &mut err, &child.stop).unwrap();
    let whole = out.finish().unwrap().whole;
    assert_eq!((whole.head.len(), whole.head.capacity()), (WHOLE_BYTES, WHOLE_BYTES));
    assert_eq!(whole.file.unwrap().bytes, 64 << 20);
    assert_eq!(fs::metadata(&file).unwrap().len(), 64 << 20);
}

#[test]
fn a_child_past_its_time_is_asked_to_end() {
    let mut child = sh("trap 'echo asked; exit 0' TERM; echo begun; while :; do sleep 0.01; done");
    child.timeout = Some(Duration::from_millis(50));
    let outcome = child.run();
    assert_eq!(outcome.ended.how, How::TimedOut);
    assert!(outcome.out.text().ends_with("asked\n"), "{}", outcome.out.text());
}

#[test]
fn a_child_that_ignores_the_request_is_killed() {
    let mut child = sh("trap '' TERM; echo $$ > pid; while :; do sleep 1; done");
    child.timeout = Some(Duration::from_millis(100));
    child.grace = Duration::from_millis(100);
    let began = Instant::now();
    assert_eq!(child.how(), How::TimedOut);
    assert!(began.elapsed() < Duration::from_secs(20));
    assert!(is_gone(child.pid("pid")));
}

#[test]
fn a_child_that_prints_nothing_is_ended_with_all_it_started() {
    // It prints until all are there.
    let chatter = "while [ ! -e ready ]; do echo begun; sleep 0.01; done &";
    let mut child = sh(&format!("echo $$ > own; {chatter} {DAEMON}; wait; sleep 60"));
    (child.sweep, child.idle) = (Sweep::OnStop, Some(Duration::from_millis(500)));
    child.grace = Duration::from_millis(50);
    let outcome = child.run();
    assert_eq!((outcome.ended.how, outcome.ended.how.exit_code()), (How::Silent, 124));
    assert!(outcome.out.text().starts_with("begun\n"), "what it said is kept");
    assert!(is_gone(child.pid("own")) && is_gone(child.pid("pid")));
}

#[test]
fn a_child_that_prints_on_either_stream_is_not_silent() {
    // It goes on for several times as long as it may be silent.
    let mut child = sh("for n in 1 2 3 4 5; do sleep 0.2; echo $n >&2; sleep 0.2; echo $n; done");
    child.idle = Some(Duration::from_millis(1500));
    assert_eq!(child.how(), How::Exited(0));
    let mut child = sh("while :; do echo; sleep 0.01; done");
    (child.idle, child.timeout) = (Some(Duration::from_secs(30)), Some(Duration::from_millis(50)));
    assert_eq!(child.how(), How::TimedOut, "which is another thing");
}

#[test]
fn a_stopped_child_is_woken_to_end() {
    let child = sh("echo > ready; kill -STOP $$");
    let outcome = child.run_and(|| child.stop.request(1));
    assert_eq!(outcome.ended.how, How::Stopped);
}

#[test]
fn the_second_level_of_a_stop_cuts_the_grace_short() {
    let child =
        sh("trap 'echo > asked' TERM; echo $$ > pid; echo > ready; while :; do sleep 0.01; done");
    let outcome = child.run_and(|| {
        child.stop.request(1);
        until("it was asked", || child.dir.path().join("asked").exists());
        child.stop.request(2);
    });
    assert_eq!(outcome.ended.how, How::Stopped);
    assert!(is_gone(child.pid("pid")));
    assert_eq!(child.how(), How::Stopped, "and nothing more is started");
}

#[test]
fn a_stop_at_once_kills_all() {
    let child =
        sh("trap '' TERM; setsid sh -c 'trap \"\" TERM; echo $$ > pid; echo > ready; sleep 60'");
    let outcome = child.run_and(|| child.stop.request(2));
    assert_eq!(outcome.ended.how, How::Stopped);
    assert!(is_gone(child.pid("pid")));
}

/// A process in a session of its own that nobody waits for, as the tools of agents make them.
const DAEMON: &str = "(setsid sh -c 'trap \"\" TERM HUP; echo $$ > pid; echo > ready; \
    while :; do sleep 1; done' &) ; while [ ! -e ready ]; do sleep 0.01; done";

#[test]
fn a_survivor_in_another_session_is_ended_after_a_normal_end() {
    let child = sh(DAEMON);
    let outcome = child.run();
    assert_eq!(outcome.ended.how, How::Exited(0));
    assert!(outcome.ended.survivors >= 1);
    assert!(is_gone(child.pid("pid")));
    assert!(!outcome.ended.cut_off);
}

#[test]
fn a_survivor_in_another_session_is_ended_after_a_timeout() {
    let mut child = sh(&format!("{DAEMON}; sleep 60"));
    child.sweep = Sweep::OnStop;
    child.grace = Duration::from_millis(50);
    let outcome = child.run_and(|| child.stop.request(1));
    assert!(outcome.ended.survivors >= 1);
    assert!(is_gone(child.pid("pid")));
}

#[test]
fn a_survivor_has_the_same_grace_as_the_child() {
    let mut child = sh("(setsid sh -c 'trap \"echo tidied; exit\" TERM; echo > ready
           while :; do sleep 0.05; done' &)
         sleep 60");
    child.sweep = Sweep::OnStop;
    let outcome = child.run_and(|| child.stop.request(1));
    assert_eq!(outcome.out.text(), "tidied\n");
}

#[test]
fn a_plain_command_may_leave_a_process_which_a_sweep_ends() {
    let mut child = sh(DAEMON);
    child.sweep = Sweep::OnStop;
    let outcome = child.run();
    assert_eq!(outcome.ended.how, How::Exited(0));
    assert!(outcome.ended.cut_off, "it holds the output open");
    assert!(outcome.ended.survivors >= 1);
    let pid = child.pid("pid");
    assert!(is_running(pid));
    assert!(sweep(&child.mark[..child.mark.len() - 1]) >= 1);
    assert!(!is_running(pid));
    until("it is reaped", || {
        trial(&["true"]).run();
        is_gone(pid)
    });
    assert_eq!(sweep(&child.mark), 0);
    assert_eq!(sweep(""), 0);
}

#[test]
fn a_sweep_also_ends_what_is_not_our_own() {
    // Its mark is one that nobody here started: as after the death of another orchestrator.
    let mut child =
        sh("env ORCHESTRATE_MARK=lost-$$ setsid sh -c 'echo $$ > pid; echo > ready; sleep 60' &
         echo lost-$$; while [ ! -e ready ]; do sleep 0.01; done");
    child.sweep = Sweep::OnStop;
    let mark = child.run().out.text();
    assert!(sweep(mark.trim()) >= 1);
    assert!(!is_running(child.pid("pid")));
}

#[test]
fn a_process_that_keeps_forking_in_new_sessions_is_caught() {
    let child = sh("cat > hydra <<'END'
trap '' TERM
echo $$ > last
echo > ready
setsid sh ./hydra &
END
         sh ./hydra; sleep 60");
    let outcome = child.run_and(|| child.stop.request(2));
    assert_eq!(outcome.ended.how, How::Stopped);
    assert_eq!(sweep(&child.mark), 0, "nothing is left");
}

#[test]
fn no_zombies_are_left() {
    let child = sh("for n in 1 2 3 4 5; do (setsid sh -c 'echo $$ >> pids' &); done; wait");
    child.run();
    until("all are reaped", || {
        trial(&["true"]).run();
        let pids = fs::read_to_string(child.dir.path().join("pids")).unwrap_or_default();
        let mut pids = pids.lines().map(|pid| pid.parse().unwrap());
        pids.all(is_gone)
    });
}

#[test]
#[expect(clippy::disallowed_methods, reason = "a child that is not ours is the point")]
fn children_of_other_code_are_not_taken_away() {
    let mut other = std::process::Command::new("true").spawn().unwrap();
    until("it has exited", || !is_running(other.id() as Pid));
    sh(DAEMON).run();
    assert!(other.wait().unwrap().success());
}

#[test]
fn runs_in_many_threads_do_not_touch_each_other() {
    thread::scope(|scope| {
        for number in 0..8 {
            scope.spawn(move || {
                for turn in 0..6 {
                    let noisy = (number + turn) % 2 == 0;
                    let leftover = if noisy { "setsid sleep 60 & sleep 60 &" } else { "" };
                    let outcome = sh(&format!("{leftover} true; sleep 0.02; exit {turn}")).run();
                    assert_eq!(outcome.ended.how, How::Exited(turn));
                    assert_eq!(outcome.ended.survivors, if noisy { 2 } else { 0 });
                }
            });
        }
    });
}

#[test]
fn orphans_are_adopted_by_the_first_thread() {
    let mut child = sh(DAEMON);
    child.sweep = Sweep::OnStop;
    child.run();
    assert!(process::children_of_main_thread().contains(&child.pid("pid")));
    assert!(sweep(&child.mark) >= 1);
}
