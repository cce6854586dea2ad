//! `orchestrate top`: the live dashboard with keyboard control.
//!
//! One thread reads the workspace, one thread executes each action, and the loop in this file owns
//! the terminal. `ui/top` defines the screen contents and the keys.

use std::sync::mpsc::{self, Receiver, Sender};
use std::time::Duration;

use ratatui::crossterm::style::force_color_output;

use super::act::{Came as Outcome, Deed, Hands};
use super::invocation::Invocation;
use super::{Colour, Common, signals, watchdog};
use crate::exec::Stop;
use crate::run::failure::Failure;
use crate::top::scanner::Looker;
use crate::top::terminal::{self, Came, Screen as Tty, Waker};
use crate::top::{Look, Screen, Seen, State, Wish, doing, draw, update};

#[derive(clap::Args, Clone, Debug)]
pub(super) struct TopArgs {
    /// Open one run: its id, the beginning of it, or `latest`
    #[arg(value_name = "RUN")]
    pub run: Option<String>,
}

/// A message to the main loop.
enum News {
    Seen(Box<Seen>),
    /// The message about a finished action, and true if the action was refused.
    Done(String, bool),
    /// The volume does not respond. Shown until the next successful scan.
    Trouble(String),
}

/// Time to wait for the result of an action. A step that is being stopped gets time to end.
const PATIENCE: Duration = Duration::from_secs(30);

pub(super) fn main(args: &TopArgs, common: &Common) -> Result<u8, Failure> {
    let invocation = Invocation::read(common)?;
    if invocation.common.json {
        return Err(Failure::invalid("`top` is a screen for people and has no `--json`")
            .hint("`orchestrate status --json` says the same to programs"));
    }
    if !is_fit(&invocation) {
        let message = match terminal::is_there() {
            true => "`top` draws a screen, and TERM names no terminal that has one",
            false => "`top` needs a terminal, and this is none",
        };
        return Err(Failure::invalid(message).hint("`orchestrate status` says the same in lines"));
    }
    let mut state = State::default();
    if let Some(name) = &args.run {
        let (id, _) = invocation.find_run(name)?;
        state.screens.push(Screen::Run { run: id.to_string() });
    }
    let signals = signals::listen()?;
    match show(&invocation, state, &signals.stop, &|_| false)? {
        Left::Wished | Left::Seen => Ok(0),
        Left::Stopped => Ok(signals.code()),
        // 128 + SIGHUP, as after a hangup.
        Left::Closed => Ok(129),
    }
}

/// Takes over the terminal and shows the dashboard until the user leaves or `enough` returns true.
pub(super) fn show(
    invocation: &Invocation,
    state: State,
    stop: &Stop,
    enough: &dyn Fn(&Seen) -> bool,
) -> Result<Left, Failure> {
    let failed =
        |error: std::io::Error| Failure::failed(format!("cannot use the terminal: {error}"));
    let waker = Waker::new().map_err(failed)?;
    wake_on_stop(stop.clone(), waker.clone());
    let (tell, news) = mpsc::channel();
    let look = Look { colour: colour(invocation) };
    force_color_output(look.colour);
    let (invocation, seen) = (invocation.clone(), Seen::default());
    let mut house = House { invocation, state, seen, look, tell, waker };
    let screen = Tty::take(house.waker.clone()).map_err(failed)?;
    house.hear_watchdog();
    let looker = house.looker();
    looker.want(house.state.screen());
    let left = house.keep(screen, &news, &looker, stop, enough);
    watchdog::divert(None);
    drop(looker);
    Ok(left)
}

/// Returns true if the terminal can show the dashboard.
pub(super) fn is_fit(invocation: &Invocation) -> bool {
    terminal::is_there() && !invocation.is_dumb()
}

fn colour(invocation: &Invocation) -> bool {
    match invocation.common.color {
        Colour::Always => true,
        Colour::Never => false,
        Colour::Auto => invocation.may_colour(),
    }
}

fn wake_on_stop(stop: Stop, waker: Waker) {
    std::thread::spawn(move || {
        while stop.wait_above(0, Duration::from_secs(3600)) == 0 {}
        waker.wake();
    });
}

/// Reason why the dashboard was closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Left {
    Wished,
    /// `enough` returned true.
    Seen,
    /// A signal arrived.
    Stopped,
    /// The terminal was closed.
    Closed,
}

struct House {
    invocation: Invocation,
    state: State,
    seen: Seen,
    look: Look,
    tell: Sender<News>,
    waker: Waker,
}

impl House {
    fn looker(&self) -> Looker {
        let (tell, waker) = (self.tell.clone(), self.waker.clone());
        Looker::start(self.invocation.clone(), move |seen| {
            let _ = tell.send(News::Seen(Box::new(seen)));
            waker.wake();
        })
    }

    /// Shows watchdog messages on the screen, because stderr would corrupt it.
    fn hear_watchdog(&self) {
        let (tell, waker) = (self.tell.clone(), self.waker.clone());
        watchdog::divert(Some(Box::new(move |trouble| {
            if let Some(trouble) = trouble {
                let _ = tell.send(News::Trouble(trouble));
                waker.wake();
            }
        })));
    }

    fn keep(
        &mut self,
        mut tty: Tty,
        news: &Receiver<News>,
        looker: &Looker,
        stop: &Stop,
        enough: &dyn Fn(&Seen) -> bool,
    ) -> Left {
        loop {
            while let Ok(news) = news.try_recv() {
                self.hear(news, looker);
            }
            if stop.level() > 0 {
                return Left::Stopped;
            }
            if enough(&self.seen) {
                return Left::Seen;
            }
            let (state, seen, look) = (&self.state, &self.seen, self.look);
            let drawn = tty.terminal.draw(|frame| draw(state, seen, look, frame));
            let (Ok(_), Ok(came)) = (drawn.map(drop), tty.wait()) else { return Left::Closed };
            let Came { keys, anew, closed } = came;
            if closed {
                return if stop.level() > 0 { Left::Stopped } else { Left::Closed };
            }
            let mut anew = anew;
            for key in keys {
                match update(&mut self.state, &self.seen, key) {
                    Some(Wish::Leave) => return Left::Wished,
                    Some(Wish::Suspend) if tty.sleep().is_err() => return Left::Closed,
                    Some(Wish::Redraw) => anew = true,
                    Some(Wish::Look) => self.open(looker),
                    Some(wish @ Wish::Act(_)) => self.begin(wish),
                    Some(Wish::Suspend) | None => {}
                }
            }
            if anew && tty.wipe().is_err() {
                return Left::Closed;
            }
        }
    }

    /// Discards the details of the previous screen and requests a scan for the new one.
    fn open(&mut self, looker: &Looker) {
        (self.seen.detail, self.seen.tasks, self.seen.log) = (None, None, None);
        looker.want(self.state.screen());
    }

    fn hear(&mut self, news: News, looker: &Looker) {
        match news {
            News::Seen(seen) => {
                self.seen = *seen;
                self.state.settle(&self.seen);
            }
            News::Trouble(trouble) => self.seen.trouble = Some(trouble),
            News::Done(said, refused) => {
                self.state.doing = None;
                self.state.said = Some((said, refused));
                looker.want(self.state.screen());
            }
        }
    }

    /// Executes an action on a thread, because it may take seconds.
    fn begin(&mut self, wish: Wish) {
        let Wish::Act(deed) = &wish else { return };
        if self.state.doing.is_some() {
            self.state.said = Some(("one thing after the other".to_owned(), true));
            return;
        }
        self.state.doing = doing(&wish);
        let (invocation, deed): (Invocation, Deed) = (self.invocation.clone(), deed.clone());
        let (tell, waker) = (self.tell.clone(), self.waker.clone());
        std::thread::spawn(move || {
            let say = |said: String, refused: bool| {
                let _ = tell.send(News::Done(said, refused));
                waker.wake();
            };
            let mut came =
                match Hands::new(PATIENCE).and_then(|hands| hands.act(&invocation, &deed)) {
                    Ok(came) => came,
                    Err(error) => return say(format!("nothing was done: {error}"), true),
                };
            // The run continues even if the user leaves. A user who stays sees its end.
            if let Outcome::GoesOn(_) = came {
                say(deed.told(&came), false);
            }
            if let Outcome::GoesOn(rest) = came {
                came = rest.end();
            }
            say(deed.told(&came), matches!(came, Outcome::Refused { .. }));
        });
    }
}
