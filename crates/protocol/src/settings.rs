use crate::{GenerationOptions, LoadedModel};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
#[serde(rename_all = "lowercase")]
pub enum Theme {
    #[default]
    System,
    Light,
    Dark,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
#[serde(rename_all = "camelCase", default)]
pub struct Settings {
    pub theme: Theme,
    /// What new replies are generated with.
    pub options: GenerationOptions,
    /// Folders with models the person added.
    pub model_folders: Vec<String>,
    /// Model id -> where its MTP head comes from, see `ModelEntry::head`. Changed by `model_set_head` only.
    pub model_heads: BTreeMap<String, String>,
    /// Loaded at the next start; `None` = starter.
    pub last_model: Option<String>,
    /// Address of the hub; `None` = the environment's, else the public one.
    pub hub_endpoint: Option<String>,
    /// Proxy of downloads; `None` = the environment's.
    pub hub_proxy: Option<String>,
    /// Most bytes per second all downloads take together; `None` = no limit.
    #[cfg_attr(test, ts(type = "number | null"))]
    pub download_limit: Option<u64>,
    pub sidebar_open: bool,
    pub live_panel_open: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            theme: Theme::System,
            options: GenerationOptions::default(),
            model_folders: Vec::new(),
            model_heads: BTreeMap::new(),
            last_model: None,
            hub_endpoint: None,
            hub_proxy: None,
            download_limit: None,
            sidebar_open: true,
            live_panel_open: true,
        }
    }
}

/// Something the person should know at the start, e.g. a chat database that was set aside.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
#[serde(rename_all = "camelCase")]
pub struct Notice {
    pub sentence: String,
    pub detail: String,
}

/// What the window asks for first.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
#[serde(rename_all = "camelCase")]
pub struct AppInfo {
    pub version: String,
    /// "macos" or "linux".
    pub platform: String,
    pub settings: Settings,
    pub notices: Vec<Notice>,
    /// The model in memory, if one is loaded already.
    pub model: Option<LoadedModel>,
}
