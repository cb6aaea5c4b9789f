//! Whether a model fits this machine: one sum for what is on the disk and for what is still on the hub.
//!
//! Entry points: [`Shape::read`], [`Sizes`], [`fit`]. Knows configurations only as far as caches need them.

use foretoken_engine::weights::Checkpoint;
use foretoken_library::hub::{RemoteModel, is_head};
use foretoken_protocol::{Fit, Machine};
use serde_json::Value;
use std::path::Path;

/// Context a model is opened with when nobody names one.
pub const USUAL_CONTEXT: u32 = 4096;
/// Prompt tokens read in one pass, between two looks at the stop flag.
const PREFILL_ROWS: usize = 128;
/// Rows of a verifying pass, each with logits over the vocabulary.
const VERIFIED_ROWS: u64 = 9;
/// Activations are f32.
const FLOAT: u64 = 4;
/// The app rounds x to 8 bits, and its caches hold f16.
const KV: u64 = 2;
/// The program, its tokenizer and what allocators keep.
const PROGRAM: u64 = 96 << 20;
/// Codes of 8 bits with a scale and a bias of 16 bits for each group of 64.
const HEAD_BITS: f64 = 8.0 + 32.0 / 64.0;

/// What a configuration says about the size of caches and buffers.
#[derive(Debug, Clone, PartialEq)]
pub struct Shape {
    /// Most tokens the model takes.
    pub context_max: u64,
    trunk: Vec<Layer>,
    head: Vec<Layer>,
    /// Floats of one row in the widest layer, everything alive at once.
    row: u64,
    vocab: u64,
}

#[derive(Debug, Clone, Copy, PartialEq)]
struct Layer {
    bytes_per_token: u64,
    /// Tokens after which it stops growing.
    window: Option<u64>,
}

impl Layer {
    fn bytes(&self, tokens: u64) -> u64 {
        self.bytes_per_token * self.window.map_or(tokens, |window| window.min(tokens))
    }
}

impl Shape {
    /// `None` when the configuration lacks what every language model's has.
    pub fn read(config: &Value) -> Option<Self> {
        let text = config.get("text_config").unwrap_or(config);
        let number = |key: &str| text.get(key).and_then(Value::as_u64);
        let n_layers = number("num_hidden_layers")?;
        let hidden = number("hidden_size")?;
        let n_heads = number("num_attention_heads")?;
        let first = |keys: &[&str]| keys.iter().find_map(|key| number(key));
        let n_kv = first(&["num_key_value_heads", "num_attention_groups"]).unwrap_or(n_heads);
        let head_dim = number("head_dim").unwrap_or(hidden / n_heads.max(1));
        let latent = number("kv_lora_rank").map(|r| r + number("qk_rope_head_dim").unwrap_or(0));
        let plain = latent.unwrap_or(2 * n_kv * head_dim) * KV;
        let window = number("sliding_window");
        let kinds = text.get("layer_types").and_then(Value::as_array);
        let other = text.get("attention_other_setting");
        let layer = |i: u64| {
            // A list that ends with the trunk lends a head its first sliding entry.
            let kind = kinds.filter(|kinds| !kinds.is_empty()).map(|kinds| {
                let listed = kinds.get(i as usize).and_then(Value::as_str);
                listed.unwrap_or("sliding_attention")
            });
            match kind {
                Some("sliding_attention") if window.is_some() => {
                    Layer { bytes_per_token: other_kv(other).unwrap_or(plain), window }
                }
                // A state of one size, whatever the length.
                Some("linear_attention") => Layer { bytes_per_token: 0, window: None },
                Some(_) => Layer { bytes_per_token: plain, window: None },
                None => {
                    let slides = text.get("use_sliding_window").and_then(Value::as_bool);
                    let window = window.filter(|_| slides == Some(true));
                    Layer { bytes_per_token: plain, window }
                }
            }
        };
        let levels = first(&["num_nextn_predict_layers", "mtp_num_hidden_layers"]).unwrap_or(0);
        // More than any model has is a damaged file, and would be a long list.
        if n_layers > 10_000 || levels > 100 {
            return None;
        }
        let experts = first(&["num_experts_per_tok", "moe_top_k"]).unwrap_or(0)
            * number("moe_intermediate_size").unwrap_or(0);
        let widest = number("intermediate_size").unwrap_or(4 * hidden).max(experts);
        Some(Self {
            context_max: first(&["max_position_embeddings", "max_seq_len"]).unwrap_or(2048).max(1),
            trunk: (0..n_layers).map(layer).collect(),
            head: (n_layers..n_layers + levels.max(1)).map(layer).collect(),
            row: 8 * hidden + 4 * n_heads * head_dim + 3 * widest,
            vocab: number("vocab_size").unwrap_or(0),
        })
    }

    /// Of a folder's `config.json`.
    pub fn of_folder(folder: &Path) -> Option<Self> {
        Self::read(&read_config(folder)?)
    }

    /// Bytes of keys and values at so many tokens.
    pub fn kv(&self, tokens: u64, with_head: bool) -> u64 {
        let head = self.head.iter().filter(|_| with_head);
        self.trunk.iter().chain(head).map(|layer| layer.bytes(tokens)).sum()
    }

    /// Activations of a pass over the prompt, logits of a verifying one (computed, processed, sorted), and the program.
    pub fn working(&self) -> u64 {
        FLOAT * (PREFILL_ROWS as u64 * self.row + 3 * VERIFIED_ROWS * self.vocab) + PROGRAM
    }
}

/// `config.json` of a folder; `None` = there is none that can be read.
pub(crate) fn read_config(folder: &Path) -> Option<Value> {
    let text = std::fs::read(folder.join("config.json")).ok()?;
    // An editor's byte order mark is not part of the text.
    serde_json::from_slice(text.strip_prefix(b"\xef\xbb\xbf").unwrap_or(&text)).ok()
}

/// Keys and values of a sliding layer, where they differ (`reference/step3p5.md`).
fn other_kv(other: Option<&Value>) -> Option<u64> {
    let number = |key: &str| other?.get(key)?.as_u64();
    Some(2 * KV * number("num_attention_groups")? * number("head_dim")?)
}

/// Bytes of weights.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Sizes {
    pub weights: u64,
    pub head: u64,
}

impl Sizes {
    /// Of a folder, with its own head or that of `donor`. Headers are read, no weights.
    pub fn of_folder(folder: &Path, donor: Option<&Path>) -> foretoken_engine::Result<Self> {
        let (weights, own) = sizes(&Checkpoint::open(folder)?);
        let head = match donor {
            Some(donor) => sizes(&Checkpoint::open_head(donor)?).1,
            None => own,
        };
        Ok(Self { weights, head })
    }

    /// Of a model on the hub with its own head, or that of `donor` as it will be stored.
    pub fn of_remote(model: &RemoteModel, donor: Option<&RemoteModel>) -> Self {
        let own = model.head_bytes();
        let files = model.listing.model_files();
        let weights = files.iter().filter(|file| file.path.ends_with(".safetensors"));
        let weights: u64 = weights.map(|file| file.size).sum();
        Self { weights: weights.saturating_sub(own), head: donor.map_or(own, stored_head) }
    }
}

/// Trunk and head of a checkpoint.
fn sizes(checkpoint: &Checkpoint) -> (u64, u64) {
    let config = &checkpoint.config;
    let text = config.get("text_config").unwrap_or(config);
    let layers = text.get("num_hidden_layers").and_then(Value::as_u64);
    let (mut trunk, mut head) = (0, 0);
    for name in checkpoint.names() {
        let bytes = checkpoint.get(name).map_or(0, |place| place.data.len() as u64);
        *(if is_head(name, layers) { &mut head } else { &mut trunk }) += bytes;
    }
    (trunk, head)
}

/// Bytes of a head once it is quantised as `shelf::heads` does it: matrices to 8 bits, the fusion as it is.
pub(crate) fn stored_head(model: &RemoteModel) -> u64 {
    let stored = model.head.iter().map(|tensor| {
        let bytes = tensor.at.end - tensor.at.start;
        let wide = match tensor.dtype.as_str() {
            "BF16" | "F16" => 16.0,
            "F32" => 32.0,
            _ => return bytes,
        };
        let is_matrix = tensor.shape.len() >= 2 && !tensor.name.contains("eh_proj");
        if is_matrix { (bytes as f64 * HEAD_BITS / wide) as u64 } else { bytes }
    });
    stored.sum()
}

/// The verdict at `context` tokens, `None` = what the app opens it with.
pub fn fit(shape: &Shape, sizes: Sizes, machine: Machine, context: Option<u32>) -> Fit {
    let context_max = u32::try_from(shape.context_max).unwrap_or(u32::MAX);
    let context = context.unwrap_or(USUAL_CONTEXT).clamp(1, context_max);
    let working = shape.working();
    let kv = |tokens: u32| shape.kv(u64::from(tokens), sizes.head > 0);
    let needed = |tokens: u32| sizes.weights + sizes.head + working + kv(tokens);
    let fits_at = |tokens: u32| needed(tokens) <= machine.available;
    let mut fit = Fit {
        weights: sizes.weights,
        head: sizes.head,
        kv: kv(context),
        working,
        needed: needed(context),
        machine,
        context,
        context_max,
        context_fits: most(context_max, fits_at),
        fits: fits_at(context),
        sentence: String::new(),
    };
    fit.sentence = sentence(&fit);
    fit
}

/// The largest number in `1..=max` for which `holds`, which holds up to some number; 0 = for none.
fn most(max: u32, holds: impl Fn(u32) -> bool) -> u32 {
    let (mut low, mut high) = (0, max);
    while low < high {
        let middle = high - (high - low) / 2;
        if holds(middle) { low = middle } else { high = middle - 1 }
    }
    low
}

/// As people read it.
pub fn gb(bytes: u64) -> String {
    const MIB: f64 = (1 << 20) as f64;
    // What is small would be 0.0 GB.
    if bytes < 100 << 20 {
        format!("{:.1} MB", bytes as f64 / MIB)
    } else {
        format!("{:.1} GB", bytes as f64 / MIB / 1024.0)
    }
}

fn sentence(fit: &Fit) -> String {
    let (needed, free) = (gb(fit.needed), gb(fit.machine.available));
    if fit.fits {
        return format!("Fits: it needs {needed} at {} tokens, and {free} are free.", fit.context);
    }
    let parts = format!(
        "weights {}, head {}, keys and values {}, working memory {}",
        gb(fit.weights),
        gb(fit.head),
        gb(fit.kv),
        gb(fit.working)
    );
    let next = if fit.context_fits > 0 {
        format!("Choose a context of at most {} tokens", fit.context_fits)
    } else if fit.needed <= fit.machine.memory {
        "Close other programs".to_owned()
    } else {
        format!("This machine has {} of memory: choose a smaller model", gb(fit.machine.memory))
    };
    format!(
        "It needs {needed} at {} tokens ({parts}), and {free} are free. {next}, or try anyway.",
        fit.context
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn machine(available: u64) -> Machine {
        Machine { memory: 2 * available, available, disk_free: 0 }
    }

    #[test]
    fn caches_of_released_shapes() {
        let kinds: Vec<&str> = (0..48)
            .map(|i| ["full_attention", "sliding_attention"][usize::from(i % 4 != 0)])
            .collect();
        let step = json!({"num_hidden_layers": 45, "hidden_size": 4096, "num_attention_heads": 64,
            "num_attention_groups": 8, "head_dim": 128, "sliding_window": 512, "layer_types": kinds,
            "attention_other_setting": {"num_attention_groups": 8, "head_dim": 128},
            "num_nextn_predict_layers": 3, "max_position_embeddings": 262144});
        let step = Shape::read(&step).expect("a shape");
        // 12 full layers and 33 sliding ones; the head's three levels slide.
        let token = 2 * 8 * 128 * 2;
        assert_eq!(step.kv(100_000, false), token * (12 * 100_000 + 33 * 512));
        assert_eq!(step.kv(100_000, true) - step.kv(100_000, false), token * 3 * 512);
        assert_eq!(step.kv(100, true), token * 48 * 100);
        let latent = json!({"num_hidden_layers": 47, "hidden_size": 2048, "num_attention_heads": 20,
            "kv_lora_rank": 512, "qk_rope_head_dim": 64});
        let latent = Shape::read(&latent).expect("a shape");
        assert_eq!(latent.kv(1000, false), 47 * 576 * 2 * 1000);
        for odd in [json!({}), json!([]), json!({"num_hidden_layers": -1, "hidden_size": 1})] {
            assert_eq!(Shape::read(&odd), None, "{odd}");
        }
        let endless =
            json!({"num_hidden_layers": u64::MAX, "hidden_size": 1, "num_attention_heads": 1});
        assert_eq!(Shape::read(&endless), None);
    }

    #[test]
    fn the_verdict_has_numbers_and_says_what_to_do() {
        let config = json!({"num_hidden_layers": 10, "hidden_size": 1024, "num_attention_heads": 8,
            "num_key_value_heads": 8, "head_dim": 128, "max_position_embeddings": 32768, "vocab_size": 50000});
        let shape = Shape::read(&config).expect("a shape");
        let sizes = Sizes { weights: 3_000_000_000, head: 500_000_000 };
        let roomy = fit(&shape, sizes, machine(20_000_000_000), None);
        assert!(roomy.fits && roomy.sentence.starts_with("Fits: "), "{roomy:?}");
        assert_eq!((roomy.context, roomy.context_fits), (4096, 32768));
        assert_eq!(roomy.needed, roomy.weights + roomy.head + roomy.kv + roomy.working);
        // Exactly as many as fit.
        let tight = fit(&shape, sizes, machine(roomy.needed), Some(30_000));
        assert_eq!((tight.fits, tight.context_fits), (false, 4096));
        assert!(
            tight.sentence.contains("at most 4096 tokens, or try anyway"),
            "{}",
            tight.sentence
        );
        let none = fit(&shape, sizes, machine(1_000_000_000), None);
        assert_eq!((none.fits, none.context_fits), (false, 0));
        assert!(none.sentence.contains("weights 2.8 GB, head 0.5 GB"), "{}", none.sentence);
        assert!(none.sentence.contains("choose a smaller model"), "{}", none.sentence);
        let crowded = fit(&shape, sizes, machine(3_000_000_000), Some(0));
        assert!(crowded.sentence.contains("Close other programs"), "{}", crowded.sentence);
        assert_eq!(crowded.context, 1);
    }
}
