//! Faults of YAML, and what is said of them.

use super::parse;

/// What is said of the second line on: message, hint, line and column.
fn said(text: &str) -> (String, String, usize, usize) {
    let problem = parse(text).expect_err(text);
    let place = problem.place.expect("a place");
    let message = problem.message.replace("this is not valid YAML: ", "");
    (message, problem.hint.unwrap_or_default(), place.line, place.column)
}

#[test]
fn faults_are_told_in_plain_words_with_their_cure() {
    for (text, message, hint, line, column) in [
        (
            "a: [x, ${y.z}]\n",
            "the braces of `${y.z}` are a map to YAML",
            "put it in quotes: \"${y.z}\"",
            1,
            8,
        ),
        (
            "a: [\"${y}\", b-${y}-c, d]\n",
            "the braces of `b-${y}-c` are a map to YAML",
            "put it in quotes: \"b-${y}-c\"",
            1,
            13,
        ),
        (
            "- { é: x, b: echo {{.y}} now }\n",
            "the braces of `echo {{.y}} now` are a map to YAML",
            "put it in quotes: \"echo {{.y}} now\"",
            1,
            14,
        ),
        (
            "a: 1\nb: {{.y}} \"now\" # c\n",
            "the braces of `{{.y}} \"now\"` are a map to YAML",
            "put it in quotes: '{{.y}} \"now\"'",
            2,
            4,
        ),
        (
            "a: [\"x\", \"y]\nb: 1\n",
            "the quote `\"` opened on line 1 is not closed on that line",
            "close it with `\"`",
            1,
            10,
        ),
        ("a: 1e400\n", "this number is too large", "put it in quotes: \"1e400\"", 1, 4),
        (
            "a: 1\nb:\n\tc: 2\n",
            "a tab indents this line, and only spaces may",
            "indent with spaces",
            3,
            1,
        ),
        (
            "s:\n  - name: A\n\tcommand: [x]\n",
            "a tab indents this line, and only spaces may",
            "indent with spaces",
            3,
            1,
        ),
        (
            "s:\n  - name: \"A\n    b: [x]\n",
            "the quote `\"` opened on line 2 is not closed on that line",
            "close it with `\"`",
            2,
            11,
        ),
        (
            "s:\n  - name: 'A\n    b: 'x'\n",
            "the quote `'` opened on line 2 is not closed on that line",
            "close it with `'`",
            2,
            11,
        ),
        (
            "a: 1\nb: \"x\n",
            "the quote `\"` opened on line 2 is not closed on that line",
            "close it with `\"`",
            2,
            4,
        ),
        (
            "a: [x, 'it's']\n",
            "text follows the closing quote",
            "in single quotes an apostrophe is written twice, `''`; or use double quotes",
            1,
            12,
        ),
        (
            "a: \"b\" c\n",
            "text follows the closing quote",
            "put all of the value in quotes, and write `\\\"` for a quote inside of it",
            1,
            8,
        ),
        (
            "a: [\"g\", \"\\d+\"]\n",
            "`\\d` is no escape that double quotes know here",
            "write the backslash twice, or use single quotes, where it is an ordinary character",
            1,
            11,
        ),
        ("a: [x, y\nb: 1\n", "the `[` opened on line 1 is not closed", "close it with `]`", 1, 4),
        (
            "s:\n  - { a: 1\n  - b: 2\n",
            "the `{` opened on line 2 is not closed",
            "close it with `}`",
            2,
            5,
        ),
        (
            "a: [x, # hi]\n",
            "the `[` opened on line 1 is not closed",
            "close it with `]`; what follows ` #` is a comment",
            1,
            4,
        ),
        (
            "s: { a: 1 b: 2 }\n",
            "a comma or `}` is missing here",
            "put commas between entries, and text that has `: ` or a comma in quotes",
            1,
            12,
        ),
        ("a: [x]]\n", "this `]` closes nothing", "remove it, or put the value in quotes", 1, 7),
        ("a: @b # c\n", "a value cannot begin with `@`", "put it in quotes: \"@b\"", 1, 4),
        ("a: `b`\n", "a value cannot begin with a backtick", "put it in quotes: \"`b`\"", 1, 4),
        (
            "a: [ls, *.md]\n",
            "a value that begins with `*` stands for an anchor, and there is none of that name",
            "put it in quotes: \"*.md\"",
            1,
            9,
        ),
        (
            "a: note: b\n",
            "the value of `a` has a colon and a space in it",
            "put it in quotes: \"note: b\"",
            1,
            4,
        ),
        (
            "s:\n  - name:A\n    b: 1\n",
            "no space follows the colon of `name:A`",
            "write `name: A`",
            2,
            5,
        ),
        (
            "s:\n  - name: A\n     b: 1\n",
            "this line is indented more than line 2 above it",
            "indent it by 4 spaces, like line 2",
            3,
            6,
        ),
        ("s:\n  - a: 1\n  -b: 1\n", "no space follows the dash", "write `- b: 1`", 3, 3),
        (
            "s:\n  - a: 1\n   b: 1\n",
            "this line neither begins an item of the list, nor is it indented enough to belong \
             to the item above",
            "indent it by 4 spaces, like line 2, or begin an item: `- b: 1`",
            3,
            4,
        ),
        (
            "a: |\n  x\nb: |\nhello\n",
            "this line is not indented enough to belong to the text of `b`",
            "indent every line of the text more than `b` on line 3",
            4,
            1,
        ),
        (
            "a: 1\nb\nc: 2\n",
            "this line has no `key: value`",
            "write a colon and a space after the key",
            2,
            1,
        ),
        ("a: 1\na: 2\n", "the key `a` is there twice", "remove one of the two", 2, 1),
        (
            "a: | x\n",
            "text follows the `|` or `>`",
            "begin the text on the next line, indented",
            1,
            4,
        ),
        (
            "a:\n    x: 1\n  y: 2\n",
            "this line is indented unlike every line above it",
            "indent all keys of one map alike, and all items of one list alike",
            3,
            3,
        ),
    ] {
        assert_eq!(said(text), (message.into(), hint.into(), line, column), "{text}");
    }
}
