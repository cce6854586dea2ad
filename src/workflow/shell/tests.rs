//! The places of values in scripts, and the constructs that evaluate text.

use super::*;
use crate::base::random::Random;

/// Returns the places of the values of a node's script, by their first letters.
fn places(script: &str) -> String {
    let letter = |used: &ValueUse| match used.place {
        Place::Word => 'w',
        Place::DoubleQuotes => 'd',
        Place::HereDocument => 'h',
        Place::Arithmetic => 'a',
        Place::SingleQuotes => 'S',
        Place::AnsiQuotes => 'A',
        Place::QuotedHereDocument => 'H',
        Place::Delimiter => 'E',
        Place::AfterBackslash => 'B',
        Place::AfterDollar => 'D',
        Place::Comment => '#',
    };
    let text = NodeText::parse(&script.replace('@', "$a.output"));
    Layout::of_node(&text).values.iter().map(letter).collect()
}

#[test]
fn quotes_decide_the_place() {
    for (script, wanted) in [
        ("echo @", "w"),
        ("echo \"@\" '@' @", "dSw"),
        ("echo \\\"@", "w"),
        ("echo \"a \\\" @\" @", "dw"),
        ("echo \"$(cat @)\" \"@\"", "wd"),
        ("echo \"$(echo \"@\")\" @", "dw"),
        ("echo \"`cat @`\" @", "ww"),
        ("echo \"it's\" @", "w"),
        ("(cd x; echo @) \"@\"", "wd"),
        ("case @ in x) echo \"@\";; esac", "wd"),
        ("x=$(case @ in x) echo '@';; y) ;; esac) \"@\"", "wSd"),
        ("x=$(echo case) \"@\"", "d"),
        ("echo a#\"b @", "d"),
        ("x=${y#*/} z=\"@\"", "d"),
        ("echo $'it\\'s' @ $'@'", "wA"),
        ("echo x\\ #\"@\"", "d"),
        ("echo \\@ \"\\@\" $@ \"$@\" \\\\@ \\$@ $$@", "BBDDwww"),
        ("echo \"${x:-@}\" ${x:-@} \"${x#'@'}\" \"${x:-'@'}\"", "dwSd"),
        ("echo $(( @ + 1 )) \"$(( (@) * 2 ))\" @", "aaw"),
        ("(( @ > 3 )) && ((cd x; ls @) ; echo @)", "www"),
        ("echo $((echo @) | cat) $(( $(echo @) + @ )) $[ n[@] ] \"$[ @ ]\"", "wwawa"),
        ("# don't @\necho @ # it's @\necho @", "#w#w"),
        ("cat <<EOF\n@'s\nEOF\necho @", "hw"),
        ("cat <<-'END' > x; echo @\n\t\"@\n\tEND\necho @", "wHw"),
        ("cat <<\\A <<\"B\"C <<D\n@\nA\n@\nBC\n@\nD\n@", "HHhw"),
        ("echo $((1<<2)) $((x<<y)) @\necho \"@\"", "wd"),
        ("cat <<<@\necho @", "ww"),
        ("cat <<EOF\n@", "h"),
        ("cat <<EOF # it's\n@\nEOF\n@", "hw"),
        ("cat <<@\n@", "Ew"),
        ("cat <<EOF\n$(echo @ \"@\") `echo @` ${x:-@}\n\\@\nEOF\n@", "wdwdBw"),
        ("cat <<''\n@\n\n@", "Hw"),
        ("x=$(cat <<E\n@\nE\n) \"@\"", "hd"),
    ] {
        assert_eq!(places(script), wanted, "{script}");
    }
}

#[test]
fn a_comment_contains_no_reference() {
    let script = "# uses $a.output.f\necho $b.output # and $c.output\necho \"$d.output\"";
    let text = Script::read(NodeText::parse(script)).text;
    let refs: Vec<_> = text.refs().map(|reference| reference.node.as_str()).collect();
    assert_eq!(refs, ["b", "d"]);
    assert_eq!(text.source(), script);
}

#[test]
fn evaluations_are_found() {
    let found = |script: &str| {
        let text = NodeText::parse(&script.replace('~', "$a.output"));
        let found = Layout::of_node(&text).evaluates;
        found.map_or(String::new(), |found| format!("{} {}", found.line, found.construct))
    };
    for (script, wanted) in [
        ("echo ~\necho $((1 + n))", "2 (("),
        ("x=1\n\nlet n=1", "3 let"),
        ("[ 1 -eq 2 ]; [[ -n x ]]", ""),
        ("[[ x != \"]]\" && $n -eq 2 ]]", "1 -eq"),
        ("[[ -n x &&\n1 -eq 2 ]]", "2 -eq"),
        ("echo ${a[@]} ${a[0]} ${#a[*]} ${x:0:7} ${x: -1} ${!a[@]} ${x:-y} ${@:2}", ""),
        ("echo ${a[i]}", "1 ${…[…]}"),
        ("echo ${x:n}", "1 ${…:…}"),
        ("echo ${!x}", "1 ${!…}"),
        ("echo ${x@P}", "1 ${…@P}"),
        ("a[i]=1", "1 […]="),
        ("a[0]=1 b=x[", ""),
        ("# eval \"$x\"\necho 'a # b'; eval \"$x\"", "2 eval"),
        ("eval 'echo $x'; trap 'rm \"$x\"' EXIT; trap cleanup INT", ""),
        ("bash -c 'echo \"$1\"' sh ~", ""),
        ("bash -c 'echo \"$((n))\"' sh ~", "1 (("),
        ("bash -o pipefail -c \"echo $x\"", "1 bash"),
        ("sh -c \\\n \"echo $x\"", "1 sh"),
        ("${SHELL:-/bin/sh} -c \"$x\"", "1 ${SHELL:-/bin/sh}"),
        ("grep -c ~ x; wc -c; head -c 5 ~; mkdir -p ~; grep -v ~ x", ""),
        ("read -r x <<< ~; unset y; local z=~; export A=~ B", ""),
        ("read \"$x\"", "1 read"),
        ("declare -A m", "1 declare"),
        ("wait $pid; printf '%s' \"$x\"", ""),
        ("OPTIND=1", ""),
        ("OPTIND=$x", "1 OPTIND=$x"),
    ] {
        assert_eq!(found(script), wanted, "{script}");
    }
}

#[test]
fn values_that_become_script_are_found() {
    let runners = |script: &str| -> Vec<String> {
        let text = NodeText::parse(&script.replace('@', "$a.output"));
        let values = Layout::of_node(&text).values;
        values.iter().map(|used| used.runner().unwrap_or("-").to_owned()).collect()
    };
    for (script, wanted) in [
        ("eval @; echo @", &["eval", "-"][..]),
        ("sh -c \"echo @\" sh @", &["sh", "-"]),
        ("bash -c 'echo \"$1\"' _ @", &["-"]),
        ("trap \"rm @\" EXIT", &["trap"]),
        ("bash <<< @", &["bash"]),
        ("echo @ | sudo sh", &["sh"]),
        ("echo @ | sh -s x; echo @ | grep sh", &["sh", "sh"]),
        ("echo @ | grep sh; bash x.sh @ < y", &["-", "-"]),
        ("bash <<EOF\nrm @\nEOF\necho @", &["bash", "-"]),
        ("cat <<EOF | sh\nrm @\nEOF\necho @", &["sh", "-"]),
        (". <(echo @); . x.sh @", &[".", "."]),
        ("source /dev/stdin <<< @\nssh host \"cat @\"", &["source", "ssh"]),
        ("eval \"$(echo @)\"; echo $ARGUMENTS | sh", &["eval", "sh"]),
    ] {
        let found = runners(script);
        let found: Vec<&str> = found.iter().map(String::as_str).collect();
        assert_eq!(found, wanted, "{script}");
    }
}

#[test]
fn scripts_in_command_lines_are_found() {
    for (argv, wanted) in [
        (&["bash", "-c", "x"][..], &[2][..]),
        (&["timeout", "5", "/bin/bash", "-o", "pipefail", "-c", "x", "_", "y"], &[6]),
        (&["env", "A=1", "sh", "-ec", "x"], &[4]),
        (&["su", "me", "-c", "x"], &[3]),
        (&["ssh", "-v", "host", "x", "y"], &[3, 4]),
        (&["bash", "x.sh", "y"], &[]),
        (&["echo", "-c", "x"], &[]),
    ] {
        let argv: Vec<String> = argv.iter().map(|word| (*word).to_owned()).collect();
        let found: Vec<_> = scripts_of(&argv).into_iter().map(|(number, _)| number).collect();
        assert_eq!(found, wanted, "{argv:?}");
    }
}

#[test]
fn every_text_can_be_read() {
    const SCRAPS: [&str; 32] = [
        "${",
        "$[",
        "x[",
        "]=",
        "}",
        "[[",
        "let ",
        "\"",
        "'",
        "`",
        "$(",
        ")",
        "(",
        "((",
        "\\",
        "#",
        " ",
        "\n",
        "<<",
        "<<-",
        "EOF",
        "\t",
        "$a.output",
        "$ARGUMENTS",
        "é",
        "\0",
        "<",
        "''",
        "case x in ",
        "eval ",
        "sh -c ",
        "read ",
    ];
    let mut random = Random::new(3);
    for _ in 0..20_000 {
        let script: String =
            (0..random.below(24)).map(|_| SCRAPS[random.below(SCRAPS.len())]).collect();
        let text = NodeText::parse(&script);
        assert_eq!(Layout::of_node(&text).values.len(), text.values().count(), "{script}");
    }
}

#[test]
fn long_scripts_are_read_quickly() {
    for scrap in [
        "${",
        "$[",
        "${x[",
        "x[1]=",
        "<<A\n",
        "<<EOF\nEOF\n",
        "\"$(",
        "`",
        "(",
        "'",
        "#\n",
        "<<",
        "case x in ",
        "$(cat <<A\n",
        "eval ",
        "]=",
        "let n=$a.output+",
        "sh -c $a.output ",
    ] {
        let script = scrap.repeat(10_000) + "$a.output";
        Layout::of_node(&NodeText::parse(&script));
    }
}
