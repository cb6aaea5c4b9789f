//! The program's promises to scripts: what stands on stdout with `--json`, and that logs do not.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod common;

use common::{Place, tensors_of};
use serde_json::{Value, json};

fn keys(value: &Value) -> Vec<&str> {
    value.as_object().unwrap().keys().map(String::as_str).collect()
}

fn ids(value: &Value) -> Vec<u64> {
    value["token_ids"].as_array().unwrap().iter().map(|id| id.as_u64().unwrap()).collect()
}

/// `chat starter --json --max-tokens 24` and more.
fn chat(place: &Place, more: &[&str]) -> Value {
    let mut args = vec!["chat", "starter", "--json", "--max-tokens", "24"];
    args.extend(more);
    place.run(&args).result()
}

const PROMPT: [&str; 2] = ["--prompt", "Write a story about a lighthouse."];

#[test]
fn a_reply_as_json() {
    let place = Place::new();
    let run = place.run(&[
        "chat",
        "starter",
        "--prompt",
        PROMPT[1],
        "--json",
        "--draft",
        "3",
        "--temperature",
        "0",
        "--max-tokens",
        "24",
    ]);
    assert_eq!((run.code, run.stderr.as_str()), (0, ""));
    let mut lines = run.lines();
    let result = lines.pop().unwrap();
    assert_eq!(
        keys(&result),
        [
            "token_ids",
            "text",
            "finish_reason",
            "prompt_tokens",
            "reused_tokens",
            "generated_tokens",
            "ttft_ms",
            "prefill_tok_s",
            "decode_tok_s",
            "cycles",
            "drafted",
            "accepted",
            "accept_rate",
            "tokens_per_cycle",
            "depth",
            "rule",
            "phase_ms",
        ]
    );
    assert_eq!(keys(&result["phase_ms"]), ["draft", "verify", "sample", "other"]);
    assert_eq!(ids(&result).len(), 24);
    assert_eq!(
        (&result["generated_tokens"], &result["finish_reason"]),
        (&json!(24), &json!("length"))
    );
    assert_eq!((&result["reused_tokens"], &result["rule"]), (&json!(0), &json!("residual")));
    assert!(result["prompt_tokens"].as_u64().unwrap() > 10);
    for positive in ["ttft_ms", "prefill_tok_s", "decode_tok_s"] {
        assert!(result[positive].as_f64().unwrap() > 0.0, "{positive}");
    }
    let sum = |key: &str| -> u64 {
        result[key].as_array().unwrap().iter().map(|n| n.as_u64().unwrap()).sum()
    };
    let (cycles, drafted, accepted) =
        (result["cycles"].as_u64().unwrap(), sum("drafted"), sum("accepted"));
    assert!(drafted > 0 && accepted <= drafted);
    assert_eq!(cycles + accepted, 24, "each cycle adds one token of its own");
    assert_eq!(result["accept_rate"].as_f64().unwrap(), accepted as f64 / drafted as f64);
    assert_eq!(result["tokens_per_cycle"].as_f64().unwrap(), 24.0 / cycles as f64);
    assert!(result["depth"].as_u64().unwrap() <= 3);

    let kinds: Vec<&str> = lines.iter().map(|line| line["kind"].as_str().unwrap()).collect();
    assert!(kinds.first() == Some(&"prefill") && kinds.last() == Some(&"step"), "{kinds:?}");
    let steps: String = lines.iter().filter_map(|line| line["text"].as_str()).collect();
    assert_eq!(result["text"], json!(steps));
}

#[test]
fn drafting_off_and_on_give_the_same_greedy_ids() {
    let place = Place::new();
    let of = |draft| chat(&place, &[PROMPT[0], PROMPT[1], "--temperature", "0", "--draft", draft]);
    let plain = of("off");
    assert_eq!((&plain["drafted"], &plain["accept_rate"]), (&json!([]), &Value::Null));
    assert_eq!((&plain["depth"], &plain["tokens_per_cycle"]), (&json!(0), &json!(1.0)));
    for draft in ["0", "1", "8", "auto"] {
        assert_eq!(ids(&of(draft)), ids(&plain), "{draft}");
    }
}

#[test]
fn a_seed_gives_the_same_text_again() {
    let place = Place::new();
    for draft in ["off", "2"] {
        for rule in ["residual", "match"] {
            let of = |seed| {
                ids(&chat(
                    &place,
                    &[
                        PROMPT[0],
                        PROMPT[1],
                        "--temperature",
                        "1",
                        "--draft",
                        draft,
                        "--rule",
                        rule,
                        "--seed",
                        seed,
                    ],
                ))
            };
            let first = of("7");
            assert_eq!(of("7"), first, "{draft} {rule}");
            assert_ne!(of("8"), first, "{draft} {rule}");
        }
    }
}

#[test]
fn messages_raw_ids_and_system() {
    let place = Place::new();
    let greedy = ["--temperature", "0", "--draft", "1"];
    let with = |more: &[&str]| chat(&place, &[more, &greedy].concat());
    let prompt = with(&PROMPT);
    let one = place.file("one.json", json!([{"role": "user", "content": PROMPT[1]}]).to_string());
    assert_eq!(ids(&with(&["--messages", &one])), ids(&prompt));

    let system = "Answer in one word, please.";
    let spoken = with(&[PROMPT[0], PROMPT[1], "--system", system]);
    assert_ne!(spoken["prompt_tokens"], prompt["prompt_tokens"]);
    let two =
        json!([{"role": "system", "content": system}, {"role": "user", "content": PROMPT[1]}]);
    let two = place.file("two.json", two.to_string());
    let written = with(&["--messages", &two]);
    assert_eq!(
        (ids(&written), &written["prompt_tokens"]),
        (ids(&spoken), &spoken["prompt_tokens"])
    );

    let long = json!([
        {"role": "user", "content": "Hello"},
        {"role": "assistant", "content": "Hi.", "reasoning_content": "short"},
        {"role": "user", "content": "Again"},
    ]);
    let long = place.file("long.json", long.to_string());
    assert!(with(&["--messages", &long])["prompt_tokens"].as_u64().unwrap() > 20);

    let raw = place.file("ids.json", "[1, 9690, 198, 504]");
    let raw = with(&["--raw-ids", &raw]);
    assert_eq!(raw["prompt_tokens"], json!(4));
    let twice = place.run(&["chat", "starter", PROMPT[0], PROMPT[1], "--messages", &two]);
    twice.refused("two prompts", "invalid_option", &[]);
}

#[test]
fn the_first_token_of_a_text_is_a_prompt_too() {
    let place = Place::new();
    let file = place.file("ids.json", "[1]");
    for draft in ["off", "4", "auto"] {
        let reply = chat(&place, &["--raw-ids", &file, "--draft", draft, "--temperature", "0"]);
        assert_eq!(reply["prompt_tokens"], json!(1), "{draft}");
        assert!(!ids(&reply).is_empty());
    }
}

#[test]
fn one_token_at_most_is_one_token() {
    let place = Place::new();
    let run = place.run(&["chat", "starter", PROMPT[0], PROMPT[1], "--json", "--max-tokens", "1"]);
    let reply = run.result();
    assert_eq!((ids(&reply).len(), &reply["finish_reason"]), (1, &json!("length")));
}

#[test]
fn a_chat_line_by_line() {
    let place = Place::new();
    let args =
        ["chat", "starter", "--json", "--max-tokens", "12", "--temperature", "0", "--draft", "1"];
    let run = place.run_with_input(&args, "Hello\nAnd then?\n\nnever read\n".as_bytes());
    assert_eq!((run.code, run.stderr.as_str()), (0, ""));
    let lines = run.lines();
    let replies: Vec<&Value> = lines.iter().filter(|line| line["token_ids"].is_array()).collect();
    assert_eq!(replies.len(), 2, "an empty line ends the chat");
    assert!(replies[1]["reused_tokens"].as_u64() > replies[0]["prompt_tokens"].as_u64());

    // A message that cannot be answered is said and forgotten; the chat goes on. So does one that is not UTF-8.
    let mut input = "word ".repeat(9_000).into_bytes();
    input.extend(b"\nHello\nAnd\xff then?");
    let run = place.run_with_input(&args, &input);
    assert_eq!(run.code, 0);
    let error: Value = serde_json::from_str(run.stderr.trim()).unwrap();
    assert_eq!(error["code"], json!("context_full"));
    let after = run.lines();
    let after: Vec<&Value> = after.iter().filter(|line| line["token_ids"].is_array()).collect();
    assert_eq!(after.len(), 2);
    assert_eq!(after[0]["text"], replies[0]["text"]);

    let run = place.run_with_input(&["chat", "starter", "--max-tokens", "4"], b"Hello\n");
    assert_eq!(run.code, 0);
    assert!(run.stdout.contains("tok/s"), "{}", run.stdout);
    assert_eq!(place.run_with_input(&args, b"").code, 0, "no input is no error");
}

#[test]
fn logs_stand_on_stderr_only() {
    let place = Place::new();
    let folder = place.talking("model");
    // Two recommendations out of range are ignored and logged.
    folder.write("generation_config.json", r#"{"temperature": -3, "top_p": 9}"#);
    let ids = place.file("ids.json", "[1, 2, 3]");
    let run = place.run(&["chat", folder.arg(), "--raw-ids", &ids, "--json", "--max-tokens", "4"]);
    assert!(run.stderr.contains("recommended sampling value ignored"), "{}", run.stderr);
    assert_eq!(run.result()["generated_tokens"], json!(4));
}

#[test]
fn help_and_version_are_answers() {
    let place = Place::new();
    for args in [&["--help"][..], &["--version"], &["chat", "--help"]] {
        let run = place.run(args);
        assert_eq!((run.code, run.stderr.as_str()), (0, ""));
        assert!(run.stdout.contains("foretoken") || run.stdout.contains("Usage"), "{}", run.stdout);
    }
}

#[test]
fn logits_writes_what_it_says() {
    let place = Place::new();
    let tiny = place.tiny("model");
    let list = place.file("ids.json", "[3, 1, 4, 1, 5]");
    let out = place.path("out.safetensors");
    for (model, vocab, hidden, head) in
        [(tiny.arg(), 320, 64, false), ("starter", 49152, 576, true)]
    {
        let args = ["logits", model, "--ids", &list, "--out", out.to_str().unwrap(), "--json"];
        let said = place.run(&args).result();
        let mut want = json!({
            "hidden_post": [5, hidden], "hidden_pre": [5, hidden], "logits": [5, vocab],
        });
        if head {
            want["mtp0.logits"] = json!([4, vocab]);
        }
        assert_eq!(said["tensors"], want, "{model}");
        let written = tensors_of(&std::fs::read(&out).unwrap());
        assert_eq!(written.len(), want.as_object().unwrap().len());
        for (name, info, bytes) in written {
            assert_eq!((&info["shape"], &info["dtype"]), (&want[&name], &json!("F32")), "{name}");
            let finite = bytes
                .chunks_exact(4)
                .all(|b| f32::from_le_bytes(b.try_into().unwrap()).is_finite());
            assert!(finite, "{name}");
        }
    }
}

/// On a Mac it is either used or refused; here there is no GPU, and both say so.
#[test]
fn metal_that_cannot_be_used_is_a_note_and_the_cpu_computes() {
    if cfg!(target_os = "macos") {
        return;
    }
    let place = Place::new();
    let metal = [("FORETOKEN_METAL", "1")];
    let report = place.run_with(&["inspect", "starter", "--json"], &metal).result();
    let notes = report["notes"].to_string();
    assert!(notes.contains("no GPU that Metal can use") && notes.contains("CPU"), "{notes}");
}

#[test]
fn inspect_describes_a_model() {
    let place = Place::new();
    let report = place.run(&["inspect", "starter", "--json"]).result();
    assert_eq!(
        keys(&report),
        [
            "name",
            "folder",
            "family",
            "layers",
            "parameters",
            "headParameters",
            "contextSize",
            "vocabSize",
            "quantisation",
            "head",
            "memory",
            "norms",
            "load",
            "notes",
        ]
    );
    assert_eq!((&report["family"], &report["layers"]), (&json!("llama"), &json!(30)));
    assert_eq!((&report["head"]["found"], &report["head"]["levels"]), (&json!(true), &json!(1)));
    assert_eq!(report["notes"], json!([]));
    let memory = &report["memory"];
    assert_eq!(memory["context"], json!(4096));
    let n = |key: &str| memory[key].as_u64().unwrap();
    assert_eq!(n("kvAtContext"), n("kvPerToken") * 4096);
    assert!(n("needed") >= n("weights") + n("head") + n("kvAtContext"));
    let deep = place.run(&["inspect", "starter", "--json", "--context", "100"]).result();
    assert_eq!(deep["memory"]["context"], json!(100));
    let far = place.run(&["inspect", "starter", "--json", "--context", "4000000000"]).result();
    assert_eq!(far["memory"]["context"], json!(8192), "the model's own context is the limit");

    let tiny = place.tiny("model");
    let report = place.run(&["inspect", tiny.arg(), "--json"]).result();
    assert_eq!((&report["name"], &report["layers"]), (&json!("model"), &json!(3)));
    assert_eq!((&report["head"]["found"], &report["head"]["levels"]), (&json!(false), &json!(0)));
    let text = place.run(&["inspect", tiny.arg()]);
    assert!(text.code == 0 && text.stdout.contains("llama, 3 layers"), "{}", text.stdout);
}

#[test]
fn files_beside_the_weights_do_no_harm() {
    let place = Place::new();
    let folder = place.tiny("model");
    let plain = place.run(&["inspect", folder.arg(), "--json"]).result();
    // What macOS leaves on foreign disks, and what else lies around.
    for name in ["._model.safetensors", "._config.json", "._model-00001-of-00002.safetensors"] {
        folder.write(name, b"\0\x05\x16\x07\0\x02\0\0Mac OS X        ");
    }
    folder.write("README.md", "# A model");
    folder.write("golden.safetensors", "not weights of this model");
    folder.write("._tokenizer.json", "\0");
    let with = place.run(&["inspect", folder.arg(), "--json"]).result();
    for key in ["parameters", "quantisation", "notes", "layers"] {
        assert_eq!(with[key], plain[key], "{key}");
    }
    let index = json!({"weight_map": {"a": "model.safetensors", "b": "._model.safetensors"}});
    folder.write("model.safetensors.index.json", index.to_string());
    let indexed = place.run(&["inspect", folder.arg(), "--json"]).result();
    assert_eq!(indexed["parameters"], plain["parameters"]);
}

#[test]
fn leftover_tensors_are_listed() {
    let place = Place::new();
    let folder = place.tiny("model");
    folder.tensors(|tensors| {
        let norm = json!({"dtype": "F32", "shape": [2]});
        tensors.push(("model.layers.0.self_attn.rotary_emb.inv_freq".to_owned(), norm, vec![0; 8]));
    });
    let report = place.run(&["inspect", folder.arg(), "--json"]).result();
    let notes = report["notes"].to_string();
    assert!(notes.contains("model.layers.0.self_attn.rotary_emb.inv_freq"), "{notes}");
}

#[test]
fn list_names_the_starter_and_says_what_is_wrong_with_a_folder() {
    let place = Place::new();
    let run = place.run(&["list", "--json"]);
    assert_eq!(run.code, 0, "{}", run.stderr);
    let entries = run.lines();
    assert_eq!(entries.len(), 1);
    assert_eq!((&entries[0]["id"], &entries[0]["problem"]), (&json!("starter"), &Value::Null));
    assert!(entries[0]["bytes"].as_u64().unwrap() > 50_000_000);
}
