//! Event streams: change notifications, and the output of a step.

use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::time::{Duration, Instant};

use super::routes::{House, kept};
use crate::agent::{self, Kind};
use crate::base::ids::RunId;
use crate::engine::run::Address;
use crate::report::html::printed;
use crate::view::{Standing, StepShown, excerpt};

/// Maximum silence of a stream. A closed connection is detected by then.
const SILENCE: Duration = Duration::from_secs(10);
/// Interval for reading a log, and for checking whether the step may print more.
const LOOK: Duration = Duration::from_millis(250);
const ASK: Duration = Duration::from_secs(1);
/// Maximum number of bytes to read at once.
const PIECE: usize = 256 << 10;

/// Sends an event for each change of the workspace.
pub(crate) fn changes(house: &House, to: &mut impl Write) -> io::Result<()> {
    let _onlooker = house.live.join();
    let mut heard = house.live.bell.rings();
    write!(to, "retry: 2000\n: hello\n\n")?;
    while !house.live.is_over() {
        house.live.bell.wait(heard, SILENCE);
        let rings = house.live.bell.rings();
        match rings > heard {
            true => write!(to, "event: change\ndata: {rings}\n\n")?,
            false => write!(to, ": still here\n\n")?,
        }
        to.flush()?;
        heard = rings;
    }
    Ok(())
}

/// A log to follow, and the offsets to start from (stdout, stderr).
pub(crate) struct Log {
    pub id: RunId,
    pub name: String,
    pub from: (u64, u64),
}

/// One output stream of a step.
struct Stream {
    kind: &'static str,
    at: u64,
    inode: Option<u64>,
    agent: Option<agent::Stream>,
}

/// Sends the output of a step until the step cannot print more.
pub(crate) fn log(house: &House, log: &Log, to: &mut impl Write) -> io::Result<()> {
    let adapter = adapter(house, log);
    let mut streams = [("stdout", log.from.0), ("stderr", log.from.1)].map(|(kind, at)| {
        let listens = kind == "stdout" && adapter.is_stream();
        let agent = listens.then(|| agent::Stream::new(adapter));
        Stream { kind, at, inode: None, agent }
    });
    let (mut spoke, mut asked) = (Instant::now(), Instant::now());
    let mut more = goes_on(house, log);
    while !house.live.is_over() {
        if asked.elapsed() > ASK {
            more = goes_on(house, log);
            asked = Instant::now();
        }
        let mut said = false;
        for stream in &mut streams {
            while send(house, log, stream, !more, to)? {
                said = true;
            }
        }
        if !more {
            send_short(house, log, &streams[0], to)?;
            write!(to, "event: end\ndata: over\n\n")?;
            return to.flush();
        }
        if said || spoke.elapsed() > SILENCE {
            // The event id lets the browser continue here after a broken connection.
            write!(to, "id: {},{}\n\n", streams[0].at, streams[1].at)?;
            to.flush()?;
            spoke = Instant::now();
        }
        std::thread::sleep(LOOK);
    }
    Ok(())
}

/// Sends new output of one stream: whole lines, or everything if `all`. Returns true if it sent
/// any.
fn send(
    house: &House,
    log: &Log,
    stream: &mut Stream,
    all: bool,
    to: &mut impl Write,
) -> io::Result<bool> {
    let root = house.invocation.state_dir.join(log.id.as_str());
    let Ok(file) = excerpt::open(&root, &format!("logs/{}.{}", log.name, stream.kind)) else {
        return Ok(false);
    };
    let there = file.metadata()?;
    let another = stream.inode.is_some_and(|inode| inode != there.ino());
    if another || there.len() < stream.at {
        // The step was retried, and the new attempt has its own file.
        stream.at = 0;
        write!(to, "event: reset-{}\ndata: again\n\n", stream.kind)?;
    }
    stream.inode = Some(there.ino());
    let bytes = piece(&file, stream.at, all)?;
    if bytes.is_empty() {
        return Ok(false);
    }
    stream.at += bytes.len() as u64;
    let text = match &mut stream.agent {
        Some(agent) => {
            agent.push(&bytes).into_iter().map(|turn| format!("{turn}\n")).collect::<String>()
        }
        None => String::from_utf8_lossy(&bytes).into_owned(),
    };
    // JSON encoding keeps the text from ending the event.
    let text = serde_json::to_string(&printed(&text)).unwrap_or_default();
    write!(to, "event: {}\ndata: {text}\n\n", stream.kind)?;
    Ok(true)
}

/// Sends the whole output of a step whose log file is gone: short output is stored in the state of
/// the run instead.
fn send_short(house: &House, log: &Log, out: &Stream, to: &mut impl Write) -> io::Result<()> {
    let root = house.invocation.state_dir.join(log.id.as_str());
    if excerpt::open(&root, &format!("logs/{}.stdout", log.name)).is_ok() || out.agent.is_some() {
        return Ok(());
    }
    let Some(text) = house.board().ok().and_then(|board| kept(&board, log)) else { return Ok(()) };
    let text = serde_json::to_string(&printed(&text)).unwrap_or_default();
    write!(to, "event: reset-stdout\ndata: again\n\nevent: stdout\ndata: {text}\n\n")
}

/// Reads from offset `at`: whole lines, unless `all` is set or a line exceeds [`PIECE`].
fn piece(file: &File, at: u64, all: bool) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; PIECE];
    let read = file.read_at(&mut bytes, at)?;
    bytes.truncate(read);
    if !all && read < PIECE {
        let end = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
        bytes.truncate(end);
    }
    Ok(bytes)
}

/// Returns the adapter that parses the output of a step.
pub(crate) fn adapter(house: &House, log: &Log) -> Kind {
    let opened = house.board().ok().and_then(|board| board.open(&log.id).ok());
    let found = opened.and_then(|(plan, _)| {
        let at = Address::parse(&plan, &log.name)?;
        Some(plan.adapter(at.step_of(&plan)))
    });
    found.unwrap_or(Kind::Plain)
}

/// Returns true if the step may print more.
pub(crate) fn goes_on(house: &House, log: &Log) -> bool {
    let Ok(board) = house.board() else { return true };
    let Ok(detail) = board.detail(&log.id) else { return false };
    let driven =
        matches!(detail.run.state, Standing::Running | Standing::Queued | Standing::Doubtful);
    let state = detail.steps.iter().find(|step| step.step == log.name).map(|step| step.state);
    let open = match state {
        Some(state) => !state.is_over(),
        // The board omits steps of finished items and earlier attempts.
        None => false,
    };
    open && (driven || matches!(state, Some(StepShown::Running)))
}
