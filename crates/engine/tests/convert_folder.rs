//! `convert` of a safetensors folder against twins that MLX itself packed from the same weights.

mod support;

use foretoken_engine::EngineError;
use foretoken_engine::convert::{Keep, QuantisePlan, Written, convert_folder};
use foretoken_engine::models::{HeadStatus, LoadOptions, load};
use foretoken_engine::weights::Checkpoint;
use std::collections::BTreeSet;
use std::path::Path;
use support::{golden, json};

fn wanted(bits: usize, head_bits: usize, keep: &[(&str, Keep)]) -> QuantisePlan {
    let keep = keep.iter().map(|(pattern, keep)| ((*pattern).to_owned(), *keep)).collect();
    QuantisePlan { bits: Some(bits), head_bits: Some(head_bits), group: 64, keep }
}

fn convert(source: &str, head: Option<&str>, plan: &QuantisePlan) -> (tempfile::TempDir, Written) {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let head = head.map(golden);
    let written = convert_folder(&golden(source), dir.path(), head.as_deref(), plan, |_, _| {});
    (dir, written.expect("converts"))
}

/// Names, types, shapes and bytes of every tensor are the twin's.
fn expect_twin(got: &Path, twin: &str) {
    let (got, twin) =
        (Checkpoint::open(got).expect("opens"), Checkpoint::open(&golden(twin)).expect("opens"));
    let names = |c: &Checkpoint| c.names().map(str::to_owned).collect::<BTreeSet<_>>();
    assert_eq!(names(&got), names(&twin));
    for name in twin.names() {
        let (got, twin) = (got.get(name).expect("there"), twin.get(name).expect("there"));
        assert_eq!((got.dtype, &got.shape), (twin.dtype, &twin.shape), "{name}");
        assert!(got.data.as_slice() == twin.data.as_slice(), "{name} has other bytes");
    }
    let table = |c: &Checkpoint| {
        c.names()
            .filter_map(|n| {
                n.strip_suffix(".scales").map(|m| {
                    (m.to_owned(), c.quant.for_module(m).unwrap_or(c.quant.default_packing()))
                })
            })
            .collect::<Vec<_>>()
    };
    assert_eq!(table(&got), table(&twin));
}

#[test]
fn step_comes_out_as_mlx_packs_it() {
    let (dir, written) = convert("step3p5-tiny", None, &wanted(4, 4, &[]));
    expect_twin(dir.path(), "step3p5-tiny-mlx-4bit");
    assert!(written.head);
    let index = json(&dir.path().join("model.safetensors.index.json"));
    let map = index["weight_map"].as_object().expect("a map");
    assert!(map.values().all(|file| file == "model.safetensors"), "MLX loaders refuse a head");
    assert!(!map.keys().any(|name| name.starts_with("mtp.")));
}

#[test]
fn hy3_comes_out_as_mlx_packs_it() {
    let keep = [
        ("switch_mlp.down_proj", Keep::Bits(3)),
        ("switch_mlp", Keep::Bits(2)),
        ("embed_tokens", Keep::Bf16),
        ("eh_proj", Keep::Bits(8)),
    ];
    let (dir, _) = convert("hy_v3-tiny", None, &wanted(8, 8, &keep));
    expect_twin(dir.path(), "hy_v3-tiny-mlx-w2q3");
}

/// The defaults: 4-bit trunk, 8-bit head, a router that stays at 8, an `eh_proj` that stays bf16.
#[test]
fn widths_by_part() {
    let (dir, written) = convert("step3p5-tiny", None, &wanted(4, 8, &[]));
    let model = load(dir.path(), LoadOptions::default()).expect("loads");
    let storage = |modules: &[foretoken_engine::models::ModuleUse], kind: &str| {
        let of = modules.iter().filter(|m| m.kind == kind).map(|m| m.storage.clone());
        of.collect::<Vec<_>>()
    };
    for (kind, want) in
        [("experts", "4-bit g64"), ("attention", "4-bit g64"), ("router", "8-bit g64")]
    {
        assert_eq!(storage(&model.trunk_modules, kind), [want], "{kind}");
    }
    for (kind, want) in [("attention", "8-bit g64"), ("eh_proj", "bf16"), ("lm_head", "8-bit g64")]
    {
        assert_eq!(storage(&model.head_modules, kind), [want], "head {kind}");
    }
    assert!(model.leftovers.is_empty());
    assert_eq!(
        written.notes,
        [
            "3 matrices stay unquantised: mtp.layers.0.eh_proj, mtp.layers.1.eh_proj, mtp.layers.2.eh_proj."
        ]
    );
    let on_disk: u64 = std::fs::read_dir(dir.path())
        .expect("lists")
        .map(|f| f.expect("a file"))
        .filter(|f| f.path().extension().is_some_and(|e| e == "safetensors"))
        .map(|f| f.metadata().expect("its size").len())
        .sum();
    assert!(on_disk >= written.bytes && on_disk < written.bytes + 64_000, "headers are the rest");
}

/// A headless trunk with the head of another folder, each from its own layout.
#[test]
fn a_head_from_another_folder_comes_along() {
    let (dir, _) = convert("hy_v3-tiny-reap", Some("hy_v3-tiny-head"), &wanted(8, 8, &[]));
    let model = load(dir.path(), LoadOptions::default()).expect("loads");
    assert_eq!(model.head_status, HeadStatus::Found { place: "mtp.safetensors".to_owned() });
    let (alone, written) = convert("hy_v3-tiny-head", None, &wanted(8, 8, &[]));
    assert!(written.notes.iter().any(|note| note.contains("head alone")));
    let grafted = load(
        &golden("hy_v3-tiny-headless"),
        LoadOptions { head: Some(alone.path()), ..Default::default() },
    );
    assert!(grafted.expect("loads").head.is_some());
}

/// What is quantised already is repacked under the new names, byte for byte.
#[test]
fn codes_are_never_made_twice() {
    let (dir, written) = convert("step3p5-tiny-mlx-4bit", None, &wanted(8, 8, &[]));
    expect_twin(dir.path(), "step3p5-tiny-mlx-4bit");
    assert!(
        written.notes.iter().any(|note| note.contains("quantised already")),
        "{:?}",
        written.notes
    );
}

#[test]
fn without_bits_only_the_layout_changes() {
    let plan = QuantisePlan { bits: None, head_bits: None, group: 64, keep: Vec::new() };
    let (dir, written) = convert("hy_v3-tiny", None, &plan);
    assert_eq!(written.by_storage.keys().collect::<Vec<_>>(), ["bf16", "f32"]);
    let ids: Vec<u32> = (5..25).collect();
    let logits = |folder: &Path| {
        let model = load(folder, LoadOptions::default()).expect("loads");
        let mut cache = model.trunk.new_cache();
        let hidden = model.trunk.forward(&ids, &mut cache).and_then(|h| model.trunk.norm(&h));
        support::flat(&model.trunk.logits(&hidden.expect("runs")).expect("runs"))
    };
    assert!(logits(dir.path()) == logits(&golden("hy_v3-tiny")), "other logits");
}

#[test]
fn wishes_that_cannot_be_met_are_named_and_nothing_is_written() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let target = dir.path().join("out");
    let refuse = |source: &str, head: Option<&str>, plan: &QuantisePlan| {
        let head = head.map(golden);
        let error = convert_folder(&golden(source), &target, head.as_deref(), plan, |_, _| {});
        assert!(!target.exists(), "nothing is written");
        error.expect_err("refused")
    };
    let error = refuse("step3p5-tiny", None, &wanted(7, 8, &[]));
    assert!(
        matches!(error, EngineError::InvalidOption { ref value, .. } if value == "7"),
        "{error}"
    );
    let error = refuse("step3p5-tiny", None, &wanted(4, 8, &[("no_such", Keep::Bf16)]));
    assert!(
        matches!(error, EngineError::InvalidOption { ref value, .. } if value.contains("no_such")),
        "{error}"
    );
    let error = refuse("step3p5-tiny", Some("hy_v3-tiny-head"), &wanted(4, 8, &[]));
    assert!(!matches!(error, EngineError::Io { .. }), "{error}");
    let error = refuse("hy_v3-tiny", None, &QuantisePlan { group: 48, ..wanted(4, 8, &[]) });
    assert!(matches!(error, EngineError::InvalidOption { name: "group", .. }), "{error}");
}
