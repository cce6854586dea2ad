//! The screens that open over the dashboard: run, question, log, queue, and help.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::Style;
use ratatui::text::Line;
use ratatui::widgets::Paragraph;

use super::draw::{Look, list};
use super::state::{Panel, Screen, State};
use super::{Gate, RunDetail, Seen, panels};
use crate::base::ids::counted;
use crate::base::text::{cut, printed, wrap};
use crate::view;
use crate::view::progress::seconds;
use crate::view::rows::owner_line;

/// Maximum number of lines of the sentence that explains a run's state.
const WHY: usize = 3;

/// Draws one run: an explanation of its state, its steps as a tree, the workers, and the last
/// events.
pub(super) fn run(state: &State, seen: &Seen, look: Look, frame: &mut Frame, area: Rect) {
    let detail = match &seen.detail {
        Some(Ok(detail)) => detail,
        Some(Err(error)) => return text(vec![error.clone()], look.state("damaged"), frame, area),
        None => return text(vec!["looking …".to_owned()], look.dim(), frame, area),
    };
    let about = about(detail, seen, area.width.into());
    let (rows, workers) = (panels::steps(seen), panels::rows(seen, Panel::Workers, ""));
    // If space is short, the workers go first, then the events.
    let room = usize::from(area.height).saturating_sub(about.len() + rows.len() + 3);
    let events = if room > detail.events.len() { detail.events.len() } else { 0 };
    let room = room.saturating_sub(events + 1);
    let workers = if room > workers.len() { workers } else { Vec::new() };
    let lines = |count: usize, after: usize| match count {
        0 => Constraint::Length(0),
        count => Constraint::Length((count + after) as u16),
    };
    let parts =
        [lines(about.len(), 1), Constraint::Min(2), lines(workers.len(), 2), lines(events, 1)];
    let [head, middle, working, foot] = Layout::vertical(parts).areas(area);
    text(about, Style::new(), frame, head);
    let chosen = Some(state.place_here(&rows));
    let title = format!("{}S", detail.run.unit.to_uppercase());
    list(&title, 1, &rows, chosen, look, frame, middle);
    if !workers.is_empty() {
        list(Panel::Workers.shape().title, 1, &workers, None, look, frame, working);
    }
    if events > 0 {
        let mut lines = vec![Line::styled(" LAST EVENTS", look.dim())];
        lines.extend(detail.events.iter().map(|event| {
            let at = event.at.to_second();
            let line = format!("   {}  {}", at.get(11..20).unwrap_or_default(), event.text);
            Line::styled(cut(&line, foot.width.into()), look.dim())
        }));
        frame.render_widget(Paragraph::new(lines), foot);
    }
}

/// Returns the lines above the steps of a run.
fn about(detail: &RunDetail, seen: &Seen, columns: usize) -> Vec<String> {
    let RunDetail { run, usage, .. } = detail;
    let mut lines = wrap(&view::why_run(detail), columns.saturating_sub(6));
    if lines.len() > WHY {
        lines.truncate(WHY);
        lines[WHY - 1].push('…');
    }
    let until = if run.state.is_over() { run.updated_at } else { seen.now };
    let took = until.zip(run.started_at).map(|(end, start)| seconds(end.ms_since(start)));
    let verb = if run.state.is_over() { "took" } else { "goes on for" };
    let mut facts: Vec<String> = took.map(|took| format!("{verb} {took}")).into_iter().collect();
    facts.extend(owner_line(&run.owner));
    lines.push(facts.join(", "));
    lines.extend(usage.as_ref().map(view::RunSpent::words));
    lines
}

fn text(lines: Vec<String>, style: Style, frame: &mut Frame, area: Rect) {
    let columns = usize::from(area.width);
    let lines = lines.iter().map(|line| Line::styled(cut(&format!("   {line}"), columns), style));
    frame.render_widget(Paragraph::new(lines.collect::<Vec<_>>()), area);
}

/// Draws a question, and the diff or the agent's last answer.
pub(super) fn gate(state: &State, seen: &Seen, look: Look, frame: &mut Frame, area: Rect) {
    let Screen::Gate { run, node } = state.screen() else { return };
    let is_it = |gate: &&Gate| gate.run_id.as_str() == run && gate.node == *node;
    let Some(gate) = seen.gates.iter().find(is_it) else {
        let gone = "nothing is asked here any more".to_owned();
        return text(vec![gone], look.dim(), frame, area);
    };
    let columns = usize::from(area.width).saturating_sub(6);
    let wrapped = |text: &str| -> Vec<String> {
        text.lines().flat_map(|line| wrap(&printed(line), columns)).collect()
    };
    let mut lines = vec![String::new()];
    lines.extend(wrapped(&gate.message));
    lines.push(String::new());
    if let Some(since) = seen.since(gate.since) {
        let until = gate.expires_at.map(|at| format!(", until {}", at.to_second()));
        lines.push(format!("asked for {}{}", seconds(since), until.unwrap_or_default()));
    }
    if gate.answered {
        lines.push("it was answered, which counts once somebody drives the run".to_owned());
    }
    if gate.diff_unreadable {
        lines.push("the change cannot be read here, so it cannot be approved here".to_owned());
    }
    if let Some(said) = gate.to_read() {
        let title = match gate.diff {
            Some(_) => "what would be merged:",
            None => "what was said before:",
        };
        let from = match state.down {
            0 => String::new(),
            down => format!(" (from line {})", down + 1),
        };
        lines.extend([String::new(), format!("{title}{from}")]);
        let rest: String = said.lines().skip(state.down).flat_map(|line| [line, "\n"]).collect();
        let said = wrapped(&rest);
        let room = usize::from(area.height).saturating_sub(lines.len() + 1);
        let all = said.len();
        lines.extend(said.into_iter().take(room).map(|line| format!("| {line}")));
        if all > room {
            lines.push(format!("| … {} more lines: PgDn shows them", all - room));
        }
    }
    text(lines, Style::new(), frame, area);
}

/// Draws the end of a log, or the part that the user scrolled to.
pub(super) fn log(state: &State, seen: &Seen, look: Look, frame: &mut Frame, area: Rect) {
    let Some((lines, more)) = &seen.log else {
        return text(vec!["looking …".to_owned()], look.dim(), frame, area);
    };
    let columns = usize::from(area.width).saturating_sub(2);
    let room = usize::from(area.height).saturating_sub(1);
    // Wrap lines from the end upward, only as many as are visible.
    let mut rows: Vec<String> = Vec::new();
    let mut left = lines.len();
    while left > 0 && rows.len() < room.saturating_add(state.up) {
        left -= 1;
        rows.extend(wrap(&printed(&lines[left]), columns).into_iter().rev());
    }
    let up = state.up.min(rows.len().saturating_sub(room));
    let shown: Vec<Line> = rows[up..(up + room).min(rows.len())]
        .iter()
        .rev()
        .map(|row| Line::from(format!(" {row}")))
        .collect();
    let mark = match (up, more) {
        _ if lines.is_empty() && *more => "nothing was printed yet".to_owned(),
        _ if lines.is_empty() => "nothing was printed".to_owned(),
        (0, true) => "following".to_owned(),
        (0, false) => "the end".to_owned(),
        (up, _) => format!("{} above the end", counted(up, "line")),
    };
    let parts = [Constraint::Length(1), Constraint::Min(0)];
    let [head, body] = Layout::vertical(parts).areas(area);
    frame.render_widget(Line::styled(format!("   {mark}"), look.dim()), head);
    frame.render_widget(Paragraph::new(shown), body);
}

/// Draws the tasks of one inbox: claimed tasks first, then waiting ones in claim order.
pub(super) fn queue(state: &State, seen: &Seen, look: Look, frame: &mut Frame, area: Rect) {
    let rows = panels::tasks(seen);
    let all = seen.tasks.as_ref().map_or(0, |(_, all)| *all);
    let title = match all > rows.len() {
        true => format!("TASKS (the first {} of {all})", rows.len()),
        false => "TASKS".to_owned(),
    };
    if rows.is_empty() {
        let empty = if seen.tasks.is_some() { "nothing waits here" } else { "looking …" };
        return text(vec![empty.to_owned()], look.dim(), frame, area);
    }
    list(&title, 1, &rows, Some(state.place_here(&rows)), look, frame, area);
}

const HELP: [(&str, &str); 14] = [
    ("↑ ↓  j k", "choose a row; PgUp, PgDn, Home, End go further"),
    ("Tab", "the next list; Shift-Tab the one before"),
    ("Enter", "open: a run, what is asked, a queue, the log of a step"),
    ("Esc", "back; on the board, show everything again"),
    ("l", "follow what a run prints, or the step that is chosen"),
    ("a", "approve what a run asks, with a comment or without"),
    ("x", "reject it, and say why"),
    ("c", "cancel a run or a task, once you have said yes"),
    ("r", "let a run that failed or was stopped go on"),
    ("/", "show only what has a text in it"),
    ("f", "in a log: follow its end again"),
    ("Ctrl-L", "draw everything anew"),
    ("Ctrl-Z", "put `top` to sleep; `fg` wakes it"),
    ("q", "leave; what goes on goes on"),
];

pub(super) fn help(look: Look, frame: &mut Frame, area: Rect) {
    let mut lines = vec![Line::default()];
    for (key, what) in HELP {
        lines.push(Line::from(cut(&format!("   {key:<10} {what}"), area.width.into())));
    }
    lines.push(Line::default());
    let more = "   `orchestrate status`, `logs`, `pending` and `why` say the same in lines";
    lines.push(Line::styled(cut(more, area.width.into()), look.dim()));
    frame.render_widget(Paragraph::new(lines), area);
}
