//! SHA-256 in hexadecimal: checksums of definitions, sums of journal lines, seals of tasks.

use sha2::{Digest, Sha256};

/// The digest of some bytes as 64 lower-case digits.
pub fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}
