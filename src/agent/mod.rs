//! Interprets a provider's output: the stream of a command line tool (CLI), line by line, and its
//! result.
//!
//! An [`Adapter`] understands one CLI. [`Stream`] splits its output into lines, regardless of the
//! pieces it arrives in. [`Outcome`] is the answer, its cost, and the [`Verdict`]: whether the
//! answer counts, and if not, whether a retry can help.
//!
//! **Invariant:** nothing here does I/O or reads a clock, nothing fails or panics on a provider's
//! output, and memory stays bounded: of a stream, only the answer and a few turns are kept.

pub(crate) mod answer;
mod claude;
mod codex;
pub(crate) mod contract;
pub(crate) mod echo;
pub(crate) mod faults;
mod gemini;
mod lenient;
pub(crate) mod loop_signal;
mod machine;
mod opencode;
mod plain;
pub(crate) mod redact;
pub(crate) mod retry_time;
mod stream;
#[cfg(test)]
mod tests;
mod usage;
mod verdict;

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;

pub(crate) use crate::agent::redact::{Hide, Veil};
pub(crate) use crate::agent::retry_time::told_time;
pub(crate) use machine::{MachineFault, lacking};
pub(crate) use stream::Stream;
pub(crate) use usage::{Counting, Number, Usage};
pub(crate) use verdict::Verdict;

use crate::agent::redact::{cut_at, shortened};
use crate::base::ansi;
use crate::base::time::Time;

/// The longest answer that is kept.
pub(crate) const TEXT_BYTES: usize = 8 << 20;
/// Maximum number of denials to report.
const DENIALS: usize = 50;
/// Maximum size of one turn to display.
const TURN_BYTES: usize = 4096;

/// The supported CLIs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Kind {
    Claude,
    Codex,
    Gemini,
    OpenCode,
    /// Any program whose standard output is the answer.
    #[default]
    Plain,
}

impl Kind {
    pub(crate) const ALL: [(&'static str, Kind); 5] = [
        ("claude", Kind::Claude),
        ("codex", Kind::Codex),
        ("gemini", Kind::Gemini),
        ("opencode", Kind::OpenCode),
        ("plain", Kind::Plain),
    ];

    pub(crate) fn name(self) -> &'static str {
        Self::ALL.iter().find(|(_, kind)| *kind == self).map_or("", |(name, _)| name)
    }

    /// Returns true if the output is a stream of events, of which the answer is a part.
    pub(crate) fn is_stream(self) -> bool {
        self != Kind::Plain
    }

    /// Returns true if the CLI accepts an ID for a new conversation; other CLIs generate one.
    pub(crate) fn takes_session(self) -> bool {
        matches!(self, Kind::Claude | Kind::Gemini)
    }

    /// Returns the reason why the CLI rejects or truncates a prompt of this length, or `None`.
    pub(crate) fn refuses(self, prompt: &[u8]) -> Option<String> {
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

    /// Returns true if the CLI interprets a prompt that begins with a slash as its own command.
    pub(crate) fn takes_commands(self) -> bool {
        matches!(self, Kind::Claude | Kind::Gemini)
    }

    /// Returns the argument that the CLI does not know, from the first and the last lines of its
    /// stderr: its version differs from the one that the arguments are for.
    pub(crate) fn unknown_option(self, stderr: &[String]) -> Option<String> {
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
            // `Unknown arguments: session-id, sessionId`: the first is the name as it was written.
            Kind::Gemini => said.find_map(|line| {
                let (_, names) = line.strip_prefix("Unknown argument")?.split_once(": ")?;
                Some(format!("--{}", names.split(',').next()?.trim()))
            }),
            // It prints its usage without the reason.
            Kind::OpenCode => {
                let usage = said.next().is_some_and(|line| line.starts_with("opencode run ["));
                return usage.then(|| "one of its options".to_owned());
            }
            Kind::Plain => None,
        };
        option.map(|option| format!("the option `{}`", shortened(&option, 100)))
    }

    /// Returns the npm package that contains the program.
    fn package(self) -> Option<&'static str> {
        match self {
            Kind::Claude => Some("@anthropic-ai/claude-code"),
            Kind::Codex => Some("@openai/codex"),
            Kind::Gemini => Some("@google/gemini-cli"),
            Kind::OpenCode => Some("opencode-ai"),
            Kind::Plain => None,
        }
    }

    /// Returns the command that installs the program, as a hint.
    pub(crate) fn install_hint(self) -> Option<String> {
        self.package().map(|package| format!("`npm install -g {package}` installs it"))
    }

    /// Returns the command that installs the tested version, as a hint.
    pub(crate) fn install_tried(self) -> Option<String> {
        let (package, tried) = (self.package()?, self.tried()?);
        Some(format!("`npm install -g {package}@{tried}` installs {tried}"))
    }

    /// Returns [`Kind::install_hint`] as a suffix for an error message; empty if unknown.
    pub(crate) fn and_install(self) -> String {
        self.install_hint().map(|hint| format!("; {hint}")).unwrap_or_default()
    }

    /// Returns the extra time it needs to end itself; zero by default.
    pub(crate) fn grace(self) -> Duration {
        Duration::from_secs(if self == Kind::Gemini { 15 } else { 0 })
    }

    /// Returns the tested version, whose output was recorded.
    pub(crate) fn tried(self) -> Option<&'static str> {
        match self {
            Kind::Claude => Some("2.1.326"),
            Kind::Codex => Some("0.169.0"),
            Kind::Gemini => Some("0.61.0"),
            Kind::OpenCode => Some("1.18.33"),
            Kind::Plain => None,
        }
    }

    pub(crate) fn adapter(self) -> Box<dyn Adapter> {
        match self {
            Kind::Claude => Box::<claude::Claude>::default(),
            Kind::Codex => Box::<codex::Codex>::default(),
            Kind::Gemini => Box::<gemini::Gemini>::default(),
            Kind::OpenCode => Box::<opencode::OpenCode>::default(),
            Kind::Plain => Box::<plain::Plain>::default(),
        }
    }
}

/// Reads the output of one run of a CLI.
pub(crate) trait Adapter: Send {
    /// Processes the next line and returns the turns to display, or `None` if it is not an event.
    fn line(&mut self, line: &str, veil: &Veil) -> Option<Vec<Turn>>;
    /// Returns the CLI's ID of the conversation, once it has printed it.
    fn session(&self) -> Option<&str>;
    /// Returns the meaning of a lack of output at this point.
    fn silence(&self) -> Silence {
        Silence::Working
    }
    /// Returns the result.
    fn finish(self: Box<Self>, end: &End, veil: &Veil) -> Outcome;
}

/// The meaning of a CLI's silence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Silence {
    /// A tool is running, or nothing is known.
    Working,
    /// The CLI waits for its service, which may have asked it to retry much later.
    Waiting,
    /// The CLI reported a rate limit with this message, and waits until it may retry.
    AtLimit(String),
}

/// The end of a CLI run.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct End<'a> {
    pub exit_code: Option<i32>,
    pub signal: Option<i32>,
    pub timed_out: bool,
    /// The idle limit, if the CLI was ended because it printed nothing.
    pub silent_for: Option<Duration>,
    /// The first lines of stderr, where CLIs that print their usage state the reason.
    pub stderr_head: &'a [String],
    /// The last lines of stderr, already redacted.
    pub stderr_tail: &'a [String],
    /// The last lines of stdout, already redacted, each possibly truncated.
    pub stdout_tail: &'a [String],
    pub now: Time,
    /// Offset of the local time from UTC: some CLIs report local times.
    pub utc_offset_s: i32,
    /// True if it printed events.
    pub events: bool,
}

impl End<'_> {
    fn went_well(&self) -> bool {
        self.exit_code == Some(0) && !self.timed_out
    }

    /// Returns true if the CLI exited by itself with an error.
    fn failed(&self) -> bool {
        self.exit_code.is_some_and(|code| code != 0) && !self.timed_out
    }

    /// Describes the end in a few words.
    fn how(&self) -> String {
        match (self.timed_out, self.signal, self.exit_code) {
            (true, ..) => "it timed out".into(),
            (_, Some(signal), _) => format!("it was killed by signal {signal}"),
            (_, None, Some(code)) => format!("it ended with exit code {code}"),
            (_, None, None) => "it ended".into(),
        }
    }

    /// Returns its last message that is not a warning: from stderr, or from between its events.
    fn last_words(&self) -> Option<String> {
        if let Some(usage) = before_usage(self.stderr_head) {
            return Some(usage);
        }
        let said = self.stderr_tail.iter().map(|line| plain_line(line));
        let mut said = said.filter(|line| !line.is_empty() && !is_noise(line));
        let first = said.clone().find(|line| line.to_lowercase().starts_with("error"));
        first.or_else(|| said.next_back()).or_else(|| self.printed().pop())
    }

    /// Returns the last lines of its output that are not events.
    fn printed(&self) -> Vec<String> {
        let lines = self.stdout_tail.iter().filter(|line| is_talk(line));
        lines.map(|line| plain_line(line)).filter(|line| !line.is_empty()).collect()
    }

    /// Returns the verdict for a CLI that reported success and then did not end well.
    fn after_end(&self) -> Verdict {
        let words = self.last_words().map(|words| format!(": {words}")).unwrap_or_default();
        Verdict::Stopped { reason: format!("it said that it was done, but {}{words}", self.how()) }
    }

    /// Returns the verdict for a stream without a final event. Its last message determines whether
    /// a retry can help, as for a CLI without a stream. A program that printed events and ended
    /// well has a final event that the adapter does not know.
    fn without_end(&self, began: bool) -> Verdict {
        // If it ended well, only the text it printed in place of events gives the reason.
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

/// Returns true if a line that is not an event was never meant to be one: it is not part of a
/// document either.
fn is_talk(line: &str) -> bool {
    let line = line.trim_matches([' ', '\t', '\r', ',', '\u{feff}']);
    !line.is_empty()
        && !line.starts_with(['{', '}', '"', ']'])
        && !line.starts_with("[{")
        && !line.ends_with(['{', '}', '"'])
        && line != "["
}

/// Returns a line without escape sequences and surrounding whitespace.
fn plain_line(line: &str) -> String {
    ansi::strip(line).trim().to_owned()
}

/// Returns the text above the usage that a CLI prints, which is the reason for printing it.
fn before_usage(stderr_head: &[String]) -> Option<String> {
    let lines: Vec<String> = stderr_head.iter().map(|line| plain_line(line)).collect();
    let usage = lines.iter().position(|line| line.starts_with("Usage:"))?;
    let why: Vec<&str> =
        lines[..usage].iter().map(String::as_str).filter(|line| !is_noise(line)).collect();
    let why = why.join(" ").trim().to_owned();
    (!why.is_empty()).then(|| shortened(&why, 500))
}

/// Returns true if a line of stderr does not explain a failure: lines that CLIs also print on
/// success, and parts of a stack trace below the line that names the error.
pub(crate) fn is_noise(line: &str) -> bool {
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

/// The result of asking a provider.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Outcome {
    pub text: String,
    /// True if the answer exceeded the limit.
    pub truncated: bool,
    /// The ID of the conversation.
    pub session: Option<String>,
    /// True if the conversation does not exist, so the next try must begin a new one.
    pub session_lost: bool,
    pub usage: Usage,
    /// Tools that the provider tried to use and was denied.
    pub denials: Vec<String>,
    /// The answer in the requested structured form.
    pub structured: Option<Value>,
    pub verdict: Verdict,
    /// The time when the provider says it works again, however far away.
    pub works_at: Option<Time>,
    /// The last turns for display.
    pub notes: Vec<Turn>,
    /// The last lines that are not events.
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

    /// Creates the outcome of a CLI whose output is its answer, if the answer is unusable.
    pub(crate) fn of_text(text: &str, verdict: Verdict, now: Time) -> Outcome {
        Outcome { text: text.to_owned(), ..Outcome::new(verdict) }.judged(now)
    }

    /// Adjusts the verdict if its retry time has passed or is too far away.
    pub(crate) fn judged(mut self, now: Time) -> Outcome {
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

/// A piece of a conversation, for users to follow it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    Said(String),
    Called {
        tool: String,
        input: String,
    },
    ToolFailed(String),
    /// The provider could not reach its model and retries.
    Retrying(String),
    /// A line that is not an event.
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

/// An answer that is being collected, within its limit.
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

/// Returns the turns of the events in a line, or `None` if it contains no event.
fn told_by<T: IntoIterator<Item = Turn>>(
    line: &str,
    tell: impl FnMut(&Value) -> T,
) -> Option<Vec<Turn>> {
    let events = events(line);
    let turns = events.iter().flat_map(tell).collect();
    (!events.is_empty()).then_some(turns)
}

/// Returns the events of a line: one, or several if a whole conversation is one document.
fn events(line: &str) -> Vec<Value> {
    match lenient::read(line) {
        Some(Value::Array(events)) => events,
        Some(event @ Value::Object(_)) => vec![event],
        _ => Vec::new(),
    }
}

/// Returns a string field of an object.
fn text<'v>(value: &'v Value, key: &str) -> Option<&'v str> {
    value.get(key)?.as_str()
}

fn number(value: &Value, key: &str) -> Option<u64> {
    value.get(key)?.as_u64()
}

/// Returns the sum of counts that are reported separately. Absent counts are ignored; if one is
/// present but not a count, the sum is unknown.
fn total(parts: &[Option<&Value>]) -> Option<u64> {
    let told = parts.iter().flatten().filter(|part| !part.is_null());
    let counts: Option<Vec<u64>> = told.map(|part| part.as_u64()).collect();
    let counts = counts.filter(|counts| !counts.is_empty())?;
    counts.into_iter().try_fold(0_u64, u64::checked_add)
}

/// Returns an amount of money. Negative and infinite amounts are rejected.
fn money(value: &Value, key: &str) -> Option<f64> {
    value.get(key)?.as_f64().filter(|money| *money >= 0.0 && money.is_finite())
}
