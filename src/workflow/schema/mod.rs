//! The shapes of the files that users write: the keys of each map, the type of each value, and a
//! sentence about it for editors.
//!
//! A loader takes the keys of a map from its [`Table`] and from no other source. The published
//! schemas ([`schema`]) are generated from the same tables.
//!
//! **Invariant:** the schema accepts every value that a loader accepts, and rejects every type that
//! a loader rejects. Keys cannot differ; for the rest, a test tries every field with values of
//! every kind.

pub(crate) mod documents;
pub(crate) mod grimoire;
pub(crate) mod nodes;
pub(crate) mod render;
pub(crate) mod settings;
pub(crate) mod steps;
pub(crate) mod task;
#[cfg(test)]
mod tests;

use super::plan::Version;

/// A map with known keys.
#[derive(Debug)]
pub(crate) struct Table {
    /// Name of the definition in a schema.
    pub name: &'static str,
    pub about: &'static str,
    pub fields: &'static [Field],
    /// More fields, for a map that combines several tables.
    pub also: &'static [&'static [Field]],
    pub rule: Rule,
    /// Conditions that a key imposes on other keys.
    pub needs: &'static [(&'static str, Need)],
}

/// A condition that must hold if a key is present.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Need {
    /// This key is present.
    Key(&'static str),
    /// This key is present and has this value.
    Word(&'static str, &'static str),
    /// This key is false or absent.
    Off(&'static str),
}

/// A condition on a map in addition to the shapes of its fields.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Rule {
    None,
    /// Exactly one of these keys.
    OneOf(&'static [&'static str]),
    /// Exactly one of `keys`, except that the two keys in the other fields may appear together.
    OneOfBeside {
        keys: &'static [&'static str],
        first: &'static str,
        beside: &'static str,
    },
    /// At least one field.
    Some,
    /// The value may be null.
    Nullable,
    /// Unknown keys are allowed.
    Open,
    /// The map matches one of these tables, selected by its field `type`.
    ByType(&'static [(&'static str, &'static Table)]),
}

/// A key, the version of the `steps:` dialect that introduced it, and the shape of its value.
#[derive(Debug)]
pub(crate) struct Field {
    pub name: &'static str,
    pub since: Version,
    pub required: bool,
    pub shape: Shape,
    pub about: &'static str,
}

#[derive(Debug)]
pub(crate) enum Shape {
    Any,
    Text,
    /// Text that is not blank.
    Filled,
    /// Text that can be part of a path.
    Name,
    /// Text that matches this regular expression.
    Like(&'static str),
    OneOf(&'static [&'static str]),
    Bool,
    /// A whole number within bounds.
    Integer(u64, u64),
    /// A number up to `most` and above `least`, or equal to `least` if `itself` is set.
    Number {
        least: f64,
        itself: bool,
        most: f64,
    },
    /// A duration such as `15m`, or `none` if `or_none` is set.
    Duration {
        or_none: bool,
    },
    List(&'static Shape),
    /// A list of one or more.
    Some(&'static Shape),
    /// A command line: a list whose first word is not empty.
    Argv(&'static Shape),
    /// A map from names to values of this shape.
    Each(&'static Shape),
    /// The same, with names that match this regular expression.
    Keyed(&'static str, &'static Shape),
    Table(&'static Table),
    /// Text, number or boolean.
    Scalar,
    Either(&'static [Shape]),
    /// A value of this shape, or null.
    Maybe(&'static Shape),
}

impl Table {
    pub(crate) const fn new(
        name: &'static str,
        about: &'static str,
        fields: &'static [Field],
    ) -> Table {
        Table { name, about, fields, also: &[], rule: Rule::None, needs: &[] }
    }

    pub(crate) const fn rule(self, rule: Rule) -> Table {
        Table { rule, ..self }
    }

    pub(crate) const fn needs(self, needs: &'static [(&'static str, Need)]) -> Table {
        Table { needs, ..self }
    }

    pub(crate) const fn also(self, also: &'static [&'static [Field]]) -> Table {
        Table { also, ..self }
    }

    pub(crate) fn all(&self) -> impl Iterator<Item = &'static Field> {
        self.fields.iter().chain(self.also.iter().copied().flatten())
    }

    pub(crate) fn field(&self, name: &str) -> Option<&'static Field> {
        self.all().find(|field| field.name == name)
    }

    pub(crate) fn names(&self) -> impl Iterator<Item = &'static str> {
        self.all().map(|field| field.name)
    }
}

/// Returns an optional field that every version supports.
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

/// Regular expression of a valid name, equivalent to [`crate::base::ids::name_fault`].
const NAME: &str = "^(?!.*\\.\\.)[A-Za-z0-9][A-Za-z0-9._-]{0,127}$";

const fn seconds(zero: bool) -> Shape {
    Shape::Number { least: 0.0, itself: zero, most: 3.2e9 }
}

const MILLIS: Shape = Shape::Number { least: 0.0, itself: false, most: 3.2e12 };

/// Returns the keywords of a choice.
const fn words<const N: usize, T: Copy>(all: &[(&'static str, T); N]) -> [&'static str; N] {
    let mut words = [""; N];
    let mut i = 0;
    while i < N {
        words[i] = all[i].0;
        i += 1;
    }
    words
}
