//! Names in a workflow that only the disk can resolve. The reader collects them, so that they are
//! known even for a workflow that cannot run.

use super::plan::{Part, StepBead};
use crate::template::spell::Spell;
use crate::yaml::problem::Place;

/// Everything to check on disk before a workflow may run.
#[derive(Clone, Debug, Default)]
pub(crate) struct Named {
    /// Every path in the text that has no variable.
    pub paths: Vec<(String, Place)>,
    pub spells: Vec<Mention>,
    /// Other files that the workflow consists of, each once.
    pub parts: Vec<Part>,
    /// The beads of steps.
    pub beads: Vec<StepBead>,
}

impl Named {
    /// Adds a file that the workflow consists of. Keeps only the first mention.
    pub(crate) fn part(&mut self, part: Part) {
        let same = |other: &Part| other.kind == part.kind && other.name == part.name;
        if !self.parts.iter().any(same) {
            self.parts.push(part);
        }
    }
}

/// A place that names a spell, or a written spell that includes others.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Mention {
    pub what: Mentioned,
    pub place: Place,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Mentioned {
    Spell(String),
    /// A spell written in the workflow itself.
    Written(Spell),
    /// The system prompt around spells: the default one, or a file.
    SystemPrompt(Option<String>),
}
