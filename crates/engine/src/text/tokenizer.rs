use super::files::{read_limited, read_object};
use super::{TextError, bytes::byte_of_char, tool::is_tool_tag};
use serde_json::{Map, Value};
use std::path::Path;
use std::sync::Arc;
use tokenizers::{DecoderWrapper, Tokenizer as Inner};

/// The largest published `tokenizer.json` is about 35 MB.
const MAX_TOKENIZER_BYTES: u64 = 512 << 20;

/// Text to token ids and back, as `tokenizer.json` says. Cloning is cheap: clones share one vocabulary.
#[derive(Clone)]
pub struct Tokenizer {
    shared: Arc<Shared>,
}

struct Shared {
    inner: Inner,
    vocab_size: usize,
    bos: Option<String>,
    eos: Option<String>,
    pad: Option<String>,
    unk: Option<String>,
}

impl Tokenizer {
    /// Reads `tokenizer.json` and, if it is there, `tokenizer_config.json` for the names of the special tokens.
    ///
    /// Errors: [`TextError::TokenizerMissing`], [`TextError::TokenizerCorrupt`], [`TextError::Io`].
    pub fn from_dir(dir: &Path) -> Result<Self, TextError> {
        let file = dir.join("tokenizer.json");
        let corrupt = |why: String| TextError::TokenizerCorrupt { file: file.clone(), why };
        let bytes = read_limited(&file, MAX_TOKENIZER_BYTES, corrupt)?
            .ok_or_else(|| TextError::TokenizerMissing { file: file.clone() })?;
        let mut inner = Inner::from_bytes(&bytes).map_err(|e| corrupt(e.to_string()))?;
        // A prompt is never cut or padded behind the caller's back; files saved from training may ask for both.
        inner.with_truncation(None).map_err(|e| corrupt(e.to_string()))?;
        inner.with_padding(None);

        let config_file = dir.join("tokenizer_config.json");
        let bad = |why: String| TextError::TokenizerCorrupt { file: config_file.clone(), why };
        let config = read_object(&config_file, bad)?.unwrap_or_default();
        let special = |key: &str| special_text(&config, key).map_err(bad);
        let vocab_size = inner.get_vocab(true).values().max().map_or(0, |&id| id as usize + 1);
        let (bos, eos) = (special("bos_token")?, special("eos_token")?);
        let (pad, unk) = (special("pad_token")?, special("unk_token")?);
        Ok(Self { shared: Arc::new(Shared { inner, vocab_size, bos, eos, pad, unk }) })
    }

    /// Ids of a text. Special tokens spelled out in the text become their ids; `add_special` lets the tokenizer add
    /// its own around it (BOS). Chat templates write them themselves: render, then encode with `false`.
    pub fn encode(&self, text: &str, add_special: bool) -> Result<Vec<u32>, TextError> {
        let encoding = self.shared.inner.encode_fast(text, add_special).map_err(failed)?;
        Ok(encoding.get_ids().to_vec())
    }

    /// Text of ids. Ids outside the vocabulary have no text. Bytes that are no UTF-8 become U+FFFD.
    pub fn decode(&self, ids: &[u32], skip_special: bool) -> Result<String, TextError> {
        self.shared.inner.decode(ids, skip_special).map_err(failed)
    }

    pub fn token_id(&self, text: &str) -> Option<u32> {
        self.shared.inner.token_to_id(text)
    }

    /// The vocabulary's own spelling of one token (byte-level BPE writes a space as `Ġ`), not text for a person.
    pub fn token_text(&self, id: u32) -> Option<String> {
        self.shared.inner.id_to_token(id)
    }

    /// Whether decoding with `skip_special` leaves the token out.
    pub fn is_special(&self, id: u32) -> bool {
        self.token_text(id).is_some_and(|text| self.is_special_text(&text))
    }

    /// Whether a reply leaves the token out: every special token but the tags of a tool call, which say something.
    pub fn is_hidden(&self, id: u32) -> bool {
        self.token_text(id).is_some_and(|text| self.is_hidden_text(&text))
    }

    /// One more than the largest id. The model's own vocabulary may be padded beyond it.
    pub fn vocab_size(&self) -> usize {
        self.shared.vocab_size
    }

    /// `bos_token` of `tokenizer_config.json`.
    pub fn bos_text(&self) -> Option<&str> {
        self.shared.bos.as_deref()
    }

    /// `eos_token` of `tokenizer_config.json`.
    pub fn eos_text(&self) -> Option<&str> {
        self.shared.eos.as_deref()
    }

    /// The named special tokens as a template sees them: `bos_token`, `eos_token`, `pad_token`, `unk_token`.
    pub(super) fn named_special(&self) -> impl Iterator<Item = (&'static str, &str)> {
        let s = &*self.shared;
        [("bos_token", &s.bos), ("eos_token", &s.eos), ("pad_token", &s.pad), ("unk_token", &s.unk)]
            .into_iter()
            .filter_map(|(name, text)| Some((name, text.as_deref()?)))
    }

    /// Texts of the tokens that are matched whole (special or not), by id.
    pub(super) fn added_texts(&self) -> Vec<String> {
        let mut added: Vec<_> = self.shared.inner.get_added_tokens_decoder().into_iter().collect();
        added.sort_by_key(|(id, _)| *id);
        added.into_iter().map(|(_, token)| token.content).collect()
    }

    /// Whether each token stands for bytes that do not depend on its neighbours.
    pub(super) fn is_byte_level(&self) -> bool {
        matches!(self.shared.inner.get_decoder(), Some(DecoderWrapper::ByteLevel(_)))
    }

    /// Appends the bytes of one token as the byte-level decoder does, hidden tokens left out.
    pub(super) fn push_bytes(&self, id: u32, out: &mut Vec<u8>) {
        let Some(text) = self.token_text(id).filter(|text| !self.is_hidden_text(text)) else {
            return;
        };
        let start = out.len();
        for c in text.chars() {
            match byte_of_char(c) {
                Some(byte) => out.push(byte),
                // An added token with a character outside the alphabet stands for itself as a whole.
                None => {
                    out.truncate(start);
                    out.extend_from_slice(text.as_bytes());
                    return;
                }
            }
        }
    }

    fn is_special_text(&self, text: &str) -> bool {
        self.shared.inner.get_added_vocabulary().is_special_token(text)
    }

    fn is_hidden_text(&self, text: &str) -> bool {
        self.is_special_text(text) && !is_tool_tag(text)
    }
}

impl std::fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tokenizer")
            .field("vocab_size", &self.shared.vocab_size)
            .finish_non_exhaustive()
    }
}

/// A special token is written as its text or as an object with `content`.
fn special_text(config: &Map<String, Value>, key: &str) -> Result<Option<String>, String> {
    match config.get(key) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text.clone())),
        Some(Value::Object(token)) => match token.get("content") {
            Some(Value::String(text)) => Ok(Some(text.clone())),
            _ => Err(format!("{key} has no content")),
        },
        Some(_) => Err(format!("{key} is neither a text nor a token")),
    }
}

fn failed(e: tokenizers::Error) -> TextError {
    TextError::TokenizerFailed { why: e.to_string() }
}
