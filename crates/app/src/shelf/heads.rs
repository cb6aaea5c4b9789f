//! Where the MTP head of a trunk comes from when the trunk has none, and how it is put into the form it is used in.

use crate::checkpoints;
use foretoken_library::{
    HeadPlan, Hub, HubError, RepoId, RepoRef, card, catalogue,
    hub::{Listing, RemoteModel},
};
use foretoken_protocol::{ErrorCode, WireError};
use serde_json::Value;
use std::collections::{BTreeSet, VecDeque};
use std::fs::File;
use std::path::{Path, PathBuf};

/// Repositories looked at for one head: a repack of a repack of a release, with a card that names a few.
const MOST_REPOSITORIES: usize = 6;
/// Matrices of a fetched head; the fusion stays as it is (`QuantisePlan`).
const HEAD_BITS: usize = 8;
const GROUP: usize = 64;

/// A trunk that lacks a head.
pub(crate) struct Trunk<'a> {
    pub repository: Option<&'a str>,
    pub config: &'a Value,
    pub readme: Option<&'a str>,
}

/// A head in another repository, and what fetching it takes.
pub(crate) struct Found {
    pub model: RemoteModel,
    pub plan: HeadPlan,
}

pub(crate) enum Search {
    Found(Box<Found>),
    /// Nowhere that is known, as a sentence with the next step.
    Missing(String),
}

/// Looks where the catalogue, the model's card and its configuration point.
pub(crate) fn find(hub: &Hub, trunk: &Trunk<'_>) -> Result<Search, HubError> {
    let (mut queue, mut seen, mut failed) = (VecDeque::from(hints(trunk)), BTreeSet::new(), None);
    seen.extend(trunk.repository.map(str::to_owned));
    let mut looked = Vec::new();
    while let Some(repo) = queue.pop_front() {
        if !seen.insert(repo.to_string()) || looked.len() >= MOST_REPOSITORIES {
            continue;
        }
        looked.push(repo.to_string());
        let model = match hub.inspect(&RepoRef::main(repo.clone())) {
            Ok(model) => model,
            Err(e) => {
                failed.get_or_insert(e);
                continue;
            }
        };
        let fits = same_trunk(trunk.config, &model.config);
        if let Some(plan) = HeadPlan::new(&model).filter(|_| fits) {
            return Ok(Search::Found(Box::new(Found { model, plan })));
        }
        // A repack of a repack: its card leads on.
        if let Ok(readme) = hub.read_small(&model.listing, "README.md") {
            queue.extend(card::base_models(&String::from_utf8_lossy(&readme)));
        }
    }
    match failed {
        // Nobody can say that there is none while one of the places was not seen.
        Some(e) => Err(e),
        None => Ok(Search::Missing(missing(&looked))),
    }
}

fn missing(looked: &[String]) -> String {
    match looked {
        [] => "This model has no MTP head, and nothing says which release it was made from. If you know a folder or a repository with its head, choose that.".to_owned(),
        looked => format!(
            "This model has no MTP head, and neither has {}. If you know a folder or a repository with its head, choose that.",
            looked.join(", ")
        ),
    }
}

fn hints(trunk: &Trunk<'_>) -> Vec<RepoId> {
    let offers = catalogue();
    let listed = offers.iter().filter(|offer| Some(offer.repository.as_str()) == trunk.repository);
    let listed = listed.filter_map(|offer| offer.head_elsewhere()?.ok()).map(|at| at.repo);
    let carded = trunk.readme.map(card::base_models).unwrap_or_default();
    let configured = ["_name_or_path", "base_model", "base_model_name_or_path"]
        .iter()
        .filter_map(|key| trunk.config.get(key)?.as_str()?.parse().ok());
    listed.chain(carded).chain(configured).collect()
}

/// A head reads the trunk's hidden states, so both have to be of one family and width. A repository of a head alone may
/// leave the rest out.
fn same_trunk(trunk: &Value, donor: &Value) -> bool {
    let of = |config: &Value, key: &str| {
        let text = config.get("text_config").and_then(|text| text.get(key));
        text.or_else(|| config.get(key)).cloned()
    };
    let equal = |key: &str| of(trunk, key) == of(donor, key);
    let sizes = ["hidden_size", "num_hidden_layers"];
    equal("model_type") && sizes.iter().all(|key| of(donor, key).is_none() || equal(key))
}

/// Folder of a head of one repository and commit, and the one its bytes are fetched into.
#[derive(Debug, Clone)]
pub(crate) struct HeadFolders {
    pub ready: PathBuf,
    pub raw: PathBuf,
}

impl HeadFolders {
    /// What is fetched lies under the repository that was asked for, which may be the trunk's: whoever discards it knows
    /// no other.
    pub fn new(heads: &Path, asked: &RepoId, model: &RemoteModel) -> Self {
        let Listing { repo, commit, .. } = &model.listing;
        let raw = of_repo(heads, asked).join(format!("{commit}.raw"));
        Self { ready: of_repo(heads, repo).join(commit), raw }
    }

    pub fn is_ready(&self) -> bool {
        self.ready.join("config.json").is_file()
    }

    /// Writes the fetched head in the form it is used in. Another program that does the same is waited for.
    pub fn make_ready(&self) -> Result<(), WireError> {
        let io = |path: &Path, e: &std::io::Error| WireError {
            code: ErrorCode::Disk,
            message: format!(
                "{} cannot be written. Check the free space and the permissions of the data folder.",
                path.display()
            ),
            detail: e.to_string(),
        };
        if let Some(folder) = self.ready.parent() {
            std::fs::create_dir_all(folder).map_err(|e| io(folder, &e))?;
        }
        let lock_path = self.ready.with_extension("lock");
        let lock = File::create(&lock_path).map_err(|e| io(&lock_path, &e))?;
        lock.lock().map_err(|e| io(&lock_path, &e))?;
        if self.is_ready() {
            return Ok(());
        }
        let new = self.ready.with_extension("new");
        for leftover in [&new, &self.ready].into_iter().filter(|folder| folder.exists()) {
            std::fs::remove_dir_all(leftover).map_err(|e| io(leftover, &e))?;
        }
        let plan = checkpoints::QuantisePlan {
            bits: None,
            head_bits: Some(HEAD_BITS),
            group: GROUP,
            keep: Vec::new(),
        };
        checkpoints::convert(&self.raw, &new, None, Some(&plan), |_, _| {})?;
        std::fs::rename(&new, &self.ready).map_err(|e| io(&self.ready, &e))?;
        // What it was made of is not needed any more; a leftover costs space and nothing else.
        if let Err(error) = std::fs::remove_dir_all(&self.raw) {
            tracing::warn!(%error, "the fetched bytes of a head stay");
        }
        Ok(())
    }
}

/// Everything of one repository's heads.
pub(crate) fn of_repo(heads: &Path, repo: &RepoId) -> PathBuf {
    heads.join(format!("{}--{}", repo.owner(), repo.name()))
}

/// Bytes of the files below a folder.
pub(crate) fn bytes_below(folder: &Path) -> u64 {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries
        .map(|entry| match entry.file_type() {
            Ok(kind) if kind.is_dir() => bytes_below(&entry.path()),
            _ => entry.metadata().map_or(0, |m| m.len()),
        })
        .sum()
}

/// Bytes of heads of a repository that were begun and are not ready, and that are deleted with `delete`.
pub(crate) fn begun(heads: &Path, repo: &RepoId, delete: bool) -> u64 {
    let entries = std::fs::read_dir(of_repo(heads, repo)).into_iter().flatten().flatten();
    let raw = entries.map(|e| e.path()).filter(|path| path.extension().is_some_and(|e| e == "raw"));
    raw.map(|folder| {
        let bytes = bytes_below(&folder);
        if delete && let Err(error) = std::fs::remove_dir_all(&folder) {
            tracing::warn!(%error, "the fetched bytes of a head stay");
            return 0;
        }
        bytes
    })
    .sum()
}
