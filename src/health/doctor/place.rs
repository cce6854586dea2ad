//! Inspects a workspace and its machine, without tests.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

use nix::sys::statvfs::statvfs;
use nix::unistd::{AccessFlags, access, geteuid};

use super::Finding;
use super::mount::{Mount, mount_id};
use crate::base::process::new_incarnation;
use crate::disk;
use crate::exec::{Confinement, Powers, Reach, SIGNALS_LANDLOCK};
use crate::queue::{Layout, fault_of};

/// The directories between which tasks are renamed.
const QUEUE: [&str; 4] = ["inbox", "processed", "failed", ".orchestrate"];

const LITTLE_BYTES: u64 = 256 << 20;
const FEW_FILES: u64 = 10_000;
/// The kernel's default limits per user; each program of a fleet needs one instance.
const FEW_INSTANCES: u64 = 128;
const FEW_WATCHES: u64 = 8_192;

/// Checks that the workspace is writable; `tried` is the error of a test write, if it failed.
pub(crate) fn writable(workspace: &Path, tried: Option<&io::Error>) -> Finding {
    let shown = workspace.display();
    if let Some(error) = tried {
        let cure = match error.kind() {
            io::ErrorKind::ReadOnlyFilesystem => format!("mount it to be written: {shown}"),
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => "make room".to_owned(),
            _ => format!("give user {} the right to write there, or use another", geteuid()),
        };
        let text = format!("nothing can be written into `{shown}/.orchestrate`: {error}");
        return Finding::wrong("workspace", text, cure);
    }
    for name in QUEUE {
        let dir = workspace.join(name);
        if !dir.is_dir() {
            continue;
        }
        if let Err(errno) = access(&dir, AccessFlags::W_OK | AccessFlags::X_OK) {
            let text = format!("`{name}` cannot be written: {}", errno.desc());
            let cure = format!("give user {} the right to write there", geteuid());
            return Finding::wrong("workspace", text, cure);
        }
    }
    Finding::ok("workspace", format!("`{shown}` can be written"))
}

/// Checks the queue's name, which distinguishes its volume from an empty mount point.
pub(crate) fn queue(workspace: &Path) -> Option<Finding> {
    let fault = fault_of(&*disk::machine(), &Layout::new(workspace)).ok()??;
    let cure = fault.hint(&new_incarnation());
    Some(Finding::wrong("queue", fault.to_string(), cure))
}

/// Checks that files can be renamed between all directories of the queue.
pub(crate) fn one_volume(workspace: &Path) -> Finding {
    let mut places: BTreeMap<(u64, u64), Vec<String>> = BTreeMap::new();
    for name in directories(workspace) {
        let dir = workspace.join(&name);
        // A missing directory will be created in the workspace.
        let there = if dir.symlink_metadata().is_ok() { &dir } else { workspace };
        match volume(there) {
            Ok(volume) => places.entry(volume).or_default().push(name),
            Err(error) => {
                let text = format!("`{name}` is no directory that can be used: {error}");
                return Finding::wrong("one volume", text, "make it a directory");
            }
        }
    }
    let Some((usual, _)) = places.iter().max_by_key(|(_, names)| names.len()) else {
        return Finding::ok("one volume", "there is nothing to look at");
    };
    let usual = *usual;
    let apart = places.iter().filter(|(volume, _)| **volume != usual);
    let apart: Vec<&String> = apart.flat_map(|(_, names)| names).collect();
    if apart.is_empty() {
        let names = QUEUE.map(|name| format!("`{name}`")).join(", ");
        return Finding::ok("one volume", format!("{names} lie on one"));
    }
    let kind = |name: &str| {
        let mount = Mount::of(&workspace.join(name)).or_else(|_| Mount::of(workspace));
        mount.map_or("unknown".to_owned(), |m| {
            format!("{} at `{}`", m.kind, m.mount_point.display())
        })
    };
    let listed = apart.iter().map(|name| format!("`{name}` ({})", kind(name)));
    let listed = listed.collect::<Vec<_>>().join(", ");
    let other = &places[&usual][0];
    Finding::wrong(
        "one volume",
        format!(
            "{listed} on another volume than `{other}` ({}): no task can be moved",
            kind(other)
        ),
        "put them on one volume, without a mount or a link to another in between",
    )
}

/// Returns the directories of the queue and of its agents.
fn directories(workspace: &Path) -> Vec<String> {
    let mut names: Vec<String> = QUEUE.map(str::to_owned).to_vec();
    let agents = workspace.join("inbox").read_dir().into_iter().flatten().flatten();
    let agents = agents.filter(|entry| entry.path().is_dir());
    let mut agents: Vec<_> = agents.map(|entry| entry.file_name().into_string()).collect();
    agents.sort();
    names.extend(agents.into_iter().flatten().map(|agent| format!("inbox/{agent}")));
    names
}

/// Returns the mount ID and the device number. `rename` needs both to agree: a bind mount shares
/// the device, a subvolume shares the mount.
fn volume(dir: &Path) -> io::Result<(u64, u64)> {
    Ok((mount_id(dir)?, fs::metadata(dir)?.dev()))
}

/// Checks the free space.
pub(crate) fn room(workspace: &Path) -> Option<Finding> {
    let stat = statvfs(workspace).ok()?;
    let bytes = stat.blocks_available().saturating_mul(stat.fragment_size());
    // Some file systems do not count files and report a total of 0.
    let files = if stat.files() == 0 { u64::MAX } else { stat.files_available() };
    let mib = bytes >> 20;
    let more = match files {
        u64::MAX => String::new(),
        files => format!(", for {files} more files"),
    };
    Some(if bytes < LITTLE_BYTES {
        let cure = "make room: `orchestrate clean --older-than 7d` removes old runs";
        Finding::warning("room", format!("only {mib} MiB are free"), cure)
    } else if files < FEW_FILES {
        let text = format!("only {files} more files can be made");
        Finding::warning("room", text, "remove files, or use a volume with more inodes")
    } else {
        Finding::ok("room", format!("{mib} MiB are free{more}"))
    })
}

/// Finds inboxes into which every user may put work for an agent. No worker serves such an inbox
/// unless the settings allow it.
pub(crate) fn open_to_all(workspace: &Path, allowed: bool) -> Vec<Finding> {
    let inboxes = directories(workspace).into_iter().filter(|name| name.starts_with("inbox"));
    let open = inboxes.filter(|name| {
        let mode = fs::metadata(workspace.join(name)).map(|data| data.permissions().mode());
        mode.is_ok_and(|mode| mode & 0o002 != 0)
    });
    open.map(|name| {
        let text = format!("every user of this machine may put work into `{name}`");
        let cure = format!("chmod o-w {name}");
        match allowed {
            true => Finding::warning("inbox", text, cure),
            false => Finding::wrong("inbox", format!("{text}: no worker serves it"), cure),
        }
    })
    .collect()
}

/// Checks that the engine's files are writable for this user and not for all users.
pub(crate) fn permissions(workspace: &Path) -> Vec<Finding> {
    const NAME: &str = "permissions";
    let own = workspace.join(".orchestrate");
    let mut findings = Vec::new();
    let entries = own.read_dir().into_iter().flatten().flatten().map(|entry| entry.path());
    let mut paths: Vec<_> = std::iter::once(own.clone()).chain(entries).collect();
    paths.sort();
    for path in paths {
        let Ok(metadata) = fs::symlink_metadata(&path) else { continue };
        let shown = path.strip_prefix(workspace).unwrap_or(&path).display().to_string();
        if metadata.is_dir() && access(&path, AccessFlags::W_OK | AccessFlags::X_OK).is_err() {
            let text =
                format!("`{shown}` belongs to user {}, and cannot be written", metadata.uid());
            let cure = format!("as root: chown -R {} {shown}", geteuid());
            findings.push(Finding::wrong(NAME, text, cure));
        } else if !metadata.is_symlink() && metadata.permissions().mode() & 0o002 != 0 {
            // A user who can write settings decides which programs run.
            let text = format!("every user of this machine may change `{shown}`");
            findings.push(Finding::warning(NAME, text, format!("chmod -R o-w {shown}")));
        }
    }
    if findings.is_empty() && own.is_dir() {
        let text = "what is in `.orchestrate` can be written by this user, and not by everybody";
        findings.push(Finding::ok(NAME, text));
    }
    findings
}

/// Checks if the kernel reports changes.
pub(crate) fn notices() -> Finding {
    let limit = |name: &str| -> Option<u64> {
        fs::read_to_string(format!("/proc/sys/fs/inotify/{name}")).ok()?.trim().parse().ok()
    };
    let (instances, watches) = (limit("max_user_instances"), limit("max_user_watches"));
    let (Some(instances), Some(watches)) = (instances, watches) else {
        let text = "it is not known whether the kernel tells of changes";
        return Finding::warning(
            "inotify",
            text,
            "mount `/proc`; without it, work is found by polling",
        );
    };
    let text = format!("{instances} instances and {watches} watches for each user");
    if instances < FEW_INSTANCES || watches < FEW_WATCHES {
        let cure = format!(
            "sysctl fs.inotify.max_user_instances={FEW_INSTANCES} \
             fs.inotify.max_user_watches={FEW_WATCHES}"
        );
        return Finding::warning("inotify", format!("only {text}"), cure);
    }
    Finding::ok("inotify", text)
}

/// Checks which sandboxes this machine supports for child processes.
pub(crate) fn sandbox(powers: Powers) -> Finding {
    const NAME: &str = "sandbox";
    let files = Confinement { layers: vec![Reach::default()], no_network: false };
    let network = Confinement { layers: Vec::new(), no_network: true };
    let refusals = [files, network].map(|confinement| confinement.refusal(powers));
    let refused: Vec<String> = refusals.into_iter().flatten().collect();
    if !refused.is_empty() {
        let cure = "a newer kernel, with Landlock among its `lsm=`; agents with such a `sandbox` \
                    are refused their tasks here";
        return Finding::warning(NAME, refused.join("; "), cure);
    }
    let version = powers.landlock;
    let text = format!("files and the network can be kept from children (Landlock {version})");
    if version < SIGNALS_LANDLOCK {
        let text = format!("{text}, but signals to processes of the same user cannot");
        return Finding::warning(NAME, text, "Linux 6.12 or newer");
    }
    Finding::ok(NAME, text)
}
