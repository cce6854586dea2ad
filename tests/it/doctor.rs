//! `orchestrate doctor`: what is fit is called fit, and what is not is named with its cure.

use libtest_mimic::Trial;
use nix::sys::signal::Signal::SIGINT;
use serde_json::Value;

use crate::disk::{apart, mount, small_disk};
use crate::world::{Outcome, Started, World, trial, until};

/// The document that was printed.
fn report(outcome: &Outcome) -> Value {
    let found = serde_json::from_str(&outcome.stdout);
    let found: Value = found.unwrap_or_else(|error| panic!("{error}: {}", outcome.stdout));
    assert_eq!(found["schema"], "doctor/v1");
    found
}

/// What was said of one thing; the last word, where there are several.
fn finding<'a>(report: &'a Value, name: &str) -> &'a Value {
    let findings = report["findings"].as_array().expect("findings");
    let found = findings.iter().rfind(|finding| finding["name"] == name);
    found.unwrap_or_else(|| panic!("nothing is said of `{name}`: {report}"))
}

fn text(value: &Value) -> &str {
    value["text"].as_str().unwrap_or_default()
}

fn fit() {
    let world = World::new();
    let found = report(&world.run(&["doctor", "--volume", "--json"]).exits(0));
    assert_eq!(found["fit"], true, "{found}");
    let (race, reads) = (&found["probe"]["race"], &found["probe"]["replace"]);
    let won = ["won_here", "won_there"].map(|who| race[who].as_u64().unwrap_or_default());
    assert_eq!((race["files"].as_u64(), &race["broken"]), (Some(won[0] + won[1]), &0.into()));
    assert!(reads["reads"].as_u64() > Some(0) && reads["torn"] == 0, "{reads}");
    assert_eq!(found["probe"]["locks"], true);
    assert_eq!(found["probe"]["symbolic_links"], true);
    let times = |name: &str| found["times"][name].as_u64().expect("a time");
    assert!(times("ttl_ms") > 3 * times("beat_ms"));
    if found["volume"]["shared"] == false {
        assert_eq!((times("beat_ms"), times("ttl_ms")), (1_000, 30_000));
    }
    assert_eq!(world.list(""), [""; 0], "nothing is left");
}

/// Where the machine is busy one may be late and win nothing, but not every time.
fn raced() {
    let world = World::new();
    let raced = (0..10).any(|_| {
        let found = report(&world.run(&["doctor", "--volume", "--json"]).exits(0));
        let race = &found["probe"]["race"];
        ["won_here", "won_there"].iter().all(|who| race[who].as_u64() > Some(0))
    });
    assert!(raced, "one of the two always came first");
}

fn read_only() {
    let world = World::new();
    let path = world.path("");
    let path = path.to_string_lossy();
    assert!(mount(&["--bind", &path, &path]) && mount(&["-o", "remount,bind,ro", &path]));
    let outcome = world.run(&["doctor", "--volume"]).exits(1);
    let wrong = outcome.stdout.lines().find(|line| line.starts_with("wrong")).expect("it is said");
    assert!(wrong.contains("Read-only") && wrong.contains(&*path), "{wrong}");
    assert!(outcome.stdout.contains("cure: mount it to be written"), "{}", outcome.stdout);
    assert!(outcome.stdout.contains("not fit"), "{}", outcome.stdout);
}

/// Runs it in a workspace that must be refused because of where this directory lies.
fn refused(world: &World, name: &str) {
    let found = report(&world.run(&["doctor", "--json"]).exits(1));
    assert_eq!(found["fit"], false);
    let said = finding(&found, "one volume");
    assert_eq!(said["verdict"], "wrong", "{said}");
    let named = text(said).starts_with(&format!("`{name}` ("));
    assert!(named && text(said).contains("than `inbox`"), "{said}");
    assert!(said["cure"].is_string(), "{said}");
}

fn another_volume() {
    let world = World::new();
    small_disk(&world, "processed");
    refused(&world, "processed");
    let world = World::new();
    small_disk(&world, "inbox/engineer");
    refused(&world, "inbox/engineer");
}

/// The same device, but no rename from one to the other.
fn another_mount() {
    let world = World::new();
    std::fs::create_dir_all(world.path("failed")).expect("a directory");
    let path = world.path("failed");
    let path = path.to_string_lossy();
    assert!(mount(&["--bind", &path, &path]));
    std::fs::write(world.path("a"), "").expect("a file");
    let error = std::fs::rename(world.path("a"), world.path("failed/a")).expect_err("a border");
    assert_eq!(error.kind(), std::io::ErrorKind::CrossesDevices);
    refused(&world, "failed");
}

fn a_link_to_another_volume() {
    let world = World::new();
    small_disk(&world, "elsewhere");
    std::os::unix::fs::symlink("elsewhere", world.path("processed")).expect("a link");
    refused(&world, "processed");
}

fn all_elsewhere_together() {
    let world = World::new();
    small_disk(&world, "elsewhere");
    for name in ["inbox", "processed", "failed", ".orchestrate"] {
        std::fs::create_dir(world.path("elsewhere").join(name)).expect("a directory");
        let target = format!("elsewhere/{name}");
        std::os::unix::fs::symlink(target, world.path(name)).expect("a link");
    }
    let found = report(&world.run(&["doctor", "--json"]).exits(0));
    assert_eq!(finding(&found, "one volume")["verdict"], "ok");
}

/// Waits until it says what to start on the other machine, and gives the directory.
fn invitation(doctor: &Started) -> String {
    let dir = || {
        let said = doctor.stderr();
        let (_, rest) = said.split_once("orchestrate doctor-peer ")?;
        Some(rest.split_once('\n')?.0.to_owned())
    };
    until("it invites the other machine", || dir().is_some());
    dir().expect("it was just there")
}

fn from_two_machines() {
    let world = World::new();
    let doctor = world.start(&["doctor", "--volume", "--remote", "--json"]);
    let dir = invitation(&doctor);
    world.run(&["doctor-peer", &dir]).exits(0);
    let found = report(&doctor.wait().exits(0));
    assert_eq!((&found["fit"], &found["probe"]["remote"]), (&true.into(), &true.into()));
    assert_eq!(world.list(""), [""; 0], "nothing is left");
}

fn stopped() {
    let world = World::new();
    let doctor = world.start(&["doctor", "--volume", "--remote"]);
    invitation(&doctor);
    doctor.signal(SIGINT);
    doctor.wait().exits(130);
    assert_eq!(world.list(""), [""; 0], "nothing is left");
}

/// One that was killed left its files; they are named, and the next one is not disturbed.
fn after_a_kill() {
    let world = World::new();
    let doctor = world.start(&["doctor", "--volume", "--remote"]);
    let dir = invitation(&doctor);
    doctor.kill();
    assert!(world.exists(&dir));
    let found = report(&world.run(&["doctor", "--volume", "--json"]).exits(0));
    assert!(text(finding(&found, "leftovers")).contains(".orchestrate/doctor"));
    assert_eq!(world.list(".orchestrate/doctor").len(), 1, "only what was there before");
}

fn nobody_waits() {
    let world = World::new();
    world.run(&["doctor-peer", "nowhere"]).exits(1).says("--remote");
    assert_eq!(world.list(""), [""; 0]);
}

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("doctor/a plain directory is fit", fit),
        trial("doctor/two processes race for claims", raced),
        trial("doctor/read-only", || apart(read_only)),
        trial("doctor/a directory on another volume", || apart(another_volume)),
        trial("doctor/a directory on another mount", || apart(another_mount)),
        trial("doctor/a link to another volume", || apart(a_link_to_another_volume)),
        trial("doctor/all on another volume together", || apart(all_elsewhere_together)),
        trial("doctor/from two machines", from_two_machines),
        trial("doctor/stopped", stopped),
        trial("doctor/after a kill", after_a_kill),
        trial("doctor/nobody waits", nobody_waits),
    ]
}
