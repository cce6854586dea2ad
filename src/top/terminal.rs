//! The terminal while `top` runs: alternate screen and raw mode, restored on every exit path.
//!
//! **Invariant:** every exit (key, signal, error, or panic) restores the terminal.

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

use crate::run::log;

/// Wakes the thread that waits for keys.
#[derive(Clone)]
pub(crate) struct Waker(Arc<EventFd>);

impl Waker {
    pub(crate) fn new() -> io::Result<Waker> {
        let event = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?;
        Ok(Waker(Arc::new(event)))
    }

    pub(crate) fn wake(&self) {
        // If the counter is full, a wakeup is already pending.
        let _ = self.0.write(1);
    }
}

/// Flags that signal handlers set.
#[derive(Clone, Default)]
struct Flags {
    /// The process continued after a stop, and other programs may have written to the terminal.
    woken: Arc<AtomicBool>,
    /// The process was asked to stop (SIGTSTP).
    sleep: Arc<AtomicBool>,
}

pub(crate) struct Screen {
    pub terminal: Terminal<CrosstermBackend<Stdout>>,
    waker: Waker,
    flags: Flags,
}

/// The result of a wait.
#[derive(Default)]
pub(crate) struct Came {
    pub keys: Vec<KeyEvent>,
    /// True if everything must be redrawn.
    pub anew: bool,
    /// True if the terminal was closed.
    pub closed: bool,
}

/// Returns true if stdin and stdout are terminals.
pub(crate) fn is_there() -> bool {
    io::stdin().is_terminal() && stdout().is_terminal()
}

/// Returns true if the terminal has a nonzero size. A terminal without a viewer reports zero.
pub(crate) fn has_room() -> bool {
    size().is_ok_and(|(columns, rows)| columns > 0 && rows > 0)
}

/// True while this process controls the terminal.
static TAKEN: AtomicBool = AtomicBool::new(false);

fn give_back() {
    TAKEN.store(false, Ordering::SeqCst);
    let _ = execute!(stdout(), LeaveAlternateScreen, Show);
    let _ = disable_raw_mode();
    log::hush(false);
}

impl Screen {
    /// Takes over the terminal.
    pub(crate) fn take(waker: Waker) -> io::Result<Screen> {
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
            // SAFETY: the handler only uses an atomic and writes to an eventfd.
            unsafe { signal_hook::low_level::register(signal, heard) }?;
        }
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            let taken = TAKEN.load(Ordering::SeqCst);
            if taken {
                give_back();
            }
            before(panic);
            // Abort whichever thread panicked, so that no thread draws over the panic message.
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

    /// Resets the buffers, so that everything is redrawn. `Terminal::clear` would query the cursor
    /// position, which recorders and test terminals do not answer.
    pub(crate) fn wipe(&mut self) -> io::Result<()> {
        let size = self.terminal.size()?;
        self.terminal.resize(size.into())
    }

    /// Waits for keys or a wakeup.
    pub(crate) fn wait(&mut self) -> io::Result<Came> {
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

    /// Restores the terminal and stops the process until it is continued.
    pub(crate) fn sleep(&mut self) -> io::Result<()> {
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
