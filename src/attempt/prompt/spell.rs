//! From the name of a spell to a prompt: the spell search path, and the system prompt.
//!
//! A spell is looked up in the directories of [`SPELLS`], in order, then among the built-in spells.
//! Text with a line break is itself a spell. The rendered spell is inserted into a system prompt,
//! which informs the agent about its environment and the form of its answer.
//!
//! **Invariant:** a name that could leave its directory is never read.

use std::cell::RefCell;

use serde_json::{Map, Value};

use crate::base::ids::name_fault;
use crate::template::spell::{Fault, Spell};
use crate::yaml::problem::nearest;

/// Spell directories in a workspace; the first that has the spell wins.
pub(crate) const SPELLS: [&str; 2] = [".coven/spells", "workflows/spells"];
/// File that replaces the built-in system prompt, if it exists.
pub(crate) const SYSTEM_PROMPT: &str = ".coven/system-prompt.md";
/// Name of a spell that is written in the place of its use.
pub(crate) const INLINE: &str = "inline spell";
/// The variable of a system prompt that holds the rendered spell.
pub(crate) const SLOT: &str = "spell_content";

const BUILT_IN: [(&str, &str); 8] = [
    ("analyse-spec", include_str!("../../../workflows/spells/analyse-spec.md")),
    ("apply-fixes", include_str!("../../../workflows/spells/apply-fixes.md")),
    ("fix", include_str!("../../../workflows/spells/fix.md")),
    ("fix-tests", include_str!("../../../workflows/spells/fix-tests.md")),
    ("implement", include_str!("../../../workflows/spells/implement.md")),
    ("review", include_str!("../../../workflows/spells/review.md")),
    ("split-into-beads", include_str!("../../../workflows/spells/split-into-beads.md")),
    ("triage-findings", include_str!("../../../workflows/spells/triage-findings.md")),
];
/// Name of the built-in system prompt.
const BUILT_IN_FILE: &str = "built-in system prompt";
pub(crate) const BUILT_IN_SYSTEM_PROMPT: &str = include_str!("../../../config/system-prompt.md");

/// Reads a file of the workspace by its path. Returns `None` if it does not exist, or the reason
/// why it cannot be read.
pub(crate) type Read<'r> = &'r dyn Fn(&str) -> Result<Option<String>, String>;

/// A spell that was found: its name for messages, and its text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Found {
    pub file: String,
    pub text: String,
}

/// The reason why a spell cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Lost {
    #[error("`{name}` is no name of a spell: {reason}")]
    BadName { name: String, reason: &'static str },
    #[error(
        "no spell is called `{name}`: there is neither `{}/{name}.md` nor `{}/{name}.md`, \
         and the built-in ones are {}{}", SPELLS[0], SPELLS[1], built_in_names(), meant(name)
    )]
    Unknown { name: String },
    #[error("cannot read `{file}`: {reason}")]
    Unreadable { file: String, reason: String },
    #[error("{which} came to no text: the agent would have no task")]
    Nothing { which: String },
}

/// Returns the rendered spell, or an error if it is blank: the agent would have no task.
pub(crate) fn something(said: String, which: &str) -> Result<String, Lost> {
    match said.trim().is_empty() {
        false => Ok(said),
        true => Err(Lost::Nothing { which: which.to_owned() }),
    }
}

/// The reason why there is no prompt.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Refusal {
    #[error(transparent)]
    Lost(#[from] Lost),
    #[error(transparent)]
    Fault(#[from] Fault),
}

/// Returns the names of the built-in spells.
pub(crate) fn built_in() -> impl Iterator<Item = &'static str> {
    BUILT_IN.iter().map(|(name, _)| *name)
}

fn built_in_names() -> String {
    BUILT_IN.map(|(name, _)| format!("`{name}`")).join(", ")
}

/// Returns a hint with the built-in spell that was probably meant, or an empty text.
fn meant(name: &str) -> String {
    let near = nearest(name, built_in());
    near.map_or_else(String::new, |near| format!("; did you mean `{near}`?"))
}

/// Returns the paths at which a spell of this name is searched.
pub(crate) fn places(name: &str) -> impl Iterator<Item = String> {
    SPELLS.iter().map(move |directory| format!("{directory}/{name}.md"))
}

/// Resolves the value of a `spell` field.
pub(crate) fn lookup(spell: &str, read: Read) -> Result<Found, Lost> {
    if spell.contains('\n') {
        return Ok(Found { file: INLINE.into(), text: spell.to_owned() });
    }
    // Users may write the file extension too.
    let name = spell.strip_suffix(".md").unwrap_or(spell);
    if let Some(reason) = name_fault(name) {
        return Err(Lost::BadName { name: spell.to_owned(), reason });
    }
    for file in places(name) {
        match read(&file) {
            Ok(Some(text)) => return Ok(Found { file, text }),
            Ok(None) => {}
            Err(reason) => return Err(Lost::Unreadable { file, reason }),
        }
    }
    match BUILT_IN.iter().find(|(known, _)| *known == name) {
        Some((_, text)) => {
            Ok(Found { file: format!("built-in spell {name}"), text: (*text).to_owned() })
        }
        None => Err(Lost::Unknown { name: name.to_owned() }),
    }
}

/// Renders a spell that was found. Includes are looked up by name.
pub(crate) fn render(found: &Found, data: &Value, read: Read) -> Result<String, Fault> {
    let spell = Spell::parse(&found.file, &found.text)?;
    with_includes(read, |includes| spell.render(data, includes))
}

/// Calls `work` with a function that resolves includes. If an include cannot be found, the returned
/// fault contains the reason.
pub(crate) fn with_includes<T>(
    read: Read,
    work: impl FnOnce(&dyn Fn(&str) -> Option<(String, String)>) -> Result<T, Fault>,
) -> Result<T, Fault> {
    let lost = RefCell::new(None);
    let includes = |name: &str| match lookup(name, read) {
        Ok(Found { file, text }) => Some((file, text)),
        Err(reason) => {
            lost.replace(Some(reason));
            None
        }
    };
    // Rendering stops at the first missing include, so the recorded reason belongs to this fault.
    let result = work(&includes);
    result.map_err(|fault| match lost.take() {
        Some(lost) => Fault { message: lost.to_string(), ..fault },
        None => fault,
    })
}

/// The template around spells.
#[derive(Clone, Debug)]
pub(crate) struct SystemPrompt(Spell);

/// Placeholder text to test whether a template writes a value. It is one word, so that it survives
/// indentation and quoting.
pub(crate) const PROBE: &str = "spellcontentgoeshere";
/// Maximum depth at which the includes of a system prompt are searched.
const DEPTH: usize = 5;

impl SystemPrompt {
    /// Parses a system prompt, which must have a place for the spell, in itself or in an include.
    pub(crate) fn parse(found: &Found, read: Read) -> Result<SystemPrompt, Fault> {
        let spell = Spell::parse(&found.file, &found.text)?;
        match writes_slot(&spell, read, DEPTH) {
            true => Ok(SystemPrompt(spell)),
            false => Err(without_slot(&spell, &found.file)),
        }
    }

    /// Returns the system prompt of the workspace, or the built-in one if there is none.
    pub(crate) fn find(read: Read) -> Result<SystemPrompt, Refusal> {
        let found = match read(SYSTEM_PROMPT) {
            Ok(Some(text)) => Found { file: SYSTEM_PROMPT.into(), text },
            Ok(None) => {
                let text = BUILT_IN_SYSTEM_PROMPT.to_owned();
                Found { file: BUILT_IN_FILE.into(), text }
            }
            Err(reason) => {
                return Err(Lost::Unreadable { file: SYSTEM_PROMPT.into(), reason }.into());
            }
        };
        Ok(SystemPrompt::parse(&found, read)?)
    }

    /// Returns the variables of the system prompt for a step: `data`, and its own variables, which
    /// `data` cannot set. Only the built-in prompt reserves `agent` and `agents`; another prompt
    /// may give these names any meaning.
    pub(crate) fn knows(&self, data: &Value, agent: Option<&str>, contract: bool) -> Value {
        let built_in = self.0.file() == BUILT_IN_FILE;
        let ours: &[&str] = match built_in {
            true => &["no_contract", "may_be_plain", "agent", "agents"],
            false => &["no_contract", "may_be_plain"],
        };
        let mut data = data.as_object().cloned().unwrap_or_default();
        data.retain(|key, _| !ours.contains(&key.replace('-', "_").as_str()));
        if let Some(agent) = agent.filter(|_| built_in) {
            data.insert("agent".into(), agent.into());
        }
        if !contract {
            data.insert("no_contract".into(), true.into());
        }
        Value::Object(data)
    }

    pub(crate) fn spell(&self) -> &Spell {
        &self.0
    }

    /// Returns the whole prompt: the system prompt with the rendered spell inserted. Returns an
    /// error if rendering does not reach the place for the spell.
    pub(crate) fn wrap(&self, spell: &str, data: &Value, read: Read) -> Result<String, Fault> {
        let mut data = data.as_object().cloned().unwrap_or_else(Map::new);
        let mut around = |said: &str| {
            data.insert(SLOT.to_owned(), said.into());
            let data = Value::Object(data.clone());
            with_includes(read, |includes| self.0.render(&data, includes))
        };
        let whole = around(spell)?;
        match around(PROBE)?.to_ascii_lowercase().contains(PROBE) {
            true => Ok(whole),
            false => Err(without_slot(&self.0, self.0.file())),
        }
    }
}

/// Returns true if a spell or one of its includes may write the slot.
fn writes_slot(spell: &Spell, read: Read, depth: usize) -> bool {
    let included = |(name, _): (Option<String>, Fault)| {
        let found = lookup(&name?, read).ok()?;
        Spell::parse(&found.file, &found.text).ok()
    };
    spell.writes(SLOT)
        || depth > 0
            && (spell.included().into_iter().filter_map(included))
                .any(|spell| writes_slot(&spell, read, depth - 1))
}

fn without_slot(spell: &Spell, file: &str) -> Fault {
    let message = format!("the system prompt does not write `{{{{.{SLOT}}}}}`");
    let hint = "the rendered spell takes its place; without it no agent would see its task";
    Fault::of_whole(file, spell.text(), message, hint)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// A workspace of a few files.
    fn files(path: &str) -> Result<Option<String>, String> {
        match path {
            ".coven/spells/both.md" => Ok(Some("coven {{.x}}".into())),
            "workflows/spells/both.md" => Ok(Some("workflows".into())),
            "workflows/spells/second.md" => Ok(Some("second {{include \"both.md\"}}".into())),
            ".coven/spells/review.md" => Ok(Some("mine".into())),
            ".coven/spells/broken.md" => Err("it is not UTF-8 text".into()),
            ".coven/spells/climbs.md" => Ok(Some("\n{{include \"../x\"}}".into())),
            ".coven/spells/asks.md" => Ok(Some("{{include \"broken\"}}".into())),
            _ => Ok(None),
        }
    }

    fn nothing(_: &str) -> Result<Option<String>, String> {
        Ok(None)
    }

    #[test]
    fn the_first_place_that_has_a_spell_wins() {
        for (name, file) in [
            ("both", ".coven/spells/both.md"),
            ("both.md", ".coven/spells/both.md"),
            ("second", "workflows/spells/second.md"),
            ("review", ".coven/spells/review.md"),
            ("implement", "built-in spell implement"),
            ("one\ntwo", "inline spell"),
        ] {
            assert_eq!(lookup(name, &files).unwrap().file, file, "{name}");
        }
        assert_eq!(lookup("one\n{{.x}}", &files).unwrap().text, "one\n{{.x}}");
    }

    #[test]
    fn what_is_no_spell_is_said() {
        for (name, part) in [
            ("nobody", "neither `.coven/spells/nobody.md` nor `workflows/spells/nobody.md`"),
            ("nobody", "`fix`, `fix-tests`, `implement`, `review`"),
            ("", "it is empty"),
            ("../both", "must begin with"),
            ("a/b", "only letters"),
            ("a..b", "`..`"),
            ("broken", "cannot read `.coven/spells/broken.md`: it is not UTF-8 text"),
        ] {
            let lost = lookup(name, &files).unwrap_err().to_string();
            assert!(lost.contains(part), "{name}: {lost}");
        }
    }

    #[test]
    fn includes_are_looked_up_and_their_trouble_is_told_in_place() {
        let render = |name: &str| {
            let found = lookup(name, &files).unwrap();
            render(&found, &json!({ "x": 1 }), &files)
        };
        assert_eq!(render("second").unwrap(), "second coven 1");
        let fault = render("climbs").unwrap_err();
        assert_eq!((fault.line, fault.column), (2, 3));
        assert!(fault.message.contains("`../x` is no name of a spell"), "{fault}");
        let fault = render("asks").unwrap_err();
        assert!(fault.message.contains("not UTF-8"), "{fault}");
    }

    #[test]
    fn the_built_in_spells_render_with_little_and_with_much() {
        let much = json!({
            "bead": { "id": "b-1", "title": "Title", "body": "Body", "labels": ["l1", "l2"] },
            "previous": { "success": false, "failed": true, "output": "boom\nbang\n" },
            "instructions": "Mind the gap.",
        });
        for (name, _) in BUILT_IN {
            let found = lookup(name, &nothing).unwrap();
            for data in [json!({}), json!({ "bead": {} }), much.clone()] {
                let text = render(&found, &data, &nothing).unwrap();
                assert!(text.starts_with("# "), "{name}: {text}");
                assert!(!text.contains("\n\n\n") && !text.contains("{{"), "{name}: {text}");
            }
            let text = render(&found, &much, &nothing).unwrap();
            assert!(text.contains("Title") && text.contains("Mind the gap."), "{name}: {text}");
        }
    }

    #[test]
    fn the_built_in_system_prompt_names_what_it_knows() {
        let prompt = SystemPrompt::find(&nothing).unwrap();
        let data = json!({
            "workflow": { "name": "ship", "run_id": "r-1" }, "step": { "name": "build" },
            "bead": { "id": "b-1", "title": "Fix login" }, "attempt": 2,
        });
        let text = prompt.wrap("Do {{.this}}.", &data, &nothing).unwrap();
        for part in [
            "You are an agent in a team that works in this directory.\n\
             You work on step `build` of the workflow `ship` (run r-1).\n\
             The work item is `b-1`: Fix login.\nThis is attempt 2;",
            "\n\nDo {{.this}}.\n\n",
            "```json\n",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
        assert!(!text.contains("next_actions"), "{text}");
    }

    #[test]
    fn the_built_in_system_prompt_needs_nothing() {
        let prompt = SystemPrompt::find(&nothing).unwrap();
        let text = prompt.wrap("Do.", &json!({}), &nothing).unwrap();
        let opening = "You are an agent in a team that works in this directory.\nNobody can";
        assert!(text.starts_with(opening) && text.ends_with("`false`.\n"), "{text}");
        assert!(!text.contains("\n\n\n") && !text.contains("attempt"), "{text}");
        let data = json!({ "agent": "qa", "agents": "`engineer`", "attempt": 1 });
        let text = prompt.wrap("Do.", &data, &nothing).unwrap();
        assert!(text.starts_with("You are the agent `qa` of a team"), "{text}");
        assert!(text.ends_with("You may hand work to: `engineer`.\n"), "{text}");
    }

    #[test]
    fn a_workspace_has_its_own_system_prompt() {
        let own = |text: &'static str| {
            move |path: &str| match path {
                SYSTEM_PROMPT => Ok(Some(text.to_owned())),
                path => files(path),
            }
        };
        let read = own("<{{.spell_content}}> {{.x}} {{include \"both\"}}");
        let prompt = SystemPrompt::find(&read).unwrap();
        let text = prompt.wrap("{{.x}}", &json!({ "x": 1, "spell_content": "no" }), &read);
        assert_eq!(text.unwrap(), "<{{.x}}> 1 coven 1");
        for without in ["text", "{{if .spell_content}}x{{end}}", "{{.spell_contents | default 1}}"]
        {
            let refusal = SystemPrompt::find(&own(without)).unwrap_err().to_string();
            let wanted = ".coven/system-prompt.md:1:1: the system prompt does not write";
            assert!(refusal.contains(wanted), "{refusal}");
        }
        for unreached in [
            "{{if false}}{{.spell_content}}{{end}}",
            "{{.spell_content | len}}",
            "{{range .none | default (list)}}{{.spell_content}}{{end}}",
        ] {
            let Ok(prompt) = SystemPrompt::find(&own(unreached)) else { continue };
            let fault = prompt.wrap("Do.", &json!({}), &nothing).unwrap_err().to_string();
            assert!(fault.contains("does not write `{{.spell_content}}`"), "{unreached}: {fault}");
        }
        for (reached, wanted) in [
            ("{{include \"slot\"}}", "Task: Do."),
            ("{{.spell_content | indent 2 | upper}}", "  DO."),
            ("{{with .spell_content}}{{.}}{{end}}{{if .no}}{{.spell_content}}{{end}}", "Do."),
        ] {
            let read = move |path: &str| match path {
                ".coven/spells/slot.md" => Ok(Some("Task: {{.spell_content}}".into())),
                path => own(reached)(path),
            };
            let prompt = SystemPrompt::find(&read).unwrap();
            assert_eq!(prompt.wrap("Do.", &json!({}), &read).unwrap(), wanted, "{reached}");
        }
        let refusal = SystemPrompt::find(&own("{{if}}")).unwrap_err();
        assert!(matches!(refusal, Refusal::Fault(_)), "{refusal}");
    }
}
