//! The workspace: the only way from a path in a workflow to a file.
//!
//! **Invariant:** nothing outside the workspace is read, created or moved. A path is checked by its
//! text, then with its symlinks resolved, and is then opened through a directory handle with
//! symlinks forbidden, so that a link swapped in after the check is not followed.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use nix::errno::Errno;
use nix::fcntl::{
    AtFlags, OFlag, OpenHow, RenameFlags, ResolveFlag, openat, openat2, renameat, renameat2,
};
use nix::sys::stat::{Mode, fstatat, mkdirat};
use nix::unistd::{UnlinkatFlags, unlinkat};

use crate::disk;
use crate::disk::fs::{self, OnVolume as _};
use crate::workflow::path_fault;
use crate::yaml::without_bom;

/// Problem with a path.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PathError {
    #[error("`{path}` is refused: {reason}")]
    Refused { path: String, reason: String },
    #[error("`{path}` does not exist")]
    Missing { path: String },
    #[error("cannot {doing} `{path}`: {source}")]
    Io { doing: &'static str, path: String, source: io::Error },
}

impl PathError {
    /// Returns true if the path can never be valid, no matter how the disk changes.
    pub(crate) fn is_final(&self) -> bool {
        match self {
            PathError::Refused { .. } => true,
            PathError::Missing { .. } => false,
            PathError::Io { source, .. } => {
                matches!(source.kind(), io::ErrorKind::IsADirectory | io::ErrorKind::NotADirectory)
            }
        }
    }
}

/// A resolved directory, with a handle on it.
#[derive(Clone)]
pub(crate) struct Workspace {
    root: PathBuf,
    handle: Arc<File>,
}

/// Resolves a path from `root` as the file system does: follows links before `..` is applied, and
/// keeps names that do not exist yet. Only resolved paths can be compared with each other.
pub(crate) fn resolved(root: &Path, path: &Path) -> PathBuf {
    let mut at = root.to_owned();
    for part in path.components() {
        match part {
            Component::CurDir => {}
            Component::ParentDir => {
                at.pop();
            }
            part => {
                at.push(part);
                at = at.canonicalize().unwrap_or(at);
            }
        }
    }
    at
}

/// Returns the dangling link on the way to `path`, if there is one. Such a link means that a file
/// was intended to be there.
pub(crate) fn dangling<'p>(root: &Path, path: &'p Path) -> Option<&'p Path> {
    let leads_nowhere = |part: &&Path| {
        let part = root.join(part);
        part.is_symlink() && !part.is_present()
    };
    path.ancestors().filter(|part| !part.as_os_str().is_empty()).find(leads_nowhere)
}

/// Maximum number of symlinks in one path, as in the kernel.
const LINKS_MAX: usize = 40;
const CIRCLE: &str = "its symlinks do not end";
const LEAVES: &str = "it leads out of the workspace through a symlink";

impl Workspace {
    pub(crate) fn open(dir: &Path) -> io::Result<Workspace> {
        let root = dir.canonicalize()?;
        let handle = Arc::new(fs::open(&root)?);
        Ok(Workspace { root, handle })
    }

    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    /// Checks the part of a path that exists now.
    pub(crate) fn check(&self, path: &str) -> Result<(), PathError> {
        self.resolve(path).map(drop)
    }

    /// Returns the path without symlinks, relative to the root. Names that do not exist yet are
    /// kept as written.
    fn resolve(&self, path: &str) -> Result<PathBuf, PathError> {
        if let Some(reason) = path_fault(path) {
            return Err(refused(path, reason));
        }
        let mut known = self.root.join(path);
        let mut rest = Vec::new();
        let mut hops = 0;
        loop {
            match disk::confirmed(&[&known], || known.canonicalize()) {
                Ok(real) => {
                    let inside =
                        real.strip_prefix(&self.root).map_err(|_| refused(path, LEAVES))?;
                    return Ok(rest.iter().rev().fold(inside.to_owned(), |p, name| p.join(name)));
                }
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    // A dangling link resolves to the path that it names.
                    if let Ok(target) = known.read_link() {
                        hops += 1;
                        if hops > LINKS_MAX {
                            return Err(refused(path, CIRCLE));
                        }
                        known.pop();
                        known = known.canonicalize().unwrap_or(known).join(target);
                        continue;
                    }
                    // A `..` after a name that does not exist cannot be checked.
                    if known.ends_with("..") {
                        return Err(refused(path, LEAVES));
                    }
                    let Some(name) = known.file_name() else {
                        return Err(refused(path, "it has no name"));
                    };
                    rest.push(name.to_owned());
                    known.pop();
                }
                Err(error) if error.raw_os_error() == Some(Errno::ELOOP as i32) => {
                    return Err(refused(path, CIRCLE));
                }
                Err(source) => return Err(failed("resolve", path, source)),
            }
        }
    }

    /// Opens a resolved path beneath the root without following any symlink.
    fn open_beneath(&self, resolved: &Path, flags: OFlag) -> io::Result<File> {
        let name = if resolved.as_os_str().is_empty() { Path::new(".") } else { resolved };
        disk::confirmed(&[&self.root.join(resolved)], || open_in(&self.handle, name, flags))
    }

    /// Opens a regular file for reading.
    pub(crate) fn open_file(&self, path: &str) -> Result<File, PathError> {
        let resolved = self.resolve(path)?;
        let file = self.open_beneath(&resolved, OFlag::O_RDONLY).map_err(|error| {
            if error.kind() == io::ErrorKind::NotFound {
                PathError::Missing { path: path.to_owned() }
            } else {
                failed("open", path, error)
            }
        })?;
        let data = file.metadata().map_err(|error| failed("open", path, error))?;
        if !data.is_file() {
            return Err(refused(path, "it is not a regular file"));
        }
        Ok(file)
    }

    /// Reads a file of at most `limit` bytes.
    pub(crate) fn read(&self, path: &str, limit: u64) -> Result<Vec<u8>, PathError> {
        let file = self.open_file(path)?;
        let mut bytes = Vec::new();
        file.take(limit + 1)
            .read_to_end(&mut bytes)
            .map_err(|error| failed("read", path, error))?;
        if bytes.len() as u64 > limit {
            return Err(refused(path, &format!("it is larger than {limit} bytes")));
        }
        Ok(bytes)
    }

    /// Reads a text of at most `limit` bytes, without its byte order mark. Returns `None` if the
    /// file does not exist. The error is the reason why it cannot be read.
    pub(crate) fn read_text(&self, path: &str, limit: u64) -> Result<Option<String>, String> {
        match self.read(path, limit) {
            Ok(bytes) => {
                let text = String::from_utf8(bytes).map_err(|_| "it is not UTF-8 text")?;
                Ok(Some(match without_bom(&text) {
                    rest if rest.len() < text.len() => rest.to_owned(),
                    _ => text,
                }))
            }
            Err(PathError::Missing { .. }) => match dangling(&self.root, Path::new(path)) {
                None => Ok(None),
                Some(link) => {
                    let link = link.display();
                    Err(format!("`{link}` is a symlink to what does not exist"))
                }
            },
            Err(PathError::Refused { reason, .. }) => Err(reason),
            Err(PathError::Io { source, .. }) => Err(source.to_string()),
        }
    }

    /// Returns the names in a directory, sorted, or none if it cannot be read.
    pub(crate) fn files_in(&self, dir: &str) -> Vec<String> {
        let Ok(resolved) = self.resolve(dir) else { return Vec::new() };
        let dir = self.root.join(resolved);
        let listed = fs::read_dir(&dir);
        let entries = listed.into_iter().flatten().flatten();
        let mut names: Vec<String> =
            entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
        names.sort();
        names
    }

    /// Returns the first `limit` bytes of a file, and its full size.
    pub(crate) fn read_head(&self, path: &str, limit: u64) -> Result<(Vec<u8>, u64), PathError> {
        let file = self.open_file(path)?;
        let size = file.metadata().map_err(|error| failed("read", path, error))?.len();
        let mut bytes = Vec::new();
        file.take(limit).read_to_end(&mut bytes).map_err(|error| failed("read", path, error))?;
        Ok((bytes, size))
    }

    /// Creates or truncates a file, and creates its parent directories.
    pub(crate) fn create(&self, path: &str) -> Result<File, PathError> {
        let (parent, name) = parent_and_name(path, self.resolve(path)?)?;
        let parent =
            self.make_dirs_resolved(&parent).map_err(|error| failed("make", path, error))?;
        let flags = OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_TRUNC;
        let file = open_in(&parent, &name, flags).map_err(|error| failed("write", path, error))?;
        let data = file.metadata().map_err(|error| failed("write", path, error))?;
        if !data.is_file() {
            return Err(refused(path, "it is not a regular file"));
        }
        Ok(file)
    }

    /// Checks that a file can be written, and creates its parent directories. Does not change its
    /// content, and does not create it if it does not exist.
    pub(crate) fn try_write(&self, path: &str) -> Result<(), PathError> {
        let (parent, name) = parent_and_name(path, self.resolve(path)?)?;
        let dir = self.make_dirs_resolved(&parent).map_err(|error| failed("make", path, error))?;
        match open_in(&dir, &name, OFlag::O_WRONLY) {
            Ok(file) => {
                let data = file.metadata().map_err(|error| failed("write", path, error))?;
                if data.is_file() { Ok(()) } else { Err(refused(path, "it is not a regular file")) }
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                // Use another name: a step that waits for this file would take it for the result.
                let way = PathBuf::from(format!(".{}.tmp", name.display()));
                let tried = open_in(&dir, &way, OFlag::O_WRONLY | OFlag::O_CREAT);
                let tried = tried.and_then(|_| unlink_in(&dir, &way));
                tried.map(drop).map_err(|error| failed("write", path, error))
            }
            Err(error) => Err(failed("write", path, error)),
        }
    }

    /// Replaces the path with a new file atomically, and creates its parent directories. A link of
    /// that name is replaced, not followed. Syncs nothing.
    pub(crate) fn put<T>(
        &self,
        path: &str,
        make: impl FnOnce(&mut File) -> io::Result<T>,
    ) -> Result<T, PathError> {
        let (parent, name) = parent_and_name(path, self.resolve_name(path)?)?;
        let dir = self.make_dirs_resolved(&parent).map_err(|error| failed("make", path, error))?;
        let way = PathBuf::from(format!(".{}.tmp", name.display()));
        let put = || {
            unlink_in(&dir, &way)?;
            let flags = OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL;
            let made = make(&mut open_in(&dir, &way, flags)?)?;
            renameat(&dir, &way, &dir, &name)?;
            Ok(made)
        };
        put().map_err(|error| {
            let _ = unlink_in(&dir, &way);
            failed("write", path, error)
        })
    }

    /// Removes a file, or a link itself. Returns true if it existed.
    pub(crate) fn remove(&self, path: &str) -> Result<bool, PathError> {
        let (parent, name) = parent_and_name(path, self.resolve_name(path)?)?;
        let dir = match self.open_beneath(&parent, OFlag::O_DIRECTORY) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
            opened => opened.map_err(|error| failed("open", path, error))?,
        };
        unlink_in(&dir, &name).map_err(|error| failed("remove", path, error))
    }

    /// Creates nested directories, each through a handle on its parent: a link that replaces one of
    /// them meanwhile is not followed.
    fn make_dirs_resolved(&self, dir: &Path) -> io::Result<File> {
        let mut here = self.open_beneath(Path::new(""), OFlag::O_DIRECTORY)?;
        for part in dir.components() {
            let name = Path::new(part.as_os_str());
            match mkdirat(&here, name, Mode::from_bits_truncate(0o777)) {
                Ok(()) | Err(Errno::EEXIST) => {}
                Err(errno) => return Err(errno.into()),
            }
            here = open_in(&here, name, OFlag::O_DIRECTORY)?;
        }
        Ok(here)
    }

    /// Moves a file into a directory. Never replaces another file.
    pub(crate) fn move_file(&self, from: &str, to: &str) -> Result<(), PathError> {
        let (source_dir, source) = parent_and_name(from, self.resolve_name(from)?)?;
        let (target_dir, target) = parent_and_name(to, self.resolve(to)?)?;
        let missing = || PathError::Missing { path: from.to_owned() };
        let source_dir = self.open_beneath(&source_dir, OFlag::O_DIRECTORY).map_err(|error| {
            match error.kind() {
                io::ErrorKind::NotFound => missing(),
                _ => failed("open", from, error),
            }
        })?;
        let target_dir =
            self.make_dirs_resolved(&target_dir).map_err(|error| failed("make", to, error))?;
        match rename_in(&source_dir, &source, &target_dir, &target) {
            Ok(()) => {}
            Err(Errno::ENOENT) => return Err(missing()),
            Err(errno) => return Err(failed("move", from, errno.into())),
        }
        for dir in [target_dir, source_dir] {
            dir.sync_all().map_err(|error| failed("sync", to, error))?;
        }
        Ok(())
    }

    /// Resolves the directory of a path but not its last name: the link itself is meant.
    fn resolve_name(&self, path: &str) -> Result<PathBuf, PathError> {
        let (dir, name) = match path.trim_end_matches('/').rsplit_once('/') {
            Some((dir, name)) => (dir, name),
            None => (".", path),
        };
        let dir = self.resolve(dir)?;
        if let Some(reason) = path_fault(path) {
            return Err(refused(path, reason));
        }
        Ok(dir.join(name))
    }

    pub(crate) fn exists(&self, path: &str) -> bool {
        let is_there = |path: PathBuf| fs::symlink_metadata(&path).is_ok();
        self.resolve_name(path).is_ok_and(|path| is_there(self.root.join(path)))
    }

    /// Returns the paths that match a pattern, sorted by their bytes. Fails if a match is outside
    /// the workspace, instead of silently omitting it.
    pub(crate) fn glob(&self, pattern: &str) -> Result<Vec<String>, PathError> {
        if let Some(reason) = path_fault(pattern) {
            return Err(refused(pattern, reason));
        }
        if pattern.contains("**") {
            return Err(refused(pattern, "`**` is not supported"));
        }
        let pattern_text = tidy(pattern);
        if !pattern_text.contains(['*', '?', '[']) {
            // A path that leads out of the workspace is rejected even if it does not exist.
            self.resolve(&pattern_text)?;
        }
        let mut found = vec![String::new()];
        for part in pattern_text.split('/') {
            found = self.matches_in(found, part, pattern)?;
        }
        // A dangling link does not count as existing.
        found.retain(|path| self.root.join(path).is_present());
        for path in &found {
            self.resolve(path)?;
        }
        // A name that contains wildcard characters, such as `a[1].csv`, matches itself.
        if found.is_empty() && self.root.join(&pattern_text).is_present() {
            self.resolve(&pattern_text)?;
            found.push(pattern_text);
        }
        found.sort();
        found.dedup();
        Ok(found)
    }
}

impl Workspace {
    /// Does one step of a walk along a pattern: returns the names in each directory that match
    /// `part`.
    ///
    /// The walk of the `glob` crate never matches a leading dot, even if the pattern contains it.
    fn matches_in(
        &self,
        dirs: Vec<String>,
        part: &str,
        whole: &str,
    ) -> Result<Vec<String>, PathError> {
        let join = |dir: &str, name: &str| match dir {
            "" => name.to_owned(),
            _ => format!("{dir}/{name}"),
        };
        if !part.contains(['*', '?', '[']) {
            let named = dirs.iter().map(|dir| join(dir, part));
            let is_there = |path: &String| {
                let path = self.root.join(path);
                fs::metadata(&path).is_ok()
            };
            return Ok(named.filter(is_there).collect());
        }
        let pattern = glob::Pattern::new(part).map_err(|error| refused(whole, error.msg))?;
        let mut found = Vec::new();
        for dir in dirs {
            let below = self.root.join(&dir);
            let entries = match fs::read_dir(&below) {
                Ok(entries) => entries,
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                    return Err(failed("list", &dir, error));
                }
                Err(_) => continue,
            };
            for entry in entries {
                let entry = entry.map_err(|error| failed("list", &dir, error))?;
                let Ok(name) = entry.file_name().into_string() else { continue };
                let hidden = name.starts_with('.') && !part.starts_with('.');
                if !hidden && pattern.matches(&name) {
                    found.push(join(&dir, &name));
                }
            }
        }
        Ok(found)
    }
}

/// Opens a path beneath a directory without following any symlink.
fn open_in(dir: &File, name: &Path, flags: OFlag) -> io::Result<File> {
    let flags = flags | OFlag::O_CLOEXEC | OFlag::O_NONBLOCK;
    let mode = Mode::from_bits_truncate(if flags.contains(OFlag::O_CREAT) { 0o666 } else { 0 });
    let how = OpenHow::new()
        .flags(flags)
        .mode(mode)
        .resolve(ResolveFlag::RESOLVE_BENEATH | ResolveFlag::RESOLVE_NO_SYMLINKS);
    match openat2(dir, name, how) {
        Ok(fd) => Ok(File::from(fd)),
        // A kernel or sandbox without openat2: open one name after the other.
        Err(Errno::ENOSYS) => {
            let mut here = dir.try_clone()?;
            let mut names = name.components().peekable();
            while let Some(name) = names.next() {
                let last = names.peek().is_none();
                let flags = if last { flags } else { OFlag::O_DIRECTORY | OFlag::O_CLOEXEC };
                let name = Path::new(name.as_os_str());
                here = openat(&here, name, flags | OFlag::O_NOFOLLOW, mode)?.into();
            }
            Ok(here)
        }
        Err(errno) => Err(errno.into()),
    }
}

/// Removes a name in a directory. Returns true if it existed.
fn unlink_in(dir: &File, name: &Path) -> io::Result<bool> {
    match unlinkat(dir, name, UnlinkatFlags::NoRemoveDir) {
        Ok(()) => Ok(true),
        Err(Errno::ENOENT) => Ok(false),
        Err(errno) => Err(errno.into()),
    }
}

/// Renames a file. Never replaces another file.
fn rename_in(from: &File, source: &Path, to: &File, target: &Path) -> nix::Result<()> {
    match renameat2(from, source, to, target, RenameFlags::RENAME_NOREPLACE) {
        // Some file systems cannot guarantee this; then check the target first.
        Err(Errno::EINVAL | Errno::ENOSYS) => {
            match fstatat(to, target, AtFlags::AT_SYMLINK_NOFOLLOW) {
                Err(Errno::ENOENT) => renameat(from, source, to, target),
                Err(errno) => Err(errno),
                Ok(_) => Err(Errno::EEXIST),
            }
        }
        done => done,
    }
}

/// Splits a resolved path into a directory and a name in it.
fn parent_and_name(path: &str, resolved: PathBuf) -> Result<(PathBuf, PathBuf), PathError> {
    match (resolved.parent(), resolved.file_name()) {
        (Some(parent), Some(name)) => Ok((parent.to_owned(), name.into())),
        _ => Err(refused(path, "it has no name")),
    }
}

/// Returns the path without `./` and doubled slashes, as matches are written.
pub(crate) fn tidy(path: &str) -> String {
    let parts = Path::new(path).components().filter(|part| *part != Component::CurDir);
    let tidy = parts.collect::<PathBuf>().to_string_lossy().into_owned();
    if tidy.is_empty() { ".".to_owned() } else { tidy }
}

fn refused(path: &str, reason: &str) -> PathError {
    PathError::Refused { path: path.to_owned(), reason: reason.to_owned() }
}

fn failed(doing: &'static str, path: &str, source: io::Error) -> PathError {
    PathError::Io { doing, path: path.to_owned(), source }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::symlink;

    #[test]
    fn a_path_is_resolved_as_the_disk_has_it() {
        let (dir, workspace) = workspace();
        let (root, above) = (workspace.root(), dir.path().canonicalize().unwrap());
        symlink(above.join("outside"), root.join("link")).unwrap();
        let is = |path: &str, wanted: PathBuf| {
            assert_eq!(resolved(root, Path::new(path)), wanted, "{path}");
        };
        is("../outside/new", above.join("outside/new"));
        is("./new/../sub/x", root.join("sub/x"));
        is("link/runs", above.join("outside/runs"));
        // The parent of what a link leads to.
        is("link/../ws", root.to_owned());
        is("/new/../other", "/other".into());
    }

    fn workspace() -> (tempfile::TempDir, Workspace) {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir_all(dir.path().join("ws/sub")).unwrap();
        fs::create_dir_all(dir.path().join("outside")).unwrap();
        fs::write(dir.path().join("outside/secret"), "s").unwrap();
        fs::write(dir.path().join("ws/sub/a.txt"), "a").unwrap();
        let workspace = Workspace::open(&dir.path().join("ws")).unwrap();
        (dir, workspace)
    }

    #[test]
    fn links_may_lead_around_inside_but_not_out() {
        let (dir, ws) = workspace();
        symlink(dir.path().join("ws/sub"), ws.root().join("absolute")).unwrap();
        symlink("sub", ws.root().join("relative")).unwrap();
        symlink("../outside", ws.root().join("out")).unwrap();
        symlink("sub/later", ws.root().join("dangling")).unwrap();
        symlink("../outside/later", ws.root().join("dangling-out")).unwrap();
        symlink("circle", ws.root().join("circle")).unwrap();
        assert_eq!(ws.read("absolute/a.txt", 10).unwrap(), b"a");
        assert_eq!(ws.read("relative/a.txt", 10).unwrap(), b"a");
        assert!(matches!(ws.read("dangling", 10), Err(PathError::Missing { .. })));
        assert!(ws.glob("dangling").unwrap().is_empty());
        ws.create("dangling").unwrap();
        assert!(ws.root().join("sub/later").exists());
        let out = ["out/secret", "out/new", "dangling-out", "../outside/secret", "/etc", "circle"];
        for path in out {
            assert!(matches!(ws.read(path, 10), Err(PathError::Refused { .. })), "{path}");
            assert!(matches!(ws.create(path), Err(PathError::Refused { .. })), "{path}");
        }
        assert!(matches!(ws.glob("out/*"), Err(PathError::Refused { .. })));
        assert!(!dir.path().join("outside/new").exists());
        assert!(!dir.path().join("outside/later").exists());
    }

    #[test]
    fn only_regular_files_of_a_bounded_size_are_read() {
        let (_dir, ws) = workspace();
        nix::unistd::mkfifo(&ws.root().join("fifo"), Mode::from_bits_truncate(0o600)).unwrap();
        assert!(matches!(ws.read("fifo", 10), Err(PathError::Refused { .. })));
        assert!(matches!(ws.read("sub", 10), Err(PathError::Refused { .. })));
        assert!(matches!(ws.read("none", 10), Err(PathError::Missing { .. })));
        fs::write(ws.root().join("big"), "0123456789x").unwrap();
        assert!(matches!(ws.read("big", 10), Err(PathError::Refused { .. })));
    }

    #[test]
    fn globs_are_posix_and_sorted() {
        let (_dir, ws) = workspace();
        for name in ["b.csv", "a.csv", ".hidden.csv", "a[1].csv"] {
            fs::write(ws.root().join(name), "").unwrap();
        }
        assert_eq!(ws.glob("*.csv").unwrap(), ["a.csv", "a[1].csv", "b.csv"]);
        assert_eq!(ws.glob(".*.csv").unwrap(), [".hidden.csv"]);
        assert_eq!(ws.glob("./?.csv").unwrap(), ["a.csv", "b.csv"]);
        assert_eq!(ws.glob("a[1].csv").unwrap(), ["a[1].csv"]);
        assert_eq!(ws.glob("*/*.txt").unwrap(), ["sub/a.txt"]);
        assert_eq!(ws.glob("sub").unwrap(), ["sub"]);
        assert!(ws.glob("none/*").unwrap().is_empty());
    }

    #[test]
    fn a_move_never_covers_another_file() {
        let (_dir, ws) = workspace();
        ws.move_file("sub/a.txt", "done/deep/a.txt").unwrap();
        assert_eq!(ws.read("done/deep/a.txt", 10).unwrap(), b"a");
        fs::write(ws.root().join("sub/a.txt"), "new").unwrap();
        assert!(ws.move_file("sub/a.txt", "done/deep/a.txt").is_err());
        assert_eq!(ws.read("done/deep/a.txt", 10).unwrap(), b"a");
        assert!(matches!(ws.move_file("gone", "x"), Err(PathError::Missing { .. })));
    }
}
