//! A GGUF file (read by candle's `gguf_file`) to a checkpoint folder, with an MTP head put beside it.

use super::Written;
use super::repack::{Repacked, block, repack, unpermute};
use crate::text::GgufTokenizer;
use crate::weights::{Checkpoint, map_file};
use crate::{EngineError, Result};
use candle_core::quantized::gguf_file::{Content, Value};
use safetensors::{Dtype, View};
use serde_json::{Map, json};
use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::path::Path;

/// GGUF name -> our name, without the layer's prefix.
const LAYER_NAMES: &[(&str, &str)] = &[
    ("attn_norm", "input_layernorm"),
    ("attn_q", "self_attn.q_proj"),
    ("attn_k", "self_attn.k_proj"),
    ("attn_v", "self_attn.v_proj"),
    ("attn_output", "self_attn.o_proj"),
    ("ffn_norm", "post_attention_layernorm"),
    ("ffn_gate", "mlp.gate_proj"),
    ("ffn_up", "mlp.up_proj"),
    ("ffn_down", "mlp.down_proj"),
];
const TOP_NAMES: &[(&str, &str)] =
    &[("token_embd", "model.embed_tokens"), ("output_norm", "model.norm"), ("output", "lm_head")];
/// Settings of the head's `config.json` that the trunk's cannot know.
const HEAD_KEYS: [&str; 2] = ["num_nextn_predict_layers", "trunk"];
const HEAD_PREFIXES: [&str; 2] = ["mtp_", "draft_vocab_"];
const HEAD_FILES: [&str; 3] =
    ["mtp.safetensors", "draft_vocab.safetensors", "generation_config.json"];

fn our_name(gguf: &str) -> Option<String> {
    let find = |table: &[(&str, &str)], name: &str| {
        table.iter().find(|(from, _)| *from == name).map(|(_, to)| (*to).to_owned())
    };
    let (stem, suffix) = gguf.rsplit_once('.')?;
    let name = match stem.strip_prefix("blk.").and_then(|rest| rest.split_once('.')) {
        Some((layer, part)) => {
            format!("model.layers.{}.{}", layer.parse::<usize>().ok()?, find(LAYER_NAMES, part)?)
        }
        None => find(TOP_NAMES, stem)?,
    };
    Some(format!("{name}.{suffix}"))
}

struct Metadata<'a> {
    values: &'a HashMap<String, Value>,
    file: &'a Path,
}

impl Metadata<'_> {
    fn corrupt(&self, why: impl Into<String>) -> EngineError {
        EngineError::Corrupt { file: self.file.to_owned(), why: why.into() }
    }

    fn number(&self, key: &str) -> Option<f64> {
        Some(match self.values.get(key)? {
            Value::U8(v) => f64::from(*v),
            Value::U16(v) => f64::from(*v),
            Value::U32(v) => f64::from(*v),
            Value::I32(v) => f64::from(*v),
            Value::U64(v) => *v as f64,
            Value::I64(v) => *v as f64,
            Value::F32(v) => f64::from(*v),
            Value::F64(v) => *v,
            _ => return None,
        })
    }

    fn need(&self, key: &str) -> Result<usize> {
        self.number(key).map(|v| v as usize).ok_or_else(|| self.corrupt(format!("it has no {key}")))
    }

    fn text(&self, key: &str) -> Option<String> {
        match self.values.get(key) {
            Some(Value::String(text)) => Some(text.clone()),
            _ => None,
        }
    }

    fn list<T>(&self, key: &str, item: impl Fn(&Value) -> Option<T>) -> Option<Vec<T>> {
        match self.values.get(key) {
            Some(Value::Array(values)) => values.iter().map(item).collect(),
            _ => None,
        }
    }

    fn tokenizer(&self) -> Result<GgufTokenizer> {
        let string = |v: &Value| if let Value::String(s) = v { Some(s.clone()) } else { None };
        let int = |v: &Value| match v {
            Value::I32(v) => Some(*v),
            Value::U32(v) => i32::try_from(*v).ok(),
            _ => None,
        };
        let id = |key: &str| self.number(&format!("tokenizer.ggml.{key}")).map(|v| v as u32);
        let need = |key: &str| self.corrupt(format!("it has no tokenizer.ggml.{key}"));
        Ok(GgufTokenizer {
            model: self.text("tokenizer.ggml.model").ok_or_else(|| need("model"))?,
            pre: self.text("tokenizer.ggml.pre").unwrap_or_default(),
            tokens: self.list("tokenizer.ggml.tokens", string).ok_or_else(|| need("tokens"))?,
            token_types: self.list("tokenizer.ggml.token_type", int).unwrap_or_default(),
            merges: self.list("tokenizer.ggml.merges", string).ok_or_else(|| need("merges"))?,
            bos: id("bos_token_id"),
            eos: id("eos_token_id"),
            pad: id("padding_token_id"),
            unk: id("unknown_token_id"),
            chat_template: self.text("tokenizer.chat_template"),
            add_bos: matches!(
                self.values.get("tokenizer.ggml.add_bos_token"),
                Some(Value::Bool(true))
            ),
        })
    }
}

struct Tensor {
    dtype: Dtype,
    shape: Vec<usize>,
    data: Vec<u8>,
}

impl View for &Tensor {
    fn dtype(&self) -> Dtype {
        self.dtype
    }
    fn shape(&self) -> &[usize] {
        &self.shape
    }
    fn data(&self) -> Cow<'_, [u8]> {
        Cow::Borrowed(&self.data)
    }
    fn data_len(&self) -> usize {
        self.data.len()
    }
}

/// Repacks `source` into the folder `target` (made if absent), with the head of folder `head` beside it.
///
/// `progress(done, total)` counts tensors. Architectures other than `llama` and block formats other than Q4_0, Q4_1, Q8_0
/// and plain floats are refused by name.
pub fn convert_gguf(
    source: &Path,
    target: &Path,
    head: Option<&Path>,
    mut progress: impl FnMut(usize, usize),
) -> Result<Written> {
    let map = map_file(source)?;
    let raw = map.as_slice();
    let content =
        Content::read(&mut std::io::Cursor::new(raw)).map_err(|e| EngineError::Corrupt {
            file: source.to_owned(),
            why: format!("it is not a readable GGUF file ({e})"),
        })?;
    let meta = Metadata { values: &content.metadata, file: source };
    let arch = meta.text("general.architecture").unwrap_or_default();
    if arch != "llama" {
        return Err(EngineError::UnsupportedModel { model_type: arch });
    }
    let (heads, hidden) =
        (meta.need("llama.attention.head_count")?, meta.need("llama.embedding_length")?);
    let kv_heads = meta.number("llama.attention.head_count_kv").map_or(heads, |v| v as usize);
    let head_dim =
        meta.number("llama.attention.key_length").map_or(hidden / heads.max(1), |v| v as usize);

    let mut tensors: BTreeMap<String, Tensor> = BTreeMap::new();
    let mut modules: BTreeMap<String, usize> = BTreeMap::new();
    let mut by_storage: BTreeMap<String, u64> = BTreeMap::new();
    let total = content.tensor_infos.len();
    for (done, (gguf_name, info)) in content.tensor_infos.iter().enumerate() {
        progress(done, total);
        let name = our_name(gguf_name).ok_or_else(|| EngineError::UnsupportedFormat {
            name: gguf_name.clone(),
            format: "a tensor of another layout".to_owned(),
        })?;
        let unsupported =
            |format: String| EngineError::UnsupportedFormat { name: gguf_name.clone(), format };
        let (block_bytes, block_len) =
            block(info.ggml_dtype).ok_or_else(|| unsupported(format!("{:?}", info.ggml_dtype)))?;
        let shape = info.shape.dims().to_vec();
        let k = *shape.last().unwrap_or(&1);
        let count: usize = shape.iter().product();
        let at = usize::try_from(content.tensor_data_offset + info.offset).unwrap_or(usize::MAX);
        let size = count / block_len * block_bytes;
        let data = at.checked_add(size).and_then(|end| raw.get(at..end));
        let data =
            data.ok_or_else(|| meta.corrupt(format!("it was cut off inside {gguf_name}")))?;
        if k % block_len != 0 {
            return Err(unsupported(format!("{:?} over rows of {k}", info.ggml_dtype)));
        }
        let rotary = [("q_proj.weight", heads), ("k_proj.weight", kv_heads)];
        let turned =
            rotary.iter().find(|(suffix, _)| name.ends_with(suffix)).map(|(_, heads)| *heads);
        let data: Cow<'_, [u8]> = match turned {
            Some(heads) if shape.len() == 2 && shape[0] == heads * head_dim => {
                Cow::Owned(unpermute(data, k / block_len * block_bytes, heads, head_dim))
            }
            Some(_) => {
                return Err(
                    meta.corrupt(format!("{gguf_name} does not have {head_dim} rows a head"))
                );
            }
            None => Cow::Borrowed(data),
        };
        let repacked = repack(info.ggml_dtype, &data)
            .ok_or_else(|| unsupported("blocks whose bias f16 cannot hold".to_owned()))?;
        match repacked {
            Repacked::Plain(dtype, data) => {
                *by_storage.entry(format!("{dtype:?}").to_lowercase()).or_default() +=
                    data.len() as u64;
                tensors.insert(name, Tensor { dtype, shape, data });
            }
            Repacked::Affine { bits, codes, scales, biases } => {
                let module = name.trim_end_matches(".weight").to_owned();
                *by_storage.entry(format!("{bits}-bit g32")).or_default() +=
                    (codes.len() + scales.len() + biases.len()) as u64;
                let of = |columns: usize| {
                    shape[..shape.len() - 1].iter().copied().chain([columns]).collect::<Vec<_>>()
                };
                tensors.insert(
                    name,
                    Tensor { dtype: Dtype::U32, shape: of(k * bits / 32), data: codes },
                );
                for (part, data) in [("scales", scales), ("biases", biases)] {
                    tensors.insert(
                        format!("{module}.{part}"),
                        Tensor { dtype: Dtype::F16, shape: of(k / 32), data },
                    );
                }
                modules.insert(module, bits);
            }
        }
    }
    progress(total, total);

    std::fs::create_dir_all(target).map_err(EngineError::io(target))?;
    let file = target.join("model.safetensors");
    let metadata = HashMap::from([("format".to_owned(), "mlx".to_owned())]);
    safetensors::serialize_to_file(tensors.iter(), Some(metadata), &file).map_err(|e| match e {
        safetensors::SafeTensorError::IoError(source) => {
            EngineError::Io { path: file.clone(), source }
        }
        e => EngineError::Corrupt { file: file.clone(), why: e.to_string() },
    })?;
    meta.tokenizer()?.write_hf_files(target)?;
    let config = config(&meta, (heads, kv_heads, head_dim), &tensors, &modules)?;
    write_config(target, config, head)?;
    // Reading the result back is the last check: every name, shape and size fits.
    let n_bytes = Checkpoint::open(target)?.n_bytes;
    Ok(Written {
        tensors: tensors.len(),
        bytes: n_bytes,
        by_storage,
        head: head.is_some(),
        notes: Vec::new(),
    })
}

fn config(
    meta: &Metadata<'_>,
    (heads, kv_heads, head_dim): (usize, usize, usize),
    tensors: &BTreeMap<String, Tensor>,
    modules: &BTreeMap<String, usize>,
) -> Result<Map<String, serde_json::Value>> {
    let vocab = tensors.get("model.embed_tokens.weight").map(|t| t.shape[0]);
    let eps = meta.number("llama.attention.layer_norm_rms_epsilon").unwrap_or(1e-5);
    let value = json!({
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": meta.need("llama.embedding_length")?,
        "intermediate_size": meta.need("llama.feed_forward_length")?,
        "num_hidden_layers": meta.need("llama.block_count")?,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim,
        "vocab_size": vocab.ok_or_else(|| meta.corrupt("it has no token_embd.weight"))?,
        "max_position_embeddings": meta.need("llama.context_length")?,
        // The file holds f32(1e-5); the shortest decimal that means the same f32 is what people expect to read.
        "rms_norm_eps": (eps as f32).to_string().parse::<f64>().unwrap_or(eps),
        "rope_theta": meta.number("llama.rope.freq_base").unwrap_or(10_000.0),
        "hidden_act": "silu",
        "tie_word_embeddings": !tensors.contains_key("lm_head.weight"),
        "bos_token_id": meta.number("tokenizer.ggml.bos_token_id").map(|v| v as u32),
        "eos_token_id": meta.number("tokenizer.ggml.eos_token_id").map(|v| v as u32),
    });
    let serde_json::Value::Object(mut config) = value else { unreachable!("a literal object") };
    if !modules.is_empty() {
        let count = |bits: usize| modules.values().filter(|b| **b == bits).count();
        let default = if count(4) >= count(8) { 4 } else { 8 };
        let mut table = Map::new();
        table.insert("group_size".to_owned(), json!(32));
        table.insert("bits".to_owned(), json!(default));
        table.insert("mode".to_owned(), json!("affine"));
        for (module, bits) in modules.iter().filter(|(_, bits)| **bits != default) {
            table.insert(module.clone(), json!({"group_size": 32, "bits": bits}));
        }
        config.insert("quantization".to_owned(), table.into());
    }
    Ok(config)
}

/// Writes `config.json`, completed by the head's settings, and copies the head's files.
fn write_config(
    target: &Path,
    mut config: Map<String, serde_json::Value>,
    head: Option<&Path>,
) -> Result<()> {
    if let Some(head) = head {
        let file = head.join("config.json");
        let settings =
            crate::weights::read_json(&file)?.ok_or(EngineError::FileMissing { file })?;
        for (key, value) in settings.as_object().into_iter().flatten() {
            if HEAD_KEYS.contains(&key.as_str())
                || HEAD_PREFIXES.iter().any(|prefix| key.starts_with(prefix))
            {
                config.insert(key.clone(), value.clone());
            }
        }
        for name in HEAD_FILES {
            let from = head.join(name);
            if from.is_file() {
                std::fs::copy(&from, target.join(name)).map_err(EngineError::io(&from))?;
            } else if name == HEAD_FILES[0] {
                return Err(EngineError::FileMissing { file: from });
            }
        }
    }
    let file = target.join("config.json");
    let text = serde_json::to_string_pretty(&config).expect("a JSON object serialises");
    std::fs::write(&file, text + "\n").map_err(EngineError::io(&file))
}
