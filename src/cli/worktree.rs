//! `orchestrate worktree`: manages the worktrees of beads by hand.

use std::io::Write as _;
use std::time::Duration;

use serde_json::{Value, json};

use super::invocation::Invocation;
use super::output::{put, put_json, table};
use super::{Common, failure, signals};
use crate::base::ids::{Attempt, BeadId, counted, shown};
use crate::base::time::parse_duration;
use crate::disk::fs::OnVolume as _;
use crate::run::failure::{Class, Failure};
use crate::run::request;
use crate::view::stderr::{Tamed, talk};
use crate::workflow::bead;
use crate::worktree::{
    Block, Checks, Created, HoldRequest, HoldWait, Merge, Merged, Removed, Saved, Scope, TreeError,
    Trees, View, Way, Why,
};

#[derive(clap::Subcommand, Clone, Debug)]
pub(super) enum WorktreeVerb {
    /// Show the worktrees of beads: where they stand, what is in them, who works there
    Ls,
    /// Make the worktree of a bead, or take up the one that is there
    Add(AddArgs),
    /// Commit what is in a worktree, on its branch
    Checkpoint(CheckpointArgs),
    /// Show everything that a merge would bring, and the digest that an approval is bound to
    Diff(IdArg),
    /// Merge a worktree's branch into its base, when its turn has come
    Merge(MergeArgs),
    /// Remove a worktree whose work is merged, or, after saving everything, any
    Rm(RmArgs),
    /// Show what was saved, or make a worktree of it again
    Recover(RecoverArgs),
}

#[derive(clap::Args, Clone, Debug)]
pub(super) struct IdArg {
    /// The bead's id
    #[arg(value_name = "ID")]
    pub id: String,
}

#[derive(clap::Args, Clone, Debug)]
pub(super) struct AddArgs {
    /// The bead: its id, or its file
    #[arg(value_name = "ID|FILE")]
    pub bead: String,
    /// The branch to begin at [default: `worktree.base_branch` of the settings, else the one that
    /// is checked out]
    #[arg(long, value_name = "BRANCH")]
    pub base: Option<String>,
}

#[derive(clap::Args, Clone, Debug)]
pub(super) struct CheckpointArgs {
    #[command(flatten)]
    pub id: IdArg,
    /// What the commit's message calls the step
    #[arg(long, value_name = "NAME", default_value = "by hand")]
    pub step: String,
}

#[derive(clap::Args, Clone, Debug)]
pub(super) struct MergeArgs {
    #[command(flatten)]
    pub id: IdArg,
    /// Merge only if the review diff has this digest
    #[arg(long, value_name = "SHA256")]
    pub approval: Option<String>,
    /// A command that must succeed in the merged tree, run by `sh -c`; may be given several times
    /// [default: `worktree.checks` of the settings]
    #[arg(long = "check", value_name = "COMMAND")]
    pub checks: Vec<String>,
    /// Run no checks, whatever the settings say
    #[arg(long, conflicts_with = "checks")]
    pub no_checks: bool,
    /// How long each check may take [default: `worktree.check_timeout` of the settings, 30m]
    #[arg(long, value_name = "TIME")]
    pub check_timeout: Option<String>,
    /// How long to wait for whoever works in it, and for other merges of the repository
    /// [default: `worktree.wait` of the settings, 1h]
    #[arg(long, value_name = "TIME")]
    pub wait: Option<String>,
    /// What the bead is about, for the message of the merge
    #[arg(long, value_name = "TEXT")]
    pub title: Option<String>,
}

#[derive(clap::Args, Clone, Debug)]
pub(super) struct RmArgs {
    #[command(flatten)]
    pub id: IdArg,
    /// Remove it although it has work that is nowhere else, after saving everything under a ref
    #[arg(long)]
    pub force: bool,
    /// Save ignored files too
    #[arg(long, requires = "force")]
    pub ignored: bool,
}

#[derive(clap::Args, Clone, Debug)]
pub(super) struct RecoverArgs {
    /// The bead's id, for the latest that was saved of it, or ID/STAMP
    #[arg(value_name = "ID")]
    pub id: Option<String>,
    /// The id of the new worktree [default: the same]
    #[arg(long = "as", value_name = "ID", requires = "id")]
    pub new: Option<String>,
}

pub(super) fn main(verb: &WorktreeVerb, common: &Common) -> Result<u8, Failure> {
    let invocation = Invocation::read(common)?;
    // A merge handles signals itself: it must not stop halfway in a checkout that is in use.
    if !matches!(verb, WorktreeVerb::Merge(_)) {
        signals::end_with_children()?;
    }
    let trees = Trees::open(&invocation.workspace).map_err(|error| refused(&error))?;
    let trees = trees.patient(invocation.config.tree_remote, None);
    match verb {
        WorktreeVerb::Ls => list(&trees, &invocation),
        WorktreeVerb::Add(args) => add(args, &trees, &invocation),
        WorktreeVerb::Checkpoint(args) => checkpoint(args, &trees, &invocation),
        WorktreeVerb::Diff(args) => diff(args, &trees, &invocation),
        WorktreeVerb::Merge(args) => merge(args, &trees, &invocation),
        WorktreeVerb::Rm(args) => remove(args, &trees, &invocation),
        WorktreeVerb::Recover(args) => recover(args, &trees, &invocation),
    }
}

/// Converts a worktree error into a failure, with its exit code and hint.
pub(super) fn refused(error: &TreeError) -> Failure {
    let failure = Failure::new(Class::of_exit_code(error.exit_code()), error);
    match error.cure() {
        Some(cure) => failure.hint(cure),
        None => failure,
    }
}

fn id(text: &str) -> Result<BeadId, Failure> {
    BeadId::parse(text).map_err(Failure::invalid)
}

fn warn(warnings: &[String]) {
    for warning in warnings {
        talk(format_args!("warning: {warning}"));
    }
}

fn list(trees: &Trees, invocation: &Invocation) -> Result<u8, Failure> {
    let views = trees.views().map_err(|error| refused(&error))?;
    if invocation.common.json {
        let views: Vec<Value> = views.iter().map(view_json).collect();
        put_json("worktrees/v1", json!({ "worktrees": views }))?;
        return Ok(0);
    }
    if views.is_empty() {
        invocation.note("there are no worktrees of beads here");
        return Ok(0);
    }
    let titles = ["ID", "BASE", "AHEAD", "BEHIND", "DIRTY", "STATE", "HOLDER", "SAVED"];
    let mut rows = vec![titles.map(str::to_owned).to_vec()];
    rows.extend(views.iter().map(row));
    put(&table(&rows))?;
    for view in &views {
        if let Some((problem, cure)) = &view.problem {
            invocation.note(format!("{}: {problem}\n  = hint: {cure}", view.id));
        }
    }
    Ok(0)
}

fn row(view: &View) -> Vec<String> {
    let or_dash = |text: Option<String>| text.unwrap_or_else(|| "-".into());
    let count = |count: Option<u64>| or_dash(count.map(|count| count.to_string()));
    let holder = view.holder.as_ref().map(|holder| {
        format!("{}{}", shown(&holder.step.step), if view.holder_lives { "" } else { " (dead)" })
    });
    vec![
        view.id.to_string(),
        or_dash(view.base_branch.clone()),
        count(view.ahead),
        count(view.behind),
        view.dirty.len().to_string(),
        state(view).to_owned(),
        or_dash(holder),
        view.saved.len().to_string(),
    ]
}

/// Returns the state of a worktree as one word.
pub(super) fn state(view: &View) -> &'static str {
    match view {
        View { problem: Some(_), .. } => "stuck",
        view if view.is_empty() => "empty",
        View { merged: true, .. } => "merged",
        View { is_there: false, .. } => "branch",
        _ => "open",
    }
}

fn view_json(view: &View) -> Value {
    json!({
        "id": view.id,
        "path": view.path,
        "branch": view.branch,
        "base_branch": view.base_branch,
        "base_commit": view.base_commit,
        "head": view.head,
        "there": view.is_there,
        "state": state(view),
        "ahead": view.ahead,
        "behind": view.behind,
        "dirty": view.dirty,
        "merged": view.merged,
        "holder": view.holder,
        "holder_alive": view.holder.as_ref().map(|_| view.holder_lives),
        "problem": view.problem.as_ref().map(|(problem, _)| problem),
        "hint": view.problem.as_ref().map(|(_, cure)| cure),
        "saved": view.saved.iter().map(|saved| &saved.name).collect::<Vec<_>>(),
    })
}

/// Returns the bead id that `name` is, or the id of the bead in the file `name`.
fn bead_id(name: &str, invocation: &Invocation) -> Result<BeadId, Failure> {
    if BeadId::fault(name).is_some() || bead::is_file(name) {
        return Ok(request::read_bead(invocation, name)?.id);
    }
    if name.contains('.') && invocation.workspace.join(name).is_present_file() {
        let message = format!("`{name}` is a file here, and not one that can be of a bead");
        return Err(Failure::invalid(message).hint(
            "a bead is a `.md`, `.yaml` or `.json` file, or an id that is the name of none",
        ));
    }
    id(name)
}

fn add(args: &AddArgs, trees: &Trees, invocation: &Invocation) -> Result<u8, Failure> {
    let id = bead_id(&args.bead, invocation)?;
    let at_work = trees.relieve(&id).map_err(|error| refused(&error))?;
    let base = args.base.as_deref().or(invocation.config.base_branch.as_deref());
    let created = trees.create(&id, base).map_err(|error| refused(&error))?;
    let Created { tree, way, dirty, mut warnings } = created;
    warnings.extend(at_work.map(|holder| format!("{holder} works there")));
    warn(&warnings);
    if !dirty.is_empty() {
        let are = if dirty.len() == 1 { "is" } else { "are" };
        warn(&[format!("{} in it {are} in no commit", counted(dirty.len(), "file"))]);
    }
    let way = match way {
        Way::Made => "made",
        Way::Reused => "reused",
        Way::Remade => "remade",
        Way::Fetched => "fetched",
    };
    if invocation.common.json {
        let body = json!({
            "id": tree.id, "way": way, "path": tree.path, "branch": tree.branch,
            "base_branch": tree.base_branch, "base_commit": tree.base_commit,
            "dirty": dirty, "warnings": warnings,
        });
        put_json("worktree-add/v1", body)?;
        return Ok(0);
    }
    invocation.note(format!("{way} from `{}` at {}", tree.base_branch, short(&tree.base_commit)));
    put(&format!("{}\n", tree.path.display()))?;
    Ok(0)
}

/// Shortens a commit id for display.
fn short(commit: &str) -> &str {
    commit.get(..12).unwrap_or(commit)
}

fn checkpoint(
    args: &CheckpointArgs,
    trees: &Trees,
    invocation: &Invocation,
) -> Result<u8, Failure> {
    let id = id(&args.id.id)?;
    let why = Why { run: None, step: &args.step, attempt: Attempt::FIRST };
    let hold = trees.hold(&id, &HoldRequest::by_hand("checkpoint"));
    let done = hold.and_then(|_hold| trees.checkpoint(&id, &why));
    let done = done.map_err(|error| refused(&error))?;
    warn_left_out(&done.left_out);
    if invocation.common.json {
        let (commit, files) = (&done.commit, &done.files);
        put_json("checkpoint/v1", json!({ "id": id, "commit": commit, "files": files }))?;
        return Ok(0);
    }
    match &done.commit {
        Some(commit) => put(&format!("{commit}\n"))?,
        None => invocation.note("nothing to commit"),
    }
    Ok(0)
}

fn warn_left_out(left_out: &[String]) {
    for name in left_out {
        talk(format_args!("warning: `{name}` is a repository of its own, and is left out"));
    }
}

fn diff(args: &IdArg, trees: &Trees, invocation: &Invocation) -> Result<u8, Failure> {
    let id = id(&args.id)?;
    let review = trees.review(&id).map_err(|error| refused(&error))?;
    warn_left_out(&review.left_out);
    if invocation.common.json {
        let body = json!({
            "id": id, "sha256": review.hash, "merge_base": review.merge_base,
            "dirty": review.dirty, "diff": String::from_utf8_lossy(&review.text),
        });
        put_json("review/v1", body)?;
        return Ok(0);
    }
    // Do not use `put`: a diff may not be UTF-8, and the digest covers exactly these bytes.
    let mut out = Tamed::stdout();
    match out.write_all(&review.text).and_then(|()| out.flush()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            let message = format!("cannot write to standard output: {error}");
            return Err(Failure::failed(message));
        }
        _ => {}
    }
    invocation.note(format!("sha256 {}", review.hash));
    Ok(0)
}

fn duration(flag: &str, text: &str) -> Result<Duration, Failure> {
    let ms = parse_duration(text).ok_or_else(|| {
        Failure::invalid(format!("`{text}` is no length of time for `{flag}`"))
            .hint("write a number and a unit: 90s, 30m, 2h")
    })?;
    Ok(Duration::from_millis(ms))
}

/// Rejects an approval that is not a SHA-256 digest.
fn check_digest(approval: &str) -> Result<(), Failure> {
    let letters = approval.chars().count();
    let why = match approval.chars().find(|letter| !letter.is_ascii_hexdigit()) {
        Some(letter) => format!("`{letter}` is no hexadecimal digit"),
        None if letters != DIGEST => format!("it has {letters} letters, not {DIGEST}"),
        None => return Ok(()),
    };
    Err(Failure::invalid(format!("`--approval` is no digest: {why}"))
        .hint("`orchestrate worktree diff` ends with it"))
}

/// Length of a SHA-256 digest in hexadecimal digits.
const DIGEST: usize = 64;

fn merge(args: &MergeArgs, trees: &Trees, invocation: &Invocation) -> Result<u8, Failure> {
    let id = id(&args.id.id)?;
    args.approval.as_deref().map_or(Ok(()), check_digest)?;
    let configured = &invocation.config.checks;
    let commands = match args.checks.is_empty() && !args.no_checks {
        true => &configured.commands,
        false => &args.checks,
    };
    let given = |flag: &str, text: &Option<String>, configured: Duration| match text {
        Some(text) => duration(flag, text),
        None => Ok(configured),
    };
    let limit = given("--check-timeout", &args.check_timeout, configured.timeout)?;
    let wait = given("--wait", &args.wait, invocation.config.tree_wait)?;
    let order = Merge {
        id: &id,
        title: args.title.as_deref(),
        checks: Checks { commands, limit: Some(limit), ..Checks::default() },
        approval: args.approval.as_deref(),
        wait,
    };
    let signals = signals::listen()?;
    let report = |holder: &str| invocation.note(format!("waiting for {holder}"));
    let terms = HoldWait { limit: wait, stop: &signals.stop, report: &report };
    let held = trees.wait_for(&id, &HoldRequest::by_hand("merge"), &terms);
    let mut removed = None;
    let merged = held.and_then(|hold| {
        let merged = trees.merge(&order, Some(&hold), &signals.stop)?;
        if !matches!(merged, Merged::Blocked(_)) {
            removed = Some(trees.remove_merged(&id, &hold));
        }
        Ok(merged)
    });
    let merged = match merged {
        Err(TreeError::Stopped) => {
            return Err(Failure::new(
                Class::Stopped(signals.code()),
                "stopped; nothing was merged",
            ));
        }
        merged => merged.map_err(|error| refused(&error))?,
    };
    match &merged {
        Merged::Blocked(block) => return blocked(&id, block, invocation),
        Merged::Already { base } => {
            invocation.note(format!("everything in it is in `{base}` already"))
        }
        Merged::Done { base, moved, .. } => {
            let copy = moved.as_ref().map(|path| format!(", also in `{}`", path.display()));
            invocation.note(format!("merged into `{base}`{}", copy.unwrap_or_default()));
        }
    }
    match removed {
        Some(Ok(removed)) => tell_ignored(&removed, invocation),
        Some(Err(error)) => {
            invocation.note(format!("worktree `{id}` stays, although it is merged: {error}"));
        }
        None => {}
    }
    let (commit, base) = match &merged {
        Merged::Done { commit, base, .. } => (Some(commit), base),
        Merged::Already { base } => (None, base),
        Merged::Blocked(_) => return Ok(1),
    };
    if invocation.common.json {
        let body = json!({ "id": id, "outcome": "merged", "base": base, "commit": commit });
        put_json("merge/v1", body)?;
    } else if let Some(commit) = commit {
        put(&format!("{commit}\n"))?;
    }
    Ok(0)
}

/// Reports a merge that a user must resolve. Prints the document for `--json`.
fn blocked(id: &BeadId, block: &Block, invocation: &Invocation) -> Result<u8, Failure> {
    let class = Class::of_exit_code(block.exit_code());
    let failure = Failure::new(class, format!("cannot merge `{id}`: {block}"));
    let failure = failure.hint(block.cure(id));
    if !invocation.common.json {
        return Err(failure);
    }
    let files = match block {
        Block::Conflicts { files, .. } => files.clone(),
        _ => Vec::new(),
    };
    let (reason, hint) = (block.to_string(), block.cure(id));
    let body = json!({
        "id": id, "outcome": "blocked", "reason": reason, "hint": hint, "conflicts": files,
    });
    put_json("merge/v1", body)?;
    Ok(failure::print_text(&failure))
}

fn tell_ignored(removed: &Removed, invocation: &Invocation) {
    if !removed.ignored.is_empty() {
        let list = removed.ignored.join(", ");
        invocation.note(format!("ignored files went with it: {list}"));
    }
}

fn remove(args: &RmArgs, trees: &Trees, invocation: &Invocation) -> Result<u8, Failure> {
    let id = id(&args.id.id)?;
    let scope = if args.ignored { Scope::All } else { Scope::Work };
    let force = args.force.then_some(scope);
    let removed = trees.remove(&id, force).map_err(|error| refused(&error))?;
    tell_ignored(&removed, invocation);
    if invocation.common.json {
        let body = json!({ "id": id, "saved": removed.saved, "ignored": removed.ignored });
        put_json("worktree-rm/v1", body)?;
        return Ok(0);
    }
    invocation.note(format!("removed worktree `{id}` and its branch"));
    if trees.is_on_remote(&id).unwrap_or(false) {
        invocation.note(format!(
            "the remote was seen to have it too, and work would go on from there; `git push origin \
             --delete coven/{id}` removes it"
        ));
    }
    if let Some(saved) = &removed.saved {
        invocation.note(match removed.whole {
            true => format!("everything is saved; back again: orchestrate worktree recover {id}"),
            false => "commits that its branch did not have any more are kept under a ref".into(),
        });
        put(&format!("{saved}\n"))?;
    }
    Ok(0)
}

fn recover(args: &RecoverArgs, trees: &Trees, invocation: &Invocation) -> Result<u8, Failure> {
    let saved = trees.saved().map_err(|error| refused(&error))?;
    let Some(name) = &args.id else { return list_saved(&saved, invocation) };
    let (wanted, stamp) = match name.split_once('/') {
        Some((id, stamp)) => (id, Some(stamp)),
        None => (name.as_str(), None),
    };
    let wanted = id(wanted)?;
    let fits = |saved: &&Saved| saved.id == wanted && stamp.is_none_or(|s| saved.stamp == s);
    let found = saved.iter().find(fits).ok_or_else(|| {
        Failure::invalid(format!("nothing was saved of `{name}`"))
            .hint("`orchestrate worktree recover` lists what was")
    })?;
    let new = match &args.new {
        Some(new) => id(new)?,
        None => wanted,
    };
    let tree = trees.restore(found, &new).map_err(|error| refused(&error))?;
    if invocation.common.json {
        let body = json!({
            "id": tree.id, "path": tree.path, "branch": tree.branch, "from": found.name,
        });
        put_json("worktree-recover/v1", body)?;
        return Ok(0);
    }
    invocation.note(format!("made from `{}`, which stays", found.name));
    put(&format!("{}\n", tree.path.display()))?;
    Ok(0)
}

fn list_saved(saved: &[Saved], invocation: &Invocation) -> Result<u8, Failure> {
    if invocation.common.json {
        let saved: Vec<Value> = saved
            .iter()
            .map(|saved| {
                json!({
                    "id": saved.id, "stamp": saved.stamp, "ref": saved.name,
                    "commit": saved.commit, "subject": saved.subject,
                })
            })
            .collect();
        put_json("saved/v1", json!({ "saved": saved }))?;
        return Ok(0);
    }
    if saved.is_empty() {
        invocation.note("nothing was saved");
        return Ok(0);
    }
    let mut rows = vec![["ID", "STAMP", "COMMIT", "WHAT"].map(str::to_owned).to_vec()];
    rows.extend(saved.iter().map(|saved| {
        vec![
            saved.id.to_string(),
            saved.stamp.clone(),
            short(&saved.commit).to_owned(),
            saved.subject.clone(),
        ]
    }));
    put(&table(&rows))?;
    Ok(0)
}
