//! Selects the grimoire for a bead.

use std::collections::BTreeMap;
use std::path::Path;

use super::failure::Failure;
use super::grimoires;
use super::project::Project;
use super::workflow_file::find_grimoire;
use crate::base::ids::name_fault;
use crate::disk::fs;
use crate::workflow::bead::Bead;
use crate::workflow::{Place, Problem};
use crate::workspace::dangling;
use crate::yaml::without_bom;

/// Returns the file of the grimoire for a bead: from the bead's label, else from the workspace's
/// mapping for its type, else the default. The author of a bead is not trusted, so a bead can name
/// a grimoire but never a file.
pub(crate) fn grimoire_for(project: &Project, bead: &Bead) -> Result<String, Failure> {
    let (name, by) = named_for(project, bead)?;
    if let Some(fault) = name_fault(&name) {
        let message = format!("`{name}` cannot name a grimoire: {fault}");
        return Err(Failure::invalid(format!("{message}; {by} asks for it")));
    }
    match find_grimoire(project, &name) {
        Some(Ok((file, _))) => Ok(file),
        Some(Err(error)) => {
            Err(Failure::invalid(format!("cannot read grimoire `{name}`: {error}")))
        }
        None => {
            let message = format!("there is no grimoire `{name}`, which {by} asks for");
            let built_in: Vec<_> = grimoires::built_in().map(|name| format!("`{name}`")).collect();
            let hint = format!(
                "it would lie in `{}/{name}.yaml`; built in are {}",
                grimoires::GRIMOIRES,
                built_in.join(", ")
            );
            Err(Failure::invalid(message).hint(hint))
        }
    }
}

/// Returns the name of a bead's grimoire and the source of that choice, for messages.
fn named_for(project: &Project, bead: &Bead) -> Result<(String, String), Failure> {
    let mut labels = bead.labels.iter().filter_map(|label| label.strip_prefix("grimoire:"));
    if let Some(name) = labels.next() {
        if let Some(other) = labels.find(|other| *other != name) {
            let id = &bead.id;
            let message = format!("labels of bead `{id}` ask for both `{name}` and `{other}`");
            return Err(Failure::invalid(message).hint("leave one `grimoire:` label"));
        }
        return Ok((name.to_owned(), format!("a label of bead `{}`", bead.id)));
    }
    let path = project.workspace.join(MAPPING);
    let by = format!("`{MAPPING}`");
    let text = match fs::read_to_string(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            return match dangling(&project.workspace, Path::new(MAPPING)) {
                None => Ok((USUAL.into(), by)),
                Some(link) => {
                    let message =
                        format!("`{}` is a symlink to what does not exist", link.display());
                    Err(Failure::invalid(message))
                }
            };
        }
        Err(error) => return Err(Failure::invalid(format!("cannot read `{MAPPING}`: {error}"))),
    };
    let text = without_bom(&text);
    // Require an object: serde alone would also read the struct from a list.
    let mapping = serde_json::from_str::<serde_json::Map<_, _>>(text);
    let mapping = mapping.and_then(|_| serde_json::from_str::<Mapping>(text));
    let mapping = mapping.map_err(|error| {
        let message = format!("`{MAPPING}` cannot be used: {error}");
        let place = Place { line: error.line().max(1), column: error.column().max(1), len: 1 };
        Failure::in_text(vec![Problem::error(message).at(place)], MAPPING, text)
    })?;
    let found = mapping.by_type.get(&bead.kind).cloned().or(mapping.default);
    Ok((found.unwrap_or_else(|| USUAL.into()), by))
}

/// File that maps the types of beads to grimoires.
const MAPPING: &str = ".coven/grimoire-mapping.json";

/// Default grimoire.
const USUAL: &str = "implement-bead";

#[derive(Default, serde::Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Mapping {
    by_type: BTreeMap<String, String>,
    default: Option<String>,
}
