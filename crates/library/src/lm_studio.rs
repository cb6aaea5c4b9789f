//! LM Studio's layout: `owner/name/config.json` below its folder. Models in other formats have no configuration there.

use std::path::{Path, PathBuf};

/// `owner/name` and folder of every model.
pub(super) fn models(root: &Path) -> Vec<(String, PathBuf)> {
    let mut out = Vec::new();
    for owner in folders(root) {
        for model in folders(&owner) {
            let name = |path: &Path| path.file_name().map(|n| n.to_string_lossy().into_owned());
            let (Some(o), Some(m)) = (name(&owner), name(&model)) else { continue };
            if model.join("config.json").is_file() {
                out.push((format!("{o}/{m}"), model));
            }
        }
    }
    out.sort();
    out
}

fn folders(root: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(root).into_iter().flatten().flatten();
    let visible = entries.filter(|entry| !entry.file_name().to_string_lossy().starts_with('.'));
    visible.map(|entry| entry.path()).filter(|path| path.is_dir()).collect()
}
