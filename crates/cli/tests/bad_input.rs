//! What is wrong with a model or an argument is said in one line of JSON that names it and the next step.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod common;

use common::{Folder, Place, root};
use serde_json::{Value, json};
use std::path::Path;

const DOWN: &str = "model.layers.1.mlp.down_proj.weight";

fn inspect(what: &str, code: &str, words: &[&str], damage: impl FnOnce(&Folder)) {
    let place = Place::new();
    let folder = place.tiny("model");
    damage(&folder);
    place.run(&["inspect", folder.arg(), "--json"]).refused(what, code, words);
}

#[test]
fn the_folder_itself() {
    let place = Place::new();
    let gone = place.path("not/here").to_string_lossy().into_owned();
    for command in ["inspect", "chat", "bench", "exact"] {
        place.run(&[command, &gone]).refused(command, "not_found", &[&gone]);
    }
    place.run(&["inspect", "acme/none"]).refused("a name", "not_found", &["acme/none"]);
    place.run(&["inspect", ""]).refused("no name", "not_found", &[]);
    inspect("no config", "not_found", &["config.json"], |f| f.remove("config.json"));
    inspect("no weights", "not_found", &["model.safetensors"], |f| f.remove("model.safetensors"));
    let file = place.file("a_file", "x");
    place.run(&["inspect", &file]).refused("a file", "not_found", &[&file]);
}

#[test]
fn shards_that_are_not_weights() {
    let shard = "model.safetensors";
    inspect("cut off", "corrupt", &[shard], |f| {
        let raw = f.read(shard);
        f.write(shard, &raw[..raw.len() - 1000]);
    });
    inspect("cut in the header", "corrupt", &[shard], |f| {
        let raw = f.read(shard);
        f.write(shard, &raw[..100]);
    });
    for n in [0, 3, 8] {
        inspect("a few bytes", "corrupt", &[shard], |f| {
            let raw = f.read(shard);
            f.write(shard, &raw[..n]);
        });
    }
    inspect("longer than its tensors", "corrupt", &[shard], |f| {
        let mut raw = f.read(shard);
        raw.extend([0; 64]);
        f.write(shard, raw);
    });
    inspect("garbage", "corrupt", &[shard], |f| {
        f.write(shard, (0..5000u32).map(|i| ((i * i) >> 3) as u8).collect::<Vec<u8>>());
    });
    inspect("a header that is no json", "corrupt", &[shard], |f| {
        let mut raw = 16u64.to_le_bytes().to_vec();
        raw.extend([b'{'; 16]);
        f.write(shard, raw);
    });
    inspect("git-lfs", "corrupt", &[shard, "git-lfs"], |f| {
        f.write(
            shard,
            "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a2146\nsize 229176\n",
        );
    });
    for page in ["<!DOCTYPE html>\n<html><body>Not found</body></html>", "\n  <html lang=en>"] {
        inspect("a web page", "corrupt", &[shard, "web page"], |f| f.write(shard, page));
    }
}

#[test]
fn an_index_that_lies() {
    let index = "model.safetensors.index.json";
    let names = |shard: &str| json!({"weight_map": {DOWN: shard}}).to_string();
    inspect("a shard that is not there", "not_found", &["model-00002-of-00002.safetensors"], |f| {
        f.write(index, names("model-00002-of-00002.safetensors"));
    });
    for way_out in ["../model.safetensors", "/etc/passwd", "a/../../b", "..", ""] {
        inspect(way_out, "corrupt", &[index], |f| f.write(index, names(way_out)));
    }
    inspect("no map", "corrupt", &[index], |f| f.write(index, "{}"));
    inspect("not json", "corrupt", &[index], |f| f.write(index, "{"));
    inspect("numbers", "corrupt", &[index], |f| f.write(index, r#"{"weight_map": {"a": 1}}"#));
}

#[test]
fn tensors_that_are_missing_or_of_the_wrong_shape() {
    inspect("missing", "missing_tensor", &[DOWN], |f| {
        f.tensors(|tensors| tensors.retain(|(name, ..)| name != DOWN));
    });
    inspect("missing norm", "missing_tensor", &["model.norm.weight"], |f| {
        f.tensors(|tensors| tensors.retain(|(name, ..)| name != "model.norm.weight"));
    });
    inspect("turned", "shape_mismatch", &[DOWN, "[64, 96]", "[96, 64]"], |f| {
        f.tensors(|tensors| {
            let down = tensors.iter_mut().find(|(name, ..)| name == DOWN).unwrap();
            down.1["shape"] = json!([96, 64]);
        });
    });
    inspect("flat", "shape_mismatch", &[DOWN, "[6144]"], |f| {
        f.tensors(|tensors| {
            let down = tensors.iter_mut().find(|(name, ..)| name == DOWN).unwrap();
            down.1["shape"] = json!([6144]);
        });
    });
    inspect("another type", "unsupported", &[DOWN, "I16"], |f| {
        f.tensors(|tensors| {
            let down = tensors.iter_mut().find(|(name, ..)| name == DOWN).unwrap();
            down.1["dtype"] = json!("I16");
        });
    });
    inspect("a wider config", "shape_mismatch", &["mlp.gate_proj", "[128, 64]", "[96, 64]"], |f| {
        f.config(|c| c["intermediate_size"] = json!(128));
    });
}

#[test]
fn configurations_that_make_no_sense() {
    let config = "config.json";
    inspect("an unknown family", "unsupported", &["bert"], |f| {
        f.config(|c| c["model_type"] = json!("bert"));
    });
    inspect("no family", "unsupported", &["model type"], |f| f.write(config, "{}"));
    inspect("another kind of family", "unsupported", &["model type"], |f| {
        f.config(|c| c["model_type"] = json!(7));
    });
    for text in ["", "not json", "{\"model_type\": \"llama\"", "[]", "null", "\"llama\""] {
        inspect(text, "corrupt", &[config], |f| f.write(config, text));
    }
    inspect("one word only", "corrupt", &[config, "hidden_size"], |f| {
        f.write(config, r#"{"model_type": "llama"}"#);
    });
    inspect("a word for a number", "corrupt", &[config], |f| {
        f.config(|c| c["hidden_size"] = json!("many"));
    });
    inspect("another activation", "unsupported", &["hidden_act", "gelu"], |f| {
        f.config(|c| c["hidden_act"] = json!("gelu"));
    });
    inspect("another rope", "unsupported", &["rope_type", "yarn"], |f| {
        f.config(|c| c["rope_scaling"]["rope_type"] = json!("yarn"));
    });
    inspect("a foreign quantisation", "unsupported", &["awq"], |f| {
        f.config(|c| c["quantization_config"] = json!({"quant_method": "awq"}));
    });
}

#[test]
fn templates_and_tokenizers() {
    let chat = |what: &str, code: &str, words: &[&str], damage: fn(&Folder)| {
        let place = Place::new();
        let folder = place.talking("model");
        damage(&folder);
        place
            .run(&["chat", folder.arg(), "--prompt", "Hello", "--json"])
            .refused(what, code, words);
    };
    chat("does not parse", "template", &["template", "line 2"], |f| {
        f.write("chat_template.jinja", "fine\n{% if %}");
    });
    chat("none", "template", &["no chat template"], |f| f.remove("chat_template.jinja"));
    chat("not text", "template", &["template"], |f| {
        f.write("chat_template.jinja", b"\xff\xfe\x00");
    });
    chat("refuses", "template", &["be nice"], |f| {
        f.write("chat_template.jinja", "{{ raise_exception('be nice') }}");
    });
    chat("has no end", "template", &["template"], |f| {
        f.write(
            "chat_template.jinja",
            "{% for i in range(99999) %}{% for j in range(99999) %}x{% endfor %}{% endfor %}",
        );
    });
    chat("no tokenizer", "not_found", &["tokenizer.json"], |f| f.remove("tokenizer.json"));
    chat("a broken tokenizer", "corrupt", &["tokenizer"], |f| f.write("tokenizer.json", "{"));
    chat("another model's tokenizer", "invalid_option", &["320"], |_| {});
}

#[test]
fn numbers_out_of_range() {
    let place = Place::new();
    for (args, word) in [
        (["--temperature", "-0.5"], "temperature"),
        (["--temperature", "NaN"], "temperature"),
        (["--temperature", "inf"], "temperature"),
        (["--temperature", "warm"], "temperature"),
        (["--top-p", "1.5"], "top-p"),
        (["--top-p", "0"], "top-p"),
        (["--top-p", "NaN"], "top-p"),
        (["--min-p", "1"], "min-p"),
        (["--min-p", "-0.1"], "min-p"),
        (["--repetition-penalty", "0"], "repetition"),
        (["--presence-penalty", "NaN"], "presence"),
        (["--frequency-penalty", "1000"], "frequency"),
        (["--max-tokens", "0"], "longest reply"),
        (["--max-tokens", "-1"], "-1"),
        (["--draft", "9"], "9"),
        (["--draft", "-1"], "-1"),
        (["--draft", ""], "draft"),
        (["--draft", "fast"], "fast"),
        (["--rule", "luck"], "luck"),
        (["--seed", "-1"], "-1"),
        (["--seed", "x"], "seed"),
        (["--no-such-option", "1"], "--no-such-option"),
    ] {
        let run = place.run(&["chat", "starter", "--prompt", "Hello", args[0], args[1]]);
        run.refused(&args.join(" "), "invalid_option", &[word]);
        assert_eq!(run.stdout, "", "{args:?}");
    }
    for usage in [&["chat"][..], &[], &["sing"], &["chat", "starter", "--prompt"]] {
        let run = place.run(usage);
        run.refused(&usage.join(" "), "invalid_option", &["--help"]);
        assert_eq!((run.code, run.stdout.as_str()), (2, ""));
    }
}

#[test]
fn prompts_that_cannot_be_answered() {
    let place = Place::new();
    let folder = place.talking("model");
    let raw = |what: &str, ids: Value, code: &str, words: &[&str]| {
        let file = place.file("ids.json", ids.to_string());
        let run = place.run(&["chat", folder.arg(), "--raw-ids", &file, "--json"]);
        run.refused(what, code, words);
    };
    raw("outside the vocabulary", json!([1, 320, 2]), "invalid_option", &["320"]);
    raw("far outside", json!([u32::MAX]), "invalid_option", &["4294967295"]);
    raw("no ids", json!([]), "invalid_option", &[]);
    raw("longer than the context", json!(vec![5; 4097]), "context_full", &["4097", "4096"]);
    raw("as long as the context", json!(vec![5; 4096]), "context_full", &["4096"]);
    raw("no list", json!({"ids": [1]}), "invalid_option", &["ids.json"]);
    raw("one number", json!(7), "invalid_option", &["ids.json"]);
    raw("negative", json!([-1]), "invalid_option", &["ids.json"]);
    raw("half a token", json!([1.5]), "invalid_option", &["ids.json"]);
    raw("words", json!(["a"]), "invalid_option", &["ids.json"]);
    let gone = place.path("gone.json").to_string_lossy().into_owned();
    for option in ["--raw-ids", "--messages"] {
        let run = place.run(&["chat", folder.arg(), option, &gone]);
        run.refused(option, "not_found", &["gone.json"]);
        let half = place.file("half.json", "[");
        let run = place.run(&["chat", folder.arg(), option, &half]);
        run.refused(option, "invalid_option", &["half.json"]);
    }
    for prompt in ["", "  \n"] {
        let run = place.run(&["chat", "starter", "--prompt", prompt]);
        run.refused("empty prompt", "invalid_option", &["nothing to answer"]);
    }
    let none = place.file("none.json", "[]");
    let run = place.run(&["chat", "starter", "--messages", &none]);
    run.refused("no messages", "invalid_option", &["nothing to answer"]);
    let nobody = place.file("nobody.json", r#"[{"content": "Hello"}]"#);
    let run = place.run(&["chat", "starter", "--messages", &nobody]);
    run.refused("a message of nobody", "invalid_option", &["nobody.json"]);
    let long = place
        .file("long.json", json!([{"role": "user", "content": "word ".repeat(9000)}]).to_string());
    let run = place.run(&["chat", "starter", "--messages", &long, "--json"]);
    run.refused("a long conversation", "context_full", &["8192"]);
}

#[test]
fn logits_of_what_is_no_text() {
    let place = Place::new();
    let folder = place.tiny("model");
    let out = place.path("out.safetensors").to_string_lossy().into_owned();
    let run = |ids: &str, out: &str| {
        let ids = place.file("ids.json", ids);
        place.run(&["logits", folder.arg(), "--ids", &ids, "--out", out, "--json"])
    };
    run("[]", &out).refused("no ids", "invalid_option", &[]);
    run("[320]", &out).refused("outside", "invalid_option", &["320"]);
    run("{}", &out).refused("no list", "invalid_option", &["ids.json"]);
    run(&json!(vec![1; 4097]).to_string(), &out).refused("long", "context_full", &["4097"]);
    assert!(!place.path("out.safetensors").exists());
    let nowhere = place.path("no/folder/out.safetensors").to_string_lossy().into_owned();
    run("[1, 2]", &nowhere).refused("no place to write", "disk", &[&nowhere]);
}

#[test]
fn conversions_that_are_refused() {
    let place = Place::new();
    let target = place.path("target").to_string_lossy().into_owned();
    let convert = |source: &str, more: &[&str]| {
        let mut args = vec!["convert", source, target.as_str(), "--json"];
        args.extend(more);
        place.run(&args)
    };
    let gone = place.path("gone.gguf").to_string_lossy().into_owned();
    convert(&gone, &[]).refused("no source", "not_found", &["gone.gguf"]);
    convert(place.dir.path().to_str().unwrap(), &[]).refused(
        "no model",
        "not_found",
        &["config.json"],
    );
    let tiny = root().join("tests/golden/step3p5-tiny").to_string_lossy().into_owned();
    convert(&tiny, &["--bits", "7"]).refused("7 bits", "invalid_option", &["2, 3, 4, 5, 6 or 8"]);
    convert(&tiny, &["--bits", "4", "--group", "48"]).refused("groups", "invalid_option", &["32"]);
    let keep = ["--bits", "4", "--keep", "no_such=8"];
    convert(&tiny, &keep).refused("a pattern that names nothing", "invalid_option", &["no_such"]);
    for odd in ["=8", "self_attn", "self_attn=", "self_attn=eight"] {
        convert(&tiny, &["--bits", "4", "--keep", odd]).refusal(odd);
    }
    assert!(!Path::new(&target).exists(), "nothing is written");
    let mut header = b"GGUF\x03\0\0\0".to_vec();
    header.extend([0xff; 16]);
    for (name, content) in [
        ("empty.gguf", Vec::new()),
        ("text.gguf", b"not a model at all, but long enough for a header".to_vec()),
        ("magic.gguf", b"GGUF".to_vec()),
        ("boundless.gguf", header),
        ("nothing.gguf", [b"GGUF\x03\0\0\0".to_vec(), vec![0; 16]].concat()),
    ] {
        let source = place.file(name, content);
        let refusal = convert(&source, &[]).refusal(name);
        assert!(
            ["corrupt", "unsupported"].contains(&refusal.code.as_str()),
            "{name}: {}",
            refusal.code
        );
        let left = std::fs::read_dir(&target).map_or(0, Iterator::count);
        assert_eq!(left, 0, "{name}: a refused conversion leaves nothing behind");
    }
    let source = place.file("some.gguf", "x");
    convert(&source, &["--bits", "4"]).refused("bits", "unsupported", &["--bits"]);
    std::fs::create_dir_all(&target).unwrap();
    std::fs::write(place.path("target/mine.txt"), "precious").unwrap();
    convert(&source, &[]).refused("not empty", "disk", &["target"]);
    assert_eq!(std::fs::read_to_string(place.path("target/mine.txt")).unwrap(), "precious");
}
