//! `orchestrate serve`: the dashboard in a browser. It shows the same data as the verbs, and runs
//! the verbs to perform actions.
//!
//! One thread accepts connections, each connection has its own thread, and one more thread watches
//! the workspace while a browser is connected. The server keeps only login sessions, so a killed
//! server loses nothing, and several servers may serve one workspace.

use std::io::Write;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use serde_json::json;

use super::act::Hands;
use super::invocation::Invocation;
use super::output::{put, put_json};
use super::{Common, signals};
use crate::disk::{self, fs};
use crate::run::failure::Failure;
use crate::run::project::keep_from_git;
use crate::serve::access::Access;
use crate::serve::connections::{Guests, Seat};
use crate::serve::follow;
use crate::serve::http::{Answer, Connection, Fault};
use crate::serve::live::Live;
use crate::serve::routes::{House, Reply, refusal_at};

/// Maximum number of concurrent connections.
const CONNECTIONS: usize = 96;
/// Time that pending requests get to finish at shutdown.
const GRACE: Duration = Duration::from_secs(3);
/// Time that a browser waits for the result of an action.
const PATIENCE: Duration = Duration::from_secs(4);

#[derive(clap::Args, Clone, Debug)]
pub(super) struct ServeArgs {
    /// Where to listen; port 0 is any that is free
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:7717")]
    pub listen: SocketAddr,
    /// Listen on an address that other machines can reach, without encryption
    #[arg(long)]
    pub expose: bool,
    /// Another name that the page may be asked for by, as behind a proxy
    #[arg(long, value_name = "HOST")]
    pub name: Vec<String>,
}

pub(super) fn main(args: &ServeArgs, common: &Common) -> Result<u8, Failure> {
    let invocation = Invocation::read(common)?;
    let mut names = args.name.clone();
    if !args.listen.ip().is_loopback() {
        if !args.expose {
            let message = format!("`{}` can be reached by other machines", args.listen.ip());
            return Err(Failure::invalid(message).hint(
                "listen on 127.0.0.1 and come through `ssh -L`, or say `--expose` if the network \
                 is yours",
            ));
        }
        tracing::warn!(
            "whoever reads the network between you and {} reads the token and everything shown",
            args.listen
        );
    }
    names.push(host_name(args.listen.ip()));
    let cannot = |error: std::io::Error| {
        Failure::failed(format!("cannot listen on {}: {error}", args.listen))
            .hint("`--listen 127.0.0.1:0` takes any port that is free")
    };
    let listener = TcpListener::bind(args.listen).map_err(cannot)?;
    let at = listener.local_addr().map_err(cannot)?;
    let access = Access::new(at.port(), &names)
        .map_err(|error| Failure::failed(format!("cannot make a token: {error}")))?;
    let kept = TokenFile::write(&invocation, at.port(), &access.token)?;
    let hands = Hands::new(PATIENCE)
        .map_err(|error| Failure::failed(format!("cannot find this program: {error}")))?;
    let signals = signals::listen()?;
    tell(&invocation, at, &access, kept.as_ref())?;
    let live = Live::start(&invocation.workspace, &invocation.state_dir);
    let house = Arc::new(House { invocation, access, live: live.clone(), hands });
    let busy = Arc::new(AtomicUsize::new(0));
    let (serving, working) = (house.clone(), busy.clone());
    std::thread::spawn(move || accept(&listener, &serving, &working));
    while signals.stop.wait_above(0, Duration::from_secs(3600)) == 0 {}
    live.end();
    let until = Instant::now() + GRACE;
    while busy.load(Ordering::SeqCst) > 0 && Instant::now() < until && signals.stop.level() < 2 {
        std::thread::sleep(Duration::from_millis(10));
    }
    drop(kept);
    Ok(signals.code())
}

fn host_name(ip: IpAddr) -> String {
    match ip {
        IpAddr::V4(ip) => ip.to_string(),
        IpAddr::V6(ip) => format!("[{ip}]"),
    }
}

/// Returns the host name that reaches `ip` from this machine.
fn reached_by(ip: IpAddr) -> String {
    match ip {
        ip if !ip.is_unspecified() => host_name(ip),
        IpAddr::V4(_) => "127.0.0.1".to_owned(),
        IpAddr::V6(_) => "[::1]".to_owned(),
    }
}

fn tell(
    invocation: &Invocation,
    at: SocketAddr,
    access: &Access,
    kept: Option<&TokenFile>,
) -> Result<(), Failure> {
    let url = format!("http://{at}/?token={}", access.token);
    if invocation.common.json {
        let file = kept.map(|kept| kept.0.display().to_string());
        return put_json(
            "serve/v1",
            json!({ "url": url, "listen": at.to_string(), "token_file": file }),
        );
    }
    put(&format!("{url}\n"))?;
    let (host, port) = (reached_by(at.ip()), at.port());
    invocation.note(format!(
        "open it in a browser; from another machine, first: ssh -L {port}:{host}:{port} HERE"
    ));
    Ok(())
}

/// The file that holds the token. Only its owner can read it, and it is removed on drop.
struct TokenFile(PathBuf);

impl TokenFile {
    /// Writes the file. Returns `None` with a warning if the directory is not writable; the token
    /// is then only printed.
    fn write(
        invocation: &Invocation,
        port: u16,
        token: &str,
    ) -> Result<Option<TokenFile>, Failure> {
        let dir = invocation.workspace.join(".orchestrate");
        let file = dir.join(format!("serve-{port}.token"));
        let way = dir.join(format!(".serve-{port}.{}.tmp", std::process::id()));
        let write = || {
            disk::machine().make_dirs(&dir)?;
            keep_from_git(&invocation.workspace);
            let _ = fs::remove_file(&way);
            let mut options = std::fs::OpenOptions::new();
            let mut open = options.write(true).create_new(true).mode(0o600).open(&way)?;
            open.write_all(format!("{token}\n").as_bytes())?;
            disk::rename(&way, &file)
        };
        match write() {
            Ok(()) => Ok(Some(TokenFile(file))),
            Err(error) if is_forbidden(&error) => {
                tracing::warn!("the token is kept nowhere but here: {error}");
                Ok(None)
            }
            Err(error) => {
                Err(Failure::failed(format!("cannot write `{}`: {error}", file.display())))
            }
        }
    }
}

fn is_forbidden(error: &std::io::Error) -> bool {
    use std::io::ErrorKind::{PermissionDenied, ReadOnlyFilesystem};
    matches!(error.kind(), PermissionDenied | ReadOnlyFilesystem)
}

impl Drop for TokenFile {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

fn accept(listener: &TcpListener, house: &Arc<House>, busy: &Arc<AtomicUsize>) {
    let guests = Guests::new(CONNECTIONS);
    loop {
        let stream = match listener.accept() {
            Ok((stream, _)) => stream,
            // Too many files are open, or the client has already disconnected.
            Err(_) => {
                std::thread::sleep(Duration::from_millis(50));
                continue;
            }
        };
        let Some(seat) = guests.seat(&stream) else {
            turn_away(stream);
            continue;
        };
        let (house, busy) = (house.clone(), busy.clone());
        // If no thread can be started, dropping the seat and the stream closes the connection.
        let _ = std::thread::Builder::new()
            .name("connection".into())
            .spawn(move || serve(stream, &seat, &house, &busy));
    }
}

fn turn_away(stream: TcpStream) {
    let _ = stream.set_nonblocking(true);
    if let Ok(mut connection) = Connection::new(stream) {
        let answer = Answer::text(503, "too many connections are open");
        let _ = connection.answer(None, &answer.with("Retry-After", "1".to_owned()));
    }
}

/// Serves one connection until it is closed.
fn serve(stream: TcpStream, seat: &Seat, house: &House, busy: &AtomicUsize) {
    let Ok(mut connection) = Connection::new(stream) else { return };
    loop {
        let request = match connection.request() {
            Ok(request) => request,
            Err(Fault::Gone) => return,
            Err(Fault::Bad { status, words, path }) => {
                let answer = refusal_at(path.as_deref().unwrap_or_default(), status, words);
                let _ = connection.answer(None, &answer);
                return;
            }
        };
        if house.knows(&request) {
            seat.keep();
        }
        busy.fetch_add(1, Ordering::SeqCst);
        let reply = house.route(&request);
        let goes_on = match &reply {
            Reply::Answer(answer) => connection.answer(Some(&request), answer).unwrap_or(false),
            _ => false,
        };
        busy.fetch_sub(1, Ordering::SeqCst);
        // Streams do not count as busy, so they do not delay the shutdown.
        match reply {
            Reply::Answer(_) => {}
            Reply::Live => {
                if let Ok(Some(to)) = connection.begin_stream(&request) {
                    let _ = follow::changes(house, to);
                }
            }
            Reply::Follow(log) => {
                if let Ok(Some(to)) = connection.begin_stream(&request) {
                    let _ = follow::log(house, &log, to);
                }
            }
        }
        if !goes_on || house.live.is_over() {
            return;
        }
    }
}
