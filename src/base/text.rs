//! Text layout by display width, and removal of terminal control characters.

use ratatui::style::{Color, Modifier, Style};
use ratatui::text::Span;

use super::ansi;
use crate::view::stderr::tame;

/// Returns the width of a text in columns.
pub fn width(text: &str) -> usize {
    Span::raw(text).width()
}

/// Truncates a text to a width and marks the cut with `…`. Removes control characters.
pub fn cut(text: &str, most: usize) -> String {
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
pub fn fit(text: &str, columns: usize) -> String {
    let mut text = cut(text, columns);
    text.push_str(&" ".repeat(columns.saturating_sub(width(&text))));
    text
}

/// Wraps a text at a width, between words if possible.
pub fn wrap(text: &str, columns: usize) -> Vec<String> {
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
pub fn printed(line: &str) -> String {
    let mut clean = String::new();
    for letter in ansi::strip(line).chars() {
        match letter {
            '\t' => clean.push_str("    "),
            letter if letter.is_control() => {}
            letter => clean.push(tame(letter)),
        }
    }
    clean
}

/// Returns the style of a state label. States that need attention are bold, also without color.
pub fn style_of(word: &str, colour: bool) -> Style {
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

#[cfg(test)]
mod tests {
    use super::*;

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
