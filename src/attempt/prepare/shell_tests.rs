//! Proves with real shells that a value never becomes script, and that it is itself where it is
//! allowed.
//!
//! Every value of [`VALUES`] is put at every place of the tables below. The scripts that are not
//! refused run in one process per shell, each in a subshell of its own.

use std::fs;
use std::path::Path;

use super::shell::{Expansions, spill_path};
use crate::template::nodes::{NodeText, Piece};
use crate::template::spell;
use crate::workflow::shell::Layout;

/// Values that create the file `pwned` if a shell reads them as script.
const VALUES: [&str; 22] = [
    "",
    "7",
    "word",
    "two  words",
    "$(touch pwned)",
    "`touch pwned`",
    "; touch pwned",
    "; touch pwned #",
    "& touch pwned &",
    "| touch pwned",
    "\ntouch pwned\n.",
    "'; touch pwned; '",
    "\"; touch pwned; \"",
    "'\"'\"; touch pwned; '",
    ")\nEOF\ntouch pwned\n.",
    "}; touch pwned; {",
    ")); touch pwned; ((",
    "\\\"; touch pwned; \\",
    "${x[$(touch pwned)]}",
    "a[$(touch pwned)]",
    "(<(touch pwned))",
    "* ~ $HOME ${PATH} # \\",
];

/// Scripts for every shell, with `@` for the value, and their output.
const PRINTED: [(&str, &str); 43] = [
    (r"printf %s @", "@"),
    (r"printf %s a@b", "a@b"),
    (r#"printf %s "@""#, "@"),
    (r#"printf %s "a $x@\"b""#, "a @\"b"),
    (r"printf %s 'a'@'b'", "a@b"),
    (r"printf %s \\@", r"\@"),
    (r#"printf %s "\\@""#, r"\@"),
    (r#"printf %s "\$@" \$@"#, "$@$@"),
    (r"printf '%s|' @@ @", "@@|@|"),
    ("x=@; printf %s \"$x\"", "@"),
    ("x=\"<@>\" y=@; printf %s \"$x$y\"", "<@>@"),
    ("export x=\"@\"; sh -c 'printf %s \"$x\"'", "@"),
    ("for x in @ \"@\"; do printf '%s|' \"$x\"; done", "@|@|"),
    ("case @ in x@) printf no ;; @) printf %s \"@\" ;; esac", "@"),
    ("printf %s \"$(printf %s. @)\" @", "@.@"),
    ("printf %s $(printf x)@", "x@"),
    ("printf %s \"$(printf %s. \"$(printf %s. @)\")\"", "@.."),
    ("printf %s \"$(case a in a) printf %s. \"@\" ;; esac)\" @", "@.@"),
    ("printf %s \"$(case a in (b) ;; a) printf '%s.' @ ;; esac)\" \"@\"", "@.@"),
    ("printf %s \"`printf %s. @`\" @", "@.@"),
    ("x=`printf %s. \"@\"`; printf %s \"$x\"", "@."),
    ("unset x; printf %s \"${x:-@}\" \"${x-'@'}\"", "@'@'"),
    ("x=a; printf %s \"${x%'}'}\" \"@\"", "a@"),
    ("x=a; printf %s \"${x#'\"'}\" @ \"@\"", "a@@"),
    ("unset x; printf %s ${x:-@}", "@"),
    ("cat <<EOF\n@\nEOF\n", "@\n"),
    ("cat <<EOF\n\"@\" '@'\nEOF\nprintf %s @", "\"@\" '@'\n@"),
    ("cat <<-EOF\n\t@\n\tEOF\nprintf %s @", "@\n@"),
    ("cat <<EOF-1\n@\nEOF\nEOF-1\nprintf %s @", "@\nEOF\n@"),
    ("cat <<EOF\n@\n\tEOF\nEOF\nprintf %s @", "@\n\tEOF\n@"),
    ("cat <<'EOF'\nit's $x `y` \"\nEOF\nprintf %s @", "it's $x `y` \"\n@"),
    ("cat <<\\EOF; cat <<B; printf %s @\n$x\nEOF\n@\nB\nprintf %s \"@\"", "$x\n@\n@@"),
    ("x=\"$(cat <<EOF\n@. \nEOF\n)\"\nprintf %s \"$x\"", "@. "),
    ("cat <<EOF\n$(printf '%s.' @) ${x:-@} `printf %s. @`\nEOF\n", "@. @ @.\n"),
    ("# it's @\nprintf %s @ # don't @\nprintf %s \"@\"", "@@"),
    ("printf %s a#@ b", "a#@b"),
    ("f() { printf %s @; }\nf; f", "@@"),
    ("if true; then printf %s @; else printf %s x@; fi", "@"),
    ("(printf %s @) | cat; { printf %s @; }", "@@"),
    ("sh -c 'printf %s \"$1\"' sh @", "@"),
    ("mkdir d && cd d && printf %s @ > x && cat x; rm -f x; cd .. && rmdir d", "@"),
    ("printf x > out-@ 2> err; printf %s @", "@"),
    ("test @ = \"@\" && printf %s é@é", "é@é"),
];

/// The same for bash only.
const PRINTED_BY_BASH: [(&str, &str); 5] = [
    ("cat <<< @", "@\n"),
    ("cat <<< \"a @\" <(printf %s @) -", "@a @\n"),
    ("[[ @ == @ && @ == \"@\" ]] && printf %s @", "@"),
    ("printf %s $'a\\'b'@ $'\\\\'@", "a'b@\\@"),
    ("x=(a @); printf '%s|' \"${#x[*]}\" @", "2|@|"),
];

/// Scripts that evaluate text, or run a value as part of a script.
const EVALUATING: [&str; 71] = [
    "echo $(( @ ))",
    "echo \"$(( (@) + 1 ))\"",
    "echo $(( \"@\" ))",
    "(( @ > 3 ))",
    "(( n = @ )); echo $n",
    "n=@; (( n ))",
    "n=\"@\"\necho $((n + 1))",
    "echo $[ @ + 1 ] \"$[ n[@] ]\"",
    "let n=@+1",
    "let \"n=@\"",
    "[ @ -eq 1 ]",
    "test \"@\" -gt 1",
    "[[ @ -eq 1 ]]",
    "[[ -n x && 5 -le \"@\" ]]",
    "[[ x != \" ]]\" && @ -gt 5 ]]",
    "x=(1 2); i=(0); [[ ${x[i[0]]} -eq 1 && @ -gt 5 ]]",
    "echo ${?:@}",
    "coproc let x=@; wait",
    "printf -v RANDOM %s @",
    "read RANDOM <<< @",
    ": ${m:=@}; [[ m -gt 3 ]]",
    "exec 3<<< @; read n <&3; echo $((n))",
    "f() { getopts x: o; echo $((OPTARG)); }; f -x @",
    "n=@; [[ $n -gt 3 ]]",
    "declare -i n=@",
    "declare -i n\nn=@",
    "f() { local -i n=\"@\"; }; f",
    "typeset -i n; read n <<< @",
    "s=abc; echo ${s:@} \"${s:0:@}\"",
    "s=abc; n=@; echo ${s:n}",
    "a=(1); echo ${a[@]} \"${a[$x@]}\"",
    "a[@]=1",
    "a=([@]=1)",
    "a=(1); n=@; echo ${a[n]}",
    "declare -a x=@",
    "declare -A x=\"@\"",
    "x=(1); declare x=@",
    "f() { local x=(1); local x=\"@\"; }; f",
    "n=@; echo ${!n}",
    "declare -n r=@; echo $r",
    "read @ <<< 1",
    "x=@; read \"$x\" <<< 1",
    "printf -v @ 1",
    "printf -v \"a[@]\" 1",
    "test -v @",
    "[ -v @ ]",
    "[[ -v @ ]]",
    "unset @",
    "declare \"@=1\"",
    "export \"@\"",
    "getopts a @ -a",
    "mapfile @ <<< 1",
    "RANDOM=@",
    "SRANDOM=\"@\"",
    "for RANDOM in @; do :; done",
    "PS4=@; set -x; :",
    "compgen -W @",
    "for ((i=@; i<1; i++)); do :; done",
    "while read n; do echo $((n)); done <<< @",
    "echo @ | { read n; echo $((n)); }",
    "n=$(echo @); echo $((n))",
    "f() { (( $1 )); }; f @",
    "eval \"echo @\"",
    "eval 'x=1'; eval echo @",
    "sh -c \"echo @\"",
    "bash -ec \"echo '@'\"",
    "env bash -o pipefail -c \\\n \"echo @\"",
    "trap \"echo @\" EXIT",
    "eval \"$(printf 'echo %s' @)\"",
    "cat <<EOF\n$(( @ ))\nEOF\n",
    "sleep 0 & wait -n -p @",
];

/// One script with one value in it.
#[derive(Clone, PartialEq)]
struct Filled {
    script: String,
    env: Vec<(String, String)>,
    wanted: Option<String>,
}

/// Splits a script at `@`.
fn pieces(script: &str, value: &str) -> Vec<spell::Piece> {
    let texts = script.split('@').map(|text| spell::Piece::Text(text.to_owned()));
    let mut pieces: Vec<_> =
        texts.flat_map(|text| [text, spell::Piece::Value(value.to_owned())]).collect();
    pieces.pop();
    pieces
}

/// Fills a script of a grimoire, or returns the reason why that is refused.
fn fill(script: &str, value: &str, root: &Path) -> Result<Filled, String> {
    let pieces = pieces(script, value);
    let mut expansions = Expansions::new(Layout::of_pieces(&pieces), root.to_str().unwrap());
    let put = |piece: &spell::Piece| match piece {
        spell::Piece::Text(text) => text.clone(),
        spell::Piece::Value(value) => expansions.put("a value", value, false),
    };
    let script = pieces.iter().map(put).collect();
    filled(script, expansions, root)
}

/// Fills a script of a node in the same way.
fn fill_node(script: &str, value: &str, root: &Path) -> Result<Filled, String> {
    let text = NodeText::parse(&script.replace('@', "$a.output"));
    assert_eq!(text.refs().count(), script.matches('@').count(), "{script}");
    let mut expansions = Expansions::new(Layout::of_node(&text), root.to_str().unwrap());
    let put = |piece: &Piece| match piece {
        Piece::Ref(reference) => expansions.put(&format!("`{reference}`"), value, false),
        piece => piece.to_string(),
    };
    let script = text.pieces().iter().map(put).collect();
    filled(script, expansions, root)
}

fn filled(script: String, expansions: Expansions, root: &Path) -> Result<Filled, String> {
    expansions.check().map_err(|refusal| refusal.message)?;
    for (digest, text) in &expansions.spilled {
        fs::write(root.join(spill_path(digest)), text).unwrap();
    }
    Ok(Filled { script, env: expansions.env, wanted: None })
}

fn shell_word(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

/// Runs scripts in one process of a shell. Returns the output of each, and whether it executed a
/// value.
#[expect(clippy::disallowed_methods, reason = "only shells know how shells read")]
fn run(shell: &str, scripts: &[Filled]) -> Vec<(String, bool)> {
    let dir = tempfile::tempdir().unwrap();
    // Every descendant holds the third descriptor: its end is the end of all of them.
    let mut driver = "exec 3>&1\n".to_owned();
    for (number, filled) in scripts.iter().enumerate() {
        fs::write(dir.path().join(format!("{number}.sh")), &filled.script).unwrap();
        fs::create_dir(dir.path().join(number.to_string())).unwrap();
        let env = filled.env.iter();
        let env: String =
            env.map(|(name, value)| format!("export {name}={}; ", shell_word(value))).collect();
        driver.push_str(&format!(
            "( cd {number}; {env} . ../{number}.sh ) > {number}.out 2> {number}.err < /dev/null\n"
        ));
    }
    fs::write(dir.path().join("driver"), driver).unwrap();
    let mut command = std::process::Command::new(shell);
    command.arg("driver").current_dir(dir.path()).output().unwrap();
    let result = |number: usize| {
        let out = fs::read(dir.path().join(format!("{number}.out"))).unwrap();
        let pwned = dir.path().join(format!("{number}/pwned")).exists();
        (String::from_utf8_lossy(&out).into_owned(), pwned)
    };
    (0..scripts.len()).map(result).collect()
}

/// Runs scripts, and checks that no value was executed and that the output is the wanted one.
fn check(shell: &str, scripts: &[Filled]) {
    for (filled, (out, pwned)) in scripts.iter().zip(run(shell, scripts)) {
        let Filled { script, env, wanted } = filled;
        let env = env.first().map(|(_, value)| value.chars().take(80).collect::<String>());
        assert!(!pwned, "{shell} executed {env:?}: {script}");
        if let Some(wanted) = wanted {
            assert!(out == *wanted, "{shell}: {script}\n{env:?}\n{out:.200}");
        }
    }
}

/// Fills a script as a grimoire's and as a node's, and adds the results that differ to `scripts`.
/// Returns the reason of the first refusal, if any.
fn add(
    scripts: &mut Vec<Filled>,
    script: &str,
    value: &str,
    wanted: Option<&str>,
    root: &Path,
) -> Result<(), String> {
    let spell = fill(script, value, root);
    // A name after a reference would be a part of it.
    let node = if script.contains("@b") { spell.clone() } else { fill_node(script, value, root) };
    assert_eq!(spell.is_err(), node.is_err(), "{script}");
    let (spell, node) = (spell?, node?);
    let wanted = wanted.map(|wanted| wanted.replace('@', value));
    if node != spell {
        scripts.push(Filled { wanted: wanted.clone(), ..node });
    }
    scripts.push(Filled { wanted, ..spell });
    Ok(())
}

/// Returns a directory for values that are too long for variables.
fn run_root() -> tempfile::TempDir {
    let root = tempfile::tempdir().unwrap();
    fs::create_dir(root.path().join("values")).unwrap();
    root
}

#[test]
fn a_value_is_itself_at_every_place() {
    let root = run_root();
    let long = "$(touch pwned) ".repeat(4000) + "end";
    for (shell, tables) in [("sh", &[&PRINTED[..]][..]), ("bash", &[&PRINTED, &PRINTED_BY_BASH])] {
        let mut scripts = Vec::new();
        for (script, wanted) in tables.iter().copied().flatten() {
            let is_file = script.contains("> out-");
            let values = VALUES.iter().copied().chain((!is_file).then_some(long.as_str()));
            for value in values {
                let added = add(&mut scripts, script, value, Some(*wanted), root.path());
                assert_eq!(added, Ok(()), "{script}");
            }
        }
        check(shell, &scripts);
    }
}

#[test]
fn a_value_is_never_executed_where_text_is_evaluated() {
    let root = run_root();
    let long = format!("a[$(touch pwned)]{}", " ".repeat(40_000));
    for shell in ["sh", "bash"] {
        let (mut scripts, mut refused) = (Vec::new(), 0);
        // Other shells read `(( $1 ))` as a command, which the author wrote.
        let is_for = |script: &&str| shell == "bash" || !script.contains("(( $1");
        for script in EVALUATING.iter().copied().filter(is_for) {
            for value in VALUES.iter().copied().chain([long.as_str()]) {
                let added = add(&mut scripts, script, value, None, root.path());
                refused += usize::from(added.is_err());
            }
        }
        assert!(scripts.len() > EVALUATING.len() * 10, "{}", scripts.len());
        assert!(refused > EVALUATING.len() * 5, "{refused}");
        check(shell, &scripts);
    }
}

/// Without the check, bash does execute these values: the tests above can fail.
#[test]
fn evaluated_values_would_be_executed() {
    let script = |script: &str, value: &str| Filled {
        script: script.replace('@', "\"${V}\""),
        env: vec![("V".to_owned(), value.to_owned())],
        wanted: None,
    };
    let scripts = [
        script("n=@; echo $((n))", "a[$(touch pwned)]"),
        script("[[ @ -eq 1 ]]", "a[$(touch pwned)]"),
        script("x=(1); declare x=@", "(<(touch pwned))"),
        script("eval \"echo $V\"", "; touch pwned"),
    ];
    assert!(run("bash", &scripts).iter().all(|(_, pwned)| *pwned));
}

#[test]
fn a_refused_value_names_the_line() {
    for (script, value, wanted) in [
        (
            "x=1\nn=@\necho $((n))",
            "a[1]",
            "line 3 of the script evaluates text (`((`), and bash could execute `$a.output`, which \
             contains `[`",
        ),
        (
            "echo\nsh -c \"echo @\"",
            "a b",
            "line 2 of the script runs text as a script (`sh`), and `$a.output` in it is not a \
             plain word",
        ),
        ("echo '@'", "x", "`$a.output` is in single quotes; close the quotes before it: "),
        ("echo @", "a\0b", "`$a.output` has a NUL in it"),
    ] {
        let message = fill_node(script, value, Path::new("/")).err().unwrap();
        assert!(message.contains(wanted), "{message}");
    }
    for (script, value) in [
        ("n=@; echo $((n + 1))", "-7"),
        ("sh -c \"ls @\"", "src/a-b.rs"),
        ("[ @ -eq 1 ] || echo @", "a [b] `c`"),
        ("trap 'rm x' EXIT; trap - INT; sh -c 'echo \"$1\"' sh @", "$(x)"),
        ("local x=$1; read -r a b <<< @; echo ${a:0:3} ${b[0]} ${x:-[}", "$(x)"),
        ("OPTIND=1; unset x; export X=@", "$(x)"),
    ] {
        assert!(fill_node(script, value, Path::new("/")).is_ok(), "{script}");
    }
}
