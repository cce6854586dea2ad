//! Odd and hostile input: it is refused with a word, or it does no harm.

use std::fs;
use std::os::unix::fs::symlink;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use libtest_mimic::Trial;
use serde_json::{Value, json};

use crate::world::{Outcome, World, trial, until, with_digest};

/// Runs with a bounded address space, and says how much memory was used at most, in MiB.
fn bounded(world: &World, arguments: &[&str]) -> (Outcome, u64) {
    let mut shell = world.command("sh");
    shell.args(["-c", "ulimit -v 2000000; exec orchestrate \"$@\"", "sh"]).args(arguments);
    let mut started = world.spawn(&mut shell);
    let mut peak = 0;
    while started.is_running() {
        let status = fs::read_to_string(format!("/proc/{}/status", started.pid()));
        let status = status.unwrap_or_default();
        let peak_line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let kib = peak_line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
        peak = peak.max(kib.unwrap_or(0) / 1024);
        std::thread::sleep(Duration::from_millis(1));
    }
    (started.wait(), peak)
}

fn step(world: &World, name: &str) -> Value {
    world.state()["steps"][name].clone()
}

fn five_megabytes() {
    let text = "x".repeat(1000);
    let list: String = (0..5000).map(|n| format!("  k{n}: {text}\n")).collect();
    let world = World::with(&format!(
        "version: '1.1'\ncontext:\n{list}steps:\n\
         - {{ name: A, command: [echo, -n, '${{context.k4999}}'] }}\n"
    ));
    let (outcome, peak) = bounded(&world, &["run", "w.yaml"]);
    outcome.exits(0);
    assert_eq!(step(&world, "A")["output"], text);
    assert!(peak < 400, "{peak} MiB");
}

/// Most are skipped, for starting a process is not what is tested.
fn two_thousand_steps() {
    let steps: String = (0..2000)
        .map(|n| {
            let when = if n % 100 == 99 { "not_exists" } else { "exists" };
            let command = format!("[sh, -c, 'echo {n} >> ran']");
            format!("- {{ name: S{n}, when: {{ {when}: never }}, command: {command} }}\n")
        })
        .collect();
    let world = World::with(&format!("version: '1.1'\nsteps:\n{steps}"));
    world.run(&["run", "w.yaml", "--quiet"]).exits(0);
    let ran: Vec<String> = (0..20).map(|n| format!("{}", n * 100 + 99)).collect();
    assert_eq!(world.lines("ran"), ran);
    assert_eq!(world.state()["steps"].as_object().map(serde_json::Map::len), Some(2000));
}

fn twenty_deep() {
    let mut text = String::from("version: '1.1'\nsteps:\n");
    for depth in 0..20 {
        let indent = "    ".repeat(depth);
        text.push_str(&format!(
            "{indent}- name: L{depth}\n{indent}  for_each:\n{indent}    items: [i{depth}]\n\
             {indent}    as: v{depth}\n{indent}    steps:\n"
        ));
    }
    let indent = "    ".repeat(20);
    text.push_str(&format!(
        "{indent}- {{ name: Deep, command: [sh, -c, 'echo $ORCHESTRATE_STEP $0 $1 >> ran; \
         [ -e go ]', '${{v0}}', '${{v19}}'] }}\n"
    ));
    let world = World::with(&text);
    world.run(&["run", "w.yaml"]).exits(1);
    world.write("go", "");
    world.run(&["resume", "latest"]).exits(0);
    let path: String = (0..20).map(|depth| format!("L{depth}.0.")).collect();
    let line = format!("{path}Deep i0 i19");
    assert_eq!(world.lines("ran"), [line.clone(), line]);
}

/// Texts that are small and would be gigabytes, or a deep stack, or a long while.
fn bombs() -> [(&'static str, String); 6] {
    let head = "version: '1.1'\nsteps:";
    let mut aliases = format!("{head} []\na0: &a0 [x,x,x,x,x,x,x,x,x,x]\n");
    for n in 1..12 {
        let many = vec![format!("*a{}", n - 1); 10].join(",");
        aliases.push_str(&format!("a{n}: &a{n} [{many}]\n"));
    }
    let mut pairs = format!("{head} []\ncontext:\n  a0: &a0 {{ k: v }}\n");
    for n in 1..40 {
        let before = n - 1;
        pairs.push_str(&format!("  a{n}: &a{n} {{ p: *a{before}, q: *a{before} }}\n"));
    }
    [
        ("aliases", aliases),
        ("aliases in pairs", pairs),
        ("brackets", format!("{head} {}", "[".repeat(200_000))),
        ("indents", (0..3000).map(|n| format!("{}a:\n", " ".repeat(n))).collect()),
        ("a wide list", format!("{head} [{}]", "{},".repeat(20_000))),
        ("a long key", format!("{head} []\n? {}\n: x\n", "k".repeat(1_000_000))),
    ]
}

fn defused(text: &str) {
    let world = World::with(text);
    let (outcome, peak) = bounded(&world, &["run", "w.yaml"]);
    let outcome = outcome.exits(2).says("error: ");
    assert!(outcome.stderr.len() < 100_000, "{} bytes are said", outcome.stderr.len());
    assert!(peak < 500, "{peak} MiB");
    assert!(!world.exists(".orchestrate"));
}

fn bytes_that_are_no_text() {
    let good = "version: '1.1'\nsteps:\n- { name: A, command: [echo, hi] }\n";
    let refused: [(&str, Vec<u8>); 4] = [
        ("NUL", good.replace("hi", "h\0i").into()),
        ("control", good.replace("hi", "h\x01i").into()),
        (
            "latin-1",
            good.replace("hi", "h?i").bytes().map(|b| if b == b'?' { 0xe9 } else { b }).collect(),
        ),
        ("utf-16", good.encode_utf16().flat_map(u16::to_le_bytes).collect()),
    ];
    for (name, bytes) in refused {
        let world = World::new();
        world.write("w.yaml", bytes);
        let outcome = world.run(&["validate", "w.yaml"]).exits(2);
        assert!(outcome.stderr.contains("w.yaml"), "{name}: {}", outcome.stderr);
        assert!(!outcome.stderr.contains(['\0', '\x01']), "{name}: {:?}", outcome.stderr);
    }
    let accepted = [
        ("CRLF", good.replace('\n', "\r\n")),
        ("BOM", format!("\u{feff}{good}")),
        ("no newline at the end", good.trim_end().to_owned()),
        (
            "CRLF and a block",
            "version: '1.1'\r\nsteps:\r\n- name: A\r\n  command:\r\n  - sh\r\n  \
            - -c\r\n  - |\r\n    echo hi\r\n    exit 0\r\n"
                .to_owned(),
        ),
    ];
    for (name, text) in accepted {
        let world = World::with(&text);
        let outcome = world.run(&["run", "w.yaml"]);
        assert_eq!(outcome.exit, 0, "{name}: {}", outcome.stderr);
        assert_eq!(step(&world, "A")["output"], "hi\n", "{name}");
    }
}

/// An escape can bring in what the text may not hold.
fn escaped_bytes() {
    let world = World::with("version: '1.1'\nsteps:\n- { name: A, command: [echo, \"a\\0b\"] }\n");
    let outcome = world.run(&["run", "w.yaml"]);
    assert!([1, 2].contains(&outcome.exit), "{outcome:?}");
    assert!(outcome.stderr.contains("NUL"), "{}", outcome.stderr);
    for path in ["out\\0put", "..\\0/x"] {
        let world = World::with(&format!(
            "version: '1.1'\nsteps:\n- {{ name: A, command: [echo], output_file: \"{path}\" }}\n"
        ));
        let outcome = world.run(&["run", "w.yaml"]);
        assert!([1, 2].contains(&outcome.exit), "{outcome:?}");
    }
}

fn names() {
    for name in ["a%2Eb", "a%2e", "%2E%2E", "..", "a/b", "a b", "é", "_end", "a\\nb", "a$(x)"] {
        let world = World::with(&format!(
            "version: '1.1'\nsteps:\n- {{ name: \"{name}\", command: ['true'] }}\n"
        ));
        world.run(&["run", "w.yaml"]).exits(2);
        assert!(!world.exists(".orchestrate"), "{name}");
    }
    // A dot is allowed, and two names that could be taken for each other are not.
    let world = World::with(
        "version: '1.1'\nsteps:\n\
         - { name: a.0.b, command: [sh, -c, 'echo outer >&2'] }\n\
         - name: a\n  for_each:\n    items: [x]\n    steps:\n\
         \x20   - { name: b, command: [sh, -c, 'echo inner >&2'] }\n",
    );
    world.run(&["run", "w.yaml"]).exits(0);
    let log = |name: &str| world.read(&format!(".orchestrate/runs/latest/logs/{name}.stderr"));
    assert_eq!((log("a%2E0%2Eb"), log("a.0.b")), ("outer\n".into(), "inner\n".into()));
}

/// Whatever an item is, it is one argument, and no shell sees it.
fn items() {
    let items = [
        "two\nlines",
        "it's \"quoted\"",
        "$(touch owned)",
        "`touch owned`",
        "; touch owned; rm -rf .",
        "${item}",
        "$$",
        "--help",
        "",
        " ",
        "tab\tand\r",
        "{\"a\": 1}",
        "\u{1f980}\u{202e}",
        "*",
    ];
    let world = World::with(&format!(
        "version: '1.1'\nsteps:\n\
         - name: List\n  command: [cat, items.json]\n  output_capture: json\n\
         - name: Each\n  for_each:\n    items_from: steps.List.json\n    steps:\n\
         \x20   - {{ name: Do, command: [./show, '${{item}}', 'x${{item}}y'] }}\n\
         - name: Written\n  for_each:\n    items: {}\n    steps:\n\
         \x20   - {{ name: Do, command: [./show, \"${{item}}\"] }}\n",
        json!(["$(touch owned)", "a'b"])
    ));
    world.write("items.json", json!(items).to_string());
    world.write("show", "#!/bin/sh\nprintf '%s' \"$#\"; for a; do printf '<%s>' \"$a\"; done\n");
    world.run(&["run", "w.yaml"]).exits(0);
    let each = step(&world, "Each");
    for (index, item) in items.iter().enumerate() {
        let wanted = format!("2<{item}><x{item}y>");
        assert_eq!(each[index]["Do"]["output"], wanted, "{item:?}");
    }
    assert!(!world.exists("owned"));
}

/// Only regular files are read, and nothing blocks.
fn no_files() {
    let ask = |file: &str| {
        format!(
            "version: '1.1'\nproviders: {{ cat: {{ command: [cat], input_mode: stdin }} }}\n\
             steps:\n- {{ name: A, provider: cat, input_file: {file} }}\n"
        )
    };
    let world = World::with(&ask("odd"));
    nix::unistd::mkfifo(&world.path("odd"), nix::sys::stat::Mode::S_IRWXU).expect("a fifo");
    world.run(&["run", "w.yaml"]).exits(1);
    assert_eq!(step(&world, "A")["exit_code"], 2, "a fifo");

    let world = World::with(&ask("odd"));
    fs::create_dir(world.path("odd")).expect("a directory");
    world.run(&["run", "w.yaml"]).exits(1);
    assert_eq!(step(&world, "A")["exit_code"], 2, "a directory");

    let world = World::with(&ask("odd"));
    symlink("/dev/zero", world.path("odd")).expect("a link");
    world.run(&["run", "w.yaml"]).exits(2).says("symlink");

    let world = World::with(&ask("odd"));
    symlink("odd", world.path("odd")).expect("a link");
    let outcome = world.run(&["run", "w.yaml"]);
    assert!([1, 2].contains(&outcome.exit), "a link to itself: {outcome:?}");

    let world = World::with(&ask("'${context.file}'"));
    symlink("/dev/zero", world.path("odd")).expect("a link");
    let (outcome, _) = bounded(&world, &["run", "w.yaml", "--context", "file=odd"]);
    outcome.exits(1);
    assert_eq!(step(&world, "A")["exit_code"], 2, "a device");

    // A sparse file of a terabyte is regular, and larger than any prompt.
    let world = World::with(&ask("odd"));
    let sparse = fs::File::create(world.path("odd")).expect("a file");
    if sparse.set_len(1 << 40).is_ok() {
        let (outcome, peak) = bounded(&world, &["run", "w.yaml"]);
        outcome.exits(1);
        assert_eq!(step(&world, "A")["exit_code"], 2, "a terabyte");
        assert!(peak < 200, "{peak} MiB");
    }
    // The workflow itself may be odd too.
    let world = World::new();
    fs::create_dir(world.path("w.yaml")).expect("a directory");
    world.run(&["run", "w.yaml"]).exits(2);
}

/// An endless workflow file is refused, not read until memory ends.
fn endless_workflow() {
    let world = World::new();
    symlink("/dev/zero", world.path("zero.yaml")).expect("a link");
    let (outcome, peak) = bounded(&world, &["validate", "zero.yaml"]);
    outcome.exits(2).says("zero.yaml");
    assert!(peak < 300, "{peak} MiB");
}

fn fifty_megabytes() {
    let world = World::with(
        "version: '1.1'\nsteps:\n\
         - name: Text\n  command: [head, -c, '50000000', /dev/zero]\n\
         - name: Lines\n  command: [sh, -c, \"head -c 50000000 /dev/zero | tr '\\\\0' x\"]\n  \
         output_capture: lines\n  output_file: big\n\
         - name: Err\n  command: [sh, -c, 'cat big >&2; exit 3']\n",
    );
    let (outcome, peak) = bounded(&world, &["run", "w.yaml"]);
    assert!(outcome.exits(1).stderr.len() < 100_000, "the tail of a failure is short");
    assert!(peak < 90, "{peak} MiB");
    assert_eq!(step(&world, "Text")["truncated"], true);
    assert_eq!(step(&world, "Text")["output"].as_str().map(str::len), Some(8192));
    assert_eq!(fs::metadata(world.path("big")).map(|data| data.len()).ok(), Some(50_000_000));
    let state = world.read(".orchestrate/runs/latest/state.json");
    // One line of 8 MiB is as much as is kept of lines.
    assert!(state.len() < 9_000_000, "the state has {} bytes", state.len());
}

fn odd_children() {
    let world = World::with(
        "version: '1.1'\nsteps:\n\
         - { name: Bytes, command: [printf, 'a\\377\\376b\\n'], output_file: bytes }\n\
         - { name: Json, command: [printf, '\"\\377\"'], output_capture: json, \
         on: { always: { goto: Closes } } }\n\
         - { name: Closes, command: [sh, -c, 'echo said; exec >&- 2>&-; : > after'] }\n\
         - { name: Daemon, command: [sh, -c, 'echo said; (setsid sleep 3600 &)'] }\n\
         - { name: After, command: [echo, done] }\n",
    );
    let began = Instant::now();
    world.run(&["run", "w.yaml"]).exits(0);
    assert!(began.elapsed() < Duration::from_secs(30), "a daemon holds nobody up");
    assert_eq!(step(&world, "Bytes")["output"], "a\u{fffd}\u{fffd}b\n");
    assert_eq!(fs::read(world.path("bytes")).expect("the file"), b"a\xff\xfeb\n");
    assert_eq!(step(&world, "Json")["exit_code"], 2);
    assert_eq!(step(&world, "Closes")["output"], "said\n");
    assert!(world.exists("after"), "closing its output does not end a step");
    assert_eq!(step(&world, "Daemon")["output"], "said\n");
    assert_eq!(world.processes(), [0; 0], "a run leaves nothing behind");
}

fn ten_megabyte_prompt() {
    let world = World::with(
        "version: '1.1'\nproviders:\n\
         \x20 count: { command: [wc, -c], input_mode: stdin }\n\
         \x20 deaf: { command: ['true'], input_mode: stdin }\n\
         \x20 echo: { command: [cat], input_mode: stdin }\n\
         steps:\n\
         - { name: Count, provider: count, input_file: prompt }\n\
         - { name: Deaf, provider: deaf, input_file: prompt }\n\
         - { name: Echo, provider: echo, input_file: prompt, output_file: answer }\n",
    );
    let prompt: String = (0..(10 << 20) / 16).map(|n| format!("{n:015}\n")).collect();
    world.write("prompt", &prompt);
    let (outcome, peak) = bounded(&world, &["run", "w.yaml"]);
    outcome.exits(0);
    let count = step(&world, "Count")["output"].clone();
    assert_eq!(count.as_str().map(str::trim), Some("10485760"));
    assert!(world.read("answer") == prompt, "it came back whole");
    assert!(peak < 100, "{peak} MiB");
}

/// A directory and a link to the outside change places all the time while a run reads, writes and
/// moves through that name. Steps may fail; nothing outside may be read, made or changed.
fn swapped_links() {
    let world = World::with(
        "version: '1.2'\nstrict_flow: false\n\
         providers: { cat: { command: [cat], input_mode: stdin } }\n\
         steps:\n\
         - name: List\n  command: [sh, -c, 'for i in $(seq 60); do echo task > in/$i; echo in/$i; \
         done']\n  output_capture: lines\n\
         - name: Each\n  for_each:\n    items_from: steps.List.lines\n    on_item_complete:\n\
         \x20     success: { move_to: 'd/moved/${loop.index}' }\n\
         \x20     failure: { move_to: 'd/failed' }\n    steps:\n\
         \x20   - { name: Write, command: [echo, x], output_file: 'd/made/${loop.index}/out' }\n\
         \x20   - { name: Read, provider: cat, input_file: d/secret }\n",
    );
    for dir in ["in", "d", "spare"] {
        fs::create_dir(world.path(dir)).expect("a directory");
    }
    world.write("d/secret", "inside");
    let outside = world.outside("outside");
    fs::create_dir(&outside).expect("a directory");
    fs::write(outside.join("secret"), "outside").expect("a file");
    fs::remove_dir(world.path("spare")).expect("it is empty");
    symlink(&outside, world.path("spare")).expect("a link");

    let done = Arc::new(AtomicBool::new(false));
    let (told, d, spare) = (done.clone(), world.path("d"), world.path("spare"));
    let swapper = std::thread::spawn(move || {
        let flags = nix::fcntl::RenameFlags::RENAME_EXCHANGE;
        let here = nix::fcntl::AT_FDCWD;
        while !told.load(Ordering::SeqCst) {
            nix::fcntl::renameat2(here, &d, here, &spare, flags).expect("they change places");
            std::thread::yield_now();
        }
    });
    // The paths may be found to lead outside at once: then nothing runs, which is fine but proves
    // nothing.
    let mut ran = false;
    for _ in 0..200 {
        let outcome = world.run(&["run", "w.yaml", "--quiet"]);
        if outcome.exit == 2 {
            continue;
        }
        ran = true;
        break;
    }
    done.store(true, Ordering::SeqCst);
    swapper.join().expect("the swapper lives");
    assert!(ran, "it never ran");
    let there: Vec<_> = fs::read_dir(&outside).expect("a directory").flatten().collect();
    let names: Vec<_> = there.iter().map(fs::DirEntry::file_name).collect();
    assert_eq!(names, ["secret"], "something was made outside");
    assert_eq!(fs::read_to_string(outside.join("secret")).expect("a file"), "outside");
    for iteration in step(&world, "Each").as_array().expect("a loop") {
        assert_ne!(iteration["Read"]["output"], "outside", "something outside was read");
    }
}

const FLEET: &str = "queue: { beat_sec: 0.1, lease_sec: 60, poll_ms: 20, idle_poll_ms: 100, \
    settle_ms: 10 }\ndurability: process\ndefault_provider: step\n\
    providers: { step: { command: [sh, ./step], input_mode: stdin } }\n";

/// Every file below a directory, with its content; what is no file is not opened.
fn contents(dir: &std::path::Path, found: &mut Vec<(std::path::PathBuf, Vec<u8>)>) {
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        let kind = entry.file_type().expect("a kind");
        if kind.is_dir() {
            contents(&entry.path(), found);
        } else if kind.is_file() && entry.metadata().expect("a size").len() < 1 << 24 {
            found.push((entry.path(), fs::read(entry.path()).expect("a file")));
        }
    }
}

/// What may lie in an inbox that others write to. A worker takes what is a task, and is neither
/// held up, filled up nor led elsewhere by the rest.
fn an_inbox_of_odd_files() {
    let world = World::new();
    world.write(".orchestrate/config.yaml", FLEET);
    world.write("step", "cat >> asked; echo '{\"success\": true}'\n");
    fs::write(world.outside("secret"), "the secret of others").expect("a file");
    let inbox = world.path("inbox/engineer");
    fs::create_dir_all(&inbox).expect("an inbox");
    let drop = |name: &str, text: &str| fs::write(inbox.join(name), text).expect("a task");
    symlink(world.outside("secret"), inbox.join("link.task")).expect("a link");
    symlink("/dev/zero", inbox.join("endless.task")).expect("a link");
    nix::unistd::mkfifo(&inbox.join("fifo.task"), nix::sys::stat::Mode::S_IRWXU).expect("a FIFO");
    let sparse = fs::File::create(inbox.join("sparse.task"));
    sparse.and_then(|file| file.set_len(1 << 36)).expect("64 GiB of nothing");
    fs::create_dir(inbox.join("folder.task")).expect("a folder");
    drop("new\nline.task", "Named over two lines.");
    drop(&format!("{}.task", "n".repeat(250)), "A name of 255 bytes.");
    drop("-rf.task", "Named like a flag.");
    drop("..task", "Named like a path.");
    drop("$(touch escaped).task", "Named like a command.");
    drop("Case.task", "One.");
    drop("case.task", "Two.");
    drop("bytes.task", "\u{0}\u{1b}[2J");
    drop("deep.task", &format!("---\nbead: {}\n---\nx", "[".repeat(5000)));
    drop("bomb.task", "---\nbead: { a: &a [x, x], b: &b [*a, *a], c: [*b, *b] }\n---\nx");
    drop("good.task", "The good one.");
    let worker = world.start(&["worker", "engineer"]);
    let texts = ["The good one.", "Named over two lines.", "Named like a flag.", "One.", "Two."];
    let asked = || texts.iter().all(|text| world.read("asked").contains(text));
    until("all that are tasks are asked", asked);
    worker.signal(nix::sys::signal::Signal::SIGTERM);
    worker.wait();
    assert!(!world.exists("escaped"));
    let mut found = Vec::new();
    contents(&world.path(""), &mut found);
    for (path, bytes) in found {
        let led = String::from_utf8_lossy(&bytes).contains("the secret of others");
        assert!(!led, "what a link leads to came to `{}`", path.display());
    }
}

/// A status lies where a task will end before it has, as nobody's who does the task: made up with a
/// ticket that was guessed, and a true one of another task. Neither is believed, then or later.
fn statuses_of_strangers() {
    let world = World::with(
        "version: '1.1'\nsteps:\n\
         - { name: First, agent: engineer, command: [echo, -n, first] }\n\
         - { name: Second, agent: engineer, command: [sh, ./wait] }\n\
         - { name: Third, agent: engineer, command: [sh, ./wait] }\n",
    );
    world.write(".orchestrate/config.yaml", FLEET);
    world.write(
        "wait",
        "while [ ! -e go-$ORCHESTRATE_STEP ]; do sleep 0.02; done; printf %s $ORCHESTRATE_STEP\n",
    );
    let worker = world.start(&["worker", "engineer"]);
    let run = world.start(&["run", "--fleet", "w.yaml"]);
    let forge = |label: &str, status: &dyn Fn(&str) -> Vec<u8>| {
        let claimed = || world.list(".orchestrate/claimed/engineer");
        let is = |name: &&String| name.contains(&format!("-{label}."));
        until("the task is claimed", || claimed().iter().any(|name| is(&name)));
        let name = claimed().into_iter().find(|name| is(&name)).expect("it is claimed");
        let stem = name.strip_suffix(".task").expect("a task");
        let ended = format!("processed/{}", world.run_id());
        world.write(&format!("{ended}/{stem}.status.json"), status(stem));
        let task = fs::read(world.path(".orchestrate/claimed/engineer").join(&name));
        world.write(&format!("{ended}/{stem}.stranger.task"), task.expect("a task"));
        // After each beat the coordinator looks for results.
        let names = world.list(".orchestrate/beats");
        let beat = |name: &String| world.read(&format!(".orchestrate/beats/{name}")).trim().parse();
        let beats = || names.iter().map(|name| beat(name).unwrap_or(0)).collect::<Vec<u64>>();
        let before = beats();
        let late = |(now, then): (&u64, &u64)| now > &(then + 3);
        until("all have looked", || beats().iter().zip(&before).all(late));
        world.write(&format!("go-{label}"), "");
    };
    let made_up = |stem: &str| {
        let id = stem.split('-').nth(1).and_then(|rest| rest.split('.').next());
        let record = json!({ "status": "completed", "exit_code": 0, "output": "forged" });
        let status = json!({
            "schema": "status/v1", "task_id": id, "ticket": "guessed", "success": true,
            "exit_code": 0, "record": record,
        });
        with_digest(&status, "seal", 64).into_bytes()
    };
    let replayed = |_: &str| {
        let ended = format!("processed/{}", world.run_id());
        let first = |name: &String| name.contains("-First.") && name.ends_with(".status.json");
        let name = world.list(&ended).into_iter().find(first).expect("the first has ended");
        world.read(&format!("{ended}/{name}")).into_bytes()
    };
    forge("Second", &made_up);
    forge("Third", &replayed);
    run.wait().exits(0);
    worker.signal(nix::sys::signal::Signal::SIGTERM);
    worker.wait();
    for name in ["Second", "Third"] {
        assert_eq!(step(&world, name)["output"], name, "what a stranger left was believed");
    }
}

const TELL: &str = r#"
import base64, glob, json, os, sys, time, urllib.parse

token = os.environ['TOKEN']
# What anybody on the machine sees of anybody's command line.
for path in glob.glob('/proc/[0-9]*/cmdline'):
    try:
        if token.encode() in open(path, 'rb').read():
            open('in-ps', 'w').close()
    except OSError:
        pass
for stream in (sys.stdout, sys.stderr):
    print(token, json.dumps(token), base64.b64encode(token.encode()).decode(), file=stream)
    print(json.dumps(json.dumps({'k': token})), urllib.parse.quote(token, ''), file=stream)
    print(base64.b64encode(('user:' + token).encode()).decode(), file=stream)
    for letter in token:
        print(letter, end='', file=stream, flush=True)
        time.sleep(0.002)
sys.exit('failed with ' + token)
"#;

/// A step prints its secret in every way; nothing that is kept or shown has it.
fn a_secret_in_every_channel() {
    const SECRET: &str = "pa\"ss\\word-9f8e7d6c5b4a";
    const CORE: &str = "9f8e7d6c5b4a";
    let world = World::with(
        "version: '1.1'\nsteps:\n- name: Tell\n  agent: engineer\n  secrets: [TOKEN]\n  \
         on: { failure: { goto: Ask } }\n  command: [sh, ./tell]\n- name: Ask\n  \
         agent: engineer\n  provider: step\n  secrets: [TOKEN]\n  input_file: prompt.md\n",
    );
    world.write(".orchestrate/config.yaml", FLEET);
    world.write("prompt.md", "Say the token.\n");
    world.write("step", "cat; echo $TOKEN; echo $TOKEN >&2; echo '{\"success\": true}'\n");
    world.write("tell.py", TELL);
    world.write("tell", "exec python3 tell.py\n");
    let mut command = world.command("orchestrate");
    command.env("TOKEN", SECRET).args(["worker", "engineer", "--debug"]);
    let worker = world.spawn(&mut command);
    let mut command = world.command("orchestrate");
    command.env("TOKEN", SECRET).args(["run", "--fleet", "w.yaml", "--debug", "--verbose"]);
    let outcome = world.spawn(&mut command).wait();
    worker.signal(nix::sys::signal::Signal::SIGTERM);
    let said = worker.wait();
    let mut shown = vec![outcome.stdout, outcome.stderr, said.stdout, said.stderr];
    for verb in ["status", "logs", "why", "events", "report"] {
        for json in [None, Some("--json")] {
            let told = world.run(&[&[verb, "latest"], json.as_slice()].concat());
            shown.extend([told.stdout, told.stderr]);
        }
    }
    world.run(&["report", "latest"]).exits(0);
    world.run(&["debug-bundle", "latest", "--output", "bundle.tar.gz"]).exits(0);
    let unpacked = world.command("tar").args(["xzf", "bundle.tar.gz"]).status();
    assert!(unpacked.expect("tar").success());
    assert!(!world.exists("in-ps"), "it is in a command line");
    assert_eq!(step(&world, "Tell")["status"], "failed");
    assert!(step(&world, "Tell").to_string().contains("***"), "{}", step(&world, "Tell"));
    let encoded = ["d29yZC05ZjhlN2Q2", "b3JkLTlmOGU3ZD"];
    assert!(world.list(".orchestrate/runs/latest").contains(&"report.html".to_owned()));
    let tells = |text: &str| text.contains(CORE) || encoded.iter().any(|form| text.contains(form));
    for text in shown {
        assert!(!tells(&text), "it is shown: {text}");
    }
    let mut found = Vec::new();
    contents(&world.path(""), &mut found);
    for (path, bytes) in &found {
        assert!(!tells(&String::from_utf8_lossy(bytes)), "it is in `{}`", path.display());
    }
}

pub(crate) fn trials() -> Vec<Trial> {
    let bombs = bombs().into_iter().map(|(name, text)| {
        trial(format!("hostile/a YAML bomb of {name}"), move || defused(&text))
    });
    let mut trials = vec![
        trial("hostile/a workflow of 5 MB", five_megabytes),
        trial("hostile/2,000 steps", two_thousand_steps),
        trial("hostile/loops 20 deep", twenty_deep),
        trial("hostile/bytes that are no text", bytes_that_are_no_text),
        trial("hostile/bytes by escape", escaped_bytes),
        trial("hostile/names", names),
        trial("hostile/items stay one argument", items),
        trial("hostile/inputs that are no files", no_files),
        trial("hostile/a workflow without an end", endless_workflow),
        trial("hostile/50 MB without a newline", fifty_megabytes),
        trial("hostile/children with odd output", odd_children),
        trial("hostile/a prompt of 10 MiB", ten_megabyte_prompt),
        trial("hostile/links that are swapped", swapped_links),
        trial("hostile/an inbox of odd files", an_inbox_of_odd_files),
        trial("hostile/statuses of strangers", statuses_of_strangers),
        trial("hostile/a secret in every channel", a_secret_in_every_channel),
    ];
    trials.extend(bombs);
    trials
}
