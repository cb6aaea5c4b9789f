//! Chats in SQLite.
