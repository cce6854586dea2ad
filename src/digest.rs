//! SHA-256 in hexadecimal: checksums of definitions, sums of journal lines, seals of tasks.

use sha2::{Digest, Sha256};

/// The digest of some bytes as 64 lower-case digits.
pub fn sha256(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let mut text = String::with_capacity(64);
    for byte in Sha256::digest(bytes) {
        text.push(DIGITS[usize::from(byte >> 4)] as char);
        text.push(DIGITS[usize::from(byte & 15)] as char);
    }
    text
}
