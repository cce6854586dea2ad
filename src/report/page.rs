//! The report of a run as one self-contained HTML file.
//!
//! **Invariant:** the page loads nothing and runs only its own script: its policy names the digests
//! of its script and style and forbids everything else.

use super::{Counts, GateReport, Report};
use crate::agent::Number;
use crate::base::digest;
use crate::base::ids::{counted, shown};
use crate::base::program_name::ORCHESTRATE;
use crate::base::time::Time;
use crate::report::html::Html;
use crate::report::parts;
use crate::view::excerpt::{Excerpt, Room};
use crate::view::progress::seconds;
use crate::view::{self, Gate};

pub(crate) const STYLE: &str = include_str!("style.css");
const SCRIPT: &str = include_str!("report.js");

/// Returns the whole file. `href` returns the URL of a file of the run, relative to the page.
pub(crate) fn page(report: &Report, href: parts::Href) -> String {
    let title = title(report);
    let policy = format!(
        "default-src 'none'; style-src 'sha256-{}'; script-src 'sha256-{}'; base-uri 'none'; \
         form-action 'none'",
        digest::base64_of_sha256(STYLE.as_bytes()),
        digest::base64_of_sha256(SCRIPT.as_bytes()),
    );
    let mut out = Html::default();
    out.raw("<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n");
    out.open("meta", &[("http-equiv", &"Content-Security-Policy"), ("content", &policy)]);
    out.raw("<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">");
    out.raw("<meta name=\"referrer\" content=\"no-referrer\">");
    out.raw("<meta name=\"color-scheme\" content=\"light dark\">\n");
    let word = report.run.state.word();
    out.plain("title", format!("{word}: {title}, run {}", report.run.run_id));
    out.raw("\n<style>").raw(STYLE).raw("</style></head>\n<body><main>\n");
    head(&mut out, report, &title);
    body(&mut out, report, href);
    out.raw("<footer>");
    out.text(format!("Written by orchestrate {} at ", report.version));
    parts::time(&mut out, report.generated_at);
    out.text(format!(" from {}. All times are UTC.", report.run.run_root));
    out.raw("</footer>\n</main>\n<script>").raw(SCRIPT).raw("</script></body></html>\n");
    out.into_string()
}

/// Returns the name of the workflow, or its file if it has none.
pub(crate) fn title(report: &Report) -> String {
    report.name.clone().unwrap_or_else(|| report.run.workflow_file.clone())
}

/// Writes the title, state, explanation, and figures of a run.
pub(crate) fn head(out: &mut Html, report: &Report, title: &str) {
    let run = &report.run;
    out.raw("<header><p class=\"over\">").text("run ").plain("code", &run.run_id);
    out.text(" of ").plain("code", &run.workflow_file).raw("</p>");
    out.plain("h1", title);
    parts::state(out, run.state.word());
    if let Some(description) = &report.description {
        out.element("p", &[("class", &"lead")], description.trim());
    }
    out.element("p", &[("class", &"why")], &report.why);
    figures(out, report);
    out.raw("</header>\n");
}

fn figures(out: &mut Html, report: &Report) {
    out.raw("<dl class=\"facts\">");
    let began = report.began.to_second().replace('T', " ").replace('Z', "");
    parts::fact(out, "Began", began, Some("UTC"));
    parts::fact(out, "Took", seconds(report.duration_ms), None);
    let Counts { steps, settled: over, executions } = report.counts;
    let tried = counted(executions, "execution");
    let settled = if report.unit == "node" { "Nodes settled" } else { "Steps settled" };
    parts::fact(out, settled, format!("{over} of {steps}"), Some(&tried));
    if let Some(usage) = &report.usage {
        let cost = view::money(&usage.usage).unwrap_or_else(|| "unknown".to_owned());
        let lacks = (0 < usage.cost_unknown && usage.cost_unknown < usage.answers)
            .then(|| format!("that of {} is unknown", usage.cost_unknown));
        parts::fact(out, "Cost", cost, lacks.as_deref());
        let count = |number: Number, count: Option<u64>| match count {
            Some(count) => view::at_least(&usage.usage, number, count.to_string()),
            None => "unknown".to_owned(),
        };
        let read = count(Number::InputTokens, usage.usage.input_tokens);
        let written = count(Number::OutputTokens, usage.usage.output_tokens);
        parts::fact(out, "Tokens in", read, None);
        parts::fact(out, "Tokens out", written, None);
    }
    let how = if report.run.fleet { "by a fleet" } else { "by one process" };
    parts::fact(out, "Run", how, None);
    out.raw("</dl>");
}

fn body(out: &mut Html, report: &Report, href: parts::Href) {
    if !report.pending.is_empty() {
        out.raw("<h2 id=\"waits\">Waits for a person</h2>");
        report.pending.iter().for_each(|gate| waiting(out, gate));
    }
    failures(out, report);
    out.raw("<h2 id=\"graph\">Graph</h2>");
    let told = |path: &str| report.steps.iter().any(|step| step.view.step == path);
    let link = |path: &str| told(path).then(|| format!("#{}", parts::anchor(path)));
    parts::graph(out, &report.graph, &link);
    parts::timeline(out, report, until(report));
    costs(out, report);
    gates(out, &report.gates);
    steps(out, report, href);
    began_with(out, report, href);
    events(out, report);
}

/// Returns the end of the time span that the report covers.
pub(crate) fn until(report: &Report) -> Time {
    report.began.plus_ms(report.duration_ms)
}

fn waiting(out: &mut Html, gate: &Gate) {
    let (Gate { run_id, node, .. }, shown) = (gate, gate.short());
    out.raw("<div class=\"box ask\">");
    question(out, gate);
    if gate.answered {
        out.raw("<p>It was answered, which counts once somebody drives the run.</p>");
    }
    let words = format!(
        "{ORCHESTRATE} approve {run_id} --step {node} --shown {shown} [--comment TEXT]\n\
         {ORCHESTRATE} reject {run_id} --step {node} --shown {shown} --reason TEXT"
    );
    out.plain("pre", words).raw("</div>");
}

/// Writes a question and the texts that the user needs to judge it.
pub(crate) fn question(out: &mut Html, gate: &Gate) {
    out.raw("<h3>").plain("bdi", &gate.node).raw("</h3>");
    if let Some(said) = &gate.said {
        let said = Excerpt::of(said, Room::USUAL);
        parts::excerpt(out, "What the agent said", "", &said, &|_| None);
    }
    let message = Excerpt::of(&gate.message, Room::USUAL);
    parts::excerpt(out, "What is asked", "", &message, &|_| None);
    if let Some(diff) = &gate.diff {
        parts::excerpt(out, "What would be merged", "", diff, &|_| None);
    }
    if gate.diff_unreadable {
        out.raw("<p class=\"error\">The change cannot be read here, so it cannot be approved ");
        out.raw("here. Review it in the worktree, then approve it with ");
        out.plain("code", format!("orchestrate approve {} --step {}", gate.run_id, gate.node));
        out.raw(".</p>");
    }
    out.raw("<p class=\"small\">");
    if let Some(since) = gate.since {
        out.text("asked at ");
        parts::time(out, since);
    }
    if let Some(until) = gate.expires_at {
        out.text(", until ");
        parts::time(out, until);
    }
    out.raw("</p>");
}

fn failures(out: &mut Html, report: &Report) {
    let failed = |name: &String| report.steps.iter().find(|step| step.view.step == *name);
    let failed: Vec<_> = report.run.failed_steps.iter().rev().filter_map(failed).take(5).collect();
    if failed.is_empty() && report.run.error.is_none() {
        return;
    }
    out.raw("<h2 id=\"wrong\">What went wrong</h2>");
    if let Some(error) = &report.run.error {
        out.raw("<div class=\"box bad\">").plain("p", error).raw("</div>");
    }
    for step in failed {
        out.raw("<div class=\"box bad\"><h3>");
        let to = format!("#{}", parts::anchor(&step.view.step));
        out.element("a", &[("href", &to)], shown(&step.view.step)).raw("</h3>");
        match &step.error {
            Some(error) => parts::fault(out, error),
            None => {
                out.raw("<p>It failed, and nothing more is known of it.</p>");
            }
        }
        out.raw("</div>");
    }
}

fn costs(out: &mut Html, report: &Report) {
    if report.providers.is_empty() {
        return;
    }
    out.raw("<h2 id=\"costs\">Costs</h2><div class=\"scroll\"><table><tr><th>provider</th>");
    out.raw("<th>answers</th><th>what is known</th></tr>");
    for one in &report.providers {
        out.raw("<tr>").plain("td", &one.provider).plain("td", one.spent.answers);
        out.plain("td", one.spent.words()).raw("</tr>");
    }
    out.raw("</table></div>");
}

fn gates(out: &mut Html, gates: &[GateReport]) {
    if gates.is_empty() {
        return;
    }
    out.raw("<h2 id=\"gates\">Decisions</h2>");
    for gate in gates {
        out.raw("<div class=\"box\"><h3>").plain("bdi", shown(&gate.step)).raw("</h3>");
        let message = Excerpt::of(&gate.message, Room::LITTLE);
        parts::excerpt(out, "What was asked", "", &message, &|_| None);
        out.raw("<p>");
        match &gate.answer {
            Some(answer) => {
                parts::state(out, if answer.approve { "approved" } else { "rejected" });
                let by = answer.by.as_ref().map(|by| format!(" by {by}")).unwrap_or_default();
                out.text(by);
                if let Some(at) = gate.answered_at {
                    out.text(" at ");
                    parts::time(out, at);
                    let waited = seconds(at.ms_since(gate.asked_at));
                    out.text(format!(", after {waited}"));
                }
            }
            None => {
                parts::state(out, "asking");
                out.text(" at ");
                parts::time(out, gate.asked_at);
                out.text(", not answered");
            }
        }
        out.raw("</p>");
        if let Some(answer) = gate.answer.as_ref().filter(|answer| !answer.comment.is_empty()) {
            out.plain("pre", &answer.comment);
        }
        out.raw("</div>");
    }
}

pub(crate) fn steps(out: &mut Html, report: &Report, href: parts::Href) {
    let name = if report.unit == "node" { "Nodes" } else { "Steps" };
    out.element("h2", &[("id", &"steps")], name);
    if report.steps_left_out > 0 {
        let left_out = format!(
            "{} of {} are told here; state.json and logs/ in {} have all.",
            report.steps.len(),
            counted(report.steps.len() + report.steps_left_out, report.unit),
            report.run.run_root
        );
        out.element("p", &[("class", &"cut")], left_out);
    }
    out.raw("<div class=\"steps\">");
    report.steps.iter().for_each(|step| parts::step(out, step, href));
    out.raw("</div>");
}

/// Writes the inputs of the run.
fn began_with(out: &mut Html, report: &Report, href: parts::Href) {
    out.raw("<h2 id=\"begun\">What it was begun with</h2>");
    if let Some(request) = &report.request {
        let parts_of = [("Message", &request.message), ("Issue", &request.issue_context)];
        for (name, text) in parts_of.into_iter().filter(|(_, text)| !text.is_empty()) {
            parts::excerpt(out, name, "", &Excerpt::of(text, Room::USUAL), href);
        }
        if let Some(bead) = &request.bead {
            let bead = serde_json::to_string_pretty(bead).unwrap_or_default();
            parts::excerpt(out, "Work item", "", &Excerpt::of(&bead, Room::USUAL), href);
        }
    }
    if !report.context.is_empty() {
        let context = serde_json::to_string_pretty(&report.context).unwrap_or_default();
        parts::excerpt(out, "Context", "", &Excerpt::of(&context, Room::USUAL), href);
    }
    if let Some(workflow) = &report.workflow {
        out.raw("<details class=\"more\"><summary>The workflow</summary>");
        parts::excerpt(out, "Workflow", "as the run keeps it", workflow, href);
        out.raw("</details>");
    }
}

pub(crate) fn events(out: &mut Html, report: &Report) {
    if report.events.is_empty() {
        return;
    }
    out.raw("<details class=\"more\"><summary>");
    out.text(format!("What happened, {}", counted(report.events.len(), "event"))).raw("</summary>");
    if report.events_left_out > 0 {
        let more = format!("{} earlier ones are in the journal.", report.events_left_out);
        out.element("p", &[("class", &"cut")], more);
    }
    out.raw("<ol class=\"events\">");
    for event in &report.events {
        out.raw("<li>");
        parts::time(out, event.at);
        out.plain("span", &event.text).raw("</li>");
    }
    out.raw("</ol></details>");
}
