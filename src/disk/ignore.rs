//! Hides orchestrate's directory in a user's checkout from git.

use std::io;
use std::path::Path;

use super::Disk;
use crate::base::random;

/// Ignores everything except the files that users write. The file ignores itself, too.
const IGNORE: &[u8] = b"# Made by orchestrate, and never changed by it once it is here.\n\
                        /*\n!/config.yaml\n!/schemas/\n";

/// Hides a directory from git, unless it already has a `.gitignore`: the user's version takes
/// precedence. The file appears completely or not at all.
pub(crate) fn keep_from_git(disk: &dyn Disk, dir: &Path) -> io::Result<()> {
    let file = dir.join(".gitignore");
    if disk.mode(&file).is_ok() || disk.mode(dir).is_err() {
        return Ok(());
    }
    let way = dir.join(format!(".gitignore.{}.tmp", random::word(random::chance())));
    let written = disk.write(&way, IGNORE).and_then(|()| disk.sync(&way));
    let placed = written.and_then(|()| match disk.link(&way, &file) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        // Some file systems have no hard links. A process that writes the file concurrently writes
        // the same content.
        Err(_) => disk.rename(&way, &file),
        linked => linked,
    });
    let _ = disk.remove(&way);
    placed
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::RealDisk;
    use std::fs;

    #[test]
    fn a_directory_is_hidden_once_and_what_is_there_stays() {
        let place = tempfile::tempdir().unwrap();
        let dir = place.path().join("own");
        let disk = RealDisk::default();
        keep_from_git(&disk, &dir).unwrap();
        assert!(!dir.exists(), "nothing is made for it");

        fs::create_dir(&dir).unwrap();
        keep_from_git(&disk, &dir).unwrap();
        assert_eq!(fs::read(dir.join(".gitignore")).unwrap(), IGNORE);
        assert_eq!(fs::read_dir(&dir).unwrap().count(), 1);

        fs::write(dir.join(".gitignore"), "").unwrap();
        keep_from_git(&disk, &dir).unwrap();
        assert_eq!(fs::read(dir.join(".gitignore")).unwrap(), b"");
    }
}
