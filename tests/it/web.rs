//! A browser, driven as a person would: WebDriver is JSON over HTTP, so a few lines speak it. And
//! plain HTTP for those who ask by hand.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

/// How long a page may take to show something. Far above what it needs, even on a busy machine.
const PATIENCE: Duration = Duration::from_secs(180);

/// Where a program is, if it is installed.
pub(crate) fn program(names: &[&str]) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let dirs: Vec<PathBuf> = std::env::split_paths(&path).collect();
    names.iter().find_map(|name| dirs.iter().map(|dir| dir.join(name)).find(|file| file.is_file()))
}

/// What a server answered.
#[derive(Debug)]
pub(crate) struct Heard {
    pub status: u16,
    pub head: String,
    pub body: String,
}

impl Heard {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let lines = self.head.lines().filter_map(|line| line.split_once(':'));
        let mut found = lines.filter(|(key, _)| key.eq_ignore_ascii_case(name));
        found.next().map(|(_, value)| value.trim())
    }
}

/// Reads one answer. Nothing, if the connection was closed before it was whole.
pub(crate) fn hear(stream: &mut TcpStream) -> Option<Heard> {
    let mut bytes = Vec::new();
    let mut piece = [0; 16 << 10];
    loop {
        let text = String::from_utf8_lossy(&bytes);
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let status = head.split(' ').nth(1)?.parse().ok()?;
            let mut heard = Heard { status, head: head.to_owned(), body: body.to_owned() };
            let length = heard.header("content-length").and_then(|length| length.parse().ok());
            let have = bytes.len() - head.len() - 4;
            if length.is_some_and(|length: usize| have >= length) {
                let body = &bytes[head.len() + 4..][..length.unwrap_or(0)];
                heard.body = String::from_utf8_lossy(body).into_owned();
                return Some(heard);
            }
        }
        match stream.read(&mut piece) {
            Ok(0) | Err(_) => return None,
            Ok(count) => bytes.extend_from_slice(&piece[..count]),
        }
    }
}

/// Asks on a connection of its own.
pub(crate) fn ask(at: SocketAddr, request: &str) -> Option<Heard> {
    let mut stream = TcpStream::connect(at).expect("somebody listens");
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(request.as_bytes()).ok()?;
    hear(&mut stream)
}

/// A browser and what drives it.
pub(crate) struct Browser {
    driver: Child,
    at: SocketAddr,
    session: String,
}

impl Browser {
    /// Starts one, with a profile in that directory; nothing, if none is installed.
    pub(crate) fn start(profile: &Path) -> Option<Browser> {
        let chromium = program(&["chromium", "chromium-browser", "google-chrome"])?;
        let driver = program(&["chromedriver"])?;
        let log = profile.join("driver.log");
        let mut driver = Command::new(driver)
            .arg("--port=0")
            .stdout(std::fs::File::create(&log).unwrap())
            .stderr(Stdio::null())
            .spawn()
            .expect("chromedriver starts");
        let began = Instant::now();
        let port = loop {
            let said = std::fs::read_to_string(&log).unwrap_or_default();
            let after = said.split("successfully on port ").nth(1);
            let digits = after.and_then(|rest| rest.split(|c: char| !c.is_ascii_digit()).next());
            match digits.and_then(|digits| digits.parse::<u16>().ok()) {
                Some(port) => break port,
                None if began.elapsed() < PATIENCE => {
                    std::thread::sleep(Duration::from_millis(20));
                }
                None => {
                    let _ = driver.kill();
                    panic!("chromedriver did not say where it listens: {said}");
                }
            }
        };
        let at = SocketAddr::from(([127, 0, 0, 1], port));
        let mut browser = Browser { driver, at, session: String::new() };
        let data = profile.join("profile");
        let arguments = json!([
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--no-first-run",
            "--disable-extensions",
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-sync",
            "--window-size=1100,900",
            format!("--user-data-dir={}", data.display())
        ]);
        let wanted = json!({ "capabilities": { "alwaysMatch": { "goog:chromeOptions": {
            "binary": chromium, "args": arguments } } } });
        let made = browser.call("POST", "/session", Some(&wanted));
        browser.session = made["sessionId"].as_str().expect("a session").to_owned();
        Some(browser)
    }

    fn call(&self, method: &str, path: &str, body: Option<&Value>) -> Value {
        self.try_call(method, path, body).unwrap_or_else(|error| panic!("{method} {path}: {error}"))
    }

    fn try_call(&self, method: &str, path: &str, body: Option<&Value>) -> Result<Value, String> {
        let body = body.map(Value::to_string).unwrap_or_default();
        let request = format!(
            "{method} {path} HTTP/1.1\r\nHost: {}\r\nContent-Type: application/json\r\n\
             Content-Length: {}\r\n\r\n{body}",
            self.at,
            body.len()
        );
        let heard = ask(self.at, &request).ok_or("no answer")?;
        let said: Value = serde_json::from_str(&heard.body).map_err(|error| error.to_string())?;
        match heard.status {
            200 => Ok(said["value"].clone()),
            _ => Err(said["value"]["message"].as_str().unwrap_or_default().to_owned()),
        }
    }

    fn of_session(&self, method: &str, path: &str, body: &Value) -> Value {
        let body = (method == "POST").then_some(body);
        self.call(method, &format!("/session/{}{path}", self.session), body)
    }

    pub(crate) fn open(&self, url: &str) {
        self.of_session("POST", "/url", &json!({ "url": url }));
    }

    pub(crate) fn url(&self) -> String {
        self.of_session("GET", "/url", &Value::Null).as_str().unwrap_or_default().to_owned()
    }

    /// What a script in the page returns.
    pub(crate) fn script(&self, script: &str) -> Value {
        self.of_session("POST", "/execute/sync", &json!({ "script": script, "args": [] }))
    }

    pub(crate) fn text(&self) -> String {
        let text = self.script("return document.body.innerText");
        text.as_str().unwrap_or_default().to_owned()
    }

    /// Waits until a script returns true.
    #[track_caller]
    pub(crate) fn until(&self, script: &str) {
        let began = Instant::now();
        while self.script(script) != Value::Bool(true) {
            let text = self.text();
            assert!(began.elapsed() < PATIENCE, "never: {script}\n{}\n{text}", self.url());
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    #[track_caller]
    pub(crate) fn until_text(&self, part: &str) {
        let part = Value::from(part);
        self.until(&format!("return document.body.innerText.includes({part})"));
    }

    fn element(&self, selector: &str) -> String {
        let wanted = json!({ "using": "css selector", "value": selector });
        let found = self.of_session("POST", "/element", &wanted);
        let id = found.as_object().and_then(|found| found.values().next()?.as_str());
        id.expect("an element").to_owned()
    }

    /// Does something to an element. A page that lives may exchange it after it was found: then
    /// nothing was done, and the one that took its place is meant.
    #[track_caller]
    fn act(&self, selector: &str, how: &str, body: &Value) {
        let began = Instant::now();
        loop {
            let element = self.element(selector);
            let path = format!("/session/{}/element/{element}/{how}", self.session);
            match self.try_call("POST", &path, Some(body)) {
                Ok(_) => return,
                Err(error) if error.contains("stale element") && began.elapsed() < PATIENCE => {}
                Err(error) => panic!("{how} {selector}: {error}"),
            }
        }
    }

    #[track_caller]
    pub(crate) fn click(&self, selector: &str) {
        self.act(selector, "click", &json!({}));
    }

    #[track_caller]
    pub(crate) fn write(&self, selector: &str, text: &str) {
        self.act(selector, "value", &json!({ "text": text }));
    }

    /// A picture of what is shown, in base64; kept where `ORCHESTRATE_TEST_PICTURES` says.
    pub(crate) fn picture(&self, name: &str) {
        let picture = self.of_session("GET", "/screenshot", &Value::Null);
        let picture = picture.as_str().unwrap_or_default();
        assert!(picture.starts_with("iVBOR"), "a picture in PNG");
        if let Some(dir) = std::env::var_os("ORCHESTRATE_TEST_PICTURES") {
            let _ = std::fs::write(Path::new(&dir).join(format!("{name}.png.b64")), picture);
        }
    }

    pub(crate) fn resize(&self, width: u32, height: u32) {
        let size = json!({ "width": width, "height": height });
        self.of_session("POST", "/window/rect", &size);
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        if !self.session.is_empty() {
            let _ = self.try_call("DELETE", &format!("/session/{}", self.session), None);
        }
        let _ = self.driver.kill();
        let _ = self.driver.wait();
    }
}
