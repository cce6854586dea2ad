//! What a provider's output means: the stream of a command line, line by line, and what came of
//! it.
//!
//! An [`Adapter`] knows one kind of command line. [`Stream`] cuts its output into lines, whatever
//! pieces it comes in. [`Outcome`] is the answer, what it cost, and the [`Verdict`]: whether it
//! counts, and if not, what another try is worth.
//!
//! **Invariant:** nothing here touches the world or reads a clock, nothing fails or panics on what
//! a provider prints, and memory stays bounded: of a stream only the answer and a few turns are
//! kept.

mod claude;
mod codex;
mod gemini;
mod lenient;
mod machine;
mod opencode;
mod plain;
mod stream;
#[cfg(test)]
mod tests;
mod told;
mod usage;
mod veil;
mod verdict;

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;

pub use machine::{MachineFault, lacking};
pub use stream::Stream;
pub use told::told_time;
pub use usage::{Counting, Number, Usage};
pub use veil::{Hide, Veil};
pub use verdict::Verdict;

use self::veil::{cut_at, shortened};
use crate::ansi;
use crate::time::Time;

/// The longest answer that is kept.
pub const TEXT_BYTES: usize = 8 << 20;
/// How many denials are told of.
const DENIALS: usize = 50;
/// How much of one turn is shown.
const TURN_BYTES: usize = 4096;

/// The command lines that are known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    Claude,
    Codex,
    Gemini,
    OpenCode,
    /// Standard output is the answer.
    #[default]
    Plain,
}

impl Kind {
    pub const ALL: [(&'static str, Kind); 5] = [
        ("claude", Kind::Claude),
        ("codex", Kind::Codex),
        ("gemini", Kind::Gemini),
        ("opencode", Kind::OpenCode),
        ("plain", Kind::Plain),
    ];

    pub fn name(self) -> &'static str {
        Self::ALL.iter().find(|(_, kind)| *kind == self).map_or("", |(name, _)| name)
    }

    /// Whether its output is events, of which the answer is a part.
    pub fn is_stream(self) -> bool {
        self != Kind::Plain
    }

    /// Whether it takes a name for a new conversation; others make one up.
    pub fn takes_session(self) -> bool {
        matches!(self, Kind::Claude | Kind::Gemini)
    }

    /// Why it does not take a prompt of this length, or takes only the beginning of it.
    pub fn refuses(self, prompt: &[u8]) -> Option<String> {
        let letters = || String::from_utf8_lossy(prompt).chars().count();
        let (length, most, unit) = match self {
            Kind::Claude => (prompt.len(), 10_000_000, "bytes"),
            Kind::Codex => (letters(), 1_048_576, "characters"),
            Kind::Gemini => (prompt.len(), 8 << 20, "bytes"),
            Kind::OpenCode | Kind::Plain => return None,
        };
        (length > most)
            .then(|| format!("the prompt has {length} {unit}, but {} takes {most}", self.name()))
    }

    /// Whether it takes a prompt that begins with a slash for a command of its own.
    pub fn takes_commands(self) -> bool {
        matches!(self, Kind::Claude | Kind::Gemini)
    }

    /// What of its arguments a command line does not know, by the first and the last lines of its
    /// standard error: it is another version than the one that the arguments are for.
    pub fn unknown_option(self, stderr: &[String]) -> Option<String> {
        let mut said = stderr.iter().map(|line| plain_line(line));
        let quoted = |rest: &str| Some(rest.strip_prefix('\'')?.split_once('\'')?.0.to_owned());
        let option = match self {
            Kind::Claude => {
                said.find_map(|line| quoted(line.strip_prefix("error: unknown option ")?))
            }
            Kind::Codex => said.find_map(|line| {
                let feature = line.strip_prefix("Error: Unknown feature flag: ");
                let feature = feature.map(|feature| format!("--disable {feature}"));
                feature.or_else(|| quoted(line.strip_prefix("error: unexpected argument ")?))
            }),
            // `Unknown arguments: session-id, sessionId`: once as it was written.
            Kind::Gemini => said.find_map(|line| {
                let (_, names) = line.strip_prefix("Unknown argument")?.split_once(": ")?;
                Some(format!("--{}", names.split(',').next()?.trim()))
            }),
            // It prints how it is used, and not what is wrong.
            Kind::OpenCode => {
                let usage = said.next().is_some_and(|line| line.starts_with("opencode run ["));
                return usage.then(|| "one of its options".to_owned());
            }
            Kind::Plain => None,
        };
        option.map(|option| format!("the option `{}`", shortened(&option, 100)))
    }

    /// The package that has its program.
    fn package(self) -> Option<&'static str> {
        match self {
            Kind::Claude => Some("@anthropic-ai/claude-code"),
            Kind::Codex => Some("@openai/codex"),
            Kind::Gemini => Some("@google/gemini-cli"),
            Kind::OpenCode => Some("opencode-ai"),
            Kind::Plain => None,
        }
    }

    /// How its program is installed.
    pub fn install_hint(self) -> Option<String> {
        self.package().map(|package| format!("`npm install -g {package}` installs it"))
    }

    /// How the version of it is installed whose output was recorded.
    pub fn install_tried(self) -> Option<String> {
        let (package, tried) = (self.package()?, self.tried()?);
        Some(format!("`npm install -g {package}@{tried}` installs {tried}"))
    }

    /// Whether it waits for its service inside of its process, for an hour if the service says so,
    /// and prints little or nothing meanwhile.
    pub fn sleeps(self) -> bool {
        matches!(self, Kind::Codex | Kind::OpenCode)
    }

    /// The same, to be put after what is wrong with it; empty where nothing is known.
    pub fn and_install(self) -> String {
        self.install_hint().map(|hint| format!("; {hint}")).unwrap_or_default()
    }

    /// How long it takes to end itself, where that is longer than usual.
    pub fn grace(self) -> Duration {
        Duration::from_secs(if self == Kind::Gemini { 15 } else { 0 })
    }

    /// The version whose output was recorded.
    pub fn tried(self) -> Option<&'static str> {
        match self {
            Kind::Claude => Some("2.1.326"),
            Kind::Codex => Some("0.169.0"),
            Kind::Gemini => Some("0.61.0"),
            Kind::OpenCode => Some("1.18.33"),
            Kind::Plain => None,
        }
    }

    pub fn adapter(self) -> Box<dyn Adapter> {
        match self {
            Kind::Claude => Box::<claude::Claude>::default(),
            Kind::Codex => Box::<codex::Codex>::default(),
            Kind::Gemini => Box::<gemini::Gemini>::default(),
            Kind::OpenCode => Box::<opencode::OpenCode>::default(),
            Kind::Plain => Box::<plain::Plain>::default(),
        }
    }
}

/// Reads the output of one run of a command line.
pub trait Adapter: Send {
    /// Takes the next line, and tells what a person should see of it. Nothing, if it is no event.
    fn line(&mut self, line: &str, veil: &Veil) -> Option<Vec<Turn>>;
    /// What it calls the conversation, once it said so.
    fn session(&self) -> Option<&str>;
    /// What it means that it prints nothing now.
    fn silence(&self) -> Silence {
        Silence::Working
    }
    /// Says what came of it.
    fn finish(self: Box<Self>, end: &End, veil: &Veil) -> Outcome;
}

/// What it means that a command line prints nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Silence {
    /// A tool runs, or nothing can be said of it.
    Working,
    /// It waits for its service, which may have told it to come back much later.
    Waiting,
    /// It said that it met a limit, in these words, and waits until it may try again.
    AtLimit(String),
}

/// How a command line ended.
#[derive(Clone, Copy, Debug, Default)]
pub struct End<'a> {
    pub exit_code: Option<i32>,
    pub signal: Option<i32>,
    pub timed_out: bool,
    /// It was ended because it printed nothing for so long.
    pub silent_for: Option<Duration>,
    /// The first lines of standard error, where command lines that print their usage say why.
    pub stderr_head: &'a [String],
    /// The last lines of standard error, from which nothing has to be hidden any more.
    pub stderr_tail: &'a [String],
    /// The same of standard output, each perhaps cut.
    pub stdout_tail: &'a [String],
    pub now: Time,
    /// How far the local time is ahead of UTC: some tell times by it.
    pub utc_offset_s: i32,
    /// It printed events.
    pub events: bool,
}

impl End<'_> {
    fn went_well(&self) -> bool {
        self.exit_code == Some(0) && !self.timed_out
    }

    /// It ended itself, and said that not all was well.
    fn failed(&self) -> bool {
        self.exit_code.is_some_and(|code| code != 0) && !self.timed_out
    }

    /// How it ended, in a few words.
    fn how(&self) -> String {
        match (self.timed_out, self.signal, self.exit_code) {
            (true, ..) => "it timed out".into(),
            (_, Some(signal), _) => format!("it was killed by signal {signal}"),
            (_, None, Some(code)) => format!("it ended with exit code {code}"),
            (_, None, None) => "it ended".into(),
        }
    }

    /// The last thing it said past warnings: on standard error, or among its events.
    fn last_words(&self) -> Option<String> {
        if let Some(usage) = before_usage(self.stderr_head) {
            return Some(usage);
        }
        let said = self.stderr_tail.iter().map(|line| plain_line(line));
        let mut said = said.filter(|line| !line.is_empty() && !is_noise(line));
        let first = said.clone().find(|line| line.to_lowercase().starts_with("error"));
        first.or_else(|| said.next_back()).or_else(|| self.printed().pop())
    }

    /// The last lines of its output that are no events.
    fn printed(&self) -> Vec<String> {
        let lines = self.stdout_tail.iter().filter(|line| is_talk(line));
        lines.map(|line| plain_line(line)).filter(|line| !line.is_empty()).collect()
    }

    /// What is to be thought of one that said it was done, and then did not end well.
    fn after_end(&self) -> Verdict {
        let words = self.last_words().map(|words| format!(": {words}")).unwrap_or_default();
        Verdict::Stopped { reason: format!("it said that it was done, but {}{words}", self.how()) }
    }

    /// What is to be thought of a stream without a last event. What another try is worth, its last
    /// words tell, as they do for a command line whose output is no stream. A program that printed
    /// events and ended well has another last event than the one that is known.
    fn without_end(&self, began: bool) -> Verdict {
        // Of one that ended as if all were well, only what it said in place of events tells.
        let words = match self.went_well() {
            true => self.printed().pop(),
            false => self.last_words().filter(|_| self.failed()),
        };
        let reason = match words {
            Some(words) if self.failed() && !began => words,
            Some(words) => {
                format!("there is no last event: {}; it said: {words}", self.how())
            }
            _ => format!("there is no last event: {}", self.how()),
        };
        match self.went_well() && self.events {
            true => Verdict::Machine { fault: MachineFault::Events, reason },
            false => Verdict::Stopped { reason },
        }
    }
}

/// Whether a line that is no event was never meant to be one: it is no part of a document either.
fn is_talk(line: &str) -> bool {
    let line = line.trim_matches([' ', '\t', '\r', ',', '\u{feff}']);
    !line.is_empty()
        && !line.starts_with(['{', '}', '"', ']'])
        && !line.starts_with("[{")
        && !line.ends_with(['{', '}', '"'])
        && line != "["
}

/// A line without escape sequences and outer blanks.
fn plain_line(line: &str) -> String {
    ansi::strip(line).trim().to_owned()
}

/// What stands above the usage that a command line prints, which is why it prints it.
fn before_usage(stderr_head: &[String]) -> Option<String> {
    let lines: Vec<String> = stderr_head.iter().map(|line| plain_line(line)).collect();
    let usage = lines.iter().position(|line| line.starts_with("Usage:"))?;
    let why: Vec<&str> =
        lines[..usage].iter().map(String::as_str).filter(|line| !is_noise(line)).collect();
    let why = why.join(" ").trim().to_owned();
    (!why.is_empty()).then(|| shortened(&why, 500))
}

/// Whether a line of standard error explains no failure: command lines print such lines also when
/// all is well, and parts of a stack trace below the line that names the error.
pub fn is_noise(line: &str) -> bool {
    const BEGINNINGS: [&str; 5] = [
        "Ripgrep is not available",
        "YOLO mode is enabled",
        "Loaded cached credentials",
        "Data collection is disabled",
        "Approval mode overridden to",
    ];
    let line = plain_line(line);
    let warning = line.get(..7).is_some_and(|word| word.eq_ignore_ascii_case("warning"));
    let trace = line.starts_with("at ") && (line.contains('(') || line.contains("://"));
    warning || trace || BEGINNINGS.iter().any(|beginning| line.starts_with(beginning))
}

/// What came of asking a provider.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// The answer.
    pub text: String,
    /// It was longer than what is kept.
    pub truncated: bool,
    /// The conversation it belongs to.
    pub session: Option<String>,
    /// There is no such conversation, so the next try has to begin one.
    pub session_lost: bool,
    pub usage: Usage,
    /// Tools that it wanted to use and was not allowed to.
    pub denials: Vec<String>,
    /// The answer in the form that was asked for.
    pub structured: Option<Value>,
    pub verdict: Verdict,
    /// When it says that it works again, however long that takes.
    pub works_at: Option<Time>,
    /// The last of what a person would have seen.
    pub notes: Vec<Turn>,
    /// The last lines that are no events.
    pub printed: Vec<String>,
}

impl Outcome {
    fn new(verdict: Verdict) -> Outcome {
        Outcome {
            text: String::new(),
            truncated: false,
            session: None,
            session_lost: false,
            usage: Usage::default(),
            denials: Vec::new(),
            structured: None,
            verdict,
            works_at: None,
            notes: Vec::new(),
            printed: Vec::new(),
        }
    }

    /// What came of a command line whose output is its answer, where that is not to be used.
    pub fn of_text(text: &str, verdict: Verdict, now: Time) -> Outcome {
        Outcome { text: text.to_owned(), ..Outcome::new(verdict) }.judged(now)
    }

    /// The same, with a time that is over or too far off taken for what it is worth.
    pub fn judged(mut self, now: Time) -> Outcome {
        let verdict = self.verdict.not_before(now);
        self.works_at = verdict.at();
        self.verdict = verdict.within_a_day(now);
        self
    }

    fn is_empty(&self) -> bool {
        self.text.trim().is_empty() && self.structured.is_none()
    }

    fn answering(mut self, answer: Answer) -> Outcome {
        self.text = answer.text;
        self.truncated = answer.truncated;
        self
    }
}

/// A piece of a conversation, for people to follow it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Turn {
    Said(String),
    Called {
        tool: String,
        input: String,
    },
    ToolFailed(String),
    /// It could not reach its model, and tries again.
    Retrying(String),
    /// A line that is no event.
    Printed(String),
}

impl fmt::Display for Turn {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Turn::Said(text) | Turn::Printed(text) => f.write_str(text),
            Turn::Called { tool, input } if input.is_empty() => write!(f, "-> {tool}"),
            Turn::Called { tool, input } => write!(f, "-> {tool}: {input}"),
            Turn::ToolFailed(why) => write!(f, "<- failed: {why}"),
            Turn::Retrying(why) => write!(f, ".. {why}"),
        }
    }
}

/// An answer in the making, within its limit.
#[derive(Debug, Default)]
struct Answer {
    text: String,
    truncated: bool,
}

impl Answer {
    fn set(&mut self, text: &str) {
        self.text.clear();
        self.truncated = false;
        self.add(text);
    }

    fn add(&mut self, text: &str) {
        if self.truncated {
            return;
        }
        let end = cut_at(text, TEXT_BYTES - self.text.len());
        self.truncated = end < text.len();
        self.text.push_str(&text[..end]);
    }
}

/// What the events of a line tell; nothing, if there is none in it.
fn told_by<T: IntoIterator<Item = Turn>>(
    line: &str,
    tell: impl FnMut(&Value) -> T,
) -> Option<Vec<Turn>> {
    let events = events(line);
    let turns = events.iter().flat_map(tell).collect();
    (!events.is_empty()).then_some(turns)
}

/// The events of a line: one, or several where a whole conversation is one document.
fn events(line: &str) -> Vec<Value> {
    match lenient::read(line) {
        Some(Value::Array(events)) => events,
        Some(event @ Value::Object(_)) => vec![event],
        _ => Vec::new(),
    }
}

/// A text in an object, by its key.
fn text<'v>(value: &'v Value, key: &str) -> Option<&'v str> {
    value.get(key)?.as_str()
}

fn number(value: &Value, key: &str) -> Option<u64> {
    value.get(key)?.as_u64()
}

/// A sum of counts that are told apart. What is not told does not count; of what is told and no
/// count, nobody knows the sum.
fn total(parts: &[Option<&Value>]) -> Option<u64> {
    let told = parts.iter().flatten().filter(|part| !part.is_null());
    let counts: Option<Vec<u64>> = told.map(|part| part.as_u64()).collect();
    let counts = counts.filter(|counts| !counts.is_empty())?;
    counts.into_iter().try_fold(0_u64, u64::checked_add)
}

/// Money that was spent. Nobody spends less than nothing.
fn money(value: &Value, key: &str) -> Option<f64> {
    value.get(key)?.as_f64().filter(|money| *money >= 0.0 && money.is_finite())
}
