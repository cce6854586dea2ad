//! The shapes of what people write: which keys a map may have, what stands under each, and a
//! sentence on it for their editors.
//!
//! A loader knows the keys of a map from its [`Table`] and from nowhere else, and the published
//! schemas ([`schema`]) are drawn from the same tables.
//!
//! **Invariant:** what a loader accepts, the schema accepts; a type that a loader refuses, the
//! schema refuses. Keys cannot differ; for the rest every field is tried with values of every
//! kind by a test.

pub mod documents;
pub mod grimoire;
pub mod nodes;
pub mod schema;
pub mod settings;
pub mod steps;
pub mod task;
#[cfg(test)]
mod tests;

use super::plan::Version;

/// A map with known keys.
#[derive(Debug)]
pub struct Table {
    /// What it is called in a schema.
    pub name: &'static str,
    pub about: &'static str,
    pub fields: &'static [Field],
    /// More fields, of maps that have those of several tables.
    pub also: &'static [&'static [Field]],
    pub rule: Rule,
    /// What goes with a key.
    pub needs: &'static [(&'static str, Need)],
}

/// What must stand beside a key.
#[derive(Clone, Copy, Debug)]
pub enum Need {
    /// This key.
    Key(&'static str),
    /// This key, with this word.
    Word(&'static str, &'static str),
    /// This key is false, or not there.
    Off(&'static str),
}

/// What a map must have beyond fields of the right shape.
#[derive(Clone, Copy, Debug)]
pub enum Rule {
    None,
    /// One of these keys, and no two of them.
    OneOf(&'static [&'static str]),
    /// One of these keys, and no two of them but those two.
    OneOfBeside {
        keys: &'static [&'static str],
        first: &'static str,
        beside: &'static str,
    },
    /// At least one field.
    Some,
    /// It may be written with nothing in it.
    Nullable,
    /// Keys that are not known are additions.
    Open,
    /// It is one of these tables, as its field `type` says.
    ByType(&'static [(&'static str, &'static Table)]),
}

/// A key, the version of the `steps:` language that brought it, and what stands under it.
#[derive(Debug)]
pub struct Field {
    pub name: &'static str,
    pub since: Version,
    pub required: bool,
    pub shape: Shape,
    pub about: &'static str,
}

#[derive(Debug)]
pub enum Shape {
    Any,
    Text,
    /// Text that is not blank.
    Filled,
    /// Text that can be part of a path.
    Name,
    /// Text of this form, a regular expression.
    Like(&'static str),
    OneOf(&'static [&'static str]),
    Bool,
    /// A whole number within bounds.
    Integer(u64, u64),
    /// A number from the first, which itself is meant if the flag says so, to the second.
    Number {
        least: f64,
        itself: bool,
        most: f64,
    },
    /// A length of time such as `15m`, or `none` where the flag says so.
    Duration {
        or_none: bool,
    },
    List(&'static Shape),
    /// A list of one or more.
    Some(&'static Shape),
    /// A command line: a list whose first word is not empty.
    Argv(&'static Shape),
    /// A map from names to what has this shape.
    Each(&'static Shape),
    /// The same with names of this form, a regular expression.
    Keyed(&'static str, &'static Shape),
    Table(&'static Table),
    /// Text, number or boolean.
    Scalar,
    Either(&'static [Shape]),
    /// It, or nothing.
    Maybe(&'static Shape),
}

impl Table {
    pub const fn new(name: &'static str, about: &'static str, fields: &'static [Field]) -> Table {
        Table { name, about, fields, also: &[], rule: Rule::None, needs: &[] }
    }

    pub const fn rule(self, rule: Rule) -> Table {
        Table { rule, ..self }
    }

    pub const fn needs(self, needs: &'static [(&'static str, Need)]) -> Table {
        Table { needs, ..self }
    }

    pub const fn also(self, also: &'static [&'static [Field]]) -> Table {
        Table { also, ..self }
    }

    pub fn all(&self) -> impl Iterator<Item = &'static Field> {
        self.fields.iter().chain(self.also.iter().copied().flatten())
    }

    pub fn field(&self, name: &str) -> Option<&'static Field> {
        self.all().find(|field| field.name == name)
    }

    pub fn names(&self) -> impl Iterator<Item = &'static str> {
        self.all().map(|field| field.name)
    }
}

/// A field that may be left out and that every version knows.
const fn field(name: &'static str, shape: Shape, about: &'static str) -> Field {
    Field { name, since: Version::V1_1, required: false, shape, about }
}

impl Field {
    const fn since(self, since: Version) -> Field {
        Field { since, ..self }
    }

    const fn required(self) -> Field {
        Field { required: true, ..self }
    }
}

/// What a name may be, as [`crate::ids::name_fault`] has it.
const NAME: &str = "^(?!.*\\.\\.)[A-Za-z0-9][A-Za-z0-9._-]{0,127}$";

const fn seconds(zero: bool) -> Shape {
    Shape::Number { least: 0.0, itself: zero, most: 3.2e9 }
}

const MILLIS: Shape = Shape::Number { least: 0.0, itself: false, most: 3.2e12 };

/// The words of a choice.
const fn words<const N: usize, T: Copy>(all: &[(&'static str, T); N]) -> [&'static str; N] {
    let mut words = [""; N];
    let mut i = 0;
    while i < N {
        words[i] = all[i].0;
        i += 1;
    }
    words
}
