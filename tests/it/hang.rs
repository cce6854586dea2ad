//! A volume whose server never answers: commands say so, and `doctor` ends.

use std::process::Command;

use libtest_mimic::Trial;

use crate::world::{Started, World, trial, until};

/// Mounts a FUSE volume that nothing serves, in namespaces of the command's own, and becomes the
/// command. The volume is gone with the last process that has the descriptor.
const HUNG: &str = r#"
exec 3<>/dev/fuse || { echo "no FUSE" >&2; exit 9; }
mount -i -n -t fuse -o fd=3,rootmode=40000,user_id=0,group_id=0 hung "$1" \
  || { echo "no FUSE" >&2; exit 9; }
shift
exec "$@"
"#;

/// Starts a verb in a workspace on such a volume; nothing, where the machine allows none.
fn start(world: &World, arguments: &[&str]) -> Started {
    let mount = world.path("mount");
    let mut command = hung(world, arguments);
    command.env("ORCHESTRATE_WORKSPACE", &mount);
    world.spawn(&mut command)
}

/// A verb beside such a volume.
fn hung(world: &World, arguments: &[&str]) -> Command {
    let mount = world.path("mount");
    std::fs::create_dir_all(&mount).expect("a directory");
    let mut command = world.command("unshare");
    command.args(["-Urm", "sh", "-c", HUNG, "sh"]).arg(&mount).arg("orchestrate").args(arguments);
    command
}

/// Whether the machine lets this user mount a FUSE volume in a namespace of its own.
fn can_hang(world: &World) -> bool {
    let possible = start(world, &["--version"]).wait().exit == 0;
    if !possible {
        eprintln!("skipped: this machine lets nobody mount a FUSE volume of their own");
    }
    possible
}

fn commands_say_that_the_volume_does_not_respond() {
    let world = World::new();
    if !can_hang(&world) {
        return;
    }
    let verbs: [&[&str]; 4] = [
        &["status"],
        &["run", "w.yaml"],
        &["worker", "engineer"],
        &["status", "--json", "--quiet"],
    ];
    let started = verbs.map(|verb| start(&world, verb));
    for hung in started {
        until("it is said", || hung.stderr().contains("\n"));
        let wanted = format!(
            "warning: the volume of `{}` has not responded for 5 s; waiting for it\n",
            world.path("mount").display()
        );
        assert_eq!(hung.stderr(), wanted);
        hung.kill();
    }
}

/// The workspace is elsewhere; only an argument is on the volume.
fn a_path_on_the_volume_is_watched_too() {
    let world = World::new();
    if !can_hang(&world) {
        return;
    }
    let file = world.path("mount/w.yaml").display().to_string();
    let dir = world.path("mount").display().to_string();
    let output = format!("--output={}", world.path("mount/bundle.tar.gz").display());
    let verbs: [(&[&str], &str); 5] = [
        (&["validate", &file], &file),
        (&["run", &file], &file),
        (&["init", &dir], &dir),
        (&["help", "--man", &file], &file),
        (&["debug-bundle", &output], &output["--output=".len()..]),
    ];
    let started = verbs.map(|(verb, place)| (world.spawn(&mut hung(&world, verb)), place));
    for (hung, place) in started {
        until("it is said", || hung.stderr().contains("\n"));
        let wanted = format!("the volume of `{place}` has not responded for 5 s");
        assert!(hung.stderr().contains(&wanted), "{}", hung.stderr());
        hung.kill();
    }
}

fn doctor_ends_and_says_so() {
    let world = World::new();
    if !can_hang(&world) {
        return;
    }
    let outcome = start(&world, &["doctor", "--volume"]).wait().exits(1);
    assert!(outcome.stdout.contains("wrong    volume: the volume did not answer within 9 s"));
    assert!(outcome.stdout.contains("not fit"), "{}", outcome.stdout);
}

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("hang/commands say so", commands_say_that_the_volume_does_not_respond),
        trial("hang/a path is watched", a_path_on_the_volume_is_watched_too),
        trial("hang/doctor ends", doctor_ends_and_says_so),
    ]
}
