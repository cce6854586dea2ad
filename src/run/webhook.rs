//! Posts one document to an address through `curl`, so that this program needs no HTTP client.
//!
//! **Invariant:** neither the address nor the content appears on a command line: both may hold a
//! secret, and every user of the machine can read command lines.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Seek, Write};
use std::path::Path;
use std::time::Duration;

use nix::sys::memfd::{MFdFlags, memfd_create};

use crate::exec::{self, How, Order, Said};

/// Maximum stored output of a failed command.
const SAID_BYTES: usize = 4096;

/// Posts a JSON document with additional headers. The error states why it failed.
pub(crate) fn post(
    url: &str,
    headers: &[(String, String)],
    body: &str,
    timeout: Duration,
    cwd: &Path,
) -> io::Result<()> {
    let argv = ["curl", "--config", "-"].map(str::to_owned);
    let said = said(&argv, &curl_config(url, headers, body), &[], timeout, cwd)?;
    // A redirect does not count as delivery.
    match String::from_utf8_lossy(&said.out).trim() {
        answer if answer.is_empty() || answer.starts_with('2') => Ok(()),
        answer => Err(io::Error::other(format!("it answered {answer}"))),
    }
}

/// Runs a command with a text on its stdin. The error states why it failed.
pub(crate) fn call(
    argv: &[String],
    stdin: &str,
    env: &[(String, OsString)],
    timeout: Duration,
    cwd: &Path,
) -> io::Result<()> {
    said(argv, stdin, env, timeout, cwd).map(|_| ())
}

/// Runs a command and returns its output, or an error unless it exits with 0.
fn said(
    argv: &[String],
    stdin: &str,
    env: &[(String, OsString)],
    timeout: Duration,
    cwd: &Path,
) -> io::Result<Said> {
    let order = Order { env, timeout: Some(timeout), ..Order::new(argv, cwd, "notice") };
    let input = in_memory(stdin.as_bytes())?;
    let said = exec::call(&order, Some(&input), SAID_BYTES, None).map_err(io::Error::other)?;
    let words = String::from_utf8_lossy(&said.err);
    let words = words.lines().next().map(|line| format!(": {line}")).unwrap_or_default();
    match said.how {
        How::Exited(0) => Ok(said),
        How::Exited(code) => Err(io::Error::other(format!("exit code {code}{words}"))),
        How::TimedOut => Err(io::Error::other("it took too long")),
        how => Err(io::Error::other(format!("it ended with {how:?}{words}"))),
    }
}

/// Returns the configuration that `curl` reads from its stdin.
fn curl_config(url: &str, headers: &[(String, String)], body: &str) -> String {
    let quoted = |text: &str| {
        let text = text.replace('\\', "\\\\").replace('"', "\\\"");
        format!("\"{}\"", text.replace('\n', "\\n").replace('\r', "\\r"))
    };
    // A header is one line, even if its value has line breaks.
    let line = |(name, value): &(String, String)| {
        let header = format!("{name}: {value}").replace(['\r', '\n'], " ");
        format!("header = {}\n", quoted(&header))
    };
    let headers: String = headers.iter().map(line).collect();
    let (url, body) = (quoted(url), quoted(body));
    format!(
        "url = {url}\nsilent\nshow-error\nfail\noutput = \"/dev/null\"\n\
         write-out = \"%{{http_code}}\"\nproto = \"=http,https\"\n\
         header = \"Content-Type: application/json\"\n{headers}data-raw = {body}\n"
    )
}

/// Creates an in-memory file with this content, positioned at its start.
fn in_memory(bytes: &[u8]) -> io::Result<File> {
    let mut file = File::from(memfd_create(c"notice", MFdFlags::MFD_CLOEXEC)?);
    file.write_all(bytes)?;
    file.rewind()?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_curl_is_told_stays_in_its_quotes() {
        let headers = [("key".to_owned(), "a\nb\"".to_owned())];
        let config = curl_config("https://x/?a=\"b\"", &headers, "{\"m\":\"two\\nlines\"}");
        assert!(config.starts_with("url = \"https://x/?a=\\\"b\\\"\"\n"), "{config}");
        assert!(config.contains(r#"data-raw = "{\"m\":\"two\\nlines\"}""#), "{config}");
        assert!(config.contains("header = \"key: a b\\\"\"\n"), "{config}");
        assert_eq!(config.lines().count(), 10);
    }
}
