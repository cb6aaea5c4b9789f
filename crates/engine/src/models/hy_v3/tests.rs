//! Inside the trunk, against the fixtures: the first layer that differs is named.

use super::*;
use crate::weights::Shard;
use std::path::Path;

#[test]
fn layer_by_layer() {
    for name in ["hy_v3-tiny", "hy_v3-tiny-mlx-w2q3", "hy_v3-tiny-reap"] {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden").join(name);
        let checkpoint = Checkpoint::open(&folder).expect("opens");
        let c = Config::read(&checkpoint).expect("a configuration");
        let w = Weights::root(&checkpoint).renamed(NAMES, None).expect("names");
        let trunk = load_trunk(&w, &c).expect("loads");
        let golden = Shard::open(&folder.join("golden.safetensors")).expect("golden values");
        let input = golden.integers("s0.input_ids").expect("ids");
        let (want, shape) = golden.floats("s0.layer_hidden").expect("hidden states");
        let mut want = want.chunks(shape[1] * shape[2]);
        let mut check = |what: &str, x: &Tensor| {
            let got: Vec<f32> = x.flatten_all().and_then(|x| x.to_vec1()).expect("f32");
            let want = want.next().expect("a layer");
            let top = want.iter().fold(0f32, |top, v| v.abs().max(top));
            let off = got.iter().zip(want).map(|(a, b)| (a - b).abs()).fold(0f32, f32::max);
            assert!(off < 1e-4 * top, "{name} {what} is off by {off} of {top}");
        };
        let mut x = trunk.embed_tokens.forward(&input).expect("embeds");
        check("embedding", &x);
        for (l, block) in trunk.layers.iter().enumerate() {
            if let Ffn::Moe(moe) = &block.ffn {
                let u = block.input_layernorm.forward(&x).expect("norm");
                let a = block.self_attn.forward(&u, &mut layer_cache(block.self_attn.spec));
                let u = (&x + a.expect("attends")).expect("adds");
                let u = block.post_attention_layernorm.forward(&u).expect("norm");
                let (chosen, _) = moe.router.choose(&u).expect("chooses");
                let recorded = golden.integers(&format!("s0.experts.layer{l}"));
                assert_eq!(Some(chosen), recorded, "{name} layer {l}");
            }
            x = block.forward(&x, &mut layer_cache(block.self_attn.spec)).expect("a layer");
            check(&format!("layer {l}"), &x);
        }
    }
}
