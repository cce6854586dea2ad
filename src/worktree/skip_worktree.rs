//! Changes that git is configured to ignore: `git update-index --skip-worktree` and
//! `--assume-unchanged` hide changes to a file. They are still work, so this module makes them
//! visible.
//!
//! The files that a sparse checkout omits have the same flag. They keep it.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use super::save::Copy;
use super::{TreeError, Trees};
use crate::disk::fs;
use crate::git::Git;
use crate::git::repo::git_dir;

/// Names in an index by the flag that hides their changes, each followed by a NUL.
#[derive(Default)]
struct Hidden {
    skipped: Vec<u8>,
    assumed: Vec<u8>,
}

impl Trees {
    /// Returns a `git` that sees hidden changes. If there are any, it uses a temporary index, which
    /// lasts as long as the returned `Copy`.
    pub(super) fn seeing(&self, git: &Git) -> Result<(Git, Option<Copy>), TreeError> {
        let hidden = Hidden::in_index(git)?;
        if hidden.is_nothing() {
            return Ok((git.clone(), None));
        }
        let copy = Copy::of_index(&git_dir(git)?)?;
        let seeing = git.clone().env("GIT_INDEX_FILE", copy.path());
        hidden.reveal(&seeing)?;
        Ok((seeing, Some(copy)))
    }

    /// Clears the flags in the index that `git` is set to.
    pub(super) fn reveal(&self, git: &Git) -> Result<(), TreeError> {
        Hidden::in_index(git)?.reveal(git)
    }
}

impl Hidden {
    fn in_index(git: &Git) -> Result<Hidden, TreeError> {
        let list = git.bytes(&["ls-files", "-v", "-z"])?;
        let mut hidden = Hidden::default();
        let mut is_sparse = None;
        for line in list.split(|byte| *byte == 0) {
            let (Some(&tag), Some(name)) = (line.first(), line.get(2..)) else { continue };
            if tag.is_ascii_lowercase() {
                add(&mut hidden.assumed, name);
            }
            if tag.eq_ignore_ascii_case(&b'S') {
                let there = fs::symlink_metadata(git.dir().join(OsStr::from_bytes(name))).is_ok();
                if there || !*is_sparse.get_or_insert(sparse(git)?) {
                    add(&mut hidden.skipped, name);
                }
            }
        }
        Ok(hidden)
    }

    fn is_nothing(&self) -> bool {
        self.skipped.is_empty() && self.assumed.is_empty()
    }

    /// Clears one flag at a time: given two, `git` applies only the first.
    fn reveal(&self, git: &Git) -> Result<(), TreeError> {
        for (mark, names) in
            [("--no-skip-worktree", &self.skipped), ("--no-assume-unchanged", &self.assumed)]
        {
            if !names.is_empty() {
                git.fed(&["update-index", mark, "-z", "--stdin"], names)?;
            }
        }
        Ok(())
    }
}

fn add(names: &mut Vec<u8>, name: &[u8]) {
    names.extend_from_slice(name);
    names.push(0);
}

/// Returns true if the working copy is a sparse checkout.
fn sparse(git: &Git) -> Result<bool, TreeError> {
    let said = git.said(&["config", "--type=bool", "--get", "core.sparseCheckout"])?;
    Ok(said.out.trim_ascii() == b"true")
}
