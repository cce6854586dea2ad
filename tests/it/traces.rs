//! Traces that runs send to a collector on this machine.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use libtest_mimic::Trial;
use serde_json::Value;

use crate::world::{World, trial, until};

const WORKFLOW: &str = r#"
version: "1.1"
steps:
  - { name: Ask, provider: offline, input_file: prompt.md, output_file: answer.md }
  - name: Flaky
    command: [sh, -c, "test $ORCHESTRATE_ATTEMPT = 2"]
    retries: { max: 1, delay_ms: 1 }
  - { name: Fail, command: [sh, -c, "exit 7"] }
"#;

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("traces: a run is one trace, an attempt one span", one_trace),
        trial("traces: a span of a fleet names its agent", fleet),
        trial("traces: a collector that is gone, slow, or failing fails no run", failing),
        trial("traces: a disabled SDK sends nothing", disabled),
    ]
}

/// The headers and the document of each request that a collector received.
type Requests = Arc<Mutex<Vec<(String, Value)>>>;

/// Starts a collector that gives each request the same answer.
fn collector(answer: &'static str) -> (String, Requests) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("http://{}", listener.local_addr().expect("an address"));
    let requests = Requests::default();
    let kept = requests.clone();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            if let Some(request) = take(stream, answer) {
                kept.lock().unwrap().push(request);
            }
        }
    });
    (url, requests)
}

fn take(stream: TcpStream, answer: &str) -> Option<(String, Value)> {
    let mut reader = BufReader::new(stream.try_clone().ok()?);
    let mut head = String::new();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok().filter(|count| *count > 0)?;
        if line == "\r\n" {
            break;
        }
        head += &line;
    }
    let length = head.lines().find_map(|line| {
        let (name, value) = line.split_once(": ")?;
        name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse::<usize>().ok())?
    })?;
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    let mut stream = stream;
    let _ = stream.write_all(answer.as_bytes());
    Some((head, serde_json::from_slice(&body).expect("JSON")))
}

const SUCCESS: &str = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}";
const FAILURE: &str = "HTTP/1.1 500 No\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";

fn world() -> World {
    let world = World::with(WORKFLOW);
    world.write("prompt.md", "Say something.");
    world
}

fn run(world: &World, arguments: &[&str], url: &str) -> crate::world::Outcome {
    let mut command = world.orchestrate(arguments);
    command
        .env("OTEL_EXPORTER_OTLP_ENDPOINT", url)
        .env("OTEL_EXPORTER_OTLP_HEADERS", "x-key=s%20ecret")
        .env("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment=test");
    world.spawn(&mut command).wait()
}

/// Returns the value of an attribute of any type.
fn attribute<'a>(of: &'a Value, key: &str) -> Option<&'a Value> {
    let all = of["attributes"].as_array().expect("attributes");
    let found = all.iter().find(|attribute| attribute["key"] == key)?;
    let value = found["value"].as_object().expect("a value");
    assert_eq!(value.len(), 1, "a value has one type: {found}");
    let (kind, value) = value.iter().next().expect("a value");
    match kind.as_str() {
        "stringValue" => assert!(value.is_string(), "{found}"),
        // Numbers of 64 bits are texts.
        "intValue" => assert!(value.as_str().is_some_and(|n| n.parse::<i64>().is_ok()), "{found}"),
        "boolValue" => assert!(value.is_boolean(), "{found}"),
        "doubleValue" => assert!(value.is_number(), "{found}"),
        other => panic!("no type of OTLP: {other}"),
    }
    Some(value)
}

/// Returns the spans of a request after checking that each has the shape of OTLP.
fn spans(request: &Value) -> Vec<Value> {
    let resource = &request["resourceSpans"][0];
    assert_eq!(attribute(&resource["resource"], "service.name"), Some(&"orchestrate".into()));
    assert_eq!(attribute(&resource["resource"], "deployment.environment"), Some(&"test".into()));
    let scope = &resource["scopeSpans"][0];
    assert_eq!(scope["scope"]["name"], "orchestrate");
    let spans = scope["spans"].as_array().expect("spans").clone();
    let hex = |value: &Value, length: usize| {
        let text = value.as_str().unwrap_or_default();
        text.len() == length && text.bytes().all(|b| b.is_ascii_hexdigit())
    };
    for span in &spans {
        assert!(hex(&span["traceId"], 32) && hex(&span["spanId"], 16), "{span}");
        assert!(span["parentSpanId"].is_null() || hex(&span["parentSpanId"], 16), "{span}");
        assert_eq!(span["kind"], 1);
        let time = |key: &str| span[key].as_str().and_then(|n| n.parse::<u64>().ok()).expect(key);
        let (began, ended) = (time("startTimeUnixNano"), time("endTimeUnixNano"));
        assert!(began <= ended && began > 1_700_000_000_000_000_000, "{span}");
        assert!(span["name"].as_str().is_some_and(|name| !name.is_empty()));
        let code = &span["status"]["code"];
        assert!(code.is_null() || (0..=2).any(|n| *code == n), "{span}");
        for one in span["attributes"].as_array().expect("attributes") {
            attribute(span, one["key"].as_str().expect("a key"));
        }
    }
    spans
}

fn one_trace() {
    let world = world();
    let (url, requests) = collector(SUCCESS);
    run(&world, &["--quiet", "run", "w.yaml"], &url).exits(1);
    let requests = requests.lock().unwrap().clone();
    let [(head, body)] = requests.as_slice() else { panic!("one request: {requests:?}") };
    assert!(head.starts_with("POST /v1/traces HTTP/1.1"), "{head}");
    assert!(head.to_lowercase().contains("content-type: application/json"), "{head}");
    assert!(head.contains("x-key: s ecret"), "{head}");
    let spans = spans(body);
    let names: Vec<_> = spans.iter().map(|span| span["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["w.yaml", "Ask", "Flaky", "Flaky", "Fail"]);
    let codes: Vec<_> = spans.iter().map(|span| span["status"]["code"].as_u64()).collect();
    assert_eq!(codes, [Some(2), Some(1), Some(2), Some(1), Some(2)]);
    let root = &spans[0];
    assert!(root["parentSpanId"].is_null());
    assert_eq!(attribute(root, "orchestrate.run.id"), Some(&world.run_id().into()));
    for span in &spans[1..] {
        assert_eq!(span["traceId"], root["traceId"]);
        assert_eq!(span["parentSpanId"], root["spanId"]);
    }
    let mut ids: Vec<_> = spans.iter().map(|span| span["spanId"].to_string()).collect();
    ids.sort();
    ids.dedup();
    assert_eq!(ids.len(), spans.len(), "each has its own id");
    assert_eq!(attribute(&spans[1], "orchestrate.provider"), Some(&"offline".into()));
    assert_eq!(attribute(&spans[3], "orchestrate.attempt"), Some(&"2".into()));
    assert_eq!(attribute(&spans[4], "process.exit.code"), Some(&"7".into()));
    assert!(attribute(&spans[4], "error.message").is_some());
}

fn fleet() {
    let world = World::with(
        "version: \"1.1\"\nsteps: [{ name: A, agent: engineer, command: [\"true\"] }]\n",
    );
    let (url, requests) = collector(SUCCESS);
    let worker = world.start(&["worker", "engineer"]);
    until("it serves", || worker.stderr().contains("serves inbox"));
    run(&world, &["--quiet", "run", "--fleet", "w.yaml"], &url).exits(0);
    let requests = requests.lock().unwrap().clone();
    let spans = spans(&requests.first().expect("a request").1);
    assert_eq!(attribute(&spans[0], "orchestrate.fleet"), Some(&true.into()));
    assert_eq!(attribute(&spans[1], "orchestrate.agent"), Some(&"engineer".into()));
    assert_eq!(attribute(&spans[1], "orchestrate.status"), Some(&"completed".into()));
}

fn failing() {
    let world = world();
    let gone = TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("an address");
    run(&world, &["run", "w.yaml"], &format!("http://{gone}")).exits(1).says("the trace of run");
    let (url, _) = collector(FAILURE);
    run(&world, &["run", "w.yaml"], &url).exits(1).says("could not be sent");
    // A collector that accepts the connection and never answers.
    let silent = TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("http://{}", silent.local_addr().expect("an address"));
    let mut command = world.orchestrate(&["run", "w.yaml"]);
    command.env("OTEL_EXPORTER_OTLP_ENDPOINT", url).env("OTEL_EXPORTER_OTLP_TIMEOUT", "300");
    let began = Instant::now();
    world.spawn(&mut command).wait().exits(1).says("it took too long");
    assert!(began.elapsed() < Duration::from_secs(40), "its time is limited");
}

fn disabled() {
    let world = world();
    let (url, requests) = collector(SUCCESS);
    let mut command = world.orchestrate(&["--quiet", "run", "w.yaml"]);
    command.env("OTEL_EXPORTER_OTLP_ENDPOINT", url).env("OTEL_SDK_DISABLED", "true");
    world.spawn(&mut command).wait().exits(1);
    assert!(requests.lock().unwrap().is_empty());
}
