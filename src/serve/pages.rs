//! The pages of the web server: dashboard, run, log, inboxes, task, and workers.
//!
//! **Invariant:** every change is made by a posted form that carries the token of its session.

use std::fmt::Display;

use crate::base::ids::shown;
use crate::base::time::Time;
use crate::report::html::{Html, part};
use crate::report::{Report, page, parts};
use crate::view::excerpt::Excerpt;
use crate::view::progress::whole_seconds;
use crate::view::rows::{busy, inbox_row, run_time};
use crate::view::{self, Gate, InboxView, RunView, Standing, TaskView, WorkerView};

pub(crate) const SCRIPT: &str = include_str!("live.js");

/// Data that every page needs.
pub(crate) struct Frame<'a> {
    pub title: &'a str,
    pub here: &'a str,
    pub waiting: usize,
    /// The form token of the session.
    pub word: &'a str,
    pub workspace: &'a str,
}

impl Frame<'_> {
    /// Returns a whole page. Without scripts, the page reloads itself, unless it has a text field,
    /// whose contents a reload would lose.
    pub(crate) fn page(&self, body: &Html) -> String {
        let mut out = Html::default();
        out.raw("<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">");
        out.raw("<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">");
        out.raw("<meta name=\"color-scheme\" content=\"light dark\">");
        let typed = body.has("<textarea");
        if !typed {
            out.raw("<noscript><meta http-equiv=\"refresh\" content=\"5\"></noscript>");
        }
        let waiting = if self.waiting > 0 { format!("({}) ", self.waiting) } else { String::new() };
        out.plain("title", format!("{waiting}{} · orchestrate", self.title));
        out.raw("<link rel=\"stylesheet\" href=\"/style.css\">");
        out.raw("<script src=\"/live.js\" defer></script></head>\n<body>");
        self.bar(&mut out);
        out.raw("<main>");
        if typed {
            out.raw("<noscript><p class=\"small\">Without script this page stays as it is while ");
            out.raw(
                "something can be typed into it. <a href=\"\">Load it again</a></p></noscript>",
            );
        }
        out.add(body).raw("</main></body></html>\n");
        out.into_string()
    }

    fn bar(&self, out: &mut Html) {
        out.raw("<div class=\"bar\"><nav data-live=\"bar\">");
        out.element("a", &[("class", &"brand"), ("href", &"/")], "orchestrate");
        let pages = [
            ("/", "Board"),
            ("/inboxes", "Inboxes"),
            ("/workers", "Workers"),
            ("/enqueue", "New task"),
        ];
        for (to, name) in pages {
            let mut attributes: Vec<(&'static str, &dyn Display)> = vec![("href", &to)];
            if to == self.here {
                attributes.push(("aria-current", &"page"));
            }
            out.element("a", &attributes, name);
        }
        if self.waiting > 0 {
            out.raw("<a href=\"/#waits\">asked <span class=\"count\">").text(self.waiting);
            out.raw("</span></a>");
        }
        out.raw("<span id=\"live\" class=\"live\"></span></nav></div>");
    }

    /// Writes the opening tags of a form that performs an action.
    fn form(&self, out: &mut Html, action: &str) {
        out.open("form", &[("method", &"post"), ("action", &action)]);
        out.open("input", &[("type", &"hidden"), ("name", &"word"), ("value", &self.word)]);
    }

    fn button(&self, out: &mut Html, action: &str, class: &str, name: &str) {
        self.form(out, action);
        out.element("button", &[("class", &class)], name).raw("</form>");
    }

    /// Writes a button with a confirmation: it expands to the button that performs the action.
    fn sure(&self, out: &mut Html, action: &str, name: &'static str, question: &'static str) {
        out.raw("<details class=\"sure\" id=\"sure\"><summary class=\"button no\">");
        out.text(name).raw("</summary><p>").text(question).raw("</p>");
        self.button(out, action, "no", "Yes, cancel it");
        out.raw("</details>");
    }

    /// Writes a question with the texts to judge, and the buttons for both answers.
    fn gate(&self, out: &mut Html, gate: &Gate, with_run: bool) {
        let id = part(gate.run_id.as_str());
        let key = part(&format!("{}-{}-{}", gate.run_id, gate.step, gate.attempt));
        out.open("div", &[("class", &"box ask"), ("id", &format!("gate-{key}"))]);
        if with_run {
            out.raw("<p class=\"over\">run ");
            out.element("a", &[("href", &format!("/runs/{id}"))], &gate.run_id).raw("</p>");
        }
        page::question(out, gate);
        if gate.answered {
            out.raw("<p>Answered. The process that drives the run applies the answer.</p></div>");
            return;
        }
        self.form(out, &format!("/runs/{id}/answer"));
        for (name, value) in [("step", gate.step.to_string()), ("shown", gate.shown.clone())] {
            out.open("input", &[("type", &"hidden"), ("name", &name), ("value", &value)]);
        }
        let field = format!("say-{key}");
        out.element("label", &[("for", &field)], "Comment, or the reason of a rejection");
        out.open(
            "textarea",
            &[("name", &"comment"), ("id", &field), ("rows", &2), ("maxlength", &20000)],
        );
        out.raw("</textarea><div class=\"actions\">");
        if !gate.diff_unreadable {
            out.raw("<button class=\"yes\" name=\"answer\" value=\"approve\">Approve</button>");
        }
        out.raw("<button class=\"no\" name=\"answer\" value=\"reject\">Reject</button>");
        out.raw("</div></form></div>");
    }

    fn gates(&self, out: &mut Html, gates: &[Gate], with_run: bool) {
        out.raw("<section data-live=\"waits\" id=\"waits\">");
        if !gates.is_empty() {
            out.raw("<h2>Waits for a person</h2>");
            gates.iter().for_each(|gate| self.gate(out, gate, with_run));
        }
        out.raw("</section>");
    }

    pub(crate) fn board(&self, board: &BoardPage) -> String {
        let mut out = Html::default();
        out.element("p", &[("class", &"over")], self.workspace).raw("<h1>Board</h1>");
        self.gates(&mut out, board.gates, true);
        out.raw("<section data-live=\"runs\"><h2>Runs</h2>");
        if board.runs.is_empty() {
            out.raw("<p class=\"empty\">Nothing was run here yet. <code>orchestrate run ");
            out.raw("WORKFLOW</code> begins.</p>");
        }
        out.raw("<ul class=\"run-list\">");
        board.runs.iter().for_each(|run| run_line(&mut out, run, board.now));
        out.raw("</ul>");
        if board.runs_kept > board.runs.len() {
            let more = format!("and {} older ones", board.runs_kept - board.runs.len());
            out.element("p", &[("class", &"small")], more);
        }
        out.raw("</section><section data-live=\"fleet\">");
        if !board.parked.is_empty() {
            out.raw("<h2>Providers</h2><ul>");
            board.parked.iter().for_each(|text| _ = out.plain("li", text));
            out.raw("</ul>");
        }
        if !board.inboxes.is_empty() {
            out.raw("<h2>Inboxes</h2>");
            inbox_table(&mut out, board.inboxes);
        }
        if !board.workers.is_empty() {
            out.raw("<h2>Workers</h2>");
            worker_table(&mut out, board.workers);
        }
        if board.failed_tasks > 0 {
            let tasks = if board.failed_tasks == 1 { "task" } else { "tasks" };
            let failed = format!("{} failed {tasks} in failed/: ", board.failed_tasks);
            out.raw("<p class=\"small\">");
            out.text(failed);
            out.raw("<code>orchestrate queue ls --failed</code></p>");
        }
        out.raw("</section>");
        self.page(&out)
    }

    pub(crate) fn run(&self, told: &Report) -> String {
        let mut out = Html::default();
        let id = part(&told.run.run_id);
        out.raw("<section data-live=\"head\">");
        page::head(&mut out, told, &page::title(told));
        out.raw("<div class=\"actions\">");
        let state = told.run.state;
        if !state.is_over() && state.is_known() {
            let question = "It ends with everything it has started.";
            self.sure(&mut out, &format!("/runs/{id}/cancel"), "Cancel the run", question);
        }
        if told.run.can_continue() {
            self.button(&mut out, &format!("/runs/{id}/retry"), "", "Go on with it");
        }
        let to = format!("/runs/{id}/report");
        out.element("a", &[("class", &"button"), ("href", &to)], "Report").raw("</div>");
        if state == Standing::Paused && told.run.can_continue() {
            let waits = told.run.turn_after.as_ref();
            let waits = waits.map(|other| format!(" {other} uses the checkout; resume it after."));
            out.raw("<p>Answered, but no process drives the run.");
            out.text(waits.unwrap_or_default()).raw("</p>");
        }
        out.raw("</section>");
        self.gates(&mut out, &told.pending, false);
        out.raw("<section data-live=\"graph\"><h2>Graph</h2>");
        let known = |path: &str| told.steps.iter().any(|step| step.view.step == path);
        let link = |path: &str| known(path).then(|| format!("#{}", parts::anchor(path)));
        parts::graph(&mut out, &told.graph, &link);
        out.raw("</section><section data-live=\"timeline\">");
        parts::timeline(&mut out, told, page::until(told));
        out.raw("</section><section data-live=\"steps\">");
        page::steps(&mut out, told, &|file| log_page(&id, file));
        out.raw("</section><section data-live=\"events\">");
        page::events(&mut out, told);
        out.raw("</section>");
        self.page(&out)
    }

    pub(crate) fn log(&self, run: &str, step: &str, state: &'static str, log: &LogPage) -> String {
        let mut out = Html::default();
        let (id, name) = (part(run), part(step));
        out.raw("<p class=\"over\">run ");
        out.element("a", &[("href", &format!("/runs/{id}"))], run).raw("</p><h1>");
        out.plain("bdi", shown(step)).raw("</h1><p data-live=\"state\">");
        parts::state(&mut out, state);
        out.raw("</p>");
        let follow = format!("/runs/{id}/logs/{name}/follow?from={},{}", log.from.0, log.from.1);
        let live: Vec<(&'static str, &dyn Display)> = match log.more {
            true => vec![("data-follow", &follow)],
            false => Vec::new(),
        };
        out.open("div", &live);
        for (stream, text) in [("stdout", &log.stdout), ("stderr", &log.stderr)] {
            let title = if stream == "stdout" { "Standard output" } else { "Standard error" };
            out.element("h2", &[], title);
            if let Some(text) = text.as_ref().filter(|text| text.left_out > 0) {
                let file = text.file.as_deref().unwrap_or_default();
                let cut = format!("{} before this are in {file}", parts::bytes(text.left_out));
                out.element("p", &[("class", &"cut")], cut);
            }
            let shown = text.as_ref().map(|text| text.text.as_str()).unwrap_or_default();
            let shown = crate::report::html::printed(shown);
            if shown.is_empty() && !log.more {
                out.raw("<p class=\"empty\">Nothing was printed.</p>");
                continue;
            }
            out.element("pre", &[("class", &"log"), ("id", &format!("log-{stream}"))], shown);
        }
        out.raw("</div>");
        self.page(&out)
    }

    pub(crate) fn inboxes(&self, inboxes: &[(InboxView, Vec<TaskView>, usize)]) -> String {
        let mut out = Html::default();
        out.raw("<h1>Inboxes</h1><section data-live=\"inboxes\">");
        if inboxes.is_empty() {
            out.raw("<p class=\"empty\">There is no inbox yet. <a href=\"/enqueue\">A new task");
            out.raw("</a> makes one.</p>");
        }
        for (inbox, tasks, total) in inboxes {
            out.element("h2", &[("id", &part(&inbox.agent))], &inbox.agent);
            let words = inbox_row(inbox).split_off(1);
            let words: Vec<_> = words.into_iter().filter(|word| !word.is_empty()).collect();
            out.element("p", &[("class", &"small")], words.join(" · "));
            if tasks.is_empty() {
                continue;
            }
            out.raw("<div class=\"scroll\"><table><tr><th>task</th><th>state</th><th>what</th>");
            out.raw("<th>run</th><th>by</th></tr>");
            tasks.iter().for_each(|task| task_row(&mut out, task));
            out.raw("</table></div>");
            if *total > tasks.len() {
                let more = format!("and {} more", total - tasks.len());
                out.element("p", &[("class", &"small")], more);
            }
        }
        out.raw("</section>");
        self.page(&out)
    }

    pub(crate) fn task(&self, task: &TaskView, texts: &[(&'static str, Excerpt)]) -> String {
        let mut out = Html::default();
        out.raw("<p class=\"over\">task <code>").text(&task.task).raw("</code></p>");
        out.plain("h1", if task.label.is_empty() { &task.task } else { &task.label });
        out.raw("<section data-live=\"task\">");
        parts::state(&mut out, task.place.word());
        out.element("p", &[("class", &"why")], view::why_task(task));
        if let Some(run) = &task.run_id {
            out.raw("<p>");
            out.element("a", &[("href", &format!("/runs/{}", part(run)))], "its run").raw("</p>");
        }
        out.raw("<div class=\"actions\">");
        let id = part(&task.task);
        match task.place.word() {
            "waiting" | "claimed" => {
                let question = "If it is being executed, it is stopped.";
                self.sure(&mut out, &format!("/tasks/{id}/cancel"), "Cancel the task", question);
            }
            _ if task.kind == "free" => {
                self.button(&mut out, &format!("/tasks/{id}/retry"), "", "Put it back");
            }
            _ => {}
        }
        out.raw("</div>");
        for (name, text) in texts {
            parts::excerpt(&mut out, name, "", text, &|_| None);
        }
        out.raw("</section>");
        self.page(&out)
    }

    pub(crate) fn workers(&self, workers: &[WorkerView]) -> String {
        let mut out = Html::default();
        out.raw("<h1>Workers</h1><section data-live=\"workers\">");
        match workers.is_empty() {
            true => out.raw(
                "<p class=\"empty\">Nobody serves here. <code>orchestrate up</code> starts a \
                 coordinator and a worker for each agent.</p>",
            ),
            false => {
                worker_table(&mut out, workers);
                &mut out
            }
        };
        out.raw("</section>");
        self.page(&out)
    }

    pub(crate) fn enqueue(&self, agents: &[String]) -> String {
        let mut out = Html::default();
        out.raw("<h1>New task</h1><p class=\"lead\">It is put into the inbox of an agent, and ");
        out.raw("executed by the next worker that is free.</p>");
        self.form(&mut out, "/enqueue");
        out.raw("<div class=\"pair\"><div><label for=\"agent\">Agent</label>");
        out.raw("<input type=\"text\" id=\"agent\" name=\"agent\" list=\"agents\" required>");
        out.raw("<datalist id=\"agents\">");
        for agent in agents {
            out.open("option", &[("value", agent)]);
        }
        out.raw("</datalist></div><div><label for=\"title\">Title</label>");
        out.raw("<input type=\"text\" id=\"title\" name=\"title\" maxlength=\"200\"></div></div>");
        out.raw("<label for=\"text\">What is to be done</label>");
        out.raw("<textarea id=\"text\" name=\"text\" required></textarea>");
        out.raw("<div class=\"actions\"><button class=\"yes\">Put it out</button></div></form>");
        self.page(&out)
    }

    /// Returns the page for a failed request, with a link back.
    pub(crate) fn refused(&self, message: &str, back: &str) -> String {
        let mut out = Html::default();
        out.raw("<h1>That did not work</h1>");
        out.element("pre", &[("class", &"error")], message);
        out.raw("<p>").element("a", &[("href", &back)], "Back").raw("</p>");
        self.page(&out)
    }
}

/// The contents of the dashboard.
pub(crate) struct BoardPage<'a> {
    pub gates: &'a [Gate],
    pub runs: &'a [RunView],
    pub runs_kept: usize,
    pub inboxes: &'a [InboxView],
    pub workers: &'a [WorkerView],
    /// Providers that are at a limit or suspended, one sentence each.
    pub parked: &'a [String],
    pub failed_tasks: usize,
    pub now: Time,
}

/// The end of each output stream of a step.
pub(crate) struct LogPage {
    pub stdout: Option<Excerpt>,
    pub stderr: Option<Excerpt>,
    /// Offsets up to which stdout and stderr were read.
    pub from: (u64, u64),
    /// True if more output may follow.
    pub more: bool,
}

/// Returns the URL of the page for a log file, or `None` for other files.
fn log_page(run: &str, file: &str) -> Option<String> {
    let name = file.strip_prefix("logs/")?;
    let step = name.strip_suffix(".stdout").or(name.strip_suffix(".stderr"))?;
    Some(format!("/runs/{run}/logs/{}", part(step)))
}

fn run_line(out: &mut Html, run: &RunView, now: Time) {
    out.raw("<li>");
    parts::state(out, run.state.word());
    let to = format!("/runs/{}", part(&run.run_id));
    let name = if run.workflow_file.is_empty() { &run.run_id } else { &run.workflow_file };
    out.raw("<span class=\"name\">").element("a", &[("href", &to)], name).raw("</span>");
    out.raw("<span class=\"small nowrap\">");
    if let Some(at) = run.started_at {
        parts::time(out, at);
    }
    out.raw("</span><span class=\"remark\">").plain("code", &run.run_id);
    for words in [run_time(run, now), view::remark(run)] {
        if !words.is_empty() {
            out.text(format!(" · {words}"));
        }
    }
    out.raw("</span></li>");
}

fn inbox_table(out: &mut Html, inboxes: &[InboxView]) {
    out.raw("<div class=\"scroll\"><table><tr><th>agent</th><th>waiting</th><th>dropped</th>");
    out.raw("<th>claimed</th><th>workers</th><th></th></tr>");
    for inbox in inboxes {
        out.raw("<tr><td>");
        let to = format!("/inboxes#{}", part(&inbox.agent));
        out.element("a", &[("href", &to)], &inbox.agent).raw("</td>");
        for count in [inbox.waiting, inbox.dropped, inbox.claimed, inbox.workers] {
            out.plain("td", count);
        }
        out.raw("<td class=\"small\">");
        if let Some(reason) = &inbox.paused {
            parts::state(out, "paused");
            out.text(format!(" {reason}"));
        } else if inbox.workers == 0 && inbox.waiting + inbox.dropped > 0 {
            out.text("nobody serves it");
        }
        out.raw("</td></tr>");
    }
    out.raw("</table></div>");
}

fn worker_table(out: &mut Html, workers: &[WorkerView]) {
    out.raw(
        "<div class=\"scroll\"><table><tr><th>agent</th><th>worker</th><th></th><th>where</th>",
    );
    out.raw("<th>busy</th><th>since</th></tr>");
    for worker in workers {
        out.raw("<tr>").plain("td", &worker.agent).raw("<td>").plain("code", &worker.worker);
        out.raw("</td><td>");
        parts::state(out, worker.life.word().split(' ').next_back().unwrap_or("unknown"));
        if let Some(age) = worker.life.age_ms() {
            out.text(format_args!(" last heartbeat {} ago", whole_seconds(age)));
        }
        if worker.draining {
            out.text(" draining");
        }
        out.raw("</td>").plain("td", format!("{} pid {}", worker.host, worker.pid));
        out.plain("td", busy(worker));
        out.element("td", &[("class", &"small nowrap")], &worker.started_at).raw("</tr>");
    }
    out.raw("</table></div>");
}

fn task_row(out: &mut Html, task: &TaskView) {
    out.raw("<tr><td class=\"small\">");
    let to = format!("/tasks/{}", part(&task.task));
    out.element("a", &[("href", &to)], &task.task).raw("</td><td>");
    parts::state(out, task.place.word());
    out.raw("</td>").plain("td", &task.label).raw("<td class=\"small\">");
    if let Some(run) = &task.run_id {
        out.element("a", &[("href", &format!("/runs/{}", part(run)))], run);
    }
    out.raw("</td>").element("td", &[("class", &"small")], task.place.worker().unwrap_or(""));
    out.raw("</tr>");
}

/// Returns the login page.
pub(crate) fn stranger(words: &str) -> String {
    let mut out = Html::default();
    out.raw("<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\">");
    out.raw("<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">");
    out.raw("<title>orchestrate</title><link rel=\"stylesheet\" href=\"/style.css\"></head>");
    out.raw("<body><main><h1>orchestrate</h1>").element("p", &[("class", &"lead")], words);
    out.raw("<form method=\"get\" action=\"/\"><label for=\"token\">or give the token</label>");
    out.raw("<input type=\"text\" id=\"token\" name=\"token\" autocomplete=\"off\" required>");
    out.raw("<div class=\"actions\"><button>Enter</button></div></form></main></body></html>\n");
    out.into_string()
}
