//! Masking: replaces secrets with `***` before output reaches a state, a log or a status.
//!
//! A value is hidden in every form in which a tool is likely to print it: as it is, escaped in JSON
//! (also twice, as in a document inside an agent's stream), percent-encoded in a URL or form,
//! escaped in HTML, in hexadecimal, and in base64, also as a part of the encoded text or across
//! several lines. For most values, most of these forms are identical.
//!
//! The search skips: the last two bytes of a window, which is as long as the shortest form,
//! determine how far the window may move (Wu and Manber). Most bytes of a gigabyte without secrets
//! are therefore never examined.
//!
//! **Invariant:** no byte leaves a [`Masker`] while it could still be the beginning of a secret.

use std::sync::Arc;

const STARS: &[u8] = b"***";
/// Shorter values give base64 forms that match ordinary words.
const BASE64_VALUE_MIN: usize = 4;
const BASE64_CORE_MIN: usize = 8;
/// Shorter values would hide parts of digests.
const HEX_VALUE_MIN: usize = 6;
/// Line lengths of tools that wrap base64.
const LINES: [usize; 2] = [64, 76];

/// The values to hide. Cheap to clone.
#[derive(Clone, Default)]
pub(crate) struct Mask {
    search: Option<Arc<Search>>,
}

impl Mask {
    /// Creates a mask of these values. Empty values are ignored.
    pub(crate) fn new(secrets: impl IntoIterator<Item = String>) -> Mask {
        let mut forms = Vec::new();
        for secret in secrets {
            add_forms(&secret, &mut forms);
        }
        forms.retain(|form: &Vec<u8>| !form.is_empty());
        if forms.is_empty() {
            return Mask::default();
        }
        Mask { search: Some(Arc::new(Search::new(forms))) }
    }

    /// Returns true if nothing is hidden: bytes may then pass without being copied.
    pub(crate) fn is_empty(&self) -> bool {
        self.search.is_none()
    }

    pub(crate) fn bytes(&self, bytes: &[u8]) -> Vec<u8> {
        let mut masked = Vec::with_capacity(bytes.len());
        let mut masker = self.masker();
        masker.feed(bytes, &mut masked);
        masker.finish(&mut masked);
        masked
    }

    pub(crate) fn text(&self, text: &str) -> String {
        // Forms are valid UTF-8 strings, so the text between them is UTF-8 too.
        String::from_utf8_lossy(&self.bytes(text.as_bytes())).into_owned()
    }

    /// Creates a masker for one stream.
    pub(crate) fn masker(&self) -> Masker {
        Masker { search: self.search.clone(), held: Vec::new(), covered: 0 }
    }
}

/// Prints the number of forms, never their values.
impl std::fmt::Debug for Mask {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let forms = self.search.as_ref().map_or(0, |search| search.forms);
        write!(f, "Mask({forms} forms)")
    }
}

/// Masks one stream that arrives in pieces.
pub(crate) struct Masker {
    search: Option<Arc<Search>>,
    /// The end of the input, if a secret may begin there.
    held: Vec<u8>,
    /// Number of bytes of `held` that belong to a secret whose asterisks are already written.
    covered: usize,
}

impl Masker {
    /// Takes the next bytes and appends everything that is decided to `out`.
    pub(crate) fn feed(&mut self, bytes: &[u8], out: &mut Vec<u8>) {
        let Some(search) = self.search.clone() else {
            return out.extend_from_slice(bytes);
        };
        if self.held.is_empty() {
            let from = search.mask(bytes, &mut self.covered, false, out);
            self.held.extend_from_slice(&bytes[from..]);
        } else {
            self.held.extend_from_slice(bytes);
            let from = search.mask(&self.held, &mut self.covered, false, out);
            self.held.drain(..from);
        }
    }

    /// Appends the bytes held back. Call it at the end of the stream.
    pub(crate) fn finish(&mut self, out: &mut Vec<u8>) {
        if let Some(search) = self.search.clone() {
            search.mask(&self.held, &mut self.covered, true, out);
            self.held.clear();
            self.covered = 0;
        }
    }
}

enum Found {
    No,
    /// A form of this length begins here.
    Form(usize),
    /// The bytes end before it is known.
    Maybe,
}

struct Search {
    /// The forms by their first byte, longest first.
    by_first: Vec<Vec<Vec<u8>>>,
    /// By the last two bytes of a window: the distance it may move. Unused if `window` is 1.
    shift: Vec<u8>,
    /// Length of the shortest form, at most 255.
    window: usize,
    forms: usize,
}

impl Search {
    fn new(mut forms: Vec<Vec<u8>>) -> Search {
        forms.sort_by(|a, b| b.len().cmp(&a.len()).then_with(|| a.cmp(b)));
        forms.dedup();
        let window = forms.iter().map(Vec::len).min().unwrap_or(1).min(255);
        let mut shift = vec![(window - 1).max(1) as u8; 1 << 16];
        let mut by_first = vec![Vec::new(); 256];
        let count = forms.len();
        for form in forms {
            for end in 1..window {
                let slot = &mut shift[pair(form[end - 1], form[end])];
                *slot = (*slot).min((window - 1 - end) as u8);
            }
            by_first[form[0] as usize].push(form);
        }
        Search { by_first, shift, window, forms: count }
    }

    /// Masks `hay` into `out` and returns the start of the undecided end. `covered` is the number
    /// of bytes at the front of `hay`, and on return at the front of that end, that a secret
    /// already hid.
    fn mask(&self, hay: &[u8], covered: &mut usize, last: bool, out: &mut Vec<u8>) -> usize {
        let mut hidden = *covered;
        let mut at = 0;
        while at < hay.len() {
            if at >= hidden {
                let next = self.candidate(hay, at);
                out.extend_from_slice(&hay[at..next]);
                at = next;
                if at == hay.len() {
                    break;
                }
            }
            match self.found(hay, at, last) {
                Found::Maybe => break,
                Found::No if at >= hidden => out.push(hay[at]),
                Found::No => {}
                Found::Form(length) => {
                    if at >= hidden {
                        out.extend_from_slice(STARS);
                    }
                    // Search the bytes inside too, because another secret may overlap the end.
                    hidden = hidden.max(at + length);
                }
            }
            at += 1;
        }
        *covered = hidden.saturating_sub(at);
        at
    }

    /// Returns the first position at or after `from` where a form may begin.
    fn candidate(&self, hay: &[u8], from: usize) -> usize {
        let mut at = from;
        if self.window > 1 {
            while at + self.window <= hay.len() {
                let end = at + self.window;
                match self.shift[pair(hay[end - 2], hay[end - 1])] {
                    0 => return at,
                    far => at += far as usize,
                }
            }
            // A window that moved beyond the end has skipped no position where a form could begin.
            at = at.min(hay.len());
        }
        let begins = |byte: &u8| !self.by_first[*byte as usize].is_empty();
        hay[at..].iter().position(begins).map_or(hay.len(), |ahead| at + ahead)
    }

    fn found(&self, hay: &[u8], at: usize, last: bool) -> Found {
        let rest = &hay[at..];
        for form in &self.by_first[rest[0] as usize] {
            if rest.starts_with(form) {
                return Found::Form(form.len());
            }
            if !last && form.starts_with(rest) {
                return Found::Maybe;
            }
        }
        Found::No
    }
}

fn pair(a: u8, b: u8) -> usize {
    (a as usize) << 8 | b as usize
}

fn add_forms(secret: &str, forms: &mut Vec<Vec<u8>>) {
    // Values read from files end in a newline that is usually not printed.
    let trimmed = secret.trim_end_matches(['\r', '\n']);
    for value in [secret, trimmed] {
        forms.push(value.as_bytes().to_vec());
        forms.extend(percent_encoded(value));
        forms.extend(html_escaped(value));
        for escaped in json_escaped(value) {
            forms.extend(json_escaped(&escaped).into_iter().map(String::into_bytes));
            forms.push(escaped.into_bytes());
        }
        if value.len() >= BASE64_VALUE_MIN {
            add_base64(value.as_bytes(), forms);
        }
        if value.len() >= HEX_VALUE_MIN {
            let hex: String = value.bytes().map(|byte| format!("{byte:02x}")).collect();
            forms.push(hex.to_uppercase().into_bytes());
            forms.push(hex.into_bytes());
        }
    }
}

/// Returns every combination of four options of an encoder.
fn choices() -> impl Iterator<Item = [bool; 4]> {
    (0..16).map(|n| [n & 1 > 0, n & 2 > 0, n & 4 > 0, n & 8 > 0])
}

/// Returns the value percent-encoded, with the variants of common tools: `/` unescaped, characters
/// unescaped as in JavaScript, a space as `+`, lowercase digits.
fn percent_encoded(value: &str) -> Vec<Vec<u8>> {
    let encode = |[slash, script, plus, small]: [bool; 4]| {
        let mut text = String::new();
        for byte in value.bytes() {
            match byte {
                b' ' if plus => text.push('+'),
                b'/' if slash => text.push('/'),
                b'!' | b'\'' | b'(' | b')' | b'*' if script => text.push(byte as char),
                _ if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) => {
                    text.push(byte as char);
                }
                _ if small => text.push_str(&format!("%{byte:02x}")),
                _ => text.push_str(&format!("%{byte:02X}")),
            }
        }
        text.into_bytes()
    };
    choices().map(encode).collect()
}

/// Returns the value escaped for HTML, with the variants of common tools, which differ in quotes.
fn html_escaped(value: &str) -> Vec<Vec<u8>> {
    const QUOTES: [[&str; 2]; 5] = [
        ["\"", "'"],
        ["&quot;", "&#x27;"],
        ["&#34;", "&#39;"],
        ["&quot;", "&apos;"],
        ["&quot;", "&#039;"],
    ];
    let escape = |[double, single]: [&str; 2]| {
        let text = value.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
        text.replace('\'', single).replace('"', double).into_bytes()
    };
    QUOTES.map(escape).into()
}

/// Returns the inside of a JSON string, with the variants of common tools: non-ASCII characters
/// escaped, `/` escaped, HTML characters escaped, uppercase digits.
fn json_escaped(value: &str) -> Vec<String> {
    let quoted = serde_json::Value::from(value).to_string();
    let inside = &quoted[1..quoted.len() - 1];
    let mut forms = Vec::new();
    for [ascii, slash, html, large] in choices() {
        let mut escaped = String::new();
        let unit = |unit: u32| match large {
            true => format!("\\u{unit:04X}"),
            false => format!("\\u{unit:04x}"),
        };
        for c in inside.chars() {
            match c {
                '/' if slash => escaped.push_str("\\/"),
                '&' | '<' | '>' | '\u{2028}' | '\u{2029}' if html => {
                    escaped.push_str(&unit(c as u32));
                }
                _ if ascii && !c.is_ascii() => {
                    let mut units = [0; 2];
                    for each in c.encode_utf16(&mut units) {
                        escaped.push_str(&unit((*each).into()));
                    }
                }
                _ => escaped.push(c),
            }
        }
        if !forms.contains(&escaped) {
            forms.push(escaped);
        }
    }
    forms
}

fn add_base64(value: &[u8], forms: &mut Vec<Vec<u8>>) {
    for alphabet in [STANDARD, URL_SAFE] {
        let whole = base64(value, alphabet);
        let pad = (3 - value.len() % 3) % 3;
        let padded = [whole.as_slice(), &b"=="[..pad]].concat();
        forms.extend(LINES.map(|width| padded.chunks(width).collect::<Vec<_>>().join(&b'\n')));
        forms.push(padded);
        forms.push(whole);
        // Inside a longer text the value starts at one of three positions of a group, and the
        // characters that it shares with its neighbours are unknown.
        for before in 0..3 {
            let shifted = base64(&[&[0; 2][..before], value].concat(), alphabet);
            let first = (before * 8).div_ceil(6);
            let end = (before + value.len()) * 8 / 6;
            if end >= first + BASE64_CORE_MIN {
                forms.push(shifted[first..end].to_vec());
            }
        }
    }
}

const STANDARD: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
const URL_SAFE: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

/// Encodes as base64 without padding.
fn base64(bytes: &[u8], alphabet: &[u8; 64]) -> Vec<u8> {
    let mut text = Vec::with_capacity(bytes.len().div_ceil(3) * 4);
    for group in bytes.chunks(3) {
        let mut bits = [0; 3];
        bits[..group.len()].copy_from_slice(group);
        let bits = u32::from_be_bytes([0, bits[0], bits[1], bits[2]]);
        for place in 0..=group.len() {
            text.push(alphabet[(bits >> (18 - 6 * place) & 63) as usize]);
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forms_of_pages_and_addresses_are_hidden() {
        const KEY: &str = "s3cr\"et/Väl+ue\\xyz 12<345'!";
        let mask = mask(&[KEY]);
        for form in [
            "s3cr%22et%2FV%C3%A4l%2Bue%5Cxyz+12%3C345%27%21",
            "s3cr%22et/V%C3%A4l%2Bue%5Cxyz%2012%3C345%27%21",
            "s3cr%22et%2fV%c3%a4l%2bue%5cxyz%2012%3c345%27%21",
            "s3cr%22et%2FV%C3%A4l%2Bue%5Cxyz%2012%3C345'!",
            "s3cr\\\"et/V\\u00E4l+ue\\\\xyz 12<345'!",
            "s3cr\\\"et/V\\u00E4l+ue\\\\xyz 12\\u003C345'!",
            "s3cr&quot;et/Väl+ue\\xyz 12&lt;345&#x27;!",
            "s3cr&#34;et/Väl+ue\\xyz 12&lt;345&#39;!",
            "s3cr\"et/Väl+ue\\xyz 12&lt;345'!",
            "7333637222\
             65742f56c3a46c2b75655c78797a2031323c3334352721",
            "733363722265742F56C3A46C2B75655C78797A2031323C3334352721",
        ] {
            assert_eq!(mask.text(&format!("a {form} b")), "a *** b", "{form}");
        }
        // A value that reads the same everywhere has few forms, and the search stays as fast.
        let plain = self::mask(&["ghp0123456789abcdef0123456789abcdef0123"]);
        assert!(plain.search.unwrap().forms < 10);
    }

    fn mask(secrets: &[&str]) -> Mask {
        Mask::new(secrets.iter().map(|s| s.to_string()))
    }

    #[test]
    fn a_value_is_hidden_wherever_it_stands() {
        let m = mask(&["s3cret", "tokén"]);
        assert_eq!(m.text("s3cret a s3crets3cret tokén s3cre"), "*** a ****** *** s3cre");
    }

    #[test]
    fn no_secrets_or_empty_ones_change_nothing() {
        assert!(mask(&["", ""]).is_empty());
        assert_eq!(mask(&[]).text("anything"), "anything");
    }

    #[test]
    fn the_longest_secret_wins_and_overlaps_leave_no_rest() {
        assert_eq!(mask(&["abc", "abcdef"]).text("xabcdefx abcdx"), "x***x ***dx");
        assert_eq!(mask(&["abcd", "cdef"]).text("-abcdef-"), "-***-");
        assert_eq!(mask(&["aa"]).text("aaaaa b"), "*** b");
        assert_eq!(mask(&["a"]).text("banana"), "b***n***n***");
    }

    #[test]
    fn escaped_and_encoded_forms_are_hidden() {
        let m = mask(&["pa\"ss/wörd\n"]);
        assert_eq!(m.text(r#"{"k":"pa\"ss/wörd\n"}"#), r#"{"k":"***"}"#);
        assert_eq!(m.text(r#"{"k":"pa\"ss\/w\u00f6rd\n"}"#), r#"{"k":"***"}"#);
        assert_eq!(
            m.text("pa\"ss/wörd, printed without its newline"),
            "***, printed without its newline"
        );
        assert_eq!(m.text(r#"{"k":"{\"k\":\"pa\\\"ss/wörd\\n\"}"}"#), r#"{"k":"{\"k\":\"***\"}"}"#);
        assert_eq!(m.text("?key=pa%22ss%2Fw%C3%B6rd&a=b"), "?key=***&a=b");
        let long = "0123456789".repeat(12);
        for width in LINES {
            let encoded = base64(long.as_bytes(), STANDARD);
            let lines: Vec<&[u8]> = encoded.chunks(width).collect();
            assert_eq!(mask(&[&long]).bytes(&lines.join(&b'\n')), b"***");
        }
        assert_eq!(mask(&["hunter22"]).text("aHVudGVyMjI= aHVudGVyMjI"), "*** ***");
        assert_eq!(mask(&["??>>ÿÿ"]).text("Pz8-PsO_w78 Pz8+PsO/w78="), "*** ***");
    }

    #[test]
    fn a_secret_inside_a_longer_base64_text_is_hidden_at_every_alignment() {
        let m = mask(&["correct-horse-battery"]);
        for user in ["", "u", "us", "use"] {
            let text = format!("{user}correct-horse-battery:rest");
            let masked = m.bytes(&base64(text.as_bytes(), STANDARD));
            assert!(masked.windows(3).any(|w| w == b"***"), "{user:?}");
            assert!(masked.len() < 20, "{}", String::from_utf8_lossy(&masked));
        }
    }

    #[test]
    fn every_split_of_a_text_gives_the_same_result() {
        let texts: [&[u8]; 5] = [
            b"abcdef abcabcdefdef \xff\xfeabcdexyzabcd",
            b"aaaaaaaaabaaaaacaaa",
            b"cdefcdabcdabcdefabcdcdef",
            b"YWJjZGVm abc YWJjZGVm",
            b"abcde",
        ];
        for secrets in
            [&["abcdef", "cdef", "abc"][..], &["aa", "aaab"], &["a", "cd"], &["abcdefgh"]]
        {
            let m = mask(secrets);
            for text in texts {
                let whole = m.bytes(text);
                for a in 0..=text.len() {
                    for b in a..=text.len() {
                        let (mut masker, mut out) = (m.masker(), Vec::new());
                        for piece in [&text[..a], &text[a..b], &text[b..]] {
                            masker.feed(piece, &mut out);
                        }
                        masker.finish(&mut out);
                        assert_eq!(out, whole, "{secrets:?} {a} {b}");
                    }
                }
            }
        }
    }

    #[test]
    fn it_agrees_with_a_plain_search_on_many_small_texts() {
        let m = mask(&["abab", "bba", "aab"]);
        for seed in 0..4096u32 {
            let text: Vec<u8> = (0..12).map(|bit| b'a' + (seed >> bit & 1) as u8).collect();
            let mut hidden = vec![false; text.len()];
            for form in [&b"abab"[..], b"bba", b"aab"] {
                for at in 0..text.len() {
                    if text[at..].starts_with(form) {
                        hidden[at..at + form.len()].fill(true);
                    }
                }
            }
            let open = |bytes: &[u8]| bytes.iter().filter(|b| **b != b'*').count();
            let kept = hidden.iter().filter(|h| !**h).count();
            assert_eq!(open(&m.bytes(&text)), kept, "{}", String::from_utf8_lossy(&text));
        }
    }

    #[test]
    fn an_endless_overlap_is_not_held_in_memory() {
        let m = mask(&["aa"]);
        let (mut masker, mut out) = (m.masker(), Vec::new());
        for _ in 0..100 {
            masker.feed(&[b'a'; 1000], &mut out);
            assert!(masker.held.len() < 2);
        }
        masker.finish(&mut out);
        assert_eq!(out, b"***");
    }

    #[test]
    fn a_mask_shown_for_debugging_does_not_show_its_values() {
        assert!(!format!("{:?}", mask(&["hunter22"])).contains("hunter"));
    }
}
