//! Every structure that crosses the door between the app and its window or command line.
//!
//! Knows serde only. TypeScript for the window is generated from these definitions by the test in `bindings.rs`.
//! Does not: hold logic, know the engine, know Tauri.
//!
//! Conventions: field names are camelCase on the wire; times are milliseconds, sizes bytes, rates 0..1;
//! integers stay below 2^53 so that JavaScript can hold them.

#[cfg(test)]
mod bindings;
mod chat;
mod commands;
mod error;
mod library;
mod model;
mod options;
mod settings;
mod stats;

pub use chat::{
    Chat, ChatEvent, ChatRef, ChatSummary, FinishReason, Message, OpenLink, RenameChat,
    RetryMessage, Role, Search, SearchHit, SendMessage,
};
pub use commands::{COMMANDS, Command};
pub use error::{ErrorCode, WireError};
pub use library::{
    CheckEvent, CheckReport, DeletePlan, DownloadEvent, DownloadRef, DownloadState, Fit,
    FitRequest, HubHead, HubModel, HubName, Machine, ModelDownload, ModelOffer, ModelRef,
    OfferedHead, SetToken, Shelf, StartDownload, TokenPlace, TokenState,
};
pub use model::{
    AddFolder, HeadInfo, InspectReport, LoadEvent, LoadMeasure, LoadModel, LoadedModel, MemoryUse,
    ModelEntry, ModelSource, ModuleQuant, NormConvention, NormStorage, SetModelHead,
};
pub use options::{DraftMode, DraftRule, GenerationOptions, Sampling};
pub use settings::{AppInfo, Notice, Settings, Theme};
pub use stats::{DepthCount, Drafting, DraftingState, LiveStats, PhaseMs, ReplyStats};
