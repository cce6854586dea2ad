//! The intake, tried with real files: writers that are slow, editors, crashes, and what is no
//! task at all. Time is passed by hand.

use std::collections::{BTreeSet, HashSet};
use std::ffi::OsStr;
use std::io::Write;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::symlink;
use std::sync::Arc;
use std::thread;

use serde_json::Map;

use super::files::{NAME_MAX, read_name};
use super::*;
use crate::base::ids::TaskAttempt;
use crate::disk;
use crate::queue::{Claimed, End, Finish, Queue, seal};

const SETTLE: Duration = Duration::from_millis(200);
const MOMENT: Duration = Duration::from_millis(1);

/// A workspace with a queue, and one process that takes files in.
struct World {
    dir: tempfile::TempDir,
    queue: Queue,
    intake: Intake,
    now: Instant,
}

fn settings() -> Settings {
    Settings { settle: SETTLE, task_bytes: 1000, durable: true }
}

fn queue(root: &Path, me: &str) -> Queue {
    let disk = Arc::new(crate::disk::RealDisk::default());
    let queue = Queue::open(disk, Layout::new(root), me, chance(), false).unwrap();
    queue.open_agent("engineer").unwrap();
    queue
}

fn free_tasks() -> Box<dyn Adopt> {
    Box::new(FreeTasks { config: Config::built_in() })
}

fn intake(root: &Path, me: &str) -> Intake {
    Intake::new(Layout::new(root), me, settings(), free_tasks())
}

impl World {
    fn new() -> World {
        let dir = tempfile::tempdir().unwrap();
        let (queue, intake) = (queue(dir.path(), "a"), intake(dir.path(), "a"));
        World { dir, queue, intake, now: Instant::now() }
    }

    fn inbox(&self) -> PathBuf {
        self.queue.layout.inbox("engineer")
    }

    fn path(&self, name: &str) -> PathBuf {
        self.inbox().join(name)
    }

    fn put(&self, name: &str, text: impl AsRef<[u8]>) {
        std::fs::write(self.path(name), text).unwrap();
    }

    /// Looks at the inbox after some time.
    fn after(&mut self, time: Duration) -> Scanned {
        self.now += time;
        self.intake.scan_at(&self.queue, "engineer", self.now).unwrap()
    }

    /// Lets everything settle and be taken in.
    fn settle(&mut self) -> Scanned {
        let mut all = Scanned::default();
        for _ in 0..4 {
            let mut scanned = self.after(SETTLE);
            all.adopted.append(&mut scanned.adopted);
            all.refused.append(&mut scanned.refused);
        }
        all
    }

    /// Another process comes up after the first was killed.
    fn crash(&mut self, me: &str) {
        self.intake = intake(self.dir.path(), me);
    }

    /// The texts of the tasks that wait, in their order.
    fn texts(&self) -> Vec<String> {
        let mut texts = Vec::new();
        for name in self.queue.waiting("engineer").unwrap() {
            let bytes = std::fs::read(self.path(&name.file())).unwrap();
            let document = seal::unseal(&bytes).expect("a task is sealed");
            texts.push(FreeTask::from_document(&document).unwrap().text);
        }
        texts
    }

    /// The names of all files below a directory of the queue.
    fn files(&self, below: &str) -> Vec<String> {
        let mut open = vec![self.dir.path().join(below)];
        let mut found = Vec::new();
        while let Some(dir) = open.pop() {
            for name in list(&dir).unwrap() {
                let path = dir.join(&name);
                if path.symlink_metadata().unwrap().is_dir() && !is_dropped(&name) {
                    open.push(path);
                } else {
                    found.push(name.to_string_lossy().into_owned());
                }
            }
        }
        found.sort();
        found
    }

    /// Ends every waiting task, as workers do.
    fn work_off(&self) -> usize {
        let mut done = 0;
        while let Claimed::Task(claim) = self.queue.claim("engineer").unwrap() {
            let finish = Finish { claim: *claim, end: End::Processed, status: Map::new() };
            self.queue.complete_one(finish).unwrap();
            done += 1;
        }
        done
    }
}

#[test]
fn a_dropped_file_becomes_a_task_once_it_was_left_alone() {
    let mut world = World::new();
    world.put("fix-login.task", "---\ntitle: Login\npriority: 2\n---\nFix it.\n");
    let scanned = world.after(MOMENT);
    assert!(scanned.adopted.is_empty());
    assert_eq!(scanned.next_look, Some(world.now + SETTLE), "it says when to come again");
    assert!(world.after(SETTLE / 2).adopted.is_empty());
    let scanned = world.after(SETTLE);
    let [name] = scanned.adopted.as_slice() else { panic!("{scanned:?}") };
    assert_eq!(
        (name.label.as_str(), name.priority, name.attempt),
        ("fix-login", 2, TaskAttempt::FIRST)
    );
    assert_eq!(scanned.next_look, None);
    assert!(world.intake.is_idle());
    assert_eq!(world.texts(), ["Fix it.\n"]);
    let [kept] = &world.files(".orchestrate/intake")[..] else { panic!("the original is kept") };
    assert!(kept.ends_with("-fix-login.task"));
    assert!(world.settle().adopted.is_empty(), "and it is taken once");
    let found = world.queue.find("engineer", &day(made_at(&name.id)), &name.id).unwrap();
    assert!(found.is_some(), "its batch is the day");
}

#[test]
fn every_change_begins_the_wait_anew() {
    let mut world = World::new();
    world.put("a.task", "");
    assert!(world.settle().adopted.is_empty(), "an empty file waits for content");
    assert_eq!(world.after(MOMENT).next_look, None, "which a hint tells of");
    for text in ["F", "Fi", "Fix it."] {
        world.put("a.task", text);
        assert!(world.after(SETTLE).adopted.is_empty());
    }
    assert_eq!(world.settle().adopted.len(), 1);
    assert_eq!(world.texts(), ["Fix it."]);
}

#[test]
fn names_that_are_not_dropped_tasks_are_left_alone() {
    let mut world = World::new();
    let names = [
        ".x.task",
        ".x.task.swp",
        "x.task~",
        "x.task.tmp",
        "x.task.part",
        "x.md",
        ".#x.task",
        "task",
    ];
    names.iter().for_each(|name| world.put(name, "text"));
    let scanned = world.settle();
    assert!(scanned.adopted.is_empty());
    assert_eq!(world.files("inbox").len(), names.len());
    // Those that a user may have meant as tasks are reported, once.
    let mut reported: Vec<_> = scanned.refused.iter().map(|(name, _)| name.as_str()).collect();
    reported.sort_unstable();
    assert_eq!(reported, [".x.task", "task", "x.md"]);
    assert!(world.settle().refused.is_empty());
}

#[test]
fn a_file_is_not_taken_while_somebody_writes() {
    let mut world = World::new();
    let mut writer = File::create(world.path("slow.task")).unwrap();
    writer.write_all(b"Fix ").unwrap();
    assert!(world.settle().adopted.is_empty(), "however long it pauses");
    assert!(world.after(HALF * 2).adopted.is_empty());
    assert!(world.path("slow.task").exists());
    writer.write_all(b"the login.").unwrap();
    drop(writer);
    world.settle();
    assert_eq!(world.texts(), ["Fix the login."]);
}

#[test]
fn a_writer_whose_file_was_moved_under_it_is_waited_for() {
    let mut world = World::new();
    // Where nobody tells who writes, a pause may look like the end.
    world.intake.remote = true;
    let mut writer = File::create(world.path("slow.task")).unwrap();
    writer.write_all(b"Fix ").unwrap();
    world.after(MOMENT);
    world.after(REMOTE_SETTLE);
    assert!(!world.path("slow.task").exists(), "it was moved");
    for piece in ["the ", "log", "in."] {
        writer.write_all(piece.as_bytes()).unwrap();
        assert!(world.after(REMOTE_SETTLE).adopted.is_empty(), "its handle went with it");
    }
    drop(writer);
    assert_eq!(world.after(REMOTE_SETTLE).adopted.len(), 1);
    assert_eq!(world.texts(), ["Fix the login."]);
}

#[test]
fn half_a_head_is_not_refused_before_its_other_half_had_time_to_come() {
    let mut world = World::new();
    world.intake.remote = true;
    let mut writer = File::create(world.path("half.task")).unwrap();
    writer.write_all(b"---\ntitle: A\n").unwrap();
    world.after(MOMENT);
    for _ in 0..5 {
        let scanned = world.after(REMOTE_SETTLE);
        assert!(scanned.adopted.is_empty() && scanned.refused.is_empty());
    }
    writer.write_all(b"---\nFix it.").unwrap();
    drop(writer);
    world.after(REMOTE_SETTLE);
    assert_eq!(world.after(REMOTE_SETTLE).adopted.len(), 1);
    world.put("never.task", "---\ntitle: A\n");
    world.after(MOMENT);
    world.after(REMOTE_SETTLE);
    world.after(REMOTE_SETTLE);
    assert_eq!(world.after(HALF).refused.len(), 1, "but not for ever");
}

#[test]
fn on_a_network_volume_a_file_is_left_alone_for_longer() {
    let mut world = World::new();
    world.intake.remote = true;
    world.put("a.task", "Fix it.");
    world.after(MOMENT);
    assert!(world.after(SETTLE * 2).adopted.is_empty());
    assert!(world.path("a.task").exists());
    world.after(REMOTE_SETTLE);
    assert!(!world.path("a.task").exists());
    assert!(world.after(SETTLE).adopted.is_empty(), "it is read twice");
    assert_eq!(world.after(REMOTE_SETTLE).adopted.len(), 1);
}

#[test]
fn a_writer_in_pieces_is_never_cut_short() {
    let mut world = World::new();
    // Without a wait, only who writes decides.
    world.intake.settings.settle = Duration::ZERO;
    let whole: String = (0..50).map(|line| format!("line {line}\n")).collect();
    for round in 0..20 {
        let (path, text) = (world.path(&format!("{round}.task")), whole.clone());
        let writer = thread::spawn(move || {
            let mut file = File::create(path).unwrap();
            for line in text.split_inclusive('\n') {
                file.write_all(line.as_bytes()).unwrap();
                thread::yield_now();
            }
        });
        while world.intake.scan(&world.queue, "engineer").unwrap().adopted.is_empty() {}
        writer.join().unwrap();
    }
    assert_eq!(world.texts(), vec![whole; 20]);
}

#[test]
fn an_editor_that_saves_in_place_gives_whole_versions_only() {
    let mut world = World::new();
    world.intake.settings.settle = Duration::ZERO;
    let path = world.path("a.task");
    let version = |number: usize| format!("{number}: {}", "x".repeat(500));
    let editor = thread::spawn(move || {
        for number in 0..200 {
            let mut file = File::create(&path).unwrap();
            for piece in version(number).as_bytes().chunks(100) {
                file.write_all(piece).unwrap();
            }
        }
    });
    while !editor.is_finished() {
        world.intake.scan(&world.queue, "engineer").unwrap();
    }
    editor.join().unwrap();
    world.now = Instant::now();
    let refused = world.settle().refused;
    assert!(refused.is_empty(), "{refused:?}");
    let texts = world.texts();
    assert!(texts.contains(&version(199)), "the last version is among them");
    let versions: HashSet<String> = (0..200).map(version).collect();
    assert!(texts.iter().all(|text| versions.contains(text)), "{texts:?}");
    assert_eq!(texts.iter().collect::<HashSet<_>>().len(), texts.len(), "and none twice");
}

#[test]
fn an_editor_that_renames_is_taken_at_its_word() {
    let mut world = World::new();
    world.put(".a.task.tmp", "first");
    disk::rename(&world.path(".a.task.tmp"), &world.path("a.task")).unwrap();
    world.after(MOMENT);
    world.put(".a.task.tmp", "second");
    disk::rename(&world.path(".a.task.tmp"), &world.path("a.task")).unwrap();
    assert!(world.after(SETTLE).adopted.is_empty(), "another file has come to its place");
    world.settle();
    assert_eq!(world.texts(), ["second"]);
}

#[test]
fn what_was_dropped_first_is_done_first() {
    let mut world = World::new();
    for name in ["b", "a", "c"] {
        world.put(&format!("{name}.task"), name);
        let file = File::options().write(true).open(world.path(&format!("{name}.task"))).unwrap();
        let at =
            std::time::UNIX_EPOCH + Duration::from_secs(1_700_000_000 - name.as_bytes()[0] as u64);
        file.set_modified(at).unwrap();
    }
    world.settle();
    assert_eq!(world.texts(), ["c", "b", "a"]);
}

/// Does not answer yet.
struct Later;

impl Adopt for Later {
    fn serves(&self, _: &str) -> bool {
        true
    }

    fn adopt(&mut self, _: &Dropped) -> io::Result<Adopted> {
        Err(io::Error::other("later"))
    }
}

#[test]
fn a_file_moved_aside_by_a_dead_process_is_found_and_finished() {
    let mut world = World::new();
    world.intake.adopt = Box::new(Later);
    world.put("fix login.task", "Fix it.");
    world.settle();
    assert!(!world.path("fix login.task").exists() && world.texts().is_empty());
    world.crash("b");
    assert_eq!(world.intake.recover("a").unwrap(), 1);
    // And that process dies as well.
    world.crash("c");
    assert_eq!(world.intake.recover("b").unwrap(), 1);
    let scanned = world.settle();
    assert_eq!(scanned.adopted[0].label, "fix-login");
    assert_eq!(world.texts(), ["Fix it."]);
    assert_eq!(world.intake.recover("a").unwrap() + world.intake.recover("b").unwrap(), 0);
    assert_eq!(world.files(".orchestrate/intake").len(), 1);
}

#[test]
fn a_task_that_is_out_already_is_not_put_out_again() {
    for worked_off in [false, true] {
        let mut world = World::new();
        world.put("a.task", "Fix it.");
        // The last step cannot be done: nothing can be kept there.
        let done = world.dir.path().join(".orchestrate/intake/done");
        std::fs::write(&done, "").unwrap();
        assert_eq!(world.settle().adopted.len(), 1);
        let before = if worked_off { world.work_off() } else { 0 };
        std::fs::remove_file(&done).unwrap();
        world.crash("b");
        assert_eq!(world.intake.recover("a").unwrap(), 1);
        assert!(world.settle().adopted.is_empty());
        assert_eq!(before + world.work_off(), 1);
        assert!(world.intake.is_idle());
    }
}

#[test]
fn what_cannot_be_kept_yet_is_kept_later() {
    let mut world = World::new();
    world.put("a.task", "Fix it.");
    let done = world.dir.path().join(".orchestrate/intake/done");
    std::fs::write(&done, "").unwrap();
    world.settle();
    assert!(!world.intake.is_idle());
    std::fs::remove_file(&done).unwrap();
    world.after(AGAIN * 100);
    assert!(world.intake.is_idle());
    assert_eq!(world.texts().len(), 1);
}

#[test]
fn a_refusal_that_was_begun_is_ended_by_another() {
    let mut world = World::new();
    world.put("a.task", b"\xff");
    // Its place cannot be made.
    std::fs::remove_dir(world.dir.path().join("failed")).unwrap();
    std::fs::write(world.dir.path().join("failed"), "").unwrap();
    assert!(world.settle().refused.is_empty());
    std::fs::remove_file(world.dir.path().join("failed")).unwrap();
    world.crash("b");
    world.intake.recover("a").unwrap();
    assert_eq!(world.settle().refused.len(), 1);
    assert_eq!(world.files("failed").len(), 2, "the file and its status");
}

#[test]
fn only_processes_that_do_not_live_are_recovered() {
    let mut world = World::new();
    for owner in ["a", "b", "c"] {
        let aside = world.dir.path().join(".orchestrate/intake").join(owner).join("engineer");
        std::fs::create_dir_all(&aside).unwrap();
        let id = world.intake.new_id();
        std::fs::write(aside.join(format!("{id}-{owner}.task")), owner).unwrap();
    }
    std::fs::create_dir_all(world.dir.path().join(".orchestrate/intake/done/20250101")).unwrap();
    world.crash("d");
    assert_eq!(world.intake.recover_all(&|owner| Ok(owner == "b")).unwrap(), 2);
    world.settle();
    let texts: BTreeSet<_> = world.texts().into_iter().collect();
    assert_eq!(texts, BTreeSet::from(["a".to_owned(), "c".to_owned()]));
}

#[test]
fn what_a_dead_coordinator_took_in_is_left_to_a_coordinator() {
    let mut world = World::new();
    let aside = world.dir.path().join(".orchestrate/intake/dead/coordinator");
    std::fs::create_dir_all(&aside).unwrap();
    let run = aside.join(format!("{}-w.task", world.intake.new_id()));
    std::fs::write(&run, "workflow: w.yaml").unwrap();
    assert_eq!(world.intake.recover_all(&|_| Ok(false)).unwrap(), 0);
    assert!(run.exists() && world.settle().refused.is_empty());
}

#[test]
fn a_process_taken_for_dead_puts_out_nothing_it_has_lost() {
    let mut world = World::new();
    world.intake.remote = true;
    world.put("a.task", "Fix it.");
    world.after(MOMENT);
    world.after(REMOTE_SETTLE);
    let mut other = intake(world.dir.path(), "b");
    assert_eq!(other.recover("a").unwrap(), 1);
    assert!(world.after(REMOTE_SETTLE).adopted.is_empty());
    assert!(world.intake.is_idle());
    let scanned = other.scan_at(&world.queue, "engineer", world.now + HALF).unwrap();
    assert_eq!(scanned.adopted.len(), 1);
}

#[test]
fn many_who_look_at_one_inbox_take_each_file_once() {
    let world = World::new();
    for number in 0..100 {
        world.put(&format!("{number}.task"), format!("Task {number}."));
    }
    let mut threads = Vec::new();
    for me in ["b", "c", "d"] {
        let (queue, mut intake) = (queue(world.dir.path(), me), intake(world.dir.path(), me));
        intake.settings.settle = Duration::ZERO;
        threads.push(thread::spawn(move || {
            let mut adopted = 0;
            while !list(&queue.layout.inbox("engineer")).unwrap().iter().all(|n| !is_dropped(n))
                || !intake.is_idle()
            {
                adopted += intake.scan(&queue, "engineer").unwrap().adopted.len();
            }
            adopted
        }));
    }
    let adopted: usize = threads.into_iter().map(|thread| thread.join().unwrap()).sum();
    assert_eq!(adopted, 100);
    let texts: HashSet<_> = world.texts().into_iter().collect();
    assert_eq!(texts.len(), 100);
}

#[test]
fn what_is_no_task_fails_with_a_reason_and_blocks_nobody() {
    let mut world = World::new();
    let mode = nix::sys::stat::Mode::S_IRUSR;
    nix::unistd::mkfifo(&world.path("pipe.task"), mode).unwrap();
    let _socket = std::os::unix::net::UnixListener::bind(world.path("socket.task")).unwrap();
    let outside = world.dir.path().join("outside.txt");
    std::fs::write(&outside, "secret").unwrap();
    symlink(&outside, world.path("link.task")).unwrap();
    symlink("nowhere", world.path("dangling.task")).unwrap();
    std::fs::hard_link(&outside, world.path("hard.task")).unwrap();
    std::fs::create_dir(world.path("dir.task")).unwrap();
    world.put("huge.task", "x".repeat(1001));
    world.put("fits.task", "y".repeat(1000));
    world.put("bytes.task", b"ab\xff");
    world.put("json.task", "{\"schema\": \"task/v1\"}");
    world.put("provider.task", "---\nprovider: nobody\n---\nx");
    world.put("blank.task", " \n");
    let scanned = world.settle();
    assert_eq!(world.texts(), ["y".repeat(1000)]);
    let mut told: Vec<_> = scanned.refused.iter().map(|(f, r)| format!("{f}: {r}")).collect();
    told.sort();
    let wanted = [
        "blank.task: it says nothing to do",
        "bytes.task: it is not UTF-8 text (byte 2)",
        "dangling.task: it is a symbolic link",
        "dir.task: it is a directory",
        "hard.task: it is a hard link",
        "huge.task: it is longer than 1000 bytes",
        "json.task: it is a `task/v1` document",
        "link.task: it is a symbolic link",
        "pipe.task: it is a pipe",
        "provider.task: provider `nobody` is not known",
        "socket.task: it is a socket",
    ];
    assert_eq!(told.len(), wanted.len(), "{told:#?}");
    for (told, wanted) in told.iter().zip(wanted) {
        assert!(told.starts_with(wanted), "{told}");
    }
    assert!(world.intake.is_idle());
    let batches = world.queue.batches(End::Failed).unwrap();
    let mut seen = BTreeSet::new();
    for batch in &batches {
        for (name, by) in world.queue.ended(End::Failed, batch).unwrap() {
            let status = world.queue.status(End::Failed, batch, &name).unwrap();
            let status = status.expect("each has a sealed status");
            assert_eq!(status["success"], false);
            let source = status["source"].as_str().unwrap().to_owned();
            let reason = status["error"]["message"].as_str().unwrap();
            assert!(scanned.refused.contains(&(source.clone(), reason.to_owned())));
            assert_eq!((name.task.label + ".task", by.as_str()), (source.clone(), "a"));
            seen.insert(source);
        }
    }
    assert_eq!(seen.len(), wanted.len());
    assert!(outside.exists(), "no link was followed");
}

#[test]
fn odd_names_are_taken_as_they_are() {
    let mut world = World::new();
    let names: Vec<OsString> = vec![
        "with space.task".into(),
        "new\nline.task".into(),
        "qu\"o'te.task".into(),
        "löß-日本.task".into(),
        "100%.task".into(),
        "-rf.task".into(),
        "~x.task".into(),
        format!("{}.task", "l".repeat(250)).into(),
        format!("{}.task", "é".repeat(125)).into(),
        OsString::from_vec(b"not-\xff-utf8.task".to_vec()),
        "5-01JHNG00000000000000000000.a1.task".into(),
    ];
    for (number, name) in names.iter().enumerate() {
        std::fs::write(world.inbox().join(name), format!("Task {number}.")).unwrap();
    }
    world.intake.adopt = Box::new(Later);
    world.settle();
    assert!(list(&world.inbox()).unwrap().iter().all(|name| !is_dropped(name)));
    world.crash("b");
    assert_eq!(world.intake.recover("a").unwrap(), names.len());
    let scanned = world.settle();
    assert!(scanned.refused.is_empty(), "{:?}", scanned.refused);
    assert_eq!(scanned.adopted.len(), names.len());
    let texts: BTreeSet<_> = world.texts().into_iter().collect();
    assert_eq!(texts, (0..names.len()).map(|number| format!("Task {number}.")).collect());
}

#[test]
fn a_name_survives_being_part_of_another() {
    let id = TaskId::new(1, 2);
    for name in ["a.task", "a b\n.task", "100%41.task", "é.task"] {
        let file = format!("{id}-{}", shown(OsStr::new(name)));
        assert_eq!(read_name(&file), Some((id.clone(), name.to_owned())), "{file}");
        assert!(!file.contains('\n'));
    }
    let long = "\n".repeat(255);
    let cut = shown(OsStr::new(&long));
    assert!(cut.len() <= NAME_MAX && cut.len().is_multiple_of(3), "{cut}");
    for bad in ["x", "01JHNG00000000000000000000x", "01JHNG00000000000000000000-%4"] {
        assert_eq!(read_name(bad), None, "{bad}");
    }
}
