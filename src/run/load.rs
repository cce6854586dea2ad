//! Loads a workflow with its parts: command and script files, spells, beads. Reports all problems
//! of all parts at once.

use std::path::{Path, PathBuf};

use super::failure::Failure;
use super::part_files::{self, PartFile};
use super::project::Project;
use super::workflow_file::{find_workflow, no_workflow};
use super::{open, request};
use crate::attempt::prompt::spell::{self, SYSTEM_PROMPT};
use crate::attempt::spellbook::{self, Beads, Page, Shelf};
use crate::base::digest::sha256;
use crate::disk::fs::OnVolume as _;
use crate::workflow::bead::ISSUES;
use crate::workflow::named::Mentioned;
use crate::workflow::{Compiled, Named, Plan, Problem, Rejected, compile_parsed};
use crate::workspace::Workspace;
use crate::yaml;
use crate::yaml::problem::located;

/// A checked workflow, which may have errors.
pub(crate) struct CheckedWorkflow {
    /// The parsed text, or `None` if it is not YAML.
    pub document: Option<yaml::Node>,
    /// The compiled plan, or `None` if the text itself has errors.
    pub plan: Option<Plan>,
    /// Errors: those in the text first, in its order, then those in other files.
    pub errors: Vec<Problem>,
    pub warnings: Vec<Problem>,
    /// The part files and spells that could be read.
    parts: Vec<PartFile>,
    spells: Vec<Page>,
    /// The beads of its steps that could be read.
    beads: Beads,
    named: Named,
}

/// Checks the text of a workflow. `name` is its file name.
pub(crate) fn check(
    project: &Project,
    workspace: &Workspace,
    name: &str,
    text: &str,
) -> CheckedWorkflow {
    let (document, unparsed) = match yaml::parse(text) {
        Ok(document) => (Some(document), Vec::new()),
        Err(problem) => (None, vec![problem]),
    };
    let compiled = document.as_ref().map(|read| compile_parsed(text, read, &project.config));
    let (plan, problems, named) = match compiled {
        Some(Ok(Compiled { plan, warnings, named })) => (Some(plan), warnings, named),
        Some(Err(Rejected { problems, named })) => (None, problems, named),
        None => (None, unparsed, Named::default()),
    };
    let (mut errors, mut warnings): (Vec<_>, Vec<_>) =
        problems.into_iter().partition(Problem::is_error);
    let read = |path: &str| workspace.read_text(path, project.config.input_bytes);
    let (parts, missing) = part_files::read(project, name, plan.as_ref(), &named.parts);
    let (missing, late): (Vec<_>, Vec<_>) = missing.into_iter().partition(Problem::is_error);
    warnings.extend(located(text, late));
    let shelf = Shelf { read: &read, list: &|dir| workspace.files_in(dir) };
    let (spells, lost) = spellbook::gather(&named.spells, &shelf);
    let (beads, no_beads) = request::read_step_beads(workspace, project, &named.beads);
    errors.extend(open::escapes(workspace, &named));
    errors.extend(missing.into_iter().chain(lost).chain(no_beads));
    if let Some(plan) = &plan {
        warnings.extend(part_files::warnings(project, plan, &parts));
        warnings.extend(located(text, spellbook::doubtful(plan, &spells, &beads)));
    }
    errors = located(text, errors);
    errors.sort_by(|one, other| {
        let file = |problem: &Problem| problem.elsewhere.as_ref().map(|(file, _)| file.clone());
        (file(one), one.place).cmp(&(file(other), other.place))
    });
    CheckedWorkflow { document, plan, errors, warnings, parts, spells, beads, named }
}

impl CheckedWorkflow {
    /// Returns the problems of its spells' variables that no input of a run can fix.
    pub(crate) fn incurable(&self, text: &str) -> Vec<Problem> {
        let plan = self.plan.as_ref();
        plan.map(|plan| located(text, spellbook::incurable(plan, &self.spells, &self.beads)))
            .unwrap_or_default()
    }
}

/// Returns the files that a workflow consists of, including missing ones, so that the caller can
/// watch them for changes. `bead` is the bead of its runs.
pub(crate) fn files_of(project: &Project, workflow: &Path, bead: Option<&str>) -> Vec<PathBuf> {
    let found = find_workflow(project, workflow).ok().zip(project.open_workspace().ok());
    let Some(((name, text), workspace)) = found else { return Vec::new() };
    let checked = check(project, &workspace, &name, &text);
    let mut files: Vec<String> = Vec::new();
    for mention in &checked.named.spells {
        match &mention.what {
            Mentioned::Spell(name) => files.extend(spell::places(name)),
            Mentioned::SystemPrompt(path) => {
                files.push(path.clone().unwrap_or_else(|| SYSTEM_PROMPT.to_owned()));
            }
            Mentioned::Written(_) => {}
        }
    }
    files.extend(checked.spells.into_iter().map(|page| page.path));
    if let Some(plan) = &checked.plan {
        plan.root().walk(&mut |step| {
            let templates = step.input_file.iter().chain(&step.output.schema);
            files.extend(templates.filter_map(|template| template.literal()).map(str::to_owned));
        });
    }
    let beads = checked.named.beads.iter().map(|bead| bead.name.as_str()).chain(bead);
    let is_file = |name: &str| workspace.root().join(name).is_present_file();
    files.extend(beads.map(|name| if is_file(name) { name } else { ISSUES }.to_owned()));
    files.sort();
    files.dedup();
    let parts = checked.parts.into_iter().map(|part| part.from);
    parts.chain(files.into_iter().map(|file| workspace.root().join(file))).collect()
}

/// Compiles the text of a workflow in order to run it. `name` is its file name.
pub(crate) fn load_text(project: &Project, name: &str, text: &str) -> Result<Loaded, Failure> {
    let checked = check(project, &project.open_workspace()?, name, text);
    let CheckedWorkflow { plan, errors, warnings, parts, spells, .. } = checked;
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

/// A workflow that was read and compiled.
pub(crate) struct Loaded {
    pub plan: Plan,
    pub file: String,
    pub text: String,
    pub warnings: Vec<Problem>,
    /// The other files that the workflow includes.
    pub parts: Vec<PartFile>,
    /// The spells that the workflow uses.
    pub spells: Vec<Page>,
}

impl Loaded {
    pub(crate) fn checksum(&self) -> String {
        checksum(self.text.as_bytes())
    }
}

pub(crate) fn checksum(bytes: &[u8]) -> String {
    format!("sha256:{}", sha256(bytes))
}

/// Reads and compiles a workflow file, or a grimoire given by its name. The failure contains all
/// problems.
pub(crate) fn load(project: &Project, file: &Path) -> Result<Loaded, Failure> {
    let found = find_workflow(project, file);
    let (file, text) = found.map_err(|message| no_workflow(project, file, message))?;
    load_text(project, &file, &text)
}
