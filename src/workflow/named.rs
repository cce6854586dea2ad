//! What a workflow names that only the disk can tell of. It is gathered while the workflow is read,
//! so that it is known also of one that cannot run.

use super::plan::{Part, StepBead};
use super::problem::Place;
use crate::template::spell::Spell;

/// Everything that is looked for on the disk before a workflow may run.
#[derive(Clone, Debug, Default)]
pub struct Named {
    /// Every path in the text that holds no variable.
    pub paths: Vec<(String, Place)>,
    pub spells: Vec<Mention>,
    /// Files beside the workflow that it is made of, each once.
    pub parts: Vec<Part>,
    /// The work items of steps.
    pub beads: Vec<StepBead>,
}

impl Named {
    /// Notes a file that the workflow is made of; where it is named first counts.
    pub fn part(&mut self, part: Part) {
        let same = |other: &Part| other.kind == part.kind && other.name == part.name;
        if !self.parts.iter().any(same) {
            self.parts.push(part);
        }
    }
}

/// A spell that is named somewhere, or includes others.
#[derive(Clone, Debug, PartialEq)]
pub struct Mention {
    pub what: Mentioned,
    pub place: Place,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Mentioned {
    Spell(String),
    /// One that is written in the workflow itself.
    Written(Spell),
    /// What is put around spells: the usual one, or a file.
    SystemPrompt(Option<String>),
}
