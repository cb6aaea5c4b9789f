use super::checkpoint::Checkpoint;
use crate::{EngineError, Result};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// What files of a family with zero-centred norms (factor 1 + w) hold, told by names, once per file and never by values.
#[derive(Debug, Clone, Copy)]
pub struct ZeroCentred {
    /// A name with one of these: the converter already added the one. The first is the trunk's.
    pub added: &'static [&'static str],
    /// A name with one of these, and none of the others: the original, without the one.
    pub original: &'static [&'static str],
}

/// A family's own names for what a checkpoint publishes, made with a table of (published, ours) that is gone through in order.
/// A pattern stands anywhere in a name; `^` binds it to the start, `$` to the end.
#[derive(Debug, Default)]
pub struct Names {
    published: BTreeMap<String, String>,
    ours: BTreeMap<String, String>,
    zero_centred: BTreeSet<PathBuf>,
}

impl Names {
    /// Errors when two tensors come to the same name.
    pub(crate) fn new(
        checkpoint: &Checkpoint,
        table: &[(&str, &str)],
        norms: Option<ZeroCentred>,
    ) -> Result<Self> {
        let mut out = Self::default();
        let mut seen: BTreeMap<String, &str> = BTreeMap::new();
        for name in checkpoint.names() {
            let ours = renamed(name, table);
            if let (Some(other), Some(place)) = (seen.get(&ours), checkpoint.get(name)) {
                let why = format!("it holds {name}, which is the same as {other}");
                return Err(EngineError::Corrupt { file: place.file.clone(), why });
            }
            seen.insert(ours.clone(), name);
            if ours != name {
                out.published.insert(ours.clone(), name.to_owned());
                out.ours.insert(name.to_owned(), ours);
            }
        }
        if let Some(norms) = norms {
            out.zero_centred = zero_centred(checkpoint, norms);
        }
        Ok(out)
    }

    pub(super) fn published<'n>(&'n self, ours: &'n str) -> &'n str {
        // A published name that was renamed away is not a name of ours.
        match self.published.get(ours) {
            Some(published) => published,
            None if self.ours.contains_key(ours) => "",
            None => ours,
        }
    }

    pub(crate) fn ours<'n>(&'n self, published: &'n str) -> &'n str {
        self.ours.get(published).map_or(published, String::as_str)
    }

    pub(crate) fn is_zero_centred(&self, file: &Path) -> bool {
        self.zero_centred.contains(file)
    }
}

/// A name after every rule of a table.
pub(crate) fn renamed(name: &str, table: &[(&str, &str)]) -> String {
    table.iter().fold(name.to_owned(), |name, rule| rename(name, *rule))
}

fn rename(name: String, (published, ours): (&str, &str)) -> String {
    if let Some(start) = published.strip_prefix('^') {
        name.strip_prefix(start).map(|rest| format!("{ours}{rest}")).unwrap_or(name)
    } else if let Some(end) = published.strip_suffix('$') {
        name.strip_suffix(end).map(|rest| format!("{rest}{ours}")).unwrap_or(name)
    } else {
        name.replace(published, ours)
    }
}

/// The files whose norms lack the one. A file whose names tell nothing (a last shard with the final norm) is as the trunk is.
fn zero_centred(checkpoint: &Checkpoint, norms: ZeroCentred) -> BTreeSet<PathBuf> {
    let with = |patterns: &[&str]| -> BTreeSet<&Path> {
        checkpoint
            .names()
            .filter(|name| patterns.iter().any(|pattern| name.contains(pattern)))
            .filter_map(|name| checkpoint.get(name))
            .map(|place| place.file.as_path())
            .collect()
    };
    let (added, original) = (with(norms.added), with(norms.original));
    let trunk_added = !with(&norms.added[..1]).is_empty();
    let all = checkpoint.names().filter_map(|name| checkpoint.get(name));
    all.map(|place| place.file.as_path())
        .filter(|file| !added.contains(file) && (original.contains(file) || !trunk_added))
        .map(Path::to_owned)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_are_gone_through_in_order() {
        let table = [
            ("^language_model.", ""),
            (".switch_mlp.", ".experts."),
            (".gate_up_proj$", ".gate_up_proj.weight"),
        ];
        let go = |name: &str| table.iter().fold(name.to_owned(), |name, rule| rename(name, *rule));
        assert_eq!(go("language_model.a.switch_mlp.b"), "a.experts.b");
        assert_eq!(go("a.language_model.b"), "a.language_model.b");
        assert_eq!(go("a.gate_up_proj"), "a.gate_up_proj.weight");
        assert_eq!(go("a.gate_up_proj.scales"), "a.gate_up_proj.scales");
    }
}
