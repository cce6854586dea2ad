//! Open connections, limited in number. At the limit, the oldest unauthenticated connection is
//! closed to make room for a new one.
//!
//! **Invariant:** unauthenticated clients, however many and however slow, never keep authenticated
//! clients out.

use std::net::{Shutdown, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

pub(crate) struct Guests {
    most: usize,
    here: Mutex<Here>,
}

#[derive(Default)]
struct Here {
    /// In order of arrival.
    guests: Vec<Guest>,
    next: u64,
}

struct Guest {
    number: u64,
    stream: TcpStream,
    known: bool,
}

impl Guests {
    pub(crate) fn new(most: usize) -> Arc<Guests> {
        Arc::new(Guests { most, here: Mutex::default() })
    }

    fn here(&self) -> MutexGuard<'_, Here> {
        self.here.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Registers a connection. Returns `None` if authenticated connections fill all slots, or if
    /// the stream cannot be duplicated.
    pub(crate) fn seat(self: &Arc<Self>, stream: &TcpStream) -> Option<Seat> {
        let stream = stream.try_clone().ok()?;
        let mut here = self.here();
        if here.guests.len() >= self.most {
            let first = here.guests.iter().position(|guest| !guest.known)?;
            // The thread that serves the closed connection sees the end of the stream.
            let _ = here.guests.remove(first).stream.shutdown(Shutdown::Both);
        }
        let number = here.next;
        here.next += 1;
        here.guests.push(Guest { number, stream, known: false });
        Some(Seat { guests: self.clone(), number })
    }
}

/// The slot of one connection, released on drop.
pub(crate) struct Seat {
    guests: Arc<Guests>,
    number: u64,
}

impl Seat {
    /// Marks the connection as authenticated, so that it is never closed to make room.
    pub(crate) fn keep(&self) {
        let mut here = self.guests.here();
        if let Some(own) = here.guests.iter_mut().find(|guest| guest.number == self.number) {
            own.known = true;
        }
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.guests.here().guests.retain(|guest| guest.number != self.number);
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn the_first_stranger_makes_room_and_whoever_is_known_does_not() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let connect = || {
            let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            (stream, listener.accept().unwrap().0)
        };
        let guests = Guests::new(2);
        let [(_a, a), (mut b, b_served), (_c, c), (_d, d)] = [(); 4].map(|()| connect());
        let a = guests.seat(&a).expect("there is room");
        a.keep();
        let _b = guests.seat(&b_served).expect("there is room");
        let c = guests.seat(&c).expect("the stranger goes");
        assert_eq!(b.read(&mut [0]).unwrap(), 0, "it is cut off");
        c.keep();
        assert!(guests.seat(&d).is_none(), "those who are known stay");
        drop(a);
        assert!(guests.seat(&d).is_some(), "whoever leaves makes room");
    }
}
