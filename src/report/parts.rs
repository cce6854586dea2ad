//! Elements that pages share: states, times, excerpts, graphs, and steps.

use std::fmt::Display;

use super::html::{Html, part, printed};
use crate::base::ids::{TaskAttempt, counted, shown};
use crate::base::time::Time;
use crate::engine::record::Spent;
use crate::graph::{Graph, svg};
use crate::report::{Asked, AttemptReport, ErrorReport, LogReport, Report, StepReport};
use crate::view::excerpt::Excerpt;
use crate::view::progress::seconds;
use crate::view::{self, StepShown};

/// Maximum number of bars in a timeline.
const BARS: usize = 250;

/// Returns the URL of a file of the run, or `None` if the page cannot link to it.
pub(crate) type Href<'a> = &'a dyn Fn(&str) -> Option<String>;

/// Writes a state label.
pub(crate) fn state(out: &mut Html, word: &'static str) {
    out.element("span", &[("class", &format!("state {word}"))], word);
}

/// Writes a time, to the second.
pub(crate) fn time(out: &mut Html, at: Time) {
    let full = at.to_second();
    let shown = full.replace('T', " ");
    out.element("time", &[("datetime", &full), ("title", &"UTC")], shown);
}

pub(crate) fn fact(out: &mut Html, name: &'static str, value: impl Display, more: Option<&str>) {
    out.raw("<div>").plain("dt", name).raw("<dd>").text(value);
    if let Some(more) = more {
        out.plain("small", more);
    }
    out.raw("</dd></div>");
}

/// Converts a file path to a URL path, encoding each part.
pub(crate) fn address(file: &str) -> String {
    file.split('/').map(part).collect::<Vec<_>>().join("/")
}

/// Writes an excerpt of untrusted text, the size of any omitted part, and a reference to the file.
pub(crate) fn excerpt(out: &mut Html, name: &str, note: &str, text: &Excerpt, href: Href) {
    out.raw("<figure><figcaption>").plain("b", name);
    if !note.is_empty() {
        out.plain("span", note);
    }
    if text.bytes > 4096 || text.left_out > 0 {
        out.plain("span", bytes(text.bytes));
    }
    if let Some(file) = &text.file {
        match href(file) {
            Some(to) => out.element("a", &[("href", &to)], file),
            None => out.plain("code", file),
        };
    }
    out.raw("</figcaption>").plain("pre", printed(&text.text));
    if let Some(tail) = &text.tail {
        let left_out = format!("… {} left out here", bytes(text.left_out));
        out.element("p", &[("class", &"cut")], left_out);
        out.plain("pre", printed(tail));
    }
    out.raw("</figure>");
}

/// Formats a size in bytes.
pub(crate) fn bytes(count: u64) -> String {
    match count {
        1 => "1 byte".to_owned(),
        0..=9_999 => format!("{count} bytes"),
        10_000..=999_999 => format!("{:.1} kB", count as f64 / 1e3),
        _ => format!("{:.1} MB", count as f64 / 1e6),
    }
}

pub(crate) fn graph(out: &mut Html, graph: &Graph, link: &dyn Fn(&str) -> Option<String>) {
    let picture = svg::draw_in_page(graph, &|node| link(&node.path));
    out.raw("<div class=\"canvas\">").picture(&picture).raw("</div>");
}

/// Writes a bar for each execution, on a scale from the start of the run to `until`.
pub(crate) fn timeline(out: &mut Html, report: &Report, until: Time) {
    let from = report.began;
    let mut bars: Vec<(&StepReport, &AttemptReport)> = report
        .steps
        .iter()
        .flat_map(|step| step.attempts.iter().map(move |attempt| (step, attempt)))
        .collect();
    bars.sort_by_key(|(_, attempt)| attempt.started_at);
    if bars.is_empty() {
        return;
    }
    let span = until.ms_since(from).max(1) as f64;
    let percent = |at: Time| (at.ms_since(from) as f64 / span * 100.0).clamp(0.0, 100.0);
    out.raw("<h2 id=\"timeline\">Timeline</h2><div class=\"scroll\"><table class=\"timeline\">");
    for (step, attempt) in bars.iter().take(BARS) {
        let end = attempt.ended_at.unwrap_or(until);
        let (x, width) = (percent(attempt.started_at), percent(end) - percent(attempt.started_at));
        let name = match step.attempts.len() {
            1 => shown(&step.view.step).into_owned(),
            _ => format!("{} #{}", shown(&step.view.step), which(attempt)),
        };
        out.open("tr", &[]).element("td", &[("class", &"what"), ("title", &name)], &name);
        out.raw("<td class=\"track\"><svg aria-hidden=\"true\">");
        let (x, width) = (x.min(99.5), width.max(0.5));
        out.open(
            "rect",
            &[
                ("class", &attempt.outcome.word()),
                ("x", &format!("{x:.2}%")),
                ("y", &2),
                ("width", &format!("{width:.2}%")),
                ("height", &10),
                ("rx", &3),
            ],
        );
        out.raw("</rect></svg></td><td class=\"small nowrap\">");
        out.text(seconds(end.ms_since(attempt.started_at)));
        out.element("td", &[("class", &"small")], attempt.outcome.word()).raw("</tr>");
    }
    out.raw("</table></div>");
    // Executions of steps that the report omits count too.
    let more = report.counts.executions - bars.len().min(BARS);
    if more > 0 {
        let more = format!("and {}", counted(more, "more execution"));
        out.element("p", &[("class", &"small")], more);
    }
}

/// Returns the label of an execution: `2`, or `2.3` for the third execution of attempt 2.
fn which(one: &AttemptReport) -> String {
    match one.execution {
        TaskAttempt::FIRST => one.attempt.to_string(),
        execution => format!("{}.{execution}", one.attempt),
    }
}

/// Returns the cost of a step, or an empty text if it is unknown.
pub(crate) fn cost(usage: &Spent) -> String {
    let known = usage.usage.cost_usd.is_some() || usage.usage.input_tokens.is_some();
    if known { view::words(&usage.usage) } else { String::new() }
}

/// Returns the id of a step's element, for use as a URL fragment.
pub(crate) fn anchor(path: &str) -> String {
    format!("step-{path}")
}

/// Writes a step. It is expanded if the step failed, runs, asks, or was interrupted.
pub(crate) fn step(out: &mut Html, step: &StepReport, href: Href) {
    let open = matches!(
        step.view.state,
        StepShown::Failed | StepShown::Running | StepShown::Asking | StepShown::Interrupted
    );
    let class = format!("d{}", step.view.depth.min(3));
    let id = anchor(&step.view.step);
    let mut attributes: Vec<(&'static str, &dyn Display)> = vec![("id", &id), ("class", &class)];
    if open {
        attributes.push(("open", &""));
    }
    out.open("details", &attributes).raw("<summary>");
    state(out, step.view.state.word());
    out.element("bdi", &[("class", &"step")], shown(&step.view.step));
    out.element("span", &[("class", &"small")], what(step));
    out.element("span", &[("class", &"rest")], rest(step)).raw("</summary><div class=\"inside\">");
    inside(out, step, href);
    out.raw("</div></details>");
}

fn what(step: &StepReport) -> String {
    match &step.view.agent {
        Some(agent) => format!("{}, agent {agent}", step.kind),
        None => step.kind.to_owned(),
    }
}

/// Returns the text at the end of a step's summary line.
fn rest(step: &StepReport) -> String {
    let mut words = Vec::new();
    words.extend(step.view.item.clone());
    words.extend(step.view.items.map(|items| items.words()));
    words.extend(step.view.rounds.zip(step.max_rounds).map(|(begun, most)| match most {
        1 => "1 round".to_owned(),
        most => format!("{begun} of {most} rounds"),
    }));
    let attempts = step.attempts.iter().filter(|one| one.execution == TaskAttempt::FIRST).count();
    if attempts > 1 {
        words.push(format!("{attempts} attempts"));
    }
    if step.attempts.len() > attempts && attempts > 0 {
        words.push(format!("{} executions", step.attempts.len()));
    }
    words.extend(step.view.exit_code.filter(|code| *code != 0).map(|code| format!("exit {code}")));
    words.extend(step.view.usage.as_ref().map(cost).filter(|cost| !cost.is_empty()));
    words.extend(step.view.duration_ms.map(seconds));
    words.join(" · ")
}

fn inside(out: &mut Html, step: &StepReport, href: Href) {
    if step.view.is_passed_over() {
        let attempt = step.view.attempt;
        let told = format!("Skipped at its last visit; this is of attempt {attempt}, before that.");
        out.plain("p", told);
    }
    if let Some(cause) = step.view.skip_cause {
        out.plain("p", format!("Skipped: {}.", view::skipped(cause)));
    }
    if let Some(warning) = &step.view.warning {
        out.raw("<p>").plain("b", "Warning: ").text(warning).raw("</p>");
    }
    if let Some(error) = &step.error {
        fault(out, error);
    }
    if let Some(asked) = &step.asked {
        self::asked(out, asked, href);
    }
    if let Some(output) = &step.output {
        let name = if step.view.usage.is_some() { "Answer" } else { "Output" };
        excerpt(out, name, "", output, href);
    }
    if !step.files.is_empty() {
        out.raw("<figure><figcaption><b>Files</b></figcaption>");
        out.plain("pre", step.files.join("\n")).raw("</figure>");
    }
    if let Some(tree) = &step.worktree {
        let at = tree.checkpoint.as_ref().or(tree.head.as_ref());
        let at = at.map(|commit| format!(", commit {commit}")).unwrap_or_default();
        let dirty = if tree.dirty { ", with changes that no commit has" } else { "" };
        out.raw("<p class=\"small\">");
        out.text(format!("Worked in {} on {}{at}{dirty}.", tree.path, tree.branch)).raw("</p>");
    }
    for log in &step.logs {
        // Omit a log that equals the output shown above.
        let same = step.output.as_ref().is_some_and(|output| {
            log.stream == "stdout"
                && output.left_out == 0
                && output.text.trim_end() == log.text.text.trim_end()
        });
        if !same {
            self::log(out, log, step, href);
        }
    }
    attempts(out, step);
    let nothing = step.asked.is_none()
        && step.output.is_none()
        && step.logs.is_empty()
        && step.error.is_none()
        && step.attempts.is_empty()
        && step.view.skip_cause.is_none()
        && step.view.items.is_none()
        && step.view.rounds.is_none();
    if nothing {
        out.raw("<p class=\"small\">Nothing is known of it yet.</p>");
    }
}

pub(crate) fn fault(out: &mut Html, error: &ErrorReport) {
    out.raw("<figure><figcaption><b>Error</b></figcaption>");
    out.element("pre", &[("class", &"error")], printed(&error.message));
    if !error.tail.is_empty() {
        out.raw("<figcaption>the last lines before it</figcaption>");
        out.plain("pre", printed(&error.tail.join("\n")));
    }
    if !error.context.is_empty() {
        let more = serde_json::to_string_pretty(&error.context).unwrap_or_default();
        let more = Excerpt::of(&more, crate::view::excerpt::Room::LITTLE);
        excerpt(out, "more about it", "", &more, &|_| None);
    }
    out.raw("</figure>");
}

fn asked(out: &mut Html, asked: &Asked, href: Href) {
    let name = match asked.what {
        "prompt" => "Prompt",
        "script" => "Script",
        "question" => "Question",
        "files" => "Waits for",
        "reason" => "Reason",
        _ => "Command",
    };
    let note = match (asked.what, asked.as_sent) {
        ("question", _) | ("files", _) => "",
        (_, true) => "as it was sent",
        (_, false) => "as it is written in the workflow",
    };
    excerpt(out, name, note, &asked.text, href);
}

fn log(out: &mut Html, log: &LogReport, step: &StepReport, href: Href) {
    let name = match (log.stream, log.readable) {
        ("stderr", _) => "Standard error",
        (_, true) => "What the agent said and did",
        _ => "Standard output",
    };
    let note = match step.attempts.len() {
        0 | 1 => String::new(),
        _ => format!("attempt {}", log.attempt),
    };
    excerpt(out, name, &note, &log.text, href);
}

fn attempts(out: &mut Html, step: &StepReport) {
    let told = step.attempts.len() > 1 || step.attempts.iter().any(|one| one.task.is_some());
    if !told {
        return;
    }
    out.raw("<h3>Attempts</h3><div class=\"scroll\"><table><tr><th></th><th>began</th>");
    out.raw("<th>took</th><th>what came of it</th><th>cost</th><th>by</th></tr>");
    for one in &step.attempts {
        out.raw("<tr>").element("td", &[("class", &"small")], which(one)).raw("<td>");
        time(out, one.started_at);
        out.raw("</td>").plain("td", one.duration_ms.map(seconds).unwrap_or_default()).raw("<td>");
        state(out, one.outcome.word());
        let code = one.exit_code.filter(|code| *code != 0).map(|code| format!(" exit {code}"));
        out.text(code.unwrap_or_default());
        if let Some(error) = &one.error {
            out.raw("<br>").plain("small", error);
        }
        out.raw("</td>").plain("td", one.usage.as_ref().map(cost).unwrap_or_default());
        out.raw("<td>").text(one.worker.as_deref().unwrap_or(""));
        if let Some(task) = &one.task {
            out.raw("<br>").plain("small", format!("task {task}"));
        }
        out.raw("</td></tr>");
    }
    out.raw("</table></div>");
}
