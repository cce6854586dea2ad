//! Judges the mount options of a volume: their effect on a queue of renames.
//!
//! Every rejected option was seen to lose or hide work on real volumes: a soft mount reports an
//! error for a rename that happens later, a cached listing hides another machine's files, and an
//! object store has no rename at all.

use std::fs::{self, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use nix::fcntl::OFlag;
use serde::Serialize;

use super::Finding;

/// One line of `/proc/self/mountinfo`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Mount {
    #[serde(skip)]
    id: u64,
    #[serde(rename = "type")]
    pub kind: String,
    pub source: String,
    pub mount_point: PathBuf,
    /// Options of the mount, then of the file system.
    pub options: Vec<String>,
    /// True if other machines may change it: then this machine gets no notification of changes.
    pub shared: bool,
}

/// Reliability class of a file system type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Class {
    Local,
    /// Lost when the machine stops.
    Memory,
    /// Made for other operating systems: no links, no owners.
    Foreign,
    Network,
    ObjectStore,
    Unknown,
}

/// Default time for which an NFS client caches its knowledge of a directory.
const ACDIRMAX_SEC: u64 = 60;

const LOCAL: &[&str] = &[
    "bcachefs", "btrfs", "ecryptfs", "ext2", "ext3", "ext4", "f2fs", "jfs", "overlay", "xfs", "zfs",
];
const FOREIGN: &[&str] = &["exfat", "fuseblk", "hfsplus", "msdos", "ntfs", "ntfs3", "vfat"];
const NETWORK: &[&str] = &[
    "9p",
    "afs",
    "beegfs",
    "ceph",
    "cifs",
    "fuse.ceph",
    "fuse.ceph-fuse",
    "fuse.glusterfs",
    "fuse.juicefs",
    "fuse.lizardfs",
    "fuse.mfs",
    "fuse.moosefs",
    "fuse.sshfs",
    "gfs2",
    "gpfs",
    "lustre",
    "nfs",
    "nfs4",
    "ocfs2",
    "orangefs",
    "smb3",
    "virtiofs",
];
/// Programs that present an object store, or web pages, as files.
const OBJECT_STORES: &[&str] = &[
    "blobfuse",
    "blobfuse2",
    "cosfs",
    "davfs",
    "gcsfuse",
    "geesefs",
    "goofys",
    "http",
    "mountpoint-s3",
    "obsfs",
    "ossfs",
    "rclone",
    "s3fs",
    "s3ql",
];

impl Mount {
    /// Returns the mount that contains a directory.
    pub(crate) fn of(dir: &Path) -> io::Result<Mount> {
        let id = mount_id(dir)?;
        let text = fs::read_to_string("/proc/self/mountinfo")?;
        let found = text.lines().filter_map(Mount::parse).find(|mount| mount.id == id);
        found.ok_or_else(|| io::Error::other("its mount is not in `/proc/self/mountinfo`"))
    }

    /// Parses one line: `36 35 98:0 /root /at rw,noatime master:1 - ext4 /dev/sda1 rw,errors=x`.
    fn parse(line: &str) -> Option<Mount> {
        let (front, back) = line.split_once(" - ")?;
        let front: Vec<&str> = front.split(' ').collect();
        let back: Vec<&str> = back.split(' ').collect();
        let mut options: Vec<String> = Vec::new();
        for option in front.get(5)?.split(',').chain(back.get(2).copied().unwrap_or("").split(','))
        {
            if !option.is_empty() && !options.iter().any(|known| known == option) {
                options.push(unescape(option));
            }
        }
        let mut mount = Mount {
            id: front.first()?.parse().ok()?,
            kind: (*back.first()?).to_owned(),
            source: unescape(back.get(1)?),
            mount_point: PathBuf::from(unescape(front.get(4)?)),
            options,
            shared: false,
        };
        mount.shared = !matches!(mount.class(), Class::Local | Class::Memory | Class::Foreign);
        Some(mount)
    }

    fn has(&self, option: &str) -> bool {
        self.options.iter().any(|known| known == option)
    }

    fn class(&self) -> Class {
        let kind = self.kind.as_str();
        let program =
            kind.strip_prefix("fuse.").unwrap_or(if kind == "fuse" { &self.source } else { "" });
        match kind {
            "tmpfs" | "ramfs" => Class::Memory,
            _ if LOCAL.contains(&kind) => Class::Local,
            _ if FOREIGN.contains(&kind) => Class::Foreign,
            _ if NETWORK.contains(&kind) => Class::Network,
            _ if OBJECT_STORES.iter().any(|name| program.starts_with(name)) => Class::ObjectStore,
            _ => Class::Unknown,
        }
    }

    /// Returns the findings about the mount.
    pub(crate) fn judge(&self) -> Vec<Finding> {
        self.judge_with(|| sshfs_options(self))
    }

    fn judge_with(&self, sshfs: impl FnOnce() -> Option<String>) -> Vec<Finding> {
        let mut findings = vec![self.describe()];
        match self.kind.as_str() {
            "nfs" | "nfs4" => findings.extend(self.judge_nfs()),
            "fuse.sshfs" => findings.push(judge_sshfs(sshfs().as_deref())),
            "9p" if self.has("cache=loose") || self.has("cache=fscache") => {
                findings.push(Finding::wrong(
                    "volume",
                    "it keeps listings for ever, so work put in by another machine is never seen",
                    "mount it with `cache=none`",
                ));
            }
            _ => {}
        }
        if self.has("nobarrier") || self.has("barrier=0") {
            findings.push(Finding::warning(
                "volume",
                "it is mounted without barriers: a power cut may take back what was synced",
                "mount it without `nobarrier` and `barrier=0`",
            ));
        }
        if self.has("noexec") {
            findings.push(Finding::warning(
                "volume",
                "it is mounted with `noexec`: agents cannot run the programs they build in it",
                "mount it with `exec`",
            ));
        }
        findings
    }

    fn describe(&self) -> Finding {
        let text = format!(
            "{} from `{}` at `{}` ({})",
            self.kind,
            self.source,
            self.mount_point.display(),
            self.options.join(",")
        );
        match self.class() {
            Class::Local | Class::Network => Finding::ok("volume", text),
            Class::Memory => Finding::warning(
                "volume",
                format!("{text} is kept in memory: all is lost when the machine stops"),
                "put the workspace on a disk",
            ),
            Class::Foreign => Finding::warning(
                "volume",
                format!("{text} was made for other systems: it may lack links, owners and modes"),
                "put the workspace on ext4, xfs or btrfs",
            ),
            Class::ObjectStore => Finding::wrong(
                "volume",
                format!("{text} is an object store: its renames are copies, which two may win"),
                "put the workspace on a disk or on NFS, and copy results to the store",
            ),
            Class::Unknown => Finding::warning(
                "volume",
                format!("{text} is of a kind that is not known here"),
                "find out what it does: orchestrate doctor --volume",
            ),
        }
    }

    fn judge_nfs(&self) -> Vec<Finding> {
        let mut findings = Vec::new();
        if let Some(option) = ["soft", "softerr"].into_iter().find(|option| self.has(option)) {
            findings.push(Finding::wrong(
                "volume",
                format!(
                    "it is mounted with `{option}`: when the server is slow, a rename is reported \
                     as failed and may still happen later"
                ),
                "mount it with `hard`",
            ));
        }
        let local = |option: &&str| self.has(option);
        if ["nolock", "local_lock=all", "local_lock=flock"].iter().any(local) {
            findings.push(Finding::warning(
                "volume",
                "its locks hold on this machine only",
                "mount it without `nolock` and `local_lock`, or drive each run from one machine",
            ));
        }
        if self.has("vers=3") {
            findings.push(Finding::warning(
                "volume",
                "NFS 3 tells changes of a directory apart by their times: one that falls into the \
                 same tick of the server's clock as a listing is not listed until the directory \
                 changes again",
                "mount it with `vers=4.2`",
            ));
        }
        findings.extend(self.absence_lag_sec().map(|lag| {
            let text = format!(
                "this machine remembers for up to {lag} s that a name was absent (negative cache): \
                 the queue confirms absence by listing directories, so its work is not late; what \
                 agents look up by name may be, unless it is mounted with `lookupcache=positive`"
            );
            Finding::ok("absence", text)
        }));
        findings
    }

    /// Returns the number of seconds for which an NFS client caches that a name is absent; `None`
    /// if it asks the server each time.
    fn absence_lag_sec(&self) -> Option<u64> {
        let asks = ["lookupcache=none", "lookupcache=pos", "lookupcache=positive", "noac"];
        if asks.iter().any(|option| self.has(option)) {
            return None;
        }
        let number = |name: &str| {
            self.options.iter().find_map(|option| option.strip_prefix(name)?.parse().ok())
        };
        let lag = number("acdirmax=").or_else(|| number("actimeo=")).unwrap_or(ACDIRMAX_SEC);
        Some(lag).filter(|lag| *lag > 0)
    }
}

/// Judges an sshfs mount from its command line: the kernel does not show options that sshfs handles
/// itself.
fn judge_sshfs(options: Option<&str>) -> Finding {
    let cure = "mount it with `-o dir_cache=no`";
    let off = |options: &str| {
        let words = options.split([' ', ',']).map(|word| word.trim_start_matches("-o"));
        words.into_iter().any(|word| word == "dir_cache=no" || word == "cache=no")
    };
    match options {
        Some(options) if off(options) => {
            Finding::ok("volume", "sshfs looks at the server for every listing (`dir_cache=no`)")
        }
        Some(_) => Finding::wrong(
            "volume",
            "sshfs keeps listings for up to 20 s, so work put in by another machine is seen late",
            cure,
        ),
        None => Finding::warning(
            "volume",
            "it cannot be seen whether sshfs keeps listings, which hides the work of others",
            cure,
        ),
    }
}

/// Returns the arguments of the sshfs that serves a mount, if its process is visible.
fn sshfs_options(mount: &Mount) -> Option<String> {
    let at = mount.mount_point.to_string_lossy();
    for entry in fs::read_dir("/proc").ok()?.flatten() {
        let bytes = fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let text = String::from_utf8_lossy(&bytes);
        let words: Vec<&str> = text.split_terminator('\0').collect();
        let program = words.first().and_then(|word| word.rsplit('/').next()).unwrap_or_default();
        // The mount point may have been given as a relative path.
        let here = |word: &&str| {
            let word = word.trim_start_matches("./").trim_end_matches('/');
            !word.is_empty() && (at == word || at.ends_with(&format!("/{word}")))
        };
        if program.ends_with("sshfs") && words.iter().skip(1).any(here) {
            return Some(words.join(" "));
        }
    }
    None
}

/// Returns the ID of the mount that contains a directory; renames work only within one mount.
pub(crate) fn mount_id(dir: &Path) -> io::Result<u64> {
    let flags = OFlag::O_PATH | OFlag::O_DIRECTORY;
    let handle = OpenOptions::new().read(true).custom_flags(flags.bits()).open(dir)?;
    let text = fs::read_to_string(format!("/proc/self/fdinfo/{}", handle.as_raw_fd()))?;
    let id = text.lines().find_map(|line| line.strip_prefix("mnt_id:")?.trim().parse().ok());
    id.ok_or_else(|| io::Error::other("the system does not say on which mount it lies"))
}

/// Decodes the octal escapes of space, tab, newline and backslash.
fn unescape(text: &str) -> String {
    let mut out = Vec::new();
    let mut rest = text.as_bytes();
    while let [first, tail @ ..] = rest {
        let octal = tail.get(..3).and_then(|digits| std::str::from_utf8(digits).ok());
        let code = octal.and_then(|digits| u8::from_str_radix(digits, 8).ok());
        match code.filter(|_| *first == b'\\') {
            Some(code) => {
                out.push(code);
                rest = &tail[3..];
            }
            None => {
                out.push(*first);
                rest = tail;
            }
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}

#[cfg(test)]
mod tests {
    use super::super::Verdict;
    use super::*;

    fn mount(kind: &str, source: &str, options: &str) -> Mount {
        let line =
            format!("36 35 0:50 / /srv/team rw,relatime shared:1 - {kind} {source} {options}");
        Mount::parse(&line).unwrap()
    }

    /// The worst that is said of a mount, and the words.
    fn worst(mount: &Mount, sshfs: Option<&str>) -> (Verdict, String) {
        let findings = mount.judge_with(|| sshfs.map(str::to_owned));
        let rank = |finding: &&Finding| finding.verdict as u8;
        let worst = findings.iter().max_by_key(rank).unwrap();
        (worst.verdict, format!("{} {}", worst.text, worst.cure.as_deref().unwrap_or_default()))
    }

    #[test]
    fn a_line_is_read_with_its_escapes() {
        let line = r"29 1 254:0 /sub /srv/my\040team rw,noatime - ext4 /dev/a\134b rw,discard";
        let mount = Mount::parse(line).unwrap();
        assert_eq!(
            (mount.id, mount.kind.as_str(), mount.source.as_str()),
            (29, "ext4", r"/dev/a\b")
        );
        assert_eq!(mount.mount_point, Path::new("/srv/my team"));
        assert_eq!(mount.options, ["rw", "noatime", "discard"]);
        assert_eq!(Mount::parse("not a line"), None);
    }

    #[test]
    fn this_very_directory_lies_on_a_known_mount() {
        let dir = tempfile::tempdir().unwrap();
        let mount = Mount::of(dir.path()).unwrap();
        assert!(dir.path().canonicalize().unwrap().starts_with(&mount.mount_point));
        assert!(!mount.kind.is_empty());
        assert!(Mount::of(&dir.path().join("none")).is_err());
    }

    #[test]
    fn what_loses_or_hides_work_is_refused_with_its_cure() {
        let cases = [
            ("nfs4", "srv:/x", "rw,vers=4.2,soft,timeo=600", "`hard`"),
            ("nfs", "srv:/x", "rw,vers=3,softerr", "`hard`"),
            ("fuse.s3fs", "s3fs", "rw,user_id=0", "NFS"),
            ("fuse.rclone", "remote:bucket", "rw", "NFS"),
            ("fuse.gcsfuse", "bucket", "rw", "NFS"),
            ("fuse", "mountpoint-s3", "rw", "NFS"),
            ("fuse", "https://dav.example.com/", "rw", "NFS"),
            ("9p", "host", "rw,cache=loose", "cache=none"),
        ];
        for (kind, source, options, part) in cases {
            let (verdict, text) = worst(&mount(kind, source, options), None);
            assert_eq!(verdict, Verdict::Wrong, "{kind} {options}: {text}");
            assert!(text.contains(part), "{kind} {options}: {text}");
        }
    }

    #[test]
    fn what_works_is_accepted_and_known_as_shared_or_not() {
        let cases = [
            ("ext4", "rw,discard", Verdict::Ok, false),
            ("xfs", "rw", Verdict::Ok, false),
            ("overlay", "rw,lowerdir=/a:/b", Verdict::Ok, false),
            ("nfs4", "rw,vers=4.2,hard,timeo=600", Verdict::Ok, true),
            ("cifs", "rw,soft", Verdict::Ok, true),
            ("fuse.glusterfs", "rw", Verdict::Ok, true),
            ("nfs", "rw,vers=3,hard,nolock", Verdict::Warning, true),
            ("nfs", "rw,vers=3,hard", Verdict::Warning, true),
            ("ext4", "rw,nobarrier", Verdict::Warning, false),
            ("tmpfs", "rw,size=4k", Verdict::Warning, false),
            ("vfat", "rw", Verdict::Warning, false),
            ("fuse.something", "rw", Verdict::Warning, true),
            ("fuse", "rw", Verdict::Warning, true),
        ];
        for (kind, options, verdict, shared) in cases {
            let mount = mount(kind, "src", options);
            let (found, text) = worst(&mount, None);
            assert_eq!((found, mount.shared), (verdict, shared), "{kind} {options}: {text}");
        }
    }

    #[test]
    fn a_negative_cache_is_told_with_its_lag() {
        let lag = |options: &str| mount("nfs4", "srv:/x", options).absence_lag_sec();
        assert_eq!(lag("rw,vers=4.2,hard"), Some(60));
        assert_eq!(lag("rw,vers=4.2,hard,acdirmin=3,acdirmax=5"), Some(5));
        for none in ["lookupcache=none", "lookupcache=pos", "noac", "acdirmax=0"] {
            assert_eq!(lag(&format!("rw,vers=4.2,hard,{none}")), None, "{none}");
        }
        let told = mount("nfs4", "srv:/x", "rw,vers=4.2,hard").judge_with(|| None);
        assert!(told.iter().any(|f| f.name == "absence" && f.text.contains("up to 60 s")));
        let told = mount("ext4", "/dev/x", "rw").judge_with(|| None);
        assert!(told.iter().all(|f| f.name != "absence"));
    }

    #[test]
    fn sshfs_is_judged_by_its_command_line() {
        let mount = mount("fuse.sshfs", "me@host:dir", "rw,user_id=0");
        let judged = |line: Option<&str>| worst(&mount, line).0;
        assert_eq!(judged(Some("sshfs me@host:dir /srv/team -o dir_cache=no")), Verdict::Ok);
        assert_eq!(judged(Some("sshfs me@host:dir /srv/team -ocache=no")), Verdict::Ok);
        assert_eq!(judged(Some("sshfs me@host:dir /srv/team -o reconnect")), Verdict::Wrong);
        assert_eq!(judged(None), Verdict::Warning);
    }
}
