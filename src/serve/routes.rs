//! Request routing and responses.
//!
//! **Invariant:** GET changes nothing. Every change is a POST that [`Access`] has authorized.

use std::sync::Arc;

use serde_json::{Value, json};

use super::access::{Access, Caller, Refusal};
use super::follow::{self, Log};
use super::http::{self, Answer, Method, Request};
use super::live::Live;
use super::pages::{self, BoardPage, Frame, LogPage};
use crate::agent::Stream;
use crate::attempt::parking;
use crate::base::ids::{RunId, shown};
use crate::base::program_name::ORCHESTRATE;
use crate::cli::act::{Came, Deed, Hands, Question};
use crate::cli::invocation::Invocation;
use crate::cli::status::Overview;
use crate::disk::fs::OnVolume as _;
use crate::engine::run::Address;
use crate::report::html::part;
use crate::report::{self, Amount};
use crate::run::failure::{Class, Failure};
use crate::view::excerpt::{Excerpt, Room};
use crate::view::{Board, Lookup, document, printed};

/// Maximum number of runs and tasks on a page.
const RUNS: usize = 50;
const TASKS: usize = 50;

pub(crate) struct House {
    pub invocation: Invocation,
    pub access: Access,
    pub live: Arc<Live>,
    pub hands: Hands,
}

pub(crate) enum Reply {
    Answer(Answer),
    Live,
    Follow(Log),
}

/// An error response: HTTP status and message.
struct No {
    status: u16,
    message: String,
}

impl No {
    fn found(what: &str) -> No {
        No { status: 404, message: format!("there is no {what}") }
    }

    fn by_post() -> No {
        No { status: 405, message: "this is done with POST".into() }
    }
}

impl From<Failure> for No {
    fn from(failure: Failure) -> No {
        let status = match failure.class {
            Class::Invalid => 404,
            Class::Owned => 409,
            _ => 500,
        };
        No { status, message: failure.message().to_owned() }
    }
}

impl From<std::io::Error> for No {
    fn from(error: std::io::Error) -> No {
        No { status: 500, message: error.to_string() }
    }
}

impl House {
    /// Reads the current board.
    pub(crate) fn board(&self) -> Result<Board, Failure> {
        Board::scan(&self.invocation, self.invocation.queue_if_any()?)
    }

    fn act(&self, deed: &Deed) -> std::io::Result<Came> {
        self.hands.act(&self.invocation, deed)
    }

    /// Returns true if the request is authenticated.
    pub(crate) fn knows(&self, request: &Request) -> bool {
        self.access.check_host(request).is_ok() && self.access.caller(request).is_ok()
    }

    pub(crate) fn route(&self, request: &Request) -> Reply {
        if let Err(refusal) = self.access.check_host(request) {
            return Reply::Answer(refusal_at(&request.path, refusal.status(), refusal.words()));
        }
        let parts = request.parts();
        let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
        match parts.as_slice() {
            ["style.css"] => return css(report::page::STYLE, "text/css; charset=utf-8"),
            ["live.js"] => return css(pages::SCRIPT, "text/javascript; charset=utf-8"),
            [] if request.asked("token").is_some() && request.method == Method::Get => {
                return Reply::Answer(self.enter(request));
            }
            _ => {}
        }
        let api = parts.first() == Some(&"api");
        if request.method == Method::Other {
            let words = "only GET, HEAD and POST are served";
            let answer = refusal_at(&request.path, 405, words);
            return Reply::Answer(answer.with("Allow", "GET, HEAD, POST".to_owned()));
        }
        let caller = match self.access.caller(request) {
            Ok(caller) => caller,
            Err(refusal) => return Reply::Answer(stranger(refusal, api)),
        };
        let word = match &caller {
            Caller::Browser(session) => self.access.word(session),
            Caller::Program => String::new(),
        };
        let reply = match (request.method, api) {
            (Method::Post, api) => self.post(request, &caller, &parts, api).map(Reply::Answer),
            (_, true) => self.api(&parts[1..]).map(|value| answer_json(200, &value)),
            (_, false) => self.get(request, &parts, &word),
        };
        reply.unwrap_or_else(|no| Reply::Answer(self.refuse(&no, &word, api)))
    }

    fn enter(&self, request: &Request) -> Answer {
        let token = request.asked("token").unwrap_or_default();
        match self.access.enter(token) {
            Ok(Some(cookie)) => Answer::see("/").with("Set-Cookie", cookie),
            Ok(None) => stranger(Refusal::Unknown, false),
            Err(error) => Answer::text(500, &error.to_string()),
        }
    }

    fn refuse(&self, no: &No, word: &str, api: bool) -> Answer {
        if api {
            let document = error_document(no.status, &no.message);
            return with_allowed(no, Answer::json(no.status, &document));
        }
        let page =
            self.frame("That did not work", "", word, 0, |frame| frame.refused(&no.message, "/"));
        with_allowed(no, Answer::html(no.status, page))
    }

    fn frame(
        &self,
        title: &str,
        here: &str,
        word: &str,
        waiting: usize,
        page: impl FnOnce(&Frame) -> String,
    ) -> String {
        let workspace = self.invocation.workspace.display().to_string();
        page(&Frame { title, here, waiting, word, workspace: &workspace })
    }

    /// Resolves a run by its id, a prefix of its id, or `latest`.
    fn run_id(&self, board: &Board, name: &str) -> Result<RunId, No> {
        let id = self.invocation.find_run(name).ok().map(|(id, _)| id);
        let id = id.filter(|id| board.run_root(id).is_present_dir());
        id.ok_or_else(|| No::found(&format!("run `{name}`")))
    }

    fn get(&self, request: &Request, parts: &[&str], word: &str) -> Result<Reply, No> {
        if let ["live"] = parts {
            return Ok(Reply::Live);
        }
        let board = self.board()?;
        let page = match parts {
            [] => self.board_page(&board, word)?,
            ["runs", id] => self.run_page(&board, &self.run_id(&board, id)?, word)?,
            ["runs", id, "report"] => {
                let report = self.tell(&board, &self.run_id(&board, id)?, Amount::WHOLE)?;
                // A download, because the page has its own style and script, which our policy
                // forbids.
                let page = report::page::page(&report, &|_| None);
                let name = format!("attachment; filename=\"report-{}.html\"", part(id));
                let answer = Answer::html(200, page).with("Content-Disposition", name);
                return Ok(Reply::Answer(answer));
            }
            ["runs", id, "logs", name] => {
                let id = self.run_id(&board, id)?;
                self.log_page(&board, Log { id, name: (*name).to_owned(), from: (0, 0) }, word)?
            }
            ["runs", id, "logs", name, "follow"] => {
                let id = self.run_id(&board, id)?;
                let from = from(request);
                return Ok(Reply::Follow(Log { id, name: (*name).to_owned(), from }));
            }
            ["inboxes"] => {
                let mut inboxes = Vec::new();
                for inbox in board.inboxes()? {
                    let (tasks, total) = board.tasks(&inbox.agent, TASKS)?;
                    inboxes.push((inbox, tasks, total));
                }
                let waiting = board.gates().len();
                self.frame("Inboxes", "/inboxes", word, waiting, |frame| frame.inboxes(&inboxes))
            }
            ["tasks", id] => self.task_page(&board, id, word)?,
            ["workers"] => {
                let workers: Vec<_> = board.members.views().collect();
                let waiting = board.gates().len();
                self.frame("Workers", "/workers", word, waiting, |frame| frame.workers(&workers))
            }
            ["enqueue"] => {
                let mut agents: Vec<String> =
                    self.invocation.config.agents().keys().cloned().collect();
                agents.extend(board.inboxes()?.into_iter().map(|inbox| inbox.agent));
                agents.retain(|agent| agent != crate::attempt::documents::COORDINATOR);
                agents.sort();
                agents.dedup();
                let waiting = board.gates().len();
                self.frame("New task", "/enqueue", word, waiting, |frame| frame.enqueue(&agents))
            }
            ["runs", _, "answer" | "cancel" | "retry"] | ["tasks", _, "cancel" | "retry"] => {
                return Err(No::by_post());
            }
            _ => return Err(No::found("such page")),
        };
        Ok(Reply::Answer(Answer::html(200, page)))
    }

    fn board_page(&self, board: &Board, word: &str) -> Result<String, No> {
        let Overview { runs, runs_kept, workers, inboxes, failed_tasks, parked } =
            Overview::look(board, RUNS)?;
        let parked: Vec<String> = parked.iter().map(parking::told).collect();
        let gates = board.gates();
        let (gates, runs) = (&gates, &runs);
        let (inboxes, workers) = (&inboxes, &workers);
        let now = board.now;
        let parked = &parked;
        let page =
            BoardPage { gates, runs, runs_kept, inboxes, workers, parked, failed_tasks, now };
        Ok(self.frame("Board", "/", word, gates.len(), |frame| frame.board(&page)))
    }

    fn tell(&self, board: &Board, id: &RunId, amount: Amount) -> Result<report::Report, No> {
        report::gather(board, id, amount).map_err(|error| No {
            status: 500,
            message: format!(
                "run {id} cannot be read: {error}\n`{ORCHESTRATE} resume {id} --repair` rebuilds it"
            ),
        })
    }

    fn run_page(&self, board: &Board, id: &RunId, word: &str) -> Result<String, No> {
        let report = self.tell(board, id, Amount::GLANCE)?;
        let title = format!("{} {}", report.run.state.word(), report::page::title(&report));
        let waiting = board.gates().len();
        Ok(self.frame(&title, "", word, waiting, |frame| frame.run(&report)))
    }

    fn log_page(&self, board: &Board, log: Log, word: &str) -> Result<String, No> {
        let room = Room { head: 0, tail: 128 << 10 };
        let root = board.run_root(&log.id);
        let read = |stream: &str| {
            let file = format!("logs/{}.{stream}", log.name);
            let text = Excerpt::of_file(&root, &file, room)?;
            let end = text.tail.clone().unwrap_or_else(|| text.text.clone());
            // Skip a line whose beginning was cut off.
            let cut = if text.left_out > 0 { end.find('\n').map_or(0, |at| at + 1) } else { 0 };
            let left_out = text.left_out + if text.left_out > 0 { cut as u64 } else { 0 };
            Some(Excerpt { text: end[cut..].to_owned(), tail: None, left_out, ..text })
        };
        let (mut stdout, stderr) = (read("stdout"), read("stderr"));
        // Short output has no log file; the state of the run holds it.
        let kept = || Some(Excerpt::of(&kept(board, &log)?, Room::USUAL));
        let short = stdout.is_none();
        stdout = stdout.or_else(kept);
        let detail = board.detail(&log.id).map_err(|error| No {
            status: 500,
            message: format!("run {} cannot be read: {error}", log.id),
        })?;
        let known = detail.steps.iter().find(|step| step.step == log.name);
        if known.is_none() && stdout.is_none() && stderr.is_none() {
            return Err(No::found(&format!("log `{}`", log.name)));
        }
        let end = |text: &Option<Excerpt>| text.as_ref().map_or(0, |text| text.bytes);
        let from = (if short { 0 } else { end(&stdout) }, end(&stderr));
        let adapter = follow::adapter(self, &log);
        if let Some(text) = stdout.as_mut().filter(|_| adapter.is_stream() && !short) {
            let turns = Stream::new(adapter).push(text.text.as_bytes());
            text.text = turns.iter().map(|turn| format!("{turn}\n")).collect();
        }
        let more = follow::goes_on(self, &log);
        let state = known.map_or("ended", |step| step.state.word());
        let page = LogPage { stdout, stderr, from, more };
        let title = format!("Log of {}", shown(&log.name));
        let waiting = board.gates().len();
        let id = log.id.to_string();
        Ok(self.frame(&title, "", word, waiting, |frame| frame.log(&id, &log.name, state, &page)))
    }

    fn task_page(&self, board: &Board, id: &str, word: &str) -> Result<String, No> {
        let found = find(board, id)?;
        let view = board.task(&found)?;
        let queue = self.invocation.need_queue()?;
        let task = queue.read(&found.place, &found.batch)?;
        let mut texts = Vec::new();
        if let Some(task) = task {
            let mut document = task.document;
            if let Some(Value::String(text)) = document.remove("text") {
                texts.push(("What is to be done", Excerpt::of(&text, Room::USUAL)));
            }
            // The ticket authorizes its holder to end the task, so do not show it.
            document.remove("ticket");
            let document = serde_json::to_string_pretty(&document).unwrap_or_default();
            texts.push(("Its document", Excerpt::of(&document, Room::USUAL)));
        }
        let title = format!("Task {}", view.label);
        let waiting = board.gates().len();
        Ok(self.frame(&title, "", word, waiting, |frame| frame.task(&view, &texts)))
    }

    /// Returns the same documents as `--json`.
    fn api(&self, parts: &[&str]) -> Result<Value, No> {
        let board = self.board()?;
        Ok(match parts {
            ["status"] => document("fleet-status/v1", Overview::look(&board, RUNS)?),
            ["pending"] => document("pending/v1", json!({ "gates": board.gates() })),
            ["workers"] => {
                let workers: Vec<_> = board.members.views().collect();
                document("workers/v1", json!({ "workers": workers }))
            }
            ["queue"] => {
                let mut inboxes = Vec::new();
                for inbox in board.inboxes()? {
                    let (tasks, _) = board.tasks(&inbox.agent, TASKS)?;
                    let mut inbox = serde_json::to_value(&inbox).unwrap_or_default();
                    inbox["tasks"] = serde_json::to_value(tasks).unwrap_or_default();
                    inboxes.push(inbox);
                }
                document("queue/v1", json!({ "inboxes": inboxes }))
            }
            ["runs", id] => {
                let id = self.run_id(&board, id)?;
                let detail = board.detail(&id).map_err(|error| No {
                    status: 500,
                    message: format!("run {id} cannot be read: {error}"),
                })?;
                document("run-status/v1", detail)
            }
            ["runs", id, "report"] => {
                let id = self.run_id(&board, id)?;
                document("report/v1", self.tell(&board, &id, Amount::WHOLE)?)
            }
            ["enqueue"]
            | ["runs", _, "approve" | "reject" | "cancel" | "retry"]
            | ["tasks", _, "cancel" | "retry"] => return Err(No::by_post()),
            _ => return Err(No::found("such document")),
        })
    }

    fn post(
        &self,
        request: &Request,
        caller: &Caller,
        parts: &[&str],
        api: bool,
    ) -> Result<Answer, No> {
        let form = fields(request)?;
        let check = self.access.check_act(request, caller, &form);
        check.map_err(|refusal| No {
            status: refusal.status(),
            message: refusal.words().to_owned(),
        })?;
        let field = |name: &str| {
            let found = form.iter().find(|(key, _)| key == name);
            found.map(|(_, value)| value.as_str()).unwrap_or_default()
        };
        let parts = if api { &parts[1..] } else { parts };
        let taken: &[&str] = match parts {
            ["runs", _, "answer"] => &["answer", "step", "shown", "comment"],
            ["runs", _, "approve" | "reject"] => &["step", "shown", "comment"],
            ["runs", _, "retry"] => &["from"],
            ["enqueue"] => &["agent", "title", "text"],
            _ => &[],
        };
        // Reject unknown fields: the request may depend on one.
        let strange = form.iter().find(|(key, _)| key != "word" && !taken.contains(&key.as_str()));
        if let Some((key, _)) = strange {
            let known: Vec<_> = taken.iter().map(|key| format!("`{key}`")).collect();
            return Err(bad(&match known.is_empty() {
                true => format!("`{key}` is not taken: there is nothing to say here"),
                false => format!("`{key}` is not taken: there are {}", known.join(", ")),
            }));
        }
        let board = self.board()?;
        let (came, place) = match parts {
            ["runs", id, verb @ ("answer" | "approve" | "reject")] => {
                let id = self.run_id(&board, id)?;
                let word = if *verb == "answer" { field("answer") } else { verb };
                let approve = match word {
                    "approve" => true,
                    "reject" => false,
                    _ => return Err(bad("the answer must be `approve` or `reject`")),
                };
                let comment = field("comment").replace("\r\n", "\n");
                if !approve && comment.trim().is_empty() {
                    return Err(bad("a rejection needs a reason: say what is to be better"));
                }
                let (step, shown) = (field("step"), field("shown"));
                if step.is_empty() || shown.is_empty() {
                    return Err(bad("an answer names `step` and `shown`, as `pending` has them"));
                }
                let asked = Question {
                    run: id.to_string(),
                    node: String::new(),
                    step: step.to_owned(),
                    shown: shown.to_owned(),
                };
                let deed = match approve {
                    true => Deed::Approve { asked, comment },
                    false => Deed::Reject { asked, reason: comment },
                };
                (self.act(&deed)?, format!("/runs/{}", part(id.as_str())))
            }
            ["runs", id, verb @ ("cancel" | "retry")] => {
                let id = self.run_id(&board, id)?;
                let from = Some(field("from")).filter(|step| !step.is_empty());
                let (target, from) = (id.to_string(), from.map(str::to_owned));
                let deed = match *verb {
                    "cancel" => Deed::Cancel { target },
                    _ => Deed::Retry { target, from },
                };
                (self.act(&deed)?, format!("/runs/{}", part(id.as_str())))
            }
            ["tasks", id, verb @ ("cancel" | "retry")] => {
                let found = find(&board, id)?;
                let target = found.id().to_string();
                let place = format!("/tasks/{}", part(&target));
                let deed = match *verb {
                    "cancel" => Deed::Cancel { target },
                    _ => Deed::Retry { target, from: None },
                };
                (self.act(&deed)?, place)
            }
            ["enqueue"] => {
                let text = field("text").replace("\r\n", "\n");
                let (agent, title) = (field("agent").to_owned(), field("title").to_owned());
                let came = self.act(&Deed::Enqueue { agent, title, text })?;
                let place = match &came {
                    Came::Done(said) => said["task_id"].as_str().map(part),
                    _ => None,
                };
                let place = place.map_or("/inboxes".to_owned(), |id| format!("/tasks/{id}"));
                (came, place)
            }
            _ => return Err(No::found("such action")),
        };
        match came {
            Came::Refused { code, message } => {
                let status = if code == 5 { 409 } else { 400 };
                Err(No { status, message })
            }
            Came::Done(said) if api => Ok(Answer::json(200, &said)),
            Came::GoesOn(_) if api => Ok(Answer::json(202, &json!({ "schema": "accepted/v1" }))),
            Came::Done(_) | Came::GoesOn(_) => Ok(Answer::see(&place)),
        }
    }
}

/// Returns a refusal for a client that is not yet authenticated: JSON under `/api`, otherwise one
/// line of text.
pub(crate) fn refusal_at(path: &str, status: u16, words: &str) -> Answer {
    match http::parts(path).first().is_some_and(|part| part == "api") {
        true => Answer::json(status, &error_document(status, words)),
        false => Answer::text(status, words),
    }
}

fn error_document(status: u16, message: &str) -> Value {
    // A verb's hint follows its error message on a new line.
    let (message, hint) = message.split_once('\n').map_or((message, None), |(m, h)| (m, Some(h)));
    let error = json!({ "code": status, "message": message, "hint": hint });
    json!({ "schema": "error/v1", "error": error })
}

fn with_allowed(no: &No, answer: Answer) -> Answer {
    if no.status == 405 { answer.with("Allow", "POST".to_owned()) } else { answer }
}

/// Returns the part of a step's output that the state of the run holds.
pub(crate) fn kept(board: &Board, log: &Log) -> Option<String> {
    let (plan, run) = board.open(&log.id).ok()?;
    printed(run.slot(&Address::parse(&plan, &log.name)?)?.record.as_deref()?)
}

fn bad(message: &str) -> No {
    No { status: 400, message: message.to_owned() }
}

fn css(text: &'static str, kind: &'static str) -> Reply {
    Reply::Answer(Answer::new(200, kind, text))
}

fn answer_json(status: u16, value: &Value) -> Reply {
    Reply::Answer(Answer::json(status, value))
}

fn stranger(refusal: Refusal, api: bool) -> Answer {
    let (status, words) = (refusal.status(), refusal.words());
    if api {
        return Answer::json(status, &error_document(status, words));
    }
    Answer::html(status, pages::stranger(words))
}

/// Parses the body as a form or as a JSON object of strings.
fn fields(request: &Request) -> Result<Vec<(String, String)>, No> {
    let kind = request.header("content-type").unwrap_or_default();
    let kind = kind.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    match kind.as_str() {
        "application/json" => {}
        "" | "application/x-www-form-urlencoded" => return Ok(request.form()),
        _ => {
            let message = format!("a body is a JSON object or a form, and not `{kind}`");
            return Err(No { status: 415, message });
        }
    }
    let object: serde_json::Map<String, Value> = serde_json::from_slice(&request.body)
        .map_err(|error| bad(&format!("the body is no JSON object: {error}")))?;
    let text = |(key, value): (String, Value)| match value {
        Value::String(text) => Ok((key, text)),
        Value::Null => Ok((key, String::new())),
        other => Err(bad(&format!("`{key}` is a text, and not `{other}`"))),
    };
    object.into_iter().map(text).collect()
}

/// Returns the offsets to follow a log from: those of the last received event after a broken
/// connection, or else the end of the page.
fn from(request: &Request) -> (u64, u64) {
    let from = request.header("last-event-id").or(request.asked("from")).unwrap_or_default();
    let (out, err) = from.split_once(',').unwrap_or_default();
    (out.parse().unwrap_or(0), err.parse().unwrap_or(0))
}

fn find(board: &Board, id: &str) -> Result<crate::view::Found, No> {
    match board.find_task(&id.to_ascii_uppercase())? {
        Lookup::One(found) => Ok(found),
        _ => Err(No::found(&format!("task `{id}`"))),
    }
}
