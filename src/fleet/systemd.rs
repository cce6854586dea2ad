//! Reports the state of a service to systemd: its notification protocol, one datagram per message.
//!
//! Without a service manager, everything here does nothing. The caller passes the variables in;
//! [`VARIABLES`] are meant for this process alone and are hidden from its children.
//!
//! **Invariant:** a notification never fails and never blocks for long: the service continues even
//! if the manager does not listen.

use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

/// Variables that a manager sets for the service and not for its children.
pub(crate) const VARIABLES: [&str; 3] = ["NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"];

/// Maximum wait while the manager's queue is full; then the message is dropped.
const PATIENCE: Duration = Duration::from_secs(1);

/// A connection to the service manager, if there is one.
#[derive(Debug)]
pub(crate) struct Notifier {
    line: Option<(UnixDatagram, SocketAddr)>,
    watchdog: Option<Duration>,
}

impl Notifier {
    /// Reads the variables that the manager has set.
    pub(crate) fn from(env: impl Fn(&str) -> Option<String>) -> Notifier {
        let line = env("NOTIFY_SOCKET").filter(|name| !name.is_empty()).and_then(|name| {
            open(&name)
                .map_err(|error| tracing::warn!("cannot notify systemd at `{name}`: {error}"))
                .ok()
        });
        let watchdog = if line.is_some() { interval(&env, std::process::id()) } else { None };
        Notifier { line, watchdog }
    }

    /// Reports that the service has started.
    pub(crate) fn ready(&self, status: &str) {
        self.send(&format!("READY=1\n{}", status_line(status)));
    }

    /// Reports the current activity in a few words; `systemctl status` shows it.
    pub(crate) fn status(&self, status: &str) {
        self.send(&status_line(status));
    }

    /// Reports that the service is alive. Call it at least every [`Notifier::watchdog`].
    pub(crate) fn alive(&self) {
        self.send("WATCHDOG=1");
    }

    /// Reports that the service is stopping.
    pub(crate) fn stopping(&self) {
        self.send("STOPPING=1");
    }

    /// Interval of calls to [`Notifier::alive`]: half of the manager's watchdog timeout. `None`
    /// without a watchdog.
    pub(crate) fn watchdog(&self) -> Option<Duration> {
        self.watchdog
    }

    fn send(&self, text: &str) {
        let Some((socket, manager)) = &self.line else { return };
        if let Err(error) = socket.send_to_addr(text.as_bytes(), manager) {
            tracing::warn!("cannot tell systemd `{}`: {error}", text.replace('\n', " "));
        }
    }
}

/// Formats a status. A line break would start another field of the protocol.
fn status_line(status: &str) -> String {
    format!("STATUS={}", status.replace(char::is_control, " "))
}

fn open(name: &str) -> io::Result<(UnixDatagram, SocketAddr)> {
    let address = match name.as_bytes() {
        [b'@', rest @ ..] => SocketAddr::from_abstract_name(rest)?,
        [b'/', ..] => SocketAddr::from_pathname(OsStr::from_bytes(name.as_bytes()))?,
        _ => return Err(io::Error::other("it is neither a path nor an abstract name")),
    };
    let socket = UnixDatagram::unbound()?;
    socket.set_write_timeout(Some(PATIENCE))?;
    Ok((socket, address))
}

/// Returns the time between two watchdog messages; `None` if the watchdog is meant for another
/// process.
fn interval(env: &impl Fn(&str) -> Option<String>, own_pid: u32) -> Option<Duration> {
    if env("WATCHDOG_PID").is_some_and(|pid| pid.parse() != Ok(own_pid)) {
        return None;
    }
    let micros: u64 = env("WATCHDOG_USEC")?.parse().ok()?;
    (micros > 0).then(|| Duration::from_micros(micros.div_ceil(2)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An environment of these variables.
    fn vars<'a>(list: &'a [(&str, &str)]) -> impl Fn(&str) -> Option<String> + 'a {
        |name| list.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned())
    }

    fn heard(manager: &UnixDatagram) -> String {
        let mut buffer = [0; 512];
        let size = manager.recv(&mut buffer).unwrap();
        String::from_utf8(buffer[..size].to_vec()).unwrap()
    }

    fn says_all(notifier: &Notifier, manager: &UnixDatagram) {
        manager.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        notifier.ready("serving `engineer`");
        assert_eq!(heard(manager), "READY=1\nSTATUS=serving `engineer`");
        notifier.status("two\nREADY=0\tlines");
        assert_eq!(heard(manager), "STATUS=two READY=0 lines");
        notifier.alive();
        assert_eq!(heard(manager), "WATCHDOG=1");
        notifier.stopping();
        assert_eq!(heard(manager), "STOPPING=1");
    }

    #[test]
    fn a_manager_at_a_path_hears_every_word() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("notify");
        let manager = UnixDatagram::bind(&path).unwrap();
        let notifier = Notifier::from(vars(&[("NOTIFY_SOCKET", path.to_str().unwrap())]));
        says_all(&notifier, &manager);
        assert_eq!(notifier.watchdog(), None);
    }

    #[test]
    fn a_manager_at_an_abstract_name_hears_every_word() {
        let name = format!("orchestrate-test-{}", std::process::id());
        let address = SocketAddr::from_abstract_name(&name).unwrap();
        let manager = UnixDatagram::bind_addr(&address).unwrap();
        let notifier = Notifier::from(vars(&[("NOTIFY_SOCKET", &format!("@{name}"))]));
        says_all(&notifier, &manager);
    }

    #[test]
    fn without_a_manager_nothing_happens() {
        let dir = tempfile::tempdir().unwrap();
        let gone = dir.path().join("gone");
        let gone = gone.to_str().unwrap();
        for socket in ["", "relative", "vsock:2:1234", gone] {
            let env = [("NOTIFY_SOCKET", socket)];
            Notifier::from(vars(&env)).ready("nobody hears this");
        }
        let alone = Notifier::from(vars(&[("WATCHDOG_USEC", "1000000")]));
        alone.alive();
        assert_eq!(alone.watchdog(), None, "nobody would hear the signs of life");
    }

    #[test]
    fn a_manager_that_does_not_read_costs_a_moment_only() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("notify");
        let _deaf = UnixDatagram::bind(&path).unwrap();
        let notifier = Notifier::from(vars(&[("NOTIFY_SOCKET", path.to_str().unwrap())]));
        let (socket, manager) = notifier.line.as_ref().unwrap();
        socket.set_nonblocking(true).unwrap();
        while socket.send_to_addr(b"x", manager).is_ok() {}
        socket.set_nonblocking(false).unwrap();
        let began = std::time::Instant::now();
        notifier.alive();
        assert!(began.elapsed() < PATIENCE * 5);
    }

    #[test]
    fn signs_of_life_come_twice_as_often_as_needed_and_only_from_whom_they_are_wanted() {
        let every = |list: &[(&str, &str)]| interval(&vars(list), 7);
        let usec = ("WATCHDOG_USEC", "30000000");
        assert_eq!(every(&[usec]), Some(Duration::from_secs(15)));
        assert_eq!(every(&[usec, ("WATCHDOG_PID", "7")]), Some(Duration::from_secs(15)));
        assert_eq!(every(&[usec, ("WATCHDOG_PID", "8")]), None);
        assert_eq!(every(&[("WATCHDOG_USEC", "0")]), None);
        assert_eq!(every(&[("WATCHDOG_USEC", "soon")]), None);
        assert_eq!(every(&[]), None);
    }
}
