//! The text of a `nodes:` workflow: `$NAME` for a variable, `$id.output` and `$id.output.field` for
//! the result of another node.
//!
//! Every text is valid: a dollar sign that begins neither form stays a dollar sign. There is no
//! escape. A variable takes precedence over a node with the same name.
//!
//! **Invariant:** a text is parsed once, from left to right. Inserted values are never parsed
//! again, so neither a user's message nor an answer can become a reference.

use std::fmt;

/// Text with variables and references.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct NodeText {
    pieces: Vec<Piece>,
}

/// A part of a text. No two plain text pieces are adjacent, and none is empty.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Piece {
    Text(String),
    Var(Var),
    Ref(NodeRef),
}

/// A value that a run knows without asking a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Var {
    /// The message that started the run.
    Arguments,
    /// Another name for `Arguments`.
    UserMessage,
    WorkflowId,
    ArtifactsDir,
    BaseBranch,
    DocsDir,
    /// The issue or pull request that the run is about.
    Context,
    /// Another name for `Context`.
    ExternalContext,
    /// Another name for `Context`.
    IssueContext,
    /// A user's answer at the gate of a loop.
    LoopUserInput,
    /// The output of the previous round.
    LoopPrevOutput,
    /// A user's reason for a rejection.
    RejectionReason,
}

/// The output of a node, or one field of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NodeRef {
    pub node: String,
    pub field: Option<String>,
}

/// The source of the values.
pub(crate) trait Fill {
    type Error;

    /// Returns the value of a variable. `None` leaves its name in the text, for a shell to expand.
    fn var(&mut self, var: Var) -> Result<Option<String>, Self::Error>;

    fn reference(&mut self, reference: &NodeRef) -> Result<String, Self::Error>;
}

impl Var {
    pub(crate) const ALL: [Var; 12] = [
        Var::Arguments,
        Var::UserMessage,
        Var::WorkflowId,
        Var::ArtifactsDir,
        Var::BaseBranch,
        Var::DocsDir,
        Var::Context,
        Var::ExternalContext,
        Var::IssueContext,
        Var::LoopUserInput,
        Var::LoopPrevOutput,
        Var::RejectionReason,
    ];

    /// Returns the name without the dollar sign, which is also its name in the environment.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Var::Arguments => "ARGUMENTS",
            Var::UserMessage => "USER_MESSAGE",
            Var::WorkflowId => "WORKFLOW_ID",
            Var::ArtifactsDir => "ARTIFACTS_DIR",
            Var::BaseBranch => "BASE_BRANCH",
            Var::DocsDir => "DOCS_DIR",
            Var::Context => "CONTEXT",
            Var::ExternalContext => "EXTERNAL_CONTEXT",
            Var::IssueContext => "ISSUE_CONTEXT",
            Var::LoopUserInput => "LOOP_USER_INPUT",
            Var::LoopPrevOutput => "LOOP_PREV_OUTPUT",
            Var::RejectionReason => "REJECTION_REASON",
        }
    }

    pub(crate) fn named(name: &str) -> Option<Var> {
        Var::ALL.into_iter().find(|var| var.name() == name)
    }

    /// Returns true for the three names of the context.
    pub(crate) fn is_context(self) -> bool {
        matches!(self, Var::Context | Var::ExternalContext | Var::IssueContext)
    }

    /// Returns true if the value contains external text. Such text reaches a shell or a script only
    /// through the environment: pasted into the source, it would be executed.
    pub(crate) fn is_user_text(self) -> bool {
        match self {
            Var::WorkflowId | Var::ArtifactsDir | Var::BaseBranch | Var::DocsDir => false,
            Var::Arguments | Var::UserMessage => true,
            Var::Context | Var::ExternalContext | Var::IssueContext => true,
            Var::LoopUserInput | Var::LoopPrevOutput | Var::RejectionReason => true,
        }
    }
}

impl fmt::Display for Var {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "${}", self.name())
    }
}

impl fmt::Display for NodeRef {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match &self.field {
            None => write!(f, "${}.output", self.node),
            Some(field) => write!(f, "${}.output.{field}", self.node),
        }
    }
}

/// Prints a piece as it was written.
impl fmt::Display for Piece {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Piece::Text(text) => f.write_str(text),
            Piece::Var(var) => var.fmt(f),
            Piece::Ref(reference) => reference.fmt(f),
        }
    }
}

impl NodeText {
    /// Parses a text. A name ends where no ASCII letter, digit or `_` follows, so that a word of
    /// another script may directly follow it.
    pub(crate) fn parse(text: &str) -> NodeText {
        let mut pieces = Vec::new();
        let (mut begin, mut at) = (0, 0);
        while let Some(dollar) = text[at..].find('$').map(|dollar| at + dollar) {
            at = dollar + 1;
            let Some((piece, length)) = variable(&text[at..]).or_else(|| reference(&text[at..]))
            else {
                continue;
            };
            if begin < dollar {
                pieces.push(Piece::Text(text[begin..dollar].to_owned()));
            }
            pieces.push(piece);
            at += length;
            begin = at;
        }
        if begin < text.len() {
            pieces.push(Piece::Text(text[begin..].to_owned()));
        }
        NodeText { pieces }
    }

    /// Converts the values for whose index `plain` returns true to plain text.
    pub(crate) fn with_plain(self, plain: impl Fn(usize) -> bool) -> NodeText {
        let mut pieces: Vec<Piece> = Vec::new();
        let mut values = 0;
        for piece in self.pieces {
            let is_value = !matches!(piece, Piece::Text(_));
            let piece = match piece {
                piece if is_value && plain(values) => Piece::Text(piece.to_string()),
                piece => piece,
            };
            values += usize::from(is_value);
            match (pieces.last_mut(), piece) {
                (Some(Piece::Text(last)), Piece::Text(text)) => last.push_str(&text),
                (_, piece) => pieces.push(piece),
            }
        }
        NodeText { pieces }
    }

    pub(crate) fn pieces(&self) -> &[Piece] {
        &self.pieces
    }

    /// Returns the pieces, each with its byte offset in the text.
    pub(crate) fn placed(&self) -> impl Iterator<Item = (usize, &Piece)> {
        self.pieces.iter().scan(0, |at, piece| {
            let here = *at;
            *at += match piece {
                Piece::Text(text) => text.len(),
                piece => piece.to_string().len(),
            };
            Some((here, piece))
        })
    }

    /// Returns the variables and references.
    #[cfg(any(test, fuzzing))]
    pub(crate) fn values(&self) -> impl Iterator<Item = &Piece> {
        self.pieces.iter().filter(|piece| !matches!(piece, Piece::Text(_)))
    }

    pub(crate) fn refs(&self) -> impl Iterator<Item = &NodeRef> {
        self.pieces.iter().filter_map(|piece| match piece {
            Piece::Ref(reference) => Some(reference),
            _ => None,
        })
    }

    pub(crate) fn vars(&self) -> impl Iterator<Item = Var> {
        self.pieces.iter().filter_map(|piece| match piece {
            Piece::Var(var) => Some(*var),
            _ => None,
        })
    }

    /// Returns the text as it was written.
    pub(crate) fn source(&self) -> String {
        self.pieces.iter().map(Piece::to_string).collect()
    }

    /// Returns the text with all values inserted, or every error.
    pub(crate) fn render<F: Fill + ?Sized>(&self, fill: &mut F) -> Result<String, Vec<F::Error>> {
        let mut out = String::new();
        let mut errors = Vec::new();
        for piece in &self.pieces {
            let value = match piece {
                Piece::Text(text) => {
                    out.push_str(text);
                    continue;
                }
                Piece::Var(var) => fill.var(*var),
                Piece::Ref(reference) => fill.reference(reference).map(Some),
            };
            match value {
                Ok(Some(value)) => out.push_str(&value),
                Ok(None) => out.push_str(&piece.to_string()),
                Err(error) => errors.push(error),
            }
        }
        if errors.is_empty() { Ok(out) } else { Err(errors) }
    }
}

/// Returns the length of the name at the start of a text; 0 if it does not start with a name.
pub(crate) fn name_length(text: &str, dashes: bool) -> usize {
    let bytes = text.as_bytes();
    if !bytes.first().is_some_and(|byte| byte.is_ascii_alphabetic() || *byte == b'_') {
        return 0;
    }
    let inside = |byte: &u8| match *byte {
        b'-' => dashes,
        byte => byte.is_ascii_alphanumeric() || byte == b'_',
    };
    bytes.iter().position(|byte| !inside(byte)).unwrap_or(bytes.len())
}

/// Parses the variable after a dollar sign. Returns it with the length of its name.
fn variable(text: &str) -> Option<(Piece, usize)> {
    let length = name_length(text, false);
    Var::named(&text[..length]).map(|var| (Piece::Var(var), length))
}

/// Parses the reference after a dollar sign. Returns it with its length.
fn reference(text: &str) -> Option<(Piece, usize)> {
    let node = name_length(text, true);
    let after = text[node..].strip_prefix(".output").filter(|_| node > 0)?;
    if after.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '_') {
        return None;
    }
    let length = text.len() - after.len();
    let field = after.strip_prefix('.').unwrap_or_default();
    let field = &field[..name_length(field, false)];
    let reference = |field| Piece::Ref(NodeRef { node: text[..node].to_owned(), field });
    // A dot without a name after it ends a sentence.
    Some(match field {
        "" => (reference(None), length),
        field => (reference(Some(field.to_owned())), length + 1 + field.len()),
    })
}

/// Renders a command that a user calls directly: `$1` to `$9` are the arguments, and `$ARGUMENTS`
/// is all of them. A single argument is split into words, which become the arguments; several
/// arguments stay as the caller divided them. A reference to an absent argument stays as written,
/// `\$` is a dollar sign, and nothing else is replaced.
///
/// `$10` is not an argument: there are only nine, and it is probably a price.
pub(crate) fn positional(text: &str, args: &[&str]) -> String {
    let said = args.join(" ");
    let words: Vec<&str> = match args {
        [all] => all.split_whitespace().collect(),
        several => several.to_vec(),
    };
    let mut out = String::new();
    let mut rest = text;
    while let Some(at) = rest.find(['$', '\\']) {
        out.push_str(&rest[..at]);
        let (mark, after) = rest[at..].split_at(1);
        let name = &after[..name_length(after, false)];
        if mark == "\\" {
            let escaped = after.strip_prefix('$');
            out.push_str(if escaped.is_some() { "$" } else { mark });
            rest = escaped.unwrap_or(after);
        } else if name == Var::Arguments.name() {
            out.push_str(&said);
            rest = &after[name.len()..];
        } else if let Some(word) = digit(after).and_then(|digit| words.get(digit - 1)) {
            out.push_str(word);
            rest = &after[1..];
        } else {
            out.push_str(mark);
            rest = after;
        }
    }
    out.push_str(rest);
    out
}

/// Returns the digit from 1 to 9 at the start of a text, unless it is part of a longer number.
fn digit(text: &str) -> Option<usize> {
    let mut bytes = text.bytes();
    let digit = bytes.next().filter(|byte| matches!(byte, b'1'..=b'9'))?;
    let alone = !bytes.next().is_some_and(|byte| byte.is_ascii_digit());
    alone.then_some(usize::from(digit - b'0'))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::random::Random;

    /// Plain text as it is, a variable as `[NAME]`, a reference as `<node>` or `<node:field>`.
    fn read(text: &str) -> String {
        let show = |piece: &Piece| match piece {
            Piece::Text(text) => text.clone(),
            Piece::Var(var) => format!("[{}]", var.name()),
            Piece::Ref(NodeRef { node, field: None }) => format!("<{node}>"),
            Piece::Ref(NodeRef { node, field: Some(field) }) => format!("<{node}:{field}>"),
        };
        NodeText::parse(text).pieces().iter().map(show).collect()
    }

    fn reads(cases: &[(&str, &str)]) {
        for (text, wanted) in cases {
            assert_eq!(read(text), *wanted, "{text}");
            assert_eq!(NodeText::parse(text).source(), *text);
        }
    }

    #[test]
    fn every_variable_is_known_by_its_name() {
        for var in Var::ALL {
            assert_eq!(read(&format!("a ${} b", var.name())), format!("a [{}] b", var.name()));
            assert_eq!(Var::named(var.name()), Some(var));
            assert_eq!(var.to_string(), format!("${}", var.name()));
        }
        let names: std::collections::BTreeSet<_> = Var::ALL.into_iter().map(Var::name).collect();
        assert_eq!(names.len(), Var::ALL.len());
    }

    #[test]
    fn a_variable_ends_where_its_name_does() {
        reads(&[
            ("$ARGUMENTS", "[ARGUMENTS]"),
            ("$ARGUMENTS_X $ARGUMENTS2 $ARGUMENTSx", "$ARGUMENTS_X $ARGUMENTS2 $ARGUMENTSx"),
            ("\"$ARGUMENTS\".", "\"[ARGUMENTS]\"."),
            ("$ARGUMENTS$USER_MESSAGE", "[ARGUMENTS][USER_MESSAGE]"),
            ("$ARTIFACTS_DIR/plan.md", "[ARTIFACTS_DIR]/plan.md"),
            ("$BASE_BRANCH-old", "[BASE_BRANCH]-old"),
            ("$CONTEXT를 읽고 $ARGUMENTS을", "[CONTEXT]를 읽고 [ARGUMENTS]을"),
            ("$arguments $Context", "$arguments $Context"),
            ("$CONTEXTS $EXTERNAL $ISSUE_CONTEXT", "$CONTEXTS $EXTERNAL [ISSUE_CONTEXT]"),
        ]);
    }

    #[test]
    fn a_reference_names_a_node_and_perhaps_a_field() {
        reads(&[
            ("$a.output", "<a>"),
            ("$a.output.b", "<a:b>"),
            ("$a.output.b.c", "<a:b>.c"),
            ("$a.output. Then", "<a>. Then"),
            ("$a.output.", "<a>."),
            ("$a.output.5 $a.output.-x $a.output..b", "<a>.5 <a>.-x <a>..b"),
            ("$fetch-issue_2.output.is_bug", "<fetch-issue_2:is_bug>"),
            ("$a.output.my-field", "<a:my>-field"),
            ("$a.output-b $a.output/b $a.output\"", "<a>-b <a>/b <a>\""),
            ("$a.output.b$c.output.d", "<a:b><c:d>"),
            ("$_.output.___", "<_:___>"),
            ("$a.output을 보고", "<a>을 보고"),
            ("$a-.output $a--b.output", "<a-> <a--b>"),
        ]);
    }

    #[test]
    fn any_other_dollar_is_a_dollar() {
        for text in [
            "$",
            "$$",
            "$1 $9 $10",
            "$a",
            "$a.outputs",
            "$a.output_x.b",
            "$a.output2",
            "$a.field",
            "$.output",
            "$-a.output",
            "$1a.output",
            "${a.output}",
            "${ARGUMENTS}",
            "$(date)",
            "$a .output",
            "$a. output",
            "$a.Output",
            "$é.output",
            "$aé.output",
            "$&",
            "$HOME",
        ] {
            assert_eq!(NodeText::parse(text).pieces(), [Piece::Text(text.into())], "{text}");
        }
        reads(&[("$$a.output", "$<a>"), ("$$ARGUMENTS", "$[ARGUMENTS]"), (r"\$a.output", r"\<a>")]);
        assert_eq!(NodeText::parse("").pieces(), []);
    }

    #[test]
    fn a_variable_goes_before_a_node_of_its_name() {
        reads(&[
            ("$ARGUMENTS.output", "[ARGUMENTS].output"),
            ("$CONTEXT.output.x", "[CONTEXT].output.x"),
            ("$CONTEXT_X.output", "<CONTEXT_X>"),
        ]);
    }

    #[test]
    fn words_of_others_are_told_apart() {
        let ours: Vec<_> = Var::ALL.into_iter().filter(|var| !var.is_user_text()).collect();
        assert_eq!(ours, [Var::WorkflowId, Var::ArtifactsDir, Var::BaseBranch, Var::DocsDir]);
        let contexts: Vec<_> = Var::ALL.into_iter().filter(|var| var.is_context()).collect();
        assert_eq!(contexts, [Var::Context, Var::ExternalContext, Var::IssueContext]);
    }

    /// Fills with hostile text, leaves `DOCS_DIR` alone, and has no node called `gone`.
    struct Hostile;

    const INSERTED: &str = "$ARGUMENTS $a.output.b $& $$ $1 \\$ ";

    impl Fill for Hostile {
        type Error = String;

        fn var(&mut self, var: Var) -> Result<Option<String>, String> {
            Ok((var != Var::DocsDir).then(|| INSERTED.to_owned()))
        }

        fn reference(&mut self, reference: &NodeRef) -> Result<String, String> {
            match reference.node.as_str() {
                "gone" => Err(reference.to_string()),
                _ => Ok(INSERTED.to_owned()),
            }
        }
    }

    #[test]
    fn what_is_put_in_is_not_read_again() {
        let render = |text: &str| NodeText::parse(text).render(&mut Hostile);
        assert_eq!(render("<$USER_MESSAGE>"), Ok(format!("<{INSERTED}>")));
        assert_eq!(render("$x.output$y.output.z"), Ok(INSERTED.repeat(2)));
        assert_eq!(render("$DOCS_DIR $HOME"), Ok("$DOCS_DIR $HOME".into()));
        // Not even together with what stands beside it.
        struct Begin;
        impl Fill for Begin {
            type Error = ();
            fn var(&mut self, _: Var) -> Result<Option<String>, ()> {
                Ok(Some("$a".into()))
            }
            fn reference(&mut self, _: &NodeRef) -> Result<String, ()> {
                Err(())
            }
        }
        assert_eq!(NodeText::parse("$CONTEXT.output").render(&mut Begin), Ok("$a.output".into()));
    }

    #[test]
    fn every_error_is_told() {
        let text = NodeText::parse("$gone.output $a.output $gone.output.x");
        let errors = text.render(&mut Hostile).unwrap_err();
        assert_eq!(errors, ["$gone.output", "$gone.output.x"]);
    }

    #[test]
    fn a_value_can_be_made_plain() {
        let text = NodeText::parse("a $x.output b $ARGUMENTS$y.output.f c $z.output");
        let plain = text.clone().with_plain(|index| index != 2);
        let show: Vec<_> = plain.pieces().iter().map(Piece::to_string).collect();
        assert_eq!(show, ["a $x.output b $ARGUMENTS", "$y.output.f", " c $z.output"]);
        assert_eq!(plain.refs().count(), 1);
        assert_eq!(plain.source(), text.source());
    }

    #[test]
    fn arguments_of_a_direct_call() {
        for (text, args, wanted) in [
            ("$1, $2 and $1", &["a", "b"][..], "a, b and a"),
            ("$1 $2 $3", &["a"][..], "a $2 $3"),
            ("<$ARGUMENTS>", &["a", "b c"][..], "<a b c>"),
            ("<$ARGUMENTS>", &[][..], "<>"),
            ("$1", &[""][..], "$1"),
            ("<$1>", &["", "b"][..], "<>"),
            ("$1 $2", &["$2", "$ARGUMENTS"][..], "$2 $ARGUMENTS"),
            (r"\$1 costs \$ \\$1 \n \", &["a"][..], r"$1 costs $ \$1 \n \"),
            ("$10 $1st $1_x $0 $$1", &["a"][..], "$10 ast a_x $0 $a"),
            (
                "$ARGUMENTS_X $USER_MESSAGE $a.output",
                &["a"][..],
                "$ARGUMENTS_X $USER_MESSAGE $a.output",
            ),
            ("$9$8", &["1", "2", "3", "4", "5", "6", "7", "8", "9", "10"][..], "98"),
            ("$ARGUMENTS을 $1를", &["가", "나"][..], "가 나을 가를"),
            ("$1|$2|$3|$4|$ARGUMENTS", &["a  b\tc"][..], "a|b|c|$4|a  b\tc"),
        ] {
            assert_eq!(positional(text, args), wanted, "{text}");
        }
    }

    const SCRAPS: [&str; 24] = [
        "$",
        "$a",
        ".output",
        ".",
        "b",
        "-",
        "_",
        "ARGUMENTS",
        "$CONTEXT",
        "$ARGUMENTS",
        "1",
        "$1",
        " ",
        "\n",
        "é",
        "를",
        "\\",
        "{",
        "}",
        "s",
        "$x-y.output",
        ".f",
        "'",
        "\0",
    ];

    fn scraps(random: &mut Random) -> String {
        (0..random.below(20)).map(|_| SCRAPS[random.below(SCRAPS.len())]).collect()
    }

    #[test]
    fn whatever_is_written_comes_back() {
        let mut random = Random::new(1);
        let (mut vars, mut refs) = (0, 0);
        for _ in 0..20_000 {
            let text = scraps(&mut random);
            let parsed = NodeText::parse(&text);
            assert_eq!(parsed.source(), text);
            assert_eq!(NodeText::parse(&parsed.source()), parsed);
            let plain = |piece: &Piece| matches!(piece, Piece::Text(_));
            assert!(!parsed.pieces().windows(2).any(|two| two.iter().all(plain)), "{text}");
            assert!(!parsed.pieces().contains(&Piece::Text(String::new())), "{text}");
            vars += parsed.vars().count();
            refs += parsed.refs().count();

            // Filled with itself it is as it was; filled with anything, only holes change.
            struct Mirror(String);
            impl Fill for Mirror {
                type Error = ();
                fn var(&mut self, _: Var) -> Result<Option<String>, ()> {
                    Ok(Some(self.0.clone()))
                }
                fn reference(&mut self, _: &NodeRef) -> Result<String, ()> {
                    Ok(self.0.clone())
                }
            }
            let value = scraps(&mut random);
            let show = |piece: &Piece| match piece {
                Piece::Text(text) => text.clone(),
                _ => value.clone(),
            };
            let wanted: String = parsed.pieces().iter().map(show).collect();
            assert_eq!(parsed.render(&mut Mirror(value.clone())), Ok(wanted));
            positional(&text, &[&value, "b"]);
        }
        assert!(vars > 1000 && refs > 1000, "{vars} {refs}");
    }
}
