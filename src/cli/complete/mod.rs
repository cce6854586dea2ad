//! `orchestrate complete`: prints the completions for the word under the cursor. The scripts of
//! `completions` call it, so that the names of runs, steps, agents and so on come from the current
//! workspace.
//!
//! The first output line states which other words are valid: `files`, `dirs`, or `words` for none.
//! Each following line is a word, a tab, and a description.
//!
//! **Invariant:** it never fails, prints a message, or changes anything: the user is still typing.

mod names;

use clap::{Arg, Command, CommandFactory as _};

use super::output::put;
use super::{Cli, Common};
use crate::run::failure::Failure;

#[derive(clap::Args, Clone, Debug)]
pub(super) struct CompleteArgs {
    /// The words after the program's name, up to the one that is being typed
    #[arg(value_name = "WORD", last = true)]
    pub words: Vec<String>,
}

/// The file names that are valid in addition to the known words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Beside {
    Files,
    Dirs,
    Nothing,
}

impl Beside {
    fn word(self) -> &'static str {
        match self {
            Beside::Files => "files",
            Beside::Dirs => "dirs",
            Beside::Nothing => "words",
        }
    }
}

/// Words, each with a description.
pub(super) type Words = Vec<(String, String)>;

pub(super) fn main(args: &CompleteArgs, common: &Common) -> Result<u8, Failure> {
    let mut root = Cli::command();
    root.build();
    // Some shells split a word at its equals sign.
    let mut words: Vec<&str> = args.words.iter().map(String::as_str).collect();
    let typed = words.pop().unwrap_or_default();
    let typed = if typed == "=" { "" } else { typed };
    words.retain(|word| *word != "=");
    let spot = Spot::after(&root, &words);
    let (before, beside, mut found) = match spot.wants(typed) {
        Wants::Verbs => (0, Beside::Nothing, verbs(spot.command)),
        Wants::Flags => (0, Beside::Nothing, flags(&spot)),
        Wants::Value { arg, begins } => {
            // In a list, complete the last item.
            let several = arg.get_value_delimiter().and_then(|comma| typed.rfind(comma));
            let begins = several.map_or(begins, |comma| begins.max(comma + 1));
            let (beside, words) = names::of(arg, &spot, common);
            (begins, beside, words)
        }
        Wants::Nothing => (0, Beside::Nothing, Words::new()),
    };
    let (kept, typed) = typed.split_at(before);
    found.retain(|(word, _)| word.starts_with(typed));
    let mut text = format!("{}\n", beside.word());
    for (word, about) in found {
        let about = about.lines().next().unwrap_or_default().replace('\t', " ");
        text.push_str(&format!("{kept}{word}\t{about}\n"));
    }
    put(&text)?;
    Ok(0)
}

/// The position of the cursor: the verb and the arguments in front of it.
pub(super) struct Spot<'a> {
    pub command: &'a Command,
    /// The verb and its subcommands.
    pub path: Vec<&'a str>,
    /// Values that are given, by argument id.
    pub given: Vec<(&'a str, String)>,
    /// An option whose value comes next.
    open: Option<&'a Arg>,
    /// Number of positional arguments that are given.
    positional: usize,
    /// True after `--`: no later word is a flag.
    plain: bool,
}

enum Wants<'a> {
    Verbs,
    Flags,
    /// The value of an argument, which starts at this byte of the typed word.
    Value {
        arg: &'a Arg,
        begins: usize,
    },
    Nothing,
}

impl<'a> Spot<'a> {
    fn after(root: &'a Command, words: &[&str]) -> Spot<'a> {
        let mut spot = Spot {
            command: root,
            path: Vec::new(),
            given: Vec::new(),
            open: None,
            positional: 0,
            plain: false,
        };
        words.iter().for_each(|word| spot.take(word));
        spot
    }

    /// Advances past a word.
    fn take(&mut self, word: &str) {
        if let Some(arg) = self.open.take() {
            self.given.push((arg.get_id().as_str(), word.to_owned()));
            return;
        }
        if !self.plain && word == "--" {
            self.plain = true;
            return;
        }
        if !self.plain && word.starts_with('-') && word.len() > 1 {
            let (name, value) = match word.split_once('=') {
                Some((name, value)) => (name, Some(value)),
                None => (word, None),
            };
            let Some(arg) = self.flag(name) else { return };
            match value {
                Some(value) => self.given.push((arg.get_id().as_str(), value.to_owned())),
                None if needs_value(arg) => self.open = Some(arg),
                None => self.given.push((arg.get_id().as_str(), String::new())),
            }
            return;
        }
        if let Some(verb) = self.command.find_subcommand(word) {
            self.command = verb;
            self.path.push(verb.get_name());
            return;
        }
        if let Some(arg) = self.next_positional() {
            self.given.push((arg.get_id().as_str(), word.to_owned()));
        }
        self.positional += 1;
    }

    /// Returns the argument of a flag. For several short flags in one word, returns the last.
    fn flag(&self, name: &str) -> Option<&'a Arg> {
        let mut all = self.command.get_arguments();
        match name.strip_prefix("--") {
            Some(long) => all.find(|arg| {
                let names = arg.get_long_and_visible_aliases().unwrap_or_default();
                names.contains(&long)
            }),
            None => {
                let last = name.chars().last()?;
                all.find(|arg| arg.get_short() == Some(last))
            }
        }
    }

    /// Returns the next positional argument. The last one may accept any number of words.
    fn next_positional(&self) -> Option<&'a Arg> {
        let mut all = self.command.get_positionals();
        let last = self.command.get_positionals().last()?;
        let several = last.get_num_args().is_some_and(|count| count.max_values() > 1);
        all.nth(self.positional).or_else(|| several.then_some(last))
    }

    fn wants(&self, typed: &str) -> Wants<'a> {
        if let Some(arg) = self.open {
            return Wants::Value { arg, begins: 0 };
        }
        if !self.plain && typed.starts_with('-') {
            let valued = typed.split_once('=').and_then(|(name, _)| self.flag(name));
            return match valued {
                Some(arg) => Wants::Value { arg, begins: typed.find('=').map_or(0, |at| at + 1) },
                None => Wants::Flags,
            };
        }
        match (self.command.has_subcommands(), self.next_positional()) {
            (true, _) => Wants::Verbs,
            (false, Some(arg)) => Wants::Value { arg, begins: 0 },
            (false, None) => Wants::Nothing,
        }
    }

    /// Returns the value that is given for an argument.
    pub(super) fn value(&self, id: &str) -> Option<&str> {
        let found = self.given.iter().find(|(known, _)| *known == id);
        found.map(|(_, value)| value.as_str())
    }
}

fn needs_value(arg: &Arg) -> bool {
    let least = arg.get_num_args().map_or(1, |count| count.min_values());
    arg.get_action().takes_values() && least > 0
}

fn verbs(command: &Command) -> Words {
    let shown = command.get_subcommands().filter(|verb| !verb.is_hide_set());
    let about = |verb: &Command| verb.get_about().map(ToString::to_string).unwrap_or_default();
    shown.map(|verb| (verb.get_name().to_owned(), about(verb))).collect()
}

/// Returns the flags that can still be given.
fn flags(spot: &Spot) -> Words {
    let may = |arg: &&Arg| {
        let again = matches!(arg.get_action(), clap::ArgAction::Append);
        !arg.is_hide_set() && (again || spot.value(arg.get_id().as_str()).is_none())
    };
    let word = |arg: &Arg| {
        let about = arg.get_help().map(ToString::to_string).unwrap_or_default();
        Some((format!("--{}", arg.get_long()?), about))
    };
    spot.command.get_arguments().filter(may).filter_map(word).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is wanted after some words: `verbs`, `flags`, or the argument and what it is called.
    fn wanted(line: &str) -> String {
        let mut root = Cli::command();
        root.build();
        let mut words: Vec<&str> = line.split(' ').collect();
        let typed = words.pop().unwrap_or_default();
        match Spot::after(&root, &words).wants(typed) {
            Wants::Verbs => "verbs".into(),
            Wants::Flags => "flags".into(),
            Wants::Value { arg, begins } => format!("{}@{begins}", arg.get_id()),
            Wants::Nothing => "nothing".into(),
        }
    }

    #[test]
    fn every_place_is_known() {
        for (line, place) in [
            ("", "verbs"),
            ("st", "verbs"),
            ("logs ", "target@0"),
            ("logs latest ", "step@0"),
            ("logs latest Build ", "nothing"),
            ("logs -f latest ", "step@0"),
            ("logs --attempt ", "attempt@0"),
            ("logs --attempt 2 ", "target@0"),
            ("logs --attempt=2 ", "target@0"),
            ("logs --", "flags"),
            ("approve latest --step ", "step@0"),
            ("approve latest --node ", "step@0"),
            ("approve latest --step=a", "step@7"),
            ("--state-dir elsewhere logs ", "target@0"),
            ("queue ", "verbs"),
            ("queue pause ", "agent@0"),
            ("validate a.yaml b", "workflows@0"),
            ("enqueue qa -- -", "text@0"),
            ("run --archive-processed ", "workflow@0"),
            ("nothing-of-ours ", "verbs"),
        ] {
            assert_eq!(wanted(line), place, "{line}");
        }
    }
}
