//! Random numbers. [`chance`] draws from the system and is suitable for secrets. Numbers derived
//! from a seed are small, fast, the same on every machine, and not suitable for secrets.

pub(crate) use super::host::chance;

const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// Returns the `count`-th number of a seed's sequence.
pub(crate) fn nth(seed: u64, count: u64) -> u64 {
    let mut z = seed.wrapping_add(count.wrapping_mul(STEP));
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Converts a number to ten lower-case letters and digits.
pub(crate) fn word(mut bits: u64) -> String {
    const LETTERS: &[u8; 36] = b"abcdefghijklmnopqrstuvwxyz0123456789";
    let mut draw = || {
        let letter = LETTERS[(bits % 36) as usize] as char;
        bits /= 36;
        letter
    };
    (0..10).map(|_| draw()).collect()
}

/// A seed's sequence, drawn one number after the other.
#[derive(Clone, Debug)]
pub(crate) struct Random {
    seed: u64,
    drawn: u64,
}

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Random { seed, drawn: 0 }
    }

    pub(crate) fn draw(&mut self) -> u64 {
        self.drawn += 1;
        nth(self.seed, self.drawn)
    }
}

#[cfg(test)]
impl Random {
    /// Returns a number less than `limit`, or 0 if `limit` is 0.
    pub(crate) fn below(&mut self, limit: usize) -> usize {
        (self.draw() % limit.max(1) as u64) as usize
    }

    pub(crate) fn coin(&mut self) -> bool {
        self.draw().is_multiple_of(2)
    }
}

/// Returns 128 bits of the system's randomness as 32 digits: a ticket.
pub(crate) fn unguessable() -> String {
    format!("{:016x}{:016x}", chance(), chance())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_is_the_same_each_time_and_another_for_another_seed() {
        let row = |seed| -> Vec<u64> {
            let mut random = Random::new(seed);
            (0..100).map(|_| random.draw()).collect()
        };
        assert_eq!(row(1), row(1));
        let mut all: Vec<u64> = [row(1), row(2)].concat();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), 200);
        assert!(word(nth(1, 1)).bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit()));
    }
}
