//! A minimal HTTP/1.1 server for a few users: requests and responses of known length, and one event
//! stream.
//!
//! **Invariant:** the size and the duration of a request are bounded before it is processed. A
//! client that sends one byte a minute is cut off at the same time as a client that sends nothing.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use crate::base::time::{Clock as _, SystemClock, Time};

const HEAD_BYTES: usize = 16 << 10;
const HEADERS: usize = 64;
const BODY_BYTES: usize = 512 << 10;
/// Time limits for the head of a request, and for the whole request.
const HEAD_TIME: Duration = Duration::from_secs(8);
const BODY_TIME: Duration = Duration::from_secs(20);
/// Time limits for an idle connection, and for the client to read a response.
const IDLE_TIME: Duration = Duration::from_secs(30);
const WRITE_TIME: Duration = Duration::from_secs(15);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Method {
    Get,
    Head,
    Post,
    /// A method that is not supported.
    Other,
}

#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub method: Method,
    /// The path as it was sent, without the query.
    pub path: String,
    pub query: Vec<(String, String)>,
    /// Names are lowercase.
    headers: Vec<(String, String)>,
    pub body: Vec<u8>,
    keep_alive: bool,
    /// True if the client sends the body only after `100 Continue`.
    asks_first: bool,
}

impl Request {
    /// Returns a header that occurs exactly once. A repeated header counts as missing.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let mut found = self.headers.iter().filter(|(key, _)| key == name);
        match (found.next(), found.next()) {
            (Some((_, value)), None) => Some(value),
            _ => None,
        }
    }

    pub(crate) fn has_header(&self, name: &str) -> bool {
        self.headers.iter().any(|(key, _)| key == name)
    }

    pub(crate) fn asked(&self, name: &str) -> Option<&str> {
        self.query.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    /// Returns the decoded parts of the path.
    pub(crate) fn parts(&self) -> Vec<String> {
        parts(&self.path)
    }

    /// Returns the fields of a form.
    pub(crate) fn form(&self) -> Vec<(String, String)> {
        fields(&String::from_utf8_lossy(&self.body))
    }
}

/// Reason why a request could not be read.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The client disconnected or stayed idle.
    Gone,
    /// The response to send before the connection is closed, and the requested path if it was
    /// parsed.
    Bad { status: u16, words: &'static str, path: Option<String> },
}

impl Fault {
    fn bad(status: u16, words: &'static str) -> Fault {
        Fault::Bad { status, words, path: None }
    }

    fn of(self, request: &Request) -> Fault {
        match self {
            Fault::Bad { status, words, .. } => {
                Fault::Bad { status, words, path: Some(request.path.clone()) }
            }
            Fault::Gone => Fault::Gone,
        }
    }
}

pub(crate) struct Connection {
    stream: TcpStream,
    /// Bytes that were read but not yet used.
    rest: Vec<u8>,
}

impl Connection {
    pub(crate) fn new(stream: TcpStream) -> io::Result<Connection> {
        stream.set_nodelay(true)?;
        stream.set_write_timeout(Some(WRITE_TIME))?;
        Ok(Connection { stream, rest: Vec::new() })
    }

    /// Waits for a request.
    pub(crate) fn request(&mut self) -> Result<Request, Fault> {
        if self.rest.is_empty() {
            // An idle connection between requests is not an error.
            match self.fill(Instant::now() + IDLE_TIME) {
                Ok(0) | Err(_) => return Err(Fault::Gone),
                Ok(_) => {}
            }
        }
        let began = Instant::now();
        loop {
            if let Some((mut request, head, length)) = parse(&self.rest)? {
                self.rest.drain(..head);
                if request.asks_first && self.rest.len() < length {
                    self.go_on()?;
                }
                let read = self.read_body(length, began + BODY_TIME);
                read.map_err(|fault| fault.of(&request))?;
                request.body = self.rest.drain(..length).collect();
                return Ok(request);
            }
            if self.rest.len() > HEAD_BYTES {
                return Err(Fault::bad(431, "the head of the request is too long"));
            }
            self.more(began + HEAD_TIME)?;
        }
    }

    /// Asks the client to send the body.
    fn go_on(&mut self) -> Result<(), Fault> {
        let said = self.stream.write_all(b"HTTP/1.1 100 Continue\r\n\r\n");
        said.map_err(|_| Fault::Gone)
    }

    fn read_body(&mut self, length: usize, until: Instant) -> Result<(), Fault> {
        while self.rest.len() < length {
            self.more(until)?;
        }
        Ok(())
    }

    fn more(&mut self, until: Instant) -> Result<(), Fault> {
        match self.fill(until) {
            Ok(0) => Err(Fault::Gone),
            Ok(_) => Ok(()),
            Err(error) if error.kind() == io::ErrorKind::TimedOut => {
                Err(Fault::bad(408, "the request took too long"))
            }
            Err(_) => Err(Fault::Gone),
        }
    }

    fn fill(&mut self, until: Instant) -> io::Result<usize> {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        self.stream.set_read_timeout(Some(left))?;
        let mut piece = [0; 8 << 10];
        let count = self.stream.read(&mut piece).map_err(|error| match error.kind() {
            io::ErrorKind::WouldBlock => io::ErrorKind::TimedOut.into(),
            _ => error,
        })?;
        self.rest.extend_from_slice(&piece[..count]);
        Ok(count)
    }

    /// Writes a response. Returns true if another request may follow.
    pub(crate) fn answer(
        &mut self,
        request: Option<&Request>,
        answer: &Answer,
    ) -> io::Result<bool> {
        let keep = request.is_some_and(|request| request.keep_alive);
        let head = answer.head(if keep { "keep-alive" } else { "close" }, true);
        let mut bytes = head.into_bytes();
        if request.is_none_or(|request| request.method != Method::Head) {
            bytes.extend_from_slice(&answer.body);
        }
        self.stream.write_all(&bytes)?;
        self.stream.flush()?;
        Ok(keep)
    }

    /// Starts an event stream. Returns `None` for a HEAD request, whose response has no body.
    pub(crate) fn begin_stream(&mut self, request: &Request) -> io::Result<Option<&mut TcpStream>> {
        let answer = Answer::new(200, "text/event-stream; charset=utf-8", "");
        self.stream.write_all(answer.head("close", false).as_bytes())?;
        Ok((request.method != Method::Head).then_some(&mut self.stream))
    }
}

/// Parses the request at the start of `bytes`. Returns the request, the length of its head, and the
/// length of its body, or `None` if the head is incomplete.
pub(crate) fn parse(bytes: &[u8]) -> Result<Option<(Request, usize, usize)>, Fault> {
    let mut headers = [httparse::EMPTY_HEADER; HEADERS];
    let mut parsed = httparse::Request::new(&mut headers);
    let head = match parsed.parse(bytes) {
        Ok(httparse::Status::Complete(head)) if head <= HEAD_BYTES => head,
        Ok(httparse::Status::Complete(_)) => {
            return Err(Fault::bad(431, "the head of the request is too long"));
        }
        Ok(httparse::Status::Partial) => return Ok(None),
        Err(httparse::Error::TooManyHeaders) => {
            return Err(Fault::bad(431, "the request has too many headers"));
        }
        Err(_) => return Err(Fault::bad(400, "this is no request of HTTP")),
    };
    let method = match parsed.method {
        Some("GET") => Method::Get,
        Some("HEAD") => Method::Head,
        Some("POST") => Method::Post,
        _ => Method::Other,
    };
    let target = parsed.path.unwrap_or_default();
    if !target.starts_with('/') {
        return Err(Fault::bad(400, "the target must be a path"));
    }
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let text = |value: &[u8]| String::from_utf8_lossy(value).trim().to_owned();
    let headers = parsed.headers.iter();
    let headers: Vec<(String, String)> =
        headers.map(|header| (header.name.to_ascii_lowercase(), text(header.value))).collect();
    // Both headers are lists, and each may occur on several lines.
    let lists = |name: &str, token: &str| {
        let values = headers.iter().filter(|(key, _)| key == name).map(|(_, value)| value);
        values.flat_map(|value| value.split(',')).any(|t| t.trim().eq_ignore_ascii_case(token))
    };
    let closes = lists("connection", "close");
    let asks_first = lists("expect", "100-continue");
    let modern = parsed.version == Some(1);
    let request = Request {
        method,
        path: path.to_owned(),
        query: fields(query),
        headers,
        body: Vec::new(),
        keep_alive: modern && !closes,
        asks_first: modern && asks_first,
    };
    let length = length_of_body(&request).map_err(|fault| fault.of(&request))?;
    Ok(Some((request, head, length)))
}

fn length_of_body(request: &Request) -> Result<usize, Fault> {
    if request.has_header("transfer-encoding") {
        return Err(Fault::bad(501, "a body must tell its length"));
    }
    let length = match (request.has_header("content-length"), request.header("content-length")) {
        (false, _) => 0,
        (true, Some(length)) if length.bytes().all(|byte| byte.is_ascii_digit()) => {
            length.parse().map_err(|_| Fault::bad(413, "the body is too long"))?
        }
        _ => return Err(Fault::bad(400, "the length of the body is not a number")),
    };
    if length > BODY_BYTES {
        return Err(Fault::bad(413, "the body is too long"));
    }
    Ok(length)
}

/// Returns the decoded parts of a path.
pub(crate) fn parts(path: &str) -> Vec<String> {
    let parts = path.split('/').filter(|part| !part.is_empty());
    parts.map(|part| decode(part, false)).collect()
}

/// A response of known length.
pub(crate) struct Answer {
    status: u16,
    kind: &'static str,
    headers: Vec<(&'static str, String)>,
    body: Vec<u8>,
}

impl Answer {
    pub(crate) fn new(status: u16, kind: &'static str, body: impl Into<Vec<u8>>) -> Answer {
        Answer { status, kind, headers: Vec::new(), body: body.into() }
    }

    pub(crate) fn html(status: u16, page: String) -> Answer {
        Answer::new(status, "text/html; charset=utf-8", page)
    }

    pub(crate) fn json(status: u16, document: &serde_json::Value) -> Answer {
        Answer::new(status, "application/json", format!("{document}\n"))
    }

    pub(crate) fn text(status: u16, text: &str) -> Answer {
        Answer::new(status, "text/plain; charset=utf-8", format!("{text}\n"))
    }

    /// Redirects a browser to the page that shows the result.
    pub(crate) fn see(place: &str) -> Answer {
        Answer::text(303, "see there").with("Location", place.to_owned())
    }

    /// Adds a header. Removes line breaks from the value, which would start another header.
    pub(crate) fn with(mut self, name: &'static str, value: String) -> Answer {
        let value = value.replace(['\r', '\n', '\0'], "");
        self.headers.push((name, value));
        self
    }

    fn head(&self, connection: &str, with_length: bool) -> String {
        let mut head = format!("HTTP/1.1 {} {}\r\n", self.status, reason(self.status));
        head.push_str(&format!("Content-Type: {}\r\n", self.kind));
        if with_length {
            head.push_str(&format!("Content-Length: {}\r\n", self.body.len()));
        }
        head.push_str(&format!("Connection: {connection}\r\n"));
        head.push_str(&format!("Date: {}\r\n", date(SystemClock.now())));
        head.push_str(SAFETY);
        for (name, value) in &self.headers {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        head.push_str("\r\n");
        head
    }
}

/// Headers of every response: no caching, framing, content sniffing, or loading from other origins.
/// The referrer is sent only to this origin. With `no-referrer`, browsers would omit the `Origin`
/// of forms, which [`super::access`] requires.
const SAFETY: &str = "Cache-Control: no-store\r\n\
    Content-Security-Policy: default-src 'none'; style-src 'self'; script-src 'self'; \
    connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'\r\n\
    X-Content-Type-Options: nosniff\r\n\
    X-Frame-Options: DENY\r\n\
    Referrer-Policy: same-origin\r\n\
    Cross-Origin-Opener-Policy: same-origin\r\n\
    Cross-Origin-Resource-Policy: same-origin\r\n";

fn reason(status: u16) -> &'static str {
    match status {
        200 => "OK",
        202 => "Accepted",
        303 => "See Other",
        400 => "Bad Request",
        401 => "Unauthorized",
        403 => "Forbidden",
        404 => "Not Found",
        405 => "Method Not Allowed",
        408 => "Request Timeout",
        409 => "Conflict",
        413 => "Content Too Large",
        415 => "Unsupported Media Type",
        421 => "Misdirected Request",
        431 => "Request Header Fields Too Large",
        500 => "Internal Server Error",
        501 => "Not Implemented",
        503 => "Service Unavailable",
        // An empty reason phrase is valid; a wrong one misleads.
        _ => "",
    }
}

/// Formats a time for the `Date` header, which is always in GMT.
fn date(at: Time) -> String {
    let at = chrono::DateTime::from_timestamp_millis(at.0).unwrap_or_default();
    at.format("%a, %d %b %Y %H:%M:%S GMT").to_string()
}

/// Parses the fields of a query or a form.
fn fields(text: &str) -> Vec<(String, String)> {
    let pairs = text.split('&').filter(|pair| !pair.is_empty());
    let pair = |pair: &str| {
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        (decode(key, true), decode(value, true))
    };
    pairs.map(pair).collect()
}

/// Decodes percent-encoding. In a form, `+` is a space.
fn decode(text: &str, form: bool) -> String {
    let bytes = text.as_bytes();
    let digit = |at: usize| bytes.get(at).and_then(|byte| (*byte as char).to_digit(16));
    let (mut out, mut at) = (Vec::with_capacity(bytes.len()), 0);
    while at < bytes.len() {
        match (bytes[at], digit(at + 1), digit(at + 2)) {
            (b'%', Some(high), Some(low)) => {
                out.push((high * 16 + low) as u8);
                at += 2;
            }
            (b'+', _, _) if form => out.push(b' '),
            (byte, _, _) => out.push(byte),
        }
        at += 1;
    }
    String::from_utf8_lossy(&out).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bad(text: &str) -> Option<Fault> {
        parse(text.as_bytes()).err()
    }

    #[test]
    fn a_request_is_read() {
        let text =
            "POST /runs/a%2fb/x?q=%41+b&c HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\n\r\na=b";
        let (request, head, length) = parse(text.as_bytes()).unwrap().unwrap();
        assert_eq!((request.method, length, text.len() - head), (Method::Post, 3, 3));
        assert_eq!(request.parts(), ["runs", "a/b", "x"]);
        assert_eq!((request.asked("q"), request.asked("c")), (Some("A b"), Some("")));
        assert!(request.keep_alive);
        assert!(parse(b"GET / HTTP/1.1\r\nHost:").unwrap().is_none());
    }

    #[test]
    fn what_could_be_read_in_two_ways_is_refused() {
        let post = |headers: &str| format!("POST / HTTP/1.1\r\n{headers}\r\n\r\n");
        let of_root = |status, words| Fault::Bad { status, words, path: Some("/".into()) };
        let fault = of_root(501, "a body must tell its length");
        assert_eq!(bad(&post("Transfer-Encoding: chunked")), Some(fault));
        for headers in
            ["Content-Length: 1\r\nContent-Length: 2", "Content-Length: +1", "Content-Length: 0x1"]
        {
            let fault = of_root(400, "the length of the body is not a number");
            assert_eq!(bad(&post(headers)), Some(fault), "{headers}");
        }
        let fault = of_root(413, "the body is too long");
        assert_eq!(bad(&post("Content-Length: 99999999")), Some(fault));
        assert!(matches!(
            bad("GET http://x/ HTTP/1.1\r\n\r\n"),
            Some(Fault::Bad { status: 400, path: None, .. })
        ));
        assert!(matches!(
            bad("\u{1}\u{2}\r\n\r\n"),
            Some(Fault::Bad { status: 400, path: None, .. })
        ));
    }

    #[test]
    fn connection_is_a_list_of_tokens() {
        let keeps = |headers: &str| {
            let text = format!("GET / HTTP/1.1\r\n{headers}\r\n\r\n");
            parse(text.as_bytes()).unwrap().unwrap().0.keep_alive
        };
        assert!(keeps("Host: h") && keeps("Connection: foo, closed"));
        for headers in
            ["Connection: foo, close", "Connection: CLOSE", "Connection: a\r\nConnection: close"]
        {
            assert!(!keeps(headers), "{headers}");
        }
    }

    #[test]
    fn every_status_that_is_answered_has_its_own_reason() {
        let head = Answer::text(415, "no").head("close", true);
        assert!(head.starts_with("HTTP/1.1 415 Unsupported Media Type\r\n"), "{head}");
        assert_eq!(date(Time(784_111_777_000)), "Sun, 06 Nov 1994 08:49:37 GMT");
        assert!(head.contains("\r\nDate: "), "{head}");
    }

    #[test]
    fn a_header_cannot_be_broken() {
        let answer = Answer::see("/x\r\nSet-Cookie: y");
        assert!(answer.head("close", true).contains("\r\nLocation: /xSet-Cookie: y\r\n"));
    }
}
