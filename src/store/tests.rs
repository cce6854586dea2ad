//! A crash sweep: a run is played calmly once, and then again for every operation of the disk,
//! crashing after it, and crashing again while it recovers.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::*;
use crate::base::ids::{Attempt, RunId, StepPath};
use crate::disk::sim::SimDisk;
use crate::engine::run::Address;
use crate::engine::{Effect, Origin, Policy, Record, RunStatus, StepStatus, apply, owed};
use crate::workflow::{self, Plan};

const WORKFLOW: &str = "
version: '1.1'
steps:
  - { name: A, command: ['a'], retries: { max: 1 } }
  - name: L
    for_each:
      items: [x, y, z]
      steps:
        - { name: S, command: ['s'], on: { failure: { goto: T } } }
        - { name: U, command: ['u'] }
        - { name: T, command: ['t'] }
  - { name: B, command: ['b'], on: { failure: { goto: A } } }
  - { name: C, command: ['c'] }
";

/// How an execution ends: decided by where the run stands, so the same after a crash.
fn outcome(plan: &Plan, run: &Run, step: &StepPath) -> i32 {
    let slot = |path: &StepPath| {
        run.slot(&Address::find(plan, path).unwrap())
            .map_or((0, 0), |slot| (slot.visits, slot.tries))
    };
    match (step.to_string().as_str(), slot(step)) {
        ("A", (1, 1)) | ("B", (1, _)) => 1,
        ("L.1.S", _) if slot(&StepPath::top("L")).0 == 1 => 1,
        _ => 0,
    }
}

/// A fault planted in the disk, which the sweep must catch.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Planted {
    Nothing,
    NoSync,
    NoDirectorySync,
}

struct Faulty {
    disk: Arc<SimDisk>,
    planted: Planted,
}

impl Disk for Faulty {
    fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        self.disk.read(path)
    }
    fn append(&self, path: &Path, bytes: &[u8]) -> io::Result<()> {
        self.disk.append(path, bytes)
    }
    fn truncate(&self, path: &Path, len: u64) -> io::Result<()> {
        self.disk.truncate(path, len)
    }
    fn write(&self, path: &Path, bytes: &[u8]) -> io::Result<()> {
        self.disk.write(path, bytes)
    }
    fn sync(&self, path: &Path) -> io::Result<()> {
        if self.planted == Planted::NoSync { Ok(()) } else { self.disk.sync(path) }
    }
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.disk.rename(from, to)
    }
    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        if self.planted == Planted::NoDirectorySync { Ok(()) } else { self.disk.sync_dir(dir) }
    }
    fn make_dir(&self, dir: &Path) -> io::Result<()> {
        self.disk.make_dir(dir)
    }
    fn make_dirs(&self, dir: &Path) -> io::Result<()> {
        self.disk.make_dirs(dir)
    }
    fn read_regular(&self, path: &Path, limit: u64) -> io::Result<Vec<u8>> {
        self.disk.read_regular(path, limit)
    }
    fn write_new(&self, files: &[(PathBuf, Vec<u8>)], sync: bool) -> Vec<io::Result<()>> {
        self.disk.write_new(files, sync && self.planted != Planted::NoSync)
    }
    fn overwrite(&self, path: &Path, bytes: &[u8]) -> io::Result<()> {
        self.disk.overwrite(path, bytes)
    }
    fn link(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.disk.link(from, to)
    }
    fn scan(&self, dir: &Path, visit: disk::Visit) -> io::Result<()> {
        self.disk.scan(dir, visit)
    }
    fn list_dirs(&self, dir: &Path) -> io::Result<Vec<String>> {
        self.disk.list_dirs(dir)
    }
    fn mode(&self, path: &Path) -> io::Result<u32> {
        self.disk.mode(path)
    }
    fn remove(&self, path: &Path) -> io::Result<()> {
        self.disk.remove(path)
    }
    fn remove_dir(&self, dir: &Path) -> io::Result<()> {
        self.disk.remove_dir(dir)
    }
}

struct World {
    plan: Plan,
    disk: Arc<SimDisk>,
    planted: Planted,
    /// Executions that ran to their end, `step=code`, in order: the side effects of the run.
    executed: Vec<String>,
    clock: i64,
    acknowledged: bool,
}

impl World {
    fn new(planted: Planted) -> Self {
        let plan = workflow::compile(WORKFLOW, &()).unwrap().plan;
        World {
            plan,
            disk: Arc::default(),
            planted,
            executed: Vec::new(),
            clock: 1_000,
            acknowledged: false,
        }
    }

    fn faulty(&self) -> Arc<dyn Disk> {
        Arc::new(Faulty { disk: self.disk.clone(), planted: self.planted })
    }

    fn now(&mut self) -> Time {
        self.clock += 40;
        Time(self.clock)
    }

    fn begin(&mut self) -> Result<(Store, Run), StoreError> {
        let at = self.now();
        let id = RunId::new("20250115T143022Z", 7);
        let origin = Origin {
            run_id: id.as_str().into(),
            workflow_file: "w.yaml".into(),
            workflow_checksum: "sha256:0".into(),
            run_root: "run".into(),
            workspace: None,
            context: Default::default(),
            policy: Policy::default(),
            only_step: None,
            archive: None,
            fleet: false,
            request: None,
            definition: None,
        };
        let mut run = Run::new(&self.plan, id, origin, at);
        let root = PathBuf::from("run");
        let frozen = [(DEFINITION, WORKFLOW.as_bytes())];
        let store = Store::create(self.faulty(), &root, &frozen, &self.plan, &mut run, at)?;
        Ok((store, run))
    }

    /// Drives a run to its end, executing what it is owed.
    fn drive(&mut self, store: &mut Store, run: &mut Run) -> Result<(), StoreError> {
        while let Some(effect) = owed(&self.plan, run, 99).into_iter().next() {
            match effect {
                Effect::Execute { step, attempt } => self.execute(store, run, &step, attempt)?,
                Effect::Open { step } => {
                    self.record(store, run, Event::Opened { step })?;
                }
                other => panic!("{other:?} is never owed here"),
            }
            let now = self.now();
            store.keep_up(&self.plan, run, now)?;
            self.acknowledged |= store.is_settled();
        }
        let now = self.now();
        store.save(&self.plan, run, now)
    }

    fn execute(
        &mut self,
        store: &mut Store,
        run: &mut Run,
        step: &StepPath,
        attempt: Attempt,
    ) -> Result<(), StoreError> {
        let name = step.to_string();
        self.record(store, run, Event::Launched { step: step.clone(), attempt, task: None })?;
        let code = outcome(&self.plan, run, step);
        self.executed.push(format!("{name}={code}"));
        let status = if code == 0 { StepStatus::Completed } else { StepStatus::Failed };
        let record = Record { status, exit_code: Some(code), ..Record::default() };
        self.record(
            store,
            run,
            Event::Ended { step: step.clone(), attempt, record: Box::new(record) },
        )
    }

    fn record(&mut self, store: &mut Store, run: &mut Run, event: Event) -> Result<(), StoreError> {
        let at = self.now();
        store.record(at, &event)?;
        apply(&self.plan, run, at, &event);
        Ok(())
    }

    /// Takes the run up after a crash, as `resume` does.
    fn recover(&mut self) -> Result<(Store, Run), LoadError> {
        let (mut store, mut run) = Store::load(self.faulty(), Path::new("run"), &self.plan)?;
        let resumed = Event::Resumed { policy: Policy::default(), asked: false };
        self.record(&mut store, &mut run, resumed)?;
        Ok((store, run))
    }
}

/// Plays the workflow, crashing after `first` operations and then after `second` more.
fn play(planted: Planted, power_cut: bool, seed: u64, crashes: &[usize]) -> Result<World, String> {
    let mut world = World::new(planted);
    let mut crashes = crashes.iter();
    if let Some(first) = crashes.next() {
        world.disk.crash_after(*first);
    }
    let mut begun = world.begin().ok();
    loop {
        if let Some((mut store, mut run)) = begun.take()
            && world.drive(&mut store, &mut run).is_ok()
        {
            assert_eq!(run.status, RunStatus::Completed);
            return Ok(world);
        }
        if power_cut {
            world.disk.restart(seed);
        } else {
            world.disk.restart_whole();
        }
        if let Some(next) = crashes.next() {
            world.disk.crash_after(*next);
        }
        begun = match world.recover() {
            Ok(loaded) => Some(loaded),
            // Nobody was told of this run; it is begun again.
            Err(_) if !world.acknowledged => {
                world.disk = Arc::default();
                world.begin().ok()
            }
            Err(LoadError::Disk(_)) => None,
            Err(error) => return Err(error.to_string()),
        };
    }
}

fn calm() -> World {
    play(Planted::Nothing, true, 0, &[]).unwrap()
}

/// Whether `wanted` occurs in `found` in order, maybe with repetitions between.
fn contains_in_order(found: &[String], wanted: &[String]) -> bool {
    let mut found = found.iter();
    wanted.iter().all(|step| found.any(|other| other == step))
}

#[test]
fn a_killed_process_repeats_at_most_the_attempt_that_was_open() {
    let calm = calm();
    let operations = calm.disk.operations();
    assert!(operations > 60, "{operations}");
    for first in 0..operations {
        let world = play(Planted::Nothing, false, 0, &[first]).unwrap();
        let extra = world.executed.len() - calm.executed.len();
        assert!(extra <= 1, "crash after {first}: {:?}", world.executed);
        assert!(contains_in_order(&world.executed, &calm.executed), "{:?}", world.executed);
    }
}

#[test]
fn a_power_cut_at_any_operation_skips_nothing() {
    let calm = calm();
    for first in 0..calm.disk.operations() {
        for seed in 0..6 {
            let world = play(Planted::Nothing, true, seed, &[first])
                .unwrap_or_else(|error| panic!("crash after {first}, seed {seed}: {error}"));
            assert!(
                contains_in_order(&world.executed, &calm.executed),
                "crash after {first}, seed {seed}: {:?}",
                world.executed
            );
        }
    }
}

#[test]
fn a_second_crash_while_recovering_skips_nothing() {
    let calm = calm();
    for first in 0..calm.disk.operations() {
        for second in 0..10 {
            let seed = (first * 31 + second) as u64;
            let world = play(Planted::Nothing, true, seed, &[first, second])
                .unwrap_or_else(|error| panic!("crashes after {first}, {second}: {error}"));
            assert!(contains_in_order(&world.executed, &calm.executed), "{:?}", world.executed);
        }
    }
}

#[test]
fn the_sweep_catches_faults_that_are_planted() {
    let operations = calm().disk.operations();
    for planted in [Planted::NoSync, Planted::NoDirectorySync] {
        let caught = (0..operations)
            .flat_map(|first| (0..8).map(move |seed| (first, seed)))
            .any(|(first, seed)| play(planted, true, seed, &[first]).is_err());
        assert!(caught, "{planted:?} went unnoticed");
    }
}

#[test]
fn a_cut_state_is_damage_and_the_journal_repairs_it() {
    let world = calm();
    let root = Path::new("run");
    let state = root.join(STATE);
    let bytes = world.disk.read(&state).unwrap();
    world.disk.write(&state, &bytes[..bytes.len() / 2]).unwrap();
    let error = Store::load(world.faulty(), root, &world.plan).err().unwrap();
    assert!(matches!(error, LoadError::Damaged { .. }), "{error}");
    let (_, run, by) = Store::repair(world.faulty(), root, &world.plan).unwrap();
    assert_eq!(run.status, RunStatus::Completed);
    assert!(by.contains("journal"), "{by}");
}

#[test]
fn a_snapshot_read_back_is_the_run_that_was_written() {
    let mut world = World::new(Planted::Nothing);
    let (mut store, mut run) = world.begin().unwrap();
    for _ in 0..40 {
        let bytes = snapshot::encode(&world.plan, &run, store.seq, 1);
        let read = snapshot::decode(&world.plan, &bytes).unwrap().run;
        assert_eq!(owed(&world.plan, &read, 99), owed(&world.plan, &run, 99));
        let again = snapshot::encode(&world.plan, &read, store.seq, 1);
        assert_eq!(String::from_utf8(again), String::from_utf8(bytes));
        match owed(&world.plan, &run, 99).into_iter().next() {
            Some(Effect::Execute { step, attempt }) => {
                world.execute(&mut store, &mut run, &step, attempt).unwrap();
            }
            Some(Effect::Open { step }) => {
                let event = Event::Opened { step };
                world.record(&mut store, &mut run, event).unwrap();
            }
            _ => return assert_eq!(run.status, RunStatus::Completed),
        }
    }
    panic!("the run never ended");
}

/// Two owners of one run: the first is paused, the second takes over, the first wakes up and goes
/// on as if nothing had happened.
#[test]
fn what_an_owner_writes_after_it_lost_the_run_counts_for_nothing() {
    let mut world = World::new(Planted::Nothing);
    let root = Path::new("run");
    let (mut paused, mut stale) = world.begin().unwrap();
    let a = StepPath::top("A");
    world.execute(&mut paused, &mut stale, &a, Attempt::FIRST).unwrap();
    let (mut store, mut run) = Store::load(world.faulty(), root, &world.plan).unwrap();
    store.begin_term(2);
    world
        .record(&mut store, &mut run, Event::Resumed { policy: Policy::default(), asked: false })
        .unwrap();
    world.execute(&mut store, &mut run, &a, Attempt::new(2)).unwrap();
    // The first owner wakes up: it records another end of the step, and its own view of the run.
    world.execute(&mut paused, &mut stale, &a, Attempt::new(2)).unwrap();
    world.execute(&mut paused, &mut stale, &a, Attempt::new(3)).unwrap();
    let now = world.now();
    paused.save(&world.plan, &stale, now).unwrap();
    let (again, loaded) = Store::load(world.faulty(), root, &world.plan).unwrap();
    assert_eq!(again.seq, store.seq);
    assert_eq!(owed(&world.plan, &loaded, 99), owed(&world.plan, &run, 99));
    let state = |run: &Run| String::from_utf8(snapshot::encode(&world.plan, run, 0, 1)).unwrap();
    assert_eq!(state(&loaded), state(&run));
}

/// Whoever takes a run over appends to its journal: no power cut may take back half of what is
/// there by then.
#[test]
fn what_is_handed_over_is_on_the_medium_whole() {
    for seed in 0..50 {
        let mut world = World::new(Planted::Nothing);
        let root = Path::new("run");
        let (mut store, run) = world.begin().unwrap();
        let now = world.now();
        store.hand_over(&world.plan, &run, now).unwrap();
        let journal = world.disk.read(&root.join(JOURNAL)).unwrap();
        world.disk.restart(seed);
        assert_eq!(world.disk.read(&root.join(JOURNAL)).unwrap(), journal, "seed {seed}");
        Store::load(world.faulty(), root, &world.plan).unwrap();
    }
}

/// The state that people see stays that of the run's owner.
#[test]
fn an_owner_that_lost_the_run_does_not_replace_its_state() {
    let mut world = World::new(Planted::Nothing);
    let root = Path::new("run");
    let (mut paused, stale) = world.begin().unwrap();
    paused.begin_term(1);
    let (mut store, mut run) = Store::load(world.faulty(), root, &world.plan).unwrap();
    store.begin_term(2);
    world
        .record(&mut store, &mut run, Event::Resumed { policy: Policy::default(), asked: false })
        .unwrap();
    let now = world.now();
    store.save(&world.plan, &run, now).unwrap();
    let state = world.disk.read(&root.join(STATE)).unwrap();
    paused.save(&world.plan, &stale, now).unwrap();
    assert_eq!(world.disk.read(&root.join(STATE)).unwrap(), state);
    assert!(!world.disk.list(root).unwrap().iter().any(|name| name.ends_with(".tmp")));
}

/// Somebody else may be in the middle of a write: what looks torn is not cut.
#[test]
fn looking_at_a_run_leaves_its_files_as_they_are() {
    let mut world = World::new(Planted::Nothing);
    let root = Path::new("run");
    let (mut store, mut run) = world.begin().unwrap();
    world.execute(&mut store, &mut run, &StepPath::top("A"), Attempt::FIRST).unwrap();
    let journal = root.join(JOURNAL);
    world.disk.append(&journal, b"{\"seq\":4,\"at").unwrap();
    let before = world.disk.read(&journal).unwrap();
    let seen = Store::look(world.faulty(), root, &world.plan).unwrap();
    assert_eq!(owed(&world.plan, &seen, 99), owed(&world.plan, &run, 99));
    assert_eq!(world.disk.read(&journal).unwrap(), before);
}
