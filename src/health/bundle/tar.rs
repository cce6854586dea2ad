//! An archive that every machine can open: `tar` in its oldest common form (`ustar`), compressed.
//!
//! **Invariant:** an entry is written whole or the archive fails. Names are cut to what the form
//! can hold, never dropped.

use std::io::{self, Write};

const BLOCK: usize = 512;
const NAME: usize = 100;
const PREFIX: usize = 155;

/// An archive being written.
pub(super) struct Tar<W: Write> {
    out: W,
    at_s: u64,
}

impl<W: Write> Tar<W> {
    /// `at_s` is the time of all entries, in seconds.
    pub(super) fn new(out: W, at_s: u64) -> Tar<W> {
        Tar { out, at_s }
    }

    /// Adds a file.
    pub(super) fn add(&mut self, path: &str, bytes: &[u8]) -> io::Result<()> {
        self.out.write_all(&header(path, bytes.len() as u64, self.at_s))?;
        self.out.write_all(bytes)?;
        let rest = bytes.len().next_multiple_of(BLOCK) - bytes.len();
        self.out.write_all(&[0; BLOCK][..rest])
    }

    /// Ends the archive.
    pub(super) fn finish(mut self) -> io::Result<W> {
        self.out.write_all(&[0; 2 * BLOCK])?;
        Ok(self.out)
    }
}

fn header(path: &str, size: u64, at_s: u64) -> [u8; BLOCK] {
    let mut block = [0; BLOCK];
    let (prefix, name) = split(path);
    let mut put = |at: usize, bytes: &[u8]| block[at..at + bytes.len()].copy_from_slice(bytes);
    put(0, name);
    put(100, b"0000600\0");
    put(108, b"0000000\0");
    put(116, b"0000000\0");
    put(124, format!("{size:011o}\0").as_bytes());
    put(136, format!("{at_s:011o}\0").as_bytes());
    // The sum is made as if its own place were blank.
    put(148, b"        ");
    put(156, b"0");
    put(257, b"ustar\x0000");
    put(345, prefix);
    let sum: u32 = block.iter().map(|byte| u32::from(*byte)).sum();
    block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    block
}

/// A path in two parts as the form wants it; what is too long loses its middle.
fn split(path: &str) -> (&[u8], &[u8]) {
    let bytes = path.as_bytes();
    if bytes.len() <= NAME {
        return (b"", bytes);
    }
    let fits = |at: &usize| bytes[*at] == b'/' && *at <= PREFIX && bytes.len() - at - 1 <= NAME;
    match (1..bytes.len()).rev().find(fits) {
        Some(at) => (&bytes[..at], &bytes[at + 1..]),
        None => {
            let top = path.find('/').unwrap_or(0).min(PREFIX);
            (&bytes[..top], &bytes[bytes.len() - NAME..])
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_path_is_split_or_cut_and_stays_in_its_directory() {
        let deep = format!("top/{}/{}", "d".repeat(90), "f".repeat(80));
        let (prefix, name) = split(&deep);
        assert_eq!((prefix.len(), name.len()), (94, 80));
        let wide = format!("top/{}", "f".repeat(300));
        let (prefix, name) = split(&wide);
        assert_eq!((prefix, name.len()), (&b"top"[..], NAME));
        assert_eq!(split("top/a"), (&b""[..], &b"top/a"[..]));
    }

    #[test]
    fn a_file_takes_whole_blocks() {
        let mut tar = Tar::new(Vec::new(), 7);
        tar.add("a", &[1; 513]).unwrap();
        tar.add("b", b"").unwrap();
        assert_eq!(tar.finish().unwrap().len(), (1 + 2 + 1 + 2) * BLOCK);
    }
}
