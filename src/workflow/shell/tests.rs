//! Where values stand in scripts, and what becomes of them in shells.

use super::*;
use crate::base::random::Random;

/// The references that are misplaced, each with the first letter of its spot.
fn misplaced_in(script: &str) -> String {
    let script =
        Script { layout: Layout::of_node(&NodeText::parse(script)), text: NodeText::parse(script) };
    let found = script.misplaced().into_iter();
    let found = found.map(|(_, reference, spot)| {
        let spot = match spot {
            Spot::Double => 'D',
            Spot::Single => 'S',
            Spot::Escaped => 'E',
            Spot::Refused(_) => 'R',
            Spot::HereDocument => 'H',
            Spot::HereText => 'T',
            Spot::Comment => 'C',
            Spot::Arithmetic { .. } => 'A',
            Spot::Name => 'N',
            Spot::Numbers(_) => 'M',
            Spot::List(_) => 'L',
        };
        format!("{}{spot}", reference.node)
    });
    found.collect::<Vec<_>>().join(" ")
}

#[test]
fn references_in_quotes_are_found() {
    for (script, wanted) in [
        ("echo $a.output", ""),
        ("v=$a.output; echo \"$v\" $b.output", ""),
        ("echo \"$a.output\"", "aD"),
        ("echo \"it is: $a.output.x!\" $b.output", "aD"),
        ("echo '$a.output'", "aS"),
        ("echo \\\"$a.output", ""),
        ("echo \"a \\\" $a.output\"", "aD"),
        ("echo \"$(cat $a.output)\" \"$b.output\"", "bD"),
        ("echo \"$(echo \"$a.output\")\" $b.output", "aD"),
        ("echo \"`cat $a.output`\" $b.output", ""),
        ("echo \"it's\" $a.output", ""),
        ("(cd x; echo $a.output) \"$b.output\"", "bD"),
        ("case $a.output in x) echo \"$b.output\";; esac", "bD"),
        ("echo $ARGUMENTS \"$ARGUMENTS\" $a.output", ""),
        ("echo a#\"b $a.output", "aD"),
        ("x=${y#*/} z=\"$a.output\"", "aD"),
        ("echo $'it\\'s' $a.output $'$b.output'", "bE"),
        ("echo x\\ #\"$a.output\"", "aD"),
    ] {
        assert_eq!(misplaced_in(script), wanted, "{script}");
    }
}

#[test]
fn what_is_reckoned_with_is_found() {
    let found = |script: &str| -> String {
        let letter = |spot: Option<Spot>| match spot {
            None => 'w',
            Some(Spot::Arithmetic { quoted: true }) => 'Q',
            Some(Spot::Arithmetic { quoted: false }) => 'A',
            Some(Spot::Name) => 'N',
            Some(Spot::Numbers(_)) => 'M',
            Some(Spot::Refused(Unsafe::Script)) => 'R',
            Some(_) => 'x',
        };
        Layout::of_node(&NodeText::parse(script)).spots.into_iter().map(letter).collect()
    };
    for (script, wanted) in [
        ("echo $(( $a.output + 1 )) $b.output", "Aw"),
        ("echo \"$(( ($a.output) * 2 ))\" \"$b.output\"", "Ax"),
        ("echo $(( \"$a.output\" )) $b.output", "Qw"),
        ("(( $a.output > 3 )) && echo $b.output", "Aw"),
        ("((n += $a.output))\n(echo $b.output)", "Aw"),
        ("echo $((echo $a.output) | cat) $b.output", "ww"),
        ("((cd x; ls $a.output) ; echo $b.output)", "ww"),
        ("echo $(( $(echo $a.output) + $b.output ))", "MA"),
        ("[[ $a.output -gt 5 ]] && echo $b.output", "Aw"),
        ("[[ -n $a.output && 5 -le \"$b.output\" ]]; echo $c.output", "wQw"),
        ("[[ x ]]; [ $a.output -gt 5 ]", "w"),
        ("echo $(( 1 + 2", ""),
        ("echo $[ $a.output + 1 ] \"$[ n[$b.output] ]\" $c.output", "AAw"),
        ("let n=$a.output+1; echo $b.output", "Aw"),
        ("let 'n=$a.output' \"m=$b.output\"\necho $c.output", "QQw"),
        ("echo ${s:$a.output} \"${s:0:$b.output}\" ${s:-$c.output} $d.output", "AQww"),
        ("echo ${n[$a.output]} ${#n[@]} ${n[@]:$b.output:1} $c.output", "AAw"),
        ("echo $(( ${x:-$a.output} )) \"${x:-$b.output}\"", "Ax"),
        ("n[$a.output]=1 m=([$b.output]+=x $c.output) k[1]=$d.output", "AAww"),
        ("[ $a.output = x ]; ls x[$b.output] \"n[$c.output]=1\"", "wwx"),
        ("f() { local -i n=$a.output; }\ncase x in y) let n=$b.output ;; esac", "AA"),
        ("declare -ai n=(1 $a.output) && echo $b.output", "Aw"),
        ("x=$(let n=$a.output; echo $b.output) y=$c.output", "Aww"),
        ("read -r x <<< $a.output 2>&1; read $b.output; printf -v $c.output x", "wNN"),
        ("[[ -v $a.output || \"1$b.output\" -eq 1 ]] && test -v 'n[$c.output]'", "NQQ"),
        ("cat <<E\n$(( $a.output )) $(echo $b.output) let $c.output\nE\n", "Awx"),
        ("echo \"${x%(*}\" ${x/ #/} ${y%(*} $a.output \"$b.output\"", "wx"),
        ("echo a; echo let $a.output", "w"),
        // What is printed is followed to who reads it.
        ("echo $a.output | { read n; echo $((n + 1)); }", "M"),
        ("echo \"$a.output\" | while IFS= read -r n; do echo $((n)); done", "M"),
        ("v=$a.output; printf '%s\\n' \"$v\" | while read n; do ((t += n)); done", "M"),
        ("while read n; do ((n)); done <<< $a.output; read m < <(echo $b.output); ((m))", "MM"),
        ("while read n; do ((n)); done < <(echo $a.output)", "M"),
        ("n=$(echo $a.output); echo $((n)) `echo $b.output`", "Mw"),
        ("n=\"$(printf %s $a.output)\"; (( n )); [[ $(echo $b.output) -gt 1 ]]", "MA"),
        ("echo $a.output | sh; echo '$b.output' | bash -s; . <(echo $c.output)", "RRR"),
        ("source /dev/stdin <<< $a.output; cat <<< $b.output; . x.sh <<< $c.output", "Rww"),
        ("echo $a.output | grep sh; grep bash <<< $b.output; grep sh <(echo $c.output)", "www"),
        ("echo $a.output | docker exec -i box bash; X=1 exec sh <<< $b.output", "RR"),
        ("read -r x y <<< \"$a.output\"; echo $(( x + y ))", "M"),
        (
            "eval \"$(echo $a.output)\"; sh -c \"$(echo \"$b.output\")\"; bash <(echo $c.output)",
            "RRR",
        ),
        ("echo $(echo $a.output) | sh; diff <(echo $b.output) x", "Rw"),
        ("n=$(echo $a.output | wc -l); echo $((n)); echo $b.output >&2 | sh", "ww"),
        (
            "echo $a.output | bash x.sh; echo $b.output | tr a b | while read c; do ((c)); done",
            "ww",
        ),
        ("m=$(echo $a.output >&2; echo 1); ((m)); n=$(printf %d $b.output); ((n))", "ww"),
    ] {
        assert_eq!(found(script), wanted, "{script}");
    }
}

#[test]
fn comments_and_here_documents_are_no_place_either() {
    for (script, wanted) in [
        ("# don't $a.output\necho $b.output", "aC"),
        ("echo x # isn't it\necho $a.output", ""),
        ("cat <<EOF\n$a.output's\nEOF\necho $b.output", "aH"),
        ("cat <<-'END' > x; echo $c.output\n\t\"$a.output\n\tEND\necho $b.output", "aT"),
        ("cat <<A <<B\n$a.output\nA\n$b.output\nB\n$c.output", "aH bH"),
        ("echo $((1<<2)) $((x<<y)) $a.output\necho \"$b.output\"", "bD"),
        ("cat <<<$a.output\necho $b.output", ""),
        ("cat <<EOF\n$a.output", "aH"),
        ("cat <<EOF # it's\n$a.output\nEOF\n$b.output", "aH"),
    ] {
        assert_eq!(misplaced_in(script), wanted, "{script}");
    }
}

#[test]
fn a_comment_refers_to_nothing() {
    let script = "# uses $a.output.f\necho $b.output # and $c.output\necho \"$d.output\"";
    let text = Script::read(NodeText::parse(script)).text;
    let refs: Vec<_> = text.refs().map(|reference| reference.node.as_str()).collect();
    assert_eq!(refs, ["b", "d"]);
    assert_eq!(text.source(), script);
}

#[test]
fn whatever_is_written_can_be_scanned() {
    const SCRAPS: [&str; 27] = [
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
        "\\",
        "#",
        " ",
        "\n",
        "<<",
        "<<-",
        "EOF",
        "\t",
        "$a.output",
        "$b.output",
        "é",
        "\0",
        "<",
        "''",
    ];
    let mut random = Random::new(3);
    for _ in 0..20_000 {
        let script: String =
            (0..random.below(24)).map(|_| SCRAPS[random.below(SCRAPS.len())]).collect();
        let text = NodeText::parse(&script);
        assert_eq!(Layout::of_node(&text).spots.len(), text.values().count(), "{script}");
    }
}

#[test]
fn long_scripts_take_no_long_time() {
    for scrap in
        ["${", "$[", "${x[", "x[1]=", "<<A\n", "<<EOF\nEOF\n", "\"$(", "`", "(", "'", "#\n", "<<"]
    {
        let script = scrap.repeat(40_000) + "$a.output";
        Layout::of_node(&NodeText::parse(&script));
    }
    for scrap in
        ["let n=$a.output+", "x $a.output ", "-x=$a.output ", "V=$a.output ", "(echo $a.output "]
    {
        Layout::of_node(&NodeText::parse(&scrap.repeat(2_000)));
    }
    let quoted = "it is $a.output and all of it, ".repeat(2_000);
    Layout::of_node(&NodeText::parse(&format!("sh x.sh \"{quoted}\" | sh")));
    Layout::of_node(&NodeText::parse(&format!("echo \"{quoted}\" | sh")));
    let many: String = (0..20_000).map(|n| format!("cat <<E{n}\n")).collect();
    Layout::of_node(&NodeText::parse(&many));
}

/// A script and what it is to print, with `@` for the value; shells are asked.
#[expect(clippy::disallowed_methods, reason = "only shells know how shells read")]
fn prints(shell: &str, script: &str, wanted: &str) {
    const HOSTILE: [&str; 6] = [
        "two  words",
        "",
        "$(echo ran >&2) `echo ran >&2` * ~ $HOME ${PATH} #",
        "\"; echo ran >&2; \"'; echo ran >&2; '\n}; echo ran >&2; (",
        ")\nEOF\necho ran >&2\n.",
        "a[$(echo ran >&2)]\\",
    ];
    for value in HOSTILE {
        let pieces: Vec<_> = script
            .split('@')
            .map(|text| spell::Piece::Text(text.to_owned()))
            .flat_map(|text| [text, spell::Piece::Value(value.to_owned())])
            .collect();
        let mut pieces = pieces[..pieces.len() - 1].to_vec();
        let layout = match shell {
            "sh" => Layout::of_pieces(&pieces),
            _ => {
                let mut sketch = Vec::new();
                for piece in &pieces {
                    match piece {
                        spell::Piece::Text(text) => sketch.extend(text.bytes().map(unmarked)),
                        spell::Piece::Value(_) => sketch.push(MARK),
                    }
                }
                Scanner::new(&sketch, Shell::Bash).scan()
            }
        };
        layout.mend_pieces(&mut pieces);
        let mut spots = layout.spots.iter();
        let filled: String = pieces
            .iter()
            .map(|piece| match piece {
                spell::Piece::Text(text) => text.clone(),
                spell::Piece::Value(_) => match spots.next().unwrap() {
                    None | Some(Spot::Name | Spot::Arithmetic { .. }) => "\"${V}\"".to_owned(),
                    Some(Spot::Single) => "'\"${V}\"'".to_owned(),
                    Some(Spot::Escaped) => "'\"${V}\"$'".to_owned(),
                    Some(Spot::Comment) => String::new(),
                    Some(Spot::Refused(why)) => panic!("{script} is refused: {why:?}"),
                    Some(_) => "${V}".to_owned(),
                },
            })
            .collect();
        let child = std::process::Command::new(shell)
            .args(["-c", &filled])
            .env("V", value)
            .output()
            .unwrap();
        let (out, err) = (child.stdout, String::from_utf8_lossy(&child.stderr).into_owned());
        let out = String::from_utf8_lossy(&out).into_owned();
        assert_eq!(out, wanted.replace('@', value), "{shell}: {script}\n{filled}\n{err}");
        assert!(!err.contains("ran"), "{shell}: {script}\n{filled}\n{err}");
    }
}

#[test]
fn a_value_is_itself_wherever_it_stands() {
    for (script, wanted) in [
        (r"printf %s @", "@"),
        (r"printf %s \@", "@"),
        (r"printf '%s|' \@ '@' @", "@|@|@|"),
        (r"printf %s \\@", r"\@"),
        (r#"printf %s "\@""#, r"\@"),
        (r#"printf %s "\\@""#, r"\@"),
        (r#"printf %s "\"@\"""#, "\"@\""),
        (r"printf %s '\@'", r"\@"),
        (r#"printf %s "$@" "#, "$@"),
        (r"printf %s $@", "$@"),
        (r"printf %s a@b'c@d'", "a@bc@d"),
        ("cat <<EOF\n@\nEOF\n", "@\n"),
        ("cat <<EOF\n\\@ $@ \"@\" '@'\nEOF\n", "\\@ $@ \"@\" '@'\n"),
        ("cat <<'EOF'\n@ $x `y` \\@ \\ \"@\" '\nEOF\nprintf %s @", "@ $x `y` \\@ \\ \"@\" '\n@"),
        ("cat <<\\EOF\n@ $x\nEOF\nprintf %s \"@\"", "@ $x\n@"),
        ("cat <<\"E\"OF\n@ $x\nEOF\nprintf %s '@'", "@ $x\n@"),
        ("cat <<'a b'\n@ $x\na b\nprintf %s '@'", "@ $x\n@"),
        ("cat <<''\n@ $x\n\nprintf %s '@'", "@ $x\n@"),
        ("cat <<-'EOF'\n\t@ $x\n\tEOF\nprintf %s @", "@ $x\n@"),
        ("cat <<-EOF\n\t@\n\tEOF\nprintf %s @", "@\n@"),
        ("cat <<EOF-1\n@\nEOF\nEOF-1\nprintf %s @", "@\nEOF\n@"),
        ("cat <<EOF\n@\n\tEOF\nEOF\nprintf %s @", "@\n\tEOF\n@"),
        ("cat <<A; cat <<'B'; printf %s @\n@\nA\n@$x\nB\nprintf %s '@'", "@\n@$x\n@@"),
        ("x=\"$(cat <<'EOF'\n@. $y\nEOF\n)\"\nprintf %s \"$x\"", "@. $y"),
        ("# it's @\nprintf %s @ # don't @\nprintf %s '@'", "@@"),
        ("printf %s a#@ 'b'", "a#@b"),
        ("f() { printf %s @; }\nf; f", "@@"),
        ("case @ in x@) printf no;; @) printf '%s' \"@\";; esac", "@"),
        ("printf %s \"$(case a in a) printf %s. '@' ;; esac)\" '@'", "@.@"),
        ("printf %s \"$(case a in (b) ;; a) printf '%s.' @ ;; esac)\" \"@\"", "@.@"),
        ("printf %s \"`printf %s. @`\" '@'", "@.@"),
        ("printf %s `printf x`@", "x@"),
        ("unset x; printf %s \"${x:-@}\" \"${x-'@'}\"", "@'@'"),
        ("x=a; printf %s \"${x%'}'}\" \"@\"", "a@"),
        ("x=@; printf %s \"$x\"", "@"),
        ("x='[@]' y=\"@\"; printf %s \"$x$y\"", "[@]@"),
        ("if true; then printf %s @; else printf %s '@'; fi", "@"),
        ("for x in @ '@'; do printf '%s|' \"$x\"; done", "@|@|"),
        ("sh -c 'printf %s \"$1\"' sh @", "@"),
        ("x=@\neval 'printf %s \"$x\"'", "@"),
        ("cat <<EOF\n$(printf '%s.' @) ${x:-@}\nEOF\n", "@. @\n"),
        ("cat <<EOF\n@\n", "@\n"),
        ("printf '%s' \"a\\\\@b\"", "a\\@b"),
        ("printf '%s' é@\\é '@'", "é@é@"),
        ("(printf %s @) | cat; { printf %s '@'; }", "@@"),
    ] {
        prints("sh", script, wanted);
        prints("bash", script, wanted);
    }
    for (script, wanted) in [
        (r"printf %s $'a\'b@\'' '@'", "a'b@'@"),
        (r"printf %s $'@\t@' @", "@\t@@"),
        ("cat <<< @", "@\n"),
        ("cat <<< \"a @\" <(printf %s @) -", "@a @\n"),
        ("[[ @ == '@' && @ == \"@\" ]] && printf %s @", "@"),
        ("a=(x @ '@'); printf '%s|' \"${a[@]}\"", "x|@|@|"),
    ] {
        // Where the shell's own sign stands, there is no value.
        if !script.contains("[@]") {
            prints("bash", script, wanted);
        }
    }
}

#[test]
fn what_would_be_script_is_refused() {
    let why = |script: &str, shell: Shell| -> Vec<Unsafe> {
        let sketch: Vec<u8> =
            script.bytes().map(|byte| if byte == b'@' { MARK } else { byte }).collect();
        let spots = Scanner::new(&sketch, shell).scan().spots;
        let refused = spots.into_iter().filter_map(|spot| match spot {
            Some(Spot::Refused(why)) => Some(why),
            _ => None,
        });
        refused.collect()
    };
    for (script, wanted) in [
        ("eval @", &[Unsafe::Script][..]),
        ("sh -c 'echo @' sh @", &[Unsafe::Script]),
        ("bash -c \"echo @\"; echo @", &[Unsafe::Script]),
        ("if x; then trap 'rm @' EXIT; fi", &[Unsafe::Script]),
        ("sh <<EOF\necho @\nEOF\necho @", &[Unsafe::Script]),
        ("cat <<'EOF' | bash -s x\necho @\nEOF\necho @", &[Unsafe::Script]),
        ("cat <<@\n@\n", &[Unsafe::HereEnd]),
        ("echo `echo \\@` @", &[Unsafe::Backticks]),
        ("echo `echo @ \\\\\"x\"` @", &[Unsafe::Backticks]),
        ("echo `echo @ '\\\\'` `echo @`", &[Unsafe::Backticks]),
        ("echo $(( ${y%)} + @ ))", &[Unsafe::Parentheses]),
        ("echo \"${x#'@'}\" @", &[Unsafe::Pattern]),
        ("echo \"${x:-it's}\" '@'", &[Unsafe::Quotes]),
    ] {
        assert_eq!(why(script, Shell::Sh), wanted, "{script}");
        assert_eq!(why(script, Shell::Bash), wanted, "{script}");
    }
    let long = "word ".repeat(1_000);
    for script in [
        // In whatever layout.
        "sh -c \\\n  @",
        "trap \\\n  @ EXIT",
        "echo @ | \\\n sh",
        "echo @ |\n\n  # it is run\n sh",
        "cat <<EOF \\\n | sh\n@\nEOF\n",
        "cat <<EOF |\n@\nEOF\nsh",
        "cat <<EOF | # it is run\n@\nEOF\n\nsh",
        "sh -c \"wc -l < @\"",
        "eval 'a > b; @'",
        "echo `date` @ | sh",
        "echo @ \"`date`\" | sh",
        "echo \"$(echo \"a\" | cat)\" @ | sh",
        // However long.
        &format!("env V={long} sh -c \"{long}; @\""),
        &format!("env {long} sh -c '{long}; @'"),
        &format!("env {long} sh -s {long} <<EOF\n@\nEOF\n"),
        &format!("env {} sh -c \"{long} @\"", "V=1 ".repeat(1_000)),
        &format!("echo @ {long} | sh"),
        &format!("cat <<EOF {long} | sh\n@\nEOF\n"),
        // Behind redirections.
        "2>/dev/null eval @",
        "</dev/null eval @",
        "2>/dev/null trap @ EXIT",
        "2> x sh -c @",
        "<<EOF sh\n@\nEOF\n",
        "<<< @ sh",
        "sh 0<<EOF\n@\nEOF\n",
        "sh <<A 2>&1 -x\n@\nA\n",
        // In groups.
        "(echo @) | sh",
        "( (echo @; true) ) | sh",
        "{ echo @; } | sh",
        "if x; then echo @; else y; fi | sh",
        "for x in 1 2; do\n  echo @\ndone 2>/dev/null | bash -s",
        "while x; do { echo '@'; }; done | sudo sh",
        "case x in y) echo @ ;; esac | sh",
        "(sh) <<EOF\n@\nEOF\n",
        "{ sh; } <<EOF\n@\nEOF\n",
        "{\n cd x\n sh\n}<<EOF\n@\nEOF\n",
        "if x; then sh; fi <<EOF\n@\nEOF\n",
        "{ { sh; }; } <<< @",
        "echo @ | (cd x; sh)",
        "echo @ | { cd x && sh; }",
        "{ cat <<EOF\n@\nEOF\n} | sh",
        "(cat <<< @) | tee x | sh",
        "cat <<< @ | sh",
        "echo @ > >(sh)",
        "x=$( (echo @) | sh)",
        // Whatever the shell is.
        ". /dev/stdin <<EOF\n@\nEOF\n",
        "echo @ | . /dev/stdin",
        "${SHELL:-/bin/sh} -c @",
        "\"$SHELL\" -c @",
        "rbash -c @",
        "busybox sh -c @",
        "echo @ | busybox sh",
        "ssh host <<EOF\n@\nEOF\n",
        "su me <<EOF\n@\nEOF\n",
        "echo @ | at now",
    ] {
        assert_eq!(why(script, Shell::Sh), [Unsafe::Script], "{script}");
        assert_eq!(why(script, Shell::Bash), [Unsafe::Script], "{script}");
    }
    for script in [
        "(echo @) | cat",
        "(echo @); sh",
        "{ echo @; } > x | sh",
        "{ echo @; }; echo x | sh",
        "(sh x.sh) <<EOF\n@\nEOF\n",
        "{ sh < x; } <<EOF\n@\nEOF\n",
        "{ echo x | sh; cat; } <<EOF\n@\nEOF\n",
        "cat <<EOF\n@\nEOF\nsh",
        "cat <<EOF | grep sh\n@\nEOF\n",
        "cat <<EOF > x.sh; sh x.sh\n@\nEOF\n",
        "while read x; do sh \"$x\"; done <<EOF\n@\nEOF\n",
        "while read x; do ssh \"$x\" date; done <<EOF\n@\nEOF\n",
        "echo @ # | sh",
        "echo @ || sh",
        "echo '| sh' @",
        "echo @ | cat | sh",
        "x=@; sh -c \"$x\"",
        "eval \"$(cat <<EOF\n@\nEOF\n)\"",
        "bash -o pipefail x.sh <<EOF\n@\nEOF\n",
        "bash x.sh -c @",
        "echo if eval; echo @",
        "docker run -i box cat <<EOF\n@\nEOF\n",
    ] {
        assert!(why(script, Shell::Sh).is_empty(), "{script}");
        assert!(why(script, Shell::Bash).is_empty(), "{script}");
    }
    assert_eq!(why(r"echo $'\@' '@'", Shell::Bash), [Unsafe::Escape]);
    assert_eq!(why(r"echo $'@' '@'", Shell::Sh), [Unsafe::Quotes]);
    let twice = [Unsafe::Quotes; 2];
    assert_eq!(why("echo $'it\\'s' @\ncat <<E\n@\nE\n", Shell::Sh), twice);
    assert!(why("echo $'it\\'s' @", Shell::Bash).is_empty());
}

#[test]
fn what_is_set_and_reckoned_with_later_is_a_number() {
    for script in [
        "n=$a.output\nif (( n > 3 )); then echo x; fi",
        "n=\"$a.output\"; echo $((n + 1))",
        "n='$a.output'; [[ $n -gt 3 ]] && echo x",
        "declare -i n\nn=$a.output",
        "local n=$a.output; echo ${x:$n}",
        "export n=$a.output; let m=n+1",
    ] {
        let spots = Layout::of_node(&NodeText::parse(script)).spots;
        assert!(matches!(spots[..], [Some(Spot::Arithmetic { .. })]), "{script}: {spots:?}");
    }
    let spots = Layout::of_node(&NodeText::parse("n=$a.output; echo $((m + 1))")).spots;
    assert_eq!(spots, [None]);
}

#[test]
fn a_variable_of_the_shell_stays_one_where_it_is_quoted() {
    for (script, wanted) in [
        ("eval \"$ARGUMENTS\"", true),
        ("bash -c \"echo $ARGUMENTS\"", true),
        ("bash -c 'echo \"$ARGUMENTS\"'", false),
        ("bash <<'EOF'\necho \"$ARGUMENTS\"\nEOF", false),
        ("bash <<EOF\necho \"$ARGUMENTS\"\nEOF", true),
        ("echo \\$ARGUMENTS \"$ARGUMENTS\"", false),
        ("bash -c \"ls $ARTIFACTS_DIR\"", false),
    ] {
        assert_eq!(!Script::read(NodeText::parse(script)).refused().is_empty(), wanted, "{script}");
    }
}
