//! The hub: what a repository holds, and bytes of its files.
//!
//! Entry points: [`Hub::new`], [`Hub::list`], [`Hub::inspect`]. Calls block; the network runs on threads of the hub's own.
//! Does not: keep or log the token it is given, write to disk, follow an address off the endpoint with the token.

mod bytes;
mod client;
mod error;
mod fault;
mod inspect;
mod listing;
mod name;
mod retry;
mod safetensors;

pub use client::{Hub, HubOptions, Token};
pub(crate) use error::Cure;
pub use error::HubError;
pub use inspect::{HeadPlace, RemoteModel, is_head};
pub use listing::{ContentId, Listing, RemoteFile};
pub(crate) use name::check_path;
pub use name::{DEFAULT_ENDPOINT, RepoId, RepoRef};
pub use retry::Retry;
pub use safetensors::RemoteTensor;
