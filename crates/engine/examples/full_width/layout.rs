//! The tensors of a cut checkpoint: names and storage of the MLX layout, that is 4 bits in groups of 64, routers 8 bits,
//! `eh_proj` bf16, Hy3's nextn layer 8 bits but for its experts.

use crate::released::{Family, Width, config};
use serde_json::{Map, Value, json};

/// Codes that share a scale.
const GROUP: usize = 64;
const BITS: usize = 4;
/// What attention and MLPs add to the stream, against the embedding's 1: so little that the head, which is made to
/// read the same embedding, often drafts what the trunk then says, and so much that it often does not.
const QUIET: f64 = 0.25;

/// What a tensor is filled with.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Fill {
    Codes,
    /// One of a few multiples of `step`, of either sign.
    Scales {
        step: f64,
    },
    /// What centres the codes of `Scales` around 0.
    Biases {
        step: f64,
        bits: usize,
    },
    /// Around 1, as MLX files store the norms of both families.
    Norm,
    /// Small, around 0.
    SelectionBias,
    /// [n, 2n]: the embedding as it is, and a little of the hidden state.
    EmbedAndHidden,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Tensor {
    pub name: String,
    pub dtype: &'static str,
    pub shape: Vec<usize>,
    pub fill: Fill,
    /// Tensors of one module have one.
    pub seed: u64,
}

impl Tensor {
    pub fn len(&self) -> usize {
        self.shape.iter().product()
    }

    pub fn n_bytes(&self) -> u64 {
        self.len() as u64 * if self.dtype == "BF16" { 2 } else { 4 }
    }
}

/// A checkpoint before it is written.
pub struct Layout {
    pub family: Family,
    pub config: Value,
    pub files: Vec<(String, Vec<Tensor>)>,
    quantization: Map<String, Value>,
    /// Matrices by module path, and their parameters.
    matrices: Vec<(String, usize)>,
}

impl Layout {
    pub fn of(family: Family, width: Width) -> Self {
        let mut out = Self {
            family,
            config: config(family, width),
            files: Vec::new(),
            quantization: Map::new(),
            matrices: Vec::new(),
        };
        out.trunk_and_head();
        let mut table = json!({"group_size": GROUP, "bits": BITS, "mode": "affine"});
        for (path, how) in std::mem::take(&mut out.quantization) {
            table[path] = how;
        }
        out.config["quantization"] = table.clone();
        out.config["quantization_config"] = table;
        out
    }

    pub fn n_bytes(&self) -> u64 {
        self.files.iter().flat_map(|(_, tensors)| tensors).map(Tensor::n_bytes).sum()
    }

    pub fn matrices(&self) -> impl Iterator<Item = (&str, usize)> {
        self.matrices.iter().map(|(path, n)| (path.as_str(), *n))
    }

    /// A number of `config.json`.
    pub fn n(&self, key: &str) -> usize {
        self.config[key].as_u64().unwrap_or_else(|| panic!("config.json has a number {key}"))
            as usize
    }

    fn trunk_and_head(&mut self) {
        let (h, vocab) = (self.n("hidden_size"), self.n("vocab_size"));
        let head_bits = if self.family == Family::HyV3 { 8 } else { BITS };
        self.file("model-00001-of-00003.safetensors");
        // Not divided by the root of a width: a row is looked up, not summed over.
        self.matrix("model.embed_tokens", &[vocab, h], BITS, (h as f64).sqrt());
        self.layer("model.layers.0", 0, BITS);
        self.file("model-00002-of-00003.safetensors");
        self.layer("model.layers.1", 1, BITS);
        self.file("model-00003-of-00003.safetensors");
        self.norm("model.norm", h);
        self.matrix("lm_head", &[vocab, h], BITS, 1.0);
        self.file("model-mtp.safetensors");
        match self.family {
            Family::Step3p5 => {
                for level in 0..self.n("num_nextn_predict_layers") {
                    let at = format!("mtp.layers.{level}");
                    self.head_input(&at, h);
                    self.layer(&at, 2 + level, head_bits);
                    self.norm(&format!("{at}.shared_head.norm"), h);
                    self.matrix(&format!("{at}.shared_head.output"), &[vocab, h], BITS, 1.0);
                }
            }
            Family::HyV3 => {
                self.head_input("mtp", h);
                self.layer("mtp.layer", 2, head_bits);
                self.norm("mtp.final_layernorm", h);
            }
        }
    }

    fn head_input(&mut self, at: &str, h: usize) {
        self.norm(&format!("{at}.enorm"), h);
        self.norm(&format!("{at}.hnorm"), h);
        let path = format!("{at}.eh_proj");
        self.quantization.insert(path.clone(), json!(false));
        self.matrices.push((path.clone(), 2 * h * h));
        self.push(&path, "weight", "BF16", &[h, 2 * h], Fill::EmbedAndHidden);
    }

    fn layer(&mut self, at: &str, layer: usize, bits: usize) {
        let h = self.n("hidden_size");
        self.norm(&format!("{at}.input_layernorm"), h);
        self.norm(&format!("{at}.post_attention_layernorm"), h);
        let c = &self.config;
        let number =
            |v: &Value| v.as_u64().expect("a number in the settings of attention") as usize;
        let (heads, groups, dim) = match self.family {
            Family::Step3p5 if c["layer_types"][layer] == "sliding_attention" => {
                let other = &c["attention_other_setting"];
                (&other["num_attention_heads"], &other["num_attention_groups"], &other["head_dim"])
            }
            Family::Step3p5 => {
                (&c["num_attention_heads"], &c["num_attention_groups"], &c["head_dim"])
            }
            Family::HyV3 => (&c["num_attention_heads"], &c["num_key_value_heads"], &c["head_dim"]),
        };
        let (heads, groups, dim) = (number(heads), number(groups), number(dim));
        let a = format!("{at}.self_attn");
        self.matrix(&format!("{a}.q_proj"), &[heads * dim, h], bits, 1.0);
        self.matrix(&format!("{a}.k_proj"), &[groups * dim, h], bits, 1.0);
        self.matrix(&format!("{a}.v_proj"), &[groups * dim, h], bits, 1.0);
        self.matrix(&format!("{a}.o_proj"), &[h, heads * dim], bits, QUIET);
        self.norm(&format!("{a}.q_norm"), dim);
        self.norm(&format!("{a}.k_norm"), dim);
        let m = format!("{at}.mlp");
        match self.family {
            Family::Step3p5 => {
                self.matrix(&format!("{a}.g_proj"), &[heads, h], bits, 1.0);
                if layer == 1 {
                    let (n, width) = (self.n("moe_num_experts"), self.n("moe_intermediate_size"));
                    self.router(&format!("{m}.gate.gate"), &format!("{m}.gate.router_bias"), n);
                    self.mlp(&format!("{m}.switch_mlp"), &[n], width, BITS);
                    self.mlp(&format!("{m}.share_expert"), &[], self.n("share_expert_dim"), bits);
                } else {
                    self.mlp(&m, &[], self.n("intermediate_size"), bits);
                }
            }
            Family::HyV3 if layer == 0 => self.mlp(&m, &[], self.n("intermediate_size"), bits),
            Family::HyV3 => {
                let (n, width) = (self.n("num_experts"), self.n("moe_intermediate_size"));
                self.router(&format!("{m}.router.gate"), &format!("{m}.router.expert_bias"), n);
                self.mlp(&format!("{m}.switch_mlp"), &[n], width, BITS);
                let shared = self.n("num_shared_experts") * width;
                self.mlp(&format!("{m}.shared_mlp"), &[], shared, bits);
            }
        }
    }

    fn router(&mut self, gate: &str, bias: &str, n: usize) {
        self.matrix(gate, &[n, self.n("hidden_size")], 8, 1.0);
        let (at, name) = bias.rsplit_once('.').expect("a path");
        self.push(at, name, "F32", &[n], Fill::SelectionBias);
    }

    fn mlp(&mut self, at: &str, lead: &[usize], width: usize, bits: usize) {
        let h = self.n("hidden_size");
        for name in ["gate_proj", "up_proj"] {
            self.matrix(&format!("{at}.{name}"), &[lead, &[width, h]].concat(), bits, 1.0);
        }
        self.matrix(&format!("{at}.down_proj"), &[lead, &[h, width]].concat(), bits, QUIET);
    }

    fn file(&mut self, name: &str) {
        self.files.push((name.to_owned(), Vec::new()));
    }

    fn norm(&mut self, path: &str, n: usize) {
        self.push(path, "weight", "BF16", &[n], Fill::Norm);
    }

    /// A quantised module [.., n, k] whose outputs have `gain` times the size of its inputs.
    fn matrix(&mut self, path: &str, shape: &[usize], bits: usize, gain: f64) {
        let (k, lead) = shape.split_last().expect("a matrix has columns");
        let with = |last: usize| [lead, &[last]].concat();
        if bits != BITS {
            self.quantization.insert(path.to_owned(), json!({"group_size": GROUP, "bits": bits}));
        }
        self.matrices.push((path.to_owned(), shape.iter().product()));
        // Codes are uniform: their deviation in steps.
        let spread = ((4f64.powi(bits as i32) - 1.0) / 12.0).sqrt();
        let step = gain / (*k as f64).sqrt() / spread;
        self.push(path, "weight", "U32", &with(k * bits / 32), Fill::Codes);
        self.push(path, "scales", "BF16", &with(k / GROUP), Fill::Scales { step });
        self.push(path, "biases", "BF16", &with(k / GROUP), Fill::Biases { step, bits });
    }

    fn push(&mut self, path: &str, name: &str, dtype: &'static str, shape: &[usize], fill: Fill) {
        // The levels' own output matrices are stored apart and are equal, so that they and the trunk can agree.
        let path_of_seed = if path.ends_with("shared_head.output") { "lm_head" } else { path };
        let seed = path_of_seed.bytes().fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        });
        let name = format!("{path}.{name}");
        let (_, tensors) = self.files.last_mut().expect("a file was begun");
        tensors.push(Tensor { name, dtype, shape: shape.to_vec(), fill, seed });
    }
}
