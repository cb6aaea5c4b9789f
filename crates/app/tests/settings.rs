//! The settings file: what is kept, what a damaged one costs.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use foretoken_app::settings::{load, save};
use foretoken_app::{App, Paths};
use foretoken_protocol::{
    DraftMode, DraftRule, ErrorCode, GenerationOptions, Sampling, Settings, Theme,
};
use std::path::{Path, PathBuf};
use tempfile::TempDir;

fn place() -> (TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("settings.json");
    (dir, file)
}

fn names(dir: &Path) -> Vec<String> {
    let mut names: Vec<String> = std::fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    names
}

fn unusual() -> Settings {
    Settings {
        theme: Theme::Dark,
        options: GenerationOptions {
            draft: DraftMode::Fixed { depth: 3 },
            rule: DraftRule::Match,
            sampling: Sampling {
                temperature: Some(0.7),
                seed: Some((1 << 53) - 1),
                ..Sampling::default()
            },
            max_tokens: Some(7),
            system_prompt: Some("Reim dich \"oder\" 🦆".to_owned()),
        },
        model_folders: vec!["models/ü".to_owned()],
        model_heads: [("acme/tiny".to_owned(), "heads/ü".to_owned())].into(),
        last_model: Some("acme/tiny".to_owned()),
        hub_endpoint: Some("https://hub.example/mirror".to_owned()),
        hub_proxy: Some("socks5://127.0.0.1:1080".to_owned()),
        download_limit: Some(5_000_000),
        sidebar_open: false,
        live_panel_open: false,
    }
}

#[test]
fn what_is_saved_comes_back() {
    let (dir, file) = place();
    assert_eq!(load(&file), (Settings::default(), None), "no file is no reason to worry anybody");
    for settings in [unusual(), Settings::default(), unusual()] {
        save(&file, &settings).unwrap();
        assert_eq!(load(&file), (settings, None));
    }
    assert_eq!(names(dir.path()), ["settings.json"], "no temporary file stays behind");
}

#[test]
fn a_missing_folder_is_made() {
    let (dir, _) = place();
    let file = dir.path().join("a/b/settings.json");
    save(&file, &unusual()).unwrap();
    assert_eq!(load(&file).0, unusual());
}

#[test]
fn fields_nobody_knows_are_ignored_and_missing_ones_have_their_default() {
    let (_dir, file) = place();
    std::fs::write(
        &file,
        r#"{"theme":"light","tomorrow":{"a":[1]},"options":{"draft":{"kind":"off"},"sampling":{"topA":1}}}"#,
    )
    .unwrap();
    let (settings, notice) = load(&file);
    assert_eq!(notice, None);
    let mut want = Settings { theme: Theme::Light, ..Settings::default() };
    want.options.draft = DraftMode::Off;
    assert_eq!(settings, want);
    std::fs::write(&file, "{}").unwrap();
    assert_eq!(load(&file), (Settings::default(), None));
}

#[test]
fn a_file_that_is_no_settings_is_kept_aside() {
    let mut half = serde_json::to_vec(&unusual()).unwrap();
    half.truncate(half.len() / 2);
    let cases: [(&str, Vec<u8>); 7] = [
        ("empty", Vec::new()),
        ("zeros", vec![0; 512]),
        ("garbage", b"\xff\xfe\x00garbage".to_vec()),
        ("half", half),
        ("a list", b"[1, 2]".to_vec()),
        ("another type", br#"{"theme": 7}"#.to_vec()),
        ("deep", "[".repeat(100_000).into_bytes()),
    ];
    for (name, bytes) in cases {
        let (dir, file) = place();
        std::fs::write(&file, &bytes).unwrap();
        let (settings, notice) = load(&file);
        assert_eq!(settings, Settings::default(), "{name}");
        let notice = notice.unwrap_or_else(|| panic!("{name}: nothing was said"));
        let kept = names(dir.path());
        assert_eq!(kept.len(), 1, "{name}: {kept:?}");
        assert!(kept[0].starts_with("settings.json.corrupt-"), "{name}: {kept:?}");
        assert!(notice.sentence.contains(&kept[0]), "{name}: {notice:?}");
        assert_eq!(std::fs::read(dir.path().join(&kept[0])).unwrap(), bytes, "{name}");
        save(&file, &unusual()).unwrap();
        assert_eq!(load(&file), (unusual(), None), "{name}");
    }
}

#[test]
fn a_folder_in_the_place_of_the_file_is_kept_aside() {
    let (_dir, file) = place();
    std::fs::create_dir_all(file.join("inside")).unwrap();
    let (settings, notice) = load(&file);
    assert_eq!(settings, Settings::default());
    assert!(notice.is_some());
    save(&file, &unusual()).unwrap();
    assert_eq!(load(&file), (unusual(), None));
}

#[test]
fn a_save_that_fails_leaves_the_old_settings_and_nothing_else() {
    let (dir, file) = place();
    // A folder that is not empty cannot be replaced by a file.
    std::fs::create_dir_all(file.join("inside")).unwrap();
    assert!(save(&file, &unusual()).is_err());
    assert_eq!(names(dir.path()), ["settings.json"]);
    std::fs::write(dir.path().join("file"), "").unwrap();
    assert!(save(&dir.path().join("file/settings.json"), &unusual()).is_err());
}

#[test]
fn a_reader_never_sees_half_a_file() {
    let (_dir, file) = place();
    let long = Settings { model_folders: vec!["x".repeat(1000); 300], ..unusual() };
    save(&file, &long).unwrap();
    std::thread::scope(|scope| {
        for settings in [unusual(), long.clone()] {
            let file = &file;
            scope.spawn(move || (0..40).for_each(|_| save(file, &settings).unwrap()));
        }
        for _ in 0..200 {
            let (seen, notice) = load(&file);
            assert_eq!(notice, None);
            assert!(seen == unusual() || seen == long);
        }
    });
}

fn app(dir: &Path) -> App {
    App::open(Paths {
        data: dir.to_owned(),
        starter: None,
        hub_cache: dir.join("hub"),
        lm_studio: Vec::new(),
    })
    .unwrap()
}

#[test]
fn the_app_keeps_settings_over_a_restart_and_refuses_bad_ones() {
    let (dir, file) = place();
    let first = app(dir.path());
    assert_eq!(first.info().settings, Settings::default());
    // Heads come from their own command only.
    let stored = Settings { model_heads: Default::default(), ..unusual() };
    assert_eq!(first.settings_set(unusual()).unwrap(), stored);
    let mut bad = unusual();
    bad.options.sampling.top_p = Some(0.0);
    assert_eq!(first.settings_set(bad).unwrap_err().code, ErrorCode::InvalidOption);
    assert_eq!(first.info().settings, stored);
    first.shutdown();
    let second = app(dir.path());
    assert_eq!(second.info().settings, stored);
    assert_eq!(second.info().notices, []);
    second.shutdown();
    std::fs::write(&file, "{").unwrap();
    let third = app(dir.path());
    assert_eq!(third.info().settings, Settings::default());
    assert_eq!(third.info().notices.len(), 1);
}

#[test]
fn changes_from_two_sides_both_stay() {
    let (dir, _) = place();
    let app = app(dir.path());
    let folders: Vec<PathBuf> = (0..40).map(|i| dir.path().join(format!("model{i}"))).collect();
    folders.iter().for_each(|folder| std::fs::create_dir(folder).unwrap());
    std::thread::scope(|scope| {
        for half in folders.chunks(20) {
            let app = app.clone();
            scope.spawn(move || {
                for folder in half {
                    let folder = folder.to_string_lossy().into_owned();
                    app.model_add_folder(foretoken_protocol::AddFolder { folder }).unwrap();
                }
            });
        }
    });
    assert_eq!(app.info().settings.model_folders.len(), 40);
}
