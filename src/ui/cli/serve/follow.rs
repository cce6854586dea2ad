//! Streams without an end: that something has changed, and what a step prints.

use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::time::{Duration, Instant};

use super::routes::{House, kept};
use crate::engine::run::Address;
use crate::ids::RunId;
use crate::provider::{self, Kind};
use crate::ui::board::{Standing, StepShown};
use crate::ui::report::excerpt;
use crate::ui::web::html::printed;

/// How long a stream may be silent: whoever has left is noticed by then.
const SILENCE: Duration = Duration::from_secs(10);
/// How often a log is looked at, and how often whether more can come.
const LOOK: Duration = Duration::from_millis(250);
const ASK: Duration = Duration::from_secs(1);
/// How much is read at once.
const PIECE: usize = 256 << 10;

/// Tells whoever looks on that something has changed.
pub fn changes(house: &House, to: &mut impl Write) -> io::Result<()> {
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

/// Which log is followed, and from where.
pub struct Log {
    pub id: RunId,
    pub name: String,
    pub from: (u64, u64),
}

/// One stream of a step.
struct Stream {
    kind: &'static str,
    at: u64,
    inode: Option<u64>,
    agent: Option<provider::Stream>,
}

/// Sends what a step prints until nothing more can come.
pub fn log(house: &House, log: &Log, to: &mut impl Write) -> io::Result<()> {
    let adapter = adapter(house, log);
    let mut streams = [("stdout", log.from.0), ("stderr", log.from.1)].map(|(kind, at)| {
        let listens = kind == "stdout" && adapter.is_stream();
        let agent = listens.then(|| provider::Stream::new(adapter));
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
            // Where to go on, should the connection break.
            write!(to, "id: {},{}\n\n", streams[0].at, streams[1].at)?;
            to.flush()?;
            spoke = Instant::now();
        }
        std::thread::sleep(LOOK);
    }
    Ok(())
}

/// Sends what is new of one stream, whole lines of it unless all is wanted. Says whether it did.
fn send(
    house: &House,
    log: &Log,
    stream: &mut Stream,
    all: bool,
    to: &mut impl Write,
) -> io::Result<bool> {
    let root = house.around.state_dir.join(log.id.as_str());
    let Ok(file) = excerpt::open(&root, &format!("logs/{}.{}", log.name, stream.kind)) else {
        return Ok(false);
    };
    let there = file.metadata()?;
    let another = stream.inode.is_some_and(|inode| inode != there.ino());
    if another || there.len() < stream.at {
        // The step is tried again, in a file of its own.
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
    // In JSON nothing of it can be taken for the end of an event.
    let text = serde_json::to_string(&printed(&text)).unwrap_or_default();
    write!(to, "event: {}\ndata: {text}\n\n", stream.kind)?;
    Ok(true)
}

/// Sends all of what was printed where that is short: its log was a draft, and is gone.
fn send_short(house: &House, log: &Log, out: &Stream, to: &mut impl Write) -> io::Result<()> {
    let root = house.around.state_dir.join(log.id.as_str());
    if excerpt::open(&root, &format!("logs/{}.stdout", log.name)).is_ok() || out.agent.is_some() {
        return Ok(());
    }
    let Some(text) = house.board().ok().and_then(|board| kept(&board, log)) else { return Ok(()) };
    let text = serde_json::to_string(&printed(&text)).unwrap_or_default();
    write!(to, "event: reset-stdout\ndata: again\n\nevent: stdout\ndata: {text}\n\n")
}

/// What a file has from there on: whole lines, unless all is wanted or a line is very long.
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

/// How what a step prints is read.
pub fn adapter(house: &House, log: &Log) -> Kind {
    let opened = house.board().ok().and_then(|board| board.open(&log.id).ok());
    let found = opened.and_then(|(plan, _)| {
        let at = Address::parse(&plan, &log.name)?;
        Some(plan.adapter(at.step_of(&plan)))
    });
    found.unwrap_or(Kind::Plain)
}

/// Whether more may be printed.
pub fn goes_on(house: &House, log: &Log) -> bool {
    let Ok(board) = house.board() else { return true };
    let Ok(detail) = board.detail(&log.id) else { return false };
    let driven =
        matches!(detail.run.state, Standing::Running | Standing::Queued | Standing::Doubtful);
    let state = detail.steps.iter().find(|step| step.step == log.name).map(|step| step.state);
    let open = match state {
        Some(state) => !state.is_over(),
        // A step of an item that is over is not on the board, nor is an earlier attempt.
        None => false,
    };
    open && (driven || matches!(state, Some(StepShown::Running)))
}
