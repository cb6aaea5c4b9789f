//! The house rules, read from the source tree. A rule here is a decision of ARCHITECTURE.md; change both together.

use foretoken_protocol::COMMANDS;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .ancestors()
        .nth(2)
        .expect("crates/app is two below the root")
        .into()
}

/// Tracked and new text files by their path from the root; this file is left out, because it names what it forbids.
fn files() -> BTreeMap<String, String> {
    let list = Command::new("git")
        .args(["ls-files", "--cached", "--others", "--exclude-standard"])
        .current_dir(root())
        .output()
        .expect("git is there");
    assert!(list.status.success(), "the house rules are read from a git checkout");
    String::from_utf8_lossy(&list.stdout)
        .lines()
        .filter(|path| *path != "crates/app/tests/house.rs")
        .filter_map(|path| {
            Some((path.to_owned(), std::fs::read_to_string(root().join(path)).ok()?))
        })
        .collect()
}

fn rust() -> BTreeMap<String, String> {
    files().into_iter().filter(|(path, _)| path.ends_with(".rs")).collect()
}

/// What runs in the product: without comments, test modules (at the end of a file, by habit) and test files.
fn product() -> BTreeMap<String, String> {
    let is_test = |path: &str| {
        path.contains("/tests/") || path.ends_with("/tests.rs") || path.ends_with("bindings.rs")
    };
    let code = |text: String| {
        let before_tests = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
        let lines = before_tests
            .lines()
            .map(|line| if line.trim_start().starts_with("//") { "" } else { line });
        lines.collect::<Vec<_>>().join("\n")
    };
    rust()
        .into_iter()
        .filter(|(path, _)| !is_test(path))
        .map(|(path, text)| (path, code(text)))
        .collect()
}

/// Fails with `path:line` of every hit.
fn never(rule: &str, files: &BTreeMap<String, String>, wrong: impl Fn(&str, &str) -> bool) {
    let mut hits = String::new();
    for (path, text) in files {
        for (at, line) in text.lines().enumerate() {
            if wrong(path, line) {
                hits += &format!("\n  {path}:{}: {}", at + 1, line.trim());
            }
        }
    }
    assert!(hits.is_empty(), "{rule}{hits}");
}

fn has_word(line: &str, word: &str) -> bool {
    line.split(|c: char| !c.is_alphanumeric() && c != '_').any(|w| w == word)
}

#[test]
fn a_file_past_500_lines_explains_itself_at_its_head() {
    let sources = [".rs", ".ts", ".svelte", ".css", ".sh", ".metal"];
    for (path, text) in files() {
        let made = path.contains(".gen.") || !sources.iter().any(|end| path.ends_with(end));
        let explained = text.lines().take(8).any(|line| line.contains("lines because"));
        let lines = text.lines().count();
        assert!(
            made || lines <= 500 || explained,
            "{path} has {lines} lines: split it, or say \"N lines because ...\""
        );
    }
}

#[test]
fn only_the_shell_knows_tauri() {
    let crates = files().into_iter().filter(|(path, _)| path.starts_with("crates/")).collect();
    never("tauri stays in src-tauri", &crates, |path, line| {
        let code = path.ends_with(".rs") && !line.trim_start().starts_with("//");
        (code && (line.contains("tauri::") || line.contains("tauri_")))
            || (path.ends_with(".toml") && line.contains("tauri"))
    });
    let ui = files().into_iter().filter(|(path, _)| path.starts_with("ui/src/")).collect();
    never("only ui/src/backend imports the Tauri API", &ui, |path, line| {
        !path.starts_with("ui/src/backend/") && line.contains("@tauri-apps")
    });
}

#[test]
fn platforms_and_unsafe_code_stay_in_the_kernels() {
    let crates = product().into_iter().filter(|(path, _)| path.starts_with("crates/")).collect();
    // The emulator calls compiled kernels and switches stacks; it is no part of the product.
    never("only crates/kernels, the memory map and the emulator may", &crates, |path, line| {
        let allowed = path.starts_with("crates/kernels/")
            || path == "crates/engine/src/weights/map.rs"
            || path.starts_with("crates/metal-emu/");
        let platform = line.contains("target_os") || line.contains("feature = \"metal\"");
        !allowed && (platform || has_word(line, "unsafe"))
    });
}

#[test]
fn dependencies_run_downwards_only() {
    let allowed: BTreeMap<&str, &[&str]> = BTreeMap::from([
        ("crates/protocol", &[][..]),
        ("crates/kernels", &[][..]),
        // Its tests run the engine's passes in the emulator.
        ("crates/kernels-emu", &["engine", "kernels"][..]),
        ("crates/metal-emu", &[][..]),
        ("crates/metal-emu-build", &[][..]),
        ("crates/library", &[][..]),
        ("crates/engine", &["kernels"][..]),
        ("crates/app", &["engine", "library", "protocol"][..]),
        ("crates/cli", &["app", "protocol"][..]),
        ("crates/xtask", &[][..]),
        ("src-tauri", &["app", "protocol"][..]),
        ("tests/e2e", &[][..]),
    ]);
    // kernels-emu holds tests only, and the CPU's functions that it compares with take tensors.
    let candle = ["crates/kernels", "crates/engine", "crates/kernels-emu"];
    // Whoever builds the app must not need clang.
    let emulator = ["crates/kernels-emu", "crates/metal-emu", "crates/metal-emu-build"];
    for (path, text) in files() {
        let Some(folder) = path.strip_suffix("/Cargo.toml") else { continue };
        let allowed = allowed
            .get(folder)
            .unwrap_or_else(|| panic!("{folder} has no place in the house rules yet"));
        for line in text.lines() {
            let name = line.split(['.', ' ', '=']).next().unwrap_or_default();
            if let Some(ours) = name.strip_prefix("foretoken-") {
                assert!(allowed.contains(&ours), "{folder} may not depend on {name}");
            }
            assert!(
                !name.starts_with("candle") || candle.contains(&folder),
                "{folder} may not know candle"
            );
            assert!(
                !name.starts_with("metal-emu") || emulator.contains(&folder) || folder.is_empty(),
                "{folder} may not know the emulator"
            );
        }
    }
}

#[test]
fn shaders_stay_in_the_kernels() {
    // faults.metal holds one mistake a kernel, for the emulator's own test.
    let strays: Vec<String> = files()
        .into_keys()
        .filter(|path| path.ends_with(".metal"))
        .filter(|path| !path.starts_with("crates/kernels/src/metal/"))
        .filter(|path| path != "crates/metal-emu/tests/faults.metal")
        .collect();
    assert!(strays.is_empty(), "shader text outside crates/kernels: {strays:?}");
}

#[test]
fn the_decoding_loop_knows_no_family() {
    let decode = product()
        .into_iter()
        .filter(|(path, _)| path.starts_with("crates/engine/src/decode"))
        .collect();
    never("decode/ knows only Trunk and MtpHead", &decode, |_, line| {
        let line = line.to_lowercase();
        ["llama", "step3p5", "hy_v3", "qwen", "glm4"].iter().any(|family| line.contains(family))
    });
}

#[test]
fn errors_have_types_and_nothing_unwraps() {
    never("an error is a type, not a text", &rust(), |_, line| {
        let flat: String = line.split_whitespace().collect();
        flat.contains("Result<") && flat.contains(",String>") && !flat.contains("Map<")
    });
    never("unwrap is for tests; `expect` says why it holds", &product(), |_, line| {
        line.contains(".unwrap()")
    });
}

#[test]
fn names_say_what_a_thing_is() {
    never("Manager, Helper and Util say nothing", &product(), |_, line| {
        let defines =
            ["struct ", "enum ", "trait ", "mod ", "type "].iter().any(|kind| line.contains(kind));
        defines
            && line.split(|c: char| !c.is_alphanumeric() && c != '_').any(|word| {
                ["Manager", "Helper", "Util", "Utils"].iter().any(|vague| word.ends_with(vague))
                    || ["manager", "helper", "helpers", "util", "utils"].contains(&word)
            })
    });
}

#[test]
fn the_shell_registers_and_grants_exactly_the_commands_of_the_protocol() {
    let declared: BTreeSet<String> = COMMANDS.iter().map(|c| c.name.to_owned()).collect();
    let shell = std::fs::read_to_string(root().join("src-tauri/src/commands.rs"))
        .expect("the shell has commands");
    let list = shell
        .split("generate_handler![")
        .nth(1)
        .and_then(|rest| rest.split(']').next())
        .expect("a handler list");
    let registered: BTreeSet<String> =
        list.split(',').map(|n| n.trim().to_owned()).filter(|n| !n.is_empty()).collect();
    assert_eq!(registered, declared, "src-tauri/src/commands.rs");

    // Besides, the window may drag itself, show a download's progress in the Dock and say that it ended; nothing else.
    let mut granted = BTreeSet::from([
        "core:window:allow-start-dragging",
        "core:window:allow-internal-toggle-maximize",
        "core:window:allow-set-progress-bar",
        "notification:allow-is-permission-granted",
        "notification:allow-request-permission",
        "notification:allow-notify",
    ])
    .into_iter()
    .map(str::to_owned)
    .collect::<BTreeSet<_>>();
    granted.extend(declared.iter().map(|name| format!("allow-{}", name.replace('_', "-"))));
    let folder = root().join("src-tauri/capabilities");
    assert_eq!(
        std::fs::read_dir(&folder).expect("a folder").count(),
        1,
        "one capability file is the whole surface"
    );
    let text = std::fs::read_to_string(folder.join("main.json")).expect("the capability file");
    let file: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    let permissions = file["permissions"].as_array().expect("a list");
    let permissions: BTreeSet<String> =
        permissions.iter().filter_map(|p| Some(p.as_str()?.to_owned())).collect();
    assert_eq!(permissions, granted, "src-tauri/capabilities/main.json");
}

#[test]
fn no_file_names_a_folder_of_somebodys_machine() {
    never("paths are relative to the checkout", &files(), |_, line| {
        ["/home/", "/Users/", "/root/"].iter().any(|place| line.contains(place))
    });
}
