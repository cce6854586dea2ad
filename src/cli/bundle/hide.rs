//! What must not leave the house: secrets that are known, and what looks like one.
//!
//! Known values are hidden in every form in which a log hides them ([`Mask`]), and broken into
//! lines as well. After that, what has the shape of a token is hidden ([`super::shapes`]).
//!
//! **Invariant:** nothing is cut before it is hidden: what is left of a secret that was cut has no
//! form that could be recognised. [`Hidden`] is made here alone.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};

use super::shapes;
use crate::disk::fs::OnVolume as _;
use crate::exec::Mask;

/// Guessed secrets shorter than this would hide ordinary words.
const GUESS_MIN: usize = 6;
/// What is found across the ends of lines must be at least this long.
const BROKEN_MIN: usize = 12;
const CHUNK: usize = 64 << 10;
/// A longer file is not read as a whole: it may be larger than any disk.
const WHOLE: u64 = 32 << 20;
/// More than any form of a secret is long.
const SLACK: u64 = 1 << 20;

/// Bytes in which every secret that we know of is hidden.
#[derive(Clone, Debug)]
pub(crate) struct Hidden {
    pub bytes: Vec<u8>,
    /// How many bytes were left out of the middle.
    pub cut: u64,
}

/// Hides secrets.
pub(crate) struct Hide {
    mask: Mask,
    /// How many values are known.
    pub known: usize,
}

impl Hide {
    /// Hides these values: those that were declared as secrets, and those that may be some.
    pub(crate) fn new(declared: BTreeSet<String>, guessed: BTreeSet<String>) -> Hide {
        let guessed = guessed.into_iter().filter(|value| is_guess(value));
        let mut values: BTreeSet<String> = declared.into_iter().chain(guessed).collect();
        values.retain(|value| !value.trim().is_empty());
        let known = values.len();
        Hide { mask: Mask::new(values), known }
    }

    pub(crate) fn text(&self, text: &str) -> Hidden {
        let bytes = self.mask.bytes(text.as_bytes());
        Hidden { bytes: self.last(bytes), cut: 0 }
    }

    /// A name for people and for files.
    pub(crate) fn name(&self, name: &str) -> String {
        String::from_utf8_lossy(&self.text(name).bytes).into_owned()
    }

    /// Reads to the end and keeps a beginning and an end, `limit` bytes in all.
    pub(crate) fn read(&self, from: &mut dyn Read, limit: usize) -> io::Result<Hidden> {
        let (mut masker, mut ends) = (self.mask.masker(), Ends::new(limit));
        let (mut buffer, mut masked) = (vec![0; CHUNK], Vec::new());
        loop {
            let count = match from.read(&mut buffer) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                count => count?,
            };
            match count {
                0 => masker.finish(&mut masked),
                _ => masker.feed(&buffer[..count], &mut masked),
            }
            ends.take(&masked);
            masked.clear();
            if count == 0 {
                break;
            }
        }
        Ok(self.join(ends))
    }

    fn join(&self, ends: Ends) -> Hidden {
        let Ends { first, last, cut, .. } = ends.whole_words();
        if cut == 0 {
            let whole = [first, last].concat();
            return Hidden { bytes: self.last(whole), cut };
        }
        // Each on its own: what a gap brings together was never one text.
        let gap = format!("\n[{cut} bytes were left out here]\n");
        let bytes = [self.last(first), gap.into_bytes(), self.last(last)].concat();
        Hidden { bytes, cut }
    }

    /// The same of a file, which may be of any length.
    pub(crate) fn read_file(&self, file: &mut File, len: u64, limit: usize) -> io::Result<Hidden> {
        if len <= WHOLE {
            // One that grows meanwhile is read as far as it was.
            return self.read(&mut file.take(len), limit);
        }
        let mut ends = Ends::new(limit);
        let wanted = ends.half as u64 + SLACK;
        file.take(wanted).read_to_end(&mut ends.first)?;
        ends.first = self.mask.bytes(&ends.first);
        file.seek(SeekFrom::Start(len - wanted))?;
        file.take(wanted).read_to_end(&mut ends.last)?;
        ends.last = self.mask.bytes(&ends.last);
        // Half a secret may stand at either edge, and goes with it.
        ends.first.truncate(ends.half);
        ends.cut = len - 2 * wanted + SLACK;
        ends.drop_middle();
        Ok(self.join(ends))
    }

    /// Hides what a mask of a stream cannot see.
    fn last(&self, bytes: Vec<u8>) -> Vec<u8> {
        let bytes = self.hide_broken(bytes);
        shapes::hide(&bytes)
    }

    /// Hides values that were broken into lines, as wide base64 is.
    fn hide_broken(&self, bytes: Vec<u8>) -> Vec<u8> {
        let joined: Vec<(usize, u8)> = without_breaks(&bytes);
        let text: Vec<u8> = joined.iter().map(|(_, byte)| *byte).collect();
        let mut hidden = Vec::with_capacity(bytes.len());
        let mut from = 0;
        for place in self.mask.places(&text) {
            if place.len() < BROKEN_MIN {
                continue;
            }
            let (begin, end) = (joined[place.start].0, joined[place.end - 1].0 + 1);
            if begin >= from {
                hidden.extend_from_slice(&bytes[from..begin]);
                hidden.extend_from_slice(shapes::STARS);
            }
            from = from.max(end);
        }
        hidden.extend_from_slice(&bytes[from..]);
        hidden
    }
}

/// Whether a value that was not declared may be a secret: no word of a setting, and no number.
fn is_guess(value: &str) -> bool {
    let trivial = value.chars().all(|c| c.is_ascii_digit() || ".:-+ ".contains(c));
    let is_path = value.starts_with('/') && std::path::Path::new(value).is_present();
    let words = ["enabled", "disabled", "required", "default", "optional", "offline"];
    let is_word = words.contains(&value) || shapes::is_scheme(value.as_bytes());
    value.len() >= GUESS_MIN && !trivial && !is_path && !is_word
}

/// Every byte but those of line ends and blanks, also escaped, with its place.
fn without_breaks(bytes: &[u8]) -> Vec<(usize, u8)> {
    let mut kept = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        match bytes[at] {
            b'\n' | b'\r' | b'\t' | b' ' => at += 1,
            b'\\' if matches!(bytes.get(at + 1), Some(b'n' | b'r' | b't')) => at += 2,
            byte => {
                kept.push((at, byte));
                at += 1;
            }
        }
    }
    kept
}

/// The beginning and the end of what may be very long.
struct Ends {
    half: usize,
    first: Vec<u8>,
    last: Vec<u8>,
    cut: u64,
}

impl Ends {
    fn new(limit: usize) -> Ends {
        Ends { half: limit / 2, first: Vec::new(), last: Vec::new(), cut: 0 }
    }

    fn take(&mut self, bytes: &[u8]) {
        let room = self.half.saturating_sub(self.first.len()).min(bytes.len());
        self.first.extend_from_slice(&bytes[..room]);
        self.last.extend_from_slice(&bytes[room..]);
        // Not at every piece, or a long text would be moved again and again.
        if self.last.len() > self.half * 2 {
            self.drop_middle();
        }
    }

    fn drop_middle(&mut self) {
        let over = self.last.len().saturating_sub(self.half);
        self.last.drain(..over);
        self.cut += over as u64;
    }

    /// Cuts back to where no token can have been cut in two, nor a key of several lines.
    fn whole_words(mut self) -> Ends {
        if self.last.len() <= self.half && self.cut == 0 {
            return self;
        }
        self.drop_middle();
        let is_word = |byte: &u8| byte.is_ascii_graphic() && !b"\"'`,;<>()[]{}".contains(byte);
        let end = self.first.iter().rposition(|byte| !is_word(byte)).map_or(0, |at| at + 1);
        let begin = self.last.iter().position(|byte| !is_word(byte)).unwrap_or(self.last.len());
        self.cut += (self.first.len() - end + begin) as u64;
        self.first.truncate(end);
        self.last.drain(..begin);
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECRET: &str = "s3cret/välue+with=signs&more";

    fn hide() -> Hide {
        Hide::new(BTreeSet::from([SECRET.to_owned()]), BTreeSet::new())
    }

    fn shown(text: &str) -> String {
        hide().name(text)
    }

    #[test]
    fn a_value_is_hidden_in_hexadecimal_in_addresses_and_across_lines() {
        let hex: String = SECRET.bytes().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(shown(&format!("x {hex} y")), "x *** y");
        let url = "https://h/?q=s3cret%2Fv%C3%A4lue%2Bwith%3Dsigns%26more";
        assert_eq!(shown(url), "https://h/?q=***");
        assert_eq!(shown("a s3cret/välue\n+with=signs&more b"), "a *** b");
        assert_eq!(shown(r#"{"k":"s3cret/välue\n+with=signs&more"}"#), r#"{"k":"***"}"#);
        // Wide base64 breaks after 76 characters; here after ten.
        assert_eq!(shown("czNjcmV0L3\nbDpGx1ZSt3\naXRoPXNpZ2\n5zJm1vcmU=\n"), "***\n");
    }

    #[test]
    fn what_is_long_keeps_its_ends_and_no_part_of_a_secret() {
        for limit in [40, 64, 100, 600] {
            let text = format!("begin {} {SECRET} {} end", "a b ".repeat(200), SECRET.repeat(9));
            let hidden = hide().read(&mut text.as_bytes(), limit).unwrap();
            let shown = String::from_utf8_lossy(&hidden.bytes).into_owned();
            assert!(shown.starts_with("begin") && shown.ends_with(" end"), "{shown}");
            assert!(!shown.contains("s3cret") && !shown.contains("signs"), "{limit}: {shown}");
            assert!(hidden.cut > 0, "{limit}");
        }
        let whole = hide().read(&mut "short".as_bytes(), 40).unwrap();
        assert_eq!((whole.bytes.as_slice(), whole.cut), (&b"short"[..], 0));
    }

    #[test]
    fn a_token_that_is_cut_in_two_is_gone() {
        let token = format!("ghp_{}", "aB3".repeat(20));
        let text = format!("{} {token} {}", "x".repeat(30), "y".repeat(30));
        for limit in 20..text.len() {
            let hidden = hide().read(&mut text.as_bytes(), limit).unwrap();
            let shown = String::from_utf8_lossy(&hidden.bytes).into_owned();
            assert!(!shown.contains("aB3"), "{limit}: {shown}");
        }
    }

    #[test]
    fn words_of_settings_are_no_secrets() {
        let guessed = ["true", "enabled", "12345678", "1.2.3-45", "/tmp", "hunter22"];
        let hide = Hide::new(BTreeSet::new(), guessed.map(str::to_owned).into());
        assert_eq!(
            hide.name("true enabled 12345678 /tmp hunter22"),
            "true enabled 12345678 /tmp ***"
        );
    }
}
