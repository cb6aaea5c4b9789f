//! Settings as a JSON file beside the chats.

use crate::history::set_aside;
use foretoken_protocol::{Notice, Settings};
use std::fs::File;
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use thiserror::Error;

/// Settings could not be stored; the old ones are still there.
#[derive(Debug, Error)]
pub enum SettingsError {
    #[error("{}: {source}", path.display())]
    Io { path: PathBuf, source: io::Error },
    #[error("the settings cannot be written as json")]
    Json(#[source] serde_json::Error),
}

/// Reads the settings. No file = the defaults; fields nobody knows are ignored, fields that are not there have their
/// default. A file that is no settings is renamed to `<name>.corrupt-<UTC time>`, and the notice says so.
pub fn load(path: &Path) -> (Settings, Option<Notice>) {
    let bytes = match std::fs::read(path) {
        Ok(bytes) => bytes,
        Err(e) if e.kind() == ErrorKind::NotFound => return (Settings::default(), None),
        // A folder can never become settings; it is set aside like a damaged file.
        Err(_) if path.is_dir() => Vec::new(),
        Err(e) => {
            let sentence = "Your settings could not be read, so the defaults are used.".into();
            return (
                Settings::default(),
                Some(Notice { sentence, detail: format!("{}: {e}", path.display()) }),
            );
        }
    };
    let why = match serde_json::from_slice(&bytes) {
        Ok(settings) => return (settings, None),
        Err(e) => e,
    };
    let kept = match set_aside(path) {
        Ok(new_place) => format!("The old file is kept at {}.", new_place.display()),
        Err(e) => format!("The old file could not be kept: {e}."),
    };
    let sentence = format!("Your settings could not be read, so the defaults are used. {kept}");
    (Settings::default(), Some(Notice { sentence, detail: why.to_string() }))
}

/// Replaces the file as a whole: after a crash at any moment it holds either the old settings or the new ones.
pub fn save(path: &Path, settings: &Settings) -> Result<(), SettingsError> {
    let mut json = serde_json::to_vec_pretty(settings).map_err(SettingsError::Json)?;
    json.push(b'\n');
    replace(path, &json).map_err(|source| SettingsError::Io { path: path.to_owned(), source })
}

/// A file with its old content or its new one, never half of it.
pub(crate) fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    static COUNTER: AtomicU32 = AtomicU32::new(0);
    let folder =
        path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    std::fs::create_dir_all(folder)?;
    let name = path.file_name().ok_or(ErrorKind::InvalidInput)?.to_string_lossy();
    let n = COUNTER.fetch_add(1, Ordering::Relaxed);
    let temporary = folder.join(format!(".{name}.{}-{n}", std::process::id()));
    let result = File::create(&temporary)
        .and_then(|mut file| file.write_all(bytes).and_then(|()| file.sync_all()))
        .and_then(|()| std::fs::rename(&temporary, path));
    if result.is_err() {
        // What is left of a failed attempt; the first error is the one to report.
        drop(std::fs::remove_file(&temporary));
        return result;
    }
    // The new name itself must reach the disk. Not every file system can do that, and the settings are in place.
    if let Err(e) = File::open(folder).and_then(|folder| folder.sync_all()) {
        tracing::debug!(error = %e, "folder of the settings not synced");
    }
    Ok(())
}
