//! Every call of the disk fails in turn, with every error that a volume gives: the caller is told,
//! or the call is tried again; nobody is told what is not so, and nothing acknowledged is lost.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use nix::errno::Errno;
use serde_json::{Map, Value, json};

use super::tests::{on_all_cores, variable};
use super::world::play_failing;
use crate::base::ids::{RunId, TaskAttempt};
use crate::base::time::Time;
use crate::disk::sim::SimDisk;
use crate::disk::{Disk, Visit};
use crate::engine::run::{Origin, Policy};
use crate::engine::{self, Effect, Event, Record, Run, StepStatus};
use crate::queue::{Claimed, End, Ending, Finish, Layout, Place, Queue, Task, TaskId, TaskName};
use crate::store::{DEFINITION, Store};
use crate::workflow::{Plan, compile};

const ERRORS: [Errno; 5] = [Errno::EIO, Errno::ENOSPC, Errno::ESTALE, Errno::EACCES, Errno::EINTR];

/// A disk on which one call fails, before or after it did what was asked.
struct Failing {
    disk: Arc<SimDisk>,
    calls: AtomicUsize,
    at: usize,
    error: Errno,
    after: bool,
}

impl Failing {
    fn call<T>(&self, act: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        if self.calls.fetch_add(1, Ordering::SeqCst) != self.at {
            return act();
        }
        if self.after {
            let _ = act();
        }
        Err(self.error.into())
    }
}

impl Disk for Failing {
    fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        self.call(|| self.disk.read(path))
    }
    fn read_regular(&self, path: &Path, limit: u64) -> io::Result<Vec<u8>> {
        self.call(|| self.disk.read_regular(path, limit))
    }
    fn append(&self, path: &Path, bytes: &[u8]) -> io::Result<()> {
        self.call(|| self.disk.append(path, bytes))
    }
    fn truncate(&self, path: &Path, len: u64) -> io::Result<()> {
        self.call(|| self.disk.truncate(path, len))
    }
    fn write(&self, path: &Path, bytes: &[u8]) -> io::Result<()> {
        self.call(|| self.disk.write(path, bytes))
    }
    fn write_new(&self, files: &[(PathBuf, Vec<u8>)], sync: bool) -> Vec<io::Result<()>> {
        let write = |file: &(PathBuf, Vec<u8>)| {
            let file = std::slice::from_ref(file);
            self.call(|| self.disk.write_new(file, sync).pop().unwrap_or(Ok(())))
        };
        files.iter().map(write).collect()
    }
    fn overwrite(&self, path: &Path, bytes: &[u8]) -> io::Result<()> {
        self.call(|| self.disk.overwrite(path, bytes))
    }
    fn sync(&self, path: &Path) -> io::Result<()> {
        self.call(|| self.disk.sync(path))
    }
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.call(|| self.disk.rename(from, to))
    }
    fn link(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.call(|| self.disk.link(from, to))
    }
    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        self.call(|| self.disk.sync_dir(dir))
    }
    fn make_dir(&self, dir: &Path) -> io::Result<()> {
        self.call(|| self.disk.make_dir(dir))
    }
    fn make_dirs(&self, dir: &Path) -> io::Result<()> {
        self.call(|| self.disk.make_dirs(dir))
    }
    fn scan(&self, dir: &Path, visit: Visit) -> io::Result<()> {
        self.call(|| self.disk.scan(dir, visit))
    }
    fn list_dirs(&self, dir: &Path) -> io::Result<Vec<String>> {
        self.call(|| self.disk.list_dirs(dir))
    }
    fn mode(&self, path: &Path) -> io::Result<u32> {
        self.call(|| self.disk.mode(path))
    }
    fn remove(&self, path: &Path) -> io::Result<()> {
        self.call(|| self.disk.remove(path))
    }
    fn remove_dir(&self, dir: &Path) -> io::Result<()> {
        self.call(|| self.disk.remove_dir(dir))
    }
}

fn task(number: u128) -> Task {
    let id = TaskId::new(1_000, number);
    let Value::Object(document) = json!({ "id": id.as_str(), "ticket": format!("t{number}") })
    else {
        unreachable!()
    };
    let name =
        TaskName { priority: 5, id, label: String::new(), attempt: TaskAttempt::FIRST, crashes: 0 };
    Task { name, agent: "qa".into(), batch: "b".into(), crash_limit: 9, document }
}

fn status(task: &Task) -> Map<String, Value> {
    let ticket = task.document.get("ticket").cloned().unwrap_or_default();
    [("ticket".to_owned(), ticket)].into_iter().collect()
}

/// The fleet's story under one failing call. Whoever was told of an error is followed by another
/// process, which goes on. Gives how many calls there were.
fn queue_story(at: usize, error: Errno, after: bool) -> usize {
    let disk: Arc<SimDisk> = Arc::default();
    let failing = Failing { disk: disk.clone(), calls: AtomicUsize::new(0), at, error, after };
    let failing = Arc::new(failing);
    let told = format!("call {at}, {error}, {}", if after { "after" } else { "before" });
    let layout = || Layout::new(Path::new("w"));
    let open = |me: &str| Queue::open(failing.clone(), layout(), me, at as u64, true);
    let mut count = 0;
    // One who takes over from whoever failed.
    let mut follow = |dead: Option<&Queue>| {
        count += 1;
        let queue =
            open(&format!("next{count}")).or_else(|_| open(&format!("last{count}"))).unwrap();
        if let Some(dead) = dead {
            let reaped = queue.reap(dead.me()).or_else(|_| queue.reap(dead.me()));
            reaped.unwrap_or_else(|error| panic!("{told}: {error}"));
        }
        queue
    };
    let mut queue = open("first").unwrap_or_else(|_| follow(None));
    let tasks: Vec<Task> = (1..4).map(task).collect();
    if queue.enqueue(&tasks).is_err() {
        queue = follow(Some(&queue));
        // Nothing was promised, so it is put out again unless it is there.
        for task in &tasks {
            if queue.find("qa", "b", &task.name.id).unwrap().is_none() {
                queue.enqueue(std::slice::from_ref(task)).unwrap();
            }
        }
    }
    let mut released = false;
    let mut put_aside = BTreeSet::new();
    let mut ended = BTreeMap::new();
    for _ in 0..40 {
        if queue.beat().is_err() {
            queue = follow(Some(&queue));
        }
        let claim = match queue.claim("qa") {
            Ok(Claimed::Task(claim)) => *claim,
            Ok(Claimed::Nothing) => break,
            Ok(Claimed::Quarantined { name, reason }) => {
                // A file that may not be read is put where people find it, with the reason.
                assert_eq!(error, Errno::EACCES, "{told}: {reason}");
                put_aside.insert(name.task.id);
                continue;
            }
            Err(_) => {
                queue = follow(Some(&queue));
                continue;
            }
        };
        if !std::mem::replace(&mut released, true) {
            match queue.release(claim) {
                Ok(ending) => assert_eq!(ending, Ending::Committed, "{told}"),
                Err(_) => queue = follow(Some(&queue)),
            }
            continue;
        }
        let finish = Finish { end: End::Processed, status: status(&claim.task), claim };
        let id = finish.claim.name.task.id.clone();
        match queue.complete_one(finish) {
            Ok(ending) => {
                assert_eq!(ending, Ending::Committed, "{told}: nobody else could have it");
                assert_eq!(ended.insert(id.clone(), ()), None, "{told}: {id} ended twice");
            }
            Err(_) => queue = follow(Some(&queue)),
        }
    }
    drop(follow(Some(&queue)));
    let queue = Queue::open(disk, layout(), "judge", 1, true).unwrap();
    for task in &tasks {
        let batch = if put_aside.contains(&task.name.id) { "unreadable" } else { "b" };
        let place = queue.find("qa", batch, &task.name.id).unwrap();
        let Some(Place::Ended { end, name, .. }) = place else { panic!("{told}: {place:?}") };
        let left = queue.status(end, batch, &name).unwrap().unwrap();
        if batch == "b" {
            assert_eq!(left.get("ticket"), task.document.get("ticket"), "{told}");
        } else {
            assert!(left["message"].as_str().unwrap().contains("Permission denied"), "{told}");
        }
    }
    let whole = tasks.len() - put_aside.len();
    assert_eq!(queue.ended(End::Processed, "b").unwrap().len(), whole, "{told}");
    assert!(queue.waiting("qa").unwrap().is_empty() && queue.claims("qa").unwrap().is_empty());
    failing.calls.load(Ordering::SeqCst)
}

fn run_of(plan: &Plan) -> Run {
    let id = RunId::new("20250115T143022Z", 7);
    let origin = Origin {
        run_id: id.to_string(),
        workflow_file: String::new(),
        workflow_checksum: String::new(),
        run_root: "r".into(),
        workspace: None,
        context: Map::new(),
        policy: Policy::default(),
        only_step: None,
        archive: None,
        fleet: false,
        request: None,
        definition: None,
    };
    Run::new(plan, id, origin, Time(0))
}

/// The store's story: a run is made, goes on, is kept and is taken up again. Gives how many calls
/// there were.
fn store_story(at: usize, error: Errno, after: bool) -> usize {
    const TEXT: &str = "version: '1.1'\nsteps:\n  - { name: A, command: [a] }\n  \
                        - { name: B, command: [b] }\n  - { name: C, command: [c] }\n";
    let plan = compile(TEXT, &()).unwrap().plan;
    let disk: Arc<SimDisk> = Arc::default();
    let failing = Failing { disk: disk.clone(), calls: AtomicUsize::new(0), at, error, after };
    let failing = Arc::new(failing);
    let told = format!("call {at}, {error}, {}", if after { "after" } else { "before" });
    let root = Path::new("r");
    let mut run = run_of(&plan);
    let frozen = [(DEFINITION, TEXT.as_bytes())];
    let made = Store::create(failing.clone(), root, &frozen, &plan, &mut run, Time(0));
    let Ok(mut store) = made else {
        // Nothing was promised.
        return failing.calls.load(Ordering::SeqCst);
    };
    let calls = |failing: &Failing| failing.calls.load(Ordering::SeqCst);
    let mut done = Vec::new();
    let mut clock = 1_000;
    for _ in 0..20 {
        let owed = engine::owed(&plan, &run, 1);
        let Some(Effect::Execute { step, attempt }) = owed.into_iter().next() else { break };
        let record = Box::new(Record {
            status: StepStatus::Completed,
            exit_code: Some(0),
            ..Record::default()
        });
        let events = [
            Event::Launched { step: step.clone(), attempt, task: None },
            Event::Ended { step: step.clone(), attempt, record },
        ];
        for event in events {
            clock += 200;
            let recorded = store.record(Time(clock), &event);
            let advanced = recorded.map(|()| {
                engine::apply(&plan, &mut run, Time(clock), &event);
                if matches!(event, Event::Ended { .. }) {
                    done.push(step.to_string());
                }
            });
            // A file that cannot be kept fresh is tried again.
            let kept = store.keep_up(&plan, &run, Time(clock)).is_ok();
            let kept = kept || store.save(&plan, &run, Time(clock)).is_ok();
            assert!(kept || advanced.is_err(), "{told}");
            if advanced.is_err() {
                // Whoever takes the run up finds all that was recorded, and goes on.
                let (again, loaded) = Store::load(failing.clone(), root, &plan)
                    .unwrap_or_else(|error| panic!("{told}: {error}"));
                (store, run) = (again, loaded);
                let known = completed(&plan, &run);
                assert!(known.starts_with(&done), "{told}: {known:?}, not {done:?}");
                done = known;
                // What was open is owed again.
                let resumed = Event::Resumed { policy: Policy::default(), asked: false };
                store.record(Time(clock), &resumed).unwrap();
                engine::apply(&plan, &mut run, Time(clock), &resumed);
                break;
            }
        }
    }
    let _ = store.commit(Time(clock)).or_else(|_| store.commit(Time(clock)));
    let _ = store.save(&plan, &run, Time(clock)).or_else(|_| store.save(&plan, &run, Time(clock)));
    let loaded = Store::load(failing.clone(), root, &plan);
    let loaded = loaded.or_else(|_| Store::load(failing.clone(), root, &plan));
    let (_, loaded) = loaded.unwrap_or_else(|error| panic!("{told}: {error}"));
    assert_eq!(completed(&plan, &loaded), done, "{told}");
    assert_eq!(done, ["A", "B", "C"], "{told}");
    calls(&failing)
}

fn completed(plan: &Plan, run: &Run) -> Vec<String> {
    let slots = run.slots().into_iter();
    let done = slots.filter(|(_, slot)| slot.status() == StepStatus::Completed);
    done.map(|(here, _)| here.path(plan).to_string()).collect()
}

/// One failing call: its number, how it fails, and whether it did what was asked.
type Call = (u64, Errno, bool);

/// A whole fleet under one failing call: submitting, claiming, beating, completing, advancing, the
/// snapshot, a question and its answer, and a coordinator that takes up the run of a dead one.
fn fleet_story(dir: &Path, call: Call) -> (u64, Option<String>) {
    let outcome = play_failing(dir, call, false);
    let (at, error, after) = call;
    let told = format!("call {at}, {error}, {}", if after { "after" } else { "before" });
    let wrong =
        (!outcome.violations.is_empty()).then(|| format!("{told}: {:?}", outcome.violations));
    (outcome.calls, wrong)
}

fn fail_each(story: impl Fn(usize, Errno, bool) -> usize) -> usize {
    let calls = story(usize::MAX, Errno::EIO, false);
    let mut failed = 0;
    for at in 0..calls {
        for error in ERRORS {
            for after in [false, true] {
                story(at, error, after);
                failed += 1;
            }
        }
    }
    failed
}

#[test]
fn the_queue_tells_no_lie_whatever_call_fails() {
    let failed = fail_each(queue_story);
    eprintln!("{failed} failed calls");
    assert!(failed > 500, "{failed}");
}

#[test]
fn the_store_tells_no_lie_whatever_call_fails() {
    let failed = fail_each(store_story);
    eprintln!("{failed} failed calls");
    assert!(failed > 200, "{failed}");
}

/// Each call with each error, before and after; some of them only, unless ORCHESTRATE_SIM_RUNS says
/// that there is time. ORCHESTRATE_SIM_CALL is one call.
#[test]
fn a_fleet_goes_on_whatever_call_fails() {
    let quiet = (u64::MAX, Errno::EIO, false);
    let (calls, wrong) = fleet_story(tempfile::tempdir().unwrap().path(), quiet);
    assert_eq!(wrong, None);
    let one = variable("ORCHESTRATE_SIM_CALL");
    let all = one.is_some() || variable("ORCHESTRATE_SIM_RUNS").is_some();
    let calls = one.map_or(0..calls, |call| call..call + 1);
    let each = calls.flat_map(|at| ERRORS.map(|error| [(at, error, false), (at, error, true)]));
    let each: Vec<Call> = each.flatten().step_by(if all { 1 } else { 23 }).collect();
    let done = on_all_cores(each.iter().copied(), |dir, call| fleet_story(dir, call).1);
    let wrong: Vec<&String> = done.iter().flatten().collect();
    assert!(wrong.is_empty(), "{} of {}: {wrong:#?}", wrong.len(), each.len());
    eprintln!("a fleet: {} failed calls", each.len());
}
