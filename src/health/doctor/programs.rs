//! Checks the programs that steps and agents call: are they installed, and do they work?

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use super::Finding;
use crate::agent::Kind;
use crate::attempt::exec_env::Environment;
use crate::attempt::parking::{self, Cause, ParkedView};
use crate::attempt::provider_check::{self, Known, Program};
use crate::exec::{self, Stop};
use crate::settings::Config;
use crate::workflow::Configured;
use crate::workflow::plan::Provider;
use crate::yaml::problem::nearest;

/// The first Git whose `worktree list` can be parsed for all names.
const GIT: [u64; 2] = [2, 36];
/// Timeout of `--version`: all programs run at once, and the user waits.
const PATIENCE: Duration = Duration::from_secs(5);

/// Returns the findings about all programs.
pub(super) fn look(
    config: &Config,
    environment: &Environment,
    workspace: &Path,
    stop: &Stop,
) -> Vec<Finding> {
    let path = environment.get("PATH").map_or(OsStr::new(""), |path| path.as_os_str());
    let mut programs = BTreeMap::new();
    for (name, provider) in config.providers() {
        programs.insert(name.clone(), provider_check::find(provider, environment, workspace));
    }
    let git = exec::locate("git", path, workspace);
    let mut files: Vec<PathBuf> = git.iter().cloned().collect();
    // The effect of `--version` on an unknown program is unknown, so it is not called.
    files.extend(config.providers().iter().filter_map(
        |(name, provider)| match programs.get(name) {
            Some(Program::Found(file)) if provider.adapter.tried().is_some() => Some(file.clone()),
            _ => None,
        },
    ));
    let versions = versions(files, workspace, stop);
    let mut findings = vec![match git {
        Ok(file) => judge_git(&file, versions.get(&file)),
        Err(error) => Finding::warning("git", error.to_string(), "install git, for worktrees"),
    }];
    for (name, provider) in config.providers() {
        if let Some(program) = programs.get(name) {
            findings.push(judge(name, provider, program, &versions));
        }
    }
    findings.extend(suspensions(workspace));
    findings
}

/// Returns the providers that workers have suspended on some machine, because they cannot run
/// there.
fn suspensions(workspace: &Path) -> Vec<Finding> {
    let mut all = parking::look(workspace).unwrap_or_default();
    all.retain(|parked| parked.cause == Cause::Machine);
    let finding = |parked: &ParkedView| {
        let (fix, name) = (&parked.fix, &parked.provider);
        let state = parked.suspension();
        match parked.is_whole_machine() {
            true => Finding::warning("workers", format!("every task {state}"), fix),
            false => {
                let cure = format!("{fix}; then `orchestrate provider resume {name}`");
                Finding::warning(&format!("provider {name}"), format!("it {state}"), cure)
            }
        }
    };
    all.iter().map(finding).collect()
}

/// Finds names in the settings that do not exist: work that depends on such a default cannot be
/// done.
pub(super) fn defaults(config: &Config) -> Vec<Finding> {
    const NAME: &str = "settings";
    let mut findings = Vec::new();
    let provider = config.default_provider.as_str();
    if !config.providers().contains_key(provider) {
        let text = format!("`default_provider` is `{provider}`, which is no provider");
        findings.push(Finding::wrong(NAME, text, meant(provider, config.providers().keys())));
    }
    let agent = config.default_agent.as_str();
    if !config.agents().contains_key(agent) {
        let text = format!("`default_agent` is `{agent}`, of which the settings say nothing else");
        findings.push(Finding::warning(NAME, text, meant(agent, config.agents().keys())));
    }
    findings
}

/// Suggests the nearest known name, or lists all.
fn meant<'a>(name: &str, known: impl Iterator<Item = &'a String> + Clone) -> String {
    match nearest(name, known.clone().map(String::as_str)) {
        Some(near) => format!("did you mean `{near}`?"),
        None => {
            let names: Vec<_> = known.map(|name| format!("`{name}`")).collect();
            format!("name one of {}", names.join(", "))
        }
    }
}

type Versions = BTreeMap<PathBuf, Result<String, String>>;

/// Asks each program once, all at the same time.
fn versions(mut files: Vec<PathBuf>, workspace: &Path, stop: &Stop) -> Versions {
    files.sort();
    files.dedup();
    thread::scope(|scope| {
        let ask = |file: PathBuf| {
            scope.spawn(move || {
                let said = provider_check::version_within(&file, workspace, stop, PATIENCE);
                (file, said)
            })
        };
        let asked: Vec<_> = files.into_iter().map(ask).collect();
        asked.into_iter().filter_map(|one| one.join().ok()).collect()
    })
}

fn judge_git(file: &Path, version: Option<&Result<String, String>>) -> Finding {
    const NAME: &str = "git";
    let cure = format!("install git {}.{} or newer, for worktrees", GIT[0], GIT[1]);
    let shown = file.display();
    match version {
        Some(Ok(said)) => match provider_check::numbers(said) {
            Some(found) if found.as_slice() < &GIT[..] => {
                let text = format!("`{shown}` is too old: {said}; worktrees of beads will fail");
                Finding::warning(NAME, text, cure)
            }
            Some(_) => Finding::ok(NAME, format!("`{shown}`, {said}")),
            None => Finding::warning(NAME, format!("`{shown}` says `{said}`"), cure),
        },
        Some(Err(problem)) => Finding::warning(NAME, format!("`{shown}`: {problem}"), cure),
        None => Finding::ok(NAME, format!("`{shown}`")),
    }
}

fn judge(name: &str, provider: &Provider, program: &Program, versions: &Versions) -> Finding {
    let title = format!("provider {name}");
    match program {
        Program::Unknown => Finding::ok(&title, "its program is known only when a step asks it"),
        Program::BuiltIn => Finding::ok(&title, "built in"),
        Program::Missing(problem) => {
            let program = provider.program().unwrap_or_default();
            let hint = provider.adapter.install_hint();
            let hint = hint.unwrap_or_else(|| format!("install `{program}` for this user"));
            let text = format!("{problem}: a step that asks it fails");
            Finding::warning(&title, text, format!("{hint}, or use another provider"))
        }
        Program::Found(file) => judge_found(&title, name, provider.adapter, file, versions),
    }
}

fn judge_found(title: &str, name: &str, kind: Kind, file: &Path, versions: &Versions) -> Finding {
    let shown = file.display();
    let version = match versions.get(file) {
        Some(Ok(version)) => version,
        Some(Err(problem)) => {
            let text = format!("`{shown}`: {problem}");
            let cure = format!("start it by hand once; {}", again(kind));
            return Finding::warning(title, text, cure);
        }
        None => return Finding::ok(title, format!("`{shown}`")),
    };
    let Some(known) = Known::of(kind, version) else {
        return Finding::ok(title, format!("`{shown}`"));
    };
    let text = format!("`{shown}`, {version}, {}", known.words());
    match known {
        Known::Tried { .. } => Finding::ok(title, text),
        Known::Older { .. } => Finding::warning(title, text, again(kind)),
        Known::Newer { .. } | Known::Untried { .. } => {
            let cure = format!("`orchestrate provider test {name}` says whether it can be used");
            Finding { cure: Some(cure), ..Finding::ok(title, text) }
        }
    }
}

/// Returns the way to install a program again.
fn again(kind: Kind) -> String {
    kind.install_hint().unwrap_or_else(|| "install it again".to_owned())
}

#[cfg(test)]
mod tests {
    use super::super::Verdict;
    use super::*;

    #[test]
    fn a_git_that_is_too_old_is_told() {
        let git = |said: &str| judge_git(Path::new("/usr/bin/git"), Some(&Ok(said.to_owned())));
        for said in ["git version 2.47.3", "git version 2.36.0.windows.1", "git version 3.0"] {
            assert_eq!(git(said).verdict, Verdict::Ok, "{said}");
        }
        for said in ["git version 2.35.9", "git version 1.9", "what is git"] {
            assert_eq!(git(said).verdict, Verdict::Warning, "{said}");
        }
    }
}
