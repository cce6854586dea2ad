//! Text layout by display width, and removal of terminal control characters.

use ratatui::style::{Color, Modifier, Style};
use ratatui::text::Span;

use super::ansi;

/// Returns the width of a text in columns.
pub(crate) fn width(text: &str) -> usize {
    Span::raw(text).width()
}

/// Truncates a text to a width and marks the cut with `…`. Removes control characters.
pub(crate) fn cut(text: &str, most: usize) -> String {
    let clean: String = text.chars().filter(|c| !c.is_control()).collect();
    if width(&clean) <= most {
        return clean;
    }
    let mut short = String::new();
    let mut taken = 0;
    for letter in clean.chars() {
        taken += width(letter.encode_utf8(&mut [0; 4]));
        if taken >= most {
            break;
        }
        short.push(letter);
    }
    if most > 0 {
        short.push('…');
    }
    short
}

/// Truncates or pads a text to a width.
pub(crate) fn fit(text: &str, columns: usize) -> String {
    let mut text = cut(text, columns);
    text.push_str(&" ".repeat(columns.saturating_sub(width(&text))));
    text
}

/// Wraps a text at a width, between words if possible.
pub(crate) fn wrap(text: &str, columns: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split_inclusive(' ') {
        let mut word = word;
        loop {
            let line = lines.last_mut().expect("there is a line");
            if width(line) + width(word.trim_end()) <= columns {
                line.push_str(word);
                break;
            }
            if !line.is_empty() {
                lines.push(String::new());
                continue;
            }
            // Split a word that is wider than a line.
            let end = fits(word, columns);
            line.push_str(&word[..end]);
            word = &word[end..];
            if word.is_empty() {
                break;
            }
        }
    }
    lines.iter_mut().for_each(|line| line.truncate(line.trim_end().len()));
    lines
}

/// Returns how many bytes of a text fit into `columns`; at least one character.
fn fits(text: &str, columns: usize) -> usize {
    let mut taken = 0;
    for (at, letter) in text.char_indices() {
        taken += width(letter.encode_utf8(&mut [0; 4]));
        if taken > columns.max(1) && at > 0 {
            return at;
        }
    }
    text.len()
}

/// Makes a line that another program printed safe to draw: removes escape sequences and control
/// characters.
pub(crate) fn printed(line: &str) -> String {
    let mut clean = String::new();
    for letter in ansi::strip(line).chars() {
        match letter {
            '\t' => clean.push_str("    "),
            letter if letter.is_control() => {}
            letter => clean.push(sanitize_char(letter)),
        }
    }
    clean
}

/// Returns the style of a state label. States that need attention are bold, also without color.
pub(crate) fn style_of(word: &str, colour: bool) -> Style {
    let (tint, modifier) = match word.split(',').next().unwrap_or_default() {
        "running" | "alive" => (Some(Color::Cyan), Modifier::empty()),
        "completed" => (Some(Color::Green), Modifier::empty()),
        "failed" | "blocked" | "damaged" | "dead" | "lost" | "interrupted" => {
            (Some(Color::Red), Modifier::BOLD)
        }
        "paused" | "asking" | "doubtful" | "silent" | "stopped" | "unreadable" | "beat unknown" => {
            (Some(Color::Yellow), Modifier::BOLD)
        }
        "resting" => (Some(Color::Yellow), Modifier::empty()),
        _ => (None, Modifier::DIM),
    };
    let style = Style::new().add_modifier(modifier);
    tint.filter(|_| colour).map_or(style, |tint| style.fg(tint))
}

/// Replaces a character of untrusted text that could move the cursor or change the text direction.
pub(crate) fn sanitize_char(letter: char) -> char {
    match letter.is_control() || turns(letter) {
        true => char::REPLACEMENT_CHARACTER,
        false => letter,
    }
}

/// Returns true if a character changes the text direction.
fn turns(letter: char) -> bool {
    matches!(letter,
        '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// Makes the text of another program safe for a terminal: removes escape sequences and replaces
/// control characters, except tabs and line breaks.
pub(crate) fn sanitize(text: &str) -> String {
    ansi::strip(text)
        .chars()
        .map(|c| if matches!(c, '\n' | '\t') { c } else { sanitize_char(c) })
        .collect()
}

/// Makes a line of a fleet member safe for a terminal, and keeps its colors.
pub(crate) fn colored(text: &str) -> String {
    let color = |text: &str| {
        let end = text.strip_prefix("\x1b[")?.find(|c: char| !matches!(c, '0'..='9' | ';'))? + 2;
        text[end..].starts_with('m').then_some(end + 1)
    };
    let (mut out, mut plain) = (String::new(), 0);
    for (at, _) in text.match_indices('\x1b') {
        if let Some(length) = color(&text[at..]) {
            out.push_str(&sanitize(&text[plain..at]));
            out.push_str(&text[at..at + length]);
            plain = at + length;
        }
    }
    out + &sanitize(&text[plain..])
}

/// Joins untrusted text into one line, so that none of its lines starts a line of the output.
pub(crate) fn single_line(text: &str) -> String {
    let text = ansi::strip(text);
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    lines.collect::<Vec<_>>().join(" ").chars().map(sanitize_char).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_moves_a_cursor_is_replaced() {
        let text = "a\tb\r\nc\x1b[2Jd\u{9b}e\u{7f}";
        assert_eq!(sanitize(text), "a\tb\u{fffd}\ncd\u{fffd}e\u{fffd}");
        assert_eq!(sanitize("a\u{202e}b\u{2066}c\u{200f}é"), "a\u{fffd}b\u{fffd}c\u{fffd}é");
        assert_eq!(single_line("\na\tb \r\n\n  c\x1b[1md\n"), "a\u{fffd}b cd");
    }

    #[test]
    fn only_colors_pass_from_a_member_to_the_terminal() {
        let text = "a \x1b[32mdone\x1b[0m \x1b[2Jb\x1b]0;t\x07\u{9b}c\x1b[1";
        assert_eq!(colored(text), "a \x1b[32mdone\x1b[0m b\u{fffd}c");
    }

    #[test]
    fn text_is_cut_where_it_does_not_fit() {
        assert_eq!(cut("abcdef", 6), "abcdef");
        assert_eq!(cut("abcdefg", 6), "abcde…");
        assert_eq!(cut("日本語", 5), "日本…");
        assert_eq!(cut("a\x1b[2Jb", 9), "a[2Jb");
        assert_eq!(fit("ab", 4), "ab  ");
        assert_eq!(cut("abc", 0), "");
    }

    #[test]
    fn long_lines_are_broken() {
        assert_eq!(wrap("one two three", 8), ["one two", "three"]);
        assert_eq!(wrap("abcdefghij kl", 4), ["abcd", "efgh", "ij", "kl"]);
        assert_eq!(wrap("", 4), [""]);
        assert_eq!(wrap("日本語", 1), ["日", "本", "語"]);
    }

    #[test]
    fn what_programs_print_cannot_play_with_the_terminal() {
        assert_eq!(printed("\x1b[31mred\x1b[0m\tx\r\x07"), "red    x");
        assert_eq!(printed("a\x1b[2J\x1b[1;1Hb\x1b"), "ab");
    }
}
