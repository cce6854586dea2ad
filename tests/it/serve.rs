//! The page: what it refuses, by hand; and what a person does with it, in a real browser.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use libtest_mimic::Trial;
use nix::sys::signal::Signal;
use serde_json::Value;

use crate::web::{Browser, Heard, ask, hear};
use crate::world::{Started, World, trial, until};

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("serve/strangers, other hosts and other sites are refused", strangers),
        trial("serve/what is too long or too slow is cut off", bounds),
        trial("serve/every refusal says why", refusals),
        trial("serve/the answer to HEAD ends after its headers", heads),
        trial("serve/an answer that no process applies can be resumed", stranded),
        trial("serve/one who does not read keeps nobody waiting", deaf),
        trial("serve/where it listens, as a document", documented),
        trial("serve/many at once", many),
        trial("serve/strangers keep nobody out", crowd),
        trial("serve/a body is asked for before it is sent", asks_first),
        trial("serve/the token is its user's alone, and ends with the server", token),
        trial("serve/programs ask and act with the token", programs),
        trial("serve/what is typed is not lost without script", typing),
        trial("serve/a person decides, follows and puts out tasks", browser),
    ]
}

const GATED: &str = r#"
name: "gated </title><img src=x onerror=window.hacked=1>"
description: A person decides.
nodes:
  - { id: before, bash: "echo '<script>window.hacked=2</script> first'" }
  - id: fine
    approval: { message: "Fine <img src=x onerror=window.hacked=3>?" }
    depends_on: [before]
  - id: after
    bash: |
      while ! test -e go; do echo tick >&2; sleep 0.2; done
      echo '</pre>bye' >&2
      echo last
    depends_on: [fine]
"#;

/// A server and how to get in.
struct Page {
    server: Started,
    at: SocketAddr,
    token: String,
}

impl Page {
    fn of(world: &World) -> Page {
        let server = world.start(&["serve", "--listen", "127.0.0.1:0"]);
        until("it says where it listens", || server.stdout().ends_with('\n'));
        let url = server.stdout();
        let (address, token) = url.trim().split_once("/?token=").expect("an address with a token");
        let at = address.trim_start_matches("http://").parse().expect("an address");
        Page { server, at, token: token.to_owned() }
    }

    fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.at)
    }

    fn ask(&self, first: &str, headers: &str, body: &str) -> Heard {
        let length = if body.is_empty() {
            String::new()
        } else {
            format!("Content-Length: {}\r\n", body.len())
        };
        let request = format!("{first} HTTP/1.1\r\n{headers}{length}\r\n{body}");
        ask(self.at, &request).unwrap_or_else(|| panic!("no answer to {first}"))
    }

    fn host(&self) -> String {
        format!("Host: {}\r\n", self.at)
    }

    fn bearer(&self) -> String {
        format!("{}Authorization: Bearer {}\r\n", self.host(), self.token)
    }

    /// Logs in: the cookie.
    fn enter(&self) -> String {
        let heard = self.ask(&format!("GET /?token={}", self.token), &self.host(), "");
        assert_eq!((heard.status, heard.header("location")), (303, Some("/")), "{heard:?}");
        let cookie = heard.header("set-cookie").expect("a cookie").to_owned();
        assert!(cookie.contains("; HttpOnly; SameSite=Strict"), "{cookie}");
        assert!(!cookie.contains(&self.token), "the token stays where it is");
        format!("{}Cookie: {}\r\n", self.host(), cookie.split(';').next().unwrap_or_default())
    }
}

/// A run that waits for a person.
fn paused() -> World {
    let world = World::with(GATED);
    world.run(&["run", "w.yaml"]).exits(3);
    world
}

fn strangers() {
    let world = paused();
    let page = Page::of(&world);
    let (host, id) = (page.host(), world.run_id());
    let status = |first: &str, headers: &str, body: &str| page.ask(first, headers, body).status;
    assert_eq!(status("GET /", &host, ""), 401);
    assert_eq!(status("GET /api/status", &host, ""), 401);
    assert_eq!(status("GET /?token=0000", &host, ""), 401);
    assert_eq!(status("GET /live", &host, ""), 401);
    let wrong = format!("{host}Authorization: Bearer {}x\r\n", page.token);
    assert_eq!(status("GET /api/status", &wrong, ""), 401);
    let cookie = page.enter();
    let heard = page.ask("GET /", &cookie, "");
    assert_eq!(heard.status, 200);
    for (name, part) in [
        ("content-security-policy", "default-src 'none'"),
        ("content-security-policy", "frame-ancestors 'none'"),
        ("x-content-type-options", "nosniff"),
        ("cache-control", "no-store"),
        ("referrer-policy", "same-origin"),
    ] {
        let value = heard.header(name).unwrap_or_default();
        assert!(value.contains(part), "{name}: {value}");
    }
    assert!(!heard.body.contains("<img"), "names are text: {}", heard.body);
    // Another name for this machine is not ours, whatever else is right.
    let evil = cookie.replace(&page.host(), "Host: evil.example:80\r\n");
    assert_eq!(status("GET /", &evil, ""), 421);
    assert_eq!(status("GET /", &page.bearer().replace(&host, ""), ""), 421);
    let tunnel = cookie.replace(&page.host(), "Host: localhost:9999\r\n");
    assert_eq!(status("GET /", &tunnel, ""), 200);
    // What acts needs POST, our origin and the word of the session.
    let word = heard.body.split("name=\"word\" value=\"").nth(1).expect("a form");
    let word = word.split('"').next().unwrap_or_default();
    let act = format!("POST /runs/{id}/cancel");
    let form = format!("{cookie}Content-Type: application/x-www-form-urlencoded\r\n");
    let ours = format!("{form}Origin: http://{}\r\n", page.at);
    let theirs = format!("{form}Origin: http://evil.example\r\n");
    assert_eq!(status(&format!("GET /runs/{id}/cancel"), &cookie, ""), 405);
    assert_eq!(status(&act, &form, &format!("word={word}")), 403);
    assert_eq!(status(&act, &theirs, &format!("word={word}")), 403);
    assert_eq!(status(&act, &format!("{form}Origin: null\r\n"), &format!("word={word}")), 403);
    assert_eq!(status(&act, &ours, "word=0"), 403);
    assert_eq!(status(&act, &ours, ""), 403);
    let theirs = format!("{}Origin: http://evil.example\r\n", page.bearer());
    assert_eq!(status(&act, &theirs, "x=y"), 403, "not with the token either");
    assert_eq!(world.status(), "paused", "nothing of that did anything");
    assert_eq!(status("GET /runs/../../etc/passwd", &cookie, ""), 404);
    assert_eq!(status(&format!("GET /runs/{id}/logs/..%2f..%2fstate"), &cookie, ""), 404);
    assert_eq!(status(&act, &ours, &format!("word={word}")), 303);
    until("it is cancelled", || world.status() == "cancelled");
}

fn bounds() {
    let world = World::new();
    let page = Page::of(&world);
    let long = format!("{}X: {}\r\n", page.host(), "a".repeat(20_000));
    assert_eq!(page.ask("GET /", &long, "").status, 431);
    let lots = (0..100).map(|n| format!("X-{n}: y\r\n")).collect::<String>();
    assert_eq!(page.ask("GET /", &format!("{}{lots}", page.host()), "").status, 431);
    let huge = format!("{}Content-Length: 99999999\r\n", page.bearer());
    assert_eq!(page.ask("POST /enqueue", &huge, "").status, 413);
    let chunked = format!("{}Transfer-Encoding: chunked\r\n", page.bearer());
    assert_eq!(page.ask("POST /enqueue", &chunked, "").status, 501);
    assert_eq!(page.ask("BREW /", &page.host(), "").status, 405);
    assert_eq!(ask(page.at, "\u{1}\u{2}\u{3}\r\n\r\n").unwrap().status, 400);
    // One who sends a letter now and then is cut off, and keeps nobody else waiting.
    let mut slow = TcpStream::connect(page.at).unwrap();
    slow.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
    slow.write_all(b"GET / HTTP/1.1\r\nX: ").unwrap();
    assert_eq!(page.ask("GET /api/status", &page.bearer(), "").status, 200);
    let (began, mut said) = (Instant::now(), Vec::new());
    loop {
        let sent = slow.write_all(b"a");
        let mut piece = [0; 1024];
        match slow.read(&mut piece) {
            Ok(0) => break,
            Ok(count) => said.extend_from_slice(&piece[..count]),
            Err(_) if sent.is_err() => break,
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => break,
            Err(_) => {}
        }
        assert!(began.elapsed() < Duration::from_secs(30), "it is served for ever");
    }
    assert!(String::from_utf8_lossy(&said).starts_with("HTTP/1.1 408"), "{said:?}");
    // Two requests on one connection.
    let mut kept = TcpStream::connect(page.at).unwrap();
    for _ in 0..2 {
        let request = format!("GET /style.css HTTP/1.1\r\n{}\r\n", page.host());
        kept.write_all(request.as_bytes()).unwrap();
        assert_eq!(hear(&mut kept).expect("an answer").status, 200);
    }
}

/// What is asked for wrongly is refused with a reason: as a page to people, as a document to
/// programs. Nothing of it does anything.
fn refusals() {
    let world = paused();
    let page = Page::of(&world);
    let id = world.run_id();
    let gate = serde_json::json!({ "step": "fine.0.gate", "shown": "0" }).to_string();
    let no_step = r#"{ "shown": "0" }"#;
    let json = "application/json";
    let run = |rest: &str| format!("/runs/{id}/{rest}");
    let asked = [
        ("GET", "/runs/nope".to_owned(), "", "", 404, "there is no run `nope`"),
        ("GET", "/runs/..".to_owned(), "", "", 404, "there is no run `..`"),
        ("GET", "/nope".to_owned(), "", "", 404, "there is no such"),
        ("GET", run("cancel"), "", "", 405, "this is done with POST"),
        ("GET", run("retry"), "", "", 405, "this is done with POST"),
        ("GET", "/tasks/X/cancel".to_owned(), "", "", 405, "this is done with POST"),
        ("POST", "/runs/nope/cancel".to_owned(), "", "", 404, "there is no run `nope`"),
        ("POST", "/tasks/nope/cancel".to_owned(), "", "", 404, "there is no task `nope`"),
        ("POST", "/nope".to_owned(), "", "", 404, "there is no such action"),
        ("POST", run("approve"), json, "{", 400, "the body is no JSON object"),
        ("POST", run("approve"), json, "[]", 400, "the body is no JSON object"),
        ("POST", run("approve"), "text/plain", "x", 415, "and not `text/plain`"),
        ("POST", run("approve"), json, no_step, 400, "an answer names `step` and `shown`"),
        ("POST", run("approve"), json, &gate, 409, "is not what was looked at"),
        ("POST", run("reject"), json, &gate, 400, "a rejection needs a reason"),
        ("POST", run("answer"), json, &gate, 400, "must be `approve` or `reject`"),
        ("POST", "/enqueue".to_owned(), json, r#"{"agent":"qa"}"#, 400, "nothing to do"),
        ("POST", "/enqueue".to_owned(), json, r#"{"agent":"../x","text":"y"}"#, 400, "`../x`"),
    ];
    for (method, path, kind, body, status, why) in asked {
        for api in [false, true] {
            let path = format!("{}{path}", if api { "/api" } else { "" });
            let kind = match kind {
                "" => String::new(),
                kind => format!("Content-Type: {kind}\r\n"),
            };
            let heard = page.ask(&format!("{method} {path}"), &(page.bearer() + &kind), body);
            assert_eq!(heard.status, status, "{method} {path}: {}", heard.body);
            if status == 405 {
                assert_eq!(heard.header("allow"), Some("POST"), "{path}");
            }
            let told = match api {
                true => {
                    let said: Value = serde_json::from_str(&heard.body).expect("a document");
                    assert_eq!(said["schema"], "error/v1", "{path}");
                    assert_eq!(said["error"]["code"], status, "{path}");
                    said["error"]["message"].as_str().unwrap_or_default().to_owned()
                }
                false => heard.body.clone(),
            };
            assert!(told.contains(why), "{method} {path}: {told}");
        }
    }
    assert_eq!(page.ask("PUT /", &page.bearer(), "").status, 405);
    let put = page.ask("PUT /api/status", &page.bearer(), "");
    let told: serde_json::Value = serde_json::from_str(&put.body).expect("a document");
    assert_eq!((put.status, &told["error"]["code"]), (405, &405.into()), "{told}");
    // So is what is refused before it is known who asks, once the path is known.
    let (host, length) = (page.host(), "Content-Length: 99999999\r\n");
    for (status, headers) in [
        (401, host.clone()),
        (421, "Host: evil.example\r\n".to_owned()),
        (413, format!("{host}{length}")),
        (400, format!("{host}{length}{length}")),
        (501, format!("{host}Transfer-Encoding: chunked\r\n")),
    ] {
        let heard = page.ask("POST /api/enqueue", &headers, "");
        let told: Value = serde_json::from_str(&heard.body).expect("a document");
        assert_eq!((heard.status, &told["error"]["code"]), (status, &status.into()), "{told}");
    }
    assert_eq!(page.ask(&format!("GET {}", run("logs/nope")), &page.bearer(), "").status, 404);
    assert_eq!(world.status(), "paused", "nothing of that did anything");
    assert!(world.list("inbox/qa").is_empty());
}

/// HEAD is answered without a body, on streams too, and `close` among other tokens closes.
fn heads() {
    let world = paused();
    let page = Page::of(&world);
    for path in ["/live", "/", "/api/status"] {
        let mut stream = TcpStream::connect(page.at).unwrap();
        let headers = page.bearer() + "Connection: foo, close\r\n";
        stream.write_all(format!("HEAD {path} HTTP/1.1\r\n{headers}\r\n").as_bytes()).unwrap();
        let mut heard = String::new();
        stream.read_to_string(&mut heard).unwrap();
        assert!(heard.starts_with("HTTP/1.1 200 OK\r\n"), "{path}: {heard}");
        assert!(heard.ends_with("\r\n\r\n"), "{path}: {heard}");
        assert!(heard.contains(" GMT\r\n"), "{path} has no date: {heard}");
    }
    let headers = page.bearer() + "Content-Type: text/x\r\n";
    let heard = page.ask("POST /enqueue", &headers, "x");
    assert!(heard.head.starts_with("HTTP/1.1 415 Unsupported Media Type"), "{heard:?}");
}

/// A gate is answered while another run uses the checkout: the page says so, and resumes it later.
fn stranded() {
    let world = paused();
    let page = Page::of(&world);
    let id = world.run_id();
    let hold = "name: hold\ndescription: Holds the checkout.\nnodes:\n  - id: hold\n    \
                bash: |\n      touch held\n      while ! test -e free; do sleep 0.05; done\n";
    world.write("hold.yaml", hold);
    world.write("go", "");
    let holder = world.start(&["run", "hold.yaml"]);
    until("the other run has the checkout", || world.path("held").exists());
    let pending: Value =
        serde_json::from_str(&page.ask("GET /api/pending", &page.bearer(), "").body).unwrap();
    let body = serde_json::json!({
        "step": pending["gates"][0]["step"], "shown": pending["gates"][0]["shown"],
    });
    let json = page.bearer() + "Content-Type: application/json\r\n";
    page.ask(&format!("POST /api/runs/{id}/approve"), &json, &body.to_string());
    let look = || page.ask(&format!("GET /runs/{id}"), &page.enter(), "").body;
    // While `approve` still tries, it drives the run for moments.
    let retry = format!("action=\"/runs/{id}/retry\"");
    until("the page says so and offers to resume", || {
        let shown = look();
        shown.contains("Answered, but no process drives the run.") && shown.contains(&retry)
    });
    world.write("free", "");
    holder.wait().exits(0);
    page.ask(&format!("POST /api/runs/{id}/retry"), &json, "{}");
    let state = format!(".orchestrate/runs/{id}/state.json");
    until("the run is continued", || world.read(&state).contains("\"status\": \"completed\""));
}

/// A client asks for much and reads nothing of it.
fn deaf() {
    let world = paused();
    let page = Page::of(&world);
    let path = format!("/runs/{}/report", world.run_id());
    let mut deaf = Vec::new();
    for _ in 0..40 {
        let mut stream = TcpStream::connect(page.at).unwrap();
        let request = format!("GET {path} HTTP/1.1\r\n{}\r\n", page.bearer());
        for _ in 0..20 {
            let _ = stream.write_all(request.as_bytes());
        }
        deaf.push(stream);
    }
    assert_eq!(page.ask("GET /api/status", &page.bearer(), "").status, 200);
    page.server.signal(Signal::SIGTERM);
    page.server.wait().exits(143);
}

fn documented() {
    let world = World::new();
    let server = world.start(&["serve", "--listen", "127.0.0.1:0", "--json"]);
    until("it says where it listens", || server.stdout().ends_with('\n'));
    let said: Value = serde_json::from_str(&server.stdout()).expect("one document");
    assert_eq!(said["schema"], "serve/v1");
    let (listen, url) = (said["listen"].as_str().unwrap(), said["url"].as_str().unwrap());
    let token = url.strip_prefix(&format!("http://{listen}/?token=")).expect("an address");
    let file = said["token_file"].as_str().unwrap();
    assert_eq!(std::fs::read_to_string(file).unwrap().trim(), token);
    assert_eq!(server.stderr(), "", "a document is all there is to say");
    // Two cannot have one port, and a bad address is none.
    let second = world.run(&["serve", "--listen", listen, "--json"]).exits(1);
    let said: Value = serde_json::from_str(&second.stdout).expect("one document");
    assert_eq!(said["schema"], "error/v1");
    let hint = "`--listen 127.0.0.1:0` takes any port that is free";
    assert_eq!(said["error"]["hint"], hint);
    world.run(&["serve", "--listen", listen]).exits(1).says(hint);
    world.run(&["serve", "--listen", "here"]).exits(2).says("invalid value 'here'");
    assert!(world.exists(&format!(".orchestrate/serve-{}.token", &listen["127.0.0.1:".len()..])));
}

fn many() {
    let world = World::new();
    let page = Page::of(&world);
    let open: Vec<TcpStream> =
        (0..200).map(|_| TcpStream::connect(page.at).expect("it accepts")).collect();
    // Those that are too many are told so, or cut off; it goes on.
    drop(open);
    until("it serves again", || {
        let request = format!("GET /api/status HTTP/1.1\r\n{}\r\n", page.bearer());
        ask(page.at, &request).is_some_and(|heard| heard.status == 200)
    });
    let threads: Vec<_> = (0..60)
        .map(|_| {
            let (at, request) =
                (page.at, format!("GET /api/status HTTP/1.1\r\n{}\r\n", page.bearer()));
            std::thread::spawn(move || ask(at, &request).map(|heard| heard.status))
        })
        .collect();
    let heard: Vec<_> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
    assert!(heard.iter().all(|status| *status == Some(200)), "{heard:?}");
}

/// More strangers than there is room for, each with half a request: whoever has the token comes in,
/// and stays.
fn crowd() {
    let world = World::new();
    let page = Page::of(&world);
    let request = format!("GET /api/status HTTP/1.1\r\n{}\r\n", page.bearer());
    let mut known = TcpStream::connect(page.at).unwrap();
    let mut again = || {
        known.write_all(request.as_bytes()).expect("it is open");
        assert_eq!(hear(&mut known).expect("an answer").status, 200);
    };
    again();
    let mut strangers = Vec::new();
    for _ in 0..3 {
        for _ in 0..150 {
            let mut stranger = TcpStream::connect(page.at).expect("it accepts");
            let _ = stranger.write_all(b"GET / HTTP/1.1\r\nX: ");
            strangers.push(stranger);
        }
        assert_eq!(page.ask("GET /api/status", &page.bearer(), "").status, 200);
    }
    again();
    // Whoever came first was cut off first.
    let mut said = Vec::new();
    let _ = strangers[0].read_to_end(&mut said);
    assert_eq!(said, b"");
}

/// A client that waits for a word before it sends a long body.
fn asks_first() {
    let world = World::new();
    let page = Page::of(&world);
    let body = r#"{"agent":"qa","text":"look"}"#;
    let head = |length: usize| {
        format!(
            "POST /api/enqueue HTTP/1.1\r\n{}Content-Type: application/json\r\nExpect: \
             100-continue\r\nContent-Length: {length}\r\n\r\n",
            page.bearer()
        )
    };
    let mut stream = TcpStream::connect(page.at).unwrap();
    stream.write_all(head(body.len()).as_bytes()).unwrap();
    let mut said = [0; 25];
    stream.read_exact(&mut said).expect("a word");
    assert_eq!(&said, b"HTTP/1.1 100 Continue\r\n\r\n");
    stream.write_all(body.as_bytes()).unwrap();
    assert_eq!(hear(&mut stream).expect("an answer").status, 200);
    assert_eq!(ask(page.at, &head(99_999_999)).expect("an answer").status, 413);
}

fn token() {
    use std::os::unix::fs::MetadataExt;
    let world = World::new();
    let page = Page::of(&world);
    let file = format!(".orchestrate/serve-{}.token", page.at.port());
    assert_eq!(world.read(&file).trim(), page.token);
    assert!(page.token.len() >= 32, "128 bits at least");
    assert_eq!(std::fs::metadata(world.path(&file)).unwrap().mode() & 0o777, 0o600);
    page.server.signal(Signal::SIGTERM);
    page.server.wait().exits(143);
    assert!(!world.exists(&file), "it is worth nothing any more");
    // One that was killed leaves nothing that keeps the next from serving.
    let page = Page::of(&world);
    let (at, old) = (page.at.to_string(), page.token.clone());
    page.server.kill();
    let again = world.start(&["serve", "--listen", &at]);
    until("it listens again", || again.stdout().ends_with('\n'));
    assert!(!again.stdout().contains(&old), "a new token");
    drop(again);
    world.run(&["serve", "--listen", "0.0.0.0:0"]).exits(2).says("--expose");
}

fn programs() {
    let world = paused();
    let page = Page::of(&world);
    let id = world.run_id();
    let get = |path: &str| -> Value {
        let heard = page.ask(&format!("GET {path}"), &page.bearer(), "");
        assert_eq!(heard.status, 200, "{path}: {}", heard.body);
        serde_json::from_str(&heard.body).expect("a document")
    };
    assert_eq!(get("/api/status")["schema"], "fleet-status/v1");
    assert_eq!(get("/api/status")["runs"][0]["state"], "paused");
    assert_eq!(get(&format!("/api/runs/{id}"))["schema"], "run-status/v1");
    assert_eq!(get(&format!("/api/runs/{id}/report"))["schema"], "report/v1");
    assert_eq!(get("/api/runs/latest")["run_id"], id);
    assert_eq!(get(&format!("/api/runs/{}", &id[..12]))["run_id"], id);
    assert_eq!(get("/api/queue")["schema"], "queue/v1");
    assert_eq!(get("/api/workers")["schema"], "workers/v1");
    let gate = get("/api/pending")["gates"][0].clone();
    let post = |path: &str, body: &Value| {
        let headers = format!("{}Content-Type: application/json\r\n", page.bearer());
        page.ask(&format!("POST {path}"), &headers, &body.to_string())
    };
    let approve = format!("/api/runs/{id}/approve");
    // An answer counts for what was looked at.
    let other = serde_json::json!({ "step": gate["step"], "shown": "0" });
    let heard = post(&approve, &other);
    assert_eq!(heard.status, 409, "{}", heard.body);
    assert_eq!(world.status(), "paused");
    world.write("go", "");
    let right = serde_json::json!({ "step": gate["step"], "shown": gate["shown"] });
    let heard = post(&approve, &right);
    assert!(matches!(heard.status, 200 | 202), "{}", heard.body);
    until("it completes", || world.status() == "completed");
    let heard = post(&approve, &right);
    assert_eq!(heard.status, 400, "once only: {}", heard.body);
    let task = serde_json::json!({ "agent": "qa", "title": "t", "text": "--look" });
    let heard = post("/api/enqueue", &task);
    assert_eq!(heard.status, 200, "{}", heard.body);
    let said: Value = serde_json::from_str(&heard.body).expect("a document");
    assert_eq!((&said["schema"], &said["agent"]), (&"enqueued/v1".into(), &"qa".into()));
    let heard = post("/api/enqueue", &serde_json::json!({ "agent": "../x", "text": "y" }));
    assert_eq!(heard.status, 400, "{}", heard.body);
    // What is not understood is refused: a wish may depend on it.
    for body in [
        serde_json::json!({ "agent": "qa", "text": "x", "priority": "1" }),
        serde_json::json!({ "agent": "qa", "text": 5 }),
    ] {
        let heard = post("/api/enqueue", &body);
        assert_eq!(heard.status, 400, "{}", heard.body);
        assert!(
            heard.body.contains("`priority` is not taken")
                || heard.body.contains("`text` is a text")
        );
    }
    let mistyped = serde_json::json!({ "step": "x", "shown": "y", "coment": "only if green" });
    let heard = post(&approve, &mistyped);
    assert_eq!(heard.status, 400, "{}", heard.body);
    assert!(heard.body.contains("`coment` is not taken"), "{}", heard.body);
    assert_eq!(world.list("inbox/qa").iter().filter(|name| name.ends_with(".task")).count(), 1);
}

/// Without script a page loads itself again, unless what is typed into it would be lost by that.
fn typing() {
    let world = paused();
    let page = Page::of(&world);
    let id = world.run_id();
    let refreshes = |path: &str| {
        let heard = page.ask(&format!("GET {path}"), &page.bearer(), "");
        assert_eq!(heard.status, 200, "{path}: {}", heard.body);
        heard.body.contains("http-equiv=\"refresh\"")
    };
    for path in ["/", &format!("/runs/{id}"), "/enqueue"] {
        assert!(!refreshes(path), "{path}");
    }
    assert!(refreshes("/workers"));
    world.run(&["reject", "latest", "--reason", "no"]).exits(4);
    assert!(refreshes("/") && refreshes(&format!("/runs/{id}")));
}

fn browser() {
    let world = paused();
    let profile = world.outside("browser");
    std::fs::create_dir_all(&profile).unwrap();
    let Some(browser) = Browser::start(&profile) else {
        eprintln!("SKIPPED: chromium and chromedriver are not installed");
        return;
    };
    let page = Page::of(&world);
    let first = world.run_id();
    browser.open(&page.url(&format!("/?token={}", page.token)));
    browser.until_text("Waits for a person");
    assert_eq!(browser.url(), page.url("/"), "the token is gone from the address");
    browser.until("return document.getElementById('live').textContent === 'live'");
    browser.picture("board");
    // A person looks at a run and approves.
    browser.open(&page.url(&format!("/runs/{first}")));
    browser.until_text("Fine <img src=x onerror=window.hacked=3>?");
    browser.picture("run");
    browser.write("textarea", "well done");
    browser.click("button[value=approve]");
    browser.until(
        "return [...document.querySelectorAll('.steps summary')].some(line => \
        line.textContent.includes('after') && line.querySelector('.running'))",
    );
    // The log grows while somebody looks on.
    browser.open(&page.url(&format!("/runs/{first}/logs/after")));
    let ticks = "return document.getElementById('log-stderr').textContent.split('tick').length";
    let before = browser.script(ticks).as_u64().unwrap_or(0);
    browser.until(&format!("{ticks} > {}", before + 3));
    world.write("go", "");
    browser.until_text("</pre>bye");
    browser.until("return document.querySelector('main .state').textContent === 'completed'");
    browser.open(&page.url(&format!("/runs/{first}/logs/after")));
    browser.until("return document.getElementById('log-stdout').textContent.trim() === 'last'");
    browser.picture("log");
    let answer = world.state()["steps"].to_string();
    assert!(answer.contains("well done"), "{answer}");
    // What others do shows in an open page, which is not loaded again.
    world.run(&["run", "w.yaml"]).exits(3);
    let second = world.run_id();
    browser.open(&page.url(&format!("/runs/{second}")));
    browser.until_text("Waits for a person");
    browser.script("window.mark = 1");
    world.run(&["approve", "latest"]).exits(0);
    browser.until("return document.querySelector('header .state').textContent === 'completed'");
    assert_eq!(browser.script("return window.mark"), 1);
    // A rejection wants a reason.
    world.run(&["run", "w.yaml"]).exits(3);
    let third = world.run_id();
    browser.open(&page.url(&format!("/runs/{third}")));
    browser.click("button[value=reject]");
    browser.until_text("a rejection needs a reason");
    browser.open(&page.url(&format!("/runs/{third}")));
    browser.write("textarea", "not <b>good</b> enough");
    browser.click("button[value=reject]");
    until("it is rejected", || world.state().to_string().contains("not <b>good</b> enough"));
    browser.until("return !document.querySelector('.box.ask')");
    // A run is cancelled.
    std::fs::remove_file(world.path("go")).unwrap();
    let mut going = world.start(&["run", "w.yaml"]);
    until("it waits", || !going.is_running() && world.run_id() != third);
    let fourth = world.run_id();
    browser.open(&page.url(&format!("/runs/{fourth}")));
    browser.until_text("Cancel the run");
    // One click asks; what it opens does it.
    browser.click("details.sure > summary");
    assert_eq!(world.status(), "paused", "it is asked first");
    browser.click("form[action$=cancel] button");
    browser.until("return document.querySelector('header .state')?.textContent === 'cancelled'");
    assert_eq!(world.status(), "cancelled");
    // A task is put out.
    browser.open(&page.url("/enqueue"));
    browser.write("#agent", "qa");
    browser.write("#title", "Look <i>closely</i>");
    browser.write("#text", "Read it all.");
    browser.click("button.yes");
    browser.until_text("Look <i>closely</i>");
    browser.until("return document.querySelector('main .state').textContent === 'waiting'");
    assert_eq!(world.list("inbox/qa").iter().filter(|name| name.ends_with(".task")).count(), 1);
    // On a phone nothing is wider than the page.
    browser.resize(400, 800);
    browser.open(&page.url(&format!("/runs/{first}")));
    browser.until("return document.documentElement.scrollWidth <= innerWidth + 1");
    browser.picture("phone");
    // The report is a file, and as quiet.
    world.run(&["report", &first, "-o", "out.html"]).exits(0);
    browser.resize(1100, 900);
    browser.open(&format!("file://{}", world.path("out.html").display()));
    browser.until_text("Decisions");
    browser.until(
        "return document.body.textContent.includes('<script>window.hacked=2</script> first')",
    );
    let pictures = browser.script("return document.querySelectorAll('img, iframe, link').length");
    assert_eq!((pictures, browser.script("return window.hacked")), (0.into(), Value::Null));
    browser.picture("report");
}
