//! The inputs of a new run: the user's message, the issue, the base branch, and the beads. Message
//! and issue are for the `nodes:` dialect only.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::{Map, Value};

use super::failure::Failure;
use super::load::Loaded;
use super::part_files::PartFile;
use super::project::Project;
use super::workflow_file::read_bounded;
use crate::attempt::source_files;
use crate::base::ids::BeadId;
use crate::disk::fs;
use crate::engine::Request;
use crate::git::Git;
use crate::template::nodes::{NodeText, Var};
use crate::workflow::bead::{Bead, BeadError};
use crate::workflow::plan::{
    Action, Code, Dialect, Isolation, PartKind, Plan, Script, ShellText, Step, StepBead, Words,
};
use crate::workflow::{Problem, shell};
use crate::workspace::Workspace;
use crate::worktree::{TreeError, Trees};
use crate::yaml::{self, without_bom};

/// The inputs of a new run, as the user gave them.
#[derive(Clone, Debug, Default)]
pub(crate) struct RequestInput {
    pub message: Option<String>,
    /// File with the issue or pull request that the run is about.
    pub issue_context_file: Option<PathBuf>,
    pub base_branch: Option<String>,
    /// The work item: a file, or an ID of `.beads/issues.jsonl`.
    pub bead: Option<String>,
    /// `None` is a worktree.
    pub isolation: Option<Isolation>,
}

impl RequestInput {
    fn is_empty(&self) -> bool {
        let branch = self.base_branch.is_some() && self.bead.is_none();
        self.message.is_none() && self.issue_context_file.is_none() && !branch
    }

    /// Returns the part of the request that all dialects have: the beads of the run and of its
    /// steps, and the base branch. Checks that worktrees for them can be created.
    fn about(
        &self,
        project: &Project,
        plan: &Plan,
        loaded: &Loaded,
        settings: &Settings,
    ) -> Result<Request, Failure> {
        let mut named = Vec::new();
        plan.root().walk(&mut |step| named.extend(step.bead.clone()));
        let workspace = project.open_workspace()?;
        let (beads, missing) = read_step_beads(&workspace, project, &named);
        if !missing.is_empty() {
            return Err(Failure::in_text(missing, &loaded.file, &loaded.text));
        }
        let bead = self.bead.as_ref().map(|name| read_bead(project, name)).transpose()?;
        tell_apart(bead.iter().map(Bead::to_json).chain(beads.values().cloned()))?;
        let isolation = bead.as_ref().map(|_| self.isolation.unwrap_or(Isolation::Worktree));
        let settled = settings.base_branch.as_ref().or(project.config.base_branch.as_ref());
        let base_branch = self.base_branch.as_ref().or(settled).cloned();
        let base =
            base_branch.as_deref().map(|name| Base { name, insists: self.base_branch.is_some() });
        if let Some(bead) = bead.as_ref().filter(|_| isolation == Some(Isolation::Worktree)) {
            may_begin(project, &bead.id, base).map_err(|error| {
                let failure = Failure::invalid(&error);
                match (error.cure(), &error) {
                    (Some(cure), TreeError::NoRepo { .. }) => {
                        failure.hint(format!("{cure}; or give `--isolation workspace`"))
                    }
                    (Some(cure), _) => failure.hint(cure),
                    (None, _) => failure,
                }
            })?;
        }
        let stuck = stuck_beads(project, &named, &beads, base);
        if !stuck.is_empty() {
            return Err(Failure::in_text(stuck, &loaded.file, &loaded.text));
        }
        let bead = bead.map(|bead| bead.to_json());
        Ok(Request { bead, isolation, beads, base_branch, ..Request::default() })
    }

    /// Returns the request of a run of this plan, or `None` for a `steps:` workflow without beads.
    pub(crate) fn resolve(
        &self,
        project: &Project,
        plan: &Plan,
        loaded: &Loaded,
    ) -> Result<Option<Box<Request>>, Failure> {
        let of_nodes = plan.dialect() == Dialect::Nodes;
        let settings = if of_nodes { Settings::read(project)? } else { Settings::default() };
        let about = self.about(project, plan, loaded, &settings)?;
        if !of_nodes {
            if !self.is_empty() {
                let message = "`--message`, `--issue-context-file` and `--base-branch` are for \
                               workflows of `nodes:`";
                return Err(Failure::invalid(message)
                    .hint("a workflow of `steps:` gets values with `--context KEY=VALUE`"));
            }
            let wanted = about.bead.is_some() || !about.beads.is_empty();
            return Ok(wanted.then(|| Box::new(about)));
        }
        let message = self.message.clone().unwrap_or_default();
        if message.contains('\0') {
            let failure = Failure::invalid("the message has a NUL in it, as no text has");
            return Err(failure.hint("no variable and no argument can have one: leave it out"));
        }
        let issue_context = match &self.issue_context_file {
            None => String::new(),
            Some(path) => {
                let bytes = read_bounded(path, project.config.input_bytes).map_err(|error| {
                    let path = path.display();
                    Failure::invalid(format!("cannot read the issue context `{path}`: {error}"))
                })?;
                let text = String::from_utf8(bytes).map_err(|error| {
                    let (path, at) = (path.display(), error.utf8_error().valid_up_to());
                    let message = format!("the issue context `{path}` is no text: byte {at}");
                    Failure::invalid(format!("{message} is not UTF-8")).hint("give a text file")
                })?;
                without_bom(&text).to_owned()
            }
        };
        let base_branch = match about.base_branch.clone() {
            Some(branch) => Some(branch),
            None if named(plan, &loaded.parts).contains(&Var::BaseBranch) => {
                Some(default_branch(&project.workspace).ok_or_else(|| no_base_branch(project))?)
            }
            None => None,
        };
        let docs_dir = settings.docs_dir.unwrap_or_else(|| "docs/".into());
        let Request { bead, isolation, beads, .. } = about;
        let request =
            Request { message, issue_context, base_branch, docs_dir, bead, isolation, beads };
        Ok(Some(Box::new(request)))
    }
}

/// The branch at which work starts, if one is named.
#[derive(Clone, Copy)]
struct Base<'a> {
    name: &'a str,
    /// True if a flag requests the branch for this run; false if it comes from the settings.
    insists: bool,
}

/// Fails if a worktree for a bead cannot be created. The check runs before the run is created, when
/// a failure costs nothing.
fn may_begin(project: &Project, id: &BeadId, base: Option<Base>) -> Result<(), TreeError> {
    let trees = Trees::open(&project.workspace)?.patient(project.config.tree_remote, None);
    base.map_or(Ok(()), |base| trees.may_begin_at(id, base.name, base.insists))
}

/// Returns an error, with its place in the workflow, for each bead of a step whose worktree cannot
/// be created.
fn stuck_beads(
    project: &Project,
    named: &[StepBead],
    beads: &Map<String, Value>,
    base: Option<Base>,
) -> Vec<Problem> {
    let mut problems = Vec::new();
    let mut looked_at = BTreeSet::new();
    for StepBead { name, isolation, place } in named {
        let id = beads.get(name).and_then(|bead| bead.get("id")).and_then(Value::as_str);
        let Some(id) = id.and_then(|id| BeadId::parse(id).ok()) else { continue };
        if *isolation != Isolation::Worktree || !looked_at.insert(id.clone()) {
            continue;
        }
        let Err(error) = may_begin(project, &id, base) else { continue };
        let problem = Problem::error(error.to_string()).at(*place);
        problems.push(match (error.cure(), &error) {
            (Some(cure), TreeError::NoRepo { .. }) => {
                problem.hint(format!("{cure}; or give the step `isolation: workspace`"))
            }
            (Some(cure), _) => problem.hint(cure),
            (None, _) => problem,
        });
    }
    problems
}

/// Refuses beads of one run whose ids differ only in letter case.
fn tell_apart(beads: impl Iterator<Item = Value>) -> Result<(), Failure> {
    let mut known: BTreeMap<String, String> = BTreeMap::new();
    for bead in beads {
        let id = bead.get("id").and_then(Value::as_str).unwrap_or_default();
        let other = known.entry(id.to_ascii_lowercase()).or_insert_with(|| id.to_owned());
        if other != id {
            let message =
                format!("bead `{id}` differs from bead `{other}` by capital letters only");
            return Err(Failure::invalid(message).hint("give one of them another id"));
        }
    }
    Ok(())
}

/// Reads the beads that steps name. Returns them by name, and the problems of those that cannot be
/// read.
pub(crate) fn read_step_beads(
    workspace: &Workspace,
    project: &Project,
    named: &[StepBead],
) -> (Map<String, Value>, Vec<Problem>) {
    let read = |path: &str| workspace.read_text(path, project.config.input_bytes);
    let (mut beads, mut missing) = (Map::new(), Vec::new());
    for StepBead { name, place, .. } in named {
        if beads.contains_key(name) {
            continue;
        }
        match Bead::find(name, &read) {
            Ok(bead) => {
                beads.insert(name.clone(), bead.to_json());
            }
            Err(BeadError::Wrong { file, text, problems }) => {
                let elsewhere = Some((Arc::from(file), Arc::from(text)));
                let problem = |problem| Problem { elsewhere: elsewhere.clone(), ..problem };
                missing.extend(problems.into_iter().map(problem));
            }
            Err(error) => missing.push(Problem::error(error.to_string()).at(*place)),
        }
    }
    (beads, missing)
}

/// Converts an absolute path inside the workspace to a relative one. Returns other names unchanged.
fn in_workspace<'a>(project: &Project, name: &'a str) -> Cow<'a, str> {
    let path = Path::new(name);
    let inside = || {
        let whole = path.canonicalize().ok()?;
        let below = whole.strip_prefix(project.workspace.canonicalize().ok()?).ok()?;
        below.to_str().map(|below| format!("./{below}"))
    };
    let inside = if path.is_absolute() { inside() } else { None };
    inside.map_or(Cow::Borrowed(name), Cow::Owned)
}

/// Reads the current content of a bead.
pub(crate) fn read_bead(project: &Project, name: &str) -> Result<Bead, Failure> {
    let workspace = project.open_workspace()?;
    let limit = project.config.input_bytes;
    let read = |path: &str| workspace.read_text(path, limit);
    Bead::find(&in_workspace(project, name), &read).map_err(|error| match error {
        BeadError::Wrong { file, text, problems } => Failure::in_text(problems, &file, &text),
        other => Failure::invalid(other),
    })
}

fn no_base_branch(project: &Project) -> Failure {
    let workspace = project.workspace.display();
    let message = format!(
        "the workflow refers to `$BASE_BRANCH`, and `{workspace}` is no repository whose default \
         branch can be told"
    );
    Failure::failed(message)
        .hint("give `--base-branch`, or set `worktree.baseBranch` in .archon/config.yaml")
}

/// Returns all variables that a plan's texts, command files and scripts name.
fn named(plan: &Plan, kept: &[PartFile]) -> BTreeSet<Var> {
    let mut found = BTreeSet::new();
    plan.root().walk(&mut |step: &Step| {
        let text = match &step.action {
            Action::Prompt(prompt) => match &prompt.words {
                Words::Inline(text) => Some(text),
                Words::Command(_) | Words::Spell(_) => None,
            },
            Action::Shell { script: ShellText::Node(script) } => Some(script),
            Action::Script(script) => match &script.code {
                Code::Inline(text) => Some(text),
                Code::Named(_) => None,
            },
            _ => None,
        };
        found.extend(text.into_iter().flat_map(NodeText::vars));
        match &step.action {
            Action::Shell { script: ShellText::Node(script) } => {
                found.extend(shell::in_braces(script));
            }
            Action::Script(Script { code: Code::Inline(text), .. }) => {
                found.extend(read_from_environment(&text.source()));
            }
            _ => {}
        }
    });
    for file in kept {
        let text = String::from_utf8_lossy(&file.text);
        match file.part.kind {
            PartKind::Command => {
                found.extend(NodeText::parse(source_files::without_front_matter(&text)).vars());
            }
            PartKind::Script => found.extend(read_from_environment(&text)),
        }
    }
    found
}

/// Returns the variables that a script in another language reads from its environment, as far as
/// its lines show: `os.environ["NAME"]`, `process.env.NAME`.
fn read_from_environment(source: &str) -> BTreeSet<Var> {
    let lines = source.lines().map(str::trim_start);
    let code = lines.filter(|line| !line.starts_with(['#', '/']) && line.contains("env"));
    let mut found = BTreeSet::new();
    for line in code {
        let words = line.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
        found.extend(words.filter_map(Var::named));
    }
    found
}

/// Settings from `.archon/config.yaml`.
#[derive(Default)]
struct Settings {
    base_branch: Option<String>,
    docs_dir: Option<String>,
}

impl Settings {
    fn read(project: &Project) -> Result<Settings, Failure> {
        let path = project.workspace.join(".archon/config.yaml");
        let text = match fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                return Ok(Settings::default());
            }
            Err(error) => {
                let message = format!("cannot read `{}`: {error}", path.display());
                return Err(Failure::invalid(message));
            }
        };
        let document = yaml::parse(&text).map_err(|problem| {
            Failure::in_text(vec![problem], &path.display().to_string(), &text)
        })?;
        let mut problems = Vec::new();
        let mut field = |outer: &str, inner: &str| {
            let found = text_in(&document, outer, inner);
            found.unwrap_or_else(|problem| {
                problems.push(problem);
                None
            })
        };
        let base_branch = field("worktree", "baseBranch");
        let docs_dir = field("docs", "path");
        if !problems.is_empty() {
            return Err(Failure::in_text(problems, &path.display().to_string(), &text));
        }
        Ok(Settings { base_branch, docs_dir })
    }
}

/// Returns the text at `outer.inner` of a document, or `None` if it is missing or empty. Fails if
/// the value has another type.
fn text_in(document: &yaml::Node, outer: &str, inner: &str) -> Result<Option<String>, Problem> {
    let wrong = |name: String, wanted: &str, node: &yaml::Node| {
        let message = format!("`{name}` must be {wanted}, not {}", node.kind());
        Problem::error(message).at(node.place)
    };
    let Some(map) = document.get(outer) else { return Ok(None) };
    if !matches!(map.value, yaml::Value::Map(_) | yaml::Value::Null) {
        return Err(wrong(outer.to_owned(), "a map", map));
    }
    let Some(node) = map.get(inner) else { return Ok(None) };
    match (node.text().map(str::trim), &node.value) {
        (Some(""), _) | (None, yaml::Value::Null) => Ok(None),
        (Some(text), _) => Ok(Some(text.to_owned())),
        (None, _) => Err(wrong(format!("{outer}.{inner}"), "text", node)),
    }
}

/// Returns the default branch of the workspace's repository, or `None` if it cannot be determined.
fn default_branch(workspace: &Path) -> Option<String> {
    let git = Git::at(workspace);
    let head = git.text(&["symbolic-ref", "--quiet", "--short", "refs/remotes/origin/HEAD"]);
    if let Some(branch) = head.ok().as_deref().and_then(|name| name.trim().strip_prefix("origin/"))
    {
        return Some(branch.to_owned());
    }
    let places = ["refs/remotes/origin/", "refs/heads/"];
    let mut names = places.iter().flat_map(|place| ["main", "master"].map(|name| (place, name)));
    names
        .find(|(place, name)| matches!(git.commit(&format!("{place}{name}")), Ok(Some(_))))
        .map(|(_, name)| name.to_owned())
}
