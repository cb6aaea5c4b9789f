use super::TextError;
use serde_json::{Map, Value, json};
use std::collections::HashSet;
use std::path::Path;

/// `tokenizer.ggml.token_type` of the GGUF specification.
const UNKNOWN: i32 = 2;
const CONTROL: i32 = 3;
const USER_DEFINED: i32 = 4;

/// The tokenizer inside a GGUF file; fields as in its `tokenizer.*` metadata.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct GgufTokenizer {
    /// `tokenizer.ggml.model`: only `gpt2` (byte-level BPE).
    pub model: String,
    /// `tokenizer.ggml.pre`: `smollm`, `gpt-2`, `llama-bpe` or `qwen2`.
    pub pre: String,
    pub tokens: Vec<String>,
    /// Per token; empty = all are normal.
    pub token_types: Vec<i32>,
    /// Each "left right".
    pub merges: Vec<String>,
    pub bos: Option<u32>,
    pub eos: Option<u32>,
    pub pad: Option<u32>,
    pub unk: Option<u32>,
    pub chat_template: Option<String>,
    /// `tokenizer.ggml.add_bos_token`.
    pub add_bos: bool,
}

impl GgufTokenizer {
    /// Writes `tokenizer.json`, `tokenizer_config.json` and, if there is a template, `chat_template.jinja`; makes the
    /// folder if need be.
    ///
    /// Errors: [`TextError::GgufUnsupported`], [`TextError::GgufCorrupt`], [`TextError::Io`].
    pub fn write_hf_files(&self, dir: &Path) -> Result<(), TextError> {
        self.check()?;
        let tokenizer = self.tokenizer_json()?;
        let config = self.config_json()?;
        std::fs::create_dir_all(dir).map_err(|e| TextError::io(dir, e))?;
        let write = |name: &str, text: &str| {
            let file = dir.join(name);
            std::fs::write(&file, text).map_err(|e| TextError::io(&file, e))
        };
        write("tokenizer.json", &tokenizer.to_string())?;
        write("tokenizer_config.json", &format!("{config:#}"))?;
        self.chat_template
            .as_deref()
            .map_or(Ok(()), |template| write("chat_template.jinja", template))
    }

    fn check(&self) -> Result<(), TextError> {
        if self.model != "gpt2" {
            return Err(TextError::GgufUnsupported { name: self.model.clone() });
        }
        let corrupt = |why: String| Err(TextError::GgufCorrupt { why });
        if self.tokens.is_empty() {
            return corrupt("it has no tokens".into());
        }
        if !self.token_types.is_empty() && self.token_types.len() != self.tokens.len() {
            return corrupt(format!(
                "{} tokens but {} token types",
                self.tokens.len(),
                self.token_types.len()
            ));
        }
        let distinct: HashSet<&str> = self.tokens.iter().map(String::as_str).collect();
        if distinct.len() != self.tokens.len() {
            return corrupt(format!("{} tokens occur twice", self.tokens.len() - distinct.len()));
        }
        for merge in &self.merges {
            let Some((left, right)) = split_merge(merge) else {
                return corrupt(format!("merge {merge:?} has no two parts"));
            };
            let joined = format!("{left}{right}");
            if let Some(part) =
                [left, right, &joined].into_iter().find(|&part| !distinct.contains(part))
            {
                return corrupt(format!(
                    "merge {merge:?} needs the token {part:?}, which is missing"
                ));
            }
        }
        Ok(())
    }

    fn tokenizer_json(&self) -> Result<Value, TextError> {
        let vocab: Map<String, Value> =
            self.tokens.iter().enumerate().map(|(id, token)| (token.clone(), json!(id))).collect();
        let merges: Vec<_> = self.merges.iter().filter_map(|merge| split_merge(merge)).collect();
        let added: Vec<Value> = self
            .token_types
            .iter()
            .enumerate()
            .filter_map(|(id, &kind)| self.added(id, kind))
            .collect();
        // Llama 3 takes a word that is a token as it is, without merging up to it.
        let ignore_merges = self.pre == "llama-bpe";
        Ok(json!({
            "version": "1.0",
            "truncation": null,
            "padding": null,
            "added_tokens": added,
            "normalizer": if self.pre == "qwen2" { json!({ "type": "NFC" }) } else { Value::Null },
            "pre_tokenizer": self.pre_tokenizer()?,
            "post_processor": self.post_processor()?,
            "decoder": byte_level(true),
            "model": {
                "type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
                "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false,
                "ignore_merges": ignore_merges, "vocab": vocab, "merges": merges,
            },
        }))
    }

    fn added(&self, id: usize, kind: i32) -> Option<Value> {
        let is_special = matches!(kind, UNKNOWN | CONTROL);
        (is_special || kind == USER_DEFINED).then(|| {
            json!({
                "id": id, "content": self.tokens[id], "single_word": false, "lstrip": false, "rstrip": false,
                "normalized": false, "special": is_special,
            })
        })
    }

    /// The split before BPE, as the Hugging Face original of each `pre` has it.
    fn pre_tokenizer(&self) -> Result<Value, TextError> {
        let split_words = |digits: &str| {
            let regex = format!(
                r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|{digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
            );
            json!({ "type": "Split", "pattern": { "Regex": regex }, "behavior": "Isolated", "invert": false })
        };
        let sequence = |first: Value, second: Value| json!({ "type": "Sequence", "pretokenizers": [first, second] });
        match self.pre.as_str() {
            "smollm" => Ok(sequence(
                json!({ "type": "Digits", "individual_digits": true }),
                byte_level(true),
            )),
            "gpt-2" => Ok(byte_level(true)),
            "llama-bpe" => Ok(sequence(split_words(r"\p{N}{1,3}"), byte_level(false))),
            "qwen2" => Ok(sequence(split_words(r"\p{N}"), byte_level(false))),
            _ => Err(TextError::GgufUnsupported { name: self.pre.clone() }),
        }
    }

    fn post_processor(&self) -> Result<Value, TextError> {
        let Some(bos) = self.bos.filter(|_| self.add_bos) else { return Ok(Value::Null) };
        let text = self.token(bos)?;
        let (first, second) = (
            json!({ "Sequence": { "id": "A", "type_id": 0 } }),
            json!({ "Sequence": { "id": "B", "type_id": 1 } }),
        );
        let special = |type_id: u8| json!({ "SpecialToken": { "id": text, "type_id": type_id } });
        Ok(json!({
            "type": "TemplateProcessing",
            "single": [special(0), first],
            "pair": [special(0), first, special(1), second],
            "special_tokens": { text: { "id": text, "ids": [bos], "tokens": [text] } },
        }))
    }

    fn config_json(&self) -> Result<Value, TextError> {
        let mut config = Map::new();
        let named = [
            ("bos_token", self.bos),
            ("eos_token", self.eos),
            ("pad_token", self.pad),
            ("unk_token", self.unk),
        ];
        for (key, id) in named {
            if let Some(id) = id {
                config.insert(key.into(), json!(self.token(id)?));
            }
        }
        config.insert("add_bos_token".into(), json!(self.add_bos));
        config.insert("clean_up_tokenization_spaces".into(), json!(false));
        config.insert("tokenizer_class".into(), json!("PreTrainedTokenizerFast"));
        Ok(Value::Object(config))
    }

    fn token(&self, id: u32) -> Result<&str, TextError> {
        let why = || format!("special token {id} is outside the {} tokens", self.tokens.len());
        let token =
            self.tokens.get(id as usize).ok_or_else(|| TextError::GgufCorrupt { why: why() })?;
        Ok(token)
    }
}

fn byte_level(use_regex: bool) -> Value {
    json!({ "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": use_regex })
}

/// The parts of a merge. The left one may itself begin with a space.
fn split_merge(merge: &str) -> Option<(&str, &str)> {
    let start = merge.chars().next()?.len_utf8();
    let at = start + merge[start..].find(' ')?;
    let (left, right) = (&merge[..at], &merge[at + 1..]);
    (!right.is_empty()).then_some((left, right))
}
