//! The prompt or command of a step, as its author wrote it.

use super::Asked;
use crate::template::{Hole, Missing, Scope, Template};
use crate::view::excerpt::{Excerpt, Room};
use crate::workflow::plan::{Action, Code, ShellText, SpellSource, Step, Words};
use serde_json::Value;
use std::borrow::Cow;

/// A scope that replaces every placeholder by itself.
struct AsWritten;

impl Scope for AsWritten {
    fn look_up(&self, hole: &Hole) -> Result<Cow<'_, Value>, Missing> {
        Ok(Cow::Owned(Value::String(format!("${{{}}}", hole.raw))))
    }
}

fn text(template: &Template) -> String {
    template.render(&AsWritten).unwrap_or_default()
}

/// Returns the prompt or command before execution; `None` for loops and merges.
pub(super) fn as_written(step: &Step) -> Option<Asked> {
    let (what, text) = match &step.action {
        Action::Exec { argv } => {
            let words: Vec<String> = argv.iter().map(text).collect();
            ("command", words.iter().map(|word| shown(word)).collect::<Vec<_>>().join(" "))
        }
        Action::Ask { .. } => {
            let file = step.input_file.as_ref().map(text)?;
            ("prompt", format!("the file {file}"))
        }
        Action::Prompt(prompt) => match &prompt.words {
            Words::Inline(words) => ("prompt", words.source()),
            Words::Command(command) => ("prompt", format!("the command file {}", command.name)),
            Words::Spell(spell) => match &spell.source {
                SpellSource::Named(name) => ("prompt", format!("the spell {name}")),
                SpellSource::Inline(spell) => ("prompt", spell.text().to_owned()),
            },
        },
        Action::Shell { script: ShellText::Node(script) } => ("script", script.source()),
        Action::Shell { script: ShellText::Spell(script) } => ("script", script.text().to_owned()),
        Action::Script(script) => match &script.code {
            Code::Inline(code) => ("script", code.source()),
            Code::Named(name) => ("script", format!("the script {name}")),
        },
        Action::Gate(gate) => ("question", gate.message.source()),
        Action::Wait(wait) => ("files", text(&wait.glob)),
        Action::Cancel { reason } => ("reason", reason.source()),
        Action::Each(_) | Action::Rounds(_) | Action::Merge { .. } => return None,
    };
    Some(Asked { what, as_sent: false, text: Excerpt::of(&text, Room::USUAL) })
}

/// Quotes a word of a command line if a shell needs it.
fn shown(word: &str) -> String {
    let plain = |c: char| c.is_alphanumeric() || "-_./=:,+@%${}".contains(c);
    match !word.is_empty() && word.chars().all(plain) {
        true => word.to_owned(),
        false => format!("'{}'", word.replace('\'', "'\\''")),
    }
}
