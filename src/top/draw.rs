//! Draws the screen: a title, the contents, a message or prompt line, and a line of keys.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::Paragraph;

use super::panels::{self, Row};
use super::state::{Asking, PANELS, Panel, Screen, State};
use super::{Seen, Wish, screens};
use crate::base::ids::shown;
use crate::base::text::{cut, fit, style_of, width};
use crate::cli::act::{Deed, Question};
use crate::view::Standing;

/// Display options.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Look {
    pub colour: bool,
}

impl Look {
    pub(crate) fn dim(self) -> Style {
        Style::new().add_modifier(Modifier::DIM)
    }

    pub(crate) fn title(self) -> Style {
        Style::new().add_modifier(Modifier::BOLD)
    }

    pub(crate) fn state(self, word: &str) -> Style {
        style_of(word, self.colour)
    }
}

/// Draws the whole screen.
pub(crate) fn draw(state: &State, seen: &Seen, look: Look, frame: &mut Frame) {
    let parts = [Constraint::Length(1), Constraint::Min(0), Constraint::Length(2)];
    let [head, body, foot] = Layout::vertical(parts).areas(frame.area());
    frame.render_widget(title(state, seen, look, head.width.into()), head);
    match state.screen() {
        Screen::Board => board(state, seen, look, frame, body),
        Screen::Run { .. } => screens::run(state, seen, look, frame, body),
        Screen::Gate { .. } => screens::gate(state, seen, look, frame, body),
        Screen::Log { .. } => screens::log(state, seen, look, frame, body),
        Screen::Queue { .. } => screens::queue(state, seen, look, frame, body),
        Screen::Help => screens::help(look, frame, body),
    }
    let [said, keys] = Layout::vertical([Constraint::Length(1); 2]).areas(foot);
    frame.render_widget(said_line(state, seen, look, said.width.into()), said);
    frame.render_widget(
        Line::styled(cut(keys_of(state, seen), keys.width.into()), look.dim()),
        keys,
    );
}

/// Returns the title line: the screen's name on the left, counts and time on the right.
fn title(state: &State, seen: &Seen, look: Look, columns: usize) -> Line<'static> {
    let left = match state.screen() {
        Screen::Board | Screen::Help => format!(" orchestrate · {}", seen.place),
        Screen::Run { run } => match &seen.detail {
            Some(Ok(detail)) => format!(
                " run {} of {}: {}",
                detail.run.run_id,
                detail.run.what(&detail.run.workflow_file),
                detail.run.state.word()
            ),
            _ => format!(" run {run}"),
        },
        Screen::Gate { run, node } => format!(" `{node}` of run {run} asks"),
        Screen::Log { run, step: Some(step) } => format!(" log of `{}` of run {run}", shown(step)),
        Screen::Log { run, step: None } => format!(" log of run {run}"),
        Screen::Queue { agent } => format!(" queue of {agent}"),
    };
    let clock = seen.now.map(|now| now.to_second()).unwrap_or_default();
    let clock = clock.get(11..20).unwrap_or_default();
    let right = match state.screen() {
        Screen::Board => format!("{}   {clock} ", counts(seen)),
        _ => format!("{clock} "),
    };
    let room = columns.saturating_sub(width(&right) + 1);
    Line::from(vec![Span::styled(fit(&left, room), look.title()), Span::raw(" "), right.into()])
}

fn counts(seen: &Seen) -> String {
    let with =
        |wanted: &[Standing]| seen.runs.iter().filter(|run| wanted.contains(&run.state)).count();
    let parts = [
        (with(&[Standing::Running, Standing::Doubtful]), "running"),
        (with(&[Standing::Queued]), "queued"),
        (seen.gates.iter().filter(|gate| !gate.answered).count(), "asked"),
        (with(&[Standing::Failed, Standing::Blocked, Standing::Damaged]), "failed"),
        (seen.failed_tasks, if seen.failed_tasks == 1 { "failed task" } else { "failed tasks" }),
    ];
    let told = parts.iter().filter(|(count, _)| *count > 0);
    told.map(|(count, word)| format!("{count} {word}")).collect::<Vec<_>>().join("  ")
}

/// Returns the message line: a prompt, the action in progress, the last message, or an error.
fn said_line(state: &State, seen: &Seen, look: Look, columns: usize) -> Line<'static> {
    let typed = |before: String, text: &str| {
        // Always show the end of the typed text.
        let room = columns.saturating_sub(width(&before) + 3);
        let skipped = width(text).saturating_sub(room);
        let shown: String = text.chars().skip(skipped).collect();
        Line::from(vec![
            Span::styled(format!(" {before}"), look.title()),
            Span::raw(shown),
            Span::styled(" ", Style::new().add_modifier(Modifier::REVERSED)),
        ])
    };
    let plain = |text: String, style: Style| Line::styled(cut(&format!(" {text}"), columns), style);
    match &state.asking {
        Some(Asking::Filter(text)) => return typed("filter: ".to_owned(), text),
        Some(Asking::Comment { asked: Question { run, node, .. }, text }) => {
            return typed(format!("approve `{node}` of run {run}; comment: "), text);
        }
        Some(Asking::Reason { asked: Question { run, node, .. }, text }) => {
            let wrong = state.said.as_ref().filter(|(_, wrong)| *wrong);
            let wrong = wrong.map(|(said, _)| format!("{said}: ")).unwrap_or_default();
            return typed(format!("{wrong}reject `{node}` of run {run}, because: "), text);
        }
        Some(Asking::Sure { question, .. }) => {
            return plain(format!("{question} y/n"), look.title());
        }
        None => {}
    }
    if let Some(doing) = &state.doing {
        return plain(format!("{doing} …"), look.dim());
    }
    match (&state.said, &seen.trouble) {
        (Some((text, true)), _) => plain(format!("! {text}"), look.state("failed")),
        (Some((text, false)), _) => plain(text.clone(), Style::new()),
        (None, Some(trouble)) => plain(format!("! {trouble}"), look.state("failed")),
        (None, None) if state.gone.is_some() => {
            let gone = state.gone.as_deref().unwrap_or_default();
            plain(format!("! {gone} is gone"), look.state("doubtful"))
        }
        (None, None) if !state.filter.is_empty() => {
            plain(format!("only what has `{}`; Esc shows all", state.filter), look.dim())
        }
        (None, None) => Line::default(),
    }
}

/// Returns the keys that are valid on the current screen.
fn keys_of(state: &State, seen: &Seen) -> &'static str {
    match &state.asking {
        Some(Asking::Sure { .. }) => return " y yes  n no",
        Some(Asking::Reason { .. }) => return " Enter reject  Esc leave it",
        Some(Asking::Comment { .. }) => return " Enter approve  Esc leave it",
        Some(Asking::Filter(_)) => return " Enter keep  Esc show all",
        None => {}
    }
    match (state.screen(), state.panel) {
        (Screen::Board, Panel::Asks) => {
            " Enter look  a approve  x reject  c cancel  Tab next  / filter  ? help  q quit"
        }
        (Screen::Board, Panel::Runs) if state.run(seen).is_some_and(|run| seen.asks(&run)) => {
            " Enter open  a approve  x reject  l log  c cancel  Tab next  ? help  q quit"
        }
        (Screen::Board, Panel::Runs) => {
            " Enter open  l log  c cancel  r retry  Tab next list  / filter  ? help  q quit"
        }
        (Screen::Board, Panel::Workers) => " Tab next list  / filter  ? help  q quit",
        (Screen::Board, Panel::Queues) => " Enter open  Tab next list  / filter  ? help  q quit",
        (Screen::Run { .. }, _) => {
            " Enter log  a approve  x reject  c cancel  r retry  Esc back  ? help  q quit"
        }
        (Screen::Gate { .. }, _) => {
            " ↑↓ scroll  a approve  x reject  l log  c cancel  Esc back  q quit"
        }
        (Screen::Log { .. }, _) => " ↑↓ scroll  f follow  Esc back  ? help  q quit",
        (Screen::Queue { .. }, _) => " ↑↓ choose  c cancel  Esc back  ? help  q quit",
        (Screen::Help, _) => " any key goes back",
    }
}

/// Draws the lists below each other. Each gets the height it needs, as far as space permits.
fn board(state: &State, seen: &Seen, look: Look, frame: &mut Frame, area: Rect) {
    let area = parked(seen, look, frame, area);
    let lists = PANELS.map(|panel| (panel, panels::rows(seen, panel, &state.filter)));
    let shown = |panel: Panel, rows: &[Row]| panel == Panel::Runs || !rows.is_empty();
    let lists: Vec<_> = lists.into_iter().filter(|(panel, rows)| shown(*panel, rows)).collect();
    let sizes: Vec<(usize, bool)> =
        lists.iter().map(|(panel, rows)| (rows.len().max(1), *panel == state.panel)).collect();
    let heights = share(&sizes, area.height.into());
    let mut top = area.y;
    for ((panel, rows), height) in lists.iter().zip(heights) {
        let part = Rect { y: top, height: height as u16, ..area };
        top += part.height;
        if part.height > 0 {
            let place = state.place_on(*panel, rows);
            let chosen = (*panel == state.panel).then_some(place);
            let shape = panel.shape();
            list(shape.title, shape.state, rows, chosen, look, frame, part);
            if rows.is_empty() && part.height > 1 {
                let text = match (seen.now, state.filter.is_empty()) {
                    (None, _) => "   looking …",
                    (_, true) => "   nothing was run here yet; `orchestrate run WORKFLOW` begins",
                    (_, false) => "   none",
                };
                let line = Rect { y: part.y + 1, height: 1, ..part };
                frame.render_widget(Line::styled(cut(text, line.width.into()), look.dim()), line);
            }
        }
    }
}

/// Draws a line for each parked provider. Returns the remaining area.
fn parked(seen: &Seen, look: Look, frame: &mut Frame, area: Rect) -> Rect {
    if seen.parked.is_empty() {
        return area;
    }
    let height = (seen.parked.len() + 2) as u16;
    let parts = [Constraint::Length(height), Constraint::Min(0)];
    let [head, rest] = Layout::vertical(parts).areas(area);
    let columns = usize::from(area.width);
    let mut lines = vec![Line::styled(" PROVIDERS", look.dim())];
    let line = |text: &String| cut(&format!("   {text}"), columns);
    lines.extend(seen.parked.iter().map(|text| Line::styled(line(text), look.state("paused"))));
    frame.render_widget(Paragraph::new(lines), head);
    rest
}

/// Divides `room` lines among the lists. Each needs a title, its rows, and a blank line. If space
/// is short, the selected list comes first, then the others from top to bottom.
pub(super) fn share(lists: &[(usize, bool)], room: usize) -> Vec<usize> {
    const LEAST: usize = 2;
    let mut order: Vec<usize> = (0..lists.len()).collect();
    order.sort_by_key(|index| !lists[*index].1);
    let want = |index: usize| lists[index].0 + 2;
    let mut heights = vec![0; lists.len()];
    let mut left = room;
    // First give each list a title and a few rows, then the rest.
    for most in [LEAST + 1, LEAST + 3, usize::MAX] {
        for index in &order {
            let more = want(*index).min(most).saturating_sub(heights[*index]).min(left);
            heights[*index] += more;
            left -= more;
        }
    }
    heights
}

/// Draws a title and rows in columns. The last column gets the remaining width.
pub(super) fn list(
    title: &str,
    state: usize,
    rows: &[Row],
    chosen: Option<usize>,
    look: Look,
    frame: &mut Frame,
    area: Rect,
) {
    let room = usize::from(area.height).saturating_sub(1);
    let place = chosen.unwrap_or(0);
    // Give up the blank line between two lists before a row.
    let room = if rows.len() < room { rows.len() } else { room };
    let first = place.saturating_sub(room.saturating_sub(1)).min(rows.len().saturating_sub(room));
    let title = match rows.len() > room {
        true if room == 0 => format!(" {title} {}", rows.len()),
        true => format!(" {title} {}-{} of {}", first + 1, first + room, rows.len()),
        false => format!(" {title}"),
    };
    let marked = if chosen.is_some() { look.title() } else { look.dim() };
    let mut lines = vec![Line::styled(title, marked)];
    let widths = widths(rows, area.width.into());
    for (index, row) in rows.iter().enumerate().skip(first).take(room) {
        lines.push(row_line(row, &widths, state, chosen == Some(index), look));
    }
    frame.render_widget(Paragraph::new(lines), area);
}

/// Returns the width of each column. If they do not fit, the widest columns shrink.
fn widths(rows: &[Row], columns: usize) -> Vec<usize> {
    const BEFORE: usize = 3;
    const LAST: usize = 16;
    let count = rows.iter().map(|row| row.cells.len()).max().unwrap_or(0);
    let widest = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.cells.get(column));
        cells.map(|cell| width(cell)).max().unwrap_or(0)
    };
    let mut widths: Vec<usize> = (0..count).map(widest).collect();
    let Some(last) = widths.pop() else { return widths };
    let gaps = |widths: &[usize]| widths.iter().filter(|width| **width > 0).count() * 2;
    let taken = |widths: &[usize]| BEFORE + widths.iter().sum::<usize>() + gaps(widths);
    let wanted = last.min(LAST);
    // A truncated id is useless, so the first column never shrinks.
    while taken(&widths) + wanted > columns {
        let others = widths.iter_mut().skip(1).filter(|width| **width > 8);
        let Some(widest) = others.max() else { break };
        *widest -= 1;
    }
    let rest = columns.saturating_sub(taken(&widths));
    widths.push(rest);
    widths
}

fn row_line(row: &Row, widths: &[usize], state: usize, chosen: bool, look: Look) -> Line<'static> {
    let mut spans = vec![Span::raw(if chosen { " > " } else { "   " })];
    for (column, (cell, width)) in row.cells.iter().zip(widths).enumerate() {
        if *width == 0 {
            continue;
        }
        let last = column + 1 == row.cells.len();
        let text = if last { cut(cell, *width) } else { fit(cell, *width) + "  " };
        let style = match column {
            column if column == state => look.state(cell.trim()),
            _ => Style::new(),
        };
        spans.push(Span::styled(text, style));
    }
    let line = Line::from(spans);
    if chosen { line.patch_style(Style::new().add_modifier(Modifier::BOLD)) } else { line }
}

/// Returns the message to show while an action is in progress.
pub(crate) fn doing(wish: &Wish) -> Option<String> {
    let Wish::Act(deed) = wish else { return None };
    Some(match deed {
        Deed::Approve { asked, .. } => format!("approving `{}`", asked.node),
        Deed::Reject { asked, .. } => format!("rejecting `{}`", asked.node),
        Deed::Cancel { target } => format!("cancelling {target}"),
        Deed::Retry { target, .. } => format!("taking up {target}"),
        Deed::Enqueue { agent, .. } => format!("putting a task into inbox/{agent}"),
    })
}
