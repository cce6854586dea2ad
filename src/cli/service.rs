//! `orchestrate service`: installs the fleet as systemd services, for this user or for the machine.
//!
//! The units come from `systemd/`, with the paths of the workspace and the program filled in. Unit
//! names contain the workspace, so several workspaces can have services on one machine. The command
//! starts nothing: it prints the commands to run next.
//!
//! **Invariant:** a file without `MARK` at its start is never changed or removed.

use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use nix::unistd::{User, geteuid};
use serde::Serialize;

use super::Common;
use super::invocation::Invocation;
use super::output::{put, put_json, put_line};
use crate::base::digest;
use crate::disk;
use crate::run::failure::Failure;
use crate::view::stderr::talk;

const MARK: &str = "# Written by `orchestrate service install`. To change it: systemctl edit.\n";

/// Suffix of each unit's name, and the template of its text. Names in templates start with
/// [`TEMPLATE`]; names of installed units start with the prefix of their workspace.
const UNITS: [(&str, &str); 3] = [
    (".target", include_str!("../../systemd/orchestrate.target")),
    ("-coordinator.service", include_str!("../../systemd/orchestrate-coordinator.service")),
    ("-worker@.service", include_str!("../../systemd/orchestrate-worker@.service")),
];
const TEMPLATE: &str = "orchestrate";

/// Settings that work only in the system manager, or that refer to another user.
const OF_THE_MACHINE: [&str; 28] = [
    "After=",
    "Wants=",
    "User=",
    "Group=",
    "StateDirectory=",
    "StateDirectoryMode=",
    "LoadCredential=",
    "Environment=HOME=",
    "CapabilityBoundingSet=",
    "AmbientCapabilities=",
    "ProtectSystem=",
    "ReadWritePaths=",
    "ProtectHome=",
    "PrivateTmp=",
    "PrivateDevices=",
    "DevicePolicy=",
    "ProtectProc=",
    "ProtectKernelTunables=",
    "ProtectKernelModules=",
    "ProtectKernelLogs=",
    "ProtectControlGroups=",
    "ProtectClock=",
    "ProtectHostname=",
    "RemoveIPC=",
    "KeyringMode=",
    "RestrictAddressFamilies=",
    "SystemCallFilter=",
    "SystemCallErrorNumber=",
];

#[derive(clap::Subcommand, Clone, Debug)]
pub(super) enum ServiceVerb {
    /// Write the units for this workspace and this program
    Install(ServiceArgs),
    /// Remove the units that were written
    Uninstall(ServiceArgs),
    /// Show which units are there
    Status(ServiceArgs),
}

#[derive(clap::Args, Clone, Debug)]
pub(super) struct ServiceArgs {
    /// For this user [default; root must choose `--user` or `--system`]
    #[arg(long, conflicts_with = "system")]
    pub user: bool,
    /// For the machine
    #[arg(long)]
    pub system: bool,
    /// Below this directory instead of /, for the image of a machine
    #[arg(long, value_name = "DIR", conflicts_with = "user")]
    pub root: Option<PathBuf>,
    /// Show what would be done
    #[arg(long)]
    pub dry_run: bool,
}

#[derive(Serialize)]
struct Outcome {
    scope: &'static str,
    workspace: PathBuf,
    program: PathBuf,
    dry_run: bool,
    units: Vec<Unit>,
    /// Reasons why the units cannot start, and other conditions that need the user's attention.
    warnings: Vec<String>,
    next: Vec<String>,
}

#[derive(Serialize)]
struct Unit {
    path: PathBuf,
    state: State,
    #[serde(skip)]
    text: String,
}

#[derive(Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum State {
    Absent,
    /// Identical to the text that this version would write.
    Current,
    /// Written by this program, for another workspace, program path, or version.
    Outdated,
    /// Not written by this program.
    Foreign,
    Written,
    Removed,
}

impl State {
    fn name(self) -> &'static str {
        match self {
            State::Absent => "absent",
            State::Current => "current",
            State::Outdated => "outdated",
            State::Foreign => "foreign",
            State::Written => "written",
            State::Removed => "removed",
        }
    }
}

pub(super) fn main(verb: &ServiceVerb, common: &Common) -> Result<u8, Failure> {
    let (ServiceVerb::Install(args) | ServiceVerb::Uninstall(args) | ServiceVerb::Status(args)) =
        verb;
    let invocation = Invocation::read(common)?;
    let system = is_for_the_machine(verb, args)?;
    let program = std::env::current_exe()
        .map_err(|error| Failure::failed(format!("cannot find this program: {error}")))?;
    for path in [&invocation.workspace, &program] {
        if path.to_str().is_none_or(|text| text.chars().any(char::is_control)) {
            let message = format!("`{}` cannot stand in a unit", path.display());
            return Err(Failure::invalid(message).hint("rename it"));
        }
    }
    if args.root.is_some() && !system {
        let message = "`--root` is for units of the machine, and you are not root";
        return Err(Failure::invalid(message).hint("say `--system` too"));
    }
    let dir = directory(&invocation, args, system)?;
    let prefix = prefix(&invocation.workspace);
    let mut units = Vec::new();
    for (ending, text) in UNITS {
        let text = match system {
            true => for_the_machine(text, &invocation.workspace, &program),
            false => for_a_user(text, &invocation.workspace, &program),
        };
        let text = UNITS.iter().fold(text, |text, (ending, _)| {
            // `-worker@.service` also occurs as an instance name: `-worker@engineer.service`.
            let ending = ending.trim_end_matches(".service");
            text.replace(&format!("{TEMPLATE}{ending}"), &format!("{prefix}{ending}"))
        });
        let path = dir.join(format!("{prefix}{ending}"));
        let state = look(&path, &text).map_err(|error| {
            Failure::failed(format!("cannot read `{}`: {error}", path.display()))
        })?;
        units.push(Unit { path, state, text });
    }
    let mut kept = Vec::new();
    match verb {
        ServiceVerb::Install(_) => {
            kept = install(&mut units, &dir, args.dry_run)?;
        }
        ServiceVerb::Uninstall(_) => {
            kept = uninstall(&mut units, args.dry_run)?;
            if !args.dry_run {
                disable(&dir, &units);
            }
        }
        ServiceVerb::Status(_) => {}
    }
    let install = system && matches!(verb, ServiceVerb::Install(_));
    let mut warnings: Vec<String> = kept.iter().map(|path| kept_words(path)).collect();
    warnings.extend(unprefixed(&dir));
    if install {
        warnings.extend(out_of_reach(&invocation.workspace, &program));
    }
    let next = next(verb, &invocation, &prefix, system);
    let scope = if system { "system" } else { "user" };
    let (workspace, dry_run) = (invocation.workspace.clone(), args.dry_run);
    tell(&Outcome { scope, workspace, program, dry_run, units, warnings, next }, common)?;
    Ok(0)
}

/// Returns true for system units and false for user units. Root must choose before a file is
/// written or removed, because the two kinds run the agents as different users.
fn is_for_the_machine(verb: &ServiceVerb, args: &ServiceArgs) -> Result<bool, Failure> {
    let chosen = args.system || args.user || args.root.is_some();
    let changes = !matches!(verb, ServiceVerb::Status(_));
    if !chosen && changes && geteuid().is_root() {
        let message = "root must choose: `--system` for units of the machine, which run as the \
                       user `orchestrate`, or `--user` for units of root";
        return Err(Failure::invalid(message).hint("add `--system --dry-run` to see them first"));
    }
    Ok(args.system || (!args.user && geteuid().is_root()))
}

/// Returns the prefix of a workspace's unit names: the directory name for readability and a digest
/// of the path for uniqueness.
fn prefix(workspace: &Path) -> String {
    let name = workspace.file_name().unwrap_or_default().to_string_lossy();
    let plain = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' };
    let name: String = name.chars().take(24).map(plain).collect();
    let digest = digest::sha256(workspace.as_os_str().as_encoded_bytes());
    format!("{TEMPLATE}-{}-{}", name.trim_matches('-'), &digest[..6]).replace("--", "-")
}

/// Returns a warning for each unit that an earlier version installed without the workspace in its
/// name. These units keep running next to the new ones until the user removes them.
fn unprefixed(dir: &Path) -> Vec<String> {
    let old = UNITS.iter().map(|(ending, _)| dir.join(format!("{TEMPLATE}{ending}")));
    let is_ours =
        |path: &PathBuf| std::fs::read_to_string(path).is_ok_and(|text| text.starts_with(MARK));
    let warning = |path: PathBuf| {
        format!(
            "an earlier version wrote `{}`; stop it with systemctl, then remove the file",
            path.display()
        )
    };
    old.filter(is_ours).map(warning).collect()
}

fn directory(
    invocation: &Invocation,
    args: &ServiceArgs,
    system: bool,
) -> Result<PathBuf, Failure> {
    if system {
        let root = args.root.clone().unwrap_or_else(|| PathBuf::from("/"));
        return Ok(root.join("etc/systemd/system"));
    }
    let get = |key: &str| invocation.environment.get(key).filter(|value| !value.is_empty());
    let config = get("XDG_CONFIG_HOME").map(PathBuf::from);
    let config = config.or_else(|| get("HOME").map(|home| Path::new(home).join(".config")));
    config.map(|config| config.join("systemd/user")).ok_or_else(|| {
        Failure::invalid("neither XDG_CONFIG_HOME nor HOME is set")
            .hint("set HOME, or use --system")
    })
}

/// Compares the file at `path` with the text that would be written.
fn look(path: &Path, text: &str) -> io::Result<State> {
    match std::fs::read_to_string(path) {
        Ok(there) if there == text => Ok(State::Current),
        Ok(there) if there.starts_with(MARK) => Ok(State::Outdated),
        Ok(_) => Ok(State::Foreign),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(State::Absent),
        Err(error) if error.kind() == io::ErrorKind::InvalidData => Ok(State::Foreign),
        Err(error) => Err(error),
    }
}

/// Returns the backup path of a unit whose text differs from what this program would write: an
/// earlier version wrote it, or a user edited it.
fn before(path: &Path) -> PathBuf {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    path.with_file_name(format!("{name}.before"))
}

fn kept_words(path: &Path) -> String {
    let (path, before) = (path.display(), before(path));
    format!(
        "`{path}` was of another version or changed by hand: it is kept as `{}`",
        before.display()
    )
}

/// Writes the units. Returns the paths whose previous file was renamed to a backup (see
/// [`before`]).
fn install(units: &mut [Unit], dir: &Path, dry_run: bool) -> Result<Vec<PathBuf>, Failure> {
    if let Some(unit) = units.iter().find(|unit| unit.state == State::Foreign) {
        let message = format!("`{}` was not written by this program", unit.path.display());
        return Err(Failure::failed(message).hint("move it away; nothing was changed"));
    }
    let cannot = |path: &Path, error: io::Error| {
        let failure = Failure::failed(format!("cannot write `{}`: {error}", path.display()));
        match error.kind() {
            io::ErrorKind::PermissionDenied => failure.hint("use --user, or run it as root"),
            _ => failure,
        }
    };
    let disk = disk::machine();
    let mut kept = Vec::new();
    for unit in units.iter_mut().filter(|unit| unit.state != State::Current) {
        if !dry_run {
            disk.make_dirs(dir).map_err(|error| cannot(dir, error))?;
            if unit.state == State::Outdated {
                disk::rename(&unit.path, &before(&unit.path))
                    .map_err(|error| cannot(&unit.path, error))?;
                kept.push(unit.path.clone());
            }
            disk::replace(&*disk, &unit.path, unit.text.as_bytes())
                .map_err(|error| cannot(&unit.path, error))?;
        }
        unit.state = State::Written;
    }
    Ok(kept)
}

/// Removes the units. Returns the paths that were renamed to a backup instead of deleted (see
/// [`before`]).
fn uninstall(units: &mut [Unit], dry_run: bool) -> Result<Vec<PathBuf>, Failure> {
    let mut kept = Vec::new();
    for unit in units {
        let path = &unit.path;
        let removed = match unit.state {
            State::Current | State::Outdated if dry_run => Ok(()),
            State::Current => std::fs::remove_file(path),
            State::Outdated => {
                kept.push(path.clone());
                disk::rename(path, &before(path))
            }
            _ => continue,
        };
        removed.map_err(|error| {
            Failure::failed(format!("cannot remove `{}`: {error}", path.display()))
        })?;
        unit.state = State::Removed;
    }
    Ok(kept)
}

/// Removes the `*.wants` symlinks that enabled the removed units. Errors are ignored, because a
/// dangling symlink does no harm.
fn disable(dir: &Path, units: &[Unit]) {
    let names: Vec<_> = units
        .iter()
        .filter(|unit| unit.state == State::Removed)
        .filter_map(|unit| unit.path.file_name())
        .collect();
    // A worker's symlink is named after its agent, so identify symlinks by their target.
    let removed = |link: &Path| {
        let target = std::fs::read_link(link).ok();
        target.is_some_and(|target| target.file_name().is_some_and(|name| names.contains(&name)))
    };
    let entries = |dir: &Path| dir.read_dir().into_iter().flatten().flatten();
    let wants = entries(dir).map(|entry| entry.path());
    for dir in wants.filter(|path| path.extension().is_some_and(|ending| ending == "wants")) {
        for link in entries(&dir).map(|entry| entry.path()).filter(|link| removed(link)) {
            let _ = std::fs::remove_file(link);
        }
    }
}

/// Quotes a path as one word of a unit file, where `%` starts a specifier.
fn word(path: &Path) -> String {
    let text = path.to_string_lossy().replace('%', "%%");
    if text.contains([' ', '"', '\'', '\\']) {
        return format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""));
    }
    text
}

/// Fills in the paths of the workspace and the program.
fn placed(text: &str, workspace: &Path, program: &Path) -> String {
    // systemd does not split `WorkingDirectory` into words, so its value is not quoted.
    let whole = workspace.to_string_lossy().replace('%', "%%");
    let text =
        text.replace("WorkingDirectory=/srv/orchestrate", &format!("WorkingDirectory={whole}"));
    let text = text.replace("=/srv/orchestrate", &format!("={}", word(workspace)));
    text.replace("=/usr/local/bin/coordinator", &format!("={} coordinator", word(program)))
        .replace("=/usr/local/bin/worker %i", &format!("={} worker %i", word(program)))
}

/// Returns the settings without the leading comments, which explain manual installation.
fn body(text: &str) -> &str {
    text.find("\n[Unit]").map_or(text, |at| &text[at + 1..])
}

fn for_the_machine(text: &str, workspace: &Path, program: &Path) -> String {
    let text = placed(body(text), workspace, program);
    let in_a_home = [workspace, program]
        .iter()
        .any(|path| ["/home", "/root", "/run/user"].iter().any(|home| path.starts_with(home)));
    // `ProtectHome=yes` would hide the workspace or the program.
    let text = match in_a_home {
        true => text.replace("ProtectHome=yes", "ProtectHome=no"),
        false => text,
    };
    // `PrivateTmp=yes` would mount an empty `/tmp`.
    let in_tmp = [workspace, program]
        .iter()
        .any(|path| ["/tmp", "/var/tmp"].iter().any(|tmp| path.starts_with(tmp)));
    let text = match in_tmp {
        true => text.replace("PrivateTmp=yes", "PrivateTmp=no"),
        false => text,
    };
    format!("{MARK}{text}")
}

/// Returns a warning for the program and for the workspace if the user `orchestrate` cannot reach
/// it because it or a directory above it denies access to others. The workspace directory itself is
/// not checked: a printed command gives it to that user.
fn out_of_reach(workspace: &Path, program: &Path) -> Vec<String> {
    let closed = |path: &Path| {
        let is_closed = |dir: &&Path| {
            let mode = dir.metadata().map_or(0o777, |there| there.permissions().mode());
            mode & 0o001 == 0
        };
        path.ancestors().find(is_closed).map(Path::to_owned)
    };
    let mut warnings = Vec::new();
    if let Some(dir) = closed(program) {
        warnings.push(format!(
            "the units run as `orchestrate`, who may not execute `{}`: `{}` is closed to others; \
             put the program elsewhere and install from there: install -m 755 {0} /usr/local/bin/",
            program.display(),
            dir.display()
        ));
    }
    if let Some(dir) = workspace.parent().and_then(closed) {
        warnings.push(format!(
            "the units run as `orchestrate`, who may not get to the workspace: `{}` is closed to \
             others",
            dir.display()
        ));
    }
    warnings
}

fn for_a_user(text: &str, workspace: &Path, program: &Path) -> String {
    let mut out = MARK.to_owned();
    for line in body(text).lines() {
        // The comments explain the setup of the system manager.
        if line.starts_with('#') {
            continue;
        }
        if OF_THE_MACHINE.iter().any(|setting| line.starts_with(setting)) {
            continue;
        }
        let line = match line {
            "WantedBy=multi-user.target" => "WantedBy=default.target".to_owned(),
            line if line.starts_with("Environment=PATH=") => {
                "Environment=PATH=%h/.local/bin:%h/.cargo/bin:/usr/local/bin:/usr/bin:/bin".into()
            }
            line => line.replace("=-/etc/orchestrate/", "=-%E/orchestrate/"),
        };
        out.push_str(&line);
        out.push('\n');
    }
    placed(&out, workspace, program)
}

/// Returns the commands to run next.
fn next(verb: &ServiceVerb, invocation: &Invocation, prefix: &str, system: bool) -> Vec<String> {
    let systemctl = if system { "systemctl" } else { "systemctl --user" };
    let reload = format!("{systemctl} daemon-reload");
    let workers: Vec<_> = invocation
        .config
        .agents()
        .keys()
        .map(|agent| format!("{prefix}-worker@{agent}.service"))
        .collect();
    let all = format!("{prefix}.target {prefix}-coordinator.service {}", workers.join(" "));
    match verb {
        ServiceVerb::Install(_) => {
            let mut next = Vec::new();
            let there = matches!(User::from_name("orchestrate"), Ok(Some(_)));
            if system && !there {
                next.push("useradd --system --home-dir /var/lib/orchestrate orchestrate".into());
            }
            if system {
                let agents: Vec<_> =
                    invocation.config.agents().keys().map(String::as_str).collect();
                let agents = agents.join(",");
                let dirs = match agents.contains(',') {
                    true => format!("{{{agents}}}"),
                    false => agents,
                };
                next.push(format!("mkdir -p /etc/orchestrate/credentials/{dirs}"));
                let workspace = shell_word(&invocation.workspace.to_string_lossy());
                next.push(format!("chown -R orchestrate: {workspace}"));
            }
            next.push(reload);
            next.push(format!("{systemctl} enable --now {all}"));
            if !system {
                next.push("loginctl enable-linger    # to go on when you log out".into());
            }
            next
        }
        // Removed units cannot be disabled any more, but systemd still knows running units by name.
        ServiceVerb::Uninstall(_) => vec![format!("{systemctl} stop {all}"), reload],
        ServiceVerb::Status(_) => vec![format!("{systemctl} status '{prefix}*'")],
    }
}

/// Quotes a text as one word of a shell command.
fn shell_word(text: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-+,@%=:".contains(c);
    match !text.is_empty() && text.chars().all(plain) {
        true => text.to_owned(),
        false => format!("'{}'", text.replace('\'', r"'\''")),
    }
}

fn tell(outcome: &Outcome, common: &Common) -> Result<(), Failure> {
    if common.json {
        return put_json("service/v1", outcome);
    }
    for unit in &outcome.units {
        let would = match (outcome.dry_run, unit.state) {
            (true, State::Written | State::Removed) => "would be ",
            _ => "",
        };
        put_line(format_args!("{would}{:<8} {}", unit.state.name(), unit.path.display()))?;
        if outcome.dry_run && unit.state == State::Written && common.verbose {
            put(&unit.text)?;
        }
    }
    for warning in &outcome.warnings {
        talk(format_args!("warning: {warning}"));
    }
    if !common.quiet {
        talk(format_args!("next:"));
        outcome.next.iter().for_each(|line| talk(format_args!("  {line}")));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_workspaces_of_one_name_have_units_of_their_own() {
        let (one, other) = (prefix(Path::new("/a/My team")), prefix(Path::new("/b/My team")));
        assert!(one.starts_with("orchestrate-my-team-") && one != other, "{one} {other}");
        assert!(prefix(Path::new("/")).starts_with("orchestrate-"));
    }

    #[test]
    fn a_path_is_one_word_of_a_shell() {
        assert_eq!(shell_word("/srv/team"), "/srv/team");
        assert_eq!(shell_word("/srv/it's a team"), r"'/srv/it'\''s a team'");
        assert_eq!(shell_word("/srv/$(x)"), "'/srv/$(x)'");
    }

    #[test]
    fn places_are_put_in_as_one_word() {
        let (workspace, program) = (Path::new("/data/a team%"), Path::new("/opt/o/orchestrate"));
        for (name, text) in UNITS.into_iter().skip(1) {
            let unit = for_the_machine(text, workspace, program);
            for line in [
                "WorkingDirectory=/data/a team%%",
                "ReadWritePaths=\"/data/a team%%\"",
                "RequiresMountsFor=\"/data/a team%%\"",
            ] {
                assert!(unit.lines().any(|found| found == line), "{name}: {line}");
            }
            assert!(unit.starts_with(&format!("{MARK}[Unit]\nDescription=")), "{name}");
            assert!(!unit.contains("/srv/orchestrate"), "{name}");
            assert!(unit.contains("ExecStart=/opt/o/orchestrate "), "{name}");
            assert!(unit.contains("ProtectHome=yes"), "{name}");
            let home = for_the_machine(text, &Path::new("/home").join("a"), program);
            assert!(home.contains("ProtectHome=no"), "{name}");
            assert!(unit.contains("PrivateTmp=yes"), "{name}");
            let tmp = for_the_machine(text, &Path::new("/tmp").join("a"), program);
            assert!(tmp.contains("PrivateTmp=no"), "{name}");
        }
    }

    #[test]
    fn a_user_unit_has_nothing_that_needs_the_machine() {
        for (name, text) in UNITS {
            let unit = for_a_user(text, Path::new("/w"), Path::new("/o"));
            for setting in OF_THE_MACHINE {
                assert!(!unit.lines().any(|line| line.starts_with(setting)), "{name}: {setting}");
            }
            assert!(!unit.contains("/etc/") && !unit.contains("multi-user"), "{name}");
        }
    }
}
