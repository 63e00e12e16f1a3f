//! The disk is full, and then it is not.
//!
//! As root on a small file system of its own; else a limit on the size of the server's files stands in.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::Plan;
use super::load::Trouble;
use super::server::{Home, run};
use super::stage::{Promise, Report, Scenery, Stage, blocking};

const SIZE: &str = "size=24m";
const LASTS: Duration = Duration::from_secs(5);
/// Callers whose keys are all new, so that the file must grow.
const VISITORS: u32 = 8;

/// Where the store's file lies. Unmounted when dropped.
enum Disk {
    Small(PathBuf),
    /// The folder of everything else; files can be kept from growing.
    Ordinary(PathBuf),
}

impl Disk {
    fn new(home: &Home) -> Result<Self, String> {
        let folder = home.path().join("disk");
        std::fs::create_dir(&folder).map_err(|error| error.to_string())?;
        let shown = folder.display().to_string();
        let mounted = run("mount", &["-t", "tmpfs", "-o", SIZE, "tollgate-faults", &shown]);
        Ok(if mounted.is_ok() { Self::Small(folder) } else { Self::Ordinary(folder) })
    }

    fn folder(&self) -> &Path {
        let (Self::Small(folder) | Self::Ordinary(folder)) = self;
        folder
    }

    /// Takes all there is left.
    fn fill(&self, server: u32) -> Result<(), String> {
        match self {
            Self::Small(folder) => {
                let file = File::create(folder.join("ballast"));
                let mut file = file.map_err(|error| error.to_string())?;
                // Down to the last bytes; the error is what is wanted.
                for piece in [vec![0; 1 << 16], vec![0; 1 << 9]] {
                    while file.write_all(&piece).is_ok() {}
                }
                Ok(())
            }
            Self::Ordinary(_) => limit_files(server, "1"),
        }
    }

    fn free(&self, server: u32) -> Result<(), String> {
        match self {
            Self::Small(folder) => {
                std::fs::remove_file(folder.join("ballast")).map_err(|error| error.to_string())
            }
            Self::Ordinary(_) => limit_files(server, "unlimited"),
        }
    }
}

fn limit_files(server: u32, bytes: &str) -> Result<(), String> {
    run("prlimit", &["--pid", &server.to_string(), &format!("--fsize={bytes}:")])
}

impl Drop for Disk {
    fn drop(&mut self) {
        if let Self::Small(folder) = self {
            // Lazily: the server may still be about to end.
            let _ = run("umount", &["-l", &folder.display().to_string()]);
        }
    }
}

pub(super) async fn full(plan: &Plan, name: &'static str) -> Result<Report, String> {
    let home = Home::new(name)?;
    let disk = Disk::new(&home)?;
    let store = format!("sqlite:{}", disk.folder().join("counts.db").display());
    let scenery =
        Scenery { folder: home.path(), store, durability: "sync", config: "", visitors: VISITORS };
    let mut stage = Stage::open(plan, scenery).await?;
    let server = stage.server.id().ok_or("the server is gone")?;
    stage.begin();
    blocking(|| disk.fill(server))?;
    tokio::time::sleep(LASTS).await;
    blocking(|| disk.free(server))?;
    stage.end();
    let promise = Promise::of(&[Trouble::Status(503)]);
    let how = match disk {
        Disk::Small(_) => "a file system of 24 MB is full for 5 s",
        Disk::Ordinary(_) => "files cannot grow (RLIMIT_FSIZE) for 5 s",
    };
    let mut report = stage.close(name, format!("{how}; SQLite, `sync`"), &promise).await?;
    if report.during.troubles.is_empty() {
        report.broken.push("the disk was full and nobody noticed: nothing was tried".into());
    }
    Ok(report)
}
