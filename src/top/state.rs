//! The state of the screen, and how keys change it.

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use super::Seen;
use super::panels::{self, Row};
use crate::base::ids::shown;
use crate::cli::act::{Deed, Question};
use crate::view::{Gate, RunView, StepShown};

/// The lists of the dashboard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Panel {
    Asks,
    Runs,
    Workers,
    Queues,
}

pub(super) const PANELS: [Panel; 4] = [Panel::Asks, Panel::Runs, Panel::Workers, Panel::Queues];

/// The contents of the screen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Screen {
    Board,
    Run {
        run: String,
    },
    /// A question that awaits a decision.
    Gate {
        run: String,
        node: String,
    },
    /// The output of a run, or of one of its steps.
    Log {
        run: String,
        step: Option<String>,
    },
    Queue {
        agent: String,
    },
    Help,
}

/// A prompt for text, or a confirmation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Asking {
    Filter(String),
    Comment {
        asked: Question,
        text: String,
    },
    Reason {
        asked: Question,
        text: String,
    },
    /// A yes/no confirmation.
    Sure {
        deed: Deed,
        question: String,
    },
}

/// A request that a key makes beyond a change of the screen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Wish {
    /// The screen has changed, so start a scan for it.
    Look,
    Act(Deed),
    Leave,
    Suspend,
    Redraw,
}

#[derive(Clone, Debug)]
pub(crate) struct State {
    /// The stack of open screens. The last one is visible.
    pub screens: Vec<Screen>,
    pub panel: Panel,
    /// Key of the selected row, for each panel, for a run, and for a queue.
    pub(super) chosen: [Option<String>; 6],
    /// Index of each selected row at the last scan.
    pub(super) places: [usize; 6],
    /// Digest of the open question at the time it was opened.
    pub(super) looked: Option<String>,
    /// Description of a selected row that disappeared. The next action key is rejected once.
    pub(super) gone: Option<String>,
    pub filter: String,
    pub asking: Option<Asking>,
    /// The last message, and true if it was a refusal.
    pub said: Option<(String, bool)>,
    /// Description of the action in progress.
    pub doing: Option<String>,
    /// Number of rows that the log is scrolled up; 0 while it is followed.
    pub up: usize,
    /// Number of lines that the open question is scrolled down.
    pub down: usize,
}

const IN_RUN: usize = 4;
const IN_QUEUE: usize = 5;
const PAGE: isize = 10;

impl Default for State {
    fn default() -> State {
        State {
            screens: vec![Screen::Board],
            panel: Panel::Runs,
            chosen: Default::default(),
            places: Default::default(),
            looked: None,
            gone: None,
            filter: String::new(),
            asking: None,
            said: None,
            doing: None,
            up: 0,
            down: 0,
        }
    }
}

impl State {
    pub(crate) fn screen(&self) -> &Screen {
        self.screens.last().unwrap_or(&Screen::Board)
    }

    /// Returns the rows that can be selected on the current screen.
    fn rows(&self, seen: &Seen) -> Vec<Row> {
        match self.screen() {
            Screen::Board => panels::rows(seen, self.panel, &self.filter),
            Screen::Run { .. } => panels::steps(seen),
            Screen::Queue { .. } => panels::tasks(seen),
            Screen::Gate { .. } | Screen::Log { .. } | Screen::Help => Vec::new(),
        }
    }

    fn slot(&self) -> usize {
        match self.screen() {
            Screen::Run { .. } => IN_RUN,
            Screen::Queue { .. } => IN_QUEUE,
            _ => self.panel as usize,
        }
    }

    /// Returns the index of the selected row: the previous selection, else the current step, else
    /// 0.
    pub(crate) fn place(&self, slot: usize, rows: &[Row]) -> usize {
        let chosen = self.chosen[slot].as_ref();
        let known = chosen.and_then(|key| rows.iter().position(|row| row.key == *key));
        known.or_else(|| rows.iter().position(|row| row.current)).unwrap_or(0)
    }

    /// Adapts the state to a new scan. A selected row stays selected while it exists. If it
    /// disappears, its neighbor is selected, and the next action key is rejected once with a
    /// message.
    pub(crate) fn settle(&mut self, seen: &Seen) {
        match self.screen().clone() {
            Screen::Board => self.settle_board(seen),
            Screen::Queue { .. } => {
                let rows = panels::tasks(seen);
                self.pin(IN_QUEUE, &rows, |_| true);
            }
            Screen::Gate { run, node } => {
                let now = seen.gates_of(&run).find(|gate| gate.node == shown(&node));
                let other = now.map(|gate| &gate.shown) != self.looked.as_ref();
                if seen.now.is_some() && self.looked.is_some() && other {
                    self.looked = now.map(|gate| gate.shown.clone());
                    self.gone = Some(format!("what `{node}` asked when you opened it"));
                }
            }
            // In a run, the current step is selected until the user selects another.
            Screen::Run { .. } | Screen::Log { .. } | Screen::Help => {}
        }
    }

    fn settle_board(&mut self, seen: &Seen) {
        for panel in PANELS {
            let all = panels::rows(seen, panel, "");
            let rows = panels::rows(seen, panel, &self.filter);
            let hidden = |key: &str| all.iter().any(|row| row.key == key);
            if rows.is_empty() && panel == self.panel && panel != Panel::Runs {
                // Nothing can be selected in a list that is no longer shown.
                let (slot, was) = (panel as usize, self.chosen[panel as usize].take());
                self.places[slot] = 0;
                self.panel = Panel::Runs;
                self.gone =
                    was.filter(|key| !hidden(key)).map(|key| told(&key)).or(self.gone.take());
            }
            self.pin(panel as usize, &rows, |key| !hidden(key));
        }
    }

    /// Keeps the selection in a list. If the selected row is gone, selects its neighbor; if the
    /// filter hides it, changes nothing.
    fn pin(&mut self, slot: usize, rows: &[Row], is_gone: impl Fn(&str) -> bool) {
        let Some(last) = rows.len().checked_sub(1) else { return };
        let known = self.chosen[slot].as_ref();
        let at = known.and_then(|key| rows.iter().position(|row| row.key == *key));
        let place = at.unwrap_or_else(|| match known {
            Some(_) => self.places[slot].min(last),
            None => self.place(slot, rows),
        });
        if let Some(key) = self.chosen[slot].as_ref().filter(|key| at.is_none() && is_gone(key))
            && slot == self.slot()
        {
            self.gone = Some(told(key));
        }
        let hidden = at.is_none() && self.chosen[slot].as_ref().is_some_and(|key| !is_gone(key));
        if !hidden {
            self.places[slot] = place;
            self.chosen[slot] = Some(rows[place].key.clone());
        }
    }

    pub(crate) fn place_on(&self, panel: Panel, rows: &[Row]) -> usize {
        self.place(panel as usize, rows)
    }

    pub(crate) fn place_here(&self, rows: &[Row]) -> usize {
        self.place(self.slot(), rows)
    }

    fn chosen_key(&self, seen: &Seen) -> Option<String> {
        let mut rows = self.rows(seen);
        let place = self.place_here(&rows);
        (place < rows.len()).then(|| rows.swap_remove(place).key)
    }

    fn choose(&mut self, seen: &Seen, by: isize) {
        let rows = self.rows(seen);
        let Some(last) = rows.len().checked_sub(1) else { return };
        let place = self.place_here(&rows).saturating_add_signed(by).min(last);
        let slot = self.slot();
        self.chosen[slot] = Some(rows[place].key.clone());
        self.places[slot] = place;
        self.gone = None;
    }

    /// Returns the run that keys apply to.
    pub(super) fn run(&self, seen: &Seen) -> Option<String> {
        match self.screen() {
            Screen::Run { run } | Screen::Gate { run, .. } | Screen::Log { run, .. } => {
                Some(run.clone())
            }
            Screen::Board if self.panel == Panel::Runs => self.chosen_key(seen),
            Screen::Board if self.panel == Panel::Asks => {
                panels::asked(&self.chosen_key(seen)?).map(|(run, _)| run.to_owned())
            }
            _ => None,
        }
    }

    /// Returns the question that keys apply to, as it is on the screen now, or an error message.
    fn gate(&self, seen: &Seen) -> Result<Question, String> {
        let run = self.run(seen).ok_or("choose what is to be decided under ASKS")?;
        // If the screen shows a single question, do not fall back to another one.
        let (named, alone) = match self.screen() {
            Screen::Gate { node, .. } => (Some(node.clone()), true),
            Screen::Board if self.panel == Panel::Asks => {
                let key = self.chosen_key(seen);
                (key.and_then(|key| Some(panels::asked(&key)?.1.to_owned())), true)
            }
            Screen::Run { .. } => (self.chosen_key(seen), false),
            _ => (None, false),
        };
        let open: Vec<&Gate> = seen.gates_of(&run).collect();
        let found =
            named.as_ref().and_then(|node| open.iter().find(|gate| gate.node == shown(node)));
        let gate = match (found, open.as_slice()) {
            (Some(gate), _) => gate,
            (None, _) if alone => {
                let node = named.unwrap_or_default();
                return Err(format!("`{}` of run {run} asks nothing any more", shown(&node)));
            }
            (None, [gate]) => gate,
            (None, []) => return Err(format!("run {run} asks nobody anything")),
            (None, several) => {
                let nodes: Vec<_> = several.iter().map(|gate| gate.node.as_str()).collect();
                return Err(format!("run {run} asks at {}: choose one", nodes.join(", ")));
            }
        };
        let (node, step) = (gate.node.clone(), gate.step.to_string());
        let shown = gate.shown.clone();
        Ok(Question { run, node, step, shown })
    }

    fn open(&mut self, screen: Screen) -> Option<Wish> {
        (self.up, self.down) = (0, 0);
        (self.gone, self.looked) = (None, None);
        self.chosen[IN_QUEUE] = None;
        if matches!(screen, Screen::Run { .. }) {
            self.chosen[IN_RUN] = None;
        }
        self.screens.push(screen);
        Some(Wish::Look)
    }

    fn back(&mut self) -> Option<Wish> {
        (self.up, self.down) = (0, 0);
        self.gone = None;
        if self.screens.len() > 1 {
            self.screens.pop();
        } else {
            self.filter.clear();
        }
        Some(Wish::Look)
    }

    fn refuse(&mut self, why: impl Into<String>) -> Option<Wish> {
        self.said = Some((why.into(), true));
        None
    }
}

/// Describes a row by its key.
fn told(key: &str) -> String {
    match panels::asked(key) {
        Some((run, node)) => format!("`{}` of run {run}", shown(node)),
        None => key.to_owned(),
    }
}

/// Applies a key to the state. Returns a request to the caller, if any.
pub(crate) fn update(state: &mut State, seen: &Seen, key: KeyEvent) -> Option<Wish> {
    state.settle(seen);
    if key.modifiers.contains(KeyModifiers::CONTROL) {
        match key.code {
            KeyCode::Char('c') => return Some(Wish::Leave),
            KeyCode::Char('z') => return Some(Wish::Suspend),
            KeyCode::Char('l') => return Some(Wish::Redraw),
            _ => {}
        }
    }
    if let Some(asking) = state.asking.take() {
        return answer(state, asking, key);
    }
    state.said = None;
    match (state.screen().clone(), key.code) {
        (_, KeyCode::Char('q')) => Some(Wish::Leave),
        (Screen::Help, _) => state.back(),
        (_, KeyCode::Esc | KeyCode::Left | KeyCode::Backspace) => state.back(),
        (_, KeyCode::Char('?' | 'h')) => state.open(Screen::Help),
        (_, KeyCode::Char('/')) => {
            state.asking = Some(Asking::Filter(state.filter.clone()));
            None
        }
        (Screen::Log { .. }, code) => scroll(state, code),
        (Screen::Gate { .. }, code) if scroll_gate(state, seen, code) => None,
        (_, code) => act(state, seen, code).unwrap_or_else(|| go(state, seen, code)),
    }
}

/// Handles keys that move the selection or open a screen.
fn go(state: &mut State, seen: &Seen, code: KeyCode) -> Option<Wish> {
    match code {
        KeyCode::Up | KeyCode::Char('k') => state.choose(seen, -1),
        KeyCode::Down | KeyCode::Char('j') => state.choose(seen, 1),
        KeyCode::PageUp => state.choose(seen, -PAGE),
        KeyCode::PageDown => state.choose(seen, PAGE),
        KeyCode::Home | KeyCode::Char('g') => state.choose(seen, isize::MIN),
        KeyCode::End | KeyCode::Char('G') => state.choose(seen, isize::MAX),
        KeyCode::Tab => turn(state, seen, 1),
        KeyCode::BackTab => turn(state, seen, PANELS.len() - 1),
        KeyCode::Enter | KeyCode::Right => return enter(state, seen),
        _ => {}
    }
    None
}

/// Switches to the next panel that is not empty.
fn turn(state: &mut State, seen: &Seen, by: usize) {
    if *state.screen() != Screen::Board {
        return;
    }
    for turn in 1..=PANELS.len() {
        let panel = PANELS[(state.panel as usize + turn * by) % PANELS.len()];
        if !panels::rows(seen, panel, &state.filter).is_empty() {
            state.panel = panel;
            state.gone = None;
            return;
        }
    }
}

fn enter(state: &mut State, seen: &Seen) -> Option<Wish> {
    let key = state.chosen_key(seen)?;
    let screen = match (state.screen(), state.panel) {
        (Screen::Board, Panel::Runs) => Screen::Run { run: key },
        (Screen::Board, Panel::Queues) => Screen::Queue { agent: key },
        (Screen::Board, Panel::Asks) => {
            let (run, node) = panels::asked(&key)?;
            Screen::Gate { run: run.to_owned(), node: node.to_owned() }
        }
        (Screen::Run { run }, _) => {
            let run = run.clone();
            let node = shown(&key).into_owned();
            let asks = seen.gates_of(&run).any(|gate| gate.node == node);
            match asks {
                true => Screen::Gate { run, node },
                false => Screen::Log { run, step: printing(seen, &key) },
            }
        }
        _ => return None,
    };
    let looked = match &screen {
        Screen::Gate { run, node } => {
            seen.gates_of(run).find(|gate| gate.node == shown(node)).map(|gate| gate.shown.clone())
        }
        _ => None,
    };
    let wish = state.open(screen);
    state.looked = looked;
    wish
}

/// Returns the step whose log to show, or `None` to show the whole run. A loop prints nothing
/// itself.
fn printing(seen: &Seen, step: &str) -> Option<String> {
    let detail = seen.detail.as_ref()?.as_ref().ok()?;
    let found = detail.steps.iter().find(|one| one.step == step)?;
    let prints = found.items.is_none() && found.state != StepShown::Asking;
    prints.then(|| step.to_owned())
}

/// Handles action keys. Returns `None` for any other key.
fn act(state: &mut State, seen: &Seen, code: KeyCode) -> Option<Option<Wish>> {
    let KeyCode::Char(letter) = code else { return None };
    if "axcr".contains(letter)
        && let Some(gone) = state.gone.take()
    {
        return Some(state.refuse(format!("{gone} is gone; look again, then press `{letter}`")));
    }
    Some(match letter {
        'a' => match state.gate(seen) {
            Ok(asked) => approve(state, seen, asked),
            Err(why) => state.refuse(why),
        },
        'x' => match state.gate(seen) {
            Ok(asked) => ask(state, Asking::Reason { asked, text: String::new() }),
            Err(why) => state.refuse(why),
        },
        'c' => cancel(state, seen),
        'r' => match state.run(seen) {
            Some(run) => retry(state, seen, run),
            None => state.refuse("choose a run to go on with"),
        },
        'l' => match (state.screen(), state.run(seen)) {
            (Screen::Run { .. }, Some(run)) => {
                let step = state.chosen_key(seen).and_then(|step| printing(seen, &step));
                state.open(Screen::Log { run, step })
            }
            (_, Some(run)) => state.open(Screen::Log { run, step: None }),
            (_, None) => state.refuse("choose a run to see what it prints"),
        },
        _ => return None,
    })
}

/// Prompts for an approval comment. A merge can be approved only while its diff is on the screen.
fn approve(state: &mut State, seen: &Seen, asked: Question) -> Option<Wish> {
    let gate = seen.gates_of(&asked.run).find(|gate| gate.shown == asked.shown);
    if gate.is_some_and(|gate| gate.diff_unreadable) {
        return state.refuse(format!(
            "the change of `{}` cannot be read here: review it in its worktree, then `orchestrate \
             approve {} --step {}`",
            asked.node, asked.run, asked.node
        ));
    }
    let merges = gate.is_some_and(|gate| gate.diff.is_some());
    if merges && !matches!(state.screen(), Screen::Gate { .. }) {
        let wish = state.open(Screen::Gate { run: asked.run.clone(), node: asked.node.clone() });
        state.looked = Some(asked.shown);
        state.said = Some(("this is a merge: read the change, then press `a` again".into(), false));
        return wish;
    }
    ask(state, Asking::Comment { asked, text: String::new() })
}

fn ask(state: &mut State, asking: Asking) -> Option<Wish> {
    state.asking = Some(asking);
    None
}

fn cancel(state: &mut State, seen: &Seen) -> Option<Wish> {
    let target = match state.screen() {
        Screen::Queue { .. } => state.chosen_key(seen).map(|task| ("task", task)),
        _ => state.run(seen).map(|run| ("run", run)),
    };
    let Some((what, target)) = target else {
        return state.refuse("choose a run to cancel");
    };
    if seen.run(&target).is_some_and(|run| run.state.is_over()) {
        return state.refuse(format!("run {target} is over already"));
    }
    let question = format!("cancel {what} {target}, with everything it has started?");
    ask(state, Asking::Sure { deed: Deed::Cancel { target }, question })
}

fn retry(state: &mut State, seen: &Seen, run: String) -> Option<Wish> {
    use crate::view::Standing;
    let view = seen.run(&run);
    if view.is_some_and(RunView::can_continue) {
        return Some(Wish::Act(Deed::Retry { target: run, from: None }));
    }
    match view.map(|run| run.state) {
        Some(Standing::Completed) => state.refuse(format!("run {run} has completed already")),
        Some(Standing::Paused) => {
            state.refuse(format!("run {run} waits for a person: approve or reject"))
        }
        Some(Standing::Running | Standing::Queued) => {
            state.refuse(format!("run {run} goes on already"))
        }
        _ => Some(Wish::Act(Deed::Retry { target: run, from: None })),
    }
}

/// Scrolls the open question. Returns true if it handled the key.
fn scroll_gate(state: &mut State, seen: &Seen, code: KeyCode) -> bool {
    let Screen::Gate { run, node } = state.screen() else { return false };
    let gate = seen.gates.iter().find(|gate| gate.run_id.as_str() == run && gate.node == *node);
    let text = gate.and_then(Gate::to_read).unwrap_or_default();
    let last = text.lines().count().saturating_sub(1);
    let page = PAGE.unsigned_abs();
    state.down = match code {
        KeyCode::Up | KeyCode::Char('k') => state.down.saturating_sub(1),
        KeyCode::Down | KeyCode::Char('j') => state.down + 1,
        KeyCode::PageUp => state.down.saturating_sub(page),
        KeyCode::PageDown | KeyCode::Char(' ') => state.down + page,
        KeyCode::Home | KeyCode::Char('g') => 0,
        KeyCode::End | KeyCode::Char('G') => last,
        _ => return false,
    }
    .min(last);
    true
}

/// Handles keys in a log.
fn scroll(state: &mut State, code: KeyCode) -> Option<Wish> {
    let page = PAGE.unsigned_abs();
    match code {
        KeyCode::Up | KeyCode::Char('k') => state.up += 1,
        KeyCode::Down | KeyCode::Char('j') => state.up = state.up.saturating_sub(1),
        KeyCode::PageUp => state.up += page,
        KeyCode::PageDown | KeyCode::Char(' ') => state.up = state.up.saturating_sub(page),
        KeyCode::Home | KeyCode::Char('g') => state.up = usize::MAX / 2,
        KeyCode::End | KeyCode::Char('G' | 'f') => state.up = 0,
        _ => {}
    }
    None
}

/// Handles a key while a prompt is open.
fn answer(state: &mut State, asking: Asking, key: KeyEvent) -> Option<Wish> {
    match (asking, key.code) {
        (Asking::Filter(_), KeyCode::Esc) => {
            state.filter.clear();
            None
        }
        (_, KeyCode::Esc) => None,
        (Asking::Sure { deed, .. }, KeyCode::Char('y' | 'Y')) => Some(Wish::Act(deed)),
        (Asking::Sure { .. }, _) => {
            state.said = Some(("nothing was done".to_owned(), false));
            None
        }
        (Asking::Filter(text), KeyCode::Enter) => {
            state.filter = text;
            None
        }
        (Asking::Comment { asked, text: comment }, KeyCode::Enter) => {
            Some(Wish::Act(Deed::Approve { asked, comment }))
        }
        (asking @ Asking::Reason { .. }, KeyCode::Enter) => reason(state, asking),
        (mut asking, code) => {
            let text = match &mut asking {
                Asking::Filter(text) => text,
                Asking::Comment { text, .. } | Asking::Reason { text, .. } => text,
                Asking::Sure { .. } => return None,
            };
            state.said = None;
            match code {
                KeyCode::Backspace => drop(text.pop()),
                KeyCode::Char('u') if key.modifiers.contains(KeyModifiers::CONTROL) => text.clear(),
                KeyCode::Char(letter) => text.push(letter),
                _ => {}
            }
            // The filter applies while the user types.
            if let Asking::Filter(text) = &asking {
                state.filter = text.clone();
            }
            state.asking = Some(asking);
            None
        }
    }
}

/// Rejects the question if the reason is not empty: the agent that tries again needs it.
fn reason(state: &mut State, asking: Asking) -> Option<Wish> {
    let Asking::Reason { asked, text } = &asking else { return None };
    if text.trim().is_empty() {
        state.said = Some(("say why, or leave it with Esc".to_owned(), true));
        state.asking = Some(asking);
        return None;
    }
    let (asked, reason) = (asked.clone(), text.clone());
    Some(Wish::Act(Deed::Reject { asked, reason }))
}
