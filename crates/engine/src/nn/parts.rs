//! What models are made of, by reference: for whoever runs their passes somewhere else than [`super`]'s `forward`s.

use super::{Attention, Embedding, Ffn, Linear, Mlp, Moe, Norm};

#[derive(Clone, Copy)]
pub enum FeedParts<'a> {
    Dense(&'a Mlp),
    Moe(&'a Moe),
}

impl<'a> From<&'a Ffn> for FeedParts<'a> {
    fn from(ffn: &'a Ffn) -> Self {
        match ffn {
            Ffn::Dense(mlp) => Self::Dense(mlp),
            Ffn::Moe(moe) => Self::Moe(moe),
        }
    }
}

/// x += attention(input_norm(x)); x += feed(feed_norm(x)).
#[derive(Clone, Copy)]
pub struct BlockParts<'a> {
    pub input_norm: &'a Norm,
    pub attention: &'a Attention,
    pub feed_norm: &'a Norm,
    pub feed: FeedParts<'a>,
}

/// lm_head(norm(blocks(embed(tokens)))).
pub struct TrunkParts<'a> {
    pub embed_tokens: &'a Embedding,
    pub blocks: Vec<BlockParts<'a>>,
    pub norm: &'a Norm,
    pub lm_head: &'a Linear,
}

/// One level of a head: g = hand_on(block(eh_proj [ enorm(embed(token)) ; hnorm(hidden) ])), logits = lm_head(logits_norm(g)).
pub struct LevelParts<'a> {
    pub embed_tokens: &'a Embedding,
    pub enorm: &'a Norm,
    pub hnorm: &'a Norm,
    pub eh_proj: &'a Linear,
    /// The other order of the two halves.
    pub hidden_first: bool,
    pub block: BlockParts<'a>,
    pub hand_on: Option<&'a Norm>,
    pub logits_norm: Option<&'a Norm>,
    pub lm_head: &'a Linear,
    /// Of a reduced vocabulary.
    pub draft_lm_head: Option<&'a Linear>,
}
