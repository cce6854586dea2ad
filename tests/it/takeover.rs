//! A worker that is killed while its agent works in a worktree, in a conversation: another takes
//! both over, with nothing lost and never two at once.

use libtest_mimic::Trial;
use serde_json::Value;

use crate::world::{World, trial, until};

const CONFIG: &str = "default_provider: robot\nqueue: { poll_ms: 5 }\nproviders:\n  robot:\n    \
    adapter: claude\n    input_mode: stdin\n    \
    command: [sh, robot.sh, [new, \"${session}\"], [on, \"${resume}\"]]\n";

/// Notes that it is there, alone or not, does half of its work, and waits to be let go.
const ROBOT: &str = r#"cat > /dev/null
exec 9> ../../../busy
flock -n 9 || echo "two at once" >> ../../../log
echo "$*" >> ../../../log
echo half >> work
printf '{"type":"system","subtype":"init","session_id":"%s"}\n' "$2"
until [ -e ../../../go ]; do sleep 0.02; done
echo out >> ../../../log
printf '{"type":"result","is_error":false,"num_turns":1,"result":"Done.","total_cost_usd":0.5}\n'
"#;

fn git(world: &World, arguments: &[&str]) -> String {
    let mut command = world.command("git");
    let output = command.current_dir(world.path("")).args(arguments).output().expect("git runs");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "git {arguments:?}: {said}");
    String::from_utf8_lossy(&output.stdout).trim_end().to_owned()
}

/// A workspace that is a repository, with an agent that does this.
fn repository(robot: &str) -> World {
    let world = World::new();
    world.write(".orchestrate/config.yaml", CONFIG);
    world.write("robot.sh", robot);
    git(&world, &["init", "--quiet", "--initial-branch=main"]);
    for (key, value) in [("user.name", "Tester"), ("user.email", "tester@example.org")] {
        git(&world, &["config", key, value]);
    }
    world.write(".gitignore", "/.orchestrate/\n/.coven/\n/inbox/\n/processed/\n/failed/\n");
    git(&world, &["add", "robot.sh", ".gitignore"]);
    git(&world, &["commit", "--quiet", "--message", "first"]);
    world
}

fn another_takes_worktree_and_conversation_over() {
    let world = repository(ROBOT);
    let log = || if world.exists("log") { world.lines("log") } else { Vec::new() };
    world.run(&["enqueue", "engineer", "--bead", "x", "Do it."]).exits(0);
    let first = world.start(&["worker", "engineer", "--drain"]);
    until("the agent is at work", || log().len() == 1 && world.exists(".coven/worktrees/x/work"));
    // The other waits beside it; then there is only the other.
    let second = world.start(&["worker", "engineer"]);
    until("the other is there", || {
        let list = world.run(&["workers", "ls", "--json"]).exits(0).stdout;
        list.matches("\"alive\"").count() == 2
    });
    first.kill();
    until("the other's agent is at work", || log().len() >= 2);
    world.write("go", "");
    let ended = |ending: &str| {
        let mut days = world.list("processed").into_iter();
        days.find_map(|day| {
            let mut names = world.list(&format!("processed/{day}")).into_iter();
            let name = names.find(|name| name.ends_with(ending))?;
            Some(format!("processed/{day}/{name}"))
        })
    };
    until("it is done", || ended(".task").is_some());
    let log = log();
    let name = log[0].strip_prefix("new ").expect("a conversation is begun");
    assert_eq!(log, [format!("new {name}"), format!("on {name}"), "out".to_owned()]);
    // What the first one did is there, and in the commit.
    assert_eq!(git(&world, &["show", "coven/x:work"]), "half\nhalf");
    let status = world.read(&ended(".status.json").expect("a status"));
    let status: Value = serde_json::from_str(&status).unwrap();
    assert_eq!((&status["attempt"], &status["session"]), (&2.into(), &name.into()));
    assert_eq!(status["worktree"]["branch"], "coven/x");
    assert_eq!(status["worktree"]["dirty"], false);
    second.signal(nix::sys::signal::Signal::SIGTERM);
    second.wait();
    let list = world.run(&["worktree", "ls", "--json"]).exits(0).stdout;
    let list: Value = serde_json::from_str(&list).unwrap();
    assert_eq!(list["worktrees"][0]["holder"], Value::Null);
    assert!(world.processes().is_empty(), "nobody is left");
}

/// The same, with an answer as spells ask for it. It keeps its prompts.
const TOLD: &str = r#"cat >> ../../../told
echo half >> work
printf '{"type":"system","subtype":"init","session_id":"%s"}\n' "$2"
until [ -e ../../../go ]; do sleep 0.02; done
printf '{"type":"result","is_error":false,"num_turns":1,'\
'"result":"{\\"success\\": true, \\"summary\\": \\"s\\"}"}\n'
"#;

fn the_agent_of_a_step_learns_of_an_interrupted_execution() {
    let world = repository(TOLD);
    world.write("b.yaml", "id: x\ntitle: t\n");
    world.write(
        "g.yaml",
        "name: g\nsteps:\n  - { name: work, type: agent, spell: \"Do it.\\n\" }\n",
    );
    let told = || if world.exists("told") { world.read("told") } else { String::new() };
    let run = world.start(&["run", "--fleet", "g.yaml", "--bead", "b.yaml"]);
    let first = world.start(&["worker", "engineer"]);
    until("the agent is at work", || world.exists(".coven/worktrees/x/work"));
    assert!(told().contains("Do it.") && !told().contains("interrupted"), "{}", told());
    let second = world.start(&["worker", "engineer"]);
    first.kill();
    until("the other's agent is told", || told().matches("Do it.").count() == 2);
    let note = "An earlier execution of this task was interrupted";
    assert_eq!(told().matches(note).count(), 1, "{}", told());
    world.write("go", "");
    run.wait();
    second.signal(nix::sys::signal::Signal::SIGTERM);
    second.wait();
    assert_eq!(git(&world, &["show", "coven/x:work"]), "half\nhalf");
    let subject = git(&world, &["log", "-1", "--format=%s", "coven/x"]);
    assert!(subject.ends_with("attempt 2"), "{subject}");
}

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial(
            "takeover/another takes worktree and conversation over",
            another_takes_worktree_and_conversation_over,
        ),
        trial(
            "takeover/the agent of a step learns of an interrupted execution",
            the_agent_of_a_step_learns_of_an_interrupted_execution,
        ),
    ]
}
