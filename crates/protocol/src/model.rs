use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
#[serde(rename_all = "snake_case")]
pub enum ModelSource {
    /// Comes with the app.
    Starter,
    /// A folder the person added.
    Folder,
    /// Found in the hub cache.
    HubCache,
    /// Found where LM Studio keeps its models.
    LmStudio,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
#[serde(rename_all = "camelCase")]
pub struct ModelEntry {
    /// What `load_model` takes: `starter`, `owner/name` or a folder.
    pub id: String,
    pub name: String,
    pub source: ModelSource,
    pub folder: String,
    #[cfg_attr(test, ts(type = "number"))]
    pub bytes: u64,
    /// Why it cannot be loaded, as a sentence; `None` = it looks fine.
    pub problem: Option<String>,
    /// Whether its own files hold an MTP head, by the names of their tensors; `None` = they could not be read.
    pub own_head: Option<bool>,
    /// Its folder is on a volume that is not there now; it is remembered.
    pub missing: bool,
    /// `owner/name` it is known to come from.
    pub repository: Option<String>,
    /// Folder or `owner/name` whose MTP head is put on it in place of its own; `None` = its own, if it has one.
    pub head: Option<String>,
    /// What a person calls that head: a fetched one lies in a folder that is named after a commit.
    pub head_name: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
#[serde(rename_all = "camelCase")]
pub struct HeadInfo {
    pub found: bool,
    /// Number of nextn layers found.
    pub levels: u8,
    /// Where it was found, or why not, as a sentence.
    pub sentence: String,
}

/// How the modules of one kind are stored, e.g. attention, 4-bit g32, 120 modules.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
#[serde(rename_all = "camelCase")]
pub struct ModuleQuant {
    pub kind: String,
    pub storage: String,
    pub modules: u32,
    #[cfg_attr(test, ts(type = "number"))]
    pub bytes: u64,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
#[serde(rename_all = "camelCase")]
pub struct MemoryUse {
    #[cfg_attr(test, ts(type = "number"))]
    pub weights: u64,
    #[cfg_attr(test, ts(type = "number"))]
    pub head: u64,
    #[cfg_attr(test, ts(type = "number"))]
    pub kv_per_token: u64,
    /// KV of trunk and head at `context` tokens.
    #[cfg_attr(test, ts(type = "number"))]
    pub kv_at_context: u64,
    pub context: u32,
    /// Sum at that context, working buffers included.
    #[cfg_attr(test, ts(type = "number"))]
    pub needed: u64,
    /// What the machine has free now.
    #[cfg_attr(test, ts(type = "number"))]
    pub available: u64,
}

/// How the norms of a file are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
#[serde(rename_all = "snake_case")]
pub enum NormConvention {
    /// Factors.
    Plain,
    /// Zero-centred norms to which the converter added the one.
    OneAdded,
    /// Zero-centred norms as trained; the one is added at load.
    AsTrained,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
#[serde(rename_all = "camelCase")]
pub struct NormStorage {
    pub file: String,
    pub convention: NormConvention,
}

/// One load, measured.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
#[serde(rename_all = "camelCase")]
pub struct LoadMeasure {
    pub load_ms: f64,
    /// Bytes of the process in memory once it is loaded.
    #[cfg_attr(test, ts(type = "number"))]
    pub resident: u64,
    /// Of these, bytes the load copied or computed; the rest lies in the files. `None` where the system does not tell.
    #[cfg_attr(test, ts(type = "number | null"))]
    pub copied: Option<u64>,
}

/// What `foretoken inspect` prints.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
#[serde(rename_all = "camelCase")]
pub struct InspectReport {
    pub name: String,
    pub folder: String,
    pub family: String,
    pub layers: u32,
    #[cfg_attr(test, ts(type = "number"))]
    pub parameters: u64,
    #[cfg_attr(test, ts(type = "number"))]
    pub head_parameters: u64,
    pub context_size: u32,
    pub vocab_size: u32,
    pub quantisation: Vec<ModuleQuant>,
    pub head: HeadInfo,
    pub memory: MemoryUse,
    pub norms: Vec<NormStorage>,
    /// When it was asked for.
    pub load: Option<LoadMeasure>,
    /// Harmless leftovers and other remarks, a sentence each.
    pub notes: Vec<String>,
}

/// The model that answers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
#[serde(rename_all = "camelCase")]
pub struct LoadedModel {
    pub id: String,
    pub name: String,
    /// e.g. "4-bit · head bf16".
    pub label: String,
    pub report: InspectReport,
    /// The model's recommended sampling, from generation_config.json.
    pub recommended: crate::Sampling,
    /// The reply starts inside a thought.
    pub thinks: bool,
    pub load_ms: f64,
    /// "CPU (AVX-512, 2 threads)" or the GPU's name.
    pub device: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
#[serde(rename_all = "camelCase")]
pub struct LoadModel {
    pub id: String,
    /// Load it although it does not seem to fit.
    #[serde(default)]
    pub anyway: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
#[serde(rename_all = "camelCase")]
pub struct AddFolder {
    pub folder: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
#[serde(rename_all = "camelCase")]
pub struct SetModelHead {
    pub id: String,
    /// As in `ModelEntry`; must hold a head. `None` = the model's own.
    pub head: Option<String>,
}

/// The stream of one load. Always ends with `ready` or `failed`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
#[serde(tag = "kind", rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum LoadEvent {
    /// `what` names what is being read.
    Progress {
        #[cfg_attr(test, ts(type = "number"))]
        done: u64,
        #[cfg_attr(test, ts(type = "number"))]
        total: u64,
        what: String,
    },
    Ready {
        model: Box<LoadedModel>,
    },
    /// The person cancelled; no model is loaded.
    Cancelled,
    Failed {
        error: crate::WireError,
    },
}
