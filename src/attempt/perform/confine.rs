//! The sandbox of one execution: converts settings to paths on this machine.
//!
//! An execution without general write access gets its own temporary directory, which is removed
//! afterwards. In a worktree it may commit: write to objects, to bead branches, and to the
//! worktree's git directory, but not to hooks or settings, which other processes would execute.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use crate::attempt::bead_tree::Entered;
use crate::attempt::exec_env::Site;
use crate::attempt::prepare::refs::ARTIFACTS;
use crate::attempt::work::Work;
use crate::base::process::new_incarnation;
use crate::disk::fs::{self, OnVolume as _};
use crate::exec::{self, Confinement, Reach};
use crate::workflow::sandbox::{Level, Sandbox};

/// Directories of programs and their dependencies; missing ones are skipped.
const SYSTEM: [&str; 14] = [
    "/usr",
    "/bin",
    "/sbin",
    "/lib",
    "/lib32",
    "/lib64",
    "/libx32",
    "/etc",
    "/opt",
    "/nix",
    "/dev/shm",
    "/proc",
    "/sys",
    "/run/systemd/resolve",
];
/// Files without which git does not work.
const OF_HOME: [&str; 2] = [".gitconfig", ".config/git"];
/// Devices that lead to no other process. `/dev/pts` contains other processes' terminals.
const DEVICES: [&str; 7] =
    ["/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/tty", "/dev/ptmx"];
/// Paths in the shared git directory that a commit on a bead branch writes to.
const OF_COMMITS: [&str; 3] = ["objects", "refs/heads/coven", "logs/refs/heads/coven"];

/// A confined execution.
pub(super) struct Confined {
    program: String,
    confinement: Confinement,
    /// Its temporary directory, which is removed on drop.
    tmp: Option<PathBuf>,
}

impl Drop for Confined {
    fn drop(&mut self) {
        if let Some(tmp) = &self.tmp {
            let _ = fs::remove_dir_all(tmp);
        }
    }
}

impl Confined {
    /// Returns the prefix of a confined command. `place` is one more writable path.
    pub(super) fn prefix(&self, place: Option<&Path>) -> Vec<String> {
        let mut confinement = self.confinement.clone();
        for reach in &mut confinement.layers {
            reach.write.iter_mut().for_each(|write| write.extend(place.map(Path::to_owned)));
        }
        let text = serde_json::to_string(&confinement).unwrap_or_default();
        vec![self.program.clone(), "confine".into(), text]
    }

    /// Returns the variable that points to the temporary directory.
    pub(super) fn env(&self) -> Option<(String, OsString)> {
        self.tmp.as_ref().map(|tmp| ("TMPDIR".to_owned(), tmp.clone().into_os_string()))
    }
}

/// Returns the sandbox for this work, if any. The error is one sentence: the sandbox is not
/// available.
pub(super) fn confine(
    site: &Site,
    work: &Work,
    tree: Option<&Entered>,
) -> Result<Option<Confined>, String> {
    let sandboxes = site.sandboxes.for_work(work);
    if sandboxes.is_empty() {
        return Ok(None);
    }
    let no_network = sandboxes.iter().any(|(sandbox, _)| !sandbox.network);
    let mut confined = Confined {
        program: site.program.to_string_lossy().into_owned(),
        confinement: Confinement { layers: Vec::new(), no_network },
        tmp: None,
    };
    if sandboxes.iter().any(|(sandbox, _)| sandbox.level != Level::None) {
        let tmp = own_folder(site).map_err(|error| format!("no folder for it: {error}"))?;
        confined.tmp = Some(tmp);
    }
    let land = Land { site, work, tree, tmp: confined.tmp.as_deref() };
    for (sandbox, writes) in sandboxes {
        if sandbox.limits_files() {
            confined.confinement.layers.push(land.reach(sandbox, writes)?);
        }
    }
    match confined.confinement.refusal(exec::powers()) {
        Some(refusal) => Err(refusal),
        None => Ok(Some(confined)),
    }
}

fn own_folder(site: &Site) -> io::Result<PathBuf> {
    let folder = site.environment.get("TMPDIR").cloned().unwrap_or_else(|| "/tmp".into());
    let folder = PathBuf::from(folder).join(format!("orchestrate-{}", new_incarnation()));
    fs::DirBuilder::new().mode(0o700).create(&folder)?;
    Ok(folder)
}

/// The context in which a sandbox is set up.
struct Land<'a> {
    site: &'a Site,
    work: &'a Work,
    tree: Option<&'a Entered>,
    tmp: Option<&'a Path>,
}

impl Land<'_> {
    fn reach(&self, sandbox: &Sandbox, writes: &[String]) -> Result<Reach, String> {
        let write = match sandbox.level {
            Level::None => None,
            level => Some(self.writable(level, &sandbox.write, writes)?),
        };
        let read = sandbox.read.as_ref().map(|read| self.readable(read)).transpose()?;
        Ok(Reach { write, read })
    }

    fn writable(
        &self,
        level: Level,
        given: &[String],
        writes: &[String],
    ) -> Result<Vec<PathBuf>, String> {
        let mut found: Vec<PathBuf> = self.tmp.iter().map(|tmp| tmp.to_path_buf()).collect();
        found.extend(DEVICES.map(PathBuf::from).into_iter().filter(|path| path.is_present()));
        if level == Level::Workspace {
            found.extend(self.places().map_err(|error| format!("no place for it: {error}"))?);
        }
        let own = writes.iter().map(|path| self.at_home(path));
        found.extend(own.filter(|path| path.is_present()));
        found.extend(self.given(given)?);
        Ok(found)
    }

    /// Returns the work directories and the artifact directories.
    fn places(&self) -> io::Result<Vec<PathBuf>> {
        let artifacts = self.site.root().join(ARTIFACTS);
        fs::create_dir_all(&artifacts)?;
        let mut found = vec![artifacts];
        let agent = self.work.agent.as_ref();
        let of_agent = agent.map(|agent| self.site.cwd().join("artifacts").join(agent));
        found.extend(of_agent.filter(|path| path.is_present_dir()));
        let Some(tree) = self.tree else {
            found.push(self.site.cwd().to_owned());
            return Ok(found);
        };
        for part in OF_COMMITS {
            let part = tree.common().join(part);
            fs::create_dir_all(&part)?;
            found.push(part);
        }
        found.extend([tree.tree.path.clone(), tree.tree.git_dir.clone()]);
        Ok(found)
    }

    fn readable(&self, given: &[String]) -> Result<Vec<PathBuf>, String> {
        let (site, home) = (self.site, self.at_home("~"));
        let system = SYSTEM.into_iter().chain(DEVICES);
        let mut found: Vec<PathBuf> = system.map(PathBuf::from).collect();
        found.extend(OF_HOME.map(|path| home.join(path)));
        let path = site.environment.get("PATH").map(OsString::as_os_str).unwrap_or(OsStr::new(""));
        found.extend(std::env::split_paths(path).filter(|folder| folder.is_absolute()));
        let program = self.work.argv.first();
        let program = program.and_then(|name| exec::locate(name, path, site.cwd()).ok());
        for program in program.iter().chain([&site.program]) {
            // A link's target has the rest of the program next to it.
            let real = program.canonicalize().ok();
            found.extend(real.and_then(|real| Some(real.parent()?.to_owned())));
        }
        found.extend([site.cwd().to_owned(), site.root()]);
        found.extend(self.tmp.map(Path::to_owned));
        if let Some(tree) = self.tree {
            found.extend([tree.tree.path.clone(), tree.common().to_owned()]);
        }
        found.retain(|path| path.is_present());
        found.extend(self.given(given)?);
        Ok(found)
    }

    /// Resolves configured paths. They must exist; otherwise a later failure would be hard to
    /// explain.
    fn given(&self, paths: &[String]) -> Result<Vec<PathBuf>, String> {
        let found = paths.iter().map(|path| self.at_home(path));
        let found: Vec<PathBuf> = found.collect();
        match found.iter().find(|path| !path.is_present()) {
            Some(lost) => Err(format!(
                "the sandbox names `{}`, which is not there: make it, or take it out of the \
                 settings",
                lost.display()
            )),
            None => Ok(found),
        }
    }

    fn at_home(&self, path: &str) -> PathBuf {
        let home = || self.site.environment.get("HOME").cloned().unwrap_or_else(|| "/".into());
        match path.strip_prefix('~') {
            Some(rest) => PathBuf::from(home()).join(rest.trim_start_matches('/')),
            None => PathBuf::from(path),
        }
    }
}
