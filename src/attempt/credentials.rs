//! Secrets that a service manager hands over as files, read into environment variables.
//!
//! systemd puts the credentials of a unit into `$CREDENTIALS_DIRECTORY`, one file each. Agents read
//! their keys from the environment, so a file `ANTHROPIC_API_KEY` becomes the variable of that
//! name. `LoadCredential=env:DIRECTORY` loads a whole directory and adds the prefix `env_` to each
//! name; this module removes it again.
//!
//! **Invariant:** a file that cannot become a variable is an error that names the file, never a
//! secret that is silently missing. No message contains a value.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use nix::fcntl::OFlag;

use crate::disk::fs;

/// Variable in which systemd passes the directory.
pub(crate) const VARIABLE: &str = "CREDENTIALS_DIRECTORY";

/// Prefix that `LoadCredential=env:DIRECTORY` adds to every name.
const PREFIX: &str = "env_";
/// Half of the longest variable that Linux passes to a child process.
const LARGEST: u64 = 64 << 10;
const LONGEST_NAME: usize = 128;

/// Reads every credential in a directory, keyed by its variable name.
pub(crate) fn read(dir: &Path) -> io::Result<BTreeMap<String, OsString>> {
    let listed = fs::read_dir(dir).map_err(|error| wrap(&dir.display().to_string(), &error))?;
    let mut found = BTreeMap::new();
    for entry in listed {
        let file = entry?.file_name();
        let shown = file.to_string_lossy().into_owned();
        let name = variable(&shown).map_err(|error| wrap(&shown, &error))?;
        let value = value(&dir.join(&file)).map_err(|error| wrap(&shown, &error))?;
        if found.insert(name.clone(), value).is_some() {
            return Err(refusal(format!("two credentials are called `{name}`")));
        }
    }
    Ok(found)
}

fn wrap(name: &str, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("the credential `{name}`: {error}"))
}

fn refusal(message: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, message.into())
}

/// Returns the variable that a credential file becomes.
fn variable(file: &str) -> io::Result<String> {
    let name = file.strip_prefix(PREFIX).unwrap_or(file);
    let letters = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let good = !name.is_empty()
        && name.len() <= LONGEST_NAME
        && name.chars().all(letters)
        && !name.starts_with(|c: char| c.is_ascii_digit());
    if good {
        return Ok(name.to_owned());
    }
    Err(refusal("its name must be that of a variable: letters, digits and `_`, no digit first"))
}

/// Reads the value of a credential, without the newline that an editor added at its end.
fn value(path: &Path) -> io::Result<OsString> {
    // Non-blocking: opening a pipe without a writer would block forever.
    let flags = OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK;
    let file: File = OpenOptions::new().read(true).custom_flags(flags.bits()).open(path)?;
    if !file.metadata()?.is_file() {
        return Err(refusal("it is not a regular file"));
    }
    let mut bytes = Vec::new();
    file.take(LARGEST + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > LARGEST {
        return Err(refusal(format!("it is larger than {LARGEST} bytes")));
    }
    if bytes.contains(&0) {
        return Err(refusal("it has a NUL byte, which no variable can hold"));
    }
    if bytes.last() == Some(&b'\n') {
        bytes.pop();
    }
    Ok(OsString::from_vec(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(
        files: &[(&str, &[u8])],
    ) -> (tempfile::TempDir, io::Result<BTreeMap<String, OsString>>) {
        let dir = tempfile::tempdir().unwrap();
        for (name, content) in files {
            fs::write(dir.path().join(name), content).unwrap();
        }
        let found = read(dir.path());
        (dir, found)
    }

    fn refused(files: &[(&str, &[u8])], part: &str) {
        let (_dir, found) = with(files);
        let message = found.unwrap_err().to_string();
        assert!(message.contains(part), "{message}");
        assert!(message.contains(files[0].0), "it is named: {message}");
    }

    #[test]
    fn files_become_variables_without_their_last_newline() {
        let files: [(&str, &[u8]); 4] = [
            ("ANTHROPIC_API_KEY", b"sk-1\n"),
            ("env_OPENAI_API_KEY", b"sk-2"),
            ("TWO_LINES", b"a\nb\n\n"),
            ("BYTES", b"\xff"),
        ];
        let (_dir, found) = with(&files);
        let found = found.unwrap();
        let names: Vec<_> = found.keys().map(String::as_str).collect();
        assert_eq!(names, ["ANTHROPIC_API_KEY", "BYTES", "OPENAI_API_KEY", "TWO_LINES"]);
        assert_eq!(found["ANTHROPIC_API_KEY"], "sk-1");
        assert_eq!(found["OPENAI_API_KEY"], "sk-2");
        assert_eq!(found["TWO_LINES"], "a\nb\n");
        assert_eq!(found["BYTES"], OsString::from_vec(vec![0xff]));
    }

    #[test]
    fn what_cannot_be_a_variable_is_refused_by_name_and_without_its_value() {
        refused(&[("api-key", b"hidden")], "letters, digits and `_`");
        refused(&[("1KEY", b"hidden")], "no digit first");
        refused(&[("env_", b"hidden")], "letters");
        refused(&[(&"K".repeat(129), b"hidden")], "name");
        refused(&[("NUL", b"hid\0den")], "NUL byte");
        refused(&[("BIG", &[b'x'; (64 << 10) + 1])], "larger than 65536 bytes");
        let (_dir, found) = with(&[("BIG", &[b'x'; 64 << 10])]);
        assert_eq!(found.unwrap()["BIG"].len(), 64 << 10);
        let (_dir, twice) = with(&[("env_KEY", b"hidden"), ("KEY", b"hidden")]);
        let message = twice.unwrap_err().to_string();
        assert!(message.contains("`KEY`") && !message.contains("hidden"), "{message}");
    }

    #[test]
    fn only_regular_files_are_read() {
        let dir = tempfile::tempdir().unwrap();
        let refused = |name: &str| {
            let message = read(dir.path()).unwrap_err().to_string();
            assert!(message.contains(name), "{message}");
            let path = dir.path().join(name);
            if path.is_dir() { fs::remove_dir(path) } else { fs::remove_file(path) }.unwrap();
        };
        fs::create_dir(dir.path().join("FOLDER")).unwrap();
        refused("FOLDER");
        nix::unistd::mkfifo(&dir.path().join("PIPE"), nix::sys::stat::Mode::S_IRUSR).unwrap();
        refused("PIPE");
        std::os::unix::fs::symlink("/etc/hostname", dir.path().join("LINK")).unwrap();
        refused("LINK");
        assert_eq!(read(dir.path()).unwrap(), BTreeMap::new());
        assert!(read(&dir.path().join("none")).unwrap_err().to_string().contains("none"));
    }
}
