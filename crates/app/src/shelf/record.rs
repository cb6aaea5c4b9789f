//! What becomes of a download at the next start: one small file each in the data folder, so that two programs over one
//! folder do not undo each other's notes.

use crate::settings::replace;
use foretoken_protocol::WireError;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

/// What was asked for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Ask {
    pub repository: String,
    pub revision: String,
    pub head_only: bool,
    pub for_model: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub(crate) enum Kept {
    /// It goes on by itself at the next start.
    Going,
    /// The person paused it.
    Paused,
    Failed {
        error: WireError,
    },
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Record {
    #[serde(flatten)]
    pub ask: Ask,
    pub kept: Kept,
    /// Bytes in all, as far as known.
    pub total: u64,
}

fn path(folder: &Path, id: &str) -> PathBuf {
    folder.join(format!("{id}.json"))
}

/// Not being able to note a download is no reason not to run it.
pub(crate) fn save(folder: &Path, id: &str, record: &Record) {
    let json = serde_json::to_vec_pretty(record).expect("text and numbers are always JSON");
    if let Err(error) = replace(&path(folder, id), &json) {
        tracing::warn!(%error, "a download will not be remembered");
    }
}

pub(crate) fn remove(folder: &Path, id: &str) {
    match std::fs::remove_file(path(folder, id)) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            tracing::warn!(%error, "a finished download will be listed again");
        }
        _ => {}
    }
}

/// All records, by id; a file that is none is passed over.
pub(crate) fn load(folder: &Path) -> Vec<(String, Record)> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut out: Vec<_> = entries
        .filter_map(|entry| {
            let path = entry.path();
            let id = path.file_name()?.to_str()?.strip_suffix(".json")?.to_owned();
            let record = serde_json::from_slice(&std::fs::read(&path).ok()?).ok()?;
            (!id.starts_with('.')).then_some((id, record))
        })
        .collect();
    out.sort_by(|a, b| a.0.cmp(&b.0));
    out
}
