//! What every queue must do, verb by verb.

use std::collections::HashSet;

use super::*;

#[test]
fn the_most_urgent_and_then_the_oldest_is_claimed_once() {
    on_every_disk(|disk, root| {
        let (one, two) = (open(disk, root, "one"), open(disk, root, "two"));
        assert!(one.waiting("qa").unwrap().is_empty() && take(&one).is_none());
        one.enqueue(&[(1, 5), (2, 5), (3, 0), (4, 9)].map(|(n, p)| task(n, p))).unwrap();
        assert_eq!(labels(&one.waiting("qa").unwrap()), ["t3", "t1", "t2", "t4"]);
        assert!(!two.waiting("qa").unwrap().is_empty());
        // Both have listed all four; each goes to one of them.
        let mut order: Vec<String> = Vec::new();
        for queue in [&one, &two, &one, &two] {
            order.push(take(queue).unwrap().task.name.label);
        }
        assert_eq!(order[0], "t3");
        let all: HashSet<_> = order.iter().map(String::as_str).collect();
        assert_eq!(all, HashSet::from(["t1", "t2", "t3", "t4"]));
        assert!(take(&one).is_none() && take(&two).is_none());
        assert_eq!(one.claims("qa").unwrap().len(), 4);
    });
}

#[test]
fn a_claim_carries_the_whole_document() {
    on_every_disk(|disk, root| {
        let one = open(disk, root, "one");
        let mut wanted = task(1, 5);
        wanted.document.insert("text".into(), "é\n\u{0}\"".into());
        one.enqueue(std::slice::from_ref(&wanted)).unwrap();
        let claim = take(&one).unwrap();
        for (key, value) in &wanted.document {
            assert_eq!(claim.task.document.get(key), Some(value));
        }
        assert_eq!((claim.task.batch.as_str(), claim.task.crash_limit), ("day", 3));
        assert_eq!((claim.agent.as_str(), claim.name.worker.as_str()), ("qa", "one"));
        assert_eq!(claim.name.task, wanted.name);
    });
}

#[test]
fn one_particular_task_can_be_claimed() {
    on_every_disk(|disk, root| {
        let (one, two) = (open(disk, root, "one"), open(disk, root, "two"));
        one.enqueue(&[task(1, 5), task(2, 5)]).unwrap();
        let name = task(2, 5).name;
        let Claimed::Task(claim) = two.claim_this("qa", &name).unwrap() else { panic!() };
        assert_eq!(claim.task.name, name);
        assert_eq!(one.claim_this("qa", &name).unwrap(), Claimed::Nothing);
        assert_eq!(take(&one).unwrap().task.name.label, "t1");
    });
}

#[test]
fn a_task_put_out_as_claimed_never_waits() {
    on_every_disk(|disk, root| {
        let one = open(disk, root, "one");
        let claim = one.enqueue_claimed(&task(1, 5)).unwrap();
        assert!(one.waiting("qa").unwrap().is_empty());
        assert_eq!(one.claims("qa").unwrap(), std::slice::from_ref(&claim.name));
        assert!(one.adopt_surprises(&HashSet::new()).unwrap().is_empty());
        assert_eq!(finish(&one, &claim, End::Processed).unwrap(), Ending::Committed);
        let claim = one.enqueue_claimed(&task(2, 5)).unwrap();
        let two = open(disk, root, "two");
        assert_eq!(
            two.reap("one").unwrap(),
            [Reaped::Returned { name: claim.name.task.next(true) }]
        );
    });
}

#[test]
fn a_group_is_ended_each_by_its_own_move() {
    on_every_disk(|disk, root| {
        let (one, two) = (open(disk, root, "one"), open(disk, root, "two"));
        let mut tasks = [1, 2, 3, 4].map(|number| task(number, 5));
        tasks[1].batch = "other".into();
        one.enqueue(&tasks).unwrap();
        let claims: Vec<Claim> = std::iter::from_fn(|| take(&one)).collect();
        // The third is taken away meanwhile.
        two.release(claims[2].clone()).unwrap();
        let ends = [End::Processed, End::Failed, End::Processed, End::Cancelled];
        let group: Vec<Finish> = claims
            .iter()
            .zip(ends)
            .map(|(claim, end)| Finish { claim: claim.clone(), end, status: done() })
            .collect();
        let results: Vec<Ending> = one.complete(group).into_iter().map(Result::unwrap).collect();
        use Ending::{Committed, Fenced};
        assert_eq!(results, [Committed, Committed, Fenced, Committed]);
        let ended = |end, batch| two.ended(end, batch).unwrap();
        assert_eq!(ended(End::Processed, "day"), [(claims[0].name.clone(), "one".to_owned())]);
        assert_eq!(ended(End::Failed, "other"), [(claims[1].name.clone(), "one".to_owned())]);
        assert_eq!(ended(End::Cancelled, "day"), [(claims[3].name.clone(), "one".to_owned())]);
        assert!(ended(End::Failed, "day").is_empty());
        let batches = |end| two.batches(end).unwrap();
        assert_eq!(
            (batches(End::Processed), batches(End::Failed)),
            (vec!["day".into(), "other".into()], vec!["other".into()])
        );
        let status = |end, batch, at: usize| two.status(end, batch, &claims[at].name).unwrap();
        assert_eq!(status(End::Processed, "day", 0), Some(done()));
        assert_eq!(status(End::Failed, "other", 1), Some(done()));
        // What the fenced one had to say is evidence and no status.
        assert_eq!(status(End::Processed, "day", 2), None);
        assert_eq!(disk.list(&one.layout.evidence()).unwrap().len(), 1);
        // What its own holder ended is found by guessing its name.
        let guess =
            |at: usize| two.ended_by_holder(&claims[at].task.batch, &claims[at].name).unwrap();
        assert_eq!(guess(0), Some((End::Processed, done())));
        assert_eq!(guess(1), Some((End::Failed, done())));
        assert_eq!(guess(2), None);
    });
}

#[test]
fn a_durable_group_on_the_real_disk_is_whole_and_in_order() {
    let dir = tempfile::tempdir().unwrap();
    let disk: Arc<dyn Disk> = Arc::new(RealDisk::default());
    let one = open_as(&disk, dir.path(), "one", true);
    let tasks: Vec<Task> = (0..40).map(|number| task(number, 5)).collect();
    one.enqueue(&tasks).unwrap();
    let claims: Vec<Claim> = std::iter::from_fn(|| take(&one)).collect();
    let numbers: Vec<_> = claims.iter().map(|c| c.task.document["number"].as_u64()).collect();
    assert_eq!(numbers, (0..40).map(Some).collect::<Vec<_>>());
    let status = |claim: &Claim| object(json!({ "number": claim.task.document["number"] }));
    let group: Vec<Finish> = claims
        .iter()
        .map(|claim| Finish { claim: claim.clone(), end: End::Processed, status: status(claim) })
        .collect();
    assert!(one.complete(group).into_iter().all(|result| result.unwrap() == Ending::Committed));
    for claim in &claims {
        let told = one.ended_by_holder("day", &claim.name).unwrap();
        assert_eq!(told, Some((End::Processed, status(claim))));
    }
    assert!(disk.list(&one.layout.tmp()).unwrap().is_empty());
}

#[test]
fn the_same_end_twice_is_one_end_and_another_one_is_fenced() {
    on_every_disk(|disk, root| {
        let one = open(disk, root, "one");
        one.enqueue(&[task(1, 5)]).unwrap();
        let claim = take(&one).unwrap();
        assert_eq!(finish(&one, &claim, End::Processed).unwrap(), Ending::Committed);
        let other = object(json!({ "success": false, "ticket": "secret" }));
        let again = Finish { claim: claim.clone(), end: End::Processed, status: other };
        assert_eq!(one.complete_one(again).unwrap(), Ending::Committed);
        assert_eq!(one.status(End::Processed, "day", &claim.name).unwrap(), Some(done()));
        assert_eq!(finish(&one, &claim, End::Failed).unwrap(), Ending::Fenced);
        assert_eq!(one.release(claim).unwrap(), Ending::Fenced);
        assert!(one.ended(End::Failed, "day").unwrap().is_empty());
    });
}

#[test]
fn what_is_given_back_comes_again_and_fences_whoever_had_it() {
    on_every_disk(|disk, root| {
        let (one, two) = (open(disk, root, "one"), open(disk, root, "two"));
        one.enqueue(&[task(1, 5)]).unwrap();
        let claim = take(&one).unwrap();
        assert_eq!(one.release(claim.clone()).unwrap(), Ending::Committed);
        let again = take(&two).unwrap();
        assert_eq!((again.name.task.attempt, again.name.task.crashes), (TaskAttempt::new(2), 0));
        assert_eq!(finish(&one, &claim, End::Processed).unwrap(), Ending::Fenced);
        assert_eq!(finish(&two, &again, End::Processed).unwrap(), Ending::Committed);
        assert_eq!(two.ended(End::Processed, "day").unwrap().len(), 1);
    });
}

#[test]
fn claims_of_the_dead_come_back_until_they_are_poison() {
    on_every_disk(|disk, root| {
        let judge = open(disk, root, "judge");
        judge.enqueue(&[task(1, 5)]).unwrap();
        for (life, worker) in ["a1", "a2", "a3"].into_iter().enumerate() {
            let doomed = open(disk, root, worker);
            let claim = take(&doomed).unwrap();
            assert_eq!(claim.name.task.crashes as usize, life);
            let reaped = judge.reap(worker).unwrap();
            let wanted = match life {
                2 => Reaped::Poison { name: claim.name.clone() },
                _ => Reaped::Returned { name: claim.name.task.next(true) },
            };
            assert_eq!(reaped, [wanted]);
            assert!(judge.reap(worker).unwrap().is_empty());
            assert_eq!(finish(&doomed, &claim, End::Processed).unwrap(), Ending::Fenced);
        }
        let failed = judge.ended(End::Failed, "day").unwrap();
        assert_eq!((failed.len(), failed[0].1.as_str()), (1, "judge"));
        let status = judge.status(End::Failed, "day", &failed[0].0).unwrap().unwrap();
        assert_eq!(status["error"]["reason"], "crash_limit");
        assert_eq!((&status["ticket"], &status["worker"]), (&json!("secret"), &json!("a3")));
        assert_eq!(judge.ended_by_holder("day", &failed[0].0).unwrap(), None);
    });
}

#[test]
fn whoever_died_after_its_status_had_finished() {
    on_every_disk(|disk, root| {
        let (one, two) = (open(disk, root, "one"), open(disk, root, "two"));
        one.enqueue(&[task(1, 5)]).unwrap();
        let claim = take(&one).unwrap();
        let dir = one.layout.end(End::Failed, "day");
        disk.make_dirs(&dir).unwrap();
        disk.write(&dir.join(claim.name.status()), &seal::seal(&done())).unwrap();
        let reaped = two.reap("one").unwrap();
        assert_eq!(reaped, [Reaped::Finished { name: claim.name.clone(), end: End::Failed }]);
        assert_eq!(
            two.ended(End::Failed, "day").unwrap(),
            [(claim.name.clone(), "two".to_owned())]
        );

        // Its holder was only slow. It is fenced, and what it had said goes on counting.
        for end in [End::Failed, End::Processed] {
            assert_eq!(finish(&one, &claim, end).unwrap(), Ending::Fenced);
            assert_eq!(two.status(End::Failed, "day", &claim.name).unwrap(), Some(done()));
        }
        assert_eq!(two.status(End::Processed, "day", &claim.name).unwrap(), None);
        // A torn status is none.
        one.enqueue(&[task(2, 5)]).unwrap();
        let claim = take(&one).unwrap();
        disk.write(&dir.join(claim.name.status()), b"{\"success\":").unwrap();
        assert_eq!(
            two.reap("one").unwrap(),
            [Reaped::Returned { name: claim.name.task.next(true) }]
        );
    });
}

#[test]
fn waiting_claimed_and_orphaned_tasks_can_be_cancelled() {
    on_every_disk(|disk, root| {
        let (one, two) = (open(disk, root, "one"), open(disk, root, "two"));
        let numbered = |number: u64, members: Value| {
            let mut task = task(number, 5);
            task.document.extend(object(members));
            task
        };
        one.enqueue(&[
            task(1, 5),
            task(2, 5),
            numbered(3, json!({ "run_id": "r7", "step": "Build" })),
            numbered(4, json!({ "run_id": "r7" })),
            task(5, 5),
        ])
        .unwrap();
        // Taken out before anybody claims it, once.
        let name = task(1, 5).name;
        assert_eq!(two.cancel_waiting("qa", &name).unwrap(), Ending::Committed);
        assert_eq!(one.cancel_waiting("qa", &name).unwrap(), Ending::Fenced);
        // Asked for, by its own id and as a step of a run: whoever claims it ends it.
        two.request_cancel(task(2, 5).name.id.as_str()).unwrap();
        two.request_cancel("r7").unwrap();
        let asked = [task(2, 5).name.id.to_string(), "r7".to_owned()];
        assert_eq!(one.cancel_requests().unwrap(), HashSet::from(asked));
        let fresh = open(disk, root, "fresh");
        // The run itself goes to whoever drives it.
        assert_eq!(take(&fresh).unwrap().task.name.label, "t4");
        let last = take(&fresh).unwrap();
        assert_eq!(last.task.name.label, "t5");
        assert!(take(&fresh).is_none());
        // Asked for while it is held by one that dies.
        two.request_cancel(last.name.task.id.as_str()).unwrap();
        let judge = open(disk, root, "judge");
        let reaped = judge.reap("fresh").unwrap();
        assert!(reaped.contains(&Reaped::Cancelled { name: last.name }), "{reaped:?}");
        let cancelled = two.ended(End::Cancelled, "day").unwrap();
        let mut ended: Vec<_> =
            cancelled.iter().map(|(name, _)| name.task.label.as_str()).collect();
        ended.sort_unstable();
        assert_eq!(ended, ["t1", "t2", "t3", "t5"]);
        for (name, _) in &cancelled {
            let status = two.status(End::Cancelled, "day", name).unwrap().unwrap();
            assert_eq!(status["error"]["reason"], "cancelled");
            assert_eq!(status.get("step").is_some(), name.task.label == "t3");
        }
        two.forget_cancel("r7").unwrap();
        two.forget_cancel("r7").unwrap();
        assert!(!two.cancel_requests().unwrap().contains("r7"));
        for bad in ["", "../x", ".hidden", "a/b"] {
            assert_eq!(two.request_cancel(bad).unwrap_err().kind(), io::ErrorKind::InvalidInput);
        }
    });
}

#[test]
fn an_ended_task_can_be_put_back() {
    on_every_disk(|disk, root| {
        let (one, two) = (open(disk, root, "one"), open(disk, root, "two"));
        let mut crashed = task(1, 5);
        crashed.name.crashes = 2;
        one.enqueue(&[crashed]).unwrap();
        let claim = take(&one).unwrap();
        finish(&one, &claim, End::Failed).unwrap();
        two.request_cancel(claim.name.task.id.as_str()).unwrap();
        let requeue = || two.requeue(End::Failed, "day", &claim.name, "one").unwrap();
        assert_eq!((requeue(), requeue()), (Ending::Committed, Ending::Fenced));
        assert!(two.ended(End::Failed, "day").unwrap().is_empty());
        assert_eq!(two.status(End::Failed, "day", &claim.name).unwrap(), None);
        let again = take(&two).unwrap();
        assert_eq!((again.name.task.attempt, again.name.task.crashes), (TaskAttempt::new(2), 0));
        assert_eq!(again.task.document["number"], 1);
        finish(&two, &again, End::Processed).unwrap();
        assert_eq!(two.ended(End::Processed, "day").unwrap().len(), 1);
        // What is no task cannot be executed.
        disk.write(&one.layout.inbox("qa").join(task(2, 5).name.file()), b"x").unwrap();
        let Claimed::Quarantined { name, .. } = one.claim("qa").unwrap() else { panic!() };
        let refused = two.requeue(End::Failed, "unreadable", &name, "one").unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::InvalidData);
    });
}

#[test]
fn nothing_is_claimed_while_an_agent_is_paused() {
    on_every_disk(|disk, root| {
        let one = open(disk, root, "one");
        let mut other = task(2, 5);
        other.agent = "dev".into();
        one.enqueue(&[task(1, 5), other]).unwrap();
        assert_eq!(one.paused("qa").unwrap(), None);
        one.pause("qa", "the model is down").unwrap();
        one.pause("qa", "the model is still down").unwrap();
        assert_eq!(one.paused("qa").unwrap().as_deref(), Some("the model is still down"));
        let name = task(1, 5).name;
        for queue in [&one, &open(disk, root, "two")] {
            assert_eq!(queue.claim("qa").unwrap(), Claimed::Nothing);
            assert_eq!(queue.claim_this("qa", &name).unwrap(), Claimed::Nothing);
            assert!(!queue.waiting("qa").unwrap().is_empty());
        }
        assert!(matches!(one.claim("dev").unwrap(), Claimed::Task(_)));
        one.resume("qa").unwrap();
        one.resume("qa").unwrap();
        assert!(take(&one).is_some() && one.paused("qa").unwrap().is_none());
    });
}

#[test]
fn a_task_is_found_and_read_wherever_it_is() {
    on_every_disk(|disk, root| {
        let one = open(disk, root, "one");
        let wanted = task(1, 5);
        let id = &wanted.name.id;
        let find = || one.find("qa", "day", id).unwrap();
        assert_eq!(find(), None);
        one.enqueue(&[task(0, 5), wanted.clone(), task(2, 5)]).unwrap();
        let mut places = vec![find().unwrap()];
        assert!(matches!(&places[0], Place::Waiting { name, .. } if *name == wanted.name));
        let Claimed::Task(claim) = one.claim_this("qa", &wanted.name).unwrap() else { panic!() };
        places.push(find().unwrap());
        assert_eq!(places[1], Place::Claimed { agent: "qa".into(), name: claim.name.clone() });
        assert!(one.read(&places[0], "day").unwrap().is_none());
        assert_eq!(one.read(&places[1], "day").unwrap().unwrap(), claim.task);
        finish(&one, &claim, End::Cancelled).unwrap();
        let place = find().unwrap();
        let (end, by) = (End::Cancelled, "one".to_owned());
        assert_eq!(place, Place::Ended { end, name: claim.name.clone(), by });
        assert_eq!(one.read(&place, "day").unwrap().unwrap(), claim.task);
        assert_eq!(one.find("qa", "other", id).unwrap(), None);
    });
}

#[test]
fn agents_are_those_with_an_inbox_or_claims() {
    on_every_disk(|disk, root| {
        let one = open(disk, root, "one");
        assert_eq!(one.agents().unwrap(), ["qa"]);
        disk.write(&one.layout.inboxes().join("README.md"), b"hello").unwrap();
        disk.make_dirs(&one.layout.claimed("dev")).unwrap();
        disk.make_dirs(&one.layout.inboxes().join(".git")).unwrap();
        assert_eq!(one.agents().unwrap(), ["dev", "qa"]);
        for bad in ["", "..", "a/b", ".x"] {
            assert!(one.claim(bad).is_err() && one.waiting(bad).is_err(), "{bad}");
            assert!(one.enqueue(&[Task { agent: bad.into(), ..task(1, 5) }]).is_err(), "{bad}");
            assert!(one.enqueue(&[Task { batch: bad.into(), ..task(1, 5) }]).is_err(), "{bad}");
        }
    });
}

#[test]
fn a_beat_changes_and_keeps_its_length() {
    on_every_disk(|disk, root| {
        let one = open(disk, root, "one");
        assert_eq!(one.read_beat("one").unwrap(), None);
        let mut seen = HashSet::new();
        for _ in 0..3 {
            one.beat().unwrap();
            seen.insert(one.read_beat("one").unwrap().unwrap());
        }
        assert_eq!(seen.len(), 3);
        assert_eq!(seen.iter().map(Vec::len).collect::<HashSet<_>>().len(), 1);
    });
}

#[test]
fn half_made_files_of_the_dead_are_swept() {
    on_every_disk(|disk, root| {
        let one = open(disk, root, "one");
        for file in ["one.aaa", "dead.bbb", "alive.ccc", "dead.ddd"] {
            disk.write(&one.layout.tmp().join(file), b"x").unwrap();
        }
        assert_eq!(one.sweep_tmp(&|worker| worker != "alive").unwrap(), 2);
        assert_eq!(disk.list(&one.layout.tmp()).unwrap(), ["alive.ccc", "one.aaa"]);
    });
}

#[test]
fn what_is_not_to_be_put_out_any_more_does_not_appear() {
    on_every_disk(|disk, root| {
        let one = open(disk, root, "one");
        let tasks = [task(1, 5), task(2, 5)];
        let still = |task: &Task| Ok(task.name.label == "t2");
        let published = one.enqueue_while(&tasks, &still);
        assert!(matches!(published[..], [Published::Refused, Published::Yes]), "{published:?}");
        assert_eq!(one.waiting("qa").unwrap(), [tasks[1].name.clone()]);
        assert_eq!(disk.list(&one.layout.tmp()).unwrap(), [""; 0], "nothing is left of the other");
    });
}

#[test]
fn whoever_leaves_takes_its_half_made_files_along() {
    on_every_disk(|disk, root| {
        let one = open(disk, root, "one");
        for file in ["one.aaa", "other.bbb"] {
            disk.write(&one.layout.tmp().join(file), b"x").unwrap();
        }
        assert_eq!(one.sweep_own_tmp().unwrap(), 1);
        assert_eq!(disk.list(&one.layout.tmp()).unwrap(), ["other.bbb"]);
    });
}
