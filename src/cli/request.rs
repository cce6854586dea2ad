//! The inputs of a new run: the user's message, the issue, the base branch, the beads, and the
//! files that the workflow consists of. Message and issue are for the `nodes:` dialect only.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::{Map, Value};

use super::Failure;
use super::common::{Loaded, Surroundings, read_bounded, workflow_path};
use crate::attempt::source_files::{self, Library};
use crate::base::ids::{BeadId, name_fault};
use crate::disk::fs;
use crate::engine::Request;
use crate::git::Git;
use crate::run::grimoires;
use crate::template::nodes::{NodeText, Var};
use crate::workflow::bead::{Bead, BeadError};
use crate::workflow::nodes::commands::{self, CommandFile};
use crate::workflow::plan::{
    Action, Code, Dialect, Isolation, Part, PartKind, Plan, Script, ShellText, Step, StepBead,
    Words,
};
use crate::workflow::{Place, Problem, shell};
use crate::workspace::{Workspace, dangling};
use crate::worktree::{TreeError, Trees};
use crate::yaml;
use crate::yaml::without_bom;

#[derive(clap::Args, Clone, Debug, Default)]
pub(super) struct RequestArgs {
    /// What is wanted: `$ARGUMENTS` in a workflow of nodes; `-` reads standard input
    #[arg(short, long, value_name = "TEXT")]
    pub message: Option<String>,
    /// The issue or pull request that it is about: `$CONTEXT`
    #[arg(long, value_name = "FILE")]
    pub issue_context_file: Option<PathBuf>,
    /// `$BASE_BRANCH`, and where a bead's worktree begins [default: from .archon/config.yaml or the
    /// settings, else the repository's default branch, and for worktrees the one checked out]
    #[arg(long, value_name = "BRANCH")]
    pub base_branch: Option<String>,
    /// The work item: a file, or an id of .beads/issues.jsonl; `{{.bead}}` in spells
    #[arg(long, value_name = "FILE|ID")]
    pub bead: Option<String>,
    /// Where the bead is worked on [default: worktree]
    #[arg(long, value_enum, value_name = "WHERE", requires = "bead")]
    pub isolation: Option<IsolationArg>,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
pub(super) enum IsolationArg {
    /// In a worktree of its own, on a branch of its own
    Worktree,
    /// In the workspace
    Workspace,
}

/// A file that a workflow consists of, with its content when the run was created.
pub(crate) struct Kept {
    pub part: Part,
    pub from: PathBuf,
    pub text: Vec<u8>,
}

/// Reads the files that a workflow consists of. Returns those that were read, and the problems of
/// the others.
///
/// A missing file is a warning if an earlier node of the plan may write it.
pub(super) fn look_for(
    around: &Surroundings,
    file: &str,
    plan: Option<&Plan>,
    parts: &[Part],
) -> (Vec<Kept>, Vec<Problem>) {
    let library = library(around, Some(file));
    let mut kept: Vec<Kept> = Vec::new();
    let mut missing = Vec::new();
    for part in parts {
        let read = library.find(part).and_then(|from| {
            let text = read_bounded(&from, around.config.input_bytes)
                .map_err(|error| format!("cannot read `{}`: {error}", from.display()))
                .map_err(|reason| Problem { place: part.place, ..Problem::error(reason) })?;
            let file = from.strip_prefix(&around.workspace).unwrap_or(&from).display();
            if let Some(fault) = source_files::fault(part, &file.to_string(), &text) {
                return Err(fault);
            }
            Ok(Kept { part: part.clone(), from, text })
        });
        match read {
            Ok(part) => kept.push(part),
            Err(reason) => {
                let late = |plan| commands::may_be_written(plan, part);
                missing.push(match library.lacks(part) && plan.is_some_and(late) {
                    true => {
                        let near = reason.hint.as_deref().map(|near| format!("{near} "));
                        let hint = format!(
                            "{}a node before it may write the file; without it, the node fails",
                            near.unwrap_or_default()
                        );
                        reason.as_warning().hint(hint)
                    }
                    false => reason,
                });
            }
        }
    }
    (kept, missing)
}

/// Returns warnings about the command files and scripts among `kept`.
pub(super) fn doubtful(around: &Surroundings, plan: &Plan, kept: &[Kept]) -> Vec<Problem> {
    let mut found = Vec::new();
    for Kept { part, from, text } in kept.iter().filter(|k| k.part.kind == PartKind::Command) {
        let text = String::from_utf8_lossy(text);
        let file = from.strip_prefix(&around.workspace).unwrap_or(from).display().to_string();
        let prompt = source_files::without_front_matter(&text);
        let command = CommandFile { name: &part.name, file: &file, text: &text, prompt };
        found.extend(commands::doubtful(plan, &command));
    }
    found.extend(other_runtimes(around, plan, kept));
    found
}

/// Warns about scripts whose file extension does not match the runtime of their node. The extension
/// decides.
fn other_runtimes(around: &Surroundings, plan: &Plan, kept: &[Kept]) -> Vec<Problem> {
    let mut found = Vec::new();
    plan.root().walk(&mut |step: &Step| {
        let Action::Script(Script { code: Code::Named(name), runtime, .. }) = &step.action else {
            return;
        };
        let is = |kept: &&Kept| kept.part.kind == PartKind::Script && kept.part.name == *name;
        let Some(Kept { part, from, .. }) = kept.iter().find(is) else { return };
        let by_file = source_files::runtime_of(&from.to_string_lossy()).unwrap_or(*runtime);
        if by_file != *runtime {
            let file = from.strip_prefix(&around.workspace).unwrap_or(from).display();
            let (node, said, runs) = (&step.name, runtime.name(), by_file.name());
            let message = format!(
                "node `{node}` says `runtime: {said}`, but `{runs}` runs `{file}`: its ending \
                 decides"
            );
            let hint = format!("write `runtime: {runs}`, or name another script");
            let problem = Problem::warning(message).hint(hint);
            found.push(Problem { place: part.place, ..problem });
        }
    });
    found
}

/// Returns the directories that are searched for the files of a workflow.
pub(super) fn library(around: &Surroundings, file: Option<&str>) -> Library {
    let path = file.map(|file| workflow_path(around, Path::new(file)));
    let beside = path.and_then(|path| path.parent().map(Path::to_owned));
    Library { workspace: around.workspace.clone(), beside, home: home(around) }
}

/// Returns the user's home directory.
pub(super) fn home(around: &Surroundings) -> Option<PathBuf> {
    around.environment.get("HOME").filter(|home| !home.is_empty()).map(PathBuf::from)
}

impl RequestArgs {
    fn is_empty(&self) -> bool {
        let branch = self.base_branch.is_some() && self.bead.is_none();
        self.message.is_none() && self.issue_context_file.is_none() && !branch
    }

    /// Returns the message. Reads it from standard input if the flag is `-`.
    pub(super) fn message(&self) -> Result<Option<String>, Failure> {
        if self.message.as_deref() != Some("-") {
            return Ok(self.message.clone());
        }
        let read = std::io::read_to_string(std::io::stdin());
        read.map(Some).map_err(|error| {
            Failure::new(2, format!("cannot read the message from standard input: {error}"))
        })
    }

    /// Returns the part of the request that all dialects have: the beads of the run and of its
    /// steps, and the base branch. Checks that worktrees for them can be created.
    fn about(
        &self,
        around: &Surroundings,
        plan: &Plan,
        loaded: &Loaded,
        settings: &Settings,
    ) -> Result<Request, Failure> {
        let mut named = Vec::new();
        plan.root().walk(&mut |step| named.extend(step.bead.clone()));
        let workspace = super::common::open_workspace(around)?;
        let (beads, missing) = look_for_beads(&workspace, around, &named);
        if !missing.is_empty() {
            return Err(Failure::in_text(missing, &loaded.file, &loaded.text));
        }
        let bead = self.bead.as_ref().map(|name| read_bead(around, name)).transpose()?;
        tell_apart(bead.iter().map(Bead::to_json).chain(beads.values().cloned()))?;
        let isolation = bead.as_ref().map(|_| match self.isolation {
            Some(IsolationArg::Workspace) => Isolation::Workspace,
            _ => Isolation::Worktree,
        });
        let settled = settings.base_branch.as_ref().or(around.config.base_branch.as_ref());
        let base_branch = self.base_branch.as_ref().or(settled).cloned();
        let base =
            base_branch.as_deref().map(|name| Base { name, insists: self.base_branch.is_some() });
        if let Some(bead) = bead.as_ref().filter(|_| isolation == Some(Isolation::Worktree)) {
            may_begin(around, &bead.id, base).map_err(|error| {
                let failure = Failure::new(2, &error);
                match (error.cure(), &error) {
                    (Some(cure), TreeError::NoRepo { .. }) => {
                        failure.hint(format!("{cure}; or give `--isolation workspace`"))
                    }
                    (Some(cure), _) => failure.hint(cure),
                    (None, _) => failure,
                }
            })?;
        }
        let stuck = stuck_beads(around, &named, &beads, base);
        if !stuck.is_empty() {
            return Err(Failure::in_text(stuck, &loaded.file, &loaded.text));
        }
        let bead = bead.map(|bead| bead.to_json());
        Ok(Request { bead, isolation, beads, base_branch, ..Request::default() })
    }

    /// Returns the request of a run of this plan, or `None` for a `steps:` workflow without beads.
    pub(super) fn of(
        &self,
        around: &Surroundings,
        plan: &Plan,
        loaded: &Loaded,
    ) -> Result<Option<Box<Request>>, Failure> {
        let of_nodes = plan.dialect() == Dialect::Nodes;
        let settings = if of_nodes { Settings::read(around)? } else { Settings::default() };
        let about = self.about(around, plan, loaded, &settings)?;
        if !of_nodes {
            if !self.is_empty() {
                let message = "`--message`, `--issue-context-file` and `--base-branch` are for \
                               workflows of `nodes:`";
                return Err(Failure::new(2, message)
                    .hint("a workflow of `steps:` gets values with `--context KEY=VALUE`"));
            }
            let wanted = about.bead.is_some() || !about.beads.is_empty();
            return Ok(wanted.then(|| Box::new(about)));
        }
        let message = self.message()?.unwrap_or_default();
        if message.contains('\0') {
            let failure = Failure::new(2, "the message has a NUL in it, as no text has");
            return Err(failure.hint("no variable and no argument can have one: leave it out"));
        }
        let issue_context = match &self.issue_context_file {
            None => String::new(),
            Some(path) => {
                let bytes = read_bounded(path, around.config.input_bytes).map_err(|error| {
                    let path = path.display();
                    Failure::new(2, format!("cannot read the issue context `{path}`: {error}"))
                })?;
                let text = String::from_utf8(bytes).map_err(|error| {
                    let (path, at) = (path.display(), error.utf8_error().valid_up_to());
                    let message = format!("the issue context `{path}` is no text: byte {at}");
                    Failure::new(2, format!("{message} is not UTF-8")).hint("give a text file")
                })?;
                without_bom(&text).to_owned()
            }
        };
        let base_branch = match about.base_branch.clone() {
            Some(branch) => Some(branch),
            None if named(plan, &loaded.parts).contains(&Var::BaseBranch) => {
                Some(default_branch(&around.workspace).ok_or_else(|| no_base_branch(around))?)
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
fn may_begin(around: &Surroundings, id: &BeadId, base: Option<Base>) -> Result<(), TreeError> {
    let trees = Trees::open(&around.workspace)?.patient(around.config.tree_remote, None);
    base.map_or(Ok(()), |base| trees.may_begin_at(id, base.name, base.insists))
}

/// Returns an error, with its place in the workflow, for each bead of a step whose worktree cannot
/// be created.
fn stuck_beads(
    around: &Surroundings,
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
        let Err(error) = may_begin(around, &id, base) else { continue };
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
            return Err(Failure::new(2, message).hint("give one of them another id"));
        }
    }
    Ok(())
}

/// Reads the beads that steps name. Returns them by name, and the problems of those that cannot be
/// read.
pub(super) fn look_for_beads(
    workspace: &Workspace,
    around: &Surroundings,
    named: &[StepBead],
) -> (Map<String, Value>, Vec<Problem>) {
    let read = |path: &str| workspace.read_text(path, around.config.input_bytes);
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
fn in_workspace<'a>(around: &Surroundings, name: &'a str) -> Cow<'a, str> {
    let path = Path::new(name);
    let inside = || {
        let whole = path.canonicalize().ok()?;
        let below = whole.strip_prefix(around.workspace.canonicalize().ok()?).ok()?;
        below.to_str().map(|below| format!("./{below}"))
    };
    let inside = if path.is_absolute() { inside() } else { None };
    inside.map_or(Cow::Borrowed(name), Cow::Owned)
}

/// Reads the current content of a bead.
pub(super) fn read_bead(around: &Surroundings, name: &str) -> Result<Bead, Failure> {
    let workspace = super::common::open_workspace(around)?;
    let limit = around.config.input_bytes;
    let read = |path: &str| workspace.read_text(path, limit);
    Bead::find(&in_workspace(around, name), &read).map_err(|error| match error {
        BeadError::Wrong { file, text, problems } => Failure::in_text(problems, &file, &text),
        other => Failure::new(2, other),
    })
}

/// Returns the file of the grimoire for a bead: from the bead's label, else from the workspace's
/// mapping for its type, else the default. The author of a bead is not trusted, so a bead can name
/// a grimoire but never a file.
pub(super) fn grimoire_for(around: &Surroundings, bead: &Bead) -> Result<String, Failure> {
    let (name, by) = named_for(around, bead)?;
    if let Some(fault) = name_fault(&name) {
        let message = format!("`{name}` cannot name a grimoire: {fault}");
        return Err(Failure::new(2, format!("{message}; {by} asks for it")));
    }
    match super::common::find_grimoire(around, &name) {
        Some(Ok((file, _))) => Ok(file),
        Some(Err(error)) => Err(Failure::new(2, format!("cannot read grimoire `{name}`: {error}"))),
        None => {
            let message = format!("there is no grimoire `{name}`, which {by} asks for");
            let built_in: Vec<_> = grimoires::built_in().map(|name| format!("`{name}`")).collect();
            let hint = format!(
                "it would lie in `{}/{name}.yaml`; built in are {}",
                grimoires::GRIMOIRES,
                built_in.join(", ")
            );
            Err(Failure::new(2, message).hint(hint))
        }
    }
}

/// Returns the name of a bead's grimoire and the source of that choice, for messages.
fn named_for(around: &Surroundings, bead: &Bead) -> Result<(String, String), Failure> {
    let mut labels = bead.labels.iter().filter_map(|label| label.strip_prefix("grimoire:"));
    if let Some(name) = labels.next() {
        if let Some(other) = labels.find(|other| *other != name) {
            let id = &bead.id;
            let message = format!("labels of bead `{id}` ask for both `{name}` and `{other}`");
            return Err(Failure::new(2, message).hint("leave one `grimoire:` label"));
        }
        return Ok((name.to_owned(), format!("a label of bead `{}`", bead.id)));
    }
    let path = around.workspace.join(MAPPING);
    let by = format!("`{MAPPING}`");
    let text = match fs::read_to_string(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            return match dangling(&around.workspace, Path::new(MAPPING)) {
                None => Ok((USUAL.into(), by)),
                Some(link) => {
                    let message =
                        format!("`{}` is a symlink to what does not exist", link.display());
                    Err(Failure::new(2, message))
                }
            };
        }
        Err(error) => return Err(Failure::new(2, format!("cannot read `{MAPPING}`: {error}"))),
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

fn no_base_branch(around: &Surroundings) -> Failure {
    let workspace = around.workspace.display();
    let message = format!(
        "the workflow refers to `$BASE_BRANCH`, and `{workspace}` is no repository whose default \
         branch can be told"
    );
    Failure::new(1, message)
        .hint("give `--base-branch`, or set `worktree.baseBranch` in .archon/config.yaml")
}

/// Returns all variables that a plan's texts, command files and scripts name.
fn named(plan: &Plan, kept: &[Kept]) -> BTreeSet<Var> {
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
    fn read(around: &Surroundings) -> Result<Settings, Failure> {
        let path = around.workspace.join(".archon/config.yaml");
        let text = match fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                return Ok(Settings::default());
            }
            Err(error) => {
                let message = format!("cannot read `{}`: {error}", path.display());
                return Err(Failure::new(2, message));
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
