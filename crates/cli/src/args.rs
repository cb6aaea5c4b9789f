use clap::{Args as ClapArgs, Parser, Subcommand, ValueEnum};
use foretoken_app::Activations;
use foretoken_app::checkpoints::{Keep, QuantisePlan};
use foretoken_protocol::{DraftMode, DraftRule, GenerationOptions, Sampling};
use std::path::PathBuf;

/// Chat with language models that draft their own tokens.
#[derive(Parser)]
#[command(name = "foretoken", version)]
pub struct Args {
    #[command(subcommand)]
    pub command: Command,
}

/// Of the commands that load a model.
const HEAD: &str = "Folder or `owner/name` whose MTP head is put on the model, in place of its own and of the one the library \
has for it";

#[derive(Subcommand)]
pub enum Command {
    /// Answer a prompt, or chat line by line when none is given.
    Chat(ChatArgs),
    /// Write logits and hidden states of a text as safetensors.
    Logits {
        model: String,
        #[arg(long, value_name = "MODEL", help = HEAD)]
        head: Option<String>,
        /// JSON list of token ids.
        #[arg(long)]
        ids: PathBuf,
        #[arg(long)]
        out: PathBuf,
        /// Activations as int8, as a chat has them, in place of f32.
        #[arg(long)]
        int8: bool,
        #[arg(long)]
        json: bool,
    },
    /// Say what a model is: family, quantisation, head, memory.
    Inspect {
        /// `starter`, a folder, `owner/name` on this disk, or `hf:owner/name` on the hub, of which nothing is downloaded.
        model: String,
        #[arg(long, value_name = "MODEL", help = HEAD)]
        head: Option<String>,
        /// Tokens to judge the memory at.
        #[arg(long)]
        context: Option<u32>,
        /// Say how long loading takes and how much of it stays in memory.
        #[arg(long)]
        load: bool,
        #[arg(long)]
        json: bool,
    },
    /// Write a GGUF file or a checkpoint folder as a native (MLX layout) folder, its MTP head kept.
    Convert(ConvertArgs),
    /// Measure plain decoding, each depth and prefill; medians of paired runs.
    Bench {
        model: String,
        #[arg(long, value_name = "MODEL", help = HEAD)]
        head: Option<String>,
        /// Prompts per class (code, list, prose).
        #[arg(long, default_value_t = 4)]
        prompts: usize,
        #[arg(long, default_value_t = 96)]
        max_tokens: usize,
        #[arg(long, default_value_t = 3)]
        repetitions: usize,
        #[arg(long, default_value_t = 4)]
        deepest: usize,
        /// Also measure a plain step after so many tokens, beside one after 512.
        #[arg(long, value_name = "TOKENS")]
        long: Option<usize>,
        /// Activations as f32 in place of int8.
        #[arg(long)]
        exact: bool,
        #[arg(long)]
        json: bool,
    },
    /// Compare the greedy text at every depth with plain decoding.
    Exact {
        model: String,
        #[arg(long, value_name = "MODEL", help = HEAD)]
        head: Option<String>,
        /// Only the first N held-out prompts.
        #[arg(long)]
        prompts: Option<usize>,
        #[arg(long, default_value_t = 128)]
        max_tokens: usize,
        /// Activations as int8, as a chat has them, in place of f32.
        #[arg(long)]
        int8: bool,
        #[arg(long)]
        json: bool,
    },
    /// List the models on this machine, and downloads that have not ended.
    List {
        #[arg(long)]
        json: bool,
    },
    /// Download a model, and its MTP head from where that is.
    Pull(PullArgs),
    /// Compare a model's files with the hub's.
    Check {
        model: String,
        #[arg(long)]
        json: bool,
    },
    /// Delete a downloaded model, or take a folder off the list.
    Rm {
        model: String,
        /// Without a question.
        #[arg(long)]
        yes: bool,
        #[arg(long)]
        json: bool,
    },
}

#[derive(ClapArgs)]
pub struct PullArgs {
    /// `owner/name`, `owner/name@revision` or the address of its page; with --head-only also a model on this disk.
    pub repository: String,
    /// Only the MTP head, by the ranges of its tensors, put on the model that lacks it.
    #[arg(long)]
    pub head_only: bool,
    /// Branch, tag or commit.
    #[arg(long)]
    pub revision: Option<String>,
    /// Folder or `owner/name` of the model that gets the head.
    #[arg(long = "for", value_name = "MODEL", requires = "head_only")]
    pub model: Option<String>,
    #[arg(long)]
    pub json: bool,
}

#[derive(ClapArgs)]
pub struct ChatArgs {
    /// `starter`, a folder, or `owner/name` from the hub cache.
    pub model: String,
    #[arg(long, value_name = "MODEL", help = HEAD)]
    pub head: Option<String>,
    #[arg(long, conflicts_with_all = ["messages", "raw_ids"])]
    pub prompt: Option<String>,
    /// JSON list of {"role", "content"}.
    #[arg(long, conflicts_with = "raw_ids")]
    pub messages: Option<PathBuf>,
    /// JSON list of token ids, used as they are.
    #[arg(long)]
    pub raw_ids: Option<PathBuf>,
    /// Instructions before the conversation.
    #[arg(long)]
    pub system: Option<String>,
    /// off, auto or 1 to 8.
    #[arg(long, default_value = "auto", value_parser = draft)]
    pub draft: DraftMode,
    #[arg(long, value_enum, default_value_t = RuleArg::Residual)]
    pub rule: RuleArg,
    #[arg(long, allow_negative_numbers = true)]
    pub temperature: Option<f32>,
    #[arg(long, allow_negative_numbers = true)]
    pub top_p: Option<f32>,
    /// 0 or -1 = off.
    #[arg(long, allow_negative_numbers = true)]
    pub top_k: Option<i64>,
    #[arg(long, allow_negative_numbers = true)]
    pub min_p: Option<f32>,
    #[arg(long, allow_negative_numbers = true)]
    pub repetition_penalty: Option<f32>,
    #[arg(long, allow_negative_numbers = true)]
    pub presence_penalty: Option<f32>,
    #[arg(long, allow_negative_numbers = true)]
    pub frequency_penalty: Option<f32>,
    /// Repeats a text, at a fixed depth: auto follows the clock.
    #[arg(long)]
    pub seed: Option<u64>,
    #[arg(long)]
    pub max_tokens: Option<u32>,
    /// Activations as f32 in place of int8: the numbers other implementations have, slower.
    #[arg(long)]
    pub exact: bool,
    /// Load the model although it does not seem to fit.
    #[arg(long)]
    pub anyway: bool,
    #[arg(long)]
    pub json: bool,
}

#[derive(ClapArgs)]
pub struct ConvertArgs {
    /// A .gguf file (repacked without loss), or a checkpoint folder.
    pub source: PathBuf,
    /// A new or empty folder.
    pub target: PathBuf,
    /// Folder of an MTP head to put beside the trunk.
    #[arg(long)]
    pub head: Option<PathBuf>,
    /// Quantise the trunk to 2, 3, 4, 5, 6 or 8 bits; without it only the layout changes.
    #[arg(long)]
    pub bits: Option<usize>,
    /// Quantise the head to as many bits; 8 unless said otherwise, eh_proj stays 16-bit.
    #[arg(long)]
    pub head_bits: Option<usize>,
    /// Weights that share a scale: 32, 64 or 128.
    #[arg(long, default_value_t = 64)]
    pub group: usize,
    /// What is stored otherwise: a part of a module's path and bits or bf16, e.g. embed_tokens=8. The first that fits counts.
    #[arg(long, value_name = "PATTERN=BITS|bf16", value_parser = keep)]
    pub keep: Vec<(String, Keep)>,
    #[arg(long)]
    pub json: bool,
}

impl ConvertArgs {
    /// Bits of a head when only the trunk's are given.
    const HEAD_BITS: usize = 8;

    /// `None` = nothing was asked of the storage.
    pub fn plan(&self) -> Option<QuantisePlan> {
        let asked = self.bits.is_some() || self.head_bits.is_some() || !self.keep.is_empty();
        asked.then(|| QuantisePlan {
            bits: self.bits,
            head_bits: self.head_bits.or(self.bits.map(|_| Self::HEAD_BITS)),
            group: self.group,
            keep: self.keep.clone(),
        })
    }
}

#[derive(Debug, Clone, Copy)]
pub struct NotAKeep;

impl std::fmt::Display for NotAKeep {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("it must be a part of a module's path, =, and 2, 3, 4, 5, 6, 8 or bf16")
    }
}

impl std::error::Error for NotAKeep {}

fn keep(text: &str) -> Result<(String, Keep), NotAKeep> {
    let (pattern, storage) = text.split_once('=').filter(|(p, _)| !p.is_empty()).ok_or(NotAKeep)?;
    let storage = match storage {
        "bf16" => Keep::Bf16,
        bits => Keep::Bits(bits.parse().map_err(|_| NotAKeep)?),
    };
    Ok((pattern.to_owned(), storage))
}

#[derive(Clone, Copy, ValueEnum)]
pub enum RuleArg {
    Residual,
    Match,
}

#[derive(Debug, Clone, Copy)]
pub struct NotADepth;

impl std::fmt::Display for NotADepth {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("it must be off, auto or a depth of 0 to 8")
    }
}

impl std::error::Error for NotADepth {}

fn draft(text: &str) -> Result<DraftMode, NotADepth> {
    match text {
        "off" | "0" => Ok(DraftMode::Off),
        "auto" => Ok(DraftMode::Auto),
        n => match n.parse() {
            Ok(depth @ 1..=8) => Ok(DraftMode::Fixed { depth }),
            _ => Err(NotADepth),
        },
    }
}

/// int8 or f32.
pub fn activations(int8: bool) -> Activations {
    if int8 { Activations::Int8 } else { Activations::Exact }
}

impl ChatArgs {
    pub fn activations(&self) -> Activations {
        activations(!self.exact)
    }

    pub fn options(&self) -> GenerationOptions {
        GenerationOptions {
            draft: self.draft,
            rule: match self.rule {
                RuleArg::Residual => DraftRule::Residual,
                RuleArg::Match => DraftRule::Match,
            },
            sampling: Sampling {
                temperature: self.temperature,
                top_p: self.top_p,
                top_k: self.top_k.map(|k| k.clamp(0, i64::from(u32::MAX)) as u32),
                min_p: self.min_p,
                repetition_penalty: self.repetition_penalty,
                presence_penalty: self.presence_penalty,
                frequency_penalty: self.frequency_penalty,
                seed: self.seed,
            },
            max_tokens: self.max_tokens,
            system_prompt: self.system.clone(),
        }
    }
}
