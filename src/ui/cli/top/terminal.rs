//! The terminal as `top` has it: the whole screen, keys one by one; and given back on every way
//! out.
//!
//! **Invariant:** whoever leaves, by a key, a signal, an error or a panic, leaves the terminal as
//! it was.

use std::io::{self, IsTerminal, Stdout, stdout};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::{EfdFlags, EventFd};
use ratatui::Terminal;
use ratatui::backend::CrosstermBackend;
use ratatui::crossterm::cursor::{Hide, Show};
use ratatui::crossterm::event::{self, Event, KeyEvent, KeyEventKind};
use ratatui::crossterm::execute;
use ratatui::crossterm::terminal::{
    EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode, size,
};
use signal_hook::consts::{SIGCONT, SIGTSTP, SIGWINCH};

use crate::ui::log;

/// Wakes whoever waits for keys.
#[derive(Clone)]
pub struct Waker(Arc<EventFd>);

impl Waker {
    pub fn new() -> io::Result<Waker> {
        let event = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?;
        Ok(Waker(Arc::new(event)))
    }

    pub fn wake(&self) {
        // A counter that is full has been heard of anyway.
        let _ = self.0.write(1);
    }
}

/// What signals say about the terminal.
#[derive(Clone, Default)]
struct Flags {
    /// The program slept, and others may have written meanwhile.
    woken: Arc<AtomicBool>,
    /// It is asked to sleep.
    sleep: Arc<AtomicBool>,
}

pub struct Screen {
    pub terminal: Terminal<CrosstermBackend<Stdout>>,
    waker: Waker,
    flags: Flags,
}

/// What came of waiting.
#[derive(Default)]
pub struct Came {
    pub keys: Vec<KeyEvent>,
    /// Everything is to be drawn anew.
    pub anew: bool,
    /// Nobody is at the terminal any more.
    pub closed: bool,
}

/// Whether keys can be read and a screen drawn.
pub fn is_there() -> bool {
    io::stdin().is_terminal() && stdout().is_terminal()
}

/// Whether anything could be seen: what nobody looks at has no size.
pub fn has_room() -> bool {
    size().is_ok_and(|(columns, rows)| columns > 0 && rows > 0)
}

/// Whether the terminal is ours now.
static TAKEN: AtomicBool = AtomicBool::new(false);

fn give_back() {
    TAKEN.store(false, Ordering::SeqCst);
    let _ = execute!(stdout(), LeaveAlternateScreen, Show);
    let _ = disable_raw_mode();
    log::hush(false);
}

impl Screen {
    /// Takes the terminal.
    pub fn take(waker: Waker) -> io::Result<Screen> {
        let flags = Flags::default();
        for (signal, flag) in
            [(SIGWINCH, None), (SIGCONT, Some(&flags.woken)), (SIGTSTP, Some(&flags.sleep))]
        {
            let (waker, flag) = (waker.clone(), flag.cloned());
            let heard = move || {
                if let Some(flag) = &flag {
                    flag.store(true, Ordering::SeqCst);
                }
                waker.wake();
            };
            // SAFETY: the handler touches an atomic and writes to an eventfd, nothing else.
            unsafe { signal_hook::low_level::register(signal, heard) }?;
        }
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            let taken = TAKEN.load(Ordering::SeqCst);
            if taken {
                give_back();
            }
            before(panic);
            // Whichever thread it was, nobody is to draw over what was just said.
            if taken {
                std::process::abort();
            }
        }));
        let terminal = Terminal::new(CrosstermBackend::new(stdout()))?;
        let mut screen = Screen { terminal, waker, flags };
        screen.enter()?;
        Ok(screen)
    }

    fn enter(&mut self) -> io::Result<()> {
        log::hush(true);
        TAKEN.store(true, Ordering::SeqCst);
        enable_raw_mode()?;
        execute!(stdout(), EnterAlternateScreen, Hide)?;
        self.wipe()
    }

    /// Empties the screen, so that everything is drawn anew. `Terminal::clear` would ask the
    /// terminal where its cursor is, and those of recorders and test benches do not answer.
    pub fn wipe(&mut self) -> io::Result<()> {
        let size = self.terminal.size()?;
        self.terminal.resize(size.into())
    }

    /// Waits for keys, or until it is woken.
    pub fn wait(&mut self) -> io::Result<Came> {
        let stdin = io::stdin();
        let mut fds = [
            PollFd::new(stdin.as_fd(), PollFlags::POLLIN),
            PollFd::new(self.waker.0.as_fd(), PollFlags::POLLIN),
        ];
        let mut came = Came::default();
        match poll(&mut fds, PollTimeout::NONE) {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(error) => return Err(error.into()),
        }
        let gone = PollFlags::POLLHUP | PollFlags::POLLERR | PollFlags::POLLNVAL;
        came.closed = fds[0].revents().is_some_and(|seen| seen.intersects(gone));
        let _ = self.waker.0.read();
        if came.closed {
            return Ok(came);
        }
        while event::poll(std::time::Duration::ZERO)? {
            match event::read()? {
                Event::Key(key) if key.kind != KeyEventKind::Release => came.keys.push(key),
                Event::Resize(..) => came.anew = true,
                _ => {}
            }
        }
        if self.flags.sleep.swap(false, Ordering::SeqCst) {
            self.sleep()?;
        }
        if self.flags.woken.swap(false, Ordering::SeqCst) {
            self.enter()?;
            came.anew = true;
        }
        Ok(came)
    }

    /// Gives the terminal back and stops, until somebody wakes it.
    pub fn sleep(&mut self) -> io::Result<()> {
        give_back();
        signal_hook::low_level::emulate_default_handler(SIGTSTP)?;
        self.flags.woken.store(true, Ordering::SeqCst);
        self.waker.wake();
        Ok(())
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        give_back();
    }
}
