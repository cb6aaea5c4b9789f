use crate::WireError;
use serde::{Deserialize, Serialize};

/// Where the head of an offered model comes from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
#[serde(tag = "kind", rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum OfferedHead {
    /// In the trunk's own files.
    Included,
    /// In another repository: fetched as well, its head's bytes only.
    Elsewhere { repository: String },
    /// Nobody has seen one.
    Unknown,
}

/// A model worth offering, from the committed catalogue.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
#[serde(rename_all = "camelCase")]
pub struct ModelOffer {
    pub id: String,
    pub title: String,
    pub family: String,
    /// False: the engine has no loader for the family yet.
    pub supported: bool,
    pub repository: String,
    pub revision: Option<String>,
    pub head: OfferedHead,
    /// Download of the trunk; `None` = nobody has measured it.
    #[cfg_attr(test, ts(type = "number | null"))]
    pub bytes: Option<u64>,
    /// What the head adds to it.
    #[cfg_attr(test, ts(type = "number | null"))]
    pub head_bytes: Option<u64>,
    /// Smallest machine it makes sense on, in GB of memory.
    pub memory_gb: u32,
    pub licence: Option<String>,
    pub notes: Option<String>,
    /// Names of fields that rest on one source or on arithmetic.
    pub unverified: Vec<String>,
    /// Id of the model on this disk that came of it.
    pub have: Option<String>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
#[serde(rename_all = "camelCase")]
pub struct Machine {
    /// Bytes of memory.
    #[cfg_attr(test, ts(type = "number"))]
    pub memory: u64,
    /// Bytes a model may take now: free memory, on macOS at most the GPU's working-set limit.
    #[cfg_attr(test, ts(type = "number"))]
    pub available: u64,
    /// Free bytes of the disk models are downloaded to.
    #[cfg_attr(test, ts(type = "number"))]
    pub disk_free: u64,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
#[serde(rename_all = "camelCase")]
pub struct Shelf {
    pub offers: Vec<ModelOffer>,
    pub machine: Machine,
    pub downloads: Vec<ModelDownload>,
}

/// Where an access token is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
#[serde(rename_all = "snake_case")]
pub enum TokenPlace {
    /// None is known.
    None,
    Keychain,
    /// The system has no keychain: it is forgotten when the app ends.
    Memory,
    /// `HF_TOKEN` of the environment, which wins.
    Environment,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
#[serde(rename_all = "camelCase")]
pub struct TokenState {
    pub place: TokenPlace,
}

/// `None` forgets it.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
#[serde(rename_all = "camelCase")]
pub struct SetToken {
    pub token: Option<String>,
}

impl std::fmt::Debug for SetToken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let state = if self.token.is_some() { "hidden" } else { "none" };
        write!(f, "SetToken({state})")
    }
}

/// What the person typed or pasted: `owner/name`, `owner/name@revision` or the address of a model's page.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
#[serde(rename_all = "camelCase")]
pub struct HubName {
    pub text: String,
}

/// Where the MTP head of a model is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
#[serde(tag = "kind", rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum HubHead {
    /// In the model's own files.
    Here {
        #[cfg_attr(test, ts(type = "number"))]
        bytes: u64,
    },
    /// In another repository, out of which `bytes` are fetched.
    Elsewhere {
        repository: String,
        #[cfg_attr(test, ts(type = "number"))]
        bytes: u64,
    },
    /// Nowhere that is known, as a sentence.
    Missing { sentence: String },
}

/// A model of the hub, looked at before anything of it is fetched.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
#[serde(rename_all = "camelCase")]
pub struct HubModel {
    pub repository: String,
    pub revision: String,
    pub commit: String,
    /// `model_type`.
    pub family: String,
    /// Why the engine could not run it, as a sentence; `None` = it could.
    pub problem: Option<String>,
    pub layers: Option<u32>,
    pub bits: Option<u32>,
    /// Bytes of the files a download fetches, the head elsewhere not counted.
    #[cfg_attr(test, ts(type = "number"))]
    pub bytes: u64,
    /// Of these, bytes on the disk already.
    #[cfg_attr(test, ts(type = "number"))]
    pub have_bytes: u64,
    pub files: u32,
    pub head: HubHead,
    pub fit: Fit,
    /// Its id when it is on this disk, complete.
    pub have: Option<String>,
}

/// A model on this disk, by its id, or one of the hub, by its name; at a number of tokens.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
#[serde(rename_all = "camelCase")]
pub struct FitRequest {
    /// `ModelEntry::id`, or `HubModel::repository` of one inspected since the app began.
    pub id: String,
    /// `None` = what the app would open it with.
    pub context: Option<u32>,
}

/// What a model takes at a context, beside what the machine has. Bytes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
#[serde(rename_all = "camelCase")]
pub struct Fit {
    #[cfg_attr(test, ts(type = "number"))]
    pub weights: u64,
    /// MTP head, as it will be stored.
    #[cfg_attr(test, ts(type = "number"))]
    pub head: u64,
    /// KV of trunk and head at `context` tokens.
    #[cfg_attr(test, ts(type = "number"))]
    pub kv: u64,
    /// Activations and working buffers.
    #[cfg_attr(test, ts(type = "number"))]
    pub working: u64,
    #[cfg_attr(test, ts(type = "number"))]
    pub needed: u64,
    pub machine: Machine,
    /// Tokens judged at.
    pub context: u32,
    /// Most tokens the model takes.
    pub context_max: u32,
    /// Most tokens that fit, 0 = the model does not fit at all.
    pub context_fits: u32,
    pub fits: bool,
    /// The verdict with its numbers.
    pub sentence: String,
}

/// What to fetch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
#[serde(rename_all = "camelCase")]
pub struct StartDownload {
    /// As in `HubName::text`.
    pub repository: String,
    /// With `head_only`: the model on this disk (its id) that gets the head.
    pub for_model: Option<String>,
    /// Only the MTP head, by the ranges of its tensors.
    pub head_only: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
#[serde(rename_all = "camelCase")]
pub struct DownloadRef {
    pub id: String,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
#[serde(tag = "kind", rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum DownloadState {
    /// Others come first.
    Queued,
    /// The repository is listed and what is on the disk is looked at.
    Preparing,
    Running,
    /// It goes on by itself, in `retry_ms` when that is known.
    Waiting {
        error: WireError,
        #[cfg_attr(test, ts(type = "number | null"))]
        retry_ms: Option<u64>,
    },
    Paused,
    /// All bytes are there; hashes are compared.
    Verifying,
    /// The head is written in the form it is used in and put on its model.
    Attaching,
    /// Verified and listed; `model` is its id.
    Done {
        model: String,
    },
    /// Nothing is lost: resuming goes on from the last byte.
    Failed {
        error: WireError,
    },
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
#[serde(rename_all = "camelCase")]
pub struct ModelDownload {
    pub id: String,
    pub repository: String,
    pub head_only: bool,
    pub for_model: Option<String>,
    pub state: DownloadState,
    /// Bytes on the disk, those of earlier runs included.
    #[cfg_attr(test, ts(type = "number"))]
    pub done: u64,
    #[cfg_attr(test, ts(type = "number"))]
    pub total: u64,
    /// Bytes per second, lately.
    pub speed: f64,
    /// `None` while nothing moves.
    #[cfg_attr(test, ts(type = "number | null"))]
    pub remaining_ms: Option<u64>,
    pub files_ready: u32,
    pub files: u32,
}

/// The stream of all downloads, from the moment of the call to the end of the window: first every download there is, as
/// `changed`, then what becomes of them, at most a few times a second for each.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
#[serde(tag = "kind", rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum DownloadEvent {
    Changed {
        download: ModelDownload,
    },
    /// It is not in the list any more.
    Gone {
        id: String,
    },
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
#[serde(rename_all = "camelCase")]
pub struct ModelRef {
    /// `ModelEntry::id`.
    pub id: String,
}

/// What deleting a model would free.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
#[serde(rename_all = "camelCase")]
pub struct DeletePlan {
    pub id: String,
    pub folder: String,
    #[cfg_attr(test, ts(type = "number"))]
    pub frees: u64,
    /// The folder belongs to the person: it is only taken off the list, and nothing is freed.
    pub only_forgets: bool,
}

/// Files of a model beside the hub's list of them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
#[serde(rename_all = "camelCase")]
pub struct CheckReport {
    /// The repository the files were compared with.
    pub repository: String,
    pub good: u32,
    /// Names of files whose bytes are not the hub's.
    pub damaged: Vec<String>,
    /// Names of files of the hub that are not here.
    pub missing: Vec<String>,
    pub sentence: String,
}

/// The stream of one check. Always ends with `finished`, `cancelled` or `failed`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
#[serde(tag = "kind", rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum CheckEvent {
    Progress {
        #[cfg_attr(test, ts(type = "number"))]
        done: u64,
        #[cfg_attr(test, ts(type = "number"))]
        total: u64,
        file: String,
    },
    Finished {
        report: CheckReport,
    },
    Cancelled,
    Failed {
        error: WireError,
    },
}
