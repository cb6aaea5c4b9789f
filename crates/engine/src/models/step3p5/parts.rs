//! The model by its parts, see `nn::parts`.

use super::{Block, Level, StepHead, StepTrunk};
use crate::models::Wiring;
use crate::nn::{BlockParts, LevelParts, TrunkParts};

impl Block {
    fn described(&self) -> BlockParts<'_> {
        BlockParts {
            input_norm: &self.input_layernorm,
            attention: &self.self_attn,
            feed_norm: &self.post_attention_layernorm,
            feed: (&self.ffn).into(),
        }
    }
}

impl StepTrunk {
    pub(super) fn described(&self) -> TrunkParts<'_> {
        TrunkParts {
            embed_tokens: &self.embed_tokens,
            blocks: self.layers.iter().map(Block::described).collect(),
            norm: &self.norm,
            lm_head: &self.lm_head,
        }
    }
}

impl StepHead {
    pub(super) fn described<'a>(&'a self, level: &'a Level) -> LevelParts<'a> {
        LevelParts {
            embed_tokens: &self.embed_tokens,
            enorm: &level.enorm,
            hnorm: &level.hnorm,
            eh_proj: &level.eh_proj,
            hidden_first: self.wiring == Wiring::FlippedConcat,
            block: level.layer.described(),
            hand_on: None,
            logits_norm: Some(&level.shared_head_norm),
            lm_head: &level.shared_head_output,
            draft_lm_head: None,
        }
    }
}
