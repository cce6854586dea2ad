//! What accounts that are left alone do to those who want to ask them.

use super::*;
use crate::provider::{End, Kind, Stream};
use crate::time::Time;

fn parking(dir: &Path) -> Arc<Parking> {
    started(dir, false)
}

fn started(dir: &Path, by_hand: bool) -> Arc<Parking> {
    std::fs::create_dir_all(dir.join(".orchestrate")).unwrap();
    let ms = Duration::from_millis;
    Arc::new(Parking::new(dir, ms(30), ms(100), by_hand))
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

#[track_caller]
fn open(parking: &Arc<Parking>) -> Arc<Pass> {
    parking.state().looked = None;
    match parking.enter("claude", "claude") {
        Entry::Open(pass) => pass,
        Entry::Parked(note) => panic!("parked: {note:?}"),
    }
}

fn is_parked(parking: &Arc<Parking>) -> bool {
    parking.state().looked = None;
    matches!(parking.enter("claude", "claude"), Entry::Parked(_))
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
    assert!(pass.returns(&limit(1), 99));
    let Entry::Open(other) = b.enter("codex", "codex") else { panic!("others go on") };
    other.heard(&answered());
    assert!(is_parked(&b), "another account says nothing of this one");
    assert!(lift(dir.path(), "claude").unwrap());
    assert!(!is_parked(&b) && !lift(dir.path(), "claude").unwrap());
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
            all.iter().map(|each| scope.spawn(|| each.enter("claude", "claude"))).collect();
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
    let path = dir.path().join(PARKED).join(trial_file("claude", &word, 1));
    std::fs::write(&path, seal::seal(who.as_object().unwrap())).unwrap();
    let trial = open(&parking);
    assert!(dir.path().join(PARKED).join(trial_file("claude", &word, 2)).exists());
    trial.heard(&answered());
}

#[test]
fn a_person_lifts_what_needs_one_or_starts_something_by_hand() {
    let dir = tempfile::tempdir().unwrap();
    let worker = parking(dir.path());
    let pass = open(&worker);
    pass.heard(&person());
    assert!(pass.returns(&person(), 1) && is_parked(&worker));
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
    assert!(lift(dir.path(), "claude").unwrap() && !is_parked(&there));
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
    assert!(!pass.returns(&limit(60_000), 1), "it would be claimed again at once");
}

#[test]
fn a_fault_that_may_be_the_tasks_own_counts_in_the_end() {
    let dir = tempfile::tempdir().unwrap();
    let pass = open(&parking(dir.path()));
    let fault = outcome(Verdict::BackOff { reason: "500".into(), crowded: false }, None);
    pass.heard(&fault);
    assert!(pass.returns(&fault, TRIES - 1) && !pass.returns(&fault, TRIES));
    assert!(pass.returns(&busy(), TRIES), "of a limit no task is to blame");
}
