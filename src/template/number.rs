//! Numbers as written, compared digit by digit.
//!
//! A number may have more digits than a machine number can hold, and all of them count.

use std::cmp::Ordering;

use serde_json::Number;

/// A number as written, with any number of digits. Zero equals negative zero.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Size<'t> {
    negative: bool,
    /// Its digits before and after the point, without leading and trailing zeros.
    digits: (&'t [u8], &'t [u8]),
    /// Position of the first digit, counted in places before the point.
    places: i64,
}

impl<'t> Size<'t> {
    fn new(negative: bool, whole: &'t str, fraction: &'t str, exponent: i64) -> Size<'t> {
        let (mut before, mut behind) = (whole.as_bytes(), fraction.as_bytes());
        let mut places = exponent + before.len() as i64;
        for part in [&mut before, &mut behind] {
            while let [b'0', rest @ ..] = part {
                *part = rest;
                places -= 1;
            }
            if !part.is_empty() {
                break;
            }
        }
        for part in [&mut behind, &mut before] {
            while let [rest @ .., b'0'] = part {
                *part = rest;
            }
            if !part.is_empty() {
                break;
            }
        }
        Size { negative, digits: (before, behind), places }
    }

    pub(crate) fn is_zero(&self) -> bool {
        self.digits.0.is_empty() && self.digits.1.is_empty()
    }

    pub(crate) fn compare(&self, other: &Size) -> Ordering {
        match (self.is_zero(), other.is_zero()) {
            (true, true) => return Ordering::Equal,
            (true, false) if other.negative => return Ordering::Greater,
            (true, false) => return Ordering::Less,
            (false, true) => return other.compare(self).reverse(),
            (false, false) if self.negative != other.negative => {
                return other.negative.cmp(&self.negative);
            }
            (false, false) => {}
        }
        fn all<'t>(size: &Size<'t>) -> impl Iterator<Item = &'t u8> {
            size.digits.0.iter().chain(size.digits.1)
        }
        let order = self.places.cmp(&other.places).then_with(|| all(self).cmp(all(other)));
        if self.negative { order.reverse() } else { order }
    }
}

/// The largest exponent of a number.
const MOST_PLACES: i64 = 1 << 40;

/// Parses the number at the start of a text: `80abc` is 80.
pub(crate) fn leading_number(text: &str) -> Option<Size<'_>> {
    let text = text.trim_start();
    let bytes = text.as_bytes();
    let digits = |from: usize| {
        bytes[from..].iter().position(|byte| !byte.is_ascii_digit()).unwrap_or(bytes.len() - from)
    };
    let sign = usize::from(matches!(bytes.first(), Some(b'+' | b'-')));
    let whole = digits(sign);
    let mut end = sign + whole;
    let mut fraction = 0;
    if bytes.get(end) == Some(&b'.') {
        fraction = digits(end + 1);
        end += if whole + fraction > 0 { 1 + fraction } else { 0 };
    }
    if whole + fraction == 0 {
        return None;
    }
    let (whole, fraction) = match text[sign..end].split_once('.') {
        Some(parts) => parts,
        None => (&text[sign..end], ""),
    };
    let mut exponent = 0;
    if let Some(b'e' | b'E') = bytes.get(end) {
        let sign = usize::from(matches!(bytes.get(end + 1), Some(b'+' | b'-')));
        let length = if end + 1 + sign < bytes.len() { digits(end + 1 + sign) } else { 0 };
        if length > 0 {
            // A number whose exponent is out of range is rejected.
            let written: i64 = text[end + 1..end + 1 + sign + length].parse().ok()?;
            exponent = Some(written).filter(|exponent| exponent.abs() <= MOST_PLACES)?;
        }
    }
    Some(Size::new(bytes.first() == Some(&b'-'), whole, fraction, exponent))
}

/// Compares two numbers by value: 1 equals 1.0. `None` if an exponent is out of range.
pub(crate) fn compare(a: &Number, b: &Number) -> Option<Ordering> {
    Some(leading_number(a.as_str())?.compare(&leading_number(b.as_str())?))
}

/// Returns true if a number is zero, with any sign.
pub(crate) fn is_zero(number: &Number) -> bool {
    leading_number(number.as_str()).is_some_and(|size| size.is_zero())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_compared_to_their_last_digit() {
        let rising = [
            "-1e400",
            "-9007199254740993",
            "-9007199254740992",
            "-1.01",
            "-1",
            "-0.1",
            "0",
            "1e-400",
            "0.0999",
            "0.1",
            "0.10000000000000000000001",
            "1",
            "9.99",
            "10",
            "9007199254740992",
            "9007199254740993",
            "123456789012345678901234567890",
            "123456789012345678901234567891",
            "1e400",
            "1.5e400",
        ];
        let size = |text| leading_number(text).unwrap();
        for (index, left) in rising.iter().enumerate() {
            for (other, right) in rising.iter().enumerate() {
                assert_eq!(size(left).compare(&size(right)), index.cmp(&other), "{left} {right}");
            }
        }
        for (left, right) in [("100", "1e2"), ("1.50", "15e-1"), ("007", "7"), ("-0", "0.0")] {
            assert!(size(left).compare(&size(right)).is_eq(), "{left} {right}");
        }
    }
}
