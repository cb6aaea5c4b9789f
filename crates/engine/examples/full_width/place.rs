//! Where the checkpoint lives for a minute, what the process holds in memory, and how a person ends it early.

use crate::released::Family;
use crate::{Failure, Outcome};
use serde::Serialize;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use tempfile::TempDir;

/// A temporary folder that is removed when this is dropped.
pub struct Workplace {
    folder: TempDir,
}

impl Workplace {
    /// Errors, before anything is written, when the disk has no room for `need` bytes and a tenth more.
    pub fn new(family: Family, parent: &Path, need: u64) -> Outcome<Self> {
        let disk = rustix::fs::statvfs(parent).map_err(|e| Failure::io(parent)(e.into()))?;
        let free = disk.f_bavail.saturating_mul(disk.f_frsize);
        let need = need.saturating_add(need / 10);
        if free < need {
            return Err(Failure::NoRoom { family, place: parent.to_owned(), need, free });
        }
        let folder = tempfile::Builder::new().prefix("foretoken-full-width-").tempdir_in(parent);
        Ok(Self { folder: folder.map_err(Failure::io(parent))? })
    }

    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Like dropping it, with a word when that fails.
    pub fn remove(self) -> Outcome<()> {
        let path = self.folder.path().to_owned();
        self.folder.close().map_err(Failure::io(&path))
    }
}

static STOP: AtomicBool = AtomicBool::new(false);

/// Ctrl-C and a request to end only set a flag: the way out then passes the folder's removal, as with any failure.
pub fn stop_on_signals() {
    let told = ctrlc::set_handler(|| {
        eprintln!("full-width: stopping ...");
        STOP.store(true, Relaxed);
    });
    if let Err(e) = told {
        eprintln!("full-width: Ctrl-C will leave the temporary folder behind ({e})");
    }
}

/// Asked between pieces of work.
pub fn go_on() -> Outcome<()> {
    if STOP.load(Relaxed) { Err(Failure::Stopped) } else { Ok(()) }
}

/// Resident memory of this process in bytes.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Resident {
    pub total: u64,
    /// What belongs to the process alone, and what is a window on files; Linux tells.
    pub anonymous: Option<u64>,
    pub mapped: Option<u64>,
}

/// `None` where the system tells nothing.
pub fn resident() -> Option<Resident> {
    if let Ok(status) = std::fs::read_to_string("/proc/self/status") {
        let field = |name: &str| kilobytes(status.lines().find_map(|l| l.strip_prefix(name))?);
        let total = field("VmRSS:")?;
        return Some(Resident { total, anonymous: field("RssAnon:"), mapped: field("RssFile:") });
    }
    let me = std::process::id().to_string();
    let told = Command::new("ps").args(["-o", "rss=", "-p", &me]).output().ok()?;
    let total = kilobytes(&String::from_utf8_lossy(&told.stdout))?;
    Some(Resident { total, anonymous: None, mapped: None })
}

fn kilobytes(text: &str) -> Option<u64> {
    Some(1024 * text.split_whitespace().next()?.parse::<u64>().ok()?)
}
