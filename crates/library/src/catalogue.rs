//! The models worth offering, from `catalogue.toml`. What nobody of us has seen is marked there and stays marked here.

use crate::hub::{HubError, RepoId, RepoRef};
use serde::Deserialize;

const FILE: &str = include_str!("../catalogue.toml");

/// Whether the engine has the family's loader.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Support {
    Yes,
    NotYet,
}

/// Where the head of a trunk comes from.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "place", deny_unknown_fields)]
pub enum HeadSource {
    /// In the trunk's own files.
    Included,
    /// A repository that holds a head and nothing else.
    Repository { repository: String },
    /// Among the shards of the original release: fetched by range.
    Original { repository: String },
    /// Nobody has seen one, or nobody has looked.
    Unknown,
}

#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sampling {
    pub temperature: f64,
    pub top_p: Option<f64>,
    /// `None` = off.
    pub top_k: Option<u32>,
    pub presence_penalty: Option<f64>,
}

/// A model that is offered.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Offer {
    /// Short and lasting: settings may name it.
    pub id: String,
    pub title: String,
    /// `model_type` of its configuration.
    pub family: String,
    pub support: Support,
    pub repository: String,
    /// Absent: the branch the repository opens with.
    pub revision: Option<String>,
    pub head: HeadSource,
    /// What the head adds to a download of the trunk.
    pub head_gb: Option<f64>,
    /// Download of the trunk, in 10^9 bytes.
    pub size_gb: Option<f64>,
    /// Smallest machine it makes sense on, in GB of memory.
    pub memory_gb: u32,
    pub licence: Option<String>,
    pub sampling: Option<Sampling>,
    pub notes: Option<String>,
    /// Fields that rest on one source, on arithmetic or on a guess.
    #[serde(default)]
    pub unverified: Vec<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Catalogue {
    model: Vec<Offer>,
}

impl Offer {
    /// What to list and fetch for the trunk.
    pub fn trunk(&self) -> Result<RepoRef, HubError> {
        let repo: RepoId = self.repository.parse()?;
        match &self.revision {
            Some(revision) => RepoRef::new(repo, revision),
            None => Ok(RepoRef::main(repo)),
        }
    }

    /// What to inspect for the head, when it is not with the trunk.
    pub fn head_elsewhere(&self) -> Option<Result<RepoRef, HubError>> {
        match &self.head {
            HeadSource::Repository { repository } | HeadSource::Original { repository } => {
                Some(repository.parse().map(RepoRef::main))
            }
            HeadSource::Included | HeadSource::Unknown => None,
        }
    }
}

/// Every offer, in the order of the file.
pub fn catalogue() -> Vec<Offer> {
    toml::from_str::<Catalogue>(FILE).expect("a test reads the committed file").model
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    /// Classes a machine is sold in.
    const MEMORY: [u32; 10] = [8, 16, 24, 32, 48, 64, 96, 128, 256, 512];

    #[test]
    fn every_offer_makes_sense() {
        let file: toml::Table = FILE.parse().expect("TOML");
        assert_eq!(file["model"].as_array().map(Vec::len), Some(catalogue().len()));
        let fields: BTreeSet<&str> =
            ["repository", "head", "head_gb", "size_gb", "memory_gb", "licence", "sampling"].into();
        let mut ids = BTreeSet::new();
        for offer in catalogue() {
            let Offer { id, .. } = &offer;
            assert!(ids.insert(id.clone()), "{id} twice");
            assert!(
                id.chars()
                    .all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || ".-".contains(c)),
                "{id}"
            );
            assert!(!offer.title.is_empty() && !offer.family.is_empty(), "{id}");
            offer.trunk().expect("a name");
            offer.head_elsewhere().transpose().expect("a name");
            assert!(MEMORY.contains(&offer.memory_gb), "{id}: {} GB", offer.memory_gb);
            if let Some(size) = offer.size_gb {
                assert!(size > 0.1 && size < 700.0, "{id}: {size} GB");
                let needed = size + offer.head_gb.unwrap_or(0.0) * 0.5;
                assert!(needed < f64::from(offer.memory_gb), "{id} does not fit its class");
            } else {
                assert!(offer.unverified.contains(&"size_gb".to_owned()), "{id} has no size");
            }
            if let Some(s) = offer.sampling {
                assert!((0.0..=2.0).contains(&s.temperature), "{id}");
                assert!(s.top_p.is_none_or(|p| p > 0.0 && p <= 1.0), "{id}");
                assert!(s.top_k != Some(0), "{id}: off is absent");
            }
            if offer.licence.is_none() {
                assert!(offer.unverified.contains(&"licence".to_owned()), "{id}: no licence");
            }
            if matches!(offer.head, HeadSource::Original { .. } | HeadSource::Repository { .. }) {
                assert!(offer.head_gb.is_some(), "{id}: how large is its head?");
            }
            for field in &offer.unverified {
                assert!(fields.contains(field.as_str()), "{id}: {field} is no field");
            }
        }
    }

    #[test]
    fn an_unknown_field_is_an_error_and_not_a_silence() {
        let good = "[[model]]\nid='a'\ntitle='A'\nfamily='f'\nsupport='not-yet'\nrepository='o/n'\nmemory_gb=8\nhead={place='included'}\n";
        toml::from_str::<Catalogue>(good).expect("good");
        for wrong in ["colour='red'\n", "head_gb='4'\n", "[model.sampling]\nt=1\n"] {
            assert!(toml::from_str::<Catalogue>(&format!("{good}{wrong}")).is_err(), "{wrong}");
        }
        let place = good.replace("included", "somewhere");
        assert!(toml::from_str::<Catalogue>(&place).is_err());
    }
}
