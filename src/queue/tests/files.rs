//! What lies in an inbox and is no task, and directories that are not there.

use std::collections::HashSet;
use std::os::unix::fs::{PermissionsExt, symlink};

use super::*;
use crate::queue::VolumeFault;
use crate::queue::claim::SIZE_MAX;

/// Claims everything, and gives the reasons why files were put aside.
fn drain(queue: &Queue) -> (usize, Vec<String>) {
    let (mut claimed, mut reasons) = (0, Vec::new());
    loop {
        match queue.claim("qa").unwrap() {
            Claimed::Task(_) => claimed += 1,
            Claimed::Quarantined { name, reason } => {
                let status = queue.status(End::Failed, "unreadable", &name).unwrap().unwrap();
                assert_eq!(status["error"], json!({ "reason": "unreadable", "message": reason }));
                assert_eq!(
                    (&status["task_id"], &status["agent"]),
                    (&json!(name.task.id.as_str()), &json!("qa"))
                );
                reasons.push(reason);
            }
            Claimed::Nothing => return (claimed, reasons),
        }
    }
}

#[test]
fn what_is_no_sealed_task_fails_with_a_reason_and_keeps_nobody() {
    on_every_disk(|disk, root| {
        let one = open(disk, root, "one");
        let inbox = one.layout.inbox("qa");
        let whole = seal::seal(&object(json!({ "batch": "day" })));
        let strange = seal::seal(&object(json!({ "batch": "../../etc" })));
        let contents: [&[u8]; 5] = [b"", b"do this", &whole[..whole.len() - 9], b"{}\n", &strange];
        for (number, content) in (1..).zip(contents) {
            disk.write(&inbox.join(task(number, 5).name.file()), content).unwrap();
        }
        disk.make_dirs(&inbox.join(task(6, 5).name.file())).unwrap();
        one.enqueue(&[task(7, 5)]).unwrap();
        let (claimed, reasons) = drain(&one);
        assert_eq!((claimed, reasons.len()), (1, 6), "{reasons:?}");
        assert!(reasons[0].contains("seal") && reasons[4].contains("batch"), "{reasons:?}");
        assert!(reasons[5].contains("no regular file"), "{reasons:?}");
        assert_eq!(one.ended(End::Failed, "unreadable").unwrap().len(), 6);
        // Nor does it keep whoever reaps.
        let name = task(8, 5).name;
        let claim = ClaimName { task: name, worker: "dead".into(), claim: "x".into() };
        disk.write(&one.layout.claimed("qa").join(claim.file()), b"").unwrap();
        assert_eq!(one.reap("dead").unwrap(), [Reaped::Finished { name: claim, end: End::Failed }]);
    });
}

#[test]
fn pipes_links_and_giants_are_not_read() {
    let dir = tempfile::tempdir().unwrap();
    let disk: Arc<dyn Disk> = Arc::new(RealDisk::default());
    let one = open(&disk, dir.path(), "one");
    let at = |number| one.layout.inbox("qa").join(task(number, 5).name.file());
    nix::unistd::mkfifo(&at(1), nix::sys::stat::Mode::S_IRWXU).unwrap();
    let secret = dir.path().join("secret");
    std::fs::write(&secret, seal::seal(&object(json!({ "batch": "day" })))).unwrap();
    symlink(&secret, at(2)).unwrap();
    std::fs::File::create(at(3)).unwrap().set_len(SIZE_MAX + 1).unwrap();
    let _socket = std::os::unix::net::UnixListener::bind(at(4)).unwrap();
    let (claimed, reasons) = drain(&one);
    assert_eq!(claimed, 0);
    for (reason, part) in reasons.iter().zip(["no regular file", "a link", "too large", "a socket"])
    {
        assert!(reason.contains(part), "{reason}");
    }
    assert_eq!(reasons.len(), 4);
    assert!(secret.exists());
}

#[test]
fn names_that_are_not_canonical_are_left_alone() {
    on_every_disk(|disk, root| {
        let one = open(disk, root, "one");
        for file in ["fix-login.task", "README", "5-x.a01.task", ".x.task"] {
            disk.write(&one.layout.inbox("qa").join(file), b"do this").unwrap();
        }
        assert!(one.waiting("qa").unwrap().is_empty());
        assert_eq!(one.claim("qa").unwrap(), Claimed::Nothing);
        assert_eq!(disk.list(&one.layout.inbox("qa")).unwrap().len(), 4);
    });
}

#[test]
fn an_inbox_that_anybody_may_write_to_is_reported() {
    let dir = tempfile::tempdir().unwrap();
    let disk: Arc<dyn Disk> = Arc::new(RealDisk::default());
    let one = open(&disk, dir.path(), "one");
    let inbox = one.layout.inbox("qa");
    let mode = std::fs::metadata(&inbox).unwrap().permissions().mode();
    assert_eq!(mode & 0o002, 0, "{mode:o}");
    assert_eq!(one.unsafe_inbox("qa").unwrap(), None);
    assert_eq!(one.unsafe_inbox("nobody").unwrap(), None);
    std::fs::set_permissions(&inbox, PermissionsExt::from_mode(0o777)).unwrap();
    let told = one.unsafe_inbox("qa").unwrap().unwrap();
    assert!(told.contains("chmod o-w"), "{told}");
}

#[test]
fn a_directory_that_was_removed_is_made_again() {
    let sim = Arc::new(SimDisk::default());
    let disk: Arc<dyn Disk> = sim.clone();
    let one = open(&disk, Path::new("ws"), "one");
    one.enqueue(&[task(1, 5), task(2, 5)]).unwrap();
    sim.take_away(&one.layout.claimed("qa"));
    let first = take(&one).unwrap();
    finish(&one, &first, End::Processed).unwrap();
    sim.take_away(&one.layout.end(End::Processed, "day"));
    let second = take(&one).unwrap();
    assert_eq!(finish(&one, &second, End::Processed).unwrap(), Ending::Committed);
    assert_eq!(one.status(End::Processed, "day", &second.name).unwrap(), Some(done()));
    sim.take_away(&one.layout.inbox("qa"));
    assert!(one.waiting("qa").unwrap().is_empty() && take(&one).is_none());
    sim.take_away(&one.layout.tmp());
    one.enqueue(&[task(3, 5)]).unwrap();
    sim.take_away(&one.layout.beats());
    one.beat().unwrap();
    let third = take(&one).unwrap();
    sim.take_away(&one.layout.inbox("qa"));
    assert_eq!(one.release(third).unwrap(), Ending::Committed);
    assert_eq!(labels(&one.waiting("qa").unwrap()), ["t3"]);
}

/// Every verb that could take nothing for an answer, in a few words.
fn all_refuse(queue: &Queue, claim: &Claim) {
    let name = task(2, 5).name;
    let known = HashSet::new();
    let refused: Vec<(&str, Option<io::Error>)> = vec![
        ("enqueue", queue.enqueue(&[task(9, 5)]).err()),
        ("claim", queue.claim("qa").err()),
        ("claim_this", queue.claim_this("qa", &name).err()),
        ("complete", finish(queue, claim, End::Processed).err()),
        ("release", queue.release(claim.clone()).err()),
        ("reap", queue.reap("dead").err()),
        ("adopt_surprises", queue.adopt_surprises(&known).err()),
        ("agents", queue.agents().err()),
        ("claims", queue.claims("qa").err()),
        ("waiting", queue.waiting("qa").err()),
        ("ended", queue.ended(End::Processed, "day").err()),
        ("batches", queue.batches(End::Processed).err()),
        ("status", queue.status(End::Processed, "day", &claim.name).err()),
        ("ended_by_holder", queue.ended_by_holder("day", &claim.name).err()),
        ("find", queue.find("qa", "day", &name.id).err()),
        ("cancel_requests", queue.cancel_requests().err()),
        ("cancel_waiting", queue.cancel_waiting("qa", &name).err()),
        ("read_beat", queue.read_beat("one").err()),
        ("paused", queue.paused("qa").err()),
        ("beat", queue.beat().err()),
        ("pause", queue.pause("qa", "x").err()),
    ];
    for (verb, error) in refused {
        let error = error.unwrap_or_else(|| panic!("{verb} took it for empty"));
        assert!(error.to_string().contains("is not there"), "{verb}: {error}");
    }
}

#[test]
fn a_volume_that_is_gone_is_not_an_empty_one() {
    let sim = Arc::new(SimDisk::default());
    let disk: Arc<dyn Disk> = sim.clone();
    let one = open(&disk, Path::new("ws"), "one");
    one.enqueue(&[task(1, 5), task(2, 5)]).unwrap();
    let claim = take(&one).unwrap();
    assert!(one.is_mounted().unwrap());
    // Gone: the mount point is an empty directory.
    sim.take_away(Path::new("ws"));
    disk.make_dirs(Path::new("ws")).unwrap();
    assert!(!one.is_mounted().unwrap());
    all_refuse(&one, &claim);
    // Another one, with an empty queue of its own.
    open(&disk, Path::new("ws"), "two");
    assert!(!one.is_mounted().unwrap());
    for verb in [one.claim("qa").err(), one.waiting("qa").err(), one.claims("qa").err()] {
        assert!(verb.unwrap().to_string().contains("is not there"));
    }
    assert!(one.waiting("qa").is_err() && one.release(claim).is_err());
}

#[test]
fn all_who_come_first_agree_on_the_volume() {
    on_every_disk(|disk, root| {
        let volumes: HashSet<String> = std::thread::scope(|scope| {
            let opened =
                ["a", "b", "c", "d"].map(|me| scope.spawn(move || open(disk, root, me).volume));
            opened.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert_eq!(volumes.len(), 1);
        assert!(disk.list(&Layout::new(root).tmp()).unwrap().is_empty());
        let told: Value =
            serde_json::from_slice(&disk.read(&Layout::new(root).fleet_file()).unwrap()).unwrap();
        assert_eq!(told["schema"], "fleet/v1");
    });
}

#[test]
fn a_queue_that_lost_its_name_gets_no_other() {
    on_every_disk(|disk, root| {
        let layout = Layout::new(root);
        let one = open(disk, root, "one");
        one.enqueue(&[task(1, 5)]).unwrap();
        disk.remove(&layout.fleet_file()).unwrap();
        let error = Queue::open(disk.clone(), layout.clone(), "two", 2, false).err().unwrap();
        let fault = VolumeFault::of(&error).expect("it is about the volume");
        assert!(matches!(fault, VolumeFault::Gone { .. }), "{fault}");
        assert!(!disk.list(&root.join(".orchestrate")).unwrap().contains(&"fleet.json".into()));
        // Named anew, it is the same queue, which those who knew the old name leave alone.
        let name = serde_json::json!({ "schema": "fleet/v1", "volume": "new" }).to_string();
        disk.write(&layout.fleet_file(), name.as_bytes()).unwrap();
        assert_eq!(open(disk, root, "three").waiting("qa").unwrap().len(), 1);
        assert!(!one.is_mounted().unwrap());
    });
}
