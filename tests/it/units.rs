//! The units of systemd: they start programs that exist, and stop them as the programs expect.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use libtest_mimic::Trial;
use nix::sys::signal::Signal;

use crate::world::{World, programs, trial, until};

const COORDINATOR: &str = "orchestrate-coordinator.service";
const WORKER: &str = "orchestrate-worker@.service";
const TARGET: &str = "orchestrate.target";

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The settings of a unit, by `Section.Key`; a key may come more than once.
fn unit(name: &str) -> BTreeMap<String, Vec<String>> {
    let text = fs::read_to_string(root().join("systemd").join(name)).expect("a unit");
    let (mut found, mut section) = (BTreeMap::<String, Vec<String>>::new(), String::new());
    for line in text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        if let Some(name) = line.strip_prefix('[').and_then(|line| line.strip_suffix(']')) {
            section = name.to_owned();
            continue;
        }
        let (key, value) = line.split_once('=').unwrap_or_else(|| panic!("{name}: {line}"));
        found.entry(format!("{section}.{key}")).or_default().push(value.to_owned());
    }
    found
}

/// The programs that `Cargo.toml` builds.
fn binaries() -> Vec<String> {
    let text = fs::read_to_string(root().join("Cargo.toml")).expect("Cargo.toml");
    let sections = text.split("[[bin]]").skip(1);
    let name = |section: &str| {
        let line = section.lines().find_map(|line| line.strip_prefix("name = \""))?;
        Some(line.trim_end_matches('"').to_owned())
    };
    sections.filter_map(name).collect()
}

fn settings() {
    for (name, command) in [(COORDINATOR, "coordinator"), (WORKER, "worker %i")] {
        let unit = unit(name);
        let get = |key: &str| unit.get(key).map(|all| all.join(" ")).unwrap_or_default();
        let start = get("Service.ExecStart");
        let (dir, rest) = start.rsplit_once('/').expect("an absolute path");
        assert_eq!((dir, rest), ("/usr/local/bin", command), "{name}");
        let program = rest.split(' ').next().unwrap_or_default();
        assert!(binaries().iter().any(|binary| binary == program), "{name}: {program}");
        let fixed = [
            ("Type", "notify"),
            ("NotifyAccess", "main"),
            ("Restart", "on-failure"),
            // The first SIGTERM drains and the second releases; both reach the program alone.
            ("KillMode", "mixed"),
            ("TimeoutStopFailureMode", "abort"),
            ("WatchdogSignal", "SIGTERM"),
            ("SuccessExitStatus", "143"),
            ("NoNewPrivileges", "yes"),
            ("ProtectSystem", "strict"),
            ("ProtectHome", "yes"),
            ("PrivateTmp", "yes"),
        ];
        for (key, value) in fixed {
            assert_eq!(get(&format!("Service.{key}")), value, "{name}: {key}");
        }
        for key in [
            "Service.WatchdogSec",
            "Service.TimeoutStopSec",
            "Service.TimeoutAbortSec",
            "Unit.StartLimitIntervalSec",
            "Unit.StartLimitBurst",
        ] {
            assert!(!get(key).is_empty(), "{name}: {key} is not set");
        }
        assert!(get("Service.RestartPreventExitStatus").starts_with('2'), "{name}");
        // The workspace is named three times and must be the same place.
        let workspace = get("Service.WorkingDirectory");
        assert_eq!(get("Service.ReadWritePaths"), workspace, "{name}");
        assert_eq!(get("Unit.RequiresMountsFor"), workspace, "{name}");
        assert_eq!((get("Unit.PartOf"), get("Install.WantedBy")), (TARGET.into(), TARGET.into()));
    }
    assert_eq!(unit(WORKER)["Service.LoadCredential"], ["env:/etc/orchestrate/credentials/%i"]);
}

/// Whether systemd can read units here. What is not proved is said loudly.
fn can_verify() -> bool {
    let installed = Command::new("systemd-analyze").arg("--version").output();
    let can = installed.is_ok_and(|output| output.status.success());
    if !can {
        eprintln!("SKIPPED: units read by systemd itself: `systemd-analyze` is not here");
    }
    can
}

/// Lets systemd itself read the units, where it is installed.
fn verified() {
    if !can_verify() {
        return;
    }
    // It wants the programs to be where the units say, so it is shown where they are.
    let scratch = tempfile::tempdir().expect("a scratch directory");
    let dir: PathBuf = scratch.path().canonicalize().expect("a real path");
    for name in [COORDINATOR, WORKER, TARGET] {
        let text = fs::read_to_string(root().join("systemd").join(name)).expect("a unit");
        let here = programs().to_string_lossy().into_owned();
        fs::write(dir.join(name), text.replace("/usr/local/bin/", &format!("{here}/")))
            .expect("a copy");
    }
    verify(&dir, "--system");
}

/// Lets systemd read the units of a directory.
fn verify(dir: &Path, manager: &str) {
    // Installed units have the name of their workspace in theirs.
    let entries = dir.read_dir().expect("a directory").flatten();
    let mut names: Vec<String> =
        entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.retain(|name| name.starts_with("orchestrate"));
    assert_eq!(names.len(), 3, "{names:?}");
    let names: Vec<String> =
        names.iter().map(|name| name.replace("worker@.", "worker@engineer.")).collect();
    let output = Command::new("systemd-analyze")
        .args(["verify", manager, "--man=no", "--recursive-errors=no"])
        .args(&names)
        .env("SYSTEMD_UNIT_PATH", format!("{}:", dir.display()))
        .env("XDG_RUNTIME_DIR", dir)
        .current_dir(dir)
        .output()
        .expect("it runs");
    let said = String::from_utf8_lossy(&output.stderr);
    if said.contains("unrecognized option") {
        eprintln!("SKIPPED: units read by systemd itself: this `systemd-analyze` is too old");
        return;
    }
    assert!(output.status.success(), "{said}");
    // It warns of what it does not know without failing.
    let ours: Vec<_> = said.lines().filter(|line| line.contains("orchestrate")).collect();
    assert!(ours.is_empty(), "{ours:?}");
}

/// What `service install` writes, for the machine and for a user, is what systemd understands.
fn installed() {
    let world = World::new();
    let image = world.outside("image");
    let to = image.to_string_lossy().into_owned();
    world.run(&["service", "install", "--system", "--root", &to]).exits(0);
    world.run(&["service", "install", "--user"]).exits(0);
    if can_verify() {
        verify(&image.join("etc/systemd/system"), "--system");
        verify(&world.outside("config").join("systemd/user"), "--user");
    }
}

/// The small programs are `orchestrate`, with its verb and their own arguments, under one id.
fn beside() {
    let world = World::new();
    for (program, wanted) in [
        ("coordinator", "orchestrate coordinator"),
        ("worker", "orchestrate worker"),
        ("engineer", "orchestrate worker"),
    ] {
        let mut command = world.command(&programs().join(program).to_string_lossy());
        let told = world.spawn(command.arg("--help")).wait().exits(0);
        assert!(told.stdout.contains(&format!("Usage: {wanted}")), "{}", told.stdout);
    }
    let mut command = world.command(&programs().join("engineer").to_string_lossy());
    let worker = world.spawn(&mut command);
    until("it serves", || worker.stderr().contains("serves inbox"));
    let link = fs::read_link(format!("/proc/{}/exe", worker.pid())).expect("it lives");
    assert_eq!(link.file_name().and_then(|name| name.to_str()), Some("orchestrate"));
    worker.signal(Signal::SIGINT);
    worker.wait().exits(0);
    // Alone it can do nothing, and says so.
    let alone = world.path("alone");
    fs::create_dir(&alone).expect("a directory");
    fs::copy(programs().join("worker"), alone.join("worker")).expect("a copy");
    let mut command = world.command(&alone.join("worker").to_string_lossy());
    world.spawn(command.env("PATH", &alone)).wait().exits(127).says("must lie beside");
}

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("units/programs, stopping, limits and paths", settings),
        trial("units/systemd finds nothing wrong", verified),
        trial("units/systemd finds nothing wrong with what is installed", installed),
        trial("units/the programs beside orchestrate become it", beside),
    ]
}
