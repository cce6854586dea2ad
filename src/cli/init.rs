//! `orchestrate init`: creates a workspace whose workflow runs offline.
//!
//! **Invariant:** existing files are never changed. Lines that an existing file lacks are reported
//! instead.

use std::fs::{DirBuilder, OpenOptions};
use std::io::{self, ErrorKind, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use serde::Serialize;

use super::Common;
use super::invocation::workspace_above;
use super::output::{put_json, put_line};
use crate::base::program_name;
use crate::disk::fs::{self, OnVolume as _};
use crate::run::failure::Failure;
use crate::view::stderr::talk;
use crate::workflow::schema::render::{Topic, schema};

/// Files of a new workspace: path in the workspace, and text.
pub(super) const FILES: [(&str, &str); 7] = [
    ("workflow.yaml", include_str!("../../workflows/init/workflow.yaml")),
    ("offline.yaml", include_str!("../../workflows/init/offline.yaml")),
    ("prompts/plan.md", include_str!("../../workflows/init/prompts/plan.md")),
    ("workflows/spells/check.md", include_str!("../../workflows/init/spells/check.md")),
    (".orchestrate/config.yaml", include_str!("../../workflows/init/config.yaml")),
    (".gitignore", include_str!("../../workflows/init/gitignore")),
    ("AGENTS.md", include_str!("../../workflows/init/AGENTS.md")),
];
const SCHEMAS: [Topic; 2] = [Topic::Workflow, Topic::Config];
const INBOXES: [&str; 4] = ["inbox/architect", "inbox/coordinator", "inbox/engineer", "inbox/qa"];

#[derive(clap::Args, Clone, Debug)]
pub(super) struct InitArgs {
    /// The workspace; made if it is not there
    #[arg(value_name = "DIR", default_value = ".")]
    pub dir: PathBuf,
}

/// Result of `init`.
#[derive(Debug, Default, Serialize)]
struct Outcome {
    workspace: String,
    made: Vec<String>,
    left_alone: Vec<LeftAlone>,
    /// Inboxes that existed and that every user can write to.
    world_writable: Vec<String>,
}

/// A file that existed before.
#[derive(Debug, Serialize)]
struct LeftAlone {
    path: String,
    /// Lines that the file should have and lacks.
    lacks: Vec<String>,
    /// Command that updates the file, if its text differs from this version's.
    refresh: Option<String>,
}

pub(super) fn main(args: &InitArgs, common: &Common) -> Result<u8, Failure> {
    let dir = &args.dir;
    let cannot = |path: &Path, error: &io::Error| {
        let message = format!("cannot make `{}`: {error}", path.display());
        let failure = Failure::failed(message.clone());
        match error.kind() {
            ErrorKind::NotADirectory | ErrorKind::AlreadyExists => Failure::invalid(message)
                .hint("something that is no directory is in the way: name another DIR"),
            ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem => {
                failure.hint("name a DIR that you may write to: `orchestrate init DIR`")
            }
            ErrorKind::StorageFull => failure.hint("make room, then run it again: it goes on"),
            _ => failure,
        }
    };
    make_dir(dir).map_err(|error| cannot(dir, &error))?;
    // Check before creating anything: half a workspace is useless.
    let in_the_way = |path: &PathBuf| fs::symlink_metadata(path).is_ok() && !path.is_present_dir();
    let wanted = ["inbox", ".orchestrate"].iter().chain(&INBOXES).map(|name| dir.join(name));
    if let Some(path) = wanted.into_iter().find(in_the_way) {
        let message =
            format!("`{}` is no directory, and a workspace has one there", path.display());
        return Err(Failure::invalid(message).hint("move it away, or name another DIR"));
    }
    let workspace = dir.canonicalize().map_err(|error| cannot(dir, &error))?;
    if let Some(above) = workspace_above(&workspace).filter(|_| !common.quiet) {
        let (above, inner) = (above.display(), workspace.display());
        talk(format_args!(
            "warning: `{above}` is a workspace already; in `{inner}`, the new one is used instead"
        ));
    }
    let workspace = workspace.display().to_string();
    let mut outcome = Outcome { workspace, ..Outcome::default() };
    let schemas = SCHEMAS.map(|topic| {
        let text = serde_json::to_string_pretty(&schema(topic)).unwrap_or_default();
        (format!(".orchestrate/schemas/{}.json", topic.name()), format!("{text}\n"), Some(topic))
    });
    let files = FILES.map(|(name, text)| (name.to_owned(), text.to_owned(), None));
    for (name, text, topic) in files.into_iter().chain(schemas) {
        let path = dir.join(&name);
        match lay(&path, &text) {
            Ok(true) => outcome.made.push(name),
            Ok(false) => outcome.left_alone.push(left_alone(&path, name, &text, topic)),
            Err(error) => return Err(cannot(&path, &error)),
        }
    }
    for name in INBOXES {
        let path = dir.join(name);
        let new = !path.is_present_dir();
        make_dir(&path).map_err(|error| cannot(&path, &error))?;
        if new {
            outcome.made.push(format!("{name}/"));
        }
    }
    let open = |name: &&str| {
        let there = dir.join(name).metadata();
        there.is_ok_and(|there| there.permissions().mode() & 0o002 != 0)
    };
    let inboxes = ["inbox"].into_iter().chain(INBOXES);
    outcome.world_writable = inboxes.filter(open).map(str::to_owned).collect();
    tell(&outcome, args, common)?;
    Ok(0)
}

/// Creates a directory and its parents. Only the owner and the group can write to it: a process
/// that can write to an inbox can have commands executed.
fn make_dir(dir: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o775).create(dir)
}

/// Creates a file. Returns false, and changes nothing, if the file exists.
fn lay(path: &Path, text: &str) -> io::Result<bool> {
    if let Some(parent) = path.parent() {
        make_dir(parent)?;
    }
    let mut file = match OpenOptions::new().write(true).create_new(true).mode(0o664).open(path) {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => return Ok(false),
        file => file?,
    };
    file.write_all(text.as_bytes()).and_then(|()| file.sync_all()).inspect_err(|_| {
        // Remove a partial file: the next `init` would leave it as it is.
        let _ = fs::remove_file(path);
    })?;
    Ok(true)
}

fn left_alone(path: &Path, name: String, text: &str, topic: Option<Topic>) -> LeftAlone {
    let there = fs::read_to_string(path).unwrap_or_default();
    let lacks = match name.as_str() {
        ".gitignore" => missing_lines(&there, text),
        // The whole fragment, unless the file mentions this program.
        "AGENTS.md" if !there.contains("orchestrate") => text.lines().map(str::to_owned).collect(),
        _ => Vec::new(),
    };
    let refresh = topic.filter(|_| there != text).map(|topic| {
        format!("orchestrate schema {} > .orchestrate/schemas/{0}.json", topic.name())
    });
    LeftAlone { path: name, lacks, refresh }
}

fn missing_lines(there: &str, wanted: &str) -> Vec<String> {
    let has = |line: &str| there.lines().any(|other| other.trim() == line);
    wanted.lines().filter(|line| !has(line)).map(str::to_owned).collect()
}

fn tell(outcome: &Outcome, args: &InitArgs, common: &Common) -> Result<(), Failure> {
    if common.json {
        return put_json("init/v1", outcome);
    }
    for path in &outcome.made {
        put_line(path)?;
    }
    if common.quiet {
        return Ok(());
    }
    for LeftAlone { path, lacks, refresh } in &outcome.left_alone {
        talk(format_args!("left alone: {path}"));
        if let Some(refresh) = refresh {
            talk(format_args!("  it is of another version; to bring it up to date: {refresh}"));
        }
        if !lacks.is_empty() {
            talk(format_args!("  it should also have:"));
        }
        for line in lacks {
            talk(format_args!("{}", format!("    {line}").trim_end()));
        }
    }
    if !outcome.world_writable.is_empty() {
        let named: Vec<_> = outcome.world_writable.iter().map(|name| args.dir.join(name)).collect();
        let named: Vec<_> = named.iter().map(|path| program_name::word(path)).collect();
        talk(format_args!(
            "warning: everybody may write to an inbox that was there, and whoever does gives \
             orders: workers refuse it\n  chmod o-w {}",
            named.join(" ")
        ));
    }
    let enter = match args.dir.as_path() {
        here if here == Path::new(".") => String::new(),
        dir => format!("  cd {}\n", program_name::word(dir)),
    };
    talk(format_args!(
        "\nThe workspace is ready. Next:\n{enter}\
         \x20 orchestrate run workflow.yaml      run the workflow, offline\n\
         \x20 orchestrate up                     start the fleet; then, in another terminal:\n\
         \x20 orchestrate enqueue engineer \"...\" give an agent a task\n\
         \x20 orchestrate help                   every verb"
    ));
    Ok(())
}
