//! `--clean-processed` and `--archive-processed`. They touch only the processed directory, which
//! must be inside the workspace.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use super::failure::Failure;
use super::project::Project;
use crate::base::ids::counted;
use crate::disk::{self, fs};
use crate::workflow::Plan;

pub(crate) struct Processed<'a> {
    workspace: &'a Path,
    name: String,
    dir: PathBuf,
}

impl<'a> Processed<'a> {
    pub(crate) fn of(project: &'a Project, plan: &Plan) -> Self {
        let name = plan.dirs().processed.clone();
        Processed { workspace: &project.workspace, dir: project.workspace.join(&name), name }
    }

    /// Fails unless the directory is inside the workspace, is not the workspace itself, and does
    /// not overlap `.orchestrate`. A missing directory passes.
    pub(crate) fn check(&self) -> Result<(), Failure> {
        let real = match self.dir.canonicalize() {
            Ok(real) => real,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(self.failed("resolve", &error)),
        };
        let ours = self.workspace.join(".orchestrate");
        let kept = real.starts_with(&ours) || ours.starts_with(&real);
        if kept || !real.starts_with(self.workspace) {
            let message = format!(
                "`{}` is not a directory inside the workspace; it is left alone",
                self.name
            );
            return Err(Failure::invalid(message));
        }
        Ok(())
    }

    fn failed(&self, doing: &str, error: &io::Error) -> Failure {
        Failure::failed(format!("cannot {doing} `{}`: {error}", self.name))
    }

    /// Describes the effect of [`clean`](Self::clean).
    pub(crate) fn would_clean(&self) -> String {
        let entries = fs::read_dir(&self.dir).into_iter().flatten().count();
        format!("first empty `{}`, which has {entries} in it", self.name)
    }

    /// Describes the effect of [`archive`](Self::archive).
    pub(crate) fn would_archive(&self, destination: &Path) -> String {
        match destination.as_os_str().is_empty() {
            true => format!("pack `{}` into `processed.zip` of the run after success", self.name),
            false => format!("pack `{}` into `{}` after success", self.name, destination.display()),
        }
    }

    /// Empties the directory. Does nothing if it is missing.
    pub(crate) fn clean(&self) -> Result<(), Failure> {
        let entries = match fs::read_dir(&self.dir) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(self.failed("empty", &error)),
        };
        for entry in entries {
            let removed = entry.and_then(|entry| {
                // Remove a link, not its target.
                match entry.file_type()?.is_dir() {
                    true => fs::remove_dir_all(entry.path()),
                    false => fs::remove_file(entry.path()),
                }
            });
            removed.map_err(|error| self.failed("empty", &error))?;
        }
        Ok(())
    }

    /// Fails if the archive would be inside the directory it archives, or if its path is not a
    /// regular file.
    pub(crate) fn check_archive(&self, destination: &Path) -> Result<(), Failure> {
        self.check()?;
        if destination.as_os_str().is_empty() {
            return Ok(());
        }
        let target = self.workspace.join(destination);
        let parent = target.parent().unwrap_or(self.workspace);
        let parent = parent.canonicalize().map_err(|error| {
            Failure::invalid(format!("the archive's directory `{}`: {error}", parent.display()))
        })?;
        let inside = self.dir.canonicalize().unwrap_or_else(|_| self.dir.clone());
        if parent.starts_with(inside) {
            let message = format!(
                "the archive `{}` would lie inside `{}`, which it archives",
                destination.display(),
                self.name
            );
            return Err(Failure::invalid(message));
        }
        if disk::where_to(&target).and_then(fs::metadata).is_ok_and(|kind| !kind.is_file()) {
            let message = format!("the archive `{}` is no regular file", destination.display());
            return Err(Failure::invalid(message).hint("name another file"));
        }
        Ok(())
    }

    /// Writes the archive atomically: to a temporary file, which is then renamed.
    pub(crate) fn archive(&self, destination: &Path, run_root: &Path) -> Result<(), Failure> {
        let target = match destination.as_os_str().is_empty() {
            true => run_root.join("processed.zip"),
            false => self.workspace.join(destination),
        };
        let failed = |error: &dyn std::fmt::Display| {
            Failure::failed(format!("cannot write the archive `{}`: {error}", target.display()))
        };
        let target = disk::where_to(&target).map_err(|error| failed(&error))?;
        let temporary = target.with_extension("zip.tmp");
        let written = File::create(&temporary).map_err(|error| failed(&error)).and_then(|file| {
            let mut zip = zip::ZipWriter::new(file);
            let left_out = add(&mut zip, &self.dir, &self.name).map_err(|error| failed(&error))?;
            if left_out > 0 {
                let (links, name) = (counted(left_out, "link"), &self.name);
                tracing::warn!("`{name}` is packed without {links} in it: they may lead anywhere");
            }
            let file = zip.finish().map_err(|error| failed(&error))?;
            file.sync_all().map_err(|error| failed(&error))
        });
        let placed = written
            .and_then(|()| disk::rename(&temporary, &target).map_err(|error| failed(&error)));
        if placed.is_err() {
            let _ = fs::remove_file(&temporary);
        }
        placed
    }
}

/// Adds a directory and its content, sorted by name. Leaves out links and special files: a link may
/// lead anywhere. Returns the number of entries left out.
fn add(zip: &mut zip::ZipWriter<File>, dir: &Path, name: &str) -> io::Result<usize> {
    let mut left_out = 0;
    let options = zip::write::SimpleFileOptions::default().large_file(true);
    let mut entries: Vec<_> = match fs::read_dir(dir) {
        Ok(entries) => entries.collect::<Result<_, _>>()?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
        Err(error) => return Err(error),
    };
    entries.sort_by_key(fs::DirEntry::file_name);
    for entry in entries {
        let path = format!("{name}/{}", entry.file_name().to_string_lossy());
        let kind = entry.file_type()?;
        if kind.is_dir() {
            zip.add_directory(&path, options).map_err(io::Error::other)?;
            left_out += add(zip, &entry.path(), &path)?;
        } else if kind.is_file() {
            zip.start_file(&path, options).map_err(io::Error::other)?;
            io::copy(&mut fs::open(entry.path())?, zip)?;
        } else {
            left_out += 1;
        }
    }
    Ok(left_out)
}
