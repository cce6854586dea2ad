//! What people do to a fleet: looking at it, cancelling, retrying, draining, and `up`. Real
//! processes, killed and paused.

use libtest_mimic::Trial;
use nix::sys::signal::Signal::{SIGCONT, SIGINT, SIGKILL, SIGSTOP, SIGTERM};
use nix::sys::signal::kill;
use nix::unistd::Pid;
use serde_json::Value;

use crate::shim;
use crate::world::{Started, World, is_alive, trial, until};

/// Beats that a test need not wait for, and a lease that no slow machine reaches.
const QUICK: &str = "queue: { beat_sec: 0.1, lease_sec: 60, poll_ms: 20, idle_poll_ms: 100 }\n\
    durability: process\nlimits: { grace_sec: 0.2 }\n";

/// A step with a grandchild in a session of its own; neither minds SIGTERM. With `go` there, both
/// end.
const HOLD: &str = "#!/bin/bash\n\
    trap '' TERM INT HUP\n\
    setsid sh -c \"trap '' TERM INT HUP; echo \\$\\$ >> pids; \
    until [ -e go ]; do sleep 0.02; done\" &\n\
    echo $$ >> pids\n\
    echo holding\n\
    echo and complaining >&2\n\
    until [ -e go ]; do sleep 0.02; done\n\
    wait\n\
    echo released\n";

const LOCAL: &str = "version: '1.1'\nsteps:\n\
    - { name: Before, command: [sh, -c, 'echo before >> ran'] }\n\
    - { name: Hold, command: [./hold] }\n\
    - { name: After, command: [sh, -c, 'echo after >> ran'] }\n";

const FLEET: &str = "version: '1.1'\nsteps:\n\
    - { name: Before, command: [sh, -c, 'echo before >> ran'] }\n\
    - { name: Hold, agent: engineer, command: [./hold] }\n\
    - { name: After, agent: engineer, command: [sh, -c, 'echo after >> ran'] }\n";

fn world(workflow: &str) -> World {
    let world = World::with(workflow);
    world.write("hold", HOLD);
    world.write(".orchestrate/config.yaml", QUICK);
    world
}

/// What a verb writes for programs.
#[track_caller]
fn json(world: &World, arguments: &[&str]) -> Value {
    let mut all = vec!["--json"];
    all.extend(arguments);
    let outcome = world.run(&all).exits(0);
    serde_json::from_str(&outcome.stdout)
        .unwrap_or_else(|error| panic!("{arguments:?}: {error}\n{}", outcome.stdout))
}

#[track_caller]
fn why(world: &World, target: &str) -> String {
    let sentence = world.run(&["why", target]).exits(0).stdout;
    assert_eq!(sentence.lines().count(), 1, "one sentence: {sentence}");
    sentence
}

#[track_caller]
fn says(text: &str, part: &str) {
    assert!(text.contains(part), "`{part}` is not in: {text}");
}

/// The pids of what the step `Hold` started.
fn held(world: &World) -> Vec<i32> {
    until("both hold", || world.lines("pids").len() == 2);
    let pids: Vec<i32> = world.lines("pids").iter().map(|pid| pid.parse().unwrap()).collect();
    assert!(pids.iter().all(|pid| is_alive(*pid)));
    pids
}

#[track_caller]
fn gone(pids: &[i32]) {
    let left: Vec<&i32> = pids.iter().filter(|pid| is_alive(**pid)).collect();
    assert!(left.is_empty(), "still alive: {left:?}");
}

/// The word that a member goes by, as it says itself.
fn name_of(member: &Started) -> String {
    let said = member.stderr();
    let before =
        said.split(" serves inbox").next().and_then(|s| s.split(" drives the runs").next());
    before.and_then(|rest| rest.split(' ').next_back()).expect("it says who it is").to_owned()
}

/// The state that `status` shows of the latest run.
fn shown(world: &World) -> String {
    json(world, &["status", "latest"])["state"].as_str().unwrap_or_default().to_owned()
}

/// A local run whose process was killed is shown as what it is, and cancelled all the same.
fn a_dead_owner_is_not_running() {
    let world = world(LOCAL);
    let run = world.start(&["run", "w.yaml"]);
    let pids = held(&world);
    let status = json(&world, &["status", "latest"]);
    assert_eq!(
        (status["state"].as_str(), status["recorded"].as_str()),
        (Some("running"), Some("running"))
    );
    assert_eq!(status["owner"]["pid"], run.pid().as_raw());
    says(&why(&world, "latest"), &format!("`Hold` is being executed by process {}", run.pid()));
    let executing = json(&world, &["ps"]);
    assert_eq!(executing["executing"][0]["step"], "Hold");
    run.kill_unguarded();
    let status = json(&world, &["status", "latest"]);
    assert_eq!(
        (status["state"].as_str(), status["recorded"].as_str()),
        (Some("stopped"), Some("running"))
    );
    assert_eq!(status["steps"][1]["state"], "interrupted");
    says(&why(&world, "latest"), &format!("orchestrate resume {}", world.run_id()));
    let status = world.run(&["status"]).exits(0).stdout;
    says(&status, "stopped  w.yaml");
    says(&status, "nobody drives it");
    // What it had begun goes on without it.
    let executing = json(&world, &["ps"]);
    assert_eq!(executing["executing"][0]["step"], "Hold");
    assert_eq!(executing["executing"][0]["life"], "dead");
    says(&why(&world, "latest"), "of it still run");
    world.run(&["cancel", "latest"]).exits(0);
    gone(&pids);
    assert_eq!(shown(&world), "cancelled");
    assert_eq!(json(&world, &["ps"])["executing"], serde_json::json!([]));
}

fn cancel_a_local_run() {
    let world = world(LOCAL);
    let run = world.start(&["run", "w.yaml"]);
    let pids = held(&world);
    world.run(&["cancel", "latest"]).exits(0);
    gone(&pids);
    assert_eq!(world.status(), "cancelled");
    let told = run.wait().exits(4).says("cancelled");
    says(&told.stderr, &format!("take it up again: orchestrate retry {}", world.run_id()));
    says(&world.run(&["cancel", "latest"]).exits(0).stdout, "was cancelled already");
    says(&why(&world, "latest"), "was cancelled");
    world.write("go", "");
    world.run(&["resume", "latest"]).exits(4).says("is not resumed");
    world.run(&["retry", "latest"]).exits(0);
    assert_eq!(world.read("ran"), "before\nafter\n");
    world.run(&["cancel", "latest"]).exits(1).says("has completed already");
    assert!(!world.exists(".orchestrate/runs/latest/cancel"));
}

/// From another shell, with a coordinator and a worker: nothing of it runs when it is told.
fn cancel_a_fleet_run() {
    let world = world(FLEET);
    let (mut coordinator, mut worker) = (world.coordinator(), world.worker("engineer", &[]));
    let id = world.submit("w.yaml");
    let pids = held(&world);
    let status = json(&world, &["status", &id]);
    assert_eq!(status["state"], "running");
    assert_eq!(status["owner"]["worker"], name_of(&coordinator));
    assert_eq!(status["steps"][1]["task"]["worker"], name_of(&worker));
    let executing = json(&world, &["ps"]);
    assert_eq!(executing["executing"][0]["pid"], worker.pid().as_raw());
    world.run(&["cancel", &id]).exits(0);
    gone(&pids);
    assert_eq!(world.status(), "cancelled");
    assert_eq!(world.state()["steps"]["Hold"]["status"], "failed");
    assert!(world.list(".orchestrate/cancel").is_empty(), "the request is done with");
    assert!(world.list(".orchestrate/claimed/coordinator").is_empty());
    assert!(coordinator.is_running() && worker.is_running());
    // They go on with others, and with this one too.
    world.write("go", "");
    world.run(&["retry", &id]).exits(0);
    until("it completed", || world.status() == "completed");
    assert_eq!(world.read("ran"), "before\nafter\n");
}

fn cancel_what_nobody_has_taken() {
    let world = world(FLEET);
    let id = world.submit("w.yaml");
    assert_eq!(shown(&world), "queued");
    says(&why(&world, "latest"), "none is alive");
    world.run(&["cancel", &id]).exits(0);
    assert_eq!(world.status(), "cancelled");
    assert!(world.list("inbox/coordinator").is_empty());
    // A coordinator that comes later has nothing to do with it.
    let coordinator = world.coordinator();
    assert_eq!(shown(&world), "cancelled");
    coordinator.signal(SIGTERM);
    coordinator.wait().exits(0);
    assert_eq!(world.status(), "cancelled");
}

/// `run --fleet` drives the run in its own terminal, and executes plain commands itself.
fn cancel_what_its_starter_executes() {
    let world = world(LOCAL);
    let run = world.start(&["run", "--fleet", "w.yaml"]);
    let pids = held(&world);
    let executing = json(&world, &["ps"]);
    assert_eq!(executing["executing"][0]["step"], "Hold");
    assert_eq!(executing["executing"][0]["pid"], run.pid().as_raw());
    world.run(&["cancel", "latest"]).exits(0);
    gone(&pids);
    run.wait().exits(4);
    assert_eq!(world.status(), "cancelled");
}

/// A member of another machine is judged by the age of its last heartbeat on the volume's clock, by
/// its own interval and lease, and at once: whatever the viewer's settings and clock say.
fn the_far_are_judged_by_the_age_of_their_heartbeats() {
    let world = world(FLEET);
    world.run(&["queue", "pause", "nobody"]).exits(0);
    let far = |name: &str, times: &str, age: u64| {
        let registration = format!(
            r#"{{"schema":"worker/v1","worker":"{name}","agent":"engineer","host":"far",
            "boot_id":"another","pid_namespace":"another","pid":1,"start_time":1,"version":"0.1.0",
            "started_at":"2026-11-16T05:55:02.089Z","concurrency":1{times}}}"#
        );
        world.write(&format!(".orchestrate/workers/{name}.json"), registration);
        let beat = format!(".orchestrate/beats/{name}");
        world.write(&beat, "00000000000000000001\n");
        let file = std::fs::File::options().write(true).open(world.path(&beat)).unwrap();
        let now = file.metadata().unwrap().modified().unwrap();
        file.set_modified(now - std::time::Duration::from_secs(age)).unwrap();
    };
    let network = r#","beat_ms":10000,"lease_ms":60000"#;
    far("healthy", network, 9);
    far("frozen", network, 40);
    far("off", network, 600);
    far("quick", r#","beat_ms":1000,"lease_ms":30000"#, 9);
    far("earlier", "", 9);
    // The viewer's own settings say 0.1 s, and its clock is an hour off.
    let skewed = |args: &[&str]| {
        let mut command = world.orchestrate(args);
        shim::set_clock(&mut command, 3_600_000);
        world.spawn(&mut command).wait().exits(0).stdout
    };
    let workers: serde_json::Value =
        serde_json::from_str(&skewed(&["workers", "ls", "--json"])).unwrap();
    let of = |name: &str| {
        let all = workers["workers"].as_array().unwrap();
        all.iter().find(|worker| worker["worker"] == *name).unwrap().clone()
    };
    let life = |name: &str| of(name)["life"].as_str().unwrap().to_owned();
    let lives = ["healthy", "frozen", "off", "quick", "earlier"].map(life);
    assert_eq!(lives, ["alive", "silent", "dead", "silent", "alive"]);
    let age = of("frozen")["heartbeat_age_ms"].as_u64().unwrap();
    assert!((40_000..60_000).contains(&age), "{age}");
    for verb in [&["status"][..], &["ps"], &["workers", "ls"]] {
        let text = skewed(verb);
        says(&text, "healthy  alive, last heartbeat ");
        says(&text, "frozen   silent, last heartbeat 4");
        says(&text, "off      dead, last heartbeat 10m");
    }
    let figures = world.run(&["metrics"]).exits(0).stdout;
    says(&figures, r#"orchestrate_workers{agent="engineer",life="alive"} 2"#);
    says(&figures, r#"orchestrate_workers{agent="engineer",life="silent"} 2"#);
    says(&figures, r#"orchestrate_workers{agent="engineer",life="dead"} 1"#);
    assert_eq!(world.list(".orchestrate/tmp"), Vec::<String>::new(), "nothing is left behind");
}

/// The step waits for a worker that is not there.
fn cancel_a_waiting_step() {
    let world = world(FLEET);
    let coordinator = world.coordinator();
    let id = world.submit("w.yaml");
    until("it waits", || !world.list("inbox/engineer").is_empty());
    assert_eq!(json(&world, &["status", &id])["steps"][1]["state"], "waiting");
    says(&why(&world, &id), "waits for an `engineer` worker, and none is alive");
    world.run(&["cancel", &id]).exits(0);
    assert_eq!(world.status(), "cancelled");
    assert!(world.list("inbox/engineer").is_empty());
    drop(coordinator);
}

/// Coordinator and worker are both gone, without a word.
fn cancel_what_the_dead_hold() {
    let world = world(FLEET);
    let (coordinator, worker) = (world.coordinator(), world.worker("engineer", &[]));
    let id = world.submit("w.yaml");
    let pids = held(&world);
    let dead = name_of(&coordinator);
    // Neither may live to see that the other is dead, or it would take its work from it.
    worker.signal(SIGSTOP);
    coordinator.kill();
    worker.kill();
    let status = json(&world, &["status", &id]);
    assert_eq!(status["state"], "stopped");
    assert_eq!(status["owner"]["life"], "dead");
    assert_eq!(status["steps"][1]["state"], "interrupted");
    says(&why(&world, &id), &format!("coordinator {dead} on "));
    says(&world.run(&["workers", "ls"]).exits(0).stdout, "dead");
    world.run(&["cancel", &id]).exits(0);
    gone(&pids);
    assert_eq!(world.status(), "cancelled");
    assert!(world.list(".orchestrate/claimed/engineer").is_empty());
}

/// The task of a step alone: the step has failed, and the run goes on as its workflow says.
fn cancel_a_task_of_a_run() {
    let world = world(&FLEET.replace("[./hold]", "[./hold], on: { failure: { goto: After } }"));
    let (_coordinator, _worker) = (world.coordinator(), world.worker("engineer", &[]));
    world.submit("w.yaml");
    let pids = held(&world);
    let task = json(&world, &["ps"])["executing"][0]["task"].as_str().unwrap().to_owned();
    world.run(&["cancel", &task[..20]]).exits(0);
    gone(&pids);
    until("it completed", || world.status() == "completed");
    assert_eq!(world.state()["steps"]["Hold"]["error"]["message"], "cancelled");
    assert_eq!(world.read("ran"), "before\nafter\n");
    assert!(world.list(".orchestrate/cancel").is_empty());
    says(&why(&world, &task), "was cancelled");
}

/// What cannot be confirmed is not confirmed.
fn cancel_in_vain() {
    let world = world(FLEET);
    let (_coordinator, worker) = (world.coordinator(), world.worker("engineer", &[]));
    let id = world.submit("w.yaml");
    let pids = held(&world);
    worker.signal(SIGSTOP);
    let told = world.run(&["cancel", &id, "--timeout", "1"]).exits(1);
    says(&told.stderr, "not cancelled yet");
    assert!(pids.iter().all(|pid| is_alive(*pid)));
    worker.signal(SIGCONT);
    until("it is cancelled", || world.status() == "cancelled");
    gone(&pids);
}

fn resume_a_fleet_run_here() {
    let world = world(FLEET);
    let worker = world.worker("engineer", &[]);
    let run = world.start(&["run", "--fleet", "w.yaml"]);
    let _pids = held(&world);
    let id = world.run_id();
    let mine = json(&world, &["status", &id])["owner"]["pid"].clone();
    assert_eq!(mine, run.pid().as_raw());
    world.run(&["resume", &id]).exits(5).says("is being driven already");
    world.run(&["retry", &id]).exits(5);
    run.signal(SIGINT);
    let told = run.wait().exits(130);
    let member = name_of(&worker);
    says(&told.stderr, &format!("still at work: engineer worker {member} on "));
    for verb in ["logs", "resume", "cancel"] {
        says(&told.stderr, &format!("orchestrate {verb} {id}"));
    }
    assert_eq!(shown(&world), "stopped");
    // The task goes on meanwhile, and can be followed; whoever resumes takes its result in.
    let logs = world.start(&["logs", &id, "Hold", "--follow"]);
    until("it is followed", || logs.stdout().contains("holding"));
    world.write("go", "");
    says(&logs.wait().exits(0).stdout, "released");
    world.run(&["resume", &id]).exits(0);
    assert_eq!(world.read("ran"), "before\nafter\n");
    assert_eq!(world.state()["steps"]["Hold"]["attempt"], 1);
    drop(worker);
}

fn resume_after_the_owner_was_killed() {
    let world = world(FLEET);
    let worker = world.worker("engineer", &[]);
    let run = world.start(&["run", "--fleet", "w.yaml"]);
    held(&world);
    let id = world.run_id();
    run.kill();
    world.write("go", "");
    world.run(&["resume", &id]).exits(0);
    assert_eq!(world.read("ran"), "before\nafter\n");
    assert_eq!(shown(&world), "completed");
    world.run(&["resume", &id]).exits(0).says("nothing to do");
    drop(worker);
}

const FAILS: &str = "version: '1.1'\nstrict_flow: true\nsteps:\n\
    - { name: First, agent: engineer, command: [sh, -c, 'echo first >> ran'] }\n\
    - { name: Gate, agent: engineer, command: [sh, -c, 'echo gate >> ran; test -e go'] }\n\
    - { name: Last, agent: engineer, command: [sh, -c, 'echo last >> ran'] }\n";

fn retry_from_a_step() {
    let world = world(FAILS);
    let (_coordinator, _worker) = (world.coordinator(), world.worker("engineer", &[]));
    let id = world.submit("w.yaml");
    until("it failed", || world.exists(".orchestrate/runs/latest") && world.status() == "failed");
    says(&why(&world, &id), "failed at step `Gate`, because: ");
    world.run(&["retry", &id, "--from", "Nowhere"]).exits(2).says("`First`, `Gate`, `Last`");
    world.run(&["retry", &id]).exits(0);
    until("it failed again", || world.lines("ran").len() == 3 && world.status() == "failed");
    world.write("go", "");
    until("it is let go", || world.list(".orchestrate/claimed/coordinator").is_empty());
    world.run(&["retry", &id, "--from", "First"]).exits(0);
    until("it completed", || world.status() == "completed");
    assert_eq!(world.lines("ran"), ["first", "gate", "gate", "first", "gate", "last"]);
    let events = world.run(&["events", &id]).exits(0).stdout;
    assert_eq!(events.matches(" resumed\n").count(), 2, "once for each: {events}");
}

fn retry_a_local_run_from_a_step() {
    let world = world(LOCAL);
    let run = world.start(&["run", "w.yaml"]);
    held(&world);
    run.signal(SIGTERM);
    run.wait().exits(143);
    world.write("go", "");
    world.run(&["retry", "latest", "--from", "Before"]).exits(0);
    assert_eq!(world.lines("ran"), ["before", "before", "after"]);
    // One that has completed can be sent back too.
    world.run(&["retry", "latest"]).exits(0).says("nothing to do");
    world.run(&["retry", "latest", "--from", "After"]).exits(0);
    assert_eq!(world.lines("ran"), ["before", "before", "after", "after"]);
}

/// A stopped run is sent back while its step is still being executed.
fn retry_stops_what_is_out() {
    let world = world(FLEET);
    let _worker = world.worker("engineer", &[]);
    let run = world.start(&["run", "--fleet", "w.yaml"]);
    let pids = held(&world);
    run.signal(SIGINT);
    run.wait().exits(130);
    world.run(&["retry", "latest", "--from", "Before"]).exits(0).says("no coordinator is alive");
    gone(&pids);
    assert!(world.list(".orchestrate/cancel").is_empty());
    world.write("go", "");
    let coordinator = world.coordinator();
    until("it completed", || world.status() == "completed");
    assert_eq!(world.lines("ran"), ["before", "before", "after"]);
    drop(coordinator);
}

fn follow_a_run() {
    let world = world(FLEET);
    let (_coordinator, _worker) = (world.coordinator(), world.worker("engineer", &[]));
    let id = world.submit("w.yaml");
    held(&world);
    let task = json(&world, &["ps"])["executing"][0]["task"].as_str().unwrap().to_owned();
    let run = world.start(&["logs", &id, "--follow"]);
    let step = world.start(&["logs", &id, "Hold", "-f"]);
    let by_task = world.start(&["logs", &task, "-f", "--stdout"]);
    until("it is shown as it comes", || {
        run.stdout().contains("Hold | holding\n")
            && run.stdout().contains("Hold ! and complaining\n")
            && step.stdout().contains("holding\n")
            && by_task.stdout() == "holding\n"
    });
    world.write("go", "");
    says(&run.wait().exits(0).stdout, "Hold | released\n");
    assert_eq!(by_task.wait().exits(0).stdout, "holding\nreleased\n");
    says(&step.wait().exits(0).stdout, "released\n");
    let all = world.run(&["logs", &id]).exits(0).stdout;
    assert_eq!(all, "Hold | holding\nHold | released\nHold ! and complaining\n");
}

/// A local run keeps short output in its state once the step has ended; it is followed before.
fn follow_a_local_run() {
    let world = world(LOCAL);
    let run = world.start(&["run", "w.yaml"]);
    held(&world);
    let followed = world.start(&["logs", "latest", "-f"]);
    until("errors come at once", || followed.stdout().contains("Hold ! and complaining\n"));
    world.write("go", "");
    let followed = followed.wait().exits(0);
    says(&followed.stdout, "Hold | holding\n");
    says(&followed.stdout, "Hold | released\n");
    says(&followed.stderr, "completed");
    run.wait().exits(0);
    // Whoever follows a run that dies is told so.
    let _ = std::fs::remove_file(world.path("go"));
    let _ = std::fs::remove_file(world.path("pids"));
    let run = world.start(&["run", "w.yaml"]);
    held(&world);
    let followed = world.start(&["logs", "latest", "-f"]);
    until("it is followed", || followed.stdout().contains("complaining"));
    run.kill();
    followed.wait().exits(0).says("nobody drives it");
}

/// Everybody who looks at a run learns that a step of it was executed twice.
fn a_worker_dies_over_a_step() {
    let world = world(FLEET);
    let (_coordinator, first) = (world.coordinator(), world.worker("engineer", &[]));
    let id = world.submit("w.yaml");
    held(&world);
    first.kill();
    let again = "`Hold` is put back: its worker died; attempt 1, execution 2";
    until("it is told", || world.run(&["events", &id]).exits(0).stdout.contains(again));
    let died = "a worker died over it, so what it does may be done twice";
    says(&world.run(&["status", &id]).exits(0).stdout, &format!("execution 2, {died}"));
    says(&why(&world, &id), "a worker died over it, so it came to execution 2");
    world.write("go", "");
    let second = world.worker("engineer", &[]);
    until("it completed", || world.status() == "completed");
    let status = world.run(&["status", &id]).exits(0).stdout;
    says(&status, &format!("execution 2, {died}"));
    let told = world.run(&["why", &id, "Hold"]).exits(0).stdout;
    assert_eq!(told, format!("step `Hold` is completed in execution 2: {died}\n"));
    let step = &json(&world, &["report", &id])["steps"][1];
    assert_eq!((&step["executions"], &step["warning"]), (&2.into(), &died.into()));
    let told: Vec<_> = step["attempts"].as_array().unwrap().iter().collect();
    assert_eq!(told.len(), 2, "{told:?}");
    assert_eq!((&told[0]["execution"], &told[0]["error"]), (&1.into(), &"its worker died".into()));
    assert_eq!(told[0]["outcome"], "interrupted");
    assert_eq!((&told[1]["execution"], &told[1]["outcome"]), (&2.into(), &"completed".into()));
    assert_eq!(told[1]["worker"], name_of(&second));
    world.run(&["report", &id, "-o", "r.html"]).exits(0);
    let page = world.read("r.html");
    for part in ["2 executions", "Hold #1.2", died] {
        says(&page, part);
    }
    let state: Value = serde_json::from_str(&world.read(".orchestrate/runs/latest/state.json"))
        .expect("a document");
    assert_eq!(state["steps"]["Hold"]["executions"], 2);
    says(&world.read(".orchestrate/runs/latest/logs/orchestrator.log"), died);
}

/// What a worker had taken out of its inbox and not made a task of is told, and finished by a
/// coordinator.
fn what_the_dead_had_taken_in() {
    const ID: &str = "01JHNG00000000000000000000";
    let world = World::new();
    world.write(".orchestrate/config.yaml", QUICK);
    world.run(&["enqueue", "qa", "Something else"]).exits(0);
    world.write(&format!(".orchestrate/intake/dead00beef00/engineer/{ID}-x.task"), "Do it.\n");
    says(
        &why(&world, ID),
        "dropped into inbox/engineer as `x.task`, was taken in by dead00beef00, which is gone",
    );
    assert_eq!(json(&world, &["why", ID])["state"], "dropped");
    for verb in [&["queue", "show", ID][..], &["logs", ID], &["cancel", ID], &["retry", ID]] {
        world.run(verb).exits(1).says("which is gone");
    }
    let _coordinator = world.coordinator();
    until("it is a task", || world.run(&["queue", "ls"]).exits(0).stdout.contains(ID));
    says(&why(&world, ID), "waits for an `engineer` worker, and none is alive");
    assert!(!world.exists(".orchestrate/intake/dead00beef00"));
}

fn drain_a_worker() {
    let world = world(FLEET);
    let (_coordinator, first) = (world.coordinator(), world.worker("engineer", &[]));
    world.submit("w.yaml");
    held(&world);
    let name = name_of(&first);
    // Nobody is asked unless all are known; who is named twice is asked once.
    world.run(&["workers", "drain", "engineer", "nobody"]).exits(2).says("workers ls");
    assert!(world.list(".orchestrate/drain").is_empty());
    let told = world.run(&["workers", "drain", &name[..6], "engineer"]).exits(0).stdout;
    let wanted = format!("engineer {name} is asked to end, when it has finished its task\n");
    assert_eq!(told, wanted);
    until("it drains", || {
        json(&world, &["workers", "ls"])["workers"]
            .as_array()
            .is_some_and(|all| all.iter().any(|w| w["worker"] == *name && w["draining"] == true))
    });
    says(&why(&world, "latest"), "is being executed");
    world.write("go", "");
    first.wait().exits(0);
    assert!(world.list(".orchestrate/drain").is_empty());
    until("the next step waits", || !world.list("inbox/engineer").is_empty());
    assert_eq!(world.read("ran"), "before\n", "what is left is for others");
    let second = world.worker("engineer", &[]);
    until("it completed", || world.status() == "completed");
    world.run(&["workers", "drain", "--all"]).exits(0);
    second.wait().exits(0);
    until("all are gone", || world.list(".orchestrate/workers").is_empty());
}

fn pause_and_resume() {
    let world = world(FLEET);
    let (_coordinator, _worker) = (world.coordinator(), world.worker("engineer", &[]));
    world.run(&["queue", "pause", "engineer", "--reason", "no licence left"]).exits(0);
    world.submit("w.yaml");
    until("it waits", || !world.list("inbox/engineer").is_empty());
    says(&why(&world, "latest"), "`engineer` is paused: no licence left");
    says(&world.run(&["status"]).exits(0).stdout, "paused: no licence left");
    world.write("go", "");
    world.run(&["queue", "resume", "engineer"]).exits(0);
    until("it completed", || world.status() == "completed");
    world.run(&["queue", "resume", "engineer"]).exits(0).says("was not paused");
}

/// A free task: failed, looked at, put back, and done.
fn a_free_task_again() {
    let world = World::new();
    world.write(
        ".orchestrate/config.yaml",
        format!(
            "{QUICK}default_provider: note\nproviders:\n  note: {{ command: [./answer], \
             input_mode: stdin }}\n"
        ),
    );
    world.write("answer", "#!/bin/sh\ncat > /dev/null\necho said; echo why >&2; test -e go\n");
    let enqueued = world.run(&["--json", "enqueue", "qa", "Look at this"]).exits(0).stdout;
    let enqueued: Value = serde_json::from_str(enqueued.lines().next().unwrap()).unwrap();
    let id = enqueued["task"].as_str().or(enqueued["task_id"].as_str()).unwrap().to_owned();
    says(&why(&world, &id), "waits for a `qa` worker, and none is alive");
    says(&world.run(&["queue", "ls"]).exits(0).stdout, &id);
    world.run(&["worker", "qa", "--drain"]).exits(1);
    says(&why(&world, &id), "failed: ");
    says(&world.run(&["logs", &id]).exits(0).stdout, "said\nwhy\n");
    let shown = json(&world, &["queue", "show", &id]);
    assert_eq!(shown["task"]["state"], "failed");
    assert_eq!(shown["status"]["success"], false);
    world.write("go", "");
    world.run(&["retry", &id]).exits(0).says("no `qa` worker is alive");
    world.run(&["worker", "qa", "--drain"]).exits(0);
    let shown = json(&world, &["queue", "show", &id]);
    assert_eq!(shown["task"]["state"], "processed");
    assert_eq!(shown["task"]["attempt"], 2);
    assert_eq!(shown["earlier"][0]["success"], false, "what came of it before is kept");
    world.run(&["cancel", &id]).exits(1).says("has been processed already");
    // One that waits is taken out at once.
    let enqueued = world.run(&["--json", "enqueue", "qa", "Another"]).exits(0).stdout;
    let enqueued: Value = serde_json::from_str(enqueued.lines().next().unwrap()).unwrap();
    let id = enqueued["task"].as_str().or(enqueued["task_id"].as_str()).unwrap().to_owned();
    world.run(&["queue", "drop", &id]).exits(0);
    assert_eq!(json(&world, &["queue", "show", &id])["task"]["state"], "cancelled");
    assert!(world.list("inbox/qa").is_empty() && world.list(".orchestrate/cancel").is_empty());
}

/// The pids of the children of a process.
fn children(of: Pid) -> Vec<i32> {
    let entries = std::path::Path::new("/proc").read_dir().into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    pids.filter(|pid| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let parent = stat.rsplit_once(") ").and_then(|(_, rest)| rest.split(' ').nth(1));
        parent.and_then(|parent| parent.parse().ok()) == Some(of.as_raw()) && is_alive(*pid)
    })
    .collect()
}

fn up(world: &World) -> Started {
    let up = world.start(&["up", "--agents", "engineer"]);
    until("all serve", || {
        let said = up.stderr();
        said.contains("serves inbox/engineer") && said.contains("drives the runs")
    });
    up
}

fn up_and_down() {
    let world = world(FLEET);
    let up = up(&world);
    let id = world.submit("w.yaml");
    let pids = held(&world);
    says(&up.stderr(), "engineer    | ");
    // A first Ctrl-C lets the task be finished.
    up.signal(SIGINT);
    until("it drains", || up.stderr().contains("Ctrl-C again"));
    assert!(pids.iter().all(|pid| is_alive(*pid)));
    world.write("go", "");
    up.wait().exits(0);
    assert_eq!(world.read("ran"), "before\n");
    assert_eq!(shown(&world), "queued", "the run waits for the next coordinator");
    let _worker = world.worker("engineer", &[]);
    world.run(&["resume", &id]).exits(0);
    assert_eq!(world.read("ran"), "before\nafter\n");
}

fn up_and_hurry() {
    let world = world(FLEET);
    let up = up(&world);
    world.submit("w.yaml");
    let pids = held(&world);
    up.signal(SIGINT);
    until("it drains", || up.stderr().contains("Ctrl-C again"));
    up.signal(SIGTERM);
    up.wait().exits(0);
    gone(&pids);
    assert_eq!(world.list("inbox/engineer").len(), 1, "the task was given back");
}

fn up_killed() {
    let world = world(FLEET);
    let up = up(&world);
    world.submit("w.yaml");
    let mut pids = held(&world);
    pids.extend(children(up.pid()));
    assert_eq!(pids.len(), 4);
    up.kill();
    until("nothing is left of it", || !pids.iter().any(|pid| is_alive(*pid)));
    until("nobody is left", || world.list(".orchestrate/workers").is_empty());
    assert_eq!(shown(&world), "queued");
}

fn up_restarts() {
    let world = world(FLEET);
    let up = up(&world);
    world.submit("w.yaml");
    let pids = held(&world);
    let workers = json(&world, &["workers", "ls"]);
    let all = workers["workers"].as_array().unwrap();
    let engineer = all.iter().find(|worker| worker["agent"] == "engineer").unwrap();
    let pid = engineer["pid"].as_i64().unwrap();
    kill(Pid::from_raw(pid as i32), SIGKILL).unwrap();
    until("that is said", || up.stderr().contains("engineer    | died unexpectedly (signal 9)"));
    until("another serves", || up.stderr().matches("serves inbox/engineer").count() == 2);
    until("it is executed again", || world.lines("pids").len() == 4);
    gone(&pids);
    world.write("go", "");
    until("it completed", || world.status() == "completed");
    up.signal(SIGINT);
    up.wait().exits(0);
}

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("fleet/a run whose owner is dead is not running", a_dead_owner_is_not_running),
        trial("fleet/cancel a local run", cancel_a_local_run),
        trial("fleet/cancel a run of a fleet", cancel_a_fleet_run),
        trial("fleet/cancel what its starter executes", cancel_what_its_starter_executes),
        trial(
            "fleet/the far are judged by their heartbeats",
            the_far_are_judged_by_the_age_of_their_heartbeats,
        ),
        trial("fleet/cancel a run that nobody has taken", cancel_what_nobody_has_taken),
        trial("fleet/cancel a step that waits", cancel_a_waiting_step),
        trial("fleet/cancel what the dead hold", cancel_what_the_dead_hold),
        trial("fleet/cancel a task of a run", cancel_a_task_of_a_run),
        trial("fleet/cancel in vain", cancel_in_vain),
        trial("fleet/resume a run of a fleet here", resume_a_fleet_run_here),
        trial("fleet/resume after the owner was killed", resume_after_the_owner_was_killed),
        trial("fleet/retry from a step", retry_from_a_step),
        trial("fleet/retry a local run from a step", retry_a_local_run_from_a_step),
        trial("fleet/retry stops what is out", retry_stops_what_is_out),
        trial("fleet/follow a run", follow_a_run),
        trial("fleet/follow a local run", follow_a_local_run),
        trial("fleet/a worker dies over a step", a_worker_dies_over_a_step),
        trial("fleet/what the dead had taken in", what_the_dead_had_taken_in),
        trial("fleet/drain a worker", drain_a_worker),
        trial("fleet/pause and resume", pause_and_resume),
        trial("fleet/a free task again", a_free_task_again),
        trial("fleet/up and down", up_and_down),
        trial("fleet/up and hurry", up_and_hurry),
        trial("fleet/up killed leaves nothing", up_killed),
        trial("fleet/up starts again what died", up_restarts),
    ]
}
