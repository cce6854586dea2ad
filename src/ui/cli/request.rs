//! What a run of the `nodes:` dialect is started for: the person's message, the issue it is about,
//! the base branch, and the files that the workflow is made of.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use super::Failure;
use super::common::{Surroundings, read_bounded, workflow_path};
use crate::engine::Request;
use crate::fleet::parts::{self, Library};
use crate::git::Git;
use crate::template::nodes::{NodeText, Var};
use crate::workflow::plan::{Action, Code, PartKind, Plan, ShellText, Step, Words};
use crate::workflow::yaml;

#[derive(clap::Args, Clone, Debug, Default)]
pub struct RequestArgs {
    /// What is wanted: `$ARGUMENTS` in a workflow of nodes; `-` reads standard input
    #[arg(short, long, value_name = "TEXT")]
    pub message: Option<String>,
    /// The issue or pull request that it is about: `$CONTEXT`
    #[arg(long, value_name = "FILE")]
    pub issue_context_file: Option<PathBuf>,
    /// `$BASE_BRANCH` [default: from .archon/config.yaml, else the repository's default branch]
    #[arg(long, value_name = "BRANCH")]
    pub base_branch: Option<String>,
}

/// A file that a workflow is made of, as it was when the run began.
pub struct Kept {
    pub part: crate::workflow::plan::Part,
    pub from: PathBuf,
    pub text: Vec<u8>,
}

/// Reads all files that a plan is made of. The error names each that cannot be.
pub fn gather(around: &Surroundings, file: &str, plan: &Plan) -> Result<Vec<Kept>, Failure> {
    let library = library(around, Some(file));
    let mut kept: Vec<Kept> = Vec::new();
    let mut missing = Vec::new();
    for part in &plan.parts {
        if kept.iter().any(|other| other.part == *part) {
            continue;
        }
        let read = library.find(part).and_then(|from| {
            let text = read_bounded(&from, around.config.input_bytes)
                .map_err(|error| format!("cannot read `{}`: {error}", from.display()))?;
            Ok(Kept { part: part.clone(), from, text })
        });
        match read {
            Ok(part) => kept.push(part),
            Err(reason) => missing.push(reason),
        }
    }
    match missing.as_slice() {
        [] => Ok(kept),
        all => Err(Failure::new(2, format!("`{file}` cannot run: {}", all.join("; ")))),
    }
}

/// Where the files that workflows are made of are looked for.
pub fn library(around: &Surroundings, file: Option<&str>) -> Library {
    let path = file.map(|file| workflow_path(around, Path::new(file)));
    let beside = path.and_then(|path| path.parent().map(Path::to_owned));
    let home = around.environment.get("HOME").filter(|home| !home.is_empty()).map(PathBuf::from);
    Library { workspace: around.workspace.clone(), beside, home }
}

impl RequestArgs {
    fn is_empty(&self) -> bool {
        self.message.is_none() && self.issue_context_file.is_none() && self.base_branch.is_none()
    }

    /// The request of a run of this plan; nothing where its dialect has no place for one.
    pub fn of(
        &self,
        around: &Surroundings,
        plan: &Plan,
        kept: &[Kept],
    ) -> Result<Option<Box<Request>>, Failure> {
        if plan.root.edges.is_none() {
            if !self.is_empty() {
                let message = "`--message`, `--issue-context-file` and `--base-branch` are for \
                               workflows of `nodes:`";
                return Err(Failure::new(2, message)
                    .hint("a workflow of `steps:` gets values with `--context KEY=VALUE`"));
            }
            return Ok(None);
        }
        let settings = Settings::read(around)?;
        let message = match self.message.as_deref() {
            Some("-") => std::io::read_to_string(std::io::stdin()).map_err(|error| {
                Failure::new(2, format!("cannot read the message from standard input: {error}"))
            })?,
            message => message.unwrap_or_default().to_owned(),
        };
        let issue_context = match &self.issue_context_file {
            None => String::new(),
            Some(path) => {
                let bytes = read_bounded(path, around.config.input_bytes).map_err(|error| {
                    let path = path.display();
                    Failure::new(2, format!("cannot read the issue context `{path}`: {error}"))
                })?;
                String::from_utf8_lossy(&bytes).into_owned()
            }
        };
        let base_branch = match self.base_branch.clone().or(settings.base_branch) {
            Some(branch) => Some(branch),
            None if named(plan, kept).contains(&Var::BaseBranch) => {
                Some(default_branch(&around.workspace).ok_or_else(|| no_base_branch(around))?)
            }
            None => None,
        };
        let docs_dir = settings.docs_dir.unwrap_or_else(|| "docs/".into());
        Ok(Some(Box::new(Request { message, issue_context, base_branch, docs_dir })))
    }
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

/// Every variable that a plan's texts and command files name.
fn named(plan: &Plan, kept: &[Kept]) -> BTreeSet<Var> {
    let mut found = BTreeSet::new();
    plan.root.walk(&mut |step: &Step| {
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
    });
    for file in kept.iter().filter(|file| file.part.kind == PartKind::Command) {
        let text = String::from_utf8_lossy(&file.text);
        found.extend(NodeText::parse(parts::without_front_matter(&text)).vars());
    }
    found
}

/// What `.archon/config.yaml` says.
#[derive(Default)]
struct Settings {
    base_branch: Option<String>,
    docs_dir: Option<String>,
}

impl Settings {
    fn read(around: &Surroundings) -> Result<Settings, Failure> {
        let path = around.workspace.join(".archon/config.yaml");
        let text = match std::fs::read_to_string(&path) {
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
        let text = |outer: &str, inner: &str| {
            let found = document.get(outer)?.get(inner)?.text()?.trim();
            (!found.is_empty()).then(|| found.to_owned())
        };
        let base_branch = text("worktree", "baseBranch");
        Ok(Settings { base_branch, docs_dir: text("docs", "path") })
    }
}

/// The default branch of the repository that the workspace is in.
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
