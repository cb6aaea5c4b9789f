//! The library tests' stand-in for the hub.
#![allow(dead_code, reason = "a part of it is used here")]

#[path = "../../../../crates/library/tests/support/http.rs"]
mod http;
#[path = "../../../../crates/library/tests/support/mirror.rs"]
pub mod mirror;
