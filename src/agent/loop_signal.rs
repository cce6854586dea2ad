//! The signal with which an agent ends a loop.
//!
//! The signal may be inside a pair of tags, `<done>SIGN</done>`; then upper and lower case are
//! equal in both the signal and the tags. It may also appear in the text as written: anywhere, or,
//! in strict mode, only in positions where it cannot be an incidental mention.
//!
//! **Invariant:** the running time is linear in the length of the answer, regardless of its
//! content. A blank signal never matches.

/// Returns true if an answer contains the signal: anywhere as written, or in a pair of tags.
pub(crate) fn signalled(answer: &str, until: &str) -> bool {
    let until = until.trim();
    !until.is_empty() && (answer.contains(until) || is_tagged(answer, until))
}

/// Returns true if an answer contains the signal in a position where it is meant as one: in a pair
/// of tags, alone on a line, or at the very end, possibly with punctuation.
pub(crate) fn signalled_strict(answer: &str, until: &str) -> bool {
    let until = until.trim();
    !until.is_empty()
        && (answer.lines().any(|line| line.trim() == until)
            || ends_with(answer, until)
            || is_tagged(answer, until))
}

/// Returns the answer without the tagged signal and without promises, as the next round and other
/// nodes see it. An answer that consists of nothing else is returned unchanged.
pub(crate) fn cleaned(answer: &str, until: &str) -> String {
    let until = until.trim();
    let mut out = String::new();
    let mut promises = true;
    let mut rest = answer;
    while let Some(open) = rest.find('<') {
        out.push_str(&rest[..open]);
        rest = &rest[open..];
        let mut end = None;
        if let Some(inner) = strip_prefix(rest, PROMISE).filter(|_| promises) {
            end = find(inner, PROMISED).map(|at| PROMISE.len() + at + PROMISED.len());
            // A tag that is not closed from here is not closed from a later position either.
            promises = end.is_some();
        }
        if end.is_none() && !until.is_empty() {
            end = tagged(rest, until);
        }
        match end {
            Some(end) => rest = &rest[end..],
            None => {
                out.push('<');
                rest = &rest[1..];
            }
        }
    }
    out.push_str(rest);
    let clean = out.trim();
    if clean.is_empty() { answer.to_owned() } else { clean.to_owned() }
}

const PROMISE: &str = "<promise>";
const PROMISED: &str = "</promise>";

fn is_tagged(answer: &str, until: &str) -> bool {
    answer.match_indices('<').any(|(at, _)| tagged(&answer[at..], until).is_some())
}

/// Returns the length of the tagged signal at the start of a text.
fn tagged(text: &str, until: &str) -> Option<usize> {
    let inside = text.strip_prefix('<')?;
    let name = &inside[..tag_length(inside)];
    // A tag ends before the next one starts. Otherwise each `<` of a long row would scan for one
    // `>`.
    let after = &inside[name.len()..];
    let end = after.find(['<', '>']).filter(|_| !name.is_empty())?;
    let spaced = after.starts_with(|c: char| c.is_whitespace());
    if !after[end..].starts_with('>') || (end > 0 && !spaced) {
        return None;
    }
    let rest = strip_prefix(after[end + 1..].trim_start(), until)?.trim_start();
    let close = strip_prefix(rest.strip_prefix("</")?, name)?.strip_prefix('>')?;
    Some(text.len() - close.len())
}

/// Returns the length of the tag name at the start of a text, or 0 if there is none.
fn tag_length(text: &str) -> usize {
    if !text.starts_with(|c: char| c.is_ascii_alphabetic()) {
        return 0;
    }
    let inside = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    text.find(|c| !inside(c)).unwrap_or(text.len())
}

fn ends_with(answer: &str, until: &str) -> bool {
    let loose = |c: char| c.is_whitespace() || ".,;:!?".contains(c);
    // The signal may itself end in punctuation, so do not cut more of the answer than necessary.
    let core = until.trim_end_matches(loose);
    let Some(before) = answer.trim_end_matches(loose).strip_suffix(core) else {
        return false;
    };
    let tail = &answer[before.len()..];
    // `UNDONE` does not end with `DONE`.
    let joined = before.ends_with(is_word) && until.starts_with(is_word);
    !joined && tail.starts_with(until)
}

fn is_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_'
}

/// Returns the text after `prefix`, which is compared without regard to case.
fn strip_prefix<'t>(text: &'t str, prefix: &str) -> Option<&'t str> {
    let begins = text.as_bytes().get(..prefix.len())?.eq_ignore_ascii_case(prefix.as_bytes());
    // Equal bytes end at a character boundary, because `prefix` is valid UTF-8.
    if begins { text.get(prefix.len()..) } else { None }
}

/// Returns the position of `needle`, which must start with `<`, ignoring case.
fn find(text: &str, needle: &str) -> Option<usize> {
    let places = text.match_indices('<').map(|(at, _)| at);
    places.into_iter().find(|at| strip_prefix(&text[*at..], needle).is_some())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::random::Random;

    /// `t` for tagged or alone or at the end, `s` for anywhere only, `-` for not at all.
    fn kind(answer: &str, until: &str) -> char {
        match (signalled(answer, until), signalled_strict(answer, until)) {
            (true, true) => 't',
            (true, false) => 's',
            (false, false) => '-',
            (false, true) => panic!("{answer}: strict, but not there at all"),
        }
    }

    #[test]
    fn the_sign_is_seen() {
        for (answer, wanted) in [
            ("DONE", 't'),
            ("All is well.\nDONE", 't'),
            ("All is well.\n  DONE \nreally", 't'),
            ("All is DONE.", 't'),
            ("All is DONE!?\n\n", 't'),
            ("not DONE yet", 's'),
            ("UNDONE", 's'),
            ("all is NOT_DONE.", 's'),
            ("DONE_X", 's'),
            ("done", '-'),
            ("", '-'),
            ("<promise>DONE</promise>", 't'),
            ("say <promise>done</promise> and go on", 't'),
            ("say <Done>\n Done\n</dONE> and go on", 't'),
            ("say <x-1 a=\"b\">DONE</x-1> and go on", 't'),
            ("say <x>DONE</y> and go on", 's'),
            ("say <x>done</y> and go on", '-'),
            ("say <x>done</xy> and go on", '-'),
            ("say <xy>done</x> and go on", '-'),
            ("say <>done</> and go on", '-'),
            ("say <1>done</1> and go on", '-'),
            ("say <x>done, nearly</x> and go on", '-'),
            ("say <x>done</x", '-'),
            ("say <x <y>done</y> and go on", 't'),
            ("say <<x>done</x> and go on", 't'),
            ("**DONE**", 's'),
            ("끝났습니다. DONE", 't'),
        ] {
            assert_eq!(kind(answer, "DONE"), wanted, "{answer}");
        }
    }

    #[test]
    fn a_sign_may_be_any_text() {
        for (answer, until, wanted) in [
            ("it is done.", "done.", 't'),
            ("it is done", "done.", '-'),
            ("it is done!.", "done.", '-'),
            ("it is done.!", "done.", 't'),
            ("a <promise>X</promise> b", "<promise>X</promise>", 's'),
            ("a\n<promise>X</promise>", "<promise>X</promise>", 't'),
            ("a (.*) b", "(.*)", 's'),
            ("모두 완료", "완료", 't'),
            ("<x>완료</x>", "완료", 't'),
            ("<x>é</x> -", "É", '-'),
            ("ALL CLEAN\n", " ALL CLEAN\n", 't'),
            ("", "", '-'),
            ("text", "  ", '-'),
            ("<x></x>", "", '-'),
            ("!!!", "!", 't'),
            ("a.", "...", '-'),
        ] {
            assert_eq!(kind(answer, until), wanted, "{answer} / {until}");
        }
    }

    #[test]
    fn the_sign_is_taken_out_of_the_answer() {
        for (answer, wanted) in [
            ("plain DONE", "plain DONE"),
            ("  text\n<promise>DONE</promise>\n", "text"),
            ("a <PROMISE>any\nthing</Promise> b", "a  b"),
            ("a <x>done</X> b <y>DONE</y>", "a  b"),
            ("a <x>DONE</y> b", "a <x>DONE</y> b"),
            ("a <promise>b", "a <promise>b"),
            ("a <promise>b <x>DONE</x>", "a <promise>b"),
            ("<promise>a<promise>b</promise>c</promise>", "c</promise>"),
            ("<promise>DONE</promise>", "<promise>DONE</promise>"),
            (" <x>DONE</x>\n", " <x>DONE</x>\n"),
            ("a < b <", "a < b <"),
            ("", ""),
        ] {
            assert_eq!(cleaned(answer, "DONE"), wanted, "{answer}");
        }
        assert_eq!(cleaned("a <x></x><promise>b</promise>", ""), "a <x></x>");
    }

    #[test]
    fn long_answers_take_no_long_time() {
        const LONG: usize = 1 << 18;
        let rows =
            ["<", "<a", "<a ", "<a>", "<promise>", "</promise>", "<a>DON", "< ", "D", " ", ">"];
        for row in rows.map(|row| row.repeat(LONG / row.len())) {
            for tail in ["</a>", "<a>DONE</a> x"] {
                let answer = format!("{row}{tail}");
                assert_eq!(kind(&answer, "DONE"), if tail.len() > 4 { 't' } else { '-' });
                assert!(cleaned(&answer, "DONE").len() <= answer.len());
            }
        }
        // Nor does a long sign.
        let sign = "a".repeat(LONG / 2) + "b";
        assert!(!signalled(&"a".repeat(LONG), &sign) && !signalled(&"<a>".repeat(LONG), &sign));
    }

    #[test]
    fn whatever_is_answered_can_be_read() {
        const SCRAPS: [&str; 16] = [
            "<",
            ">",
            "</",
            "x",
            "X",
            " ",
            "DONE",
            "done",
            "<promise>",
            "</promise>",
            "\n",
            "é",
            "<x>",
            "</x>",
            ".",
            "-",
        ];
        let mut random = Random::new(4);
        let mut kinds = std::collections::BTreeSet::new();
        for _ in 0..20_000 {
            let answer: String =
                (0..random.below(12)).map(|_| SCRAPS[random.below(SCRAPS.len())]).collect();
            kinds.insert(kind(&answer, "DONE"));
            let clean = cleaned(&answer, "DONE");
            assert!(clean == answer || clean.len() <= answer.len() && clean == clean.trim());
        }
        assert_eq!(kinds.len(), 3);
    }
}
