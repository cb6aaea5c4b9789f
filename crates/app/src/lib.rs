//! App.
pub mod history;
pub mod settings;
