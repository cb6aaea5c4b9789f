//! Other formats to ours.
