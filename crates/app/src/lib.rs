//! Sessions over the engine: what the window and the command line both talk to.
//!
//! Entry points: [`App`] (chats, settings, models: one method per command of the window), [`Engine`] (the thread that owns the
//! model and its caches; the command line uses it directly), [`checkpoints`], [`bench`].
//!
//! Does not: know Tauri, a shader or HTML.

mod app;
pub mod bench;
pub mod checkpoints;
mod engine;
mod error;
pub mod fit;
pub mod history;
mod hub_error;
pub mod inspect;
mod live;
mod loaded;
pub mod memory;
mod metal;
mod options;
mod paths;
mod place;
mod reply;
pub mod settings;
mod shelf;
mod token;

pub use app::App;
pub use engine::Engine;
pub use error::{error, from_engine};
pub use foretoken_engine::text::TurnText;
pub use loaded::{Activations, LoadedCheckpoint, ModelPlace};
pub use options::{check_options, sampler_settings};
pub use paths::Paths;
pub use place::{check_head, place};
pub use reply::{Prompt, ReplyEvent, ReplyRequest};
pub use token::{Keychain, Tokens};
