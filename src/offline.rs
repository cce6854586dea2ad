//! The offline provider: answers prompts from a script, so that a workflow can be tried and tested
//! without a network and without cost.
//!
//! A script is a list of rules in YAML, tried in order; the first match applies. A rule can use the
//! same input as any provider: the prompt on standard input and the `ORCHESTRATE_*` variables of
//! its environment. `docs/offline.md` is the page for authors.
//!
//! **Invariant:** the same script, prompt and environment give the same answer, and nothing is
//! written outside the workspace.

use std::fmt;
use std::io::{self, Write};
use std::path::{Component, Path, PathBuf};
use std::time::Duration;

use clap::builder::{OsStringValueParser, TypedValueParser};
use serde::Deserialize;
use serde::de::{self, Deserializer, SeqAccess, Visitor};
use serde_saphyr::Spanned;

use crate::disk::fs;

/// Exit code for a script that cannot be followed. A provider's 2 is "invalid input": not retried.
const REFUSED: i32 = 2;

/// What the command line says.
#[derive(Debug, Default, Clone, clap::Args)]
pub(crate) struct Options {
    /// Rules to answer by; with neither this nor --answer the prompt is echoed
    // An empty value must mean "none", because it is the default in the provider's template; clap's
    // own parser for paths rejects it.
    #[arg(long, value_name = "FILE", value_parser = OsStringValueParser::new().map(PathBuf::from))]
    pub script: Option<PathBuf>,
    /// The answer where no rule matches
    #[arg(long, value_name = "TEXT")]
    pub answer: Option<String>,
}

/// Answers one prompt and returns the exit code of the process.
///
/// `root` is the workspace: the script and every path in it are relative to it.
pub(crate) fn answer(
    options: &Options,
    prompt: &[u8],
    environment: &dyn Fn(&str) -> Option<String>,
    root: &Path,
    out: &mut dyn Write,
    err: &mut dyn Write,
) -> i32 {
    let question = Question::new(prompt, environment);
    let followed = match find(options, &question, root) {
        Ok(Found::Echo) => give(out, prompt).map(|()| 0),
        Ok(Found::Text(text)) => give(out, question.fill(text).as_bytes()).map(|()| 0),
        Ok(Found::Rule(rule)) => follow(&rule, &question, root, out, err),
        Err(problem) => Err(problem),
    };
    followed.unwrap_or_else(|problem| {
        // If stderr is closed, too, only the exit code reports the problem.
        let _ = writeln!(err, "error: {problem}");
        REFUSED
    })
}

/// Source of the answer.
enum Found<'a> {
    Echo,
    Text(&'a str),
    Rule(Box<Rule>),
}

fn find<'a>(options: &'a Options, question: &Question, root: &Path) -> Result<Found<'a>, Problem> {
    let script = options.script.as_deref().filter(|path| !path.as_os_str().is_empty());
    if let Some(path) = script {
        let text = fs::read_to_string(root.join(path))
            .map_err(|cause| Problem::io("cannot read the script", path, cause))?;
        for rule in parse(path, &text)? {
            if rule.when.holds(question) {
                return Ok(Found::Rule(Box::new(rule)));
            }
        }
    }
    match (&options.answer, script) {
        (Some(text), _) => Ok(Found::Text(text)),
        (None, Some(path)) => {
            Err(Problem::Unmatched { script: path.to_path_buf(), asked: question.to_string() })
        }
        (None, None) => Ok(Found::Echo),
    }
}

/// One rule of a script.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Rule {
    when: When,
    answer: Option<String>,
    answer_file: Option<String>,
    echo: bool,
    stderr: Option<String>,
    #[serde(deserialize_with = "ordered")]
    write: Vec<(String, String)>,
    #[serde(deserialize_with = "one_or_many")]
    task: Vec<Task>,
    delay_ms: u64,
    exit: i64,
}

/// Conditions of a rule; a missing field always matches.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct When {
    step: Option<Glob>,
    attempt: Option<u64>,
    index: Option<u64>,
    item: Option<Glob>,
    prompt: Option<String>,
}

impl When {
    fn holds(&self, question: &Question) -> bool {
        self.step.as_ref().is_none_or(|glob| question.is_at(glob))
            && (self.attempt.is_none() || self.attempt == question.attempt)
            && (self.index.is_none() || self.index == question.index)
            && (self.item.as_ref())
                .is_none_or(|glob| question.item.as_deref().is_some_and(|item| glob.matches(item)))
            && self.prompt.as_ref().is_none_or(|text| question.prompt.contains(text))
    }
}

/// A task to drop into an inbox.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Task {
    agent: String,
    name: String,
    text: String,
}

/// A pattern in which `*` and `?` match any characters, including path separators.
#[derive(Debug)]
struct Glob(glob::Pattern);

impl Glob {
    fn matches(&self, text: &str) -> bool {
        self.0.matches(text)
    }
}

impl<'de> Deserialize<'de> for Glob {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        glob::Pattern::new(&text)
            .map(Self)
            .map_err(|cause| de::Error::custom(format_args!("`{text}` is not a pattern: {cause}")))
    }
}

/// Keeps the order in which a map was written: files are created in the author's order.
fn ordered<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<(String, String)>, D::Error> {
    struct Pairs;
    impl<'de> Visitor<'de> for Pairs {
        type Value = Vec<(String, String)>;

        fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
            f.write_str("a map from path to text")
        }

        fn visit_map<A: de::MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
            let mut pairs = Vec::new();
            while let Some(pair) = map.next_entry()? {
                pairs.push(pair);
            }
            Ok(pairs)
        }
    }
    deserializer.deserialize_map(Pairs)
}

/// Deserializes one task or a list of them. By hand, because an untagged enum loses the position of
/// errors.
fn one_or_many<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Task>, D::Error> {
    struct Tasks;
    impl<'de> Visitor<'de> for Tasks {
        type Value = Vec<Task>;

        fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
            f.write_str("a task {agent, name, text} or a list of tasks")
        }

        fn visit_map<A: de::MapAccess<'de>>(self, map: A) -> Result<Self::Value, A::Error> {
            Task::deserialize(de::value::MapAccessDeserializer::new(map)).map(|task| vec![task])
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
            let mut tasks = Vec::new();
            while let Some(task) = seq.next_element()? {
                tasks.push(task);
            }
            Ok(tasks)
        }
    }
    deserializer.deserialize_any(Tasks)
}

/// Parses a script. Checks every rule, including those that this question does not reach.
fn parse(path: &Path, text: &str) -> Result<Vec<Rule>, Problem> {
    let settings = serde_saphyr::options! { strict_booleans: true, with_snippet: false };
    let rules: Vec<Spanned<Rule>> = serde_saphyr::from_str_with_options(text, settings)
        .map_err(|error| Problem::invalid(path, error.location(), plain(&error)))?;
    rules
        .into_iter()
        .map(|Spanned { value: rule, referenced: place, .. }| {
            let answers = [rule.answer.is_some(), rule.answer_file.is_some(), rule.echo];
            if answers.into_iter().filter(|given| *given).count() > 1 {
                let message = "a rule has only one of `answer`, `answer_file` and `echo`";
                return Err(Problem::invalid(path, Some(place), message.to_owned()));
            }
            if !(0..=255).contains(&rule.exit) {
                let message = format!("`exit: {}` is not between 0 and 255", rule.exit);
                return Err(Problem::invalid(path, Some(place), message));
            }
            Ok(rule)
        })
        .collect()
}

/// Returns the message of a YAML error without its position, which is printed on a separate line.
fn plain(error: &serde_saphyr::Error) -> String {
    let message = error.without_snippet().to_string();
    // The second is advice for programmers: authors cannot set options of the parser.
    let ends = [" at line ", ", set DuplicateKeyPolicy"].map(|mark| message.find(mark));
    let end = ends.into_iter().flatten().min().unwrap_or(message.len());
    message[..end].to_owned()
}

/// Executes a rule. Writes the answer last: a reader of the answer finds the files already there.
fn follow(
    rule: &Rule,
    question: &Question,
    root: &Path,
    out: &mut dyn Write,
    err: &mut dyn Write,
) -> Result<i32, Problem> {
    if let Some(text) = &rule.stderr {
        give(err, line(question.fill(text)).as_bytes())?;
    }
    std::thread::sleep(Duration::from_millis(rule.delay_ms));
    for (path, text) in &rule.write {
        place(root, &question.fill(path), question.fill(text).as_bytes())?;
    }
    for task in &rule.task {
        let (agent, name) = (question.fill(&task.agent), question.fill(&task.name));
        let name = name.strip_suffix(".task").unwrap_or(&name);
        if [&agent, name].iter().any(|part| part.is_empty() || part.contains('/')) {
            return Err(Problem::TaskName { agent, name: name.to_owned() });
        }
        let path = format!("inbox/{agent}/{name}.task");
        place(root, &path, question.fill(&task.text).as_bytes())?;
    }
    if rule.echo {
        give(out, question.raw)?;
    } else if let Some(text) = &rule.answer {
        give(out, question.fill(text).as_bytes())?;
    } else if let Some(path) = &rule.answer_file {
        let path = question.fill(path);
        let real = within(root, &path)?;
        let text = fs::read_to_string(real)
            .map_err(|cause| Problem::io("cannot read the answer", Path::new(&path), cause))?;
        give(out, question.fill(&text).as_bytes())?;
    }
    Ok(i32::try_from(rule.exit).unwrap_or(REFUSED))
}

fn give(stream: &mut dyn Write, bytes: &[u8]) -> Result<(), Problem> {
    stream.write_all(bytes).and_then(|()| stream.flush()).map_err(Problem::Stream)
}

/// Ends a text with a newline, as messages for users do.
fn line(mut text: String) -> String {
    if !text.ends_with('\n') {
        text.push('\n');
    }
    text
}

/// Writes a file atomically: under a private name that ends in `.tmp`, then renamed.
fn place(root: &Path, path: &str, bytes: &[u8]) -> Result<(), Problem> {
    let target = within(root, path)?;
    let failed = |cause| Problem::io("cannot write", Path::new(path), cause);
    if let Some(folder) = target.parent() {
        fs::create_dir_all(folder).map_err(failed)?;
    }
    let mut scratch = target.clone().into_os_string();
    scratch.push(format!(".{}.tmp", std::process::id()));
    // A file with this name was left by a dead process; it must not be written through.
    let _ = fs::remove_file(&scratch);
    let written = fs::File::create_new(&scratch)
        .and_then(|mut file| file.write_all(bytes).and_then(|()| file.sync_all()))
        .and_then(|()| crate::disk::rename(Path::new(&scratch), &target));
    written.map_err(|cause| {
        let _ = fs::remove_file(&scratch);
        failed(cause)
    })
}

/// Resolves a path of a script under the workspace, following symbolic links as long as they stay
/// inside. A name that does not exist yet cannot lead out, so only the existing part is resolved.
fn within(root: &Path, path: &str) -> Result<PathBuf, Problem> {
    let outside = || Problem::Outside { path: path.to_owned() };
    let parts: Vec<_> = Path::new(path).components().collect();
    let downward = |part: &Component| matches!(part, Component::Normal(_) | Component::CurDir);
    if !parts.iter().all(downward) || !parts.iter().any(|part| matches!(part, Component::Normal(_)))
    {
        return Err(outside());
    }
    let failed = |cause| Problem::io("cannot resolve", Path::new(path), cause);
    let base = fs::canonicalize(root).map_err(failed)?;
    let mut real = base.clone();
    for part in parts {
        real.push(part);
        match fs::canonicalize(&real) {
            Ok(found) if found.starts_with(&base) => real = found,
            Ok(_) => return Err(outside()),
            // A dangling link is not a missing file: writing through it would create its target at
            // any place.
            Err(cause) if cause.kind() == io::ErrorKind::NotFound && !real.is_symlink() => {}
            Err(cause) if cause.kind() == io::ErrorKind::NotFound => return Err(outside()),
            Err(cause) => return Err(failed(cause)),
        }
    }
    Ok(real)
}

/// The prompt, and its position in a run.
struct Question<'a> {
    raw: &'a [u8],
    prompt: String,
    step: Option<String>,
    attempt: Option<u64>,
    /// Index of the innermost loop around the step.
    index: Option<u64>,
    item: Option<String>,
    run_id: Option<String>,
}

impl<'a> Question<'a> {
    fn new(raw: &'a [u8], environment: &dyn Fn(&str) -> Option<String>) -> Self {
        let step = environment("ORCHESTRATE_STEP");
        // `Loop.3.Step`: every loop adds its name and a number before the steps inside it.
        let index = (step.as_deref())
            .and_then(|path| path.rsplit('.').skip(1).find_map(|part| part.parse().ok()));
        Self {
            raw,
            prompt: String::from_utf8_lossy(raw).into_owned(),
            index,
            step,
            attempt: environment("ORCHESTRATE_ATTEMPT").and_then(|text| text.parse().ok()),
            item: environment("ORCHESTRATE_ITEM"),
            run_id: environment("ORCHESTRATE_RUN_ID"),
        }
    }

    /// Returns true if the step's path, or any tail of it that starts after a dot, matches.
    fn is_at(&self, glob: &Glob) -> bool {
        let Some(path) = self.step.as_deref() else {
            return false;
        };
        let tails = path.match_indices('.').map(|(dot, _)| &path[dot + 1..]);
        std::iter::once(path).chain(tails).any(|tail| glob.matches(tail))
    }

    fn value(&self, name: &str) -> Option<String> {
        match name {
            "prompt" => Some(self.prompt.clone()),
            "step" => self.step.clone(),
            "attempt" => self.attempt.map(|number| number.to_string()),
            "index" => self.index.map(|number| number.to_string()),
            "item" => self.item.clone(),
            "run_id" => self.run_id.clone(),
            _ => None,
        }
    }

    /// Replaces placeholders in one pass: a value that is inserted is not scanned again. A
    /// placeholder without a value stays unchanged, because answers may contain templates of other
    /// tools.
    fn fill(&self, text: &str) -> String {
        let mut filled = String::with_capacity(text.len());
        let mut rest = text;
        while let Some(start) = rest.find("{{") {
            let (before, hole) = rest.split_at(start);
            filled.push_str(before);
            let named = hole[2..].split_once("}}");
            match named.and_then(|(name, after)| Some((self.value(name.trim())?, after))) {
                Some((value, after)) => {
                    filled.push_str(&value);
                    rest = after;
                }
                None => {
                    // Only one brace: in `{{{index}}}`, the placeholder starts at the second one.
                    filled.push('{');
                    rest = &hole[1..];
                }
            }
        }
        filled.push_str(rest);
        filled
    }
}

impl fmt::Display for Question<'_> {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let step = self.step.as_deref().unwrap_or("(none)");
        let attempt = self.attempt.map_or_else(|| "(none)".to_owned(), |n| n.to_string());
        let first = self.prompt.lines().next().unwrap_or_default();
        write!(f, "step `{step}`, attempt {attempt}, prompt begins `{first}`")
    }
}

/// Reason why a script was not followed.
#[derive(Debug, thiserror::Error)]
enum Problem {
    #[error("{message}\n --> {place}")]
    Invalid { message: String, place: String },
    #[error("no rule of `{}` matches\n  asked: {asked}", .script.display())]
    Unmatched { script: PathBuf, asked: String },
    #[error("`{path}` is not a path inside the workspace")]
    Outside { path: String },
    #[error("a task needs plain names, but has agent `{agent}` and name `{name}`")]
    TaskName { agent: String, name: String },
    #[error("{what} `{}`: {cause}", .path.display())]
    Io { what: &'static str, path: PathBuf, cause: io::Error },
    #[error("cannot write the answer: {0}")]
    Stream(io::Error),
}

impl Problem {
    fn io(what: &'static str, path: &Path, cause: io::Error) -> Self {
        Self::Io { what, path: path.to_path_buf(), cause }
    }

    fn invalid(path: &Path, place: Option<serde_saphyr::Location>, message: String) -> Self {
        let file = path.display();
        let place = match place {
            Some(at) => format!("{file}:{}:{}", at.line(), at.column()),
            None => file.to_string(),
        };
        Self::Invalid { message, place }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A workspace with a script `s.yaml`, and a question to it.
    struct Bench {
        root: tempfile::TempDir,
        options: Options,
        environment: Vec<(&'static str, &'static str)>,
    }

    impl Bench {
        fn new(script: &str) -> Self {
            let root = tempfile::tempdir().unwrap();
            fs::write(root.path().join("s.yaml"), script).unwrap();
            let options = Options { script: Some("s.yaml".into()), answer: None };
            Self { root, options, environment: Vec::new() }
        }

        fn at(mut self, step: &'static str, attempt: &'static str) -> Self {
            self.environment = vec![
                ("ORCHESTRATE_STEP", step),
                ("ORCHESTRATE_ATTEMPT", attempt),
                ("ORCHESTRATE_RUN_ID", "20250115T143022Z-a3f8c2"),
                ("ORCHESTRATE_ITEM", "inbox/engineer/a.task"),
            ];
            self
        }

        /// Exit code, stdout and stderr.
        fn ask(&self, prompt: &str) -> (i32, String, String) {
            let (mut out, mut err) = (Vec::new(), Vec::new());
            let environment = |name: &str| {
                let found = self.environment.iter().find(|(key, _)| *key == name);
                found.map(|(_, value)| (*value).to_owned())
            };
            let code = answer(
                &self.options,
                prompt.as_bytes(),
                &environment,
                self.root.path(),
                &mut out,
                &mut err,
            );
            (code, String::from_utf8(out).unwrap(), String::from_utf8(err).unwrap())
        }

        fn read(&self, path: &str) -> String {
            fs::read_to_string(self.root.path().join(path)).unwrap()
        }
    }

    #[test]
    fn without_a_script_the_prompt_is_echoed_byte_for_byte() {
        for script in [None, Some(PathBuf::new())] {
            let options = Options { script, answer: None };
            let (mut out, mut err) = (Vec::new(), Vec::new());
            let code = answer(&options, b"a\xff\n", &|_| None, Path::new("."), &mut out, &mut err);
            assert_eq!((code, out.as_slice(), err.as_slice()), (0, &b"a\xff\n"[..], &b""[..]));
        }
    }

    #[test]
    fn an_empty_script_on_the_command_line_means_none() {
        use clap::{Args, FromArgMatches};
        let command = Options::augment_args(clap::Command::new("offline"));
        let matches = command.try_get_matches_from(["offline", "--script", ""]).unwrap();
        let options = Options::from_arg_matches(&matches).unwrap();
        assert_eq!(options.script, Some(PathBuf::new()));
    }

    #[test]
    fn the_first_rule_that_matches_answers() {
        let script = "
- when: {step: Review, attempt: 1}
  answer: first
- when: {step: 'Re*', prompt: needle}
  answer: second
- when: {step: 'Loop.*.Build', index: 3}
  answer: third
- when: {item: '*/a.task', step: Other}
  answer: fourth
- answer: last
";
        let told = |step, attempt, prompt| Bench::new(script).at(step, attempt).ask(prompt).1;
        assert_eq!(told("Review", "1", ""), "first");
        assert_eq!(told("Loop.0.Review", "1", ""), "first");
        assert_eq!(told("Review", "2", "a needle b"), "second");
        assert_eq!(told("Review", "2", "hay"), "last");
        assert_eq!(told("Loop.3.Build", "9", ""), "third");
        assert_eq!(told("Loop.2.Build", "9", ""), "last");
        assert_eq!(told("Other", "1", ""), "fourth");
        assert_eq!(Bench::new(script).ask("").1, "last");
    }

    #[test]
    fn no_match_exits_2_and_says_what_was_asked() {
        let bench = Bench::new("- when: {step: Build}\n").at("Loop.1.Test", "2");
        let (code, out, err) = bench.ask("Check this\nand that");
        assert_eq!((code, out.as_str()), (2, ""));
        assert_eq!(
            err,
            "error: no rule of `s.yaml` matches\n  asked: step `Loop.1.Test`, attempt 2, prompt \
             begins `Check this`\n"
        );
    }

    #[test]
    fn a_fixed_answer_serves_where_no_rule_matches() {
        let mut bench = Bench::new("- when: {step: Build}\n  answer: built").at("Test", "1");
        bench.options.answer = Some("{{step}}: ok".to_owned());
        assert_eq!(bench.ask("").1, "Test: ok");
        bench.options.script = None;
        assert_eq!(bench.ask("").1, "Test: ok");
        bench.options.script = Some("s.yaml".into());
        assert_eq!(bench.at("Build", "1").ask("").1, "built");
    }

    #[test]
    fn placeholders_are_replaced_in_one_pass() {
        let script =
            "- answer: '{{prompt}}|{{ step }}|{{attempt}}|{{index}}|{{run_id}}|{{other}}|{{'\n";
        let bench = Bench::new(script).at("L.4.Inner.7.S", "2");
        let told = bench.ask("say {{step}}").1;
        assert_eq!(told, "say {{step}}|L.4.Inner.7.S|2|7|20250115T143022Z-a3f8c2|{{other}}|{{");
        let bench = Bench::new("- answer: '{{{index}}} {{index'\n").at("L.4.S", "1");
        assert_eq!(bench.ask("").1, "{4} {{index");
        let bench = Bench::new("- answer: 'no {{index}}'\n").at("S", "1");
        assert_eq!(bench.ask("").1, "no {{index}}");
    }

    #[test]
    fn a_rule_writes_files_drops_tasks_and_fails_as_told() {
        let bench = Bench::new(
            "
- write:
    'src/impl_{{index}}.py': 'print({{index}})'
    deep/er/note.md: |
      {{prompt}}
  task:
    - {agent: qa, name: 'review_{{index}}', text: 'Review {{step}}'}
    - {agent: qa, name: second.task, text: two}
  stderr: busy
  answer: done
  exit: 3
",
        )
        .at("L.5.S", "1");
        assert_eq!(bench.ask("hello"), (3, "done".to_owned(), "busy\n".to_owned()));
        assert_eq!(bench.read("src/impl_5.py"), "print(5)");
        assert_eq!(bench.read("deep/er/note.md"), "hello\n");
        assert_eq!(bench.read("inbox/qa/review_5.task"), "Review L.5.S");
        assert_eq!(bench.read("inbox/qa/second.task"), "two");
        let left = fs::read_dir(bench.root.path().join("inbox/qa")).unwrap().count();
        assert_eq!(left, 2, "no scratch file stays behind");
    }

    #[test]
    fn one_task_needs_no_list() {
        let bench = Bench::new("- task: {agent: qa, name: one, text: t}\n");
        assert_eq!(bench.ask(""), (0, String::new(), String::new()));
        assert_eq!(bench.read("inbox/qa/one.task"), "t");
        let (code, _, err) = Bench::new("- task: {agent: ../qa, name: one, text: t}\n").ask("");
        assert_eq!(code, 2);
        assert!(err.contains("plain names"), "{err}");
    }

    #[test]
    fn an_answer_can_be_a_file_or_the_prompt() {
        let bench = Bench::new("- answer_file: 'answers/{{step}}.md'\n").at("S", "1");
        fs::create_dir(bench.root.path().join("answers")).unwrap();
        fs::write(bench.root.path().join("answers/S.md"), "you said {{prompt}}").unwrap();
        assert_eq!(bench.ask("hi").1, "you said hi");
        let bench = Bench::new("- {echo: true, exit: 1}\n");
        assert_eq!(bench.ask("hi"), (1, "hi".to_owned(), String::new()));
        let (code, _, err) = Bench::new("- answer_file: none.md\n").ask("");
        assert_eq!(code, 2);
        assert!(err.starts_with("error: cannot read the answer `none.md`: "), "{err}");
    }

    #[test]
    fn nothing_is_written_or_read_outside_the_workspace() {
        let elsewhere = tempfile::tempdir().unwrap();
        for path in ["/etc/x", "../x", "a/../../x", "link/x", "dangling", "", "."] {
            for script in
                [format!("- write: {{'{path}': text}}\n"), format!("- answer_file: '{path}'\n")]
            {
                let bench = Bench::new(&script);
                let root = bench.root.path();
                std::os::unix::fs::symlink(elsewhere.path(), root.join("link")).unwrap();
                let missing = elsewhere.path().join("missing");
                std::os::unix::fs::symlink(missing, root.join("dangling")).unwrap();
                let (code, out, err) = bench.ask("");
                assert_eq!((code, out.as_str()), (2, ""), "{path}");
                assert_eq!(err, format!("error: `{path}` is not a path inside the workspace\n"));
            }
        }
        assert_eq!(fs::read_dir(elsewhere.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_link_that_stays_inside_is_followed() {
        let bench = Bench::new("- write: {link/x: text}\n");
        fs::create_dir(bench.root.path().join("real")).unwrap();
        std::os::unix::fs::symlink("real", bench.root.path().join("link")).unwrap();
        assert_eq!(bench.ask("").0, 0);
        assert_eq!(bench.read("real/x"), "text");
    }

    #[test]
    fn mistakes_in_a_script_name_their_place() {
        for (script, place, message) in [
            ("- answer: a\n  anwser: b\n", "s.yaml:2:3", "unknown field"),
            ("- when: {stepp: b}\n", "s.yaml:1:10", "unknown field"),
            ("- answer: a\n- answer: b\n  echo: true\n", "s.yaml:2:3", "only one of"),
            ("- when: {step: '[a'}\n", "s.yaml:1:16", "not a pattern"),
            ("- exit: 256\n", "s.yaml:1:3", "`exit: 256` is not between"),
            ("- exit: 1\n  exit: 2\n", "s.yaml:2:3", "duplicate mapping key: exit\n"),
            ("- task: {agent: qa, name: x}\n", "s.yaml:1", "missing field"),
            ("answer: a\n", "s.yaml:1:1", ""),
        ] {
            let (code, out, err) = Bench::new(script).ask("");
            assert_eq!((code, out.as_str()), (2, ""), "{script}");
            assert!(err.contains(&format!("\n --> {place}")), "{script}: {err}");
            assert!(err.contains(message), "{script}: {err}");
        }
        let mut bench = Bench::new("");
        bench.options.script = Some("gone.yaml".into());
        let (code, _, err) = bench.ask("");
        assert_eq!(code, 2);
        assert!(err.starts_with("error: cannot read the script `gone.yaml`: "), "{err}");
    }

    #[test]
    fn every_script_of_the_examples_is_valid() {
        let workflows = Path::new(env!("CARGO_MANIFEST_DIR")).join("workflows");
        let mut scripts = vec![workflows.join("demo/offline.yaml")];
        for entry in fs::read_dir(workflows.join("offline")).unwrap() {
            scripts.push(entry.unwrap().path());
        }
        for script in scripts {
            let rules = parse(&script, &fs::read_to_string(&script).unwrap());
            assert!(!rules.unwrap().is_empty(), "{}", script.display());
        }
    }
}
