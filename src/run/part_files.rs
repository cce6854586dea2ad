//! The command files and scripts that a workflow consists of.

use std::path::{Path, PathBuf};

use super::project::Project;
use super::workflow_file::{read_bounded, workflow_path};
use crate::attempt::source_files::{self, Library};
use crate::workflow::Problem;
use crate::workflow::nodes::commands::{self, CommandFile};
use crate::workflow::plan::{Action, Code, Part, PartKind, Plan, Script, Step};

/// A file that a workflow consists of, with its content when the run was created.
pub(crate) struct PartFile {
    pub part: Part,
    pub from: PathBuf,
    pub text: Vec<u8>,
}

/// Reads the files that a workflow consists of. Returns those that were read, and the problems of
/// the others.
///
/// A missing file is a warning if an earlier node of the plan may write it.
pub(crate) fn read(
    project: &Project,
    file: &str,
    plan: Option<&Plan>,
    parts: &[Part],
) -> (Vec<PartFile>, Vec<Problem>) {
    let library = library(project, Some(file));
    let mut kept: Vec<PartFile> = Vec::new();
    let mut missing = Vec::new();
    for part in parts {
        let read = library.find(part).and_then(|from| {
            let text = read_bounded(&from, project.config.input_bytes)
                .map_err(|error| format!("cannot read `{}`: {error}", from.display()))
                .map_err(|reason| Problem { place: part.place, ..Problem::error(reason) })?;
            let file = from.strip_prefix(&project.workspace).unwrap_or(&from).display();
            if let Some(fault) = source_files::fault(part, &file.to_string(), &text) {
                return Err(fault);
            }
            Ok(PartFile { part: part.clone(), from, text })
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
                        reason.into_warning().hint(hint)
                    }
                    false => reason,
                });
            }
        }
    }
    (kept, missing)
}

/// Returns warnings about the command files and scripts among `kept`.
pub(crate) fn warnings(project: &Project, plan: &Plan, kept: &[PartFile]) -> Vec<Problem> {
    let mut found = Vec::new();
    for PartFile { part, from, text } in kept.iter().filter(|k| k.part.kind == PartKind::Command) {
        let text = String::from_utf8_lossy(text);
        let file = from.strip_prefix(&project.workspace).unwrap_or(from).display().to_string();
        let prompt = source_files::without_front_matter(&text);
        let command = CommandFile { name: &part.name, file: &file, text: &text, prompt };
        found.extend(commands::doubtful(plan, &command));
    }
    found.extend(other_runtimes(project, plan, kept));
    found
}

/// Warns about scripts whose file extension does not match the runtime of their node. The extension
/// decides.
fn other_runtimes(project: &Project, plan: &Plan, kept: &[PartFile]) -> Vec<Problem> {
    let mut found = Vec::new();
    plan.root().walk(&mut |step: &Step| {
        let Action::Script(Script { code: Code::Named(name), runtime, .. }) = &step.action else {
            return;
        };
        let is = |kept: &&PartFile| kept.part.kind == PartKind::Script && kept.part.name == *name;
        let Some(PartFile { part, from, .. }) = kept.iter().find(is) else { return };
        let by_file = source_files::runtime_of(&from.to_string_lossy()).unwrap_or(*runtime);
        if by_file != *runtime {
            let file = from.strip_prefix(&project.workspace).unwrap_or(from).display();
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
pub(crate) fn library(project: &Project, file: Option<&str>) -> Library {
    let path = file.map(|file| workflow_path(project, Path::new(file)));
    let beside = path.and_then(|path| path.parent().map(Path::to_owned));
    Library { workspace: project.workspace.clone(), beside, home: project.home_dir() }
}
