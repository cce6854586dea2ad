//! Loads a workflow with its parts: command and script files, spells, beads. Reports all problems
//! of all parts at once.

use std::path::{Path, PathBuf};

use super::Failure;
use super::common::{Loaded, Surroundings, find_workflow, open_workspace};
use super::request::{self, Kept};
use crate::attempt::prompt::spell::{self, SYSTEM_PROMPT};
use crate::attempt::spellbook::{self, Beads, Page, Shelf};
use crate::disk::fs::OnVolume as _;
use crate::run::open;
use crate::workflow::bead::ISSUES;
use crate::workflow::named::Mentioned;
use crate::workflow::{Compiled, Named, Plan, Problem, Rejected, compile_parsed};
use crate::workspace::Workspace;
use crate::yaml;
use crate::yaml::problem::located;

/// A checked workflow, which may have errors.
pub(super) struct Looked {
    /// The parsed text, or `None` if it is not YAML.
    pub document: Option<yaml::Node>,
    /// The compiled plan, or `None` if the text itself has errors.
    pub plan: Option<Plan>,
    /// Errors: those in the text first, in its order, then those in other files.
    pub errors: Vec<Problem>,
    pub warnings: Vec<Problem>,
    /// The part files and spells that could be read.
    parts: Vec<Kept>,
    spells: Vec<Page>,
    /// The beads of its steps that could be read.
    beads: Beads,
    named: Named,
}

/// Checks the text of a workflow. `name` is its file name.
pub(super) fn look_over(
    around: &Surroundings,
    workspace: &Workspace,
    name: &str,
    text: &str,
) -> Looked {
    let (document, unparsed) = match yaml::parse(text) {
        Ok(document) => (Some(document), Vec::new()),
        Err(problem) => (None, vec![problem]),
    };
    let compiled = document.as_ref().map(|read| compile_parsed(text, read, &around.config));
    let (plan, problems, named) = match compiled {
        Some(Ok(Compiled { plan, warnings, named })) => (Some(plan), warnings, named),
        Some(Err(Rejected { problems, named })) => (None, problems, named),
        None => (None, unparsed, Named::default()),
    };
    let (mut errors, mut warnings): (Vec<_>, Vec<_>) =
        problems.into_iter().partition(Problem::is_error);
    let read = |path: &str| workspace.read_text(path, around.config.input_bytes);
    let (parts, missing) = request::look_for(around, name, plan.as_ref(), &named.parts);
    let (missing, late): (Vec<_>, Vec<_>) = missing.into_iter().partition(Problem::is_error);
    warnings.extend(located(text, late));
    let shelf = Shelf { read: &read, list: &|dir| workspace.files_in(dir) };
    let (spells, lost) = spellbook::gather(&named.spells, &shelf);
    let (beads, no_beads) = request::look_for_beads(workspace, around, &named.beads);
    errors.extend(open::escapes(workspace, &named));
    errors.extend(missing.into_iter().chain(lost).chain(no_beads));
    if let Some(plan) = &plan {
        warnings.extend(request::doubtful(around, plan, &parts));
        warnings.extend(located(text, spellbook::doubtful(plan, &spells, &beads)));
    }
    errors = located(text, errors);
    errors.sort_by(|one, other| {
        let file = |problem: &Problem| problem.elsewhere.as_ref().map(|(file, _)| file.clone());
        (file(one), one.place).cmp(&(file(other), other.place))
    });
    Looked { document, plan, errors, warnings, parts, spells, beads, named }
}

impl Looked {
    /// Returns the problems of its spells' variables that no input of a run can fix.
    pub(super) fn incurable(&self, text: &str) -> Vec<Problem> {
        let plan = self.plan.as_ref();
        plan.map(|plan| located(text, spellbook::incurable(plan, &self.spells, &self.beads)))
            .unwrap_or_default()
    }
}

/// Returns the files that a workflow consists of, including missing ones, so that the caller can
/// watch them for changes. `bead` is the bead of its runs.
pub(super) fn files_of(around: &Surroundings, workflow: &Path, bead: Option<&str>) -> Vec<PathBuf> {
    let found = find_workflow(around, workflow).ok().zip(open_workspace(around).ok());
    let Some(((name, text), workspace)) = found else { return Vec::new() };
    let looked = look_over(around, &workspace, &name, &text);
    let mut files: Vec<String> = Vec::new();
    for mention in &looked.named.spells {
        match &mention.what {
            Mentioned::Spell(name) => files.extend(spell::places(name)),
            Mentioned::SystemPrompt(path) => {
                files.push(path.clone().unwrap_or_else(|| SYSTEM_PROMPT.to_owned()));
            }
            Mentioned::Written(_) => {}
        }
    }
    files.extend(looked.spells.into_iter().map(|page| page.path));
    if let Some(plan) = &looked.plan {
        plan.root().walk(&mut |step| {
            let templates = step.input_file.iter().chain(&step.output.schema);
            files.extend(templates.filter_map(|template| template.literal()).map(str::to_owned));
        });
    }
    let beads = looked.named.beads.iter().map(|bead| bead.name.as_str()).chain(bead);
    let is_file = |name: &str| workspace.root().join(name).is_present_file();
    files.extend(beads.map(|name| if is_file(name) { name } else { ISSUES }.to_owned()));
    files.sort();
    files.dedup();
    let parts = looked.parts.into_iter().map(|part| part.from);
    parts.chain(files.into_iter().map(|file| workspace.root().join(file))).collect()
}

/// Compiles the text of a workflow in order to run it. `name` is its file name.
pub(super) fn load_text(around: &Surroundings, name: &str, text: &str) -> Result<Loaded, Failure> {
    let looked = look_over(around, &open_workspace(around)?, name, text);
    let Looked { plan, errors, warnings, parts, spells, .. } = looked;
    match plan.filter(|_| errors.is_empty()) {
        Some(plan) => {
            let (file, text) = (name.to_owned(), text.to_owned());
            Ok(Loaded { plan, file, text, warnings, parts, spells })
        }
        None => {
            let problems = errors.into_iter().chain(warnings).collect();
            Err(Failure::in_text(problems, name, text))
        }
    }
}
