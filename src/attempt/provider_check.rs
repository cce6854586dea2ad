//! Checks providers: is the program installed, which version is it, and does it answer?
//!
//! A question goes only to a server on this machine: elsewhere, an answer costs money.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::Value;

use super::command_line::{self, AskError, Question};
use super::exec_env::{Environment, Site, Turns};
use super::loopback::{self, Pointed};
use super::perform;
use super::work::{Input, Work};
use crate::agent::{self, Kind};
use crate::base::ids::{Attempt, StepPath};
use crate::disk::fs;
use crate::engine::{Record, StepStatus};
use crate::exec::{self, Capture, How, Mask, Mode, Order, Stop, Sweep};
use crate::settings::Config;
use crate::template::{Hole, Missing, Scope};
use crate::workflow::plan::{InputMode, Provider};
use crate::workspace::Workspace;

/// Timeout of `--version`.
const VERSION: Duration = Duration::from_secs(30);
/// Timeout of an answer.
const ANSWER: Duration = Duration::from_secs(120);
/// Points any provider at a server, regardless of the name of its own variable.
pub(crate) const BASE_URL: &str = "ORCHESTRATE_PROVIDER_BASE_URL";

/// Location of a provider's program.
pub(crate) enum Program {
    /// It is this program.
    BuiltIn,
    Found(PathBuf),
    /// The reason why it cannot be run.
    Missing(String),
    /// It depends on the step that asks.
    Unknown,
}

/// Finds a provider's program as a step would.
pub(crate) fn find(provider: &Provider, environment: &Environment, cwd: &Path) -> Program {
    let path = environment.get("PATH").map_or(OsStr::new(""), |path| path.as_os_str());
    match provider.program() {
        None => Program::Unknown,
        Some("orchestrate") => Program::BuiltIn,
        Some(program) => match exec::locate(program, path, cwd) {
            Ok(file) => Program::Found(file),
            Err(error) => Program::Missing(error.to_string()),
        },
    }
}

/// Returns the version that a program prints. The error states why there is none.
pub(crate) fn version(file: &Path, cwd: &Path, stop: &Stop) -> Result<String, String> {
    version_within(file, cwd, stop, VERSION)
}

/// Like [`version`], with the caller's timeout.
pub(crate) fn version_within(
    file: &Path,
    cwd: &Path,
    stop: &Stop,
    limit: Duration,
) -> Result<String, String> {
    let argv = [file.to_string_lossy().into_owned(), "--version".into()];
    let order = Order {
        argv: &argv,
        cwd,
        env: &[],
        env_remove: &[],
        stdin: None,
        timeout: Some(limit),
        idle: None,
        grace: Duration::from_secs(1),
        mark: &format!("provider-version-{}#{}", std::process::id(), file.display()),
        sweep: Sweep::Always,
        confine: &[],
    };
    let [mut out, mut err] =
        [Mode::Text, Mode::Tail].map(|mode| Capture::new(mode, Mask::default()));
    let ended = exec::run(&order, &mut out, &mut err, stop).map_err(|error| error.to_string())?;
    let said = out.finish().map_err(|error| error.to_string())?.text();
    let said = said.lines().map(str::trim).find(|line| !line.is_empty()).unwrap_or_default();
    match ended.how {
        How::Exited(0) if !said.is_empty() => Ok(said.chars().take(80).collect()),
        How::Exited(0) => Err("`--version` prints nothing".into()),
        How::TimedOut => Err(format!("`--version` takes longer than {} s", limit.as_secs())),
        how => Err(format!("`--version` ends with exit code {}", how.exit_code())),
    }
}

/// Relation of a version to the one whose output was tested.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Known {
    /// The tested version itself.
    Tried {
        tried: &'static str,
    },
    /// An older version, according to its numbers.
    Older {
        tried: &'static str,
    },
    /// A newer version, according to its numbers.
    Newer {
        tried: &'static str,
    },
    Untried {
        tried: &'static str,
    },
}

impl Known {
    /// Compares a version with the tested one. `None` if no version of this program was tested.
    pub(crate) fn of(kind: Kind, version: &str) -> Option<Known> {
        let tried = kind.tried()?;
        let words = version.split(|c: char| !c.is_ascii_alphanumeric() && c != '.' && c != '-');
        if words.map(|word| word.trim_start_matches('v')).any(|word| word == tried) {
            return Some(Known::Tried { tried });
        }
        Some(match numbers(version).zip(numbers(tried)) {
            Some((seen, by)) if seen < by => Known::Older { tried },
            Some((seen, by)) if seen > by => Known::Newer { tried },
            _ => Known::Untried { tried },
        })
    }

    /// Describes it in words that follow the version.
    pub(crate) fn words(self) -> String {
        match self {
            Known::Tried { .. } => "which was tried".to_owned(),
            Known::Older { tried } => format!("older than {tried}, which was tried"),
            Known::Newer { tried } | Known::Untried { tried } => {
                format!("never tried; {tried} was")
            }
        }
    }
}

/// Returns the first version numbers in a program's output: two or three of them.
pub(crate) fn numbers(version: &str) -> Option<Vec<u64>> {
    version.split([' ', '/', '(', ')']).find_map(|word| {
        let parts = word.trim_start_matches('v').split(['.', '-', '+']).take(3);
        let parts: Vec<u64> = parts.map_while(|part| part.parse().ok()).collect();
        (parts.len() > 1).then_some(parts)
    })
}

/// Returns the variables that may name the local server for a test of a provider.
pub(crate) fn base_url_variables(kind: Kind) -> Vec<&'static str> {
    match kind {
        Kind::Claude => vec![BASE_URL, "ANTHROPIC_BASE_URL"],
        Kind::Codex => vec![BASE_URL, "OPENAI_BASE_URL"],
        Kind::Gemini => vec![BASE_URL, "GOOGLE_GEMINI_BASE_URL"],
        Kind::OpenCode => vec![BASE_URL],
        // There is no known way to point it at a server.
        Kind::Plain => Vec::new(),
    }
}

/// Returns the local server that a provider can be tested with, if the environment names one.
pub(crate) fn own_server(kind: Kind, environment: &Environment) -> Option<String> {
    let names = base_url_variables(kind);
    let url = names.into_iter().find_map(|name| environment.get(name))?;
    let url = url.to_string_lossy().trim_end_matches('/').to_owned();
    is_loopback(&url).then_some(url)
}

fn is_loopback(url: &str) -> bool {
    let Some((_, rest)) = url.split_once("://") else { return false };
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    if authority.contains('@') {
        return false;
    }
    let host = match authority.strip_prefix('[') {
        Some(v6) => v6.split(']').next().unwrap_or_default(),
        None => authority.split(':').next().unwrap_or_default(),
    };
    let address = host.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback());
    address || host == "localhost"
}

/// Asks a provider one small question in a separate directory, which must exist.
pub(crate) fn try_out(
    name: &str,
    config: &Config,
    environment: &Environment,
    server: &str,
    dir: &Path,
    stop: &Stop,
) -> Result<Option<Record>, String> {
    use crate::workflow::Configured as _;
    let provider = config.providers().get(name).ok_or_else(|| format!("no provider `{name}`"))?;
    let wants = |missing: Vec<Missing>| {
        let holes: Vec<_> = missing.iter().map(|hole| format!("`${{{}}}`", hole.raw)).collect();
        format!("it needs {}, which only a step gives", holes.join(", "))
    };
    let mut params = command_line::merge(provider, &BTreeMap::new(), &Nothing).map_err(wants)?;
    if provider.adapter == Kind::OpenCode {
        params.insert("model".into(), loopback::MODEL.into());
    }
    let prompt = "This is a test of the connection.\nAnswer with the one word: ready\n";
    let question = Question {
        name,
        provider,
        params: &params,
        prompt: prompt.as_bytes(),
        around: &Nothing,
        conversation: "test".to_owned().into(),
    };
    let mut work = match question.put(Work::new(StepPath::top("test"), Attempt::FIRST, Vec::new()))
    {
        Ok(work) => work,
        Err(AskError::Missing(missing)) => return Err(wants(missing)),
        Err(AskError::NotText { .. }) => return Err("the prompt is no text".into()),
    };
    work.stdin = (provider.input == InputMode::Stdin).then_some(Input::Text(prompt.to_owned()));
    work.timeout_ms = Some(ANSWER.as_millis() as u64);
    let pointed = Pointed::at(server, provider.adapter, dir)?;
    work.env.extend(pointed.env.iter().cloned());
    let logs = dir.join("run/logs");
    fs::create_dir_all(&logs).map_err(|error| error.to_string())?;
    let site = Site {
        workspace: Workspace::open(dir).map_err(|error| error.to_string())?,
        logs,
        about: Vec::new(),
        environment: environment.clone(),
        hidden: pointed.hidden(environment),
        debug: false,
        live: false,
        grace: config.grace,
        silences: config.silences,
        input_bytes: config.input_bytes,
        mask: Mask::default(),
        parking: None,
        turns: Turns::default(),
        program: super::exec_env::program(),
        sandboxes: Default::default(),
    };
    let mark = format!("provider-test-{}#1", std::process::id());
    Ok(perform::run(&site, &work, &mark, stop).map(|performed| performed.record))
}

/// Returns the answer of a tested provider; the error states the problem. A provider with streamed
/// output must also report its session and its token counts: without them, conversations cannot be
/// resumed and costs are unknown.
pub(crate) fn judge(kind: Kind, record: &Record) -> Result<String, String> {
    if record.status != StepStatus::Completed {
        return Err(record.error.as_ref().map(|error| error.message.clone()).unwrap_or_default());
    }
    let answer = record.output.as_deref().unwrap_or_default();
    let answer = answer.split_whitespace().collect::<Vec<_>>().join(" ");
    if answer.is_empty() {
        return Err("its answer is empty".into());
    }
    if kind.is_stream() {
        let spent = record.usage.as_deref().cloned().unwrap_or_default();
        if let Some(lacks) = agent::lacking(spent.session.as_deref(), &spent.usage) {
            return Err(lacks.into());
        }
    }
    Ok(answer.chars().take(200).collect())
}

/// An empty scope: a test has no variables.
struct Nothing;

impl Scope for Nothing {
    fn look_up(&self, hole: &Hole) -> Result<std::borrow::Cow<'_, Value>, Missing> {
        Err(Missing { raw: hole.raw.clone(), reason: "a test has no variables".into() })
    }
}

/// Runs `act` in a temporary directory and removes the directory afterwards.
pub(crate) fn in_scratch<T>(
    environment: &Environment,
    act: impl FnOnce(&Path) -> Result<T, String>,
) -> Result<T, String> {
    let tmp = environment.get("TMPDIR").cloned().unwrap_or_else(|| OsString::from("/tmp"));
    let dir = PathBuf::from(tmp).join(format!("orchestrate-provider-{}", std::process::id()));
    fs::create_dir_all(&dir).map_err(|error| format!("`{}`: {error}", dir.display()))?;
    let done = act(&dir);
    let _ = fs::remove_dir_all(&dir);
    done
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_this_machine_is_asked() {
        for (url, own) in [
            ("http://127.0.0.1:8080/s/plain", true),
            ("http://localhost:1", true),
            ("https://[::1]:443/v1", true),
            ("http://127.0.0.1.example.org/", false),
            ("http://127.0.0.1@example.org/", false),
            ("http://localhost.example.org", false),
            ("https://api.example.org", false),
            ("127.0.0.1:80", false),
            ("", false),
        ] {
            assert_eq!(is_loopback(url), own, "{url}");
        }
    }

    #[test]
    fn a_version_is_known_by_the_whole_of_it() {
        let words = |kind, version| Known::of(kind, version).map(Known::words);
        let older = "older than 2.1.326, which was tried";
        for (version, wanted) in [
            ("2.1.326 (Claude Code)", "which was tried"),
            ("2.1.99 (Claude Code)", older),
            ("v2.1.324", older),
            ("claude 2.0", older),
            ("2.1.324-beta.1", older),
            ("2.2.0", "never tried; 2.1.326 was"),
            ("10.0.1", "never tried; 2.1.326 was"),
            ("no number", "never tried; 2.1.326 was"),
            ("7", "never tried; 2.1.326 was"),
            ("", "never tried; 2.1.326 was"),
        ] {
            assert_eq!(words(Kind::Claude, version).as_deref(), Some(wanted), "{version}");
        }
        let tried = |kind, version| matches!(Known::of(kind, version), Some(Known::Tried { .. }));
        assert!(tried(Kind::Codex, "codex-cli 0.169.0"));
        assert!(!tried(Kind::Codex, "codex-cli 10.169.0"));
        assert!(!tried(Kind::Gemini, "0.61.0-nightly"));
        assert_eq!(Known::of(Kind::Plain, "1"), None);
    }
}
