//! Models that are not here yet: the line to the hub, heads and where they come from, downloads and their order.
//!
//! Entry points: [`Connection`], [`heads::find`], [`list::Downloads`]. The commands are in `app/hub.rs`, `app/downloads.rs`
//! and `app/disk.rs`. Does not: know a chat, write into a folder somebody else made.

mod connection;
pub(crate) mod heads;
pub(crate) mod list;
pub(crate) mod record;

pub(crate) use connection::{Connection, check, endpoint};
