use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};

/// Renames a damaged file to `<name>.corrupt-<UTC time>` in the same folder, and SQLite's `-wal` and `-shm` with it, so
/// that the set can still be rescued. Returns the new place.
pub(crate) fn set_aside(path: &Path) -> io::Result<PathBuf> {
    let time = chrono::Utc::now().format("%Y%m%dT%H%M%SZ");
    let mut target = with_suffix(path, &format!(".corrupt-{time}"));
    for n in 2.. {
        if !target.try_exists()? {
            break;
        }
        target = with_suffix(path, &format!(".corrupt-{time}-{n}"));
    }
    std::fs::rename(path, &target)?;
    for suffix in ["-wal", "-shm"] {
        match std::fs::rename(with_suffix(path, suffix), with_suffix(&target, suffix)) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
            _ => {}
        }
    }
    Ok(target)
}

pub(crate) fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(suffix);
    name.into()
}
