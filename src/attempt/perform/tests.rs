//! Work that is done: what comes of it, in a run's directory that exists for the test only.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use serde_json::json;

use super::*;
use crate::attempt::work::{AnswerRules, ScriptWork, Source};
use crate::base::time::Clock;
use crate::workflow::plan::{Runtime, Until};
use crate::workspace::Workspace;

/// What stands for the run's directory.
const RUN_ROOT: &str = "@orchestrate:run-root@";

/// A workspace with a run in it, and a place for programs that shadow the machine's.
struct Trial {
    dir: tempfile::TempDir,
    site: Site,
}

fn trial() -> Trial {
    exec::become_subreaper().unwrap();
    let dir = tempfile::tempdir().unwrap();
    for part in ["w/run/logs", "bin"] {
        fs::create_dir_all(dir.path().join(part)).unwrap();
    }
    let workspace = dir.path().join("w").canonicalize().unwrap();
    let site = Site {
        logs: workspace.join("run/logs"),
        workspace: Workspace::open(&workspace).unwrap(),
        about: Vec::new(),
        environment: Default::default(),
        hidden: Vec::new(),
        debug: false,
        live: false,
        grace: std::time::Duration::from_millis(200),
        silences: Default::default(),
        input_bytes: 1 << 20,
        mask: exec::Mask::new(["s3cret".to_owned()]),
        parking: None,
        program: "orchestrate".into(),
        turns: Default::default(),
        sandboxes: Default::default(),
    };
    Trial { dir, site }
}

fn bash(script: &str) -> Work {
    let argv = ["bash", "-c", script].map(str::to_owned).to_vec();
    let (capture, root) = (CaptureMode::Whole, Some(RUN_ROOT.to_owned()));
    Work {
        capture,
        root,
        timeout_ms: Some(60_000),
        ..Work::new(StepPath::top("node"), Attempt::FIRST, argv)
    }
}

/// An agent that says what a shell script prints.
fn agent(script: &str, rules: AnswerRules) -> Work {
    Work { asks: true, answer: Some(rules), ..bash(script) }
}

fn says(answer: &str, rules: AnswerRules) -> Work {
    agent(&format!("cat <<'END'\n{answer}\nEND"), rules)
}

fn script(runtime: Runtime, deps: &[&str], source: Source) -> Work {
    let deps = deps.iter().map(|dep| dep.to_string()).collect();
    Work {
        script: Some(ScriptWork { runtime, deps, source, from: None }),
        argv: Vec::new(),
        ..bash("")
    }
}

impl Trial {
    fn run(&self, work: &Work) -> Record {
        let mark = format!("{}#1", self.dir.path().display());
        run(&self.site, work, &mark, &Stop::new().unwrap()).unwrap().record
    }

    fn root(&self) -> PathBuf {
        self.site.root()
    }

    fn read(&self, path: &str) -> String {
        fs::read_to_string(self.root().join(path)).unwrap()
    }

    /// A program that the children find before the machine's.
    fn program(&mut self, name: &str, text: &str) {
        let bin = self.dir.path().join("bin");
        let file = bin.join(name);
        fs::write(&file, text).unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).unwrap();
        self.path(&format!("{}:/usr/bin:/bin", bin.display()));
    }

    fn path(&mut self, path: &str) {
        self.site.about = vec![("PATH".into(), path.into())];
    }
}

fn message(record: &Record) -> &str {
    record.error.as_ref().map_or("", |error| &error.message)
}

fn class(record: &Record) -> Option<FaultClass> {
    record.error.as_ref().and_then(|error| error.class)
}

#[test]
fn short_output_is_in_the_record_and_long_output_in_a_file() {
    let trial = trial();
    let record = trial.run(&bash("echo; echo a s3cret; echo"));
    assert_eq!(record.output.as_deref(), Some("\na ***\n"));
    assert_eq!((record.truncated, record.whole), (Some(false), None));
    assert!(!trial.root().join("outputs").exists());

    let long = trial.run(&bash("printf 's3cret '; head -c 100000 /dev/zero | tr '\\0' x; echo"));
    let whole = long.whole.unwrap();
    assert_eq!((whole.path.as_str(), whole.bytes), ("outputs/node.1.txt", 100_004));
    let text = trial.read(&whole.path);
    assert_eq!(whole.sha256, crate::base::digest::sha256(text.as_bytes()));
    assert!(text.starts_with("*** xx") && text.ends_with("xx"));
    assert_eq!(long.output.unwrap(), text[..crate::exec::whole::WHOLE_BYTES]);
    assert_eq!(long.truncated, Some(true));
    assert_eq!(trial.read("logs/node.stdout"), format!("{text}\n"));
}

#[test]
fn the_runs_directory_is_put_where_it_is_meant() {
    let trial = trial();
    let root = trial.root();
    let mut work = bash(&format!("echo {RUN_ROOT}/a \"$B\"; cat; ls -d {RUN_ROOT}/artifacts"));
    work.env = vec![("B".into(), format!("{RUN_ROOT}/b"))];
    work.stdin = Some(Input::of(format!("{RUN_ROOT}/c\n").into_bytes()));
    let shown = root.display();
    let wanted = format!("{shown}/a {shown}/b\n{shown}/c\n{shown}/artifacts");
    assert_eq!(trial.run(&work).output.unwrap(), wanted);

    let mut work = bash("od -An -c | tr -d ' \\n'");
    work.stdin = Some(Input::of([b"\xff\x04", RUN_ROOT.as_bytes(), b"\x00\xfe"].concat()));
    assert!(matches!(work.stdin, Some(Input::Hex(_))));
    let plain: String = shown.to_string().split_whitespace().collect();
    assert_eq!(trial.run(&work).output.unwrap(), format!("377004{plain}\\0376"));
}

#[test]
fn what_only_looks_like_a_place_is_left_alone() {
    let trial = trial();
    let work = Work { root: Some("@another@".into()), ..bash(&format!("echo {RUN_ROOT}")) };
    assert_eq!(trial.run(&work).output.unwrap(), RUN_ROOT);
    assert!(!trial.root().join("artifacts").exists());
    let without = bash("echo");
    assert!(matches!(place::place(&trial.site, &without), Ok(Cow::Borrowed(_))));
}

#[test]
fn a_script_in_a_file_knows_the_runs_directory_too() {
    let trial = trial();
    fs::create_dir(trial.root().join("values")).unwrap();
    let left = trial.root().join("values/node.1.sh");
    let mut work = bash("");
    work.argv = vec!["bash".into(), format!("{RUN_ROOT}/values/node.1.sh")];
    fs::write(&left, format!("echo {RUN_ROOT}/artifacts; : > {RUN_ROOT}/artifacts/x")).unwrap();
    let wanted = format!("{}/artifacts", trial.root().display());
    for _ in 0..2 {
        assert_eq!(trial.run(&work).output.as_deref(), Some(wanted.as_str()));
    }
    assert!(trial.root().join("artifacts/x").exists());
    fs::write(&left, "echo plain").unwrap();
    assert_eq!(trial.run(&work).output.as_deref(), Some("plain"));
    fs::remove_file(&left).unwrap();
    assert_eq!(trial.run(&work).exit_code, Some(1));
}

#[test]
fn a_failure_of_a_node_says_what_another_try_is_worth() {
    use FaultClass::{Fatal, Transient, Unknown};
    let trial = trial();
    for (work, code, wanted) in [
        (bash("exit 3"), 3, Unknown),
        (bash("echo 'status: 503' >&2; exit 3"), 3, Transient),
        (bash("echo 'rate limit'; exit 3"), 3, Unknown),
        (agent("echo 'rate limit'; exit 3", AnswerRules::default()), 3, Transient),
        (bash("echo Unauthorized >&2; exit 1"), 1, Fatal),
        (bash("no-such-program-at-all"), 127, Fatal),
        (Work { argv: vec!["no-such-program".into()], ..bash("") }, 127, Fatal),
        (Work { argv: vec!["/".into()], ..bash("") }, 126, Fatal),
        (Work { secrets: vec!["NO_SUCH_SECRET".into()], ..bash("") }, 2, Fatal),
        (Work { timeout_ms: Some(50), ..bash("echo Unauthorized; sleep 60") }, 124, Transient),
        (Work { idle_timeout_ms: Some(50), ..bash("sleep 60") }, 124, Transient),
    ] {
        let record = trial.run(&work);
        let got = (record.exit_code, class(&record));
        assert_eq!(got, (Some(code), Some(wanted)), "{:?}: {}", work.argv, message(&record));
    }
    let failed = trial.run(&bash("echo oh >&2; exit 9"));
    assert_eq!(message(&failed), "Command failed with exit code 9");
    assert_eq!(failed.error.unwrap().stderr_tail, ["oh"]);
    let plain = Work { capture: CaptureMode::Text, ..bash("exit 3") };
    assert_eq!(class(&trial.run(&plain)), None, "the exit code says it");
}

#[test]
fn silence_fails_a_node_whatever_it_said_before() {
    let trial = trial();
    let record = trial.run(&Work { idle_timeout_ms: Some(1000), ..bash("echo part; sleep 60") });
    assert_eq!(record.status, StepStatus::Failed);
    assert_eq!(message(&record), "Command printed nothing for 1 s");
    let error = record.error.unwrap();
    assert_eq!((error.exit_code, error.stdout_tail), (124, vec!["part".to_owned()]));
    assert_eq!(trial.read("logs/node.stdout"), "part\n");
    assert_eq!(error.context["idle_timeout_sec"], 1.0);
}

#[test]
fn an_empty_answer_and_a_notice_are_failures_of_agents_only() {
    let trial = trial();
    for empty in ["", "printf ' \\n\\n\\t'"] {
        let record = trial.run(&agent(empty, AnswerRules::default()));
        assert_eq!(record.status, StepStatus::Failed);
        assert!(message(&record).ends_with("could not answer for now: its answer is empty"));
        assert_eq!(class(&record), Some(FaultClass::Transient), "another attempt may do better");
        assert_eq!(trial.run(&bash(empty)).status, StepStatus::Completed);
    }
    let record = trial.run(&says("Claude AI usage limit reached", Default::default()));
    assert!(message(&record).contains("the agent's answer is only a limit notice: Claude AI"));
    assert_eq!((record.exit_code, class(&record)), (Some(1), Some(FaultClass::Fatal)));
    let well = trial.run(&says("All is well.", AnswerRules::default()));
    assert_eq!((well.status, well.until_met), (StepStatus::Completed, None));
}

#[test]
fn the_sign_that_ends_a_loop_is_seen_and_taken_out() {
    let trial = trial();
    let rules = |strict| AnswerRules {
        until: Some(Until { signal: "DONE".into(), strict }),
        format: None,
        ..AnswerRules::default()
    };
    for (answer, strict, met, output) in [
        ("All well.\n<promise>DONE</promise>", false, true, "All well."),
        ("not DONE yet", false, true, "not DONE yet"),
        ("not DONE yet", true, false, "not DONE yet"),
        ("go on", false, false, "go on"),
        ("<promise>DONE</promise>", true, true, "<promise>DONE</promise>"),
    ] {
        let record = trial.run(&says(answer, rules(strict)));
        assert_eq!((record.until_met, record.output.as_deref()), (Some(met), Some(output)));
    }
}

#[test]
fn a_long_answer_is_cleaned_as_a_whole_and_its_file_with_it() {
    let trial = trial();
    let until = Some(Until { signal: "DONE".into(), strict: false });
    let rules = AnswerRules { until, format: None, ..AnswerRules::default() };
    let long = "head -c 50000 /dev/zero | tr '\\0' x; echo '<promise>DONE</promise>'";
    let record = trial.run(&agent(long, rules.clone()));
    let whole = record.whole.unwrap();
    assert_eq!((record.until_met, whole.bytes), (Some(true), 50_000));
    let text = trial.read(&whole.path);
    assert_eq!((text.len(), whole.sha256), (50_000, crate::base::digest::sha256(text.as_bytes())));

    // What is short once it is cleaned needs no file.
    let padded = "echo ok; head -c 50000 /dev/zero | tr '\\0' ' '; echo '<x>done</x>'";
    let record = trial.run(&Work { attempt: Attempt::new(2), ..agent(padded, rules.clone()) });
    assert_eq!((record.output.as_deref(), record.whole), (Some("ok"), None));
    assert_eq!(record.truncated, Some(false));
    assert!(!trial.root().join("outputs/node.2.txt").exists());

    // Nobody means this; the sign is looked for at its end, and it stays as it is.
    let endless = "head -c 9000000 /dev/zero | tr '\\0' x; echo '<x>DONE</x>'";
    let record = trial.run(&agent(endless, rules));
    assert_eq!((record.until_met, record.whole.unwrap().bytes), (Some(true), 9_000_011));
}

#[test]
fn an_answer_in_a_form_becomes_the_value_that_it_is() {
    let trial = trial();
    let format = json!({
        "type": "object",
        "required": ["verdict"],
        "properties": { "verdict": { "enum": ["good", "bad"] }, "n": { "type": "integer" } },
    });
    let rules = AnswerRules { until: None, format: Some(format), ..AnswerRules::default() };
    let good =
        "Here it is:\n```json\n{ \"verdict\": \"good\",\n  \"a\": \"s3cret\", \"n\": 1 }\n```";
    let record = trial.run(&says(good, rules.clone()));
    assert_eq!(record.output.as_deref(), Some(r#"{"verdict":"good","a":"***","n":1}"#));
    assert_eq!(record.json, Some(json!({ "verdict": "good", "a": "***", "n": 1 })));
    let log = trial.read("logs/node.stdout");
    assert_eq!(log, format!("{}\n", good.replace("s3cret", "***")), "as it came");

    let bad = "{ \"verdict\": \"so so\", \"n\": \"x\" }";
    let record = trial.run(&says(bad, rules.clone()));
    assert!(message(&record).starts_with("the answer does not fit `output_format`: /"));
    assert_eq!((record.output.as_deref(), record.json), (Some(bad), None));
    let error = record.error.unwrap();
    assert!(error.ask_again && error.class == Some(FaultClass::Unknown));
    let problems: Vec<String> =
        serde_json::from_value(error.context["output_format"].clone()).unwrap();
    assert_eq!(problems.len(), 2, "{problems:?}");
    assert!(problems.iter().any(|problem| problem.starts_with("/n: ")), "{problems:?}");

    let record = trial.run(&says("no idea", rules));
    assert!(message(&record).contains("the answer has no JSON object in it"));
    assert!(record.error.unwrap().ask_again);

    let broken =
        AnswerRules { until: None, format: Some(json!({ "type": 7 })), ..AnswerRules::default() };
    let record = trial.run(&says("{\"a\": 1}", broken));
    assert_eq!(
        (record.status, record.output.unwrap()),
        (StepStatus::Completed, "{\"a\":1}".into())
    );
    assert!(record.warning.unwrap().starts_with("`output_format` is no JSON Schema"));
}

#[test]
fn an_agent_that_fails_is_not_asked_about_its_answer() {
    let trial = trial();
    let rules = AnswerRules {
        until: None,
        format: Some(json!({ "type": "object" })),
        ..AnswerRules::default()
    };
    let record = trial.run(&agent("echo '{}'; exit 4", rules));
    assert_eq!((record.exit_code, record.json.is_none()), (Some(4), true));
    assert!(!record.error.unwrap().ask_again);
}

#[test]
fn nothing_of_a_node_past_its_time_is_left() {
    let trial = trial();
    let pids = trial.root().join("pids");
    let hard = "trap '' TERM HUP; echo $$ >> $1; while :; do sleep 1; done";
    let each = format!("bash -c '{}' bash {} ", hard.replace('\'', "'\\''"), pids.display());
    // A child, a grandchild, and one in a session of its own that nobody waits for.
    let work = format!("{each} & ({each} &) ; (setsid {each} &) ; wait");
    let kept = trial.site.logs.join("node.stdout");
    let record = trial.run(&Work { timeout_ms: Some(4000), ..bash(&work) });
    assert_eq!((record.exit_code, kept.exists()), (Some(124), false));
    let pids = fs::read_to_string(pids).unwrap();
    assert_eq!(pids.lines().count(), 3, "they had begun");
    for pid in pids.lines() {
        assert!(!Path::new("/proc").join(pid).exists(), "{pid} is gone");
    }
}

/// Says what it was called with, and where.
const ECHO: &str = "#!/bin/sh\nprintf '%s\\n' \"$(basename $0)\" \"$@\"\n";

#[test]
fn short_code_is_an_argument_and_long_code_a_file() {
    let mut trial = trial();
    trial.program("bun", ECHO);
    trial.program("uv", ECHO);
    let root = trial.root();
    let text = |code: &str| Source::Text(code.to_owned());
    let code = format!("say('{RUN_ROOT}')");
    let placed = format!("say('{}')", root.display());
    let output = trial.run(&script(Runtime::Bun, &[], text(&code))).output.unwrap();
    assert_eq!(output, format!("bun\n--no-env-file\n-e\n{placed}"));
    let output = trial.run(&script(Runtime::Uv, &[], text(&code))).output.unwrap();
    assert_eq!(output, format!("uv\nrun\n--no-project\npython\n-c\n{placed}"));

    let long = format!("{}{code}", " ".repeat(100_000));
    let output = trial.run(&script(Runtime::Bun, &[], text(&long))).output.unwrap();
    let file = output.strip_prefix("bun\n--no-env-file\nrun\n").unwrap();
    assert!(file.ends_with("/script.ts") && Path::new(file).starts_with(root.join("values")));
    assert_eq!(fs::read_to_string(file).unwrap().trim_start(), placed);
    let output = trial.run(&script(Runtime::Uv, &[], text(&long))).output.unwrap();
    assert!(output.starts_with("uv\nrun\n--no-project\n/") && output.ends_with("/script.py"));
}

#[test]
fn the_name_of_a_file_says_what_runs_it() {
    let mut trial = trial();
    trial.program("bun", ECHO);
    trial.program("uv", ECHO);
    fs::create_dir(trial.root().join("parts")).unwrap();
    fs::write(trial.root().join("parts/a.py"), "x").unwrap();
    let file = trial.root().join("parts/a.py");
    let work = script(Runtime::Bun, &[], Source::File("parts/a.py".into()));
    let wanted = format!("uv\nrun\n--no-project\n{}", file.display());
    assert_eq!(trial.run(&work).output.unwrap(), wanted);
}

#[test]
fn a_runtime_that_is_not_there_is_told_with_its_cure() {
    let mut trial = trial();
    trial.path("/nowhere");
    for (runtime, name) in [(Runtime::Bun, "bun"), (Runtime::Uv, "uv")] {
        let record = trial.run(&script(runtime, &["x"], Source::Text("1".into())));
        assert_eq!((record.exit_code, class(&record)), (Some(127), Some(FaultClass::Fatal)));
        let told = message(&record);
        assert!(told.starts_with(&format!("`{name}` was not found in PATH")), "{told}");
        assert!(told.contains("install"), "{told}");
    }
}

/// Installs what it is told to as empty packages, and runs a script by showing what is beside it.
const BUN: &str = "#!/bin/sh
echo \"bun $*\" >> \"$CALLS\"
case $1 in
add) shift
     for dep; do
       case $dep in bad*) echo \"error: s3cret $dep - 404\"; exit 1;; esac
       mkdir -p node_modules/$dep
     done
     echo installed;;
*) pwd; ls \"$(dirname $3)/node_modules/\"; basename $3;;
esac
";

#[test]
fn packages_are_installed_once_and_lie_beside_the_script() {
    let mut trial = trial();
    trial.program("bun", BUN);
    let calls = trial.dir.path().join("calls");
    trial.site.about.push(("CALLS".into(), calls.clone().into()));
    let cwd = trial.site.cwd().display().to_string();
    let work = script(Runtime::Bun, &["two", "one"], Source::Text("1".into()));
    let record = trial.run(&work);
    assert_eq!(record.output.as_deref(), Some(format!("{cwd}\none\ntwo\nscript.ts").as_str()));
    assert_eq!(trial.read("logs/node.install.log"), "installed\n");

    let other = script(Runtime::Bun, &["one", "two"], Source::Text("2".into()));
    assert_eq!(trial.run(&other).status, StepStatus::Completed);
    fs::create_dir(trial.root().join("parts")).unwrap();
    fs::write(trial.root().join("parts/named.js"), "3").unwrap();
    let named = script(Runtime::Bun, &["one", "two"], Source::File("parts/named.js".into()));
    assert!(trial.run(&named).output.unwrap().ends_with("one\ntwo\nnamed.js"));
    let calls = fs::read_to_string(calls).unwrap();
    assert_eq!(calls.matches("bun add").count(), 1, "{calls}");
    assert!(calls.starts_with("bun add two one\n"), "{calls}");

    let cache = trial.site.cwd().join(".orchestrate/cache/bun");
    assert_eq!(fs::read_dir(cache).unwrap().count(), 1, "nothing else is left there");
}

#[test]
fn packages_that_cannot_be_had_fail_the_node_and_leave_nothing() {
    let mut trial = trial();
    trial.program("bun", BUN);
    trial.site.about.push(("CALLS".into(), "/dev/null".into()));
    let record = trial.run(&script(Runtime::Bun, &["good", "bad"], Source::Text("1".into())));
    let told = message(&record);
    assert!(told.ends_with("`bun add good bad` failed with exit code 1"), "{told}");
    assert_eq!(record.error.as_ref().unwrap().stderr_tail, ["error: *** bad - 404"]);
    assert_eq!(trial.read("logs/node.install.log"), "error: *** bad - 404\n");
    let cache = trial.site.cwd().join(".orchestrate/cache/bun");
    assert_eq!(fs::read_dir(cache).unwrap().count(), 0);
    let option = trial.run(&script(Runtime::Bun, &["--global"], Source::Text("1".into())));
    assert_eq!(message(&option), "`--global` in `deps` is no name of a package");
}

#[test]
fn those_who_install_the_same_at_once_do_not_meet() {
    let mut trial = trial();
    trial.program("bun", BUN);
    trial.site.about.push(("CALLS".into(), "/dev/null".into()));
    std::thread::scope(|scope| {
        for number in 0..4 {
            let trial = &trial;
            scope.spawn(move || {
                let work = script(Runtime::Bun, &["one"], Source::Text(number.to_string()));
                let step = StepPath::top(&format!("node{number}"));
                let record = trial.run(&Work { step, ..work });
                assert!(record.output.unwrap_or_default().ends_with("\none\nscript.ts"));
            });
        }
    });
    let cache = trial.site.cwd().join(".orchestrate/cache/bun");
    assert_eq!(fs::read_dir(cache).unwrap().count(), 1);
}

#[test]
fn what_uv_needs_is_fetched_before_the_script_has_its_time() {
    let mut trial = trial();
    trial.program("uv", "#!/bin/sh\necho \"$*\" >> \"$CALLS\"\necho said\n");
    let calls = trial.dir.path().join("calls");
    trial.site.about.push(("CALLS".into(), calls.clone().into()));
    let record = trial.run(&script(Runtime::Uv, &["rich>=1"], Source::Text("print(1)".into())));
    assert_eq!(record.output.as_deref(), Some("said"));
    let wanted = "run --no-project --with=rich>=1 python -c \n\
                  run --no-project --with=rich>=1 python -c print(1)\n";
    assert_eq!(fs::read_to_string(calls).unwrap(), wanted);
}

/// An agent whose output is a transcript, which the script names.
fn heard(kind: Kind, script: &str) -> Work {
    let transcripts = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/transcripts");
    let script = format!("play() {{ cat {transcripts}/$1.jsonl; }}\n{script}");
    let capture = CaptureMode::Text;
    Work { adapter: kind, provider: Some("p".into()), asks: true, capture, ..bash(&script) }
}

fn verdict(record: &Record) -> String {
    let error = record.error.as_ref();
    let verdict = error.and_then(|error| error.context.get("verdict"));
    verdict.and_then(|verdict| verdict["kind"].as_str()).unwrap_or("none").to_owned()
}

#[test]
fn the_answer_of_an_agent_is_its_output_and_the_stream_is_in_the_log() {
    let trial = trial();
    let mut work = heard(Kind::Claude, "play claude/write-file");
    work.output_file = Some("out.md".into());
    let record = trial.run(&work);
    let output = record.output.clone().unwrap();
    assert!(output.starts_with("Tool said: File created"), "{output}");
    assert_eq!(fs::read_to_string(trial.site.cwd().join("out.md")).unwrap(), output);
    assert!(trial.read("logs/node.stdout").starts_with("{\"type\":\"system\""));
    let usage = record.usage.unwrap();
    assert_eq!((usage.provider.as_str(), usage.usage.input_tokens), ("p", Some(22)));
    assert!(usage.session.is_some() && usage.usage.cost_usd.is_some());
    assert_eq!((record.status, record.exit_code), (StepStatus::Completed, Some(0)));
    assert!(record.metrics.unwrap().stdout_bytes > 1000, "of the stream");
}

#[test]
fn modes_of_capture_see_the_answer_alone() {
    let trial = trial();
    let work = heard(Kind::Claude, "play claude/structured");
    let record = trial.run(&Work { capture: CaptureMode::Json, ..work.clone() });
    assert_eq!(record.json, Some(json!({ "answer": "42" })));
    let record = trial.run(&Work { capture: CaptureMode::Lines, ..work.clone() });
    assert_eq!(record.lines, Some(vec!["{\"answer\":\"42\"}".to_owned()]));
    let rules = AnswerRules {
        format: Some(json!({ "type": "object" })),
        until: None,
        ..AnswerRules::default()
    };
    let record =
        trial.run(&Work { capture: CaptureMode::Whole, answer: Some(rules), ..work.clone() });
    assert_eq!(record.json, Some(json!({ "answer": "42" })));
    let plain = heard(Kind::Claude, "play claude/plain");
    let record = trial.run(&Work { capture: CaptureMode::Json, ..plain });
    assert_eq!(record.exit_code, Some(2));
    assert!(trial.read("logs/node.stdout").contains("\"subtype\":\"init\""), "the log stays");
    assert!(trial.read("logs/node.answer").starts_with("Hello from"));
}

#[test]
fn a_verdict_decides_and_not_the_exit_code() {
    let trial = trial();
    for (kind, script, code, word, class) in [
        (Kind::Claude, "play claude/sigint; exit 0", 1, "machine_fault", FaultClass::Fatal),
        (Kind::Claude, "play claude/sigterm; exit 143", 143, "stopped", FaultClass::Unknown),
        (Kind::Claude, "play claude/plain; exit 3", 3, "stopped", FaultClass::Unknown),
        (Kind::Claude, "play claude/status-529; exit 1", 1, "back_off", FaultClass::Transient),
        (Kind::Claude, "play claude/status-401; exit 1", 1, "needs_person", FaultClass::Fatal),
        (Kind::Claude, "play claude/max-turns; exit 1", 1, "limit", FaultClass::Fatal),
        (Kind::Gemini, "play gemini/status-401; exit 145", 1, "needs_person", FaultClass::Fatal),
        (Kind::Codex, "play codex/status-400; exit 1", 1, "fail", FaultClass::Fatal),
        (Kind::Codex, "play codex/plain; kill -9 $$", 137, "stopped", FaultClass::Transient),
    ] {
        let record = trial.run(&heard(kind, script));
        assert_eq!(record.exit_code, Some(code), "{script}");
        assert_eq!((verdict(&record).as_str(), self::class(&record)), (word, Some(class)));
        assert!(message(&record).starts_with("provider `p` "), "{}", message(&record));
    }
    let mut late = heard(Kind::Claude, "play claude/sigterm; sleep 60");
    late.timeout_ms = Some(300);
    let record = trial.run(&late);
    assert_eq!((record.exit_code, class(&record)), (Some(124), Some(FaultClass::Transient)));
    assert!(message(&record).contains("timed out"), "{}", message(&record));
}

#[test]
fn a_time_that_an_agent_told_is_kept() {
    let trial = trial();
    let script = "at=$(($(date +%s) + 3600)); play claude/usage-limit | \
                  sed \"s/\\\"resetsAt\\\":[0-9]*/\\\"resetsAt\\\":$at/g\"; exit 1";
    let record = trial.run(&heard(Kind::Claude, script));
    assert_eq!(verdict(&record), "retry_at");
    let error = record.error.unwrap();
    let wait = error.retry_at.unwrap().ms_since(crate::base::time::SystemClock.now());
    assert!((3_500_000..=3_600_000).contains(&wait), "{wait}");
    assert!(error.stdout_tail[0].starts_with("You've hit your limit"), "{:?}", error.stdout_tail);
}

#[test]
fn what_an_agent_says_is_masked_and_what_it_may_not_do_is_told() {
    let trial = trial();
    let script = "play claude/denied | sed 's/nonce-[0-9a-f]*/s3cret/g'";
    let record = trial.run(&heard(Kind::Claude, script));
    assert!(record.output.as_ref().unwrap().ends_with("FAILED ***"), "{:?}", record.output);
    let warning = record.warning.unwrap();
    assert!(warning.contains("Write: /agent/work/note.txt"), "{warning}");
    assert!(!trial.read("logs/node.stdout").contains("s3cret"));
}

#[test]
fn an_agent_inherits_what_it_needs_and_no_more() {
    let mut trial = trial();
    for name in ["PATH", "HOME", "CARGO_MANIFEST_DIR"] {
        trial.site.environment.insert(name.into(), "x".into());
    }
    let script = "play claude/plain | sed \"s/nonce-[0-9a-f]*/${CARGO_MANIFEST_DIR-none} \
                  $OWN/; s/Hello from/${HOME:+home} Hello from/\"";
    let mut work = heard(Kind::Claude, script);
    work.env = vec![("OWN".into(), "own".into())];
    let said = |work: &Work| trial.run(work).output.unwrap();
    assert_eq!(said(&work), "home Hello from the fake API. none own");
    work.env_pass = vec!["CARGO_MANIF*".into()];
    assert!(!said(&work).contains("none"));
    work.env_pass.clear();
    work.secrets = vec!["CARGO_MANIFEST_DIR".into()];
    assert!(!said(&work).contains("none"));
}

/// An agent that goes on with a conversation; it notes how it was called.
fn in_conversation(kind: Kind, script: &str) -> Work {
    let mut work = heard(kind, &format!("echo \"$1 $2\" >> calls\n{script}"));
    let mut session = crate::attempt::work::SessionWork::new("k", "");
    let slot = session.slot();
    let with = |how: &str| {
        let mut argv = work.argv.clone();
        argv.extend(["x".to_owned(), how.to_owned(), slot.clone()]);
        argv
    };
    let (new, resume) = (with("new"), with("resume"));
    work.argv = new;
    session.resume = resume;
    work.session = Some(session);
    work
}

#[test]
fn another_attempt_goes_on_with_the_conversation() {
    let trial = trial();
    let work = in_conversation(Kind::Codex, "play codex/resumed");
    let first = trial.run(&work).usage.unwrap();
    let second = trial.run(&work).usage.unwrap();
    let calls = fs::read_to_string(trial.site.cwd().join("calls")).unwrap();
    let session = first.session.unwrap();
    let slot = work.session.as_ref().unwrap().slot();
    assert_eq!(calls, format!("new \nresume {session}\n"), "{slot}");
    // It counts since the conversation began, and told the same twice.
    assert_eq!(first.usage.input_tokens, Some(2000));
    assert_eq!(second.usage.input_tokens, Some(0));
}

#[test]
fn a_conversation_that_is_lost_is_begun_anew() {
    let trial = trial();
    let lost = "if [ $1 = resume ]; then play claude/unknown-session; \
                echo 'No conversation found with session ID: x' >&2; exit 1; fi; play claude/plain";
    let work = in_conversation(Kind::Claude, lost);
    for _ in 0..2 {
        assert_eq!(trial.run(&work).status, StepStatus::Completed);
    }
    let calls = fs::read_to_string(trial.site.cwd().join("calls")).unwrap();
    let calls: Vec<(&str, &str)> = calls.lines().filter_map(|line| line.split_once(' ')).collect();
    let [("new", first), ("resume", heard), ("new", last)] = calls.as_slice() else {
        panic!("{calls:?}")
    };
    assert_eq!((first.len(), last.len()), (36, 36));
    assert!(first != last, "a name that was used is refused");
    assert!(!heard.is_empty());
}

#[test]
fn a_conversation_goes_on_from_another_which_stays_as_it_is() {
    let trial = trial();
    let first = in_conversation(Kind::Claude, "play claude/plain");
    assert_eq!(trial.run(&first).status, StepStatus::Completed);
    let mut next = in_conversation(Kind::Claude, "play claude/plain");
    let session = next.session.as_mut().unwrap();
    session.key = "next".into();
    let mut fork = crate::attempt::work::Fork::new("k", "parent", next.argv.clone());
    fork.argv.truncate(fork.argv.len() - 3);
    fork.argv.extend(["x".to_owned(), format!("fork-{}", session.slot()), fork.slot()]);
    session.fork = Some(fork);
    assert_eq!(trial.run(&next).status, StepStatus::Completed);
    assert_eq!(trial.run(&next).status, StepStatus::Completed);
    let calls = fs::read_to_string(trial.site.cwd().join("calls")).unwrap();
    let calls: Vec<&str> = calls.lines().collect();
    let heard = trial.run(&first).usage.unwrap().session.unwrap();
    let [_, forked, again] = calls[..] else { panic!("{calls:?}") };
    assert!(forked.starts_with("fork-") && forked.ends_with(&format!(" {heard}")), "{forked}");
    assert!(!forked.contains('@') && again.starts_with("resume "), "{again}");
}

#[test]
fn a_conversation_is_had_by_one_at_a_time() {
    let trial = trial();
    let work = in_conversation(Kind::Codex, "play codex/plain");
    let session = work.session.as_ref().unwrap();
    let stop = Stop::new().unwrap();
    let held = session::Session::take(&trial.site, session, Kind::Codex, &stop).ok().unwrap();
    let stopping = stop.clone();
    std::thread::spawn(move || stopping.request(1));
    assert!(run(&trial.site, &work, "m#1", &stop).is_none(), "it waits until it is stopped");
    drop(held);
    assert_eq!(trial.run(&work).status, StepStatus::Completed);
}
