//! `orchestrate spell`: renders a spell as a step would, and parses an answer as a step would.

use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use super::Common;
use super::invocation::Invocation;
use super::run::ContextArgs;
use crate::agent::contract::{self, Contract};
use crate::agent::{End, Kind, Stream, Verdict};
use crate::attempt::prompt::spell::{self, Found, Lost, Refusal, SystemPrompt};
use crate::base::time::{Clock, SystemClock, utc_offset_s};
use crate::disk::fs::OnVolume as _;
use crate::run::failure::Failure;
use crate::run::workflow_file;
use crate::template::spell::{Fault, Spell};
use crate::view::stderr::Tamed;
use crate::workflow::{Problem, is_variable};
use crate::yaml::without_bom;

#[derive(clap::Subcommand, Clone, Debug)]
pub(super) enum SpellVerb {
    /// Print the text that a spell renders to, and nothing else
    Render(RenderArgs),
    /// Print what an agent's answer says about itself, as JSON
    #[command(after_help = "Exit codes: 0 a step with this answer would succeed, 1 it would fail.")]
    Parse(ParseArgs),
}

#[derive(clap::Args, Clone, Debug)]
pub(super) struct RenderArgs {
    /// The name of a spell, or a file
    #[arg(value_name = "SPELL|FILE")]
    pub spell: String,
    #[command(flatten)]
    pub context: ContextArgs,
    /// A variable as `input` of a step gives it: a template itself, which wins over the others
    #[arg(long = "input", value_name = "KEY=VALUE")]
    pub inputs: Vec<String>,
    /// Print the whole prompt: the spell in the system prompt, as an agent gets it
    #[arg(long)]
    pub prompt: bool,
}

#[derive(clap::Args, Clone, Debug)]
pub(super) struct ParseArgs {
    /// The file of the answer; `-` is standard input
    #[arg(value_name = "FILE", default_value = "-")]
    pub answer: PathBuf,
    /// The exit code that the agent ended with; 124 means that it timed out
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub exit_code: i32,
    /// The file holds what this provider printed, of which the answer is a part
    #[arg(long, value_enum, value_name = "FORM")]
    pub stream: Option<Form>,
}

/// What providers print.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
pub(super) enum Form {
    /// The answer and nothing else
    Text,
    ClaudeJson,
    ClaudeStreamJson,
    CodexJsonl,
    GeminiJson,
    GeminiStreamJson,
    OpencodeJson,
}

impl Form {
    fn kind(self) -> Kind {
        match self {
            Form::Text => Kind::Plain,
            Form::ClaudeJson | Form::ClaudeStreamJson => Kind::Claude,
            Form::CodexJsonl => Kind::Codex,
            Form::GeminiJson | Form::GeminiStreamJson => Kind::Gemini,
            Form::OpencodeJson => Kind::OpenCode,
        }
    }
}

pub(super) fn main(verb: &SpellVerb, common: &Common) -> Result<u8, Failure> {
    let invocation = Invocation::read(common)?;
    match verb {
        SpellVerb::Render(args) => render(args, &invocation),
        SpellVerb::Parse(args) => parse(args, &invocation),
    }
}

fn render(args: &RenderArgs, invocation: &Invocation) -> Result<u8, Failure> {
    let data = args.context.over(Map::new())?;
    let workspace = invocation.open_workspace()?;
    let limit = invocation.config.input_bytes;
    let read = |path: &str| workspace.read_text(path, limit);
    let found = find(&args.spell, &read, limit)?;
    let data = Value::Object(with_inputs(data, &args.inputs, &read)?);
    let text = spell::render(&found, &data, &read).map_err(|fault| refusal(&fault))?;
    if !args.prompt {
        print(&text)?;
        return Ok(0);
    }
    let system = SystemPrompt::find(&read).map_err(|refused| match refused {
        Refusal::Fault(fault) => refusal(&fault),
        Refusal::Lost(lost) => Failure::invalid(lost),
    })?;
    let whole = system.wrap(text.trim_end(), &data, &read).map_err(|fault| refusal(&fault))?;
    print(&whole)?;
    Ok(0)
}

/// Adds the `--input` variables to `data`. Each value is a template, rendered with the original
/// variables, and replaces a variable of the same name.
fn with_inputs(
    data: Map<String, Value>,
    inputs: &[String],
    read: spell::Read,
) -> Result<Map<String, Value>, Failure> {
    let outer = Value::Object(data.clone());
    let mut data = data;
    for pair in inputs {
        let named = pair.split_once('=').filter(|(key, _)| is_variable(key));
        let (key, value) = named.ok_or_else(|| {
            Failure::invalid(format!("`--input {pair}` must have the form KEY=VALUE"))
                .hint("KEY has letters, digits, `_` and `-`, and begins with a letter or `_`")
        })?;
        let rendered = Spell::parse(&format!("input {key}"), value)
            .and_then(|value| spell::with_includes(read, |includes| value.value(&outer, includes)));
        let value = rendered.map_err(|fault| refusal(&fault))?;
        data.retain(|other, _| other.replace('-', "_") != key.replace('-', "_"));
        data.insert(key.to_owned(), value);
    }
    Ok(data)
}

/// Finds a spell. An argument that names an existing file and contains `/` or an extension is a
/// file; any other argument is first looked up as a spell name.
fn find(argument: &str, read: spell::Read, limit: u64) -> Result<Found, Failure> {
    let path = Path::new(argument);
    let is_file = !argument.contains('\n') && path.is_present_file();
    if is_file && (argument.contains('/') || path.extension().is_some()) {
        return read_file(path, limit);
    }
    match spell::lookup(argument, read) {
        Ok(found) => Ok(found),
        Err(Lost::Unknown { .. }) if is_file => read_file(path, limit),
        Err(Lost::BadName { .. }) if argument.contains('/') => {
            Err(Failure::invalid(format!("there is no file `{argument}`")))
        }
        Err(lost) => Err(Failure::invalid(lost)),
    }
}

fn read_file(path: &Path, limit: u64) -> Result<Found, Failure> {
    let file = path.display().to_string();
    let bytes = workflow_file::read_bounded(path, limit)
        .map_err(|error| Failure::invalid(format!("cannot read the spell `{file}`: {error}")))?;
    match String::from_utf8(bytes) {
        Ok(text) => Ok(Found { file, text: without_bom(&text).to_owned() }),
        Err(_) => Err(Failure::invalid(format!("`{file}` is not UTF-8 text"))),
    }
}

fn refusal(fault: &Fault) -> Failure {
    Failure::in_text(vec![Problem::from(fault)], &fault.file, &fault.text)
}

/// Prints `text` to stdout without a trailing newline. Fails if the write fails.
fn print(text: &str) -> Result<(), Failure> {
    let mut out = Tamed::stdout();
    out.write_all(text.as_bytes())
        .and_then(|()| out.flush())
        .map_err(|error| Failure::failed(format!("cannot write to standard output: {error}")))
}

fn parse(args: &ParseArgs, invocation: &Invocation) -> Result<u8, Failure> {
    let mut answer = read_answer(&args.answer, invocation.config.input_bytes)?;
    if let Some(form) = args.stream.filter(|form| !matches!(form, Form::Text)) {
        answer = hear(form, &answer, args.exit_code)?.into_bytes();
    }
    let answer = String::from_utf8_lossy(&answer);
    let output = match contract::parse(&answer) {
        Contract::Found(output) => output,
        // As in a run, the exit code takes precedence over the answer.
        _ if args.exit_code != 0 => return Ok(failed_by_exit_code(args.exit_code, invocation)),
        Contract::Missing => {
            let failure = Failure::failed("the agent output is missing");
            return Err(failure
                .hint("an answer ends with a JSON code block; see `orchestrate help spells`"));
        }
        Contract::Invalid(why) => {
            let failure = Failure::failed(format!("the agent output is invalid: {why}"));
            print(&format!("{}\n", contract::told(&answer, why).to_json()))?;
            return Err(failure);
        }
    };
    for warning in &output.warnings {
        invocation.note(format!("warning: {warning}"));
    }
    print(&format!("{}\n", output.to_json()))?;
    match args.exit_code {
        0 => Ok(u8::from(!output.success)),
        code => Ok(failed_by_exit_code(code, invocation)),
    }
}

/// Reports that the step fails regardless of its answer. Returns this program's exit code.
fn failed_by_exit_code(code: i32, invocation: &Invocation) -> u8 {
    invocation.note(match code {
        124 => "the agent timed out, so the step fails".to_owned(),
        code => format!("the agent ended with exit code {code}, so the step fails"),
    });
    1
}

/// Extracts the answer from a provider's output.
fn hear(form: Form, printed: &[u8], exit_code: i32) -> Result<String, Failure> {
    let mut stream = Stream::new(form.kind());
    stream.push(printed);
    let now = SystemClock.now();
    let utc_offset_s = utc_offset_s(now);
    let (exit_code, timed_out) = (Some(exit_code), exit_code == 124);
    let outcome = stream.finish(&End { exit_code, timed_out, now, utc_offset_s, ..End::default() });
    match outcome.verdict {
        Verdict::Answered => Ok(outcome.text),
        verdict => {
            let (word, reason) = (verdict.word(), verdict.reason());
            Err(Failure::failed(format!("the provider gave no answer ({word}): {reason}")))
        }
    }
}

fn read_answer(path: &Path, limit: u64) -> Result<Vec<u8>, Failure> {
    let refused = |name: &str, error: std::io::Error| {
        Failure::invalid(format!("cannot read the answer from {name}: {error}"))
    };
    if path != Path::new("-") {
        return workflow_file::read_bounded(path, limit)
            .map_err(|error| refused(&format!("`{}`", path.display()), error));
    }
    let mut bytes = Vec::new();
    let read = std::io::stdin().lock().take(limit + 1).read_to_end(&mut bytes);
    read.map_err(|error| refused("standard input", error))?;
    if bytes.len() as u64 > limit {
        let error = std::io::Error::other(format!("it is larger than {limit} bytes"));
        return Err(refused("standard input", error));
    }
    Ok(bytes)
}
