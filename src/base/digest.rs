//! SHA-256 in hexadecimal: checksums of definitions and journal lines, seals of tasks.

use sha2::{Digest, Sha256};

/// Returns the digest of some bytes as 64 lower-case digits.
pub(crate) fn sha256(bytes: &[u8]) -> String {
    hex(&Sha256::digest(bytes))
}

/// Returns the digest in base64, the form in which a page's content security policy names allowed
/// scripts and styles.
pub(crate) fn base64_of_sha256(bytes: &[u8]) -> String {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for piece in Sha256::digest(bytes).chunks(3) {
        let bits = piece.iter().fold(0u32, |bits, byte| bits << 8 | u32::from(*byte));
        let bits = bits << (8 * (3 - piece.len()));
        for letter in 0..4 {
            match letter <= piece.len() {
                true => text.push(LETTERS[(bits >> (18 - 6 * letter) & 63) as usize] as char),
                false => text.push('='),
            }
        }
    }
    text
}

/// Formats the beginning of a digest as a UUID.
pub(crate) fn uuid(digest: &str) -> String {
    let part = |from: usize, to: usize| digest.get(from..to).unwrap_or_default();
    // The version and variant digits are those of a random UUID, because other programs check them.
    format!("{}-{}-4{}-8{}-{}", part(0, 8), part(8, 12), part(13, 16), part(17, 20), part(20, 32))
}

/// Digest of several texts. It differs for every way to divide the same text into parts.
#[derive(Default)]
pub(crate) struct Parts(Sha256);

impl Parts {
    pub(crate) fn add(&mut self, part: &str) {
        self.0.update((part.len() as u64).to_le_bytes());
        self.0.update(part);
    }

    pub(crate) fn hex(self) -> String {
        hex(&self.0.finalize())
    }
}

fn hex(digest: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let mut text = String::with_capacity(64);
    for byte in digest {
        text.push(DIGITS[usize::from(byte >> 4)] as char);
        text.push(DIGITS[usize::from(byte & 15)] as char);
    }
    text
}
