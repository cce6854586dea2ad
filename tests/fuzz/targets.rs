//! Fuzz targets: one function for each reader of text or bytes from outside the program.
//!
//! A target accepts any bytes. It fails if it panics, takes too long, or takes too much memory, and
//! it asserts the other promises of its reader. The library includes this file in test and fuzzing
//! builds only. `fuzz.rs` runs the targets under libFuzzer; the tests in `bytes.rs` and `trees.rs`
//! run them on random changes of the corpus.

use std::borrow::Cow;
use std::sync::OnceLock;

use crate::agent::{End, Kind, Stream};
use crate::agent::{contract, faults, loop_signal};
use crate::attempt::{documents, spellbook};
use crate::base::digest::sha256;
use crate::base::ids::{Attempt, BeadId, RunId, StepPath};
use crate::base::time::{Time, parse_duration};
use crate::engine::record::TaskRef;
use crate::exec::Mask;
use crate::exec::capture::{Capture, Mode};
use crate::free_task::answer;
use crate::free_task::parse::FreeTask;
use crate::graph::Graph;
use crate::queue::name::{ClaimName, TaskId, TaskName};
use crate::queue::seal;
use crate::serve::http;
use crate::settings::Config;
use crate::settings::Layer;
use crate::store::{journal, snapshot};
use crate::template::nodes::NodeText;
use crate::template::spell::{Spell, no_includes};
use crate::template::{Hole, Missing, Scope, Template};
use crate::workflow::bead::Bead;
use crate::workflow::nodes::condition::Condition;
use crate::workflow::shell::{self, Layout};
use crate::workflow::{
    Compiled, Plan, Problem, Rejected, compile, compile_parsed, front, lint, read_config,
};
use crate::yaml;
use crate::yaml::problem::located;
use serde_json::{Map, Value, json};

#[cfg(test)]
mod bytes;
#[cfg(test)]
mod schema;
#[cfg(test)]
mod texts;
#[cfg(test)]
mod trees;

/// A target's name, which is also its directory in the corpus, and its function.
pub type Target = (&'static str, fn(&[u8]));

/// Lists the targets, and generates one test for each.
macro_rules! targets {
    ($($name:ident)*) => {
        pub const TARGETS: &[Target] = &[$((stringify!($name), $name)),*];

        #[cfg(test)]
        mod changed_bytes {
            $(#[test]
            fn $name() {
                super::bytes::fuzz((stringify!($name), super::$name));
            })*
        }
    };
}

targets! {
    workflow config template node_text spell condition task_text task_document status journal
    snapshot stream answer names bead mask request
}

fn text(bytes: &[u8]) -> Cow<'_, str> {
    String::from_utf8_lossy(bytes)
}

/// All three languages: which one it is, the text itself says.
fn workflow(bytes: &[u8]) {
    let text = text(bytes);
    let document = match yaml::parse(&text) {
        Ok(document) => document,
        Err(problem) => return are_placed(&[problem], &text),
    };
    match compile_parsed(&text, &document, settings()) {
        Ok(Compiled { plan, warnings, .. }) => {
            plan_is_whole(&plan);
            are_placed(&warnings, &text);
            let found = lint::without_allowed(&text, lint::look(&text, &document, &plan, None));
            are_placed(&found, &text);
            are_placed(&located(&text, spellbook::incurable(&plan, &[], &Map::new())), &text);
            are_placed(&located(&text, spellbook::doubtful(&plan, &[], &Map::new())), &text);
            Graph::new("w.yaml", &plan, None).to_json();
        }
        Err(Rejected { problems, .. }) => refused(&problems, &text),
    }
}

/// A text is refused for a reason, which is an error, and every problem has its place.
fn refused(problems: &[Problem], text: &str) {
    assert!(problems.iter().any(Problem::is_error), "refused without a reason");
    are_placed(problems, text);
}

/// Every problem has a place in the text: a line that is there, or the one after the last.
fn are_placed(problems: &[Problem], text: &str) {
    for problem in problems {
        let place = problem.place.unwrap_or_else(|| panic!("no place: {}", problem.message));
        let known = 1..=text.lines().count() + 1;
        assert!(known.contains(&place.line) && place.column > 0, "{place:?}: {}", problem.message);
    }
    problems.iter().take(8).for_each(|problem| _ = problem.show("the file", text));
}

fn plan_is_whole(plan: &Plan) {
    let mut steps = 0;
    plan.root().walk(&mut |_| steps += 1);
    assert!(steps > 0, "a plan of nothing");
}

fn settings() -> &'static Config {
    static SETTINGS: OnceLock<Config> = OnceLock::new();
    SETTINGS.get_or_init(Config::built_in)
}

fn config(bytes: &[u8]) {
    let text = text(bytes);
    if let Err(problems) = read_config(&text) {
        refused(&problems, &text);
    }
    let layer = Layer { file: "c".into(), sha256: String::new(), text: text.into_owned() };
    let _ = Config::frozen(vec![layer]);
}

struct Echo;

impl Scope for Echo {
    fn look_up(&self, hole: &Hole) -> Result<Cow<'_, Value>, Missing> {
        match hole.path.len() % 3 {
            0 => Err(Missing { raw: hole.raw.clone(), reason: "none".into() }),
            _ => Ok(Cow::Owned(json!({ "a": [hole.raw, 1.5, null] }))),
        }
    }
}

fn template(bytes: &[u8]) {
    let text = text(bytes);
    let Ok(template) = Template::parse(&text) else { return };
    if let Some(literal) = template.literal() {
        assert_eq!(template.render(&Echo).expect("nothing is missing"), literal);
    }
    let _ = template.render(&Echo);
    let _ = template.with_holes_as("x");
}

fn node_text(bytes: &[u8]) {
    let text = text(bytes);
    let parsed = NodeText::parse(&text);
    assert_eq!(NodeText::parse(&parsed.source()).source(), parsed.source());
    let layout = Layout::of_node(&parsed);
    assert_eq!(layout.values.len(), parsed.values().count());
    assert!(shell::Script::read(parsed).values().all(|(at, ..)| at < text.len()));
    crate::template::nodes::positional(&text, &["one", "", "three"]);
}

fn spell(bytes: &[u8]) {
    let text = text(bytes);
    let Ok(spell) = Spell::parse("s.md", &text) else { return };
    let data = json!({
        "a": { "b": [1, 2, { "c": "x" }], "d": "text", "e": null },
        "bead": { "id": "b1", "title": "T", "labels": ["x", "y"] },
        "list": ["p", "q"], "text": "plain", "n": 3, "f": -0.5, "yes": true,
    });
    let own = |name: &str| Some((format!("{name}.md"), text.to_string()));
    let _ = spell.render(&data, &no_includes);
    // A spell that includes itself ends all the same.
    let _ = spell.render(&data, &own);
    let _ = spell.value(&data, &no_includes);
    spell.reads(&|path| path.len() % 2 == 0);
    spell.included();
    shell::values_of_spell(&spell);
    if let Ok(pieces) = spell.pieces(&data, &no_includes) {
        Layout::of_pieces(&pieces);
    }
}

fn condition(bytes: &[u8]) {
    let parsed = Condition::parse(&text(bytes));
    parsed.faults();
    let mut turn = 0;
    let _ = parsed.holds(&mut |_| {
        turn += 1;
        match turn % 4 {
            0 => Err("unknown".into()),
            1 => Ok(json!("text")),
            2 => Ok(json!(10)),
            _ => Ok(json!({ "a": 1 })),
        }
    });
}

/// What people drop, with front matter or without.
fn task_text(bytes: &[u8]) {
    let text = text(bytes);
    if let Ok(parts) = front::split(&text) {
        assert!(text.ends_with(parts.body), "the body is a part of the text");
        if let Some(head) = parts.head
            && let Err(problems) = front::read_task_head(head)
        {
            refused(&problems, &text);
        }
    }
    if let Ok(task) = FreeTask::parse(&text) {
        let read = |_: &str| Ok(None);
        let _ = task.work(settings(), "engineer", &read, &TaskId::new(1, 2), Attempt::FIRST);
    }
}

fn object(bytes: &[u8]) -> Option<Map<String, Value>> {
    match serde_json::from_slice(bytes).ok()? {
        Value::Object(map) => Some(map),
        _ => None,
    }
}

/// A document of the queue: as it came, which is hardly ever sealed, and with a seal.
fn task_document(bytes: &[u8]) {
    seal::unseal(bytes);
    let Some(document) = object(bytes) else { return };
    let _ = documents::read(&document);
    let Ok(task) = FreeTask::from_document(&document) else { return };
    let read = |_: &str| Ok(None);
    let _ = task.work(settings(), "engineer", &read, &TaskId::new(1, 2), Attempt::FIRST);
}

fn status(bytes: &[u8]) {
    let Some(mut document) = object(bytes) else { return };
    let (id, agent) = (TaskId::new(1, 2).to_string(), "engineer".to_owned());
    let task = TaskRef { id: id.clone(), agent, ticket: "t".into() };
    let said = document.get("ticket").cloned();
    let record = documents::record(&document, &task);
    assert!(record.is_err() || said == Some(json!("t")), "a status counts without its ticket");
    document.insert("ticket".into(), json!("t"));
    document.insert("task_id".into(), json!(id));
    let _ = documents::record(&document, &task);
}

/// Lines that a journal could have: as they are, and with their sums.
fn journal(bytes: &[u8]) {
    let plain = journal::read(bytes);
    assert!(plain.good_len as usize <= bytes.len());
    let mut summed = Vec::new();
    for line in bytes.split(|byte| *byte == b'\n') {
        let Some(head) = line.strip_suffix(b"}") else { continue };
        let mut sum = sha256(head);
        sum.truncate(8);
        summed.extend_from_slice(head);
        summed.extend_from_slice(format!(",\"sum\":\"{sum}\"}}\n").as_bytes());
    }
    let journal = journal::read(&summed);
    assert!(journal.good_len as usize <= summed.len());
    let (plan, state) = plan_and_state();
    let Ok(loaded) = snapshot::decode(plan, state) else { unreachable!("it was just made") };
    let mut run = loaded.run;
    for entry in journal.entries.iter().take(64) {
        crate::engine::apply(plan, &mut run, entry.at, &entry.event);
        crate::engine::owed(plan, &run, 8);
    }
    snapshot::encode(plan, &run, 1, 0);
}

fn plan_and_state() -> &'static (Plan, Vec<u8>) {
    static MADE: OnceLock<(Plan, Vec<u8>)> = OnceLock::new();
    MADE.get_or_init(|| {
        let text = "version: '1.1'\nsteps:\n\
            - { name: A, command: [a], retries: { max: 2 } }\n\
            - name: L\n  for_each: { items: [x, y], steps: [{ name: B, command: [b] }] }\n\
            - { name: C, command: [c], on: { failure: { goto: A } } }\n";
        let plan = compile(text, settings()).expect("a good workflow").plan;
        let state = include_bytes!("corpus/snapshot/whole.json").to_vec();
        (plan, state)
    })
}

fn snapshot(bytes: &[u8]) {
    let (plan, _) = plan_and_state();
    snapshot::peek(bytes);
    let Ok(loaded) = snapshot::decode(plan, bytes) else { return };
    crate::engine::owed(plan, &loaded.run, 8);
    let again = snapshot::encode(plan, &loaded.run, 1, 0);
    assert!(snapshot::decode(plan, &again).is_ok(), "what is written can be read");
}

/// The output of a provider, in pieces; the first byte says whose, and how large they are.
fn stream(bytes: &[u8]) {
    let Some((&first, rest)) = bytes.split_first() else { return };
    let kind = Kind::ALL[usize::from(first) % Kind::ALL.len()].1;
    let piece = 1 + usize::from(first) / Kind::ALL.len() * 7;
    let mut stream = Stream::new(kind);
    for piece in rest.chunks(piece) {
        stream.push(piece);
    }
    let end = End {
        exit_code: Some(i32::from(first % 2)),
        signal: None,
        timed_out: false,
        silent_for: None,
        stderr_head: &[],
        stderr_tail: &[],
        stdout_tail: &[],
        now: Time(1_700_000_000_000),
        utc_offset_s: 3600,
        ..End::default()
    };
    let outcome = stream.finish(&end);
    assert!(outcome.text.len() <= crate::agent::TEXT_BYTES + 64, "it is kept in bounds");
}

fn answer(bytes: &[u8]) {
    let text = text(bytes);
    contract::parse(&text);
    crate::agent::echo::own_part(&text, &[(&*text).into()]);
    let _ = crate::agent::answer::extract_object(&text);
    answer::read(&text);
    faults::classify(&text);
    faults::notice(&text);
    if !loop_signal::signalled(&text, "DONE") {
        assert!(!loop_signal::signalled_strict(&text, "DONE"), "strict is stricter");
    }
    loop_signal::cleaned(&text, "DONE");
}

fn is_plain(name: &str) -> bool {
    !name.contains(['/', '\0', '\n']) && name != "." && name != ".."
}

/// Whatever is taken for a name is written back as it was, and can be no path.
fn names(bytes: &[u8]) {
    let text = text(bytes);
    if let Some(name) = TaskName::parse(&text) {
        assert_eq!(name.file(), text);
        assert!(is_plain(&text), "{text:?}");
    }
    assert_eq!(TaskName::is_name(&text), TaskName::parse(&text).is_some(), "{text:?}");
    if let Some(name) = ClaimName::parse(&text) {
        assert_eq!(name.file(), text);
        assert!(is_plain(&text) && is_plain(&name.status()), "{text:?}");
    }
    if let Some((name, by)) = ClaimName::parse_ended(&text) {
        assert_eq!(name.ended(&by), text);
    }
    if let Some(path) = StepPath::parse(&text) {
        assert_eq!(path.to_string(), text);
        assert!(is_plain(&text), "{text:?}");
    }
    if let Some(id) = RunId::parse(&text) {
        assert!(id.to_string() == text && is_plain(&text), "{text:?}");
    }
    if let Ok(id) = BeadId::parse(&text) {
        assert!(id.to_string() == text && is_plain(&text), "{text:?}");
    }
    TaskId::parse(&text);
    Time::parse(&text);
    parse_duration(&text);
}

fn bead(bytes: &[u8]) {
    let text = text(bytes);
    for file in ["b.md", "b.yaml"] {
        match Bead::parse(file, &text) {
            Ok(bead) => {
                let again = Bead::from_json(&bead.to_json());
                assert!(again.is_ok(), "what is written can be read");
            }
            Err(problems) => refused(&problems, &text),
        }
    }
    if let Err(problems) = Bead::among("b1", &text) {
        refused(&problems, &text);
    }
}

/// The first line is the secret, the second says how the rest is cut into pieces.
fn mask(bytes: &[u8]) {
    let mut parts = bytes.splitn(3, |byte| *byte == b'\n');
    let (Some(secret), Some(cuts), Some(output)) = (parts.next(), parts.next(), parts.next())
    else {
        return;
    };
    let Ok(secret) = std::str::from_utf8(secret) else { return };
    let mask = Mask::new([secret.to_owned()]);
    let whole = mask.bytes(output);
    let mut masker = mask.masker();
    let (mut pieces, mut rest) = (Vec::new(), output);
    for cut in cuts.iter().cycle().take(output.len() + 1) {
        let at = usize::from(*cut).min(rest.len());
        masker.feed(&rest[..at], &mut pieces);
        rest = &rest[at..];
    }
    masker.feed(rest, &mut pieces);
    masker.finish(&mut pieces);
    assert_eq!(whole, pieces, "the borders of pieces show");
    // Stars may themselves complete a secret of stars.
    if !secret.is_empty() && !secret.contains('*') {
        let found = whole.windows(secret.len()).any(|window| window == secret.as_bytes());
        assert!(!found, "the secret is seen");
    }
    for mode in [Mode::Text, Mode::Lines, Mode::Json, Mode::Tail] {
        let mut capture = Capture::new(mode, mask.clone());
        output.chunks(7).for_each(|piece| capture.push(piece));
        let _ = capture.finish();
    }
}

/// What anybody who reaches the port of `serve` may send.
fn request(bytes: &[u8]) {
    let Ok(Some((mut request, head, body))) = http::parse(bytes) else { return };
    assert!(head <= bytes.len(), "a head longer than what came");
    request.body = bytes[head..].iter().take(body).copied().collect();
    assert!(request.path.starts_with('/'));
    request.parts();
    request.form();
    request.asked("token");
    request.header("host");
}
