//! MLX affine packing against mlx's own numbers (`tests/golden/mlx-quant/README.md`).

mod support;

use candle_core::{Device, Tensor};
use foretoken_engine::weights::{Checkpoint, Weights};
use foretoken_kernels::{Weight, linear};
use std::collections::HashMap;
use support::{Golden, distance, flat, golden, json};

/// A checkpoint whose one module is a golden case, so that shapes, names and the table are read as in a real one.
fn checkpoint_of(case: &str, said: serde_json::Value, dir: &std::path::Path) {
    let all = candle_core::safetensors::load(
        golden("mlx-quant").join("golden.safetensors"),
        &Device::Cpu,
    )
    .expect("golden values");
    let part = |name: &str| all[&format!("{case}.{name}")].clone();
    let tensors = HashMap::from([
        ("m.weight", part("packed")),
        ("m.scales", part("scales")),
        ("m.biases", part("biases")),
    ]);
    candle_core::safetensors::save(&tensors, dir.join("model.safetensors")).expect("writes");
    std::fs::write(dir.join("config.json"), said.to_string()).expect("writes");
}

#[test]
fn dequantised_bit_for_bit_and_products_within_tolerance() {
    let want = Golden::open("mlx-quant");
    let table = json(&golden("mlx-quant").join("golden.json"));
    let (rows, cols) = (8, 256);
    let x = Tensor::from_vec(want.floats("x"), (1, cols), &Device::Cpu).expect("the shape fits");
    let mut seen = 0;
    for (case, about) in table["cases"].as_object().expect("cases") {
        if about["mode"] != "affine" {
            continue;
        }
        let number = |key: &str| about[key].as_u64().expect("a number");
        let dir = tempfile::tempdir().expect("a temporary folder");
        let said = serde_json::json!({"quantization": {"group_size": 64, "bits": 4,
            "m": {"group_size": number("group_size"), "bits": number("bits")}}});
        checkpoint_of(case, said, dir.path());
        let checkpoint = Checkpoint::open(dir.path()).expect("opens");
        let weight = Weights::root(&checkpoint).matrix("m", rows, cols).expect("a matrix");
        assert!(matches!(weight, Weight::Affine(_)));
        let mut row = vec![0f32; cols];
        let deq = want.floats(&format!("{case}.deq_f32"));
        for r in 0..rows {
            weight.row(r, &mut row);
            let got: Vec<u32> = row.iter().map(|v| v.to_bits()).collect();
            let want: Vec<u32> =
                deq[r * cols..(r + 1) * cols].iter().map(|v| v.to_bits()).collect();
            assert_eq!(got, want, "{case} row {r}");
        }
        let off = distance(
            &flat(&linear(&x, &weight).expect("a product")),
            &want.floats(&format!("{case}.matvec_f32")),
        );
        assert!(off <= 5e-6, "{case}: the product is off by {off}");
        seen += 1;
    }
    assert_eq!(seen, 21, "every affine case");
}

#[test]
fn a_table_that_contradicts_the_shapes_is_refused() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    checkpoint_of(
        "affine.b4.g64",
        serde_json::json!({"quantization": {"group_size": 64, "bits": 4, "m": {"group_size": 32, "bits": 4}}}),
        dir.path(),
    );
    let checkpoint = Checkpoint::open(dir.path()).expect("opens");
    let e = Weights::root(&checkpoint).matrix("m", 8, 256).expect_err("a contradiction");
    assert!(e.to_string().contains("m.weight"), "{e}");
    assert!(
        Weights::root(&checkpoint).matrix("m", 8, 128).is_err(),
        "another width than the model's"
    );
    assert!(Weights::root(&checkpoint).matrix("other", 8, 256).is_err());
}
