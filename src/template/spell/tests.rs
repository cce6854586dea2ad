//! Spells, case by case: what they render to, and what is refused where.

use serde_json::{Value, json};

use super::*;

fn data() -> Value {
    json!({
        "bead": { "id": "b-1", "title": "Fix login", "body": "a\nb", "labels": ["x", "y"],
                  "priority": 2, "estimate": 1.5, "parent": null, "nested": { "deep": [1, [2]] } },
        "yes": true, "no": false, "zero": 0, "empty": "", "none": [], "hollow": {}, "nil": null,
        "evil": "{{.bead.id}} {{end}}", "spaced": "  a b\n", "q": "say \"hi\"\n\\",
        "map": { "b": 2, "a": 1 }, "people": [{ "name": "Ann" }, { "name": "Bob" }],
        "run-tests": { "output": "ok" }, "fix_it": "under", "odd key": "odd", "ünï": "ü",
        "rows": [[1, 2], [3]], "big": 9_007_199_254_740_993_i64, "text": "Straße",
        "script": result(
            json!({ "output": "out\n", "exit_code": 0, "success": true }),
            json!("out"),
        ),
        "agent": result(
            json!({ "output": "long talk", "success": true }),
            json!({ "success": true, "summary": "done", "extra": 7 }),
        ),
        "quiet": result(json!({}), json!("")),
    })
}

fn result(fields: Value, face: Value) -> Value {
    with_face(fields.as_object().unwrap().clone(), face)
}

fn includes(name: &str) -> Option<(String, String)> {
    let text = match name {
        "hello" => "Hello {{.name}}!",
        "inherits" => "{{.bead.id}}{{range .bead.labels}}{{.}}{{end}}",
        "bad" => "fine\n  {{.nope}}",
        "unparsed" => "{{if .x}}",
        "self" => "{{include \"self\"}}",
        "a" => "{{include \"b\"}}",
        "b" => "{{include \"a\"}}",
        "all" => "{{.all.bead.id}}",
        "d1" => "1{{include \"d2\"}}",
        "d2" => "2{{include \"d3\"}}",
        "d3" => "3{{include \"d4\"}}",
        "d4" => "4{{include \"d5\"}}",
        "d5" => "5",
        "d0" => "0{{include \"d1\"}}",
        "twice" => "{{.t}}{{.t}}",
        "variables" => "{{$x := 1}}{{$x}}",
        "nested" => "{{include \"hello\" \"name\" \"N\"}}{{.name}}",
        _ => return None,
    };
    Some((format!("{name}.md"), text.to_owned()))
}

fn render(text: &str) -> Result<String, Fault> {
    Spell::parse("t.md", text)?.render(&data(), &includes)
}

/// Asserts what each spell renders to.
fn renders(cases: &[(&str, &str)]) {
    for (text, wanted) in cases {
        match render(text) {
            Ok(found) => assert_eq!(&found, wanted, "{text}"),
            Err(fault) => panic!("{text}: {fault}"),
        }
    }
}

/// Asserts the place of a fault and a part of its message.
fn refuses(cases: &[(&str, &str, &str)]) {
    for (text, place, part) in cases {
        match render(text) {
            Ok(found) => panic!("{text} gave {found:?}"),
            Err(fault) => {
                let found = format!("{}:{}:{}", fault.file, fault.line, fault.column);
                assert_eq!(&found, place, "{text}: {fault}");
                assert!(fault.to_string().contains(part), "{text}: {fault}");
            }
        }
    }
}

#[test]
fn text_and_paths() {
    renders(&[
        ("", ""),
        ("plain } }} { text", "plain } }} { text"),
        ("{{.bead.title}}", "Fix login"),
        ("{{ .bead.title }}!", "Fix login!"),
        ("{{\n.bead.id\n}}", "b-1"),
        ("{{.run-tests.output}}", "ok"),
        ("{{.run_tests.output}}", "ok"),
        ("{{.fix-it}} {{.fix_it}}", "under under"),
        ("{{.ünï}}", "ü"),
        ("{{$.bead.id}}", "b-1"),
        ("{{.bead.labels.1}}{{.rows.0.1}}", "y2"),
        ("{{.bead.nested.deep}}", "[1,[2]]"),
        ("{{(.bead).id}}{{(index .people 1).name}}", "b-1Bob"),
        ("a\u{0}b\u{feff}{{.yes}}\r\n", "a\u{0}b\u{feff}true\r\n"),
    ]);
}

#[test]
fn values_print() {
    renders(&[
        ("[{{.nil}}]", "[]"),
        ("{{.yes}} {{.zero}} {{.bead.estimate}} {{.big}}", "true 0 1.5 9007199254740993"),
        ("{{.map}} {{.none}} {{.people}}", r#"{"b":2,"a":1} [] [{"name":"Ann"},{"name":"Bob"}]"#),
        ("{{.evil}}", "{{.bead.id}} {{end}}"),
        ("{{include \"hello\" \"name\" .evil}}", "Hello {{.bead.id}} {{end}}!"),
    ]);
}

#[test]
fn results_stand_for_what_they_came_to() {
    renders(&[
        ("{{.script}} {{.script.exit_code}} {{.script.success}}", "out 0 true"),
        ("{{.agent}}", r#"{"success":true,"summary":"done","extra":7}"#),
        ("{{.agent.success}} {{.agent.output}} {{.agent.extra}}", "true long talk 7"),
        ("{{if eq .script \"out\"}}same{{end}} {{len .script}} {{.script | upper}}", "same 3 OUT"),
        ("{{if .quiet}}yes{{else}}no{{end}} [{{.quiet}}]", "no []"),
        ("{{with .script}}{{.}}{{.exit_code}}{{end}}", "out0"),
        ("{{range $k, $v := .agent}}{{$k}} {{end}}", "extra success summary "),
        ("{{json .script}}", r#""out""#),
    ]);
}

#[test]
fn literals() {
    renders(&[
        (r#"{{"a\n\"\t\\\u00e9"}}"#, "a\n\"\t\\é"),
        ("{{`raw \\n }} \"`}}", "raw \\n }} \""),
        (r#"{{"}}"}} {{"{{"}}"#, "}} {{"),
        (
            "{{1}} {{-1}} {{1.5}} {{1e3}} {{true}} {{false}} [{{nil}}]",
            "1 -1 1.5 1e+3 true false []",
        ),
    ]);
    refuses(&[
        (r#"{{"open}}"#, "t.md:1:3", "never closed"),
        ("{{\"a\nb\"}}", "t.md:1:3", "never closed"),
        ("{{`open}}", "t.md:1:3", "never closed"),
        (r#"{{"a\q"}}"#, "t.md:1:5", "followed by"),
        (r#"{{"\ud800"}}"#, "t.md:1:4", "followed by"),
        ("{{'a'}}", "t.md:1:3", "double quotes"),
        ("{{012}}", "t.md:1:3", "`012` is no number"),
        ("{{1x}}", "t.md:1:3", "no number"),
    ]);
}

#[test]
fn comments_and_trimming() {
    renders(&[
        ("a{{/* c */}}b", "ab"),
        ("a {{- /* c }} */ -}} b", "ab"),
        ("a {{/* x\ny */ -}}\n b", "a b"),
        ("a \n\t{{- .yes -}} \r\n b", "atrueb"),
        ("a {{- .yes }} b", "atrue b"),
        ("{{.yes -}} \n {{- .no}}", "truefalse"),
        ("{{-1}}", "-1"),
        ("a {{- -1 -}} b", "a-1b"),
        ("{{range .bead.labels -}}\n{{.}},\n{{- end}}", "x,y,"),
    ]);
    refuses(&[
        ("a\n {{/* c", "t.md:2:4", "comment"),
        ("{{/* c */ .yes}}", "t.md:1:3", "comment"),
        ("{{.yes-}}", "t.md:1:7", "wants a space"),
        ("{{-}}", "t.md:1:3", "wants a space"),
    ]);
}

#[test]
fn conditions() {
    renders(&[
        ("{{if .yes}}a{{end}}", "a"),
        ("{{if .no}}a{{else}}b{{end}}", "b"),
        ("{{if .no}}a{{else if .zero}}b{{else if .yes}}c{{else}}d{{end}}", "c"),
        ("{{if .empty}}1{{end}}{{if .none}}2{{end}}{{if .hollow}}3{{end}}{{if .nil}}4{{end}}", ""),
        ("{{if .map}}1{{end}}{{if .bead.labels}}2{{end}}{{if -1}}3{{end}}", "123"),
        ("{{if .missing}}a{{else}}b{{end}}", "b"),
        ("{{if .missing.deep.er}}a{{else if .bead.title.x}}b{{else}}c{{end}}", "c"),
        ("{{if eq .missing \"a\"}}a{{else}}b{{end}}", "b"),
        ("{{if gt .missing 3}}a{{else}}b{{end}}", "b"),
        ("{{if ne .missing \"a\"}}a{{end}}{{if not .missing}}b{{end}}", "ab"),
        ("{{if and .bead (gt (len .bead.labels) 1)}}two{{end}}", "two"),
        ("{{if and .missing (gt (len .missing) 0)}}a{{else}}b{{end}}", "b"),
        ("{{if or .missing .yes}}a{{end}}", "a"),
        ("{{if index .missing \"x\"}}a{{else}}b{{end}}", "b"),
    ]);
}

#[test]
fn with_sets_the_dot() {
    renders(&[
        ("{{with .bead}}{{.id}} {{$.yes}}{{end}}", "b-1 true"),
        ("{{with .missing}}a{{else}}{{.bead.id}}{{end}}", "b-1"),
        ("{{with .empty}}a{{end}}b", "b"),
        ("{{with $b := .bead}}{{$b.id}}{{.title}}{{end}}", "b-1Fix login"),
    ]);
}

#[test]
fn ranges() {
    renders(&[
        ("{{range .bead.labels}}[{{.}}]{{end}}", "[x][y]"),
        ("{{range .people}}{{.name}} {{$.bead.id}} {{end}}", "Ann b-1 Bob b-1 "),
        ("{{range .none}}a{{else}}none{{end}}", "none"),
        ("{{range .nil}}a{{else}}none{{end}}", "none"),
        ("{{range .map}}{{.}}{{end}}", "12"),
        ("{{range $k, $v := .map}}{{$k}}={{$v}} {{end}}", "a=1 b=2 "),
        ("{{range $i, $v := .bead.labels}}{{$i}}{{$v}} {{end}}", "0x 1y "),
        ("{{range $v := .bead.labels}}{{$v}}{{.}}{{end}}", "xxyy"),
        ("{{range .rows}}({{range .}}{{.}}{{end}}){{end}}", "(12)(3)"),
        (
            "{{range $i, $r := .rows}}{{range $j, $c := $r}}{{$i}}{{$j}}{{$c}} {{end}}{{end}}",
            "001 012 103 ",
        ),
    ]);
    refuses(&[
        ("{{range .missing}}{{end}}", "t.md:1:9", "missing"),
        ("{{range .bead.title}}{{end}}", "t.md:1:9", "cannot go over text"),
        ("{{range 3}}{{end}}", "t.md:1:9", "cannot go over a number"),
        ("{{range $x = .none}}{{end}}", "t.md:1:9", "was not declared"),
        ("{{$x := 1}}{{range $x = .none}}{{end}}", "t.md:1:20", "`:=`"),
        ("{{range $i, $v := .none}}{{else}}{{$v}}{{end}}", "t.md:1:36", "was not declared"),
    ]);
}

#[test]
fn variables() {
    renders(&[
        ("{{$x := .bead.id}}{{$x}}", "b-1"),
        ("{{$x := .bead}}{{$x.title}} {{$x.labels.0}}", "Fix login x"),
        ("{{$x := 1}}{{range .bead.labels}}{{$x = .}}{{end}}{{$x}}", "y"),
        ("{{$x := 1}}{{if .yes}}{{$x := 2}}{{$x}}{{end}}{{$x}}", "21"),
        ("{{if $x := .empty}}a{{else if $y := .yes}}[{{$x}}]{{$y}}{{end}}", "[]true"),
        ("{{$a := 1}}{{if .yes}}{{$b := 2}}{{end}}{{$c := 3}}{{$a}}{{$c}}", "13"),
        ("{{range .bead.labels}}{{$a := .}}{{if $b := .}}{{$b}}{{end}}{{$a}}{{end}}", "xxyy"),
        ("{{$x := .}}{{$x.bead.id}}", "b-1"),
    ]);
    refuses(&[
        ("{{$x}}", "t.md:1:3", "`$x` was not declared"),
        ("{{$x := $x}}", "t.md:1:9", "was not declared"),
        ("{{$x = 1}}", "t.md:1:3", "was not declared"),
        ("{{if $x := 1}}{{end}}{{$x}}", "t.md:1:24", "was not declared"),
        ("{{if $i, $v := .map}}{{end}}", "t.md:1:6", "only `range`"),
        ("{{$x, $y := .map}}", "t.md:1:3", "only `range`"),
        ("{{$x.}}", "t.md:1:5", "name must follow"),
    ]);
}

#[test]
fn functions() {
    renders(&[
        ("{{upper .bead.title}} {{.bead.title | lower}}", "FIX LOGIN fix login"),
        ("[{{trim .spaced}}] {{quote .q}}", r#"[a b] "say \"hi\"\n\\""#),
        ("{{indent 2 .bead.body}}|{{\"a\\n\\nb\\n\" | indent 1}}|", "  a\n  b| a\n\n b\n|"),
        ("{{join \", \" .bead.labels}} {{.bead.labels | join \"-\"}}", "x, y x-y"),
        ("{{join .bead.labels \"+\"}} {{join \",\" .bead.priority}}", "x+y 2"),
        ("{{json .map}} {{json .bead.title}} {{json nil}}", r#"{"b":2,"a":1} "Fix login" null"#),
        ("{{len .bead.labels}} {{len .text}} {{len .map}} {{len .nil}}", "2 6 2 0"),
        ("{{upper .text}} {{upper .map}}", r#"STRASSE {"B":2,"A":1}"#),
        ("{{index .map \"a\"}} {{index . \"odd key\"}} {{index .rows 0 1}}", "1 odd 2"),
        ("{{.bead.title | upper | quote}}", "\"FIX LOGIN\""),
        ("{{(len .bead.labels) | eq 2}}", "true"),
    ]);
    refuses(&[
        ("{{uper .yes}}", "t.md:1:3", "`uper` is no function"),
        ("{{bead.title}}", "t.md:1:3", "begin with a dot"),
        ("{{upper}}", "t.md:1:3", "wants 1 value, but gets 0"),
        ("{{upper .yes .no}}", "t.md:1:3", "wants 1 value, but gets 2"),
        ("{{eq .yes}}", "t.md:1:3", "wants at least 2 values"),
        ("{{.yes | default}}", "t.md:1:10", "wants 2 values"),
        ("{{.yes | .no}}", "t.md:1:10", "behind `|`"),
        ("{{.yes .no}}", "t.md:1:8", "followed by another"),
        ("{{eq upper .yes}}", "t.md:1:6", "in parentheses"),
        ("{{.yes |}}", "t.md:1:1", "missing"),
        ("{{| upper}}", "t.md:1:3", "missing"),
        ("{{len .yes}}", "t.md:1:3", "has no length"),
        ("{{indent .bead.id .text}}", "t.md:1:3", "number of spaces"),
        ("{{indent -1 .text}}", "t.md:1:3", "not -1"),
        ("{{index .map \"c\"}}", "t.md:1:3", "there is no `c`"),
        ("{{if .yes | if}}", "t.md:1:13", "stands first"),
    ]);
}

#[test]
fn comparisons() {
    renders(&[
        ("{{eq 1 1.0}} {{eq .big 9007199254740992}} {{eq \"a\" \"b\" \"a\"}}", "true false true"),
        ("{{eq .none .none}} {{eq .map .hollow}} {{ne true false}}", "true false true"),
        ("{{lt 1 2}} {{le 2 2}} {{gt \"b\" \"a\"}} {{ge 1 1.5}}", "true true true false"),
        ("{{eq .nil nil}} {{eq .nil 1}} {{lt .nil 1}}", "true false false"),
        ("{{and 1 \"\" 2}}|{{and 1 2}}|{{or 0 \"a\"}}|{{or 0 \"\"}}|{{not 0}}", "|2|a||true"),
        ("{{or true .missing}} {{and false .missing}}", "true false"),
        ("{{true | and .yes}} {{0 | or .no}}", "true 0"),
    ]);
    refuses(&[
        ("{{eq .bead.priority \"2\"}}", "t.md:1:3", "a number cannot be compared with text"),
        ("{{lt true false}}", "t.md:1:3", "two numbers or two texts"),
        ("{{lt .none .none}}", "t.md:1:3", "two numbers or two texts"),
        ("{{or .missing true}}", "t.md:1:6", "missing"),
    ]);
}

#[test]
fn missing_variables() {
    renders(&[
        ("{{default \"x\" .missing}} {{.missing | default \"x\"}}", "x x"),
        ("{{default \"x\" .missing.deep}} {{default \"x\" .empty}} {{default 5 .zero}}", "x x 5"),
        ("{{.bead.id | default \"x\"}}", "b-1"),
        ("{{.missing | upper | default \"x\"}}", "x"),
        ("{{default \"x\" (upper .missing)}} {{(.missing | default \"a\") | upper}}", "x A"),
        ("{{default (default \"d\" .other) .missing}}", "d"),
    ]);
    refuses(&[
        ("a\nbb {{.missing}}", "t.md:2:6", "variable `.missing` is missing"),
        ("é {{.bead.titel}}", "t.md:1:5", "there is no `titel`"),
        ("{{.bead.title.x}}", "t.md:1:3", "text has no `x`"),
        ("{{.bead.labels.9}}", "t.md:1:3", "a list of 2"),
        ("{{.nil.x}}", "t.md:1:3", "null has no `x`"),
        ("{{default .missing .empty}}", "t.md:1:11", "missing"),
        ("{{default .missing .yes}}", "t.md:1:11", "missing"),
        ("{{.missing | default \"\" | eq .other}}", "t.md:1:30", "`.other` is missing"),
        ("{{if .yes}}{{.missing}}{{end}}", "t.md:1:14", "missing"),
        ("{{with .bead}}{{.yes}}{{end}}", "t.md:1:17", "there is no `yes`"),
        ("{{range .people}}{{.bead}}{{end}}", "t.md:1:20", "there is no `bead`"),
        ("{{.Bead}}", "t.md:1:3", "missing"),
    ]);
    let fault = render("{{.bead.titel}}").unwrap_err();
    let hint = fault.hint.unwrap();
    assert!(hint.contains("`title`") && hint.contains("{{if .bead.titel}}"), "{hint}");
    assert_eq!(fault.len, 11);
}

#[test]
fn a_spell_must_balance() {
    refuses(&[
        ("a {{.yes", "t.md:1:3", "never closed"),
        ("a {{.yes} b", "t.md:1:9", "ends with `}}`"),
        ("a {{.yes\n{{.no}}", "t.md:1:3", "never closed"),
        ("{{", "t.md:1:1", "never closed"),
        ("{{}}", "t.md:1:1", "nothing between"),
        ("x\n{{if .yes}}\nrest is not dropped", "t.md:2:1", "`if` is opened here"),
        ("{{if .yes}}{{range .none}}{{end}}", "t.md:1:1", "`if` is opened here"),
        ("{{if .yes}}{{else}}", "t.md:1:1", "`if` is opened here"),
        ("{{range .none}}", "t.md:1:1", "`range` is opened here"),
        ("{{with .yes}}", "t.md:1:1", "`with` is opened here"),
        ("a{{end}}", "t.md:1:2", "closes nothing"),
        ("{{if .yes}}{{end}}{{end}}", "t.md:1:19", "closes nothing"),
        ("{{else}}", "t.md:1:1", "belongs to nothing"),
        ("{{if .yes}}{{else}}{{else}}{{end}}", "t.md:1:20", "has an `else` already"),
        ("{{if .yes}}{{else}}{{else if .no}}{{end}}", "t.md:1:20", "has an `else` already"),
        ("{{range .none}}{{else if .no}}{{end}}", "t.md:1:23", "nothing may follow"),
        ("{{if .yes}}{{end .no}}", "t.md:1:18", "nothing may follow"),
        ("{{if}}{{end}}", "t.md:1:1", "missing"),
        ("{{(.yes}}", "t.md:1:3", "`(` is opened here"),
        ("{{.yes)}}", "t.md:1:7", "without its `(`"),
        ("{{()}}", "t.md:1:4", "missing"),
        ("{{.a..b}}", "t.md:1:5", "name must follow"),
        ("{{.yes, .no}}", "t.md:1:7", "followed by another"),
        ("{{.yes & .no}}", "t.md:1:8", "`&` means nothing"),
        ("{{template \"x\"}}", "t.md:1:1", "include"),
        ("{{range .none}}{{break}}{{end}}", "t.md:1:16", "not part of spells"),
    ]);
}

#[test]
fn includes_of_other_spells() {
    renders(&[
        ("{{include \"hello\" \"name\" \"World\"}}", "Hello World!"),
        ("{{include \"inherits\"}}", "b-1xy"),
        ("{{range .people}}{{include \"hello\" \"name\" .name}}{{end}}", "Hello Ann!Hello Bob!"),
        ("{{with .bead}}{{include \"inherits\"}}{{end}}", "b-1xy"),
        ("{{include \"hello\" \"name\" .map}}", "Hello {\"b\":2,\"a\":1}!"),
        ("{{include \"hello\" \"name\" \"x\" | upper}}", "HELLO X!"),
        ("{{\"y\" | include \"hello\" \"name\"}}", "Hello y!"),
        ("{{include \"nested\" \"name\" \"M\"}}", "Hello N!M"),
        ("{{include \"hello\" name=\"World\"}}", "Hello World!"),
        ("{{include \"hello\" name=.bead.title}}", "Hello Fix login!"),
        ("{{include \"hello\" other=1 name=(upper .text) \"more\" 2}}", "Hello STRASSE!"),
        ("{{include \"hello\"\n  name = `x` | upper}}", "HELLO X!"),
        ("{{include \"all\" all=.}}", "b-1"),
        ("{{include \"all\" \"all\" .}}", "b-1"),
        ("{{$x := 5}}{{include \"variables\"}}{{$x}}", "15"),
        ("{{include \"d1\"}}", "12345"),
    ]);
    refuses(&[
        ("{{include \"nobody\"}}", "t.md:1:3", "no spell is called `nobody`"),
        ("{{include 5}}", "t.md:1:3", "name of a spell"),
        ("{{include \"hello\" \"name\"}}", "t.md:1:3", "behind every name"),
        ("{{include \"hello\" 1 2}}", "t.md:1:3", "names as text"),
        ("{{include \"hello\" name=}}", "t.md:1:1", "a value is missing"),
        ("{{include \"hello\" name=name=1}}", "t.md:1:24", "no function"),
        ("{{include name=\"x\"}}", "t.md:1:11", "no function"),
        ("{{upper name=\"x\"}}", "t.md:1:9", "no function"),
        ("a\n{{include \"bad\"}}", "bad.md:2:5", "included at t.md:2:3"),
        ("{{include \"hello\"}}", "hello.md:1:9", "included at t.md:1:3"),
        ("{{include \"unparsed\"}}", "unparsed.md:1:1", "included at t.md:1:3"),
        ("{{include \"self\"}}", "self.md:1:3", "self.md → self.md"),
        ("{{include \"a\"}}", "b.md:1:3", "a.md → b.md → a.md"),
        ("{{include \"d0\"}}", "d4.md:1:4", "deeper than 5"),
    ]);
}

#[test]
fn the_first_spell_is_part_of_the_circle_too() {
    let spell = Spell::parse("self.md", "{{include \"self\"}}").unwrap();
    let fault = spell.render(&json!({}), &includes).unwrap_err();
    assert!(fault.message.contains("includes itself"), "{fault}");
}

#[test]
fn pieces_tell_values_from_text() {
    let spell = Spell::parse("t.md", "a {{.evil}} {{\"lit\"}}{{.empty}}b").unwrap();
    let pieces = spell.pieces(&data(), &no_includes).unwrap();
    let text = |text: &str| Piece::Text(text.into());
    let value = |text: &str| Piece::Value(text.into());
    let evil = value("{{.bead.id}} {{end}}");
    let wanted = [text("a "), evil, text(" "), value("lit"), value(""), text("b")];
    assert_eq!(pieces, wanted);
}

#[test]
fn what_a_spell_writes() {
    for (text, wanted) in [
        ("{{.spell_content}}", true),
        ("{{if .x}}{{else}}{{$.spell_content | trim}}{{end}}", true),
        ("{{indent 2 (trim .spell_content)}}", true),
        ("{{range .x}}{{end}}{{with .y}}{{$.spell_content}}{{end}}", true),
        ("{{if .spell_content}}a{{end}}", false),
        ("{{$x := .spell_content}}", false),
        ("spell_content {{\".spell_content\"}} {{.x.spell_content}}", false),
    ] {
        let spell = Spell::parse("t.md", text).unwrap();
        assert_eq!(spell.writes("spell_content"), wanted, "{text}");
    }
}

/// Renders in a thread with the usual stack, so that a recursion without bound is found.
fn in_little_room(text: String, data: Value) -> Result<String, Fault> {
    let work = move || Spell::parse("t.md", &text)?.render(&data, &includes);
    let thread = std::thread::Builder::new().stack_size(2 << 20).spawn(work).unwrap();
    thread.join().unwrap()
}

#[test]
fn nesting_is_bounded() {
    let blocks = |n: usize| "{{if true}}".repeat(n) + "x" + &"{{end}}".repeat(n);
    assert_eq!(in_little_room(blocks(32), json!({})).unwrap(), "x");
    let fault = in_little_room(blocks(33), json!({})).unwrap_err();
    assert!(fault.message.contains("deeper than 32"), "{fault}");
    let fault = in_little_room(blocks(20_000), json!({})).unwrap_err();
    assert!(fault.message.contains("deeper than 32"), "{fault}");
    let groups = |n: usize| format!("{{{{{}1{}}}}}", "(".repeat(n), ")".repeat(n));
    assert_eq!(in_little_room(groups(16), json!({})).unwrap(), "1");
    let fault = in_little_room(groups(100_000), json!({})).unwrap_err();
    assert!(fault.message.contains("deeper than 16"), "{fault}");
}

/// A spell of the greatest depth, which includes the next one at its bottom.
fn deepest(name: &str) -> Option<(String, String)> {
    let n: usize = name.strip_prefix('n')?.parse().ok()?;
    let bottom = match n {
        6 => "x".to_owned(),
        _ => {
            let (open, close) = ("(or 0 ".repeat(15), ")".repeat(15));
            format!("{{{{{open}(include \"n{}\"){close}}}}}", n + 1)
        }
    };
    let text = "{{range $.one}}".repeat(32) + &bottom + &"{{end}}".repeat(32);
    Some((name.to_owned(), text))
}

#[test]
fn the_deepest_spell_fits_the_stack() {
    let work = || {
        let spell = Spell::parse("n1", &deepest("n1").unwrap().1).unwrap();
        spell.render(&json!({ "one": [[1]] }), &deepest)
    };
    let thread = std::thread::Builder::new().stack_size(2 << 20).spawn(work).unwrap();
    assert_eq!(thread.join().unwrap().unwrap(), "x");
}

#[test]
fn many_branches_are_not_deep() {
    let chain = "{{else if false}}".repeat(50_000);
    let text = format!("{{{{if false}}}}{chain}{{{{else}}}}x{{{{end}}}}");
    assert_eq!(in_little_room(text, json!({})).unwrap(), "x");
    let text = format!("{{{{1{}}}}}", " | or 0".repeat(50_000));
    assert_eq!(in_little_room(text, json!({})).unwrap(), "1");
}

#[test]
fn output_is_bounded() {
    let whole = "x".repeat(MAX_OUTPUT);
    assert_eq!(render(&whole).unwrap().len(), MAX_OUTPUT);
    let fault = render(&format!("{whole}\n{{{{.yes}}}}")).unwrap_err();
    assert!(fault.message.contains("more than 1048576 bytes"), "{fault}");
    let data = json!({ "big": "y".repeat(MAX_OUTPUT), "list": (0..10).collect::<Vec<_>>() });
    let refused = |text: &str| {
        let spell = Spell::parse("t.md", text).unwrap();
        let fault = spell.render(&data, &includes).unwrap_err();
        assert!(fault.message.contains("more than 1048576 bytes"), "{text}: {fault}");
    };
    refused("{{.big}}a");
    refused("{{range .list}}{{$.big}}{{end}}");
    refused("{{quote .big}}");
    refused("{{if indent 9000000000000000000 \"a\\nb\"}}{{end}}");
    refused(
        "{{$x := \"\\\\\"}}{{range .list}}{{$x = quote $x}}{{$x = quote $x}}{{$x = quote $x}}\
             {{$x = quote $x}}{{end}}",
    );
    refused("{{$x := .big}}{{range .list}}{{$x = include \"twice\" \"t\" $x}}{{end}}");
}

#[test]
fn rounds_are_bounded() {
    let list = |n: usize| json!({ "list": vec![0; n], "hundred": vec![0; 100] });
    let render = |text: &str, data: &Value| Spell::parse("t.md", text)?.render(data, &includes);
    let once = "{{range .list}}{{end}}done";
    assert_eq!(render(once, &list(MAX_ROUNDS)).unwrap(), "done");
    for (text, length) in [
        (once, MAX_ROUNDS + 1),
        ("{{range .list}}{{range $.list}}{{end}}{{end}}", 1000),
        ("{{range .hundred}}{{range $.hundred}}{{range $.hundred}}{{end}}{{end}}{{end}}", 0),
        ("{{range .list}}{{include \"d5\"}}{{end}}", MAX_ROUNDS / 2 + 1),
    ] {
        let fault = render(text, &list(length)).unwrap_err();
        assert!(fault.message.contains("more than 100000 rounds"), "{text}: {fault}");
    }
}

#[test]
fn a_fault_knows_its_characters() {
    let fault = render("ä\r\n→ {{.weiß}}\n").unwrap_err();
    assert_eq!((fault.line, fault.column, fault.len), (2, 5, 5));
    assert_eq!(&*fault.file, "t.md");
}
