//! Explains text that is not valid YAML in its author's terms: what is wrong, where it starts, and
//! how to write it. The parser names only the rule that was broken.

use super::problem::{Place, Problem};
use super::unclosed::{Open, begins_text, indent};

/// Builds a problem from the parser's message and the place that it names.
pub(crate) fn explain(message: &str, place: Option<Place>, lines: &[&str]) -> Problem {
    let message = first_line(message);
    let place = place.unwrap_or(Place { line: 1, column: 1, len: 1 });
    let place = Place { line: place.line.max(1), column: place.column.max(1), ..place };
    let looking = Looking { message: &message, place, lines };
    let known = looking
        .tab()
        .or_else(|| looking.quote())
        .or_else(|| looking.escape())
        .or_else(|| looking.reference())
        .or_else(|| looking.bracket())
        .or_else(|| looking.sign())
        .or_else(|| looking.colon())
        .or_else(|| looking.indentation())
        .or_else(|| looking.rest());
    let (said, hint, place) = known.unwrap_or_else(|| (message.clone(), None, place));
    let problem = Problem::error(format!("this is not valid YAML: {said}")).at(place);
    match hint {
        Some(hint) => problem.hint(hint),
        None => problem,
    }
}

/// Returns the parser's message without its place and its excerpt of the text.
fn first_line(message: &str) -> String {
    let line = message.lines().next().unwrap_or_default();
    let line = line.strip_prefix("error: ").unwrap_or(line);
    match line.split_once(": ") {
        Some((at, rest)) if at.starts_with("line ") => rest.to_owned(),
        _ => line.to_owned(),
    }
}

/// A message, a hint for the repair, and the place.
type Said = (String, Option<String>, Place);

struct Looking<'l> {
    message: &'l str,
    place: Place,
    lines: &'l [&'l str],
}

impl Looking<'_> {
    fn says(&self, words: &[&str]) -> bool {
        words.iter().any(|word| self.message.contains(word))
    }

    fn line(&self, number: usize) -> &str {
        number.checked_sub(1).and_then(|at| self.lines.get(at)).copied().unwrap_or_default()
    }

    /// Returns the text from the place to the end of its line.
    fn here(&self) -> &str {
        let line = self.line(self.place.line);
        let at = line.char_indices().nth(self.place.column - 1);
        at.map_or("", |(at, _)| &line[at..])
    }

    /// Returns the number of the nearest line above that is not empty or a comment.
    fn above(&self, number: usize) -> Option<usize> {
        let says = |line: &str| !line.trim().is_empty() && !line.trim_start().starts_with('#');
        (1..number).rev().find(|number| says(self.line(*number)))
    }

    fn open(&self) -> Open {
        Open::before(self.lines, self.place)
    }

    /// Explains tabs. The parser names the value before the tab.
    fn tab(&self) -> Option<Said> {
        if !self.says(&["a tab", "tabs"]) {
            return None;
        }
        let tab = |number: &usize| {
            let line = self.line(*number);
            line.find(|c| c != ' ').filter(|at| line[*at..].starts_with('\t'))
        };
        let found =
            (self.place.line..=self.lines.len()).find_map(|number| Some((number, tab(&number)?)));
        let said = match found {
            Some(_) => "a tab indents this line, and only spaces may",
            None => "a tab stands where only spaces may",
        };
        let place = found.map_or(self.place, |(line, at)| Place { line, column: at + 1, len: 1 });
        Some((said.to_owned(), Some("indent with spaces".to_owned()), place))
    }

    fn quote(&self) -> Option<Said> {
        if self.says(&["invalid trailing content after"]) {
            let (quote, begun) = self.open().last_quote?;
            if begun.line < self.place.line {
                return Some(self.unclosed_quote(quote, begun));
            }
            let hint = match quote {
                '\'' => {
                    "in single quotes an apostrophe is written twice, `''`; or use double quotes"
                }
                _ => "put all of the value in quotes, and write `\\\"` for a quote inside of it",
            };
            return Some(("text follows the closing quote".into(), Some(hint.into()), self.place));
        }
        if self.says(&["unclosed quote"]) {
            return Some(self.unclosed_quote(self.here().chars().next()?, self.place));
        }
        if !self.says(&["multiline quoted scalar", "quoted scalar, found unexpected"]) {
            return None;
        }
        let (quote, begun) = self.open().quote?;
        Some(self.unclosed_quote(quote, begun))
    }

    fn unclosed_quote(&self, quote: char, begun: Place) -> Said {
        let line = begun.line;
        let said = format!("the quote `{quote}` opened on line {line} is not closed on that line");
        (said, Some(format!("close it with `{quote}`")), begun)
    }

    fn escape(&self) -> Option<Said> {
        if !self.says(&["escape", "hexadecimal number", "surrogate"]) {
            return None;
        }
        let mut signs = self.here().char_indices();
        let mut found = None;
        while let Some((at, sign)) = signs.next() {
            if sign != '\\' {
                continue;
            }
            let Some((_, next)) = signs.next() else { break };
            if !"0abtnvfre \"/\\N_LP".contains(next) {
                found = Some((self.here()[..at].chars().count(), next));
                break;
            }
        }
        let hint = "write the backslash twice, or use single quotes, where it is an ordinary \
                    character";
        let place = match found {
            Some((at, _)) => Place { column: self.place.column + at, len: 2, ..self.place },
            None => self.place,
        };
        let said = match found {
            Some((_, next)) => format!("`\\{next}` is no escape that double quotes know here"),
            None => "double quotes have an escape that is not complete".to_owned(),
        };
        Some((said, Some(hint.to_owned()), place))
    }

    /// Explains references outside quotes: YAML reads the braces of `${x}` and `{{.x}}` as a map.
    fn reference(&self) -> Option<Said> {
        let broken =
            ["flow mapping", "flow sequence", "flow construct", "did not find expected key"];
        if !self.says(&broken) {
            return None;
        }
        let line = self.line(self.place.line);
        let (at, open) = line.char_indices().find_map(|(at, _)| {
            let column = line[..at].chars().count() + 1;
            let open = || Open::before(self.lines, Place { column, ..self.place });
            let is = ["${", "{{"].iter().any(|sign| line[at..].starts_with(sign));
            is.then(open).filter(|open| open.quote.is_none()).map(|open| (at, open))
        })?;
        let head = &line[..at];
        if head.contains(" #") {
            return None;
        }
        let (begin, end) = match open.brackets.is_empty() {
            // A plain value may have braces in it, but not at its start.
            true if head.trim_end().ends_with([':', '-']) && line[at..].starts_with("{{") => {
                (at, line[at..].find(" #").map_or(line.len(), |comment| at + comment))
            }
            true => return None,
            false => {
                let begin = head.rfind([',', '[', '{']).map_or(0, |comma| comma + 1);
                let begin = begin.max(head.rfind(": ").map_or(0, |colon| colon + 2));
                let close = if line[at..].starts_with("{{") { "}}" } else { "}" };
                let end = line[at..].find(close).map_or(line.len(), |end| at + end + close.len());
                (begin, end + line[end..].find([',', ']', '}']).unwrap_or(line.len() - end))
            }
        };
        let value = line[begin..end].trim();
        let begin = begin + line[begin..].len() - line[begin..].trim_start().len();
        let said = format!("the braces of `{value}` are a map to YAML");
        let (column, len) = (line[..begin].chars().count() + 1, value.chars().count());
        Some((said, Some(in_quotes(value)), Place { column, len, ..self.place }))
    }

    fn bracket(&self) -> Option<Said> {
        if self.says(&["misplaced bracket"]) {
            let sign = self.here().chars().next()?;
            let said = format!("this `{sign}` closes nothing");
            return Some((said, Some("remove it, or put the value in quotes".into()), self.place));
        }
        let in_flow = [
            "flow mapping",
            "flow sequence",
            "flow construct",
            "bracket",
            "placement of ':'",
            "\"-\" is only valid",
        ];
        if !self.says(&in_flow) {
            return None;
        }
        let unclosed = self.says(&["unclosed"]);
        let (sign, begun) = match unclosed {
            true => (self.here().chars().next()?, self.place),
            false => *self.open().brackets.last()?,
        };
        let close = if sign == '[' { ']' } else { '}' };
        if begun.line == self.place.line && !unclosed {
            let said = format!("a comma or `{close}` is missing here");
            let hint = "put commas between entries, and text that has `: ` or a comma in quotes";
            return Some((said, Some(hint.into()), self.place));
        }
        let said = format!("the `{sign}` opened on line {} is not closed", begun.line);
        let hint = match self.line(begun.line).contains(" #") {
            true => format!("close it with `{close}`; what follows ` #` is a comment"),
            false => format!("close it with `{close}`"),
        };
        Some((said, Some(hint), begun))
    }

    /// Explains values that start with a character that has another meaning there.
    fn sign(&self) -> Option<Said> {
        let known = ["unexpected character", "unknown anchor", "anchor or alias", "mapping keys"];
        if !self.says(&known) {
            return None;
        }
        let sign = self.here().chars().next()?;
        if sign.is_control() {
            let said = "a control character stands here".to_owned();
            return Some((said, Some("remove it".into()), self.place));
        }
        let said = match sign {
            '*' => "a value that begins with `*` stands for an anchor, and there is none of that \
                    name"
                .to_owned(),
            '&' => "a value that begins with `&` names an anchor, and no name follows".to_owned(),
            '`' => "a value cannot begin with a backtick".to_owned(),
            _ => format!("a value cannot begin with `{sign}`"),
        };
        let token = self.token(!self.open().brackets.is_empty());
        let len = token.chars().count().max(1);
        Some((said, Some(in_quotes(token)), Place { len, ..self.place }))
    }

    /// Returns the value at the place: up to the next comma or bracket inside brackets, otherwise
    /// up to the end of the line or a comment.
    fn token(&self, in_brackets: bool) -> &str {
        let here = self.here();
        let end = here.find(" #").unwrap_or(here.len());
        let end = match in_brackets {
            true => here[..end].find([',', ']', '}']).unwrap_or(end),
            false => end,
        };
        here[..end].trim_end()
    }

    fn colon(&self) -> Option<Said> {
        if !self.says(&["mapping values are not allowed"]) {
            return None;
        }
        let line = self.line(self.place.line);
        let content = line.trim_start_matches([' ', '-']);
        let head = &line[..line.len() - self.here().len()];
        if let Some(at) = head.find(": ") {
            let key = head[..at].trim_start_matches([' ', '-']);
            let value = line[at + 2..].trim();
            let column = head[..at + 2].chars().count() + 1;
            let place = Place { column, len: value.chars().count().max(1), ..self.place };
            let said = format!("the value of `{key}` has a colon and a space in it");
            return Some((said, Some(in_quotes(value)), place));
        }
        let number = self.above(self.place.line)?;
        let above = self.line(number);
        let (column, words) = (content_column(above), above.trim_start_matches([' ', '-']));
        if let Some((key, value)) = words.split_once(':')
            && !value.starts_with(' ')
            && !value.is_empty()
            && key.chars().all(|c| c.is_alphanumeric() || matches!(c, '_' | '-'))
        {
            let place = Place { line: number, column, len: words.chars().count() };
            let said = format!("no space follows the colon of `{}`", words.trim_end());
            return Some((said, Some(format!("write `{key}: {}`", value.trim())), place));
        }
        let own = content_column(line);
        if own > column {
            let said = format!("this line is indented more than line {number} above it");
            let place = Place { column: own, len: content.chars().count().max(1), ..self.place };
            return Some((said, Some(indent_by(column, number)), place));
        }
        let said = "a colon stands where no key can be".to_owned();
        let hint = "put text that has `: ` in quotes";
        Some((said, Some(hint.into()), self.place))
    }

    fn indentation(&self) -> Option<Said> {
        let line = self.line(self.place.line);
        let words = line.trim_start();
        let column = content_column(line);
        let place = Place { column, len: words.trim_end().chars().count().max(1), ..self.place };
        let above = self.above(self.place.line)?;
        if self.says(&["simple key expected ':'", "did not find expected key"])
            && let Some(number) = self.text_above()
        {
            let key = self.line(number).trim().trim_start_matches(['-', ' ']);
            let key = key.split(':').next().unwrap_or_default();
            let said = format!("this line is not indented enough to belong to the text of `{key}`");
            let hint = format!("indent every line of the text more than `{key}` on line {number}");
            return Some((said, Some(hint), place));
        }
        if self.says(&["simple key expected ':'"]) {
            let said = "this line has no `key: value`".to_owned();
            return Some((said, Some("write a colon and a space after the key".into()), place));
        }
        if self.says(&["expected '-' indicator"]) {
            if let Some(item) = words.strip_prefix('-') {
                let said = "no space follows the dash".to_owned();
                return Some((said, Some(format!("write `- {}`", item.trim_end())), self.place));
            }
            let column = content_column(self.line(above));
            let said = "this line neither begins an item of the list, nor is it indented enough to \
                        belong to the item above";
            let hint =
                format!("{}, or begin an item: `- {}`", indent_by(column, above), words.trim_end());
            return Some((said.into(), Some(hint), place));
        }
        if !self.says(&["did not find expected key", "block sequence entries are not allowed"]) {
            return None;
        }
        let said = match words.starts_with("- ") {
            true => "an item of a list stands among keys",
            false => "this line is indented unlike every line above it",
        };
        let hint = "indent all keys of one map alike, and all items of one list alike";
        Some((said.into(), Some(hint.into()), place))
    }

    /// Returns the number of the line that starts a block text (`key: |`) which this line would
    /// belong to if it were indented more.
    fn text_above(&self) -> Option<usize> {
        let own = indent(self.line(self.place.line));
        let mut number = self.place.line;
        loop {
            number = self.above(number)?;
            let line = self.line(number);
            if begins_text(line) {
                return Some(number);
            }
            if indent(line) < own {
                return None;
            }
        }
    }

    fn rest(&self) -> Option<Said> {
        let said =
            |said: &str, hint: &str| Some((said.to_owned(), Some(hint.to_owned()), self.place));
        if self.says(&["budget breached: Depth"]) {
            return Some(("it is nested too deeply".into(), None, self.place));
        }
        if self.says(&["budget breached"]) {
            let said = "it is too large, every alias counted as often as it is used".to_owned();
            return Some((said, None, self.place));
        }
        // Cut the parser's advice to programmers: authors cannot set its options.
        if let Some((_, key)) = self.message.split_once("duplicate mapping key: ") {
            let key = key.split(", set DuplicateKeyPolicy").next().unwrap_or(key);
            return said(&format!("the key `{key}` is there twice"), "remove one of the two");
        }
        if self.says(&["multiple YAML documents"]) {
            let message = "there is a second document in it, behind `---`, and one file holds one";
            return said(message, "put it into a file of its own");
        }
        if self.says(&["non-finite float", "have no place in a workflow"]) {
            let token = self.token(!self.open().brackets.is_empty());
            return match token.bytes().any(|byte| byte.is_ascii_digit()) {
                true => Some((
                    "this number is too large".into(),
                    Some(in_quotes(token)),
                    Place { len: token.len(), ..self.place },
                )),
                false => said("`.inf` and `.nan` have no place in a workflow", "write a number"),
            };
        }
        if self.says(&["scanning a block scalar, did not find expected comment"]) {
            return said(
                "text follows the `|` or `>`",
                "begin the text on the next line, indented",
            );
        }
        if self.says(&["<document start>"])
            && let Some(at) = self.lines.iter().position(|line| line.starts_with('%'))
        {
            let place = Place { line: at + 1, column: 1, len: 1 };
            let said = "a line that begins with `%` is a directive".to_owned();
            return Some((said, Some("remove the line".into()), place));
        }
        None
    }
}

fn in_quotes(value: &str) -> String {
    match value.contains(['"', '\\']) {
        true => format!("put it in quotes: '{}'", value.replace('\'', "''")),
        false => format!("put it in quotes: \"{value}\""),
    }
}

fn indent_by(column: usize, line: usize) -> String {
    let spaces = column - 1;
    if spaces == 0 {
        return format!("do not indent it, like line {line}");
    }
    let word = if spaces == 1 { "space" } else { "spaces" };
    format!("indent it by {spaces} {word}, like line {line}")
}

/// Returns the column of a line's content, after the dashes of lists.
fn content_column(line: &str) -> usize {
    let mut rest = line.trim_start_matches(' ');
    while let Some(item) = rest.strip_prefix("- ") {
        rest = item.trim_start_matches(' ');
    }
    line.len() - rest.len() + 1
}
