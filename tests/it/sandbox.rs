//! Children in a sandbox: what they cannot do, tried out by children that try.

use std::fs;
use std::io::Read as _;
use std::net::{TcpListener, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use libtest_mimic::Trial;
use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::terminal::Session;
use crate::world::{Outcome, World, programs, trial};

const QUICK: &str = "queue: { beat_sec: 0.1, lease_sec: 60, poll_ms: 20, idle_poll_ms: 100 }\n\
    durability: process\n";

const ANSWER: &str = "echo '```json'; echo '{\"success\": true}'; echo '```'\n";
const ROBOT: &str = "default_provider: robot\nproviders:\n  \
    robot: { command: [sh, ./try], input_mode: stdin }\n";

/// A workspace whose agent `engineer` is in a sandbox, and a shell script that it runs.
fn world(sandbox: &str, script: &str) -> World {
    let world = World::with(
        "version: '1.1'\nsteps:\n- { name: Try, agent: engineer, command: [sh, ./try] }\n",
    );
    let settings = format!("agents: {{ engineer: {{ sandbox: {sandbox} }} }}\n{QUICK}");
    world.write(".orchestrate/config.yaml", settings);
    world.write("try", script);
    world
}

fn said(world: &World) -> String {
    world.state()["steps"]["Try"]["output"].as_str().unwrap_or_default().to_owned()
}

/// Every way to write that a shell has, each to a place of its own, also by grandchildren that
/// have left their parents.
fn hands(dir: &str) -> String {
    format!(
        "D={dir}\n\
         t() {{ \"$@\" 2>/dev/null && echo \"did $*\"; }}\n\
         t cp try $D/new; t mkdir $D/dir; t ln -s x $D/link; t ln try $D/hard; t mkfifo $D/fifo\n\
         t truncate -s 0 $D/old; t mv $D/old $D/moved; t mv try $D/taken; t rm -f $D/old\n\
         t sh -c \"echo x >> $D/old\"; t sh -c \"echo x > $D/old\"\n\
         t setsid sh -c \"sh -c 'echo x > $D/grand' & wait \\$!\"; t mv $D/old ./stolen\n\
         [ \"$(cat $D/old)\" = old ] && echo untouched\n"
    )
}

fn nothing_outside_is_written(fleet: bool) {
    let world = world("workspace", "");
    fs::create_dir(world.outside("elsewhere")).expect("a directory");
    fs::write(world.outside("elsewhere/old"), "old\n").expect("a file");
    let dir = world.outside("elsewhere");
    let rest = "echo mine > made && mkdir d && echo t > $TMPDIR/t && cat made\n\
                (echo x > /tmp/sandbox-escaped.$$) 2>/dev/null && echo did tmp; true\n";
    world.write("try", format!("{}{rest}", hands(&dir.to_string_lossy())));
    run(&world, fleet).exits(0);
    assert_eq!(said(&world), "untouched\nmine\n");
    let left: Vec<_> = fs::read_dir(&dir).expect("a listing").flatten().collect();
    assert_eq!(left.len(), 1, "{left:?}");
    assert_eq!(fs::read_to_string(dir.join("old")).expect("it is there"), "old\n");
    assert!(world.exists("made") && world.exists("try"), "it works where it may");
}

fn run(world: &World, fleet: bool) -> Outcome {
    if !fleet {
        return world.run(&["run", "w.yaml", "--quiet"]);
    }
    let worker = world.start(&["worker", "engineer"]);
    let outcome = world.run(&["run", "--fleet", "w.yaml", "--quiet"]);
    worker.signal(Signal::SIGTERM);
    worker.wait().exits(0);
    outcome
}

fn read_only_means_it() {
    let script = "cat w.yaml >/dev/null && echo read\n\
                  (echo x > made) 2>/dev/null && echo wrote\n\
                  echo x > $TMPDIR/t && cat $TMPDIR/t; echo $TMPDIR > $TMPDIR/../seen 2>/dev/null\n\
                  echo $TMPDIR\n";
    let world = world("read-only", script);
    world.run(&["run", "w.yaml", "--quiet"]).exits(0);
    let said = said(&world);
    let mut lines = said.lines();
    assert_eq!((lines.next(), lines.next()), (Some("read"), Some("x")), "{said}");
    let tmp = lines.next().expect("a folder of its own");
    assert!(!std::path::Path::new(tmp).exists(), "`{tmp}` is gone afterwards");
    assert!(!world.exists("made"));
}

fn a_secret_is_not_read() {
    let world = world("{ read: [], network: true }", "");
    let secret = world.outside("home/.ssh");
    fs::create_dir_all(&secret).expect("a directory");
    fs::write(secret.join("id"), "the key").expect("a file");
    let path = secret.display();
    world.write(
        "try",
        format!(
            "cat {path}/id 2>/dev/null; ls {path} 2>/dev/null; ln -s {path}/id here\n\
             cat here 2>/dev/null; ln {path}/id hard 2>/dev/null; cat hard 2>/dev/null\n\
             setsid sh -c 'cat {path}/id' 2>/dev/null; cat /proc/$PPID/environ 2>/dev/null\n\
             cat w.yaml | head -1\n"
        ),
    );
    world.run(&["run", "w.yaml", "--quiet"]).exits(0);
    assert_eq!(said(&world), "version: '1.1'\n");
    // Where it is allowed, it is.
    let settings =
        format!("agents: {{ engineer: {{ sandbox: {{ read: ['~/.ssh'] }} }} }}\n{QUICK}");
    world.write(".orchestrate/config.yaml", settings);
    world.run(&["run", "w.yaml", "--quiet"]).exits(0);
    assert!(said(&world).contains("the key"), "{}", said(&world));
}

const SOCKETS: &str = r#"
import socket, os, sys

def tries(name, what):
    try:
        what()
        print('did', name)
    except OSError as error:
        print(name, error.errno)

def tries_all():
    here = ('127.0.0.1', int(sys.argv[1]))
    tries('tcp', lambda: socket.create_connection(here, 5))
    tries('udp', lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', here))
    tries('unix', lambda: socket.socket(socket.AF_UNIX).bind('own'))
    tries('pair', lambda: socket.socketpair())
    sys.stdout.flush()

tries_all()
if os.fork() == 0:
    os.setsid()
    tries_all()
    os._exit(0)
os.wait()
"#;

fn no_network_is_none() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a listener");
    let port = listener.local_addr().expect("a port").port();
    let datagrams = UdpSocket::bind(("127.0.0.1", port)).expect("the same port");
    let reached = Arc::new(AtomicBool::new(false));
    let seen = reached.clone();
    std::thread::spawn(move || {
        for mut connection in listener.incoming().flatten() {
            seen.store(true, Ordering::SeqCst);
            let _ = connection.read(&mut [0]);
        }
    });
    let world = world("{ network: false }", &format!("exec python3 sockets.py {port}\n"));
    world.write("sockets.py", SOCKETS);
    world.run(&["run", "w.yaml", "--quiet"]).exits(0);
    let once = "tcp 1\nudp 1\nunix 1\ndid pair\n";
    assert_eq!(said(&world), format!("{once}{once}"), "and its children neither");
    assert!(!reached.load(Ordering::SeqCst));
    datagrams.set_nonblocking(true).expect("no waiting");
    assert!(datagrams.recv(&mut [0]).is_err(), "no datagram came");
    // The test can tell the difference.
    world.write(".orchestrate/config.yaml", QUICK);
    world.run(&["run", "w.yaml", "--quiet"]).exits(0);
    assert!(said(&world).starts_with("did tcp\ndid udp\n"), "{}", said(&world));
}

const TYPES: &str = r#"
import fcntl, os, termios

def types(fd):
    for byte in b'escaped\n':
        fcntl.ioctl(fd, termios.TIOCSTI, bytes([byte]))

def tries(name, flags, what):
    try:
        what(os.open(name, flags | os.O_NOCTTY))
        print('did', what.__name__, name)
    except (OSError, termios.error):
        pass

def writes(fd):
    os.write(fd, b'escaped\n')

def controls(fd):
    termios.tcgetattr(fd)

for name in ['/dev/tty', os.environ['CALLERS_TERMINAL']]:
    for flags in [os.O_RDONLY, os.O_WRONLY, os.O_RDWR]:
        tries(name, flags, types)
        tries(name, flags, controls)
    tries(name, os.O_WRONLY, writes)
print('tried')
"#;

/// It has no terminal: neither can it type what the caller's shell would execute, nor write there.
fn the_callers_terminal_is_out_of_reach() {
    let world = world("{ level: read-only, network: false }", "exec python3 types.py\n");
    world.write("types.py", TYPES);
    let run = || {
        let mut command = world.command("setsid");
        let script = "CALLERS_TERMINAL=$(tty) orchestrate run w.yaml --quiet";
        Session::start(command.args(["-c", "-w", "sh", "-c", script])).end()
    };
    let (exit, seen) = run();
    assert_eq!((exit, said(&world).as_str()), (0, "tried\n"), "{seen}");
    assert!(!seen.contains("escaped"), "{seen}");
    // The test can tell the difference.
    world.write(".orchestrate/config.yaml", QUICK);
    let (_, seen) = run();
    assert!(said(&world).contains("did writes /dev/tty"), "{}", said(&world));
    assert!(seen.contains("escaped"), "{seen}");
}

/// It can signal its own, and nobody else.
fn signals_stay_inside() {
    let script = "sleep 60 & kill $! && echo own\nkill -0 $PPID 2>/dev/null && echo others\ntrue\n";
    let world = world("read-only", script);
    world.run(&["run", "w.yaml", "--quiet"]).exits(0);
    assert_eq!(said(&world), "own\n");
}

const SETUP: &str = "git init -q -b main . && git config user.name A && \
    git config user.email a@example.org && \
    printf '.orchestrate/\\n.coven/worktrees/\\ninbox/\\nprocessed/\\nfailed/\\n' > .gitignore && \
    git add -A && git commit -qm first";

fn bead(script: &str) -> World {
    let world = World::with("name: g\nsteps:\n- { name: Try, type: agent, spell: do }\n");
    let sandbox = "agents: { engineer: { sandbox: { level: workspace, network: false } } }\n";
    world.write(".orchestrate/config.yaml", format!("{ROBOT}{sandbox}{QUICK}"));
    world.write("bead.md", "---\nid: b1\ntitle: B\n---\nDo it.\n");
    world.write(".coven/spells/do.md", "Do it.\n");
    world.write("try", format!("{script}\n{ANSWER}"));
    assert!(world.command("sh").args(["-c", SETUP]).status().expect("git").success());
    world
}

fn git(world: &World, arguments: &[&str]) -> String {
    let out = world.command("git").args(arguments).output().expect("git");
    String::from_utf8_lossy(&out.stdout).trim().to_owned()
}

fn a_worktree_still_commits() {
    let world = bead(
        "exec 2>&1\necho a > by-agent\n\
         git add by-agent && git commit -qm mine && echo committed > ok\n\
         echo b > left\n\
         W=$(git rev-parse --git-common-dir)\n\
         for f in $W/hooks/pre-commit $W/config $W/refs/heads/main $W/../w.yaml \\\n\
           $W/../.orchestrate/x\n\
         do (echo x >> $f) 2>/dev/null && echo wrote $f >> escaped; done\n\
         git update-ref refs/heads/main HEAD 2>/dev/null && echo main >> escaped; true",
    );
    world.run(&["run", "w.yaml", "--bead", "bead.md", "--quiet"]).exits(0);
    let names = git(&world, &["log", "--format=%s", "coven/b1"]);
    assert!(names.contains("mine"), "the agent's own commit: {names}");
    let files = git(&world, &["ls-tree", "--name-only", "coven/b1"]);
    for (file, there) in [("by-agent", true), ("left", true), ("ok", true), ("escaped", false)] {
        assert_eq!(files.lines().any(|name| name == file), there, "{file}: {files}");
    }
    assert_eq!(git(&world, &["log", "--format=%s", "main"]), "first");
}

/// Settings of another repository would be executed by a git of ours, outside.
fn a_worktree_that_was_pointed_elsewhere_is_not_trusted() {
    let world = bead(
        "rm .git; git init -q evil; printf 'gitdir: evil/.git\\n' > .git\n\
         git -C evil config core.worktree \"$PWD\"\n\
         git -C evil config filter.x.clean \"touch $PWD/../../../escaped; cat\"\n\
         echo '* filter=x' > .gitattributes; echo data > data",
    );
    let outcome = world.run(&["run", "w.yaml", "--bead", "bead.md", "--quiet"]);
    outcome.exits(1);
    assert!(!world.exists("escaped"), "its filter was executed outside");
    let message = world.state()["steps"]["Try"]["error"]["message"].to_string();
    assert!(message.contains("its file `.git` was changed"), "{message}");
}

/// A kernel takes sixteen layers of Landlock: with all of them taken, no sandbox is to be had.
fn no_sandbox_no_start() {
    let world = world("read-only", "echo ran > \"$0.ran\"; echo ran\n");
    let layers: Vec<Value> = (0..16).map(|_| json!({ "write": ["/"], "read": null })).collect();
    let confinement = json!({ "layers": layers, "no_network": false }).to_string();
    let program = programs().join("orchestrate");
    // By a shell, because what is started here leads a group and could not begin a session.
    let mut command = world.command("sh");
    command.args(["-c", "orchestrate \"$@\"; exit $?", "sh", "confine", &confinement, "--"]);
    command.arg(&program).arg("orchestrate");
    let outcome = world.spawn(command.args(["run", "w.yaml"])).wait();
    outcome.exits(1);
    let step = &world.state()["steps"]["Try"];
    assert_eq!((&step["exit_code"], &step["status"]), (&json!(127), &json!("failed")), "{step}");
    assert!(step.to_string().contains("the sandbox is not to be had"), "{step}");
    assert_eq!(said(&world), "", "nothing ran");
}

fn a_place_that_is_not_there_is_named() {
    let world = world("{ level: read-only, write: ['~/nowhere'] }", "echo ran\n");
    world.run(&["run", "w.yaml", "--quiet"]).exits(1);
    let step = &world.state()["steps"]["Try"];
    assert_eq!(step["exit_code"], 127);
    assert!(step["error"]["message"].to_string().contains("nowhere"), "{step}");
    // A program that is not there is told as ever.
    let world = World::with(
        "version: '1.1'\nsteps:\n- { name: Try, agent: engineer, command: [no-such-thing] }\n",
    );
    world.write(".orchestrate/config.yaml", "agents: { engineer: { sandbox: read-only } }\n");
    world.run(&["run", "w.yaml", "--quiet"]).exits(1);
    let error = &world.state()["steps"]["Try"]["error"];
    assert!(error["message"].to_string().contains("was not found in PATH"), "{error}");
}

/// A workflow's own provider may take away from itself, and not give back what an agent lacks.
fn a_workflow_cannot_widen_it() {
    let world = World::with(
        "version: '1.1'\nproviders:\n  mine:\n    command: [sh, ./try]\n    input_mode: stdin\n    \
         sandbox: { level: workspace, write: ['/'] }\n    writes: ['/']\n\
         steps:\n- { name: Try, agent: engineer, provider: mine }\n",
    );
    world.write(".orchestrate/config.yaml", "agents: { engineer: { sandbox: read-only } }\n");
    world.write("try", "(echo x > made) 2>/dev/null && echo wrote; echo done\n");
    world.run(&["run", "w.yaml", "--quiet"]).exits(0);
    assert!(!world.exists("made"), "{}", said(&world));
    world.write(".orchestrate/config.yaml", "");
    world.run(&["run", "w.yaml", "--quiet"]).exits(0);
    assert!(world.exists("made"), "{}", said(&world));
}

/// What a free task's agent may do is what its worker's settings say.
fn a_free_task_is_confined() {
    let world = World::new();
    let sandbox = "agents: { engineer: { sandbox: read-only } }\n";
    world.write(".orchestrate/config.yaml", format!("{ROBOT}{sandbox}{QUICK}"));
    world.write("try", "echo x > made; echo '```json'; echo '{\"success\": true}'; echo '```'\n");
    world.run(&["enqueue", "engineer", "Do it."]).exits(0);
    world.run(&["worker", "engineer", "--drain", "--quiet"]).exits(0);
    assert!(!world.exists("made"));
    assert_eq!(world.list("inbox/engineer").len(), 0);
}

pub(crate) fn trials() -> Vec<Trial> {
    let tests: [(&str, fn()); 13] = [
        ("nothing outside is written", || nothing_outside_is_written(false)),
        ("nothing outside is written in a fleet", || nothing_outside_is_written(true)),
        ("read-only means it", read_only_means_it),
        ("a secret is not read", a_secret_is_not_read),
        ("no network is none", no_network_is_none),
        ("the caller's terminal is out of reach", the_callers_terminal_is_out_of_reach),
        ("signals stay inside", signals_stay_inside),
        ("a worktree still commits", a_worktree_still_commits),
        (
            "a worktree that was pointed elsewhere is not trusted",
            a_worktree_that_was_pointed_elsewhere_is_not_trusted,
        ),
        ("no sandbox, no start", no_sandbox_no_start),
        ("a place that is not there is named", a_place_that_is_not_there_is_named),
        ("a workflow cannot widen it", a_workflow_cannot_widen_it),
        ("a free task is confined", a_free_task_is_confined),
    ];
    tests.into_iter().map(|(name, test)| trial(format!("sandbox/{name}"), test)).collect()
}
