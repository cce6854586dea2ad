//! A volume whose server never answers: commands say so, and `doctor` ends.

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
    std::fs::create_dir_all(&mount).expect("a directory");
    let mut command = world.command("unshare");
    command.args(["-Urm", "sh", "-c", HUNG, "sh"]).arg(&mount).arg("orchestrate").args(arguments);
    command.env("ORCHESTRATE_WORKSPACE", &mount);
    world.spawn(&mut command)
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
        trial("hang/doctor ends", doctor_ends_and_says_so),
    ]
}
