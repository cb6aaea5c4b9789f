//! Chat templates against Python's renderings, and against hostile ones.

#![allow(clippy::unwrap_used)] // a test that cannot read its data fails

use foretoken_engine::text::{
    ChatTemplate, GgufTokenizer, RenderOptions, TextError, Tokenizer, TurnText,
};
use serde_json::{Map, Value};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/text").join(name)
}

fn read_json(name: &str) -> Value {
    serde_json::from_slice(&std::fs::read(data(name)).unwrap()).unwrap()
}

fn step_tokenizer() -> Tokenizer {
    Tokenizer::from_dir(&data("step3p5")).unwrap()
}

/// A template in a folder of its own.
fn template(bytes: &[u8]) -> Result<ChatTemplate, TextError> {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("chat_template.jinja"), bytes).unwrap();
    ChatTemplate::from_dir(dir.path(), &step_tokenizer())
}

fn user(text: &str) -> Vec<TurnText> {
    vec![TurnText { role: "user".into(), content: text.into(), reasoning: None }]
}

fn render(source: &str) -> Result<String, TextError> {
    template(source.as_bytes())?.render(&user("hi"), &RenderOptions::default())
}

/// `strftime` of 2025-03-04 05:06:07, the time in `record.py`.
fn fixed_clock(pattern: &str) -> String {
    assert_eq!(pattern, "%d %b %Y");
    "04 Mar 2025".into()
}

#[test]
fn renderings_equal_those_of_python() {
    let folder = tempfile::tempdir().unwrap();
    let load = |name: &str| -> ChatTemplate {
        let (dir, tokenizer) = match name {
            "helpers" => {
                let dir = folder.path().join("helpers");
                std::fs::create_dir_all(&dir).unwrap();
                std::fs::copy(data("helpers.jinja"), dir.join("chat_template.jinja")).unwrap();
                (dir, step_tokenizer())
            }
            "smollm2" => {
                let dir = folder.path().join("smollm2");
                let g = read_json("smollm2/gguf.json");
                let texts = |key: &str| serde_json::from_value(g[key].clone()).unwrap();
                let id = |key: &str| g[key].as_u64().map(|id| id as u32);
                let gguf = GgufTokenizer {
                    model: "gpt2".into(),
                    pre: "smollm".into(),
                    tokens: texts("tokens"),
                    token_types: serde_json::from_value(g["token_types"].clone()).unwrap(),
                    merges: texts("merges"),
                    bos: id("bos"),
                    eos: id("eos"),
                    pad: id("pad"),
                    unk: id("unk"),
                    chat_template: Some(
                        std::fs::read_to_string(data("smollm2/chat_template.jinja")).unwrap(),
                    ),
                    add_bos: false,
                };
                gguf.write_hf_files(&dir).unwrap();
                let tokenizer = Tokenizer::from_dir(&dir).unwrap();
                (dir, tokenizer)
            }
            _ => (data(name), Tokenizer::from_dir(&data(name)).unwrap()),
        };
        ChatTemplate::with_clock(&dir, &tokenizer, fixed_clock).unwrap()
    };
    let conversations = read_json("conversations.json");
    let golden = read_json("golden.json");
    let golden = golden.as_array().unwrap();
    assert!(golden.len() >= 4 * 6);
    for name in ["step3p5", "hy_v3", "smollm2", "helpers"] {
        let template = load(name);
        for want in golden.iter().filter(|want| want["template"] == name) {
            let c = conversations
                .as_array()
                .unwrap()
                .iter()
                .find(|c| c["name"] == want["conversation"])
                .unwrap();
            let text = |v: &Value| v.as_str().map(str::to_owned);
            let turns: Vec<TurnText> = c["turns"]
                .as_array()
                .unwrap()
                .iter()
                .map(|t| TurnText {
                    role: text(&t["role"]).unwrap(),
                    content: text(&t["content"]).unwrap(),
                    reasoning: text(&t["reasoning"]),
                })
                .collect();
            let extra: Map<String, Value> = c["extra"].as_object().cloned().unwrap_or_default();
            let options =
                RenderOptions { add_generation_prompt: c["prompt"].as_bool().unwrap(), extra };
            match (template.render(&turns, &options), text(&want["text"])) {
                (Ok(have), Some(text)) => {
                    assert_eq!(have, text, "{name}: {}", want["conversation"])
                }
                (Err(TextError::TemplateRefused { why }), None) => assert_eq!(why, want["refused"]),
                (have, want) => panic!("{name}: {have:?} but Python has {want:?}"),
            }
        }
    }
}

#[test]
fn the_reply_starts_inside_a_thought_where_the_prompt_says_so() {
    let prompt = |name: &str, effort: Option<&str>, text: &str| {
        let template =
            ChatTemplate::from_dir(&data(name), &Tokenizer::from_dir(&data(name)).unwrap())
                .unwrap();
        let extra =
            effort.map(|e| ("reasoning_effort".to_owned(), Value::from(e))).into_iter().collect();
        let options = RenderOptions { add_generation_prompt: true, extra };
        let rendered = template.render(&user(text), &options).unwrap();
        (template.starts_in_thought(&rendered).cloned(), template.thought_state(&rendered))
    };
    let (tags, state) = prompt("step3p5", None, "hi");
    assert_eq!(tags.unwrap().close, "</think>");
    assert!(state.inside);
    let (tags, _) = prompt("hy_v3", Some("high"), "hi");
    assert_eq!(tags.unwrap().close, "</think:opensource>");
    let (tags, state) = prompt("hy_v3", None, "a person writes <think:opensource>");
    assert_eq!(tags, None);
    assert_eq!(state.tags.unwrap().open, "<think:opensource>", "the model may still think later");
    assert!(!state.inside);
}

#[test]
fn the_template_is_found_in_all_three_places() {
    let dir = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| std::fs::write(dir.path().join(name), text).unwrap();
    let load = || ChatTemplate::from_dir(dir.path(), &step_tokenizer());
    let rendered = || load().unwrap().render(&user("hi"), &RenderOptions::default()).unwrap();
    assert!(matches!(load(), Err(TextError::TemplateMissing)));
    write("chat_template.json", r#"{"chat_template": "json {{ bos_token }}"}"#);
    assert_eq!(rendered(), "json <s>");
    write(
        "tokenizer_config.json",
        r#"{"chat_template": [{"name": "tool_use", "template": "x"}, {"name": "default", "template": "list"}]}"#,
    );
    assert_eq!(rendered(), "list");
    write("tokenizer_config.json", r#"{"chat_template": "string"}"#);
    assert_eq!(rendered(), "string");
    write("chat_template.jinja", "file");
    assert_eq!(rendered(), "file");
}

#[test]
fn damaged_templates_are_named() {
    assert!(matches!(template(b""), Err(TextError::TemplateCorrupt { .. })));
    assert!(matches!(template(b" \n"), Err(TextError::TemplateCorrupt { .. })));
    assert!(matches!(template(b"caf\xe9"), Err(TextError::TemplateCorrupt { .. })), "not UTF-8");
    let big = "x".repeat(2 << 20);
    assert!(matches!(template(big.as_bytes()), Err(TextError::TemplateCorrupt { .. })));
    let dir = tempfile::tempdir().unwrap();
    let config = serde_json::json!({ "chat_template": big });
    std::fs::write(dir.path().join("tokenizer_config.json"), config.to_string()).unwrap();
    let e = ChatTemplate::from_dir(dir.path(), &step_tokenizer());
    assert!(matches!(e, Err(TextError::TemplateCorrupt { .. })), "the limit holds inside json too");
}

#[test]
fn errors_carry_the_line() {
    let e = template(b"a\nb\n{% if %}").unwrap_err();
    assert!(matches!(e, TextError::TemplateSyntax { line: 3, .. }), "{e}");
    let e = render("a\n{{ messages.nothing.more }}").unwrap_err();
    assert!(matches!(e, TextError::TemplateFailed { line: 2, .. }), "{e}");
    let e = render("{% generation %}\n{{ 1 }}\n{% endgeneration %}\n{{ 1 / 0 }}").unwrap_err();
    assert!(matches!(e, TextError::TemplateFailed { line: 4, .. }), "{e}");
    let e = render("{% macro m() %}{{ raise_exception('no. thanks') }}{% endmacro %}\n{{ m() }}")
        .unwrap_err();
    assert!(matches!(&e, TextError::TemplateRefused { why } if why == "no. thanks"), "{e}");
}

#[test]
fn endless_templates_end_soon() {
    let sources = [
        "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
        "{% for a in range(99999) %}{% for b in range(99999) %}{{ 'spam and eggs' }}{% endfor %}{% endfor %}",
        "{% set ns = namespace(s='x') %}{% for a in range(99999) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}",
        "{% set ns = namespace(s='x') %}{% for a in range(99999) %}{% set ns.s = ns.s.replace('x', 'xx') %}{% endfor %}",
        "{% set ns = namespace(s=[1]) %}{% for a in range(99999) %}{% set ns.s = ns.s + ns.s %}{% endfor %}{{ ns.s | tojson }}",
        "{% macro m(n) %}{{ m(n) }}{{ m(n) }}{% endmacro %}{{ m(1) }}",
        "{% macro m(n) %}{% if n > 0 %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(15) }}{{ m(15) }}{{ m(15) }}{{ m(15) }}{{ m(15) }}{{ m(15) }}{{ m(15) }}{{ m(15) }}{{ m(15) }}{{ m(15) }}{{ m(15) }}{{ m(15) }}{{ m(15) }}{{ m(15) }}{{ m(15) }}{{ m(15) }}",
        "{{ 'x' * 999999999 }}",
        "{{ '{:>999999999}'.format('x') }}",
        "{{ '%999999999d' | format(1) }}",
        "{{ [range(99999)] | tojson(indent=999999999) }}{{ 1 / 0 }}",
        "{{ messages | tojson | indent(999999999) }}{{ 1 / 0 }}",
        "{{ 'x' | center(999999999) }}{{ 1 / 0 }}",
    ];
    for source in sources {
        let start = Instant::now();
        let e = render(source).unwrap_err();
        assert!(matches!(e, TextError::TemplateFailed { .. }), "{source}: {e}");
        // Generous, as the machine may be busy: without a limit these take minutes.
        assert!(start.elapsed() < Duration::from_secs(10), "{source} took {:?}", start.elapsed());
    }
}

#[test]
fn output_is_limited() {
    let line = "x".repeat(1000);
    let e = render(&format!("{{% for a in range(50000) %}}{line}{{% endfor %}}")).unwrap_err();
    assert!(
        matches!(&e, TextError::TemplateFailed { why, .. } if why.contains("writes more than")),
        "{e}"
    );
}

#[test]
fn deep_nesting_is_an_error() {
    let deep = "(".repeat(100_000);
    assert!(matches!(render(&format!("{{{{ {deep}")), Err(TextError::TemplateSyntax { .. })));
    let deep = "{% if true %}".repeat(10_000);
    assert!(matches!(render(&deep), Err(TextError::TemplateSyntax { .. })));
    let list = "[".repeat(50_000);
    assert!(matches!(render(&format!("{{{{ {list}")), Err(TextError::TemplateSyntax { .. })));
    let chain = format!("{{{{ x{} }}}}", ".a".repeat(100_000));
    assert!(render(&chain).is_err());
    let sum = format!("{{{{ 1{} }}}}", "+1".repeat(100_000));
    drop(render(&sum));
    let not = format!("{{{{ {} 1 }}}}", "not ".repeat(100_000));
    drop(render(&not));
    let minus = format!("{{{{ {}1 }}}}", "-".repeat(100_000));
    drop(render(&minus));
    let tilde = format!("{{{{ x{} }}}}", "~x".repeat(500_000));
    assert!(
        matches!(render(&tilde), Err(TextError::TemplateSyntax { .. })),
        "quadratic in the parser"
    );
    let tildes = format!("{{{{ x{} }}}}", "~'x'".repeat(2_000)).repeat(50);
    drop(render(&tildes));
    let elif = format!("{{% if a %}}{}{{% endif %}}", "{% elif a %}".repeat(20_000));
    drop(render(&elif));
}

#[test]
fn undefined_values_behave_as_in_python() {
    assert_eq!(render("[{{ missing }}]").unwrap(), "[]");
    assert!(render("{{ missing.attribute }}").is_err());
    assert!(render("{{ missing() }}").is_err());
    assert!(render("{{ 'x' | no_such_filter }}").is_err());
    assert!(render("{% include '/etc/hostname' %}").is_err(), "nothing is read from disk");
    assert!(render("{% include 'chat_template' %}").is_err(), "endless recursion");
}

#[test]
fn long_conversations_stay_within_the_limits() {
    for name in ["step3p5", "hy_v3"] {
        let template =
            ChatTemplate::from_dir(&data(name), &Tokenizer::from_dir(&data(name)).unwrap())
                .unwrap();
        let turns: Vec<TurnText> = (0..10_000)
            .map(|i| TurnText {
                role: if i % 2 == 0 { "user" } else { "assistant" }.into(),
                content: "x".repeat(500),
                reasoning: (i % 2 == 1).then(|| "because".into()),
            })
            .collect();
        let rendered = template
            .render(&turns, &RenderOptions { add_generation_prompt: true, ..Default::default() });
        assert!(rendered.unwrap().len() > 5_000_000, "{name}");
    }
}
