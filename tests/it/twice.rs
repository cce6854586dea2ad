//! Two programs at once: a run has one owner, a workspace may have many runs.

use libtest_mimic::Trial;

use crate::world::{World, trial, until};

const HOLD: &str = "version: '1.1'\nsteps:\n\
    - name: Hold\n  \
      command: [sh, -c, 'echo hold >> ran; until [ -e go ]; do sleep 0.01; done']\n";

/// Whoever comes second is told who was first, and changes nothing.
fn run_and_resume() {
    let world = World::with(HOLD);
    let run = world.start(&["run", "w.yaml"]);
    until("it runs", || world.exists("ran"));
    let owner = format!("process {}", run.pid());
    let before = world.read(".orchestrate/runs/latest/journal.jsonl");
    for arguments in [
        &["resume", "latest"][..],
        &["resume", "latest", "--repair"],
        &["resume", "latest", "--force-restart"],
    ] {
        world.run(arguments).exits(5).says(&owner);
    }
    assert_eq!(world.read(".orchestrate/runs/latest/journal.jsonl"), before);
    world.write("go", "");
    run.wait().exits(0);
    assert_eq!(world.read("ran"), "hold\n");
}

/// Of several that resume at once one wins, and the step runs once.
fn resumes() {
    let world = World::with(HOLD);
    let run = world.start(&["run", "w.yaml"]);
    until("it runs", || world.exists("ran"));
    run.kill();
    let mut several: Vec<_> = (0..4).map(|_| world.start(&["resume", "latest"])).collect();
    until("one is left", || {
        several.iter_mut().map(|one| usize::from(one.is_running())).sum::<usize>() == 1
    });
    let (mut winner, losers): (Vec<_>, Vec<_>) = several
        .into_iter()
        .map(|mut one| (one.is_running(), one))
        .partition(|(running, _)| *running);
    let (_, winner) = winner.pop().expect("one is left");
    until("the winner runs the step", || world.lines("ran").len() == 2);
    for (_, loser) in losers {
        let loser = loser.wait().exits(5);
        assert!(loser.stderr.contains("owns it"), "{}", loser.stderr);
    }
    world.run(&["resume", "latest"]).exits(5).says(&format!("process {}", winner.pid()));
    world.write("go", "");
    winner.wait().exits(0);
    assert_eq!(world.read("ran"), "hold\nhold\n", "the killed attempt and the winner's");
}

/// Runs beside each other have ids and directories of their own.
fn runs() {
    let world = World::with(
        "version: '1.1'\nsteps:\n\
         - { name: Do, command: [sh, -c, 'echo $ORCHESTRATE_RUN_ID >> ran'] }\n",
    );
    let several: Vec<_> = (0..8).map(|_| world.start(&["run", "w.yaml"])).collect();
    for run in several {
        run.wait().exits(0);
    }
    let mut ran = world.lines("ran");
    ran.sort();
    ran.dedup();
    assert_eq!(ran.len(), 8, "every run has an id of its own");
    for id in &ran {
        let state = world.read(&format!(".orchestrate/runs/{id}/state.json"));
        assert!(state.contains("\"status\": \"completed\""), "{state}");
    }
    assert!(ran.contains(&world.run_id()), "`latest` is one of them");
    let mut there = world.list(".orchestrate/runs");
    there.retain(|name| name != "latest");
    assert_eq!(there, ran, "and nothing else is there");
}

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("twice/a run that is driven is not resumed", run_and_resume),
        trial("twice/of several that resume at once one wins", resumes),
        trial("twice/many runs in one workspace", runs),
    ]
}
