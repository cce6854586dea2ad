//! A disk that plays tricks: it fails, lies or skips as a test tells it to.

use std::ops::ControlFlow;
use std::path::PathBuf;

use super::*;
use crate::disk::Visit;

/// What is asked of the disk and may be tricked.
#[derive(Clone, Copy, Debug)]
pub(super) enum Call<'a> {
    Rename(&'a Path, &'a Path),

    Write,
    Sync,
    SyncDir(&'a Path),
    Read(&'a Path),
    Scan,
}

/// What becomes of it.
pub(super) enum Reply {
    /// It is done.
    Go,
    /// It is not done, and this is what the caller hears.
    Instead(io::Result<()>),
    /// It is done, and the caller hears this.
    DoneBut(i32),
}

type Trick = dyn Fn(&SimDisk, Call) -> Reply + Send + Sync;

pub(super) struct Tricky {
    pub sim: Arc<SimDisk>,
    trick: Box<Trick>,
}

impl Tricky {
    pub(super) fn over(
        sim: &Arc<SimDisk>,
        trick: impl Fn(&SimDisk, Call) -> Reply + Send + Sync + 'static,
    ) -> Arc<dyn Disk> {
        Arc::new(Tricky { sim: sim.clone(), trick: Box::new(trick) })
    }

    fn play(&self, call: Call, act: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
        match (self.trick)(&self.sim, call) {
            Reply::Go => act(),
            Reply::Instead(result) => result,
            Reply::DoneBut(code) => act().and(Err(io::Error::from_raw_os_error(code))),
        }
    }
}

impl Disk for Tricky {
    fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        self.sim.read(path)
    }
    fn read_regular(&self, path: &Path, limit: u64) -> io::Result<Vec<u8>> {
        self.play(Call::Read(path), || Ok(()))?;
        self.sim.read_regular(path, limit)
    }
    fn append(&self, path: &Path, bytes: &[u8]) -> io::Result<()> {
        self.sim.append(path, bytes)
    }
    fn truncate(&self, path: &Path, len: u64) -> io::Result<()> {
        self.sim.truncate(path, len)
    }
    fn write(&self, path: &Path, bytes: &[u8]) -> io::Result<()> {
        self.sim.write(path, bytes)
    }
    fn write_new(&self, files: &[(PathBuf, Vec<u8>)], sync: bool) -> Vec<io::Result<()>> {
        let write = |file: &(PathBuf, Vec<u8>)| {
            let write = || self.sim.write_new(std::slice::from_ref(file), false).remove(0);
            self.play(Call::Write, write)
        };
        let written: Vec<_> = files.iter().map(write).collect();
        let finish = |(written, (path, _)): (io::Result<()>, &(PathBuf, Vec<u8>))| {
            written?;
            if sync { self.sync(path) } else { Ok(()) }
        };
        written.into_iter().zip(files).map(finish).collect()
    }
    fn overwrite(&self, path: &Path, bytes: &[u8]) -> io::Result<()> {
        self.sim.overwrite(path, bytes)
    }
    fn sync(&self, path: &Path) -> io::Result<()> {
        self.play(Call::Sync, || self.sim.sync(path))
    }
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.play(Call::Rename(from, to), || self.sim.rename(from, to))
    }
    fn link(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.sim.link(from, to)
    }
    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        self.play(Call::SyncDir(dir), || self.sim.sync_dir(dir))
    }
    fn make_dir(&self, dir: &Path) -> io::Result<()> {
        self.sim.make_dir(dir)
    }
    fn make_dirs(&self, dir: &Path) -> io::Result<()> {
        self.sim.make_dirs(dir)
    }
    fn scan(&self, dir: &Path, visit: Visit) -> io::Result<()> {
        self.play(Call::Scan, || Ok(()))?;
        self.sim.scan(dir, visit)
    }
    fn list_dirs(&self, dir: &Path) -> io::Result<Vec<String>> {
        self.sim.list_dirs(dir)
    }
    fn mode(&self, path: &Path) -> io::Result<u32> {
        self.sim.mode(path)
    }
    fn remove(&self, path: &Path) -> io::Result<()> {
        self.sim.remove(path)
    }
    fn remove_dir(&self, dir: &Path) -> io::Result<()> {
        self.sim.remove_dir(dir)
    }
}

#[test]
fn a_scan_stops_when_it_is_told_to() {
    on_every_disk(|disk, root| {
        disk.make_dirs(root).unwrap();
        for file in ["a", "b", "c"] {
            disk.write(&root.join(file), b"").unwrap();
        }
        let mut seen = 0;
        disk.scan(root, &mut |_| {
            seen += 1;
            if seen == 2 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })
        .unwrap();
        assert_eq!((seen, disk.list(root).unwrap().len()), (2, 3));
    });
}
