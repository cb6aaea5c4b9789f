//! Tokenizer, chat template, incremental text.
