//! Runs `git` independently of its environment: no prompt, no hooks, no pager, no background work,
//! messages in English, and a time limit.
//!
//! The user's own settings still apply, except where they would make a commit wait for the user
//! (signatures) or fail for a matter of style (`core.safecrlf`).
//!
//! **Invariant:** a call states everything that it depends on. Variables such as `GIT_DIR`, which a
//! hook has in its environment, do not reach it.

pub(crate) mod lock;
pub(crate) mod repo;

use std::ffi::OsString;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use crate::exec::{self, How, Order, Said, StartError, Stop};

pub(crate) use lock::{Lock, LockError};
pub(crate) use repo::Repo;

/// Time limit of a command that does not use the network.
const LIMIT: Duration = Duration::from_secs(600);
/// Maximum output of a command, in bytes: no user reads a diff of this size.
const OUTPUT_BYTES: usize = 256 << 20;
/// Maximum number of output lines in an error.
const LINES: usize = 5;

/// Settings for every call.
const SETTINGS: [&str; 12] = [
    "core.hooksPath=/dev/null",
    "core.fsmonitor=false",
    "core.quotePath=false",
    "core.safecrlf=false",
    "core.ignoreStat=false",
    "gc.auto=0",
    "maintenance.auto=false",
    "commit.gpgSign=false",
    "rerere.enabled=false",
    "submodule.recurse=false",
    "color.ui=false",
    "advice.addEmbeddedRepo=false",
];

/// Variables that would change the behavior of `git`, in addition to those that no child process
/// inherits ([`exec::LOCAL_TO_GIT`]).
pub(crate) const NOT_INHERITED: [&str; 9] = [
    "GIT_CEILING_DIRECTORIES",
    "GIT_EXTERNAL_DIFF",
    "GIT_DIFF_OPTS",
    "GIT_LITERAL_PATHSPECS",
    "GIT_GLOB_PATHSPECS",
    "GIT_NOGLOB_PATHSPECS",
    "GIT_ICASE_PATHSPECS",
    "GIT_DEFAULT_HASH",
    "GIT_TRACE",
];

/// Reason why a `git` command did not succeed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum GitError {
    #[error("`git` was not found in PATH")]
    NotThere,
    #[error("cannot run `git`: {0}")]
    Start(StartError),
    #[error("`git {what}` did not end within {} s", limit.as_secs())]
    TimedOut { what: String, limit: Duration },
    #[error("`git {what}` failed with exit code {code}: {said}")]
    Failed { what: String, code: i32, said: String },
    #[error("`git {what}` was stopped")]
    Stopped { what: String },
    #[error("`git` is too old: {version}")]
    TooOld { version: String },
    #[error("`git {what}` printed {fault}")]
    Odd { what: String, fault: &'static str },
}

impl GitError {}

/// `git` in one directory.
#[derive(Clone, Debug)]
pub(crate) struct Git {
    dir: PathBuf,
    limit: Duration,
    env: Vec<(String, OsString)>,
    settings: Vec<String>,
    /// Held open by every command, so that a lock on it outlives this process if the command does.
    hold: Option<Arc<File>>,
    /// Handle to stop a command.
    stop: Option<Stop>,
}

impl Git {
    pub(crate) fn at(dir: &Path) -> Git {
        let env = [
            ("GIT_TERMINAL_PROMPT", "0"),
            ("GIT_OPTIONAL_LOCKS", "0"),
            ("LC_ALL", "C"),
            // A remote that asks for a password would wait for a user who is not there.
            ("SSH_ASKPASS", "false"),
            ("SSH_ASKPASS_REQUIRE", "force"),
        ];
        let env = env.map(|(name, value)| (name.to_owned(), OsString::from(value)));
        let (dir, env) = (dir.to_owned(), env.to_vec());
        Git { dir, limit: LIMIT, env, settings: Vec::new(), hold: None, stop: None }
    }

    /// Returns the working directory.
    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    pub(crate) fn within(self, limit: Duration) -> Git {
        Git { limit, ..self }
    }

    /// Allows commands to be stopped.
    pub(crate) fn until(self, stop: Option<Stop>) -> Git {
        Git { stop, ..self }
    }

    pub(crate) fn env(mut self, name: &str, value: impl Into<OsString>) -> Git {
        self.env.push((name.to_owned(), value.into()));
        self
    }

    /// Adds a setting for these calls: `user.name=A`.
    pub(crate) fn setting(mut self, setting: impl Into<String>) -> Git {
        self.settings.push(setting.into());
        self
    }

    /// Ignores the user's merge options for a branch: with `--squash` or a strategy, a merge would
    /// have a different result.
    pub(crate) fn plain_merges(self, branch: &str) -> Git {
        // Not passed with `-c`: a branch name may contain a `=`.
        self.env("GIT_CONFIG_COUNT", "1")
            .env("GIT_CONFIG_KEY_0", format!("branch.{branch}.mergeoptions"))
            .env("GIT_CONFIG_VALUE_0", "")
    }

    /// Makes every command hold a locked file open.
    pub(crate) fn holding(self, hold: Option<Arc<File>>) -> Git {
        Git { hold, ..self }
    }

    /// Runs a command and accepts any exit code.
    pub(crate) fn said(&self, args: &[&str]) -> Result<Said, GitError> {
        self.said_to(args, None)
    }

    fn said_to(&self, args: &[&str], input: Option<&[u8]>) -> Result<Said, GitError> {
        let mut argv = vec!["git".to_owned()];
        let settings = SETTINGS.into_iter().chain(self.settings.iter().map(String::as_str));
        argv.extend(settings.flat_map(|setting| ["-c".to_owned(), setting.to_owned()]));
        argv.extend(args.iter().map(|arg| (*arg).to_owned()));
        let order = Order {
            env: &self.env,
            env_remove: &NOT_INHERITED,
            stdin: input,
            timeout: Some(self.limit),
            ..Order::new(&argv, &self.dir, "git")
        };
        let said = exec::call(&order, self.hold.as_deref(), OUTPUT_BYTES, self.stop.as_ref());
        let said = said.map_err(|error| match error {
            StartError::NotFound { .. } => GitError::NotThere,
            error => GitError::Start(error),
        })?;
        match said.how {
            How::TimedOut => Err(GitError::TimedOut { what: what(args), limit: self.limit }),
            How::Stopped => Err(GitError::Stopped { what: what(args) }),
            _ if !said.whole => {
                Err(GitError::Odd { what: what(args), fault: "more than can be kept" })
            }
            _ => Ok(said),
        }
    }

    /// Runs a command that must succeed, and returns its output.
    pub(crate) fn bytes(&self, args: &[&str]) -> Result<Vec<u8>, GitError> {
        let said = self.said(args)?;
        match said.how.exit_code() {
            0 => Ok(said.out),
            _ => Err(failed(args, &said)),
        }
    }

    /// Like [`bytes`](Self::bytes), with `input` on stdin, for example a long list of names. The
    /// command does not hold the locked file.
    pub(crate) fn fed(&self, args: &[&str], input: &[u8]) -> Result<Vec<u8>, GitError> {
        let said = self.said_to(args, Some(input))?;
        match said.how.exit_code() {
            0 => Ok(said.out),
            _ => Err(failed(args, &said)),
        }
    }

    /// Runs a command that must succeed, and returns its output as text, without the last line
    /// break. Fails if the output is not UTF-8.
    pub(crate) fn text(&self, args: &[&str]) -> Result<String, GitError> {
        let text = String::from_utf8(self.bytes(args)?);
        let text =
            text.map_err(|_| GitError::Odd { what: what(args), fault: "what is not UTF-8 text" })?;
        Ok(text.strip_suffix('\n').unwrap_or(&text).to_owned())
    }

    pub(crate) fn run(&self, args: &[&str]) -> Result<(), GitError> {
        self.bytes(args).map(drop)
    }

    /// Returns the NUL-terminated names that a command prints. Replaces invalid UTF-8.
    pub(crate) fn names(&self, args: &[&str]) -> Result<Vec<String>, GitError> {
        let bytes = self.bytes(args)?;
        let names = bytes.split(|byte| *byte == 0).filter(|name| !name.is_empty());
        Ok(names.map(|name| String::from_utf8_lossy(name).into_owned()).collect())
    }

    /// Runs a command that answers a question: exit code 0 means yes, 1 means no.
    pub(crate) fn is(&self, args: &[&str]) -> Result<bool, GitError> {
        let said = self.said(args)?;
        match said.how.exit_code() {
            0 => Ok(true),
            1 => Ok(false),
            _ => Err(failed(args, &said)),
        }
    }

    /// Returns the commit that a name refers to, or `None` if there is none.
    pub(crate) fn commit(&self, name: &str) -> Result<Option<String>, GitError> {
        let name = format!("{name}^{{commit}}");
        let args = ["rev-parse", "--verify", "--quiet", "--end-of-options", &name];
        let said = self.said(&args)?;
        match said.how.exit_code() {
            0 => Ok(Some(String::from_utf8_lossy(&said.out).trim().to_owned())),
            1 => Ok(None),
            _ => Err(failed(&args, &said)),
        }
    }

    /// Returns true if `new` contains all commits of `old`.
    pub(crate) fn contains(&self, new: &str, old: &str) -> Result<bool, GitError> {
        self.is(&["merge-base", "--is-ancestor", old, new])
    }

    /// Sets an author for commits if none is configured.
    pub(crate) fn with_author(self) -> Result<Git, GitError> {
        let mut git = self;
        for (key, stand_in) in
            [("user.name", "orchestrate"), ("user.email", "orchestrate@localhost")]
        {
            let said = git.said(&["config", "--get", key])?;
            // A value with only characters that git strips counts as missing.
            if said.out.iter().all(|byte| *byte <= b' ' || b".,:;<>\"\\'".contains(byte)) {
                git = git.setting(format!("{key}={stand_in}"));
            }
        }
        Ok(git)
    }
}

/// Returns the error for a command that failed.
pub(crate) fn failed(args: &[&str], said: &Said) -> GitError {
    GitError::Failed { what: what(args), code: said.how.exit_code(), said: last_lines(said) }
}

/// Returns a command as it appears in messages: without its flags.
fn what(args: &[&str]) -> String {
    let words = args.iter().copied().filter(|arg| !arg.starts_with('-'));
    words.take(2).collect::<Vec<_>>().join(" ")
}

/// Returns the last lines of a command's output as one line.
fn last_lines(said: &Said) -> String {
    let told = if said.err.trim_ascii().is_empty() { &said.out } else { &said.err };
    let text = String::from_utf8_lossy(told);
    // Hints on what to type next are for interactive users.
    let says = |line: &&str| !line.is_empty() && !line.starts_with("hint:");
    let lines: Vec<&str> = text.lines().map(str::trim).filter(says).collect();
    let last = &lines[lines.len().saturating_sub(LINES)..];
    if last.is_empty() { "it said nothing".to_owned() } else { last.join("; ") }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A repository with one commit on `main`, that no settings of the user reach.
    pub(crate) fn repository() -> (tempfile::TempDir, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let top = dir.path().canonicalize().unwrap().join("repo");
        std::fs::create_dir(&top).unwrap();
        let git = Git::at(&top);
        git.run(&["init", "--quiet", "--initial-branch=main"]).unwrap();
        for (key, value) in [("user.name", "Tester"), ("user.email", "tester@example.org")] {
            git.run(&["config", key, value]).unwrap();
        }
        commit(&top, "file", "one\n");
        (dir, top)
    }

    /// Writes a file and commits it.
    pub(crate) fn commit(top: &Path, name: &str, content: &str) -> String {
        std::fs::write(top.join(name), content).unwrap();
        let git = Git::at(top);
        git.run(&["add", "-A"]).unwrap();
        git.run(&["commit", "--quiet", "-m", name]).unwrap();
        git.text(&["rev-parse", "HEAD"]).unwrap()
    }

    #[test]
    fn answers_are_told_from_errors() {
        let (_dir, top) = repository();
        let git = Git::at(&top);
        assert_eq!(git.text(&["symbolic-ref", "HEAD"]).unwrap(), "refs/heads/main");
        assert_eq!(git.commit("refs/heads/none").unwrap(), None);
        let head = git.commit("HEAD").unwrap().unwrap();
        assert!(git.contains("HEAD", &head).unwrap());
        let error = git.run(&["checkout", "--quiet", "none"]).unwrap_err();
        assert!(error.to_string().starts_with("`git checkout none` failed with exit code 1: "));
        assert!(Git::at(&top.join("none")).run(&["status"]).is_err());
    }

    #[test]
    fn hooks_of_the_user_do_not_run() {
        let (_dir, top) = repository();
        let hook = top.join(".git/hooks/pre-commit");
        std::fs::create_dir_all(hook.parent().unwrap()).unwrap();
        std::fs::write(&hook, "#!/bin/sh\nexit 1\n").unwrap();
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(&hook, mode).unwrap();
        commit(&top, "second", "2");
    }

    #[test]
    fn a_missing_or_empty_author_is_made_up_and_one_that_is_set_is_kept() {
        let (_dir, top) = repository();
        let none = |git: Git| git.env("GIT_CONFIG_GLOBAL", "/dev/null").env("HOME", "/dev/null");
        let ident = |git: &Git| git.text(&["var", "GIT_AUTHOR_IDENT"]).unwrap();
        let git = none(Git::at(&top)).with_author().unwrap();
        assert!(ident(&git).starts_with("Tester <tester@example.org>"));
        for key in ["user.name", "user.email"] {
            git.run(&["config", "--unset", key]).unwrap();
        }
        let git = none(Git::at(&top)).with_author().unwrap();
        assert!(ident(&git).starts_with("orchestrate <orchestrate@localhost>"));
        for (key, nothing) in [("user.name", " . "), ("user.email", "")] {
            git.run(&["config", key, nothing]).unwrap();
        }
        let git = none(Git::at(&top)).with_author().unwrap();
        assert!(ident(&git).starts_with("orchestrate <orchestrate@localhost>"));
    }
}
