//! The engine.
pub mod text;
