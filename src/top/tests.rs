//! Whole screens, compared as text with those in `tests/screens`, and keys.

use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use ratatui::style::Color;

use super::draw::share;
use super::state::{Asking, Panel};
use super::*;
use crate::agent::Usage;
use crate::base::ids::{Attempt, RunId, StepPath, TaskAttempt};
use crate::cli::act::{Deed, Question};
use crate::engine::record::Spent;
use crate::view::excerpt::{Excerpt, Room};
use crate::view::runs::Items;
use crate::view::{EventView, Life, Owner, PlaceView, Standing, StepShown, StepView};

fn at(second: i64) -> Time {
    Time(1_767_225_600_000 + second * 1000)
}

const RUN: &str = "20260101T000000Z-aaaaaa";
const OTHER: &str = "20260101T000010Z-bbbbbb";

fn run(id: &str, state: Standing, file: &str) -> RunView {
    RunView {
        run_id: id.into(),
        run_root: format!(".orchestrate/runs/{id}"),
        state,
        recorded: None,
        turn_after: None,
        answered: false,
        owner: Owner::Nobody { reason: None },
        fleet: true,
        workflow_file: file.into(),
        bead: None,
        started_at: Some(at(0)),
        updated_at: Some(at(42)),
        step: None,
        failed_steps: Vec::new(),
        error: None,
        through: false,
        changed: false,
        left_behind: 0,
        elsewhere: None,
        cure: crate::run::open::Cure::default(),
        unit: "step",
    }
}

fn worker(agent: &str, name: &str, life: Life, claims: usize) -> WorkerView {
    WorkerView {
        worker: name.into(),
        agent: agent.into(),
        life,
        draining: false,
        host: "host-a".into(),
        pid: 4711,
        started_at: at(0).to_second(),
        concurrency: 2,
        run: None,
        claims,
        version: "0.1.0".into(),
        last_beat: None,
        heartbeat_age_ms: None,
    }
}

fn inbox(agent: &str, waiting: usize, claimed: usize) -> InboxView {
    let (agent, paused, oldest_at) = (agent.into(), None, None);
    InboxView { agent, waiting, claimed, dropped: 0, workers: 1, suspended: 0, paused, oldest_at }
}

fn step(path: &str, depth: usize, state: StepShown) -> StepView {
    StepView {
        step: path.into(),
        depth,
        name: path.rsplit('.').next().unwrap_or_default().into(),
        state,
        current: false,
        parked: None,
        waits_for_worktree: None,
        agent: None,
        attempt: Attempt::FIRST,
        executions: TaskAttempt::NONE,
        exit_code: None,
        started_at: Some(at(80)),
        duration_ms: state.is_over().then_some(1500),
        until: None,
        waits_for: None,
        error: None,
        of_spell: false,
        items: None,
        item: None,
        usage: None,
        rounds: None,
        asks: None,
        answered: false,
        expired: false,
        completed_before: false,
        skip_cause: None,
        warning: None,
        needs: Vec::new(),
        last_line: None,
        task: None,
    }
}

fn gate() -> Gate {
    Gate {
        run_id: RunId::parse(OTHER).expect("an id"),
        node: "deploy".into(),
        step: StepPath::top("deploy"),
        attempt: Attempt::FIRST,
        message: "Ship 1.2 to production?\nThe changes are in CHANGES.md.".into(),
        said: Some("All 214 tests pass.\nThe migration takes four minutes.".into()),
        diff: None,
        diff_unreadable: false,
        shown: "sum".into(),
        since: Some(at(30)),
        expires_at: None,
        answer_file: "x".into(),
        answered: false,
        expired: false,
        refused: None,
    }
}

/// A workspace with something of everything.
fn seen() -> Seen {
    let mut going = run(RUN, Standing::Running, "flows/release.yaml");
    going.step = Some("Build.1.Implement".into());
    let mut failed = run("20251231T230000Z-cccccc", Standing::Failed, "nightly.yaml");
    failed.failed_steps = vec!["Test".into()];
    let runs = vec![
        run(OTHER, Standing::Paused, "deploy.yaml"),
        going,
        failed,
        run("20251231T220000Z-dddddd", Standing::Completed, "nightly.yaml"),
    ];
    let dead = worker("qa", "0f0f0f0f0f0f", Life::Dead, 0);
    Seen {
        place: "shop".into(),
        now: Some(at(90)),
        runs,
        workers: vec![
            worker("coordinator", "c0c0c0c0c0c0", Life::Alive { age_ms: None }, 1),
            worker("engineer", "e1e1e1e1e1e1", Life::Alive { age_ms: None }, 2),
            dead,
        ],
        inboxes: vec![inbox("engineer", 12, 2), inbox("qa", 3, 0)],
        gates: vec![gate()],
        failed_tasks: 1,
        ..Seen::default()
    }
}

fn detail() -> RunDetail {
    let mut view = run(RUN, Standing::Running, "flows/release.yaml");
    let (worker, host) = ("c0c0c0c0c0c0".to_owned(), Some("host-a".to_owned()));
    view.owner =
        Owner::Coordinator { worker, host, pid: Some(4711), life: Life::Alive { age_ms: None } };
    let mut design = step("Design", 0, StepShown::Completed);
    let usage = Usage { cost_usd: Some(0.0123), ..Usage::default() };
    design.usage = Some(Spent { provider: "claude".into(), session: None, usage });
    let mut build = step("Build", 0, StepShown::Running);
    (build.current, build.items) = (true, Some(Items { total: 3, current: 1, failed: 0 }));
    let mut implement = step("Build.1.Implement", 1, StepShown::Running);
    (implement.current, implement.attempt) = (true, Attempt::new(2));
    implement.agent = Some("engineer".into());
    implement.last_line = Some("compiling store.rs".into());
    let mut test = step("Build.1.Test", 1, StepShown::Pending);
    test.started_at = None;
    let mut report = step("Report", 0, StepShown::Pending);
    report.started_at = None;
    let part = step("Build.1.Part", 1, StepShown::Completed);
    RunDetail {
        run: view,
        usage: None,
        steps: vec![design, build, part, implement, test, report],
        failed: None,
        events: vec![EventView { at: at(80), text: "step `Build.1.Implement` put out".into() }],
    }
}

fn screen(state: &State, seen: &Seen, columns: u16, rows: u16, colour: bool) -> String {
    let mut terminal = Terminal::new(TestBackend::new(columns, rows)).expect("a screen");
    terminal.draw(|frame| draw(state, seen, Look { colour }, frame)).expect("it is drawn");
    let buffer = terminal.backend().buffer();
    let coloured = buffer.content().iter().any(|cell| cell.fg != Color::Reset);
    assert!(colour || !coloured, "there is a colour where none is wanted");
    let line = |row: u16| {
        let line: String = (0..columns).map(|column| buffer[(column, row)].symbol()).collect();
        format!("{}\n", line.trim_end())
    };
    (0..rows).map(line).collect()
}

/// Compares a screen with the one that is kept under a name.
#[track_caller]
fn shows(name: &str, state: &State, seen: &Seen) {
    let shown = screen(state, seen, 80, 24, false);
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    let wanted = std::fs::read_to_string(root.join("tests/screens").join(name)).unwrap_or_default();
    if shown != wanted {
        let other = root.join("target").join(name);
        let _ = std::fs::write(&other, &shown);
        panic!("`{name}` is another screen, see {}:\n{shown}", other.display());
    }
}

fn press(state: &mut State, seen: &Seen, code: KeyCode) -> Option<Wish> {
    update(state, seen, KeyEvent::new(code, KeyModifiers::NONE))
}

fn typed(state: &mut State, seen: &Seen, text: &str) -> Option<Wish> {
    text.chars().map(|letter| press(state, seen, KeyCode::Char(letter))).last().flatten()
}

#[test]
fn the_board_in_80_by_24_without_colour() {
    shows("board.txt", &State::default(), &seen());
    let empty = Seen { place: "shop".into(), now: Some(at(90)), ..Seen::default() };
    shows("board-empty.txt", &State::default(), &empty);
    assert!(screen(&State::default(), &Seen::default(), 80, 24, false).contains("looking …"));
}

#[test]
fn a_run_and_its_steps() {
    let mut state = State::default();
    let mut seen = seen();
    press(&mut state, &seen, KeyCode::Down);
    assert_eq!(press(&mut state, &seen, KeyCode::Enter), Some(Wish::Look));
    assert_eq!(*state.screen(), Screen::Run { run: RUN.into() });
    seen.detail = Some(Ok(detail()));
    shows("run.txt", &state, &seen);
    // What goes on is chosen, and its log is opened.
    press(&mut state, &seen, KeyCode::Enter);
    let step = Some("Build.1.Implement".to_owned());
    assert_eq!(*state.screen(), Screen::Log { run: RUN.into(), step });
    let lines = (1..=40).map(|line| format!("\x1b[32mline {line}\x1b[0m")).collect();
    seen.log = Some((lines, true));
    shows("log.txt", &state, &seen);
    press(&mut state, &seen, KeyCode::Home);
    assert!(screen(&state, &seen, 80, 24, false).contains("\n line 1\n"));
    press(&mut state, &seen, KeyCode::Char('f'));
    assert!(screen(&state, &seen, 80, 24, false).contains("following"));
    press(&mut state, &seen, KeyCode::Esc);
    press(&mut state, &seen, KeyCode::Esc);
    assert_eq!(*state.screen(), Screen::Board);
    press(&mut state, &seen, KeyCode::Char('?'));
    shows("help.txt", &state, &seen);
}

#[test]
fn a_provider_that_is_not_asked_is_on_the_board() {
    let parked = vec!["provider `claude` is parked until 10:00: usage limit".to_owned()];
    let shown = screen(&State::default(), &Seen { parked, ..seen() }, 80, 24, false);
    assert!(shown.contains(" PROVIDERS\n   provider `claude` is parked until 10:00"), "{shown}");
}

#[test]
fn a_merge_is_approved_only_where_its_change_is_read() {
    let lines: String = (1..=60).map(|line| format!("+line {line}\n")).collect();
    let mut merge = gate();
    merge.diff = Some(Excerpt::of(&lines, Room::CHANGE));
    let mut seen = Seen { gates: vec![merge], ..seen() };
    let mut state = State { panel: Panel::Asks, ..State::default() };
    // From the list, `a` opens the change first.
    assert_eq!(press(&mut state, &seen, KeyCode::Char('a')), Some(Wish::Look));
    assert_eq!(state.asking, None);
    let shown = screen(&state, &seen, 80, 24, false);
    assert!(shown.contains("| +line 1\n") && !shown.contains("+line 60"), "{shown}");
    press(&mut state, &seen, KeyCode::End);
    let shown = screen(&state, &seen, 80, 24, false);
    assert!(shown.contains("(from line 60)") && shown.contains("| +line 60\n"), "{shown}");
    press(&mut state, &seen, KeyCode::Char('a'));
    assert!(matches!(state.asking, Some(Asking::Comment { .. })));
    // A change that cannot be read cannot be approved.
    (state.asking, seen.gates[0].diff, seen.gates[0].diff_unreadable) = (None, None, true);
    press(&mut state, &seen, KeyCode::Char('a'));
    assert_eq!(state.asking, None);
    assert!(screen(&state, &seen, 80, 24, false).contains("cannot be read here"));
}

#[test]
fn an_answered_run_that_no_process_drives_can_be_resumed() {
    let mut seen = seen();
    let state = &mut State::default();
    let at = seen.runs.iter().position(|run| run.run_id == OTHER).expect("the paused run");
    state.chosen[Panel::Runs as usize] = Some(OTHER.into());
    assert_eq!(press(state, &seen, KeyCode::Char('r')), None);
    seen.runs[at].answered = true;
    let retry = Deed::Retry { target: OTHER.into(), from: None };
    assert_eq!(press(state, &seen, KeyCode::Char('r')), Some(Wish::Act(retry)));
}

#[test]
fn a_run_that_cannot_be_read_is_told() {
    let state = State { screens: vec![Screen::Run { run: RUN.into() }], ..State::default() };
    let seen = Seen { detail: Some(Err("its state is damaged".into())), ..seen() };
    assert!(screen(&state, &seen, 80, 24, false).contains("its state is damaged"));
}

#[test]
fn what_is_asked_is_approved_or_rejected_with_a_reason() {
    let (mut state, seen) = (State::default(), seen());
    press(&mut state, &seen, KeyCode::BackTab);
    assert_eq!(state.panel, Panel::Asks);
    press(&mut state, &seen, KeyCode::Enter);
    shows("gate.txt", &state, &seen);
    assert_eq!(press(&mut state, &seen, KeyCode::Char('x')), None);
    typed(&mut state, &seen, "  ");
    assert_eq!(press(&mut state, &seen, KeyCode::Enter), None, "a reason is needed");
    assert!(state.said.as_ref().is_some_and(|(said, wrong)| *wrong && said.contains("say why")));
    typed(&mut state, &seen, "no tests");
    shows("reject.txt", &state, &seen);
    let (run, node, step) = (OTHER.into(), "deploy".into(), "deploy".into());
    let asked = Question { run, node, step, shown: "sum".into() };
    let reason = "  no tests".to_owned();
    let wish = press(&mut state, &seen, KeyCode::Enter);
    assert_eq!(wish, Some(Wish::Act(Deed::Reject { asked: asked.clone(), reason })));
    press(&mut state, &seen, KeyCode::Char('a'));
    assert_eq!(press(&mut state, &seen, KeyCode::Esc), None, "nothing is decided by accident");
    assert_eq!(state.asking, None);
    press(&mut state, &seen, KeyCode::Char('a'));
    let comment = String::new();
    let wish = press(&mut state, &seen, KeyCode::Enter);
    assert_eq!(wish, Some(Wish::Act(Deed::Approve { asked, comment })));
}

#[test]
fn an_answer_is_for_what_was_shown_when_it_was_begun() {
    let (mut state, mut seen) = (State::default(), seen());
    press(&mut state, &seen, KeyCode::BackTab);
    press(&mut state, &seen, KeyCode::Char('a'));
    // Something else is asked while a comment is typed.
    seen.gates[0].shown = "other".into();
    let wish = press(&mut state, &seen, KeyCode::Enter);
    let Some(Wish::Act(Deed::Approve { asked, .. })) = wish else { panic!("{wish:?}") };
    assert_eq!(asked.shown, "sum");
}

/// Five questions, all of nodes of one name.
fn asked_five_times() -> Seen {
    let mut seen = seen();
    let asked = |n: usize| {
        let run_id = RunId::parse(&format!("20260101T00001{n}Z-bbbbbb")).expect("an id");
        Gate { run_id, node: "ask".into(), shown: format!("sum{n}"), ..gate() }
    };
    seen.gates = (0..5).map(asked).collect();
    seen
}

#[test]
fn a_question_that_goes_away_lets_no_other_be_answered_in_its_place() {
    let (mut state, mut seen) = (State::default(), asked_five_times());
    press(&mut state, &seen, KeyCode::BackTab);
    press(&mut state, &seen, KeyCode::End);
    // Somebody else answers it before the key comes.
    seen.gates.pop();
    state.settle(&seen);
    assert!(screen(&state, &seen, 80, 24, false).contains("20260101T000014Z-bbbbbb is gone"));
    assert_eq!(press(&mut state, &seen, KeyCode::Char('a')), None);
    assert_eq!(state.asking, None, "nothing is answered that was not chosen");
    let (said, wrong) = state.said.clone().expect("it is told");
    assert!(wrong && said.contains("`ask` of run 20260101T000014Z-bbbbbb is gone"), "{said}");
    // The neighbour is chosen, and what is asked names its run.
    press(&mut state, &seen, KeyCode::Char('a'));
    let shown = screen(&state, &seen, 80, 24, false);
    assert!(shown.contains("approve `ask` of run 20260101T000013Z-bbbbbb"), "{shown}");
    press(&mut state, &seen, KeyCode::Enter);
    // With the last question the list goes: no key is for a run that nobody chose.
    seen.gates.clear();
    state.settle(&seen);
    assert_eq!(state.panel, Panel::Runs);
    press(&mut state, &seen, KeyCode::Char('c'));
    assert_eq!(state.asking, None);
}

#[test]
fn a_question_that_is_open_stays_the_one_that_was_opened() {
    let (mut state, mut seen) = (State::default(), asked_five_times());
    press(&mut state, &seen, KeyCode::BackTab);
    press(&mut state, &seen, KeyCode::Enter);
    seen.gates[0].shown = "another round".into();
    state.settle(&seen);
    assert_eq!(press(&mut state, &seen, KeyCode::Char('a')), None);
    assert_eq!(state.asking, None, "it asks something else by now");
    press(&mut state, &seen, KeyCode::Char('a'));
    assert!(matches!(state.asking, Some(Asking::Comment { .. })));
    press(&mut state, &seen, KeyCode::Esc);
    // Its run asks at another node: that is another question.
    seen.gates[0].node = "other".into();
    press(&mut state, &seen, KeyCode::Char('a'));
    press(&mut state, &seen, KeyCode::Char('a'));
    assert_eq!(state.asking, None);
}

#[test]
fn a_run_is_cancelled_only_after_a_yes() {
    let (mut state, seen) = (State::default(), seen());
    press(&mut state, &seen, KeyCode::Char('j'));
    for (answer, wish) in [('n', None), ('x', None), ('y', Some(RUN))] {
        assert_eq!(press(&mut state, &seen, KeyCode::Char('c')), None);
        assert!(matches!(state.asking, Some(Asking::Sure { .. })));
        let wanted = wish.map(|run| Wish::Act(Deed::Cancel { target: run.to_owned() }));
        assert_eq!(press(&mut state, &seen, KeyCode::Char(answer)), wanted);
    }
    // What is over cannot be cancelled; what failed can go on, what completed cannot.
    press(&mut state, &seen, KeyCode::Down);
    press(&mut state, &seen, KeyCode::Char('c'));
    assert!(state.said.as_ref().is_some_and(|(said, _)| said.contains("is over already")));
    let target = "20251231T230000Z-cccccc".to_owned();
    let wish = press(&mut state, &seen, KeyCode::Char('r'));
    assert_eq!(wish, Some(Wish::Act(Deed::Retry { target, from: None })));
    press(&mut state, &seen, KeyCode::End);
    assert_eq!(press(&mut state, &seen, KeyCode::Char('r')), None);
    assert!(state.said.as_ref().is_some_and(|(said, _)| said.contains("completed already")));
    press(&mut state, &seen, KeyCode::Char('a'));
    assert!(state.said.as_ref().is_some_and(|(said, _)| said.contains("asks nobody")));
}

#[test]
fn a_filter_leaves_what_has_a_text() {
    let (mut state, seen) = (State::default(), seen());
    typed(&mut state, &seen, "/NIGHT");
    press(&mut state, &seen, KeyCode::Enter);
    shows("filter.txt", &state, &seen);
    press(&mut state, &seen, KeyCode::Esc);
    assert!(state.filter.is_empty());
}

#[test]
fn what_is_chosen_stays_chosen_when_others_come() {
    let (mut state, mut seen) = (State::default(), seen());
    press(&mut state, &seen, KeyCode::Down);
    seen.runs.insert(0, run("20260101T000100Z-eeeeee", Standing::Queued, "new.yaml"));
    press(&mut state, &seen, KeyCode::Enter);
    assert_eq!(*state.screen(), Screen::Run { run: RUN.into() });
    // A list that is gone is not chosen from.
    let mut state = State { panel: Panel::Asks, ..State::default() };
    seen.gates.clear();
    state.settle(&seen);
    assert_eq!(state.panel, Panel::Runs);
}

#[test]
fn leaving_needs_no_yes() {
    let (mut state, seen) = (State::default(), seen());
    assert_eq!(press(&mut state, &seen, KeyCode::Char('q')), Some(Wish::Leave));
    let ctrl_c = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
    assert_eq!(update(&mut state, &seen, ctrl_c), Some(Wish::Leave));
    let ctrl_z = KeyEvent::new(KeyCode::Char('z'), KeyModifiers::CONTROL);
    assert_eq!(update(&mut state, &seen, ctrl_z), Some(Wish::Suspend));
}

#[test]
fn a_queue_and_its_tasks() {
    let mut state = State::default();
    let mut seen = seen();
    press(&mut state, &seen, KeyCode::Tab);
    press(&mut state, &seen, KeyCode::Tab);
    press(&mut state, &seen, KeyCode::Enter);
    assert_eq!(*state.screen(), Screen::Queue { agent: "engineer".into() });
    let task = |number: usize| TaskView {
        waits_for_worktree: None,
        task: format!("01ARZ3NDEKTSV4RRFFQ69G5F{number:02}"),
        kind: "step".into(),
        agent: "engineer".into(),
        label: format!("Build.{number}.Implement"),
        run_id: Some(RUN.into()),
        step: None,
        priority: 5,
        attempt: TaskAttempt::FIRST,
        crashes: 0,
        created_at: None,
        place: PlaceView::Waiting {
            ahead: number,
            workers: 1,
            paused: None,
            parked: None,
            last: None,
        },
    };
    seen.tasks = Some(((0..30).map(task).collect(), 10_000));
    press(&mut state, &seen, KeyCode::End);
    shows("queue.txt", &state, &seen);
    press(&mut state, &seen, KeyCode::Char('c'));
    let target = "01ARZ3NDEKTSV4RRFFQ69G5F29".to_owned();
    let wish = press(&mut state, &seen, KeyCode::Char('y'));
    assert_eq!(wish, Some(Wish::Act(Deed::Cancel { target })));
}

/// Whatever the size, something is drawn and nothing breaks.
#[test]
fn every_size_is_drawn() {
    let mut seen = seen();
    seen.detail = Some(Ok(detail()));
    seen.log = Some((vec!["x".repeat(500)], false));
    let screens = [
        Screen::Board,
        Screen::Run { run: RUN.into() },
        Screen::Gate { run: OTHER.into(), node: "deploy".into() },
        Screen::Log { run: RUN.into(), step: None },
        Screen::Queue { agent: "qa".into() },
        Screen::Help,
    ];
    for screen_of in screens {
        let state = State { screens: vec![screen_of], ..State::default() };
        for (columns, rows) in [(1, 1), (2, 3), (20, 5), (40, 10), (80, 24), (200, 60)] {
            let _ = screen(&state, &seen, columns, rows, true);
        }
    }
}

#[test]
fn room_is_shared() {
    // Each has a title, its rows and a line between.
    assert_eq!(share(&[(1, false), (4, true)], 20), [3, 6]);
    // The one that is chosen gets what is left.
    assert_eq!(share(&[(50, true), (50, false)], 20), [15, 5]);
    assert_eq!(share(&[(50, false), (50, true), (50, false)], 4), [1, 3, 0]);
    assert_eq!(share(&[(5, true)], 0), [0]);
}
