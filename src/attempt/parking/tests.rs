//! What accounts that are left alone do to those who want to ask them.

use super::*;
use crate::agent::{End, Kind, Stream};
use crate::base::time::Time;

fn parking(dir: &Path) -> Arc<Parking> {
    started(dir, false)
}

fn started(dir: &Path, by_hand: bool) -> Arc<Parking> {
    std::fs::create_dir_all(dir.join(".orchestrate")).unwrap();
    let ms = Duration::from_millis;
    Arc::new(Parking::new(dir, ms(30), ms(100), by_hand))
}

fn target(name: &str) -> Target {
    let [account, provider, program] = [name, name, name].map(str::to_owned);
    Target { account, provider, program, kind: Kind::Claude }
}

fn outcome(verdict: Verdict, works_at: Option<Time>) -> Outcome {
    let nothing = Stream::new(Kind::Plain).finish(&End::default());
    Outcome { verdict, works_at, ..nothing }
}

fn busy() -> Outcome {
    outcome(Verdict::BackOff { reason: "529".into(), crowded: true }, None)
}

fn person() -> Outcome {
    outcome(Verdict::NeedsPerson { reason: "Not logged in".into() }, None)
}

fn limit(ms: u64) -> Outcome {
    let at = SystemClock.now().plus_ms(ms);
    outcome(Verdict::RetryAt { at, reason: "limit".into() }, Some(at))
}

fn answered() -> Outcome {
    outcome(Verdict::Answered, None)
}

fn returns(pass: &Pass, outcome: &Outcome) -> bool {
    pass.returns(&outcome.verdict, "task")
}

#[track_caller]
fn open(parking: &Arc<Parking>) -> Arc<Pass> {
    parking.state().looked = None;
    match parking.enter(&target("claude")) {
        Entry::Open(pass) => pass,
        Entry::Parked(note) => panic!("parked: {note:?}"),
    }
}

fn is_parked(parking: &Arc<Parking>) -> bool {
    parking.state().looked = None;
    matches!(parking.enter(&target("claude")), Entry::Parked(_))
}

fn wait(parking: &Arc<Parking>) {
    while is_parked(parking) {
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Waits until a rest is over, without trying.
fn rest(dir: &Path) {
    while !look(dir).unwrap().iter().all(|parked| parked.due) {
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn files(dir: &Path) -> Vec<String> {
    disk::machine().list(&dir.join(PARKED)).unwrap_or_default()
}

#[test]
fn what_one_process_meets_all_others_heed() {
    let dir = tempfile::tempdir().unwrap();
    let (a, b) = (parking(dir.path()), parking(dir.path()));
    let pass = open(&a);
    assert!(!is_parked(&b));
    pass.heard(&limit(3_600_000));
    assert!(is_parked(&a) && is_parked(&b));
    assert!(returns(&pass, &limit(1)));
    let Entry::Open(other) = b.enter(&target("codex")) else { panic!("others go on") };
    other.heard(&answered());
    assert!(is_parked(&b), "another account says nothing of this one");
    assert!(lift(dir.path(), &["claude"]).unwrap());
    assert!(!is_parked(&b) && !lift(dir.path(), &["claude"]).unwrap());
}

#[test]
fn one_tries_and_the_others_wait_for_what_it_learns() {
    let dir = tempfile::tempdir().unwrap();
    let (a, b) = (parking(dir.path()), parking(dir.path()));
    open(&a).heard(&busy());
    rest(dir.path());
    let trial = open(&a);
    assert!(is_parked(&a) && is_parked(&b), "one at a time");
    assert!(look(dir.path()).unwrap()[0].trying);
    drop(trial);
    let trial = open(&b);
    trial.heard(&busy());
    let note = trial.parked().unwrap();
    assert_eq!((note.strikes, note.rest_ms), (2, 60), "longer the second time");
    rest(dir.path());
    let trial = open(&a);
    trial.works();
    assert_eq!(look(dir.path()).unwrap().first().map(|p| p.cause), Some(Cause::Easing));
    open(&b);
    wait(&b);
    rest(dir.path());
    open(&b);
    assert_eq!(files(dir.path()), Vec::<String>::new(), "nothing is left of it");
}

#[test]
fn those_who_asked_before_it_was_known_do_not_make_it_worse() {
    let dir = tempfile::tempdir().unwrap();
    let parking = parking(dir.path());
    let passes: Vec<_> = (0..20).map(|_| open(&parking)).collect();
    for pass in &passes {
        pass.heard(&busy());
        assert_eq!(pass.parked().map(|note| note.strikes), Some(1));
    }
    passes[0].heard(&limit(60_000));
    assert_eq!(look(dir.path()).unwrap()[0].cause, Cause::Limit, "one knows more");
    passes[1].heard(&answered());
    assert!(is_parked(&parking), "that one was begun before");
}

#[test]
fn of_many_that_come_at_once_one_tries() {
    let dir = tempfile::tempdir().unwrap();
    open(&parking(dir.path())).heard(&busy());
    rest(dir.path());
    let all: Vec<_> = (0..20).map(|_| parking(dir.path())).collect();
    let entries: Vec<Entry> = std::thread::scope(|scope| {
        let asking: Vec<_> =
            all.iter().map(|each| scope.spawn(|| each.enter(&target("claude")))).collect();
        asking.into_iter().map(|asking| asking.join().unwrap()).collect()
    });
    let tries = entries.iter().filter(|entry| matches!(entry, Entry::Open(_))).count();
    assert_eq!(tries, 1);
}

#[test]
fn a_trial_of_a_process_that_is_gone_is_nobodys() {
    let dir = tempfile::tempdir().unwrap();
    let parking = parking(dir.path());
    let pass = open(&parking);
    pass.heard(&busy());
    rest(dir.path());
    let word = pass.parked().unwrap().word;
    let gone = Process { start_time: 1, ..Process::this() };
    let who = serde_json::json!({ "process": gone });
    let path = dir.path().join(PARKED).join(format!("claude~{word}~1"));
    std::fs::write(&path, seal::seal(who.as_object().unwrap())).unwrap();
    let trial = open(&parking);
    assert!(dir.path().join(PARKED).join(format!("claude~{word}~2")).exists());
    trial.heard(&answered());
}

#[test]
fn a_person_lifts_what_needs_one_or_starts_something_by_hand() {
    let dir = tempfile::tempdir().unwrap();
    let worker = parking(dir.path());
    let pass = open(&worker);
    pass.heard(&person());
    assert!(returns(&pass, &person()) && is_parked(&worker));
    let sentence = told(&look(dir.path()).unwrap()[0]);
    assert!(sentence.contains("Not logged in; then `orchestrate provider resume claude`"));
    assert!(is_parked(&parking(dir.path())), "a worker that comes later waits too");
    let by_hand = started(dir.path(), true);
    let trial = open(&by_hand);
    trial.heard(&person());
    assert!(is_parked(&by_hand), "tried once, and no better");
    open(&started(dir.path(), true)).heard(&answered());
    assert!(!is_parked(&worker), "it was answered, so the person has acted");
}

#[test]
fn another_machine_may_be_logged_in() {
    let dir = tempfile::tempdir().unwrap();
    let here = parking(dir.path());
    let there = Process { host: "elsewhere".into(), ..Process::this() };
    let mut there = Parking { here: there, ..Arc::into_inner(parking(dir.path())).unwrap() };
    there.most = Duration::from_millis(50);
    let there = Arc::new(there);
    open(&there).heard(&person());
    assert!(is_parked(&there) && !is_parked(&here));
    assert!(lift(dir.path(), &["claude"]).unwrap() && !is_parked(&there));
}

#[test]
fn what_is_no_note_stops_nobody_and_is_replaced() {
    let dir = tempfile::tempdir().unwrap();
    let parking = parking(dir.path());
    std::fs::create_dir_all(dir.path().join(PARKED)).unwrap();
    std::fs::write(dir.path().join(PARKED).join("claude"), "{\"schema\":\"parked/v1\"").unwrap();
    let pass = open(&parking);
    assert_eq!(look(dir.path()).unwrap(), []);
    pass.heard(&limit(60_000));
    assert!(is_parked(&parking));
}

#[test]
fn where_nothing_can_be_noted_nothing_goes_back() {
    let dir = tempfile::tempdir().unwrap();
    let parking = parking(dir.path());
    std::fs::write(dir.path().join(PARKED), "in the way").unwrap();
    let pass = open(&parking);
    pass.heard(&limit(60_000));
    assert!(!returns(&pass, &limit(60_000)), "it would be claimed again at once");
}

#[test]
fn a_fault_that_may_be_the_tasks_own_counts_in_the_end() {
    let dir = tempfile::tempdir().unwrap();
    let pass = open(&parking(dir.path()));
    let fault = outcome(Verdict::BackOff { reason: "500".into(), crowded: false }, None);
    pass.heard(&fault);
    for _ in 0..TRIES {
        assert!(returns(&pass, &suspended(MachineFault::Program)), "not the task's own");
        assert!(returns(&pass, &busy()), "of a limit no task is to blame");
    }
    let back_offs: Vec<bool> = (0..TRIES).map(|_| returns(&pass, &fault)).collect();
    assert_eq!(back_offs, [true, true, true, true, true, false]);
    assert!(pass.returns(&fault.verdict, "another task"));
}

fn suspended(fault: MachineFault) -> Outcome {
    outcome(Verdict::Machine { fault, reason: "it is not fit".into() }, None)
}

#[test]
fn a_fault_of_the_machine_suspends_one_provider_there_and_no_local_run() {
    let dir = tempfile::tempdir().unwrap();
    let (a, b, by_hand) = (parking(dir.path()), parking(dir.path()), started(dir.path(), true));
    assert!(!is_parked(&b) && !is_parked(&by_hand));
    let pass = open(&a);
    pass.heard(&suspended(MachineFault::Program));
    assert!(returns(&pass, &suspended(MachineFault::Program)), "no task is to blame");
    assert!(is_parked(&a) && is_parked(&b) && !is_parked(&by_hand));
    let Entry::Open(_) = b.enter(&target("codex")) else { panic!("others go on") };
    let other = Target { program: "another".into(), ..target("claude") };
    let Entry::Open(_) = b.enter(&other) else { panic!("it is another program") };
    open(&by_hand).heard(&suspended(MachineFault::Events));
    assert_eq!(files(dir.path()).len(), 1, "a local run leaves no suspension");
    let view = look(dir.path()).unwrap().remove(0);
    assert!(view.holds(&target("claude")) && !view.holds(&other) && view.host.is_some());
    assert!(view.sentence().contains("is suspended on"), "{}", view.sentence());
    assert!(lift(dir.path(), &["claude"]).unwrap() && !is_parked(&a));
}

#[test]
fn a_suspended_provider_is_tried_again_and_the_rest_grows() {
    let dir = tempfile::tempdir().unwrap();
    let (a, b) = (parking(dir.path()), parking(dir.path()));
    open(&a).heard(&suspended(MachineFault::Option));
    wait(&b);
    rest(dir.path());
    let tries = open(&a);
    assert!(is_parked(&b), "one tries");
    tries.heard(&suspended(MachineFault::Option));
    assert_eq!(look(dir.path()).unwrap()[0].strikes, 2);
    rest(dir.path());
    open(&b).answered();
    assert!(!is_parked(&a) && files(dir.path()).is_empty(), "none is left to wait for");
}

#[test]
fn a_process_that_begins_later_tries_a_suspended_provider_at_once() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir_all(dir.path().join(".orchestrate")).unwrap();
    let long = |dir: &Path| {
        let hour = Duration::from_secs(3600);
        Arc::new(Parking::new(dir, hour, hour, false))
    };
    let before = long(dir.path());
    open(&before).heard(&suspended(MachineFault::Login));
    assert!(is_parked(&before));
    let later = long(dir.path());
    open(&later).heard(&suspended(MachineFault::Login));
    assert!(is_parked(&later), "once");
}

#[test]
fn want_of_descriptors_suspends_the_whole_machine() {
    let dir = tempfile::tempdir().unwrap();
    let worker = parking(dir.path());
    let Entry::Open(pass) = worker.enter(&Target::any()) else { panic!("nothing is wrong yet") };
    pass.suspend(MachineFault::Resources, "too many open files");
    assert!(pass.parked().is_some() && is_parked(&worker));
    worker.state().looked = None;
    assert!(matches!(worker.enter(&Target::any()), Entry::Parked(_)));
    rest(dir.path());
    worker.state().looked = None;
    let Entry::Open(pass) = worker.enter(&Target::any()) else { panic!("one tries") };
    pass.works();
    assert!(!is_parked(&worker));
}

#[test]
fn three_tasks_in_a_row_suspend_and_an_answer_ends_it() {
    let dir = tempfile::tempdir().unwrap();
    let worker = parking(dir.path());
    assert!(!open(&worker).failed("1", "boom at 10:00") && !open(&worker).failed("2", "boom at 1"));
    assert!(open(&worker).failed("3", "boom at 10:02") && is_parked(&worker));
    rest(dir.path());
    let tries = open(&worker);
    tries.heard(&outcome(Verdict::Fail { reason: "boom at 10:03".into() }, None));
    assert!(tries.failed("3", "boom at 10:03"), "it is as before");
    let view = look(dir.path()).unwrap().remove(0);
    assert_eq!((view.strikes, view.fault), (2, Some(MachineFault::Repeated)));
    rest(dir.path());
    open(&worker).answered();
    assert!(!is_parked(&worker) && !open(&worker).failed("3", "boom at 10:04"));
}

#[test]
fn a_task_that_meets_a_fault_where_others_are_answered_is_to_blame() {
    let dir = tempfile::tempdir().unwrap();
    let worker = parking(dir.path());
    let fault = suspended(MachineFault::Events);
    let meets = |task: &str| {
        let pass = open(&worker);
        pass.heard(&fault);
        pass.returns(&fault.verdict, task)
    };
    assert!(meets("1"));
    rest(dir.path());
    assert!(meets("1"));
    rest(dir.path());
    open(&worker).answered();
    assert!(!meets("1"), "another task was answered here");
    rest(dir.path());
    assert!(meets("2"));
}
