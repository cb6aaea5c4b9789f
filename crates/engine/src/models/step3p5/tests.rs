//! Inside the trunk, against the fixture: the first layer that differs is named.

use super::*;
use crate::weights::Shard;
use std::path::Path;

fn floats(t: &Tensor) -> Vec<f32> {
    t.flatten_all().and_then(|t| t.to_vec1()).expect("f32")
}

fn close(what: &str, got: &[f32], want: &[f32]) {
    assert_eq!(got.len(), want.len(), "{what}");
    let sum = |v: &mut dyn Iterator<Item = f32>| v.map(|v| f64::from(v).powi(2)).sum::<f64>();
    let off = sum(&mut got.iter().zip(want).map(|(a, b)| a - b));
    let off = (off / sum(&mut want.iter().copied())).sqrt();
    assert!(off < 1e-4, "{what} is off by {off}");
}

#[test]
fn layer_by_layer() {
    for name in ["step3p5-tiny", "step3p5-tiny-mlx-4bit"] {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden").join(name);
        let checkpoint = Checkpoint::open(&folder).expect("opens");
        let c = Config::read(&checkpoint).expect("a configuration");
        let w = Weights::root(&checkpoint).renamed(NAMES, Some(NORMS)).expect("names");
        let trunk = load_trunk(&w, &c, &mut Ropes::default()).expect("loads");
        let golden = Shard::open(&folder.join("golden.safetensors")).expect("golden values");
        let want = |name: &str| golden.floats(name).unwrap_or_else(|| panic!("no {name}")).0;
        for (kind, layer) in [("full", 0), ("sliding", 1)] {
            let freq = c.layer(layer).expect("a layer").rope.inv_freq();
            let freq: Vec<f32> = freq.into_iter().map(|f| f as f32).collect();
            close(kind, &freq, &want(&format!("rope.{kind}.inv_freq")));
        }
        for s in 0..2 {
            let input = golden.integers(&format!("s{s}.ids")).expect("ids");
            let mut x = trunk.embed_tokens.forward(&input).expect("embeds");
            close("embed", &floats(&x), &want(&format!("s{s}.embed")));
            for (l, block) in trunk.layers.iter().enumerate() {
                let at = |what: &str| format!("s{s}.layer{l}.{what}");
                let u = block.input_layernorm.forward(&x).expect("norm");
                let a = block.self_attn.forward(&u, &mut layer_cache(block.self_attn.spec));
                let a = a.expect("attends");
                close(&at("attn"), &floats(&a), &want(&at("attn")));
                if let Ffn::Moe(moe) = &block.ffn {
                    let u = (&x + a).expect("adds");
                    let u = block.post_attention_layernorm.forward(&u).expect("norm");
                    let (chosen, weights) = moe.router.choose(&u).expect("chooses");
                    assert_eq!(Some(chosen), golden.integers(&at("router_idx")), "{}", at(""));
                    close(&at("router_w"), &weights, &want(&at("router_w")));
                }
                x = block.forward(&x, &mut layer_cache(block.self_attn.spec)).expect("a layer");
                close(&at("out"), &floats(&x), &want(&at("out")));
            }
        }
    }
}
