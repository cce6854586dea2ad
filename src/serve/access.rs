//! Authentication and authorization of requests.
//!
//! The token grants full access to every process that can read its file. A browser presents it once
//! and gets its own session, in a cookie that scripts cannot read and that other sites cannot make
//! it send. A program sends the token with each request.
//!
//! **Invariant:** a request with a foreign `Host` (for example a DNS name that an attacker points
//! at this machine) is rejected. A browser changes nothing unless its `Origin` is this page and its
//! form was created for its session.

use std::collections::VecDeque;
use std::io::{self, Read};
use std::sync::{Mutex, PoisonError};

use super::http::{Method, Request};
use crate::base::digest;
use crate::disk::fs;

/// Maximum number of sessions. The oldest one is dropped first.
const SESSIONS: usize = 64;

pub(crate) struct Access {
    pub token: String,
    /// Key from which the form tokens are derived.
    secret: String,
    /// Host names of the page, without a port.
    names: Vec<String>,
    cookie: String,
    sessions: Mutex<VecDeque<String>>,
}

/// The authenticated sender of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Caller {
    /// A browser, identified by its session.
    Browser(String),
    /// A program that sent the token.
    Program,
}

/// Reason why a request is rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    Host,
    Origin,
    Form,
    Unknown,
}

impl Refusal {
    pub(crate) fn status(self) -> u16 {
        match self {
            Refusal::Host => 421,
            Refusal::Origin | Refusal::Form => 403,
            Refusal::Unknown => 401,
        }
    }

    pub(crate) fn words(self) -> &'static str {
        match self {
            Refusal::Host => "this page is not served under that name; `--name` allows one",
            Refusal::Origin => "the request does not come from this page",
            Refusal::Form => "the form is not of this session: load the page again",
            Refusal::Unknown => "open the address that `orchestrate serve` printed",
        }
    }
}

impl Access {
    pub(crate) fn new(port: u16, names: &[String]) -> io::Result<Access> {
        let local = ["localhost", "127.0.0.1", "[::1]"].map(str::to_owned);
        Ok(Access {
            token: unguessable()?,
            secret: unguessable()?,
            names: local.into_iter().chain(names.iter().map(|name| name.to_lowercase())).collect(),
            // All ports of a host share cookies, so the name contains the port.
            cookie: format!("orchestrate-{port}"),
            sessions: Mutex::default(),
        })
    }

    /// Rejects a request with a foreign `Host`. Accepts any port, because a tunnel may use another
    /// one.
    pub(crate) fn check_host(&self, request: &Request) -> Result<(), Refusal> {
        let host = request.header("host").ok_or(Refusal::Host)?.to_lowercase();
        let name = match host.rsplit_once(':') {
            Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
            _ => &host,
        };
        if self.names.iter().any(|known| known == name) { Ok(()) } else { Err(Refusal::Host) }
    }

    /// Authenticates a request by its token or session cookie.
    pub(crate) fn caller(&self, request: &Request) -> Result<Caller, Refusal> {
        if let Some(word) = request.header("authorization") {
            let token = word.strip_prefix("Bearer ").unwrap_or_default();
            return if same(token, &self.token) {
                Ok(Caller::Program)
            } else {
                Err(Refusal::Unknown)
            };
        }
        let cookies = request.header("cookie").unwrap_or_default().split(';');
        let own = cookies.filter_map(|cookie| cookie.trim().split_once('='));
        let own = own.filter(|(name, _)| *name == self.cookie).map(|(_, value)| value);
        let sessions = self.sessions.lock().unwrap_or_else(PoisonError::into_inner);
        for value in own {
            if let Some(session) = sessions.iter().find(|session| same(session, value)) {
                return Ok(Caller::Browser(session.clone()));
            }
        }
        Err(Refusal::Unknown)
    }

    /// Checks that a caller may change something with this request.
    pub(crate) fn check_act(
        &self,
        request: &Request,
        caller: &Caller,
        form: &[(String, String)],
    ) -> Result<(), Refusal> {
        debug_assert_eq!(request.method, Method::Post);
        let host = request.header("host").unwrap_or_default().to_lowercase();
        let ours = |origin: &str| {
            let origin = origin.to_lowercase();
            origin == format!("http://{host}") || origin == format!("https://{host}")
        };
        match (caller, request.header("origin")) {
            (_, Some(origin)) if !ours(origin) => return Err(Refusal::Origin),
            (Caller::Browser(_), None) => return Err(Refusal::Origin),
            _ if request.header("origin").is_none() && request.has_header("origin") => {
                return Err(Refusal::Origin);
            }
            _ => {}
        }
        let Caller::Browser(session) = caller else { return Ok(()) };
        let word = form.iter().find(|(name, _)| name == "word").map(|(_, value)| value.as_str());
        match word {
            Some(word) if same(word, &self.word(session)) => Ok(()),
            _ => Err(Refusal::Form),
        }
    }

    /// Returns the form token of a session.
    pub(crate) fn word(&self, session: &str) -> String {
        let mut parts = digest::Parts::default();
        parts.add(&self.secret);
        parts.add(session);
        parts.hex()
    }

    /// Creates a session for a browser that presents the token. Returns the cookie, or `None` if
    /// the token is wrong.
    pub(crate) fn enter(&self, token: &str) -> io::Result<Option<String>> {
        if !same(token, &self.token) {
            return Ok(None);
        }
        let session = unguessable()?;
        let mut sessions = self.sessions.lock().unwrap_or_else(PoisonError::into_inner);
        sessions.push_back(session.clone());
        if sessions.len() > SESSIONS {
            sessions.pop_front();
        }
        let name = &self.cookie;
        Ok(Some(format!("{name}={session}; Path=/; HttpOnly; SameSite=Strict; Max-Age=2592000")))
    }
}

/// Returns 256 random bits from the system, in hexadecimal.
fn unguessable() -> io::Result<String> {
    let mut bytes = [0u8; 32];
    fs::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// Compares two texts in time that does not depend on their common prefix.
fn same(one: &str, other: &str) -> bool {
    let (one, other) = (digest::sha256(one.as_bytes()), digest::sha256(other.as_bytes()));
    let differ = one.bytes().zip(other.bytes()).fold(0, |bits, (a, b)| bits | (a ^ b));
    std::hint::black_box(differ) == 0
}
