//! Model library.
