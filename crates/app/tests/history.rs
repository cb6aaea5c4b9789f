//! Chats on disk: what is kept, what is found, and what happens to files that are not what they should be.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use foretoken_app::history::{History, HistoryError};
use foretoken_protocol::{FinishReason, ReplyStats, Role};
use std::path::{Path, PathBuf};
use tempfile::TempDir;

fn place() -> (TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("chats.sqlite3");
    (dir, file)
}

/// Opens a file that must be fine.
fn open(file: &Path) -> History {
    let (history, notice) = History::open(file).unwrap();
    assert_eq!(notice, None);
    history
}

/// A chat with one question and one answer; returns chat, question and answer.
fn talk(history: &History, question: &str, answer: &str) -> (i64, i64, i64) {
    let chat = history.create().unwrap().id;
    let user = history.add_user(chat, question, 1_000).unwrap().id;
    let reply = history.begin_reply(chat, "Tiny", 1_001).unwrap().id;
    history.finish_reply(reply, answer, None, FinishReason::Stop, None).unwrap();
    (chat, user, reply)
}

fn found(history: &History, query: &str) -> Vec<i64> {
    let mut ids: Vec<i64> =
        history.search(query).unwrap().into_iter().map(|hit| hit.chat_id).collect();
    ids.sort_unstable();
    ids
}

/// Files whose name begins with `name` and is longer.
fn set_aside(dir: &Path, name: &str) -> Vec<PathBuf> {
    let start = format!("{name}.corrupt-");
    let all = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    all.filter(|p| {
        let name = p.file_name().unwrap().to_string_lossy();
        name.starts_with(&start) && !name.ends_with("-wal") && !name.ends_with("-shm")
    })
    .collect()
}

#[test]
fn everything_comes_back_after_a_restart() {
    let (_dir, file) = place();
    let stats = ReplyStats {
        prompt_tokens: 7,
        generated_tokens: 3,
        drafted: vec![2, 1],
        accepted: vec![1, 0],
        accept_rate: Some(1.0 / 3.0),
        rule: "residual".to_owned(),
        ..ReplyStats::default()
    };
    let before = {
        let history = open(&file);
        let chat = history.create().unwrap();
        assert_eq!(chat.title, "");
        let user = history.add_user(chat.id, "Grüße 👋\nzweite Zeile\0 mit Null", 5).unwrap();
        assert_eq!((user.role, user.finish), (Role::User, None));
        let reply = history.begin_reply(chat.id, "Tiny", 6).unwrap();
        assert_eq!((reply.role, reply.text.as_str(), reply.finish), (Role::Assistant, "", None));
        history.save_progress(reply.id, "Hal", None).unwrap();
        history
            .finish_reply(reply.id, "Hallo", Some("kurz"), FinishReason::Length, Some(&stats))
            .unwrap();
        history.open_chat(chat.id).unwrap()
    };
    let history = open(&file);
    let after = history.open_chat(before.summary.id).unwrap();
    assert_eq!(after, before);
    assert_eq!(after.messages[0].text, "Grüße 👋\nzweite Zeile\0 mit Null");
    let reply = &after.messages[1];
    assert_eq!((reply.text.as_str(), reply.thought.as_deref()), ("Hallo", Some("kurz")));
    assert_eq!((reply.finish, reply.model.as_deref()), (Some(FinishReason::Length), Some("Tiny")));
    assert_eq!(reply.stats.as_ref(), Some(&stats));
    assert_eq!(history.list().unwrap(), [after.summary]);
}

#[test]
fn numbers_json_cannot_hold_do_not_cost_the_text() {
    let (_dir, file) = place();
    let history = open(&file);
    let chat = history.create().unwrap().id;
    let reply = history.begin_reply(chat, "Tiny", 1).unwrap().id;
    let stats = ReplyStats { decode_tok_s: f64::NAN, ..ReplyStats::default() };
    history.finish_reply(reply, "kept", None, FinishReason::Stop, Some(&stats)).unwrap();
    let message = history.open_chat(chat).unwrap().messages.remove(0);
    assert_eq!((message.text.as_str(), message.finish), ("kept", Some(FinishReason::Stop)));
}

#[test]
fn newest_chats_come_first() {
    let (_dir, file) = place();
    let history = open(&file);
    let ids: Vec<i64> = (0..3).map(|_| history.create().unwrap().id).collect();
    for (at, id) in [ids[1], ids[2], ids[0]].into_iter().enumerate() {
        history.add_user(id, "x", i64::MAX / 2 + at as i64).unwrap();
    }
    let order: Vec<i64> = history.list().unwrap().into_iter().map(|c| c.id).collect();
    assert_eq!(order, [ids[0], ids[2], ids[1]]);
}

#[test]
fn a_damaged_file_is_kept_aside_and_a_new_one_begun() {
    let garbage: Vec<u8> =
        (0..20_000u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    let good = {
        let (_dir, file) = place();
        let history = open(&file);
        for _ in 0..40 {
            talk(&history, &"question ".repeat(200), &"answer ".repeat(200));
        }
        drop(history);
        std::fs::read(&file).unwrap()
    };
    let mut lying = good.clone();
    lying[4096..]
        .copy_from_slice(&garbage.repeat(good.len() / garbage.len() + 1)[..good.len() - 4096]);
    let other_program = {
        let (_dir, file) = place();
        let connection = rusqlite::Connection::open(&file).unwrap();
        connection.execute_batch("CREATE TABLE recipes (name TEXT)").unwrap();
        std::fs::read(&file).unwrap()
    };
    let cases: [(&str, Vec<u8>); 6] = [
        ("garbage", garbage.clone()),
        ("text", b"these are my chats".to_vec()),
        ("half", good[..good.len() / 2].to_vec()),
        ("inside a page", good[..5000].to_vec()),
        ("valid header, garbage pages", lying),
        ("another program's database", other_program),
    ];
    for (name, bytes) in cases {
        let (dir, file) = place();
        std::fs::write(&file, &bytes).unwrap();
        let (history, notice) = History::open(&file).unwrap();
        let notice = notice.unwrap_or_else(|| panic!("{name}: nothing was said"));
        let kept = set_aside(dir.path(), "chats.sqlite3");
        assert_eq!(kept.len(), 1, "{name}");
        assert!(notice.sentence.contains(&*kept[0].to_string_lossy()), "{name}: {notice:?}");
        assert!(!notice.detail.is_empty(), "{name}");
        if name != "another program's database" {
            assert_eq!(std::fs::read(&kept[0]).unwrap(), bytes, "{name}: the old file is changed");
        }
        assert_eq!(history.list().unwrap(), [], "{name}");
        let (chat, ..) = talk(&history, "again", "yes");
        drop(history);
        assert_eq!(open(&file).list().unwrap()[0].id, chat, "{name}: the new file is kept");
    }
}

#[test]
fn two_damaged_files_in_one_second_are_both_kept() {
    let (dir, file) = place();
    for text in ["first", "second"] {
        std::fs::write(&file, text).unwrap();
        for suffix in ["-wal", "-shm"] {
            // A new file's own log would belong to nothing.
            drop(std::fs::remove_file(dir.path().join(format!("chats.sqlite3{suffix}"))));
        }
        assert!(History::open(&file).unwrap().1.is_some());
    }
    let mut texts: Vec<_> = set_aside(dir.path(), "chats.sqlite3")
        .into_iter()
        .map(|p| std::fs::read_to_string(p).unwrap())
        .collect();
    texts.sort();
    assert_eq!(texts, ["first", "second"]);
}

#[test]
fn an_empty_file_is_a_new_one() {
    let (dir, file) = place();
    std::fs::write(&file, b"").unwrap();
    let history = open(&file);
    assert_eq!(history.list().unwrap(), []);
    assert!(set_aside(dir.path(), "chats.sqlite3").is_empty());
}

#[test]
fn a_folder_in_the_place_of_the_file_is_kept_aside() {
    let (dir, file) = place();
    std::fs::create_dir(&file).unwrap();
    std::fs::write(file.join("inside"), "precious").unwrap();
    let (history, notice) = History::open(&file).unwrap();
    assert!(notice.is_some());
    talk(&history, "works", "yes");
    let kept = set_aside(dir.path(), "chats.sqlite3");
    assert_eq!(std::fs::read_to_string(kept[0].join("inside")).unwrap(), "precious");
}

#[test]
fn a_newer_file_is_refused_and_left_as_it_is() {
    let (dir, file) = place();
    drop(open(&file));
    rusqlite::Connection::open(&file).unwrap().pragma_update(None, "user_version", 99).unwrap();
    let before = std::fs::read(&file).unwrap();
    let refused = History::open(&file).unwrap_err();
    assert!(matches!(refused, HistoryError::NewerVersion { found: 99, known: 1 }), "{refused:?}");
    assert_eq!(std::fs::read(&file).unwrap(), before);
    assert!(set_aside(dir.path(), "chats.sqlite3").is_empty());

    let paths = foretoken_app::Paths {
        data: dir.path().to_owned(),
        starter: None,
        hub_cache: dir.path().join("hub"),
        lm_studio: Vec::new(),
    };
    let refused = foretoken_app::App::open(paths).err().unwrap();
    assert!(refused.message.contains("newer version"), "{refused:?}");
}

#[test]
fn a_place_that_cannot_be_written_is_an_error_and_no_panic() {
    let (dir, _) = place();
    std::fs::write(dir.path().join("file"), "").unwrap();
    let below_a_file = dir.path().join("file/chats.sqlite3");
    assert!(matches!(History::open(&below_a_file), Err(HistoryError::Io { .. })));
}

#[cfg(unix)]
#[test]
fn a_read_only_folder_is_an_error_or_writable_for_an_administrator() {
    use std::os::unix::fs::PermissionsExt;
    let (dir, file) = place();
    let (chat, ..) = talk(&open(&file), "before", "yes");
    let mode = |path: &Path, mode| {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    };
    mode(&file, 0o444);
    mode(dir.path(), 0o555);
    let everything_allowed = std::fs::write(dir.path().join("probe"), "").is_ok();
    let opened = History::open(&file);
    let untouched = set_aside(dir.path(), "chats.sqlite3").is_empty();
    mode(dir.path(), 0o755);
    mode(&file, 0o644);
    assert_eq!(opened.is_ok(), everything_allowed, "{opened:?}");
    assert!(untouched, "a file that cannot be written is not damaged");
    drop(opened);
    assert_eq!(open(&file).open_chat(chat).unwrap().messages.len(), 2);
}

#[test]
fn a_reply_that_never_ended_is_interrupted_and_searchable() {
    let (_dir, file) = place();
    let (chat, reply) = {
        let history = open(&file);
        let chat = history.create().unwrap().id;
        history.add_user(chat, "Tell me", 1).unwrap();
        let reply = history.begin_reply(chat, "Tiny", 2).unwrap().id;
        history.save_progress(reply, "Once upon a pineapple", Some("hm")).unwrap();
        assert_eq!(history.open_chat(chat).unwrap().messages[1].finish, None);
        (chat, reply)
    };
    let history = open(&file);
    let message = history.open_chat(chat).unwrap().messages.remove(1);
    assert_eq!((message.id, message.finish), (reply, Some(FinishReason::Interrupted)));
    assert_eq!(message.text, "Once upon a pineapple");
    assert_eq!(message.thought.as_deref(), Some("hm"));
    assert_eq!(found(&history, "pineapple"), [chat]);
}

#[test]
fn two_open_histories_share_one_file() {
    let (_dir, file) = place();
    let first = open(&file);
    let chat = first.create().unwrap().id;
    first.add_user(chat, "shared", 1).unwrap();
    let reply = first.begin_reply(chat, "Tiny", 2).unwrap().id;
    // The second marks the first one's reply; the first goes on all the same.
    let second = open(&file);
    first.save_progress(reply, "half", None).unwrap();
    first.finish_reply(reply, "whole", None, FinishReason::Stop, None).unwrap();
    let seen = second.open_chat(chat).unwrap().messages.remove(1);
    assert_eq!((seen.text.as_str(), seen.finish), ("whole", Some(FinishReason::Stop)));

    std::thread::scope(|scope| {
        for history in [&first, &second] {
            scope.spawn(move || {
                for i in 0..50 {
                    talk(history, &format!("question {i}"), "answer");
                }
            });
        }
    });
    assert_eq!(first.list().unwrap().len(), 101);
    assert_eq!(first.list().unwrap(), second.list().unwrap());
}

#[test]
fn search_takes_every_input_as_text() {
    let (_dir, file) = place();
    let history = open(&file);
    let (code, ..) = talk(&history, "Say \"hello\" AND wave", "SELECT * FROM t; NEAR(a b)");
    let (emoji, ..) = talk(&history, "I like 🍍 on pizza 👩‍🚀", "C++ and C# über naïve café");
    let (cjk, ..) = talk(&history, "東京都の天気を教えて", "ภาษาไทย 你好世界");
    for (query, want) in [
        ("hello", vec![code]),
        ("HELLO wav", vec![code]),
        ("\"hello\"", vec![code]),
        ("\"hello", vec![code]),
        ("AND", vec![code, emoji]),
        ("AND AND", vec![code, emoji]),
        ("hello OR pizza", vec![]),
        ("NOT hello", vec![]),
        ("near(", vec![code]),
        ("select *", vec![code]),
        ("body:hello", vec![]),
        ("🍍", vec![emoji]),
        ("👩‍🚀", vec![emoji]),
        ("cafe", vec![emoji]),
        ("ÜBER", vec![emoji]),
        ("c++", vec![emoji]),
        ("京都", vec![cjk]),
        ("天気", vec![cjk]),
        ("気天", vec![]),
        ("世界", vec![cjk]),
        ("ไทย", vec![cjk]),
        ("", vec![]),
        ("   \n\t ", vec![]),
        ("*", vec![]),
        ("\"", vec![]),
        ("\"\"\"", vec![]),
        ("( ) ^ - + : { }", vec![]),
        ("\0\u{2}\u{3}", vec![]),
        ("\u{300}", vec![]),
        ("\u{903}", vec![]),
        ("\u{200b}", vec![]),
        ("\u{feff}", vec![]),
    ] {
        assert_eq!(found(&history, query), want, "{query:?}");
    }
    for long in
        ["x".repeat(200_000), "word ".repeat(50_000), "字".repeat(5_000), "\"*".repeat(9_000)]
    {
        assert_eq!(found(&history, &long), Vec::<i64>::new());
    }
    let hit = history.search("hello").unwrap().remove(0);
    assert!(hit.excerpt.contains("\u{2}hello\u{3}"), "{:?}", hit.excerpt);
    let hit = history.search("天気").unwrap().remove(0);
    assert!(!hit.excerpt.contains('\u{200b}'), "{:?}", hit.excerpt);
    assert_eq!(hit.title, "東京都の天気を教えて");
}

#[test]
fn every_character_can_be_looked_for() {
    let (_dir, file) = place();
    let history = open(&file);
    talk(&history, "nothing special", "at all");
    // One query per block: what matters is that none is an error.
    for start in (0..=0x10ffffu32).step_by(0x40) {
        for c in [char::from_u32(start), char::from_u32(start + 0x21)].into_iter().flatten() {
            history.search(&c.to_string()).unwrap_or_else(|e| panic!("{c:?}: {e}"));
            history.search(&format!("{c} x{c}y \"{c}")).unwrap_or_else(|e| panic!("{c:?}: {e}"));
        }
    }
    assert_eq!(found(&history, "special").len(), 1);
}

#[test]
fn titles_come_from_the_first_message_until_somebody_names_the_chat() {
    let (_dir, file) = place();
    let history = open(&file);
    let chat = history.create().unwrap().id;
    history.add_user(chat, "  Erzähl\nmir von 🦆 und 👩‍👩‍👧‍👦!  ", 1).unwrap();
    history.add_user(chat, "second", 2).unwrap();
    assert_eq!(history.list().unwrap()[0].title, "Erzähl mir von 🦆 und 👩‍👩‍👧‍👦!");
    for title in
        ["日本語の題名", "עברית", "e\u{301}tude", "a'; DROP TABLE chats; --", "𝕏 \u{202e}abc"]
    {
        let named = history.rename(chat, title).unwrap();
        assert_eq!(named.title, title.split_whitespace().collect::<Vec<_>>().join(" "));
        assert_eq!(history.open_chat(chat).unwrap().summary.title, named.title);
    }
    assert_eq!(history.rename(chat, " \n two \t words ").unwrap().title, "two words");
    assert_eq!(found(&history, "two"), [chat]);
    assert_eq!(history.rename(chat, "  ").unwrap().title, "Erzähl mir von 🦆 und 👩‍👩‍👧‍👦!");
    assert_eq!(found(&history, "two"), Vec::<i64>::new(), "the old title is forgotten");
    assert!(matches!(history.rename(99, "x"), Err(HistoryError::NoSuchChat { chat_id: 99 })));
}

#[test]
fn deleting_a_chat_takes_its_messages_and_what_search_knew() {
    let (_dir, file) = place();
    let history = open(&file);
    let (gone, _, reply) = talk(&history, "apricot", "walnut");
    let (stays, ..) = talk(&history, "apricot too", "hazelnut");
    history.delete(gone).unwrap();
    assert!(matches!(history.open_chat(gone), Err(HistoryError::NoSuchChat { .. })));
    assert!(matches!(history.delete(gone), Err(HistoryError::NoSuchChat { .. })));
    assert_eq!(found(&history, "apricot"), [stays]);
    assert_eq!(found(&history, "walnut"), Vec::<i64>::new());
    assert!(matches!(
        history.finish_reply(reply, "late", None, FinishReason::Stop, None),
        Err(HistoryError::NoSuchMessage { .. })
    ));
    assert!(matches!(
        history.save_progress(reply, "late", None),
        Err(HistoryError::NoSuchMessage { .. })
    ));
    assert!(matches!(history.add_user(gone, "x", 1), Err(HistoryError::NoSuchChat { .. })));
    assert!(matches!(history.begin_reply(gone, "m", 1), Err(HistoryError::NoSuchChat { .. })));
    // An id is never given twice, so a late reply cannot land in another chat.
    drop(history);
    let history = open(&file);
    history.delete(stays).unwrap();
    let (next, _, next_reply) = talk(&history, "new", "new");
    assert!(next > stays && next_reply > reply + 2);
}

#[test]
fn truncating_takes_a_message_and_all_after_it() {
    let (_dir, file) = place();
    let history = open(&file);
    let (chat, first, second) = talk(&history, "one", "two");
    let third = history.add_user(chat, "three", 9_000).unwrap().id;
    let (other, _, foreign) = talk(&history, "elsewhere", "kept");
    assert!(matches!(
        history.truncate_from(chat, foreign),
        Err(HistoryError::NoSuchMessage { .. })
    ));
    assert!(matches!(history.truncate_from(chat, 999), Err(HistoryError::NoSuchMessage { .. })));
    assert_eq!(history.open_chat(chat).unwrap().messages.len(), 3);
    history.truncate_from(chat, second).unwrap();
    let left: Vec<i64> =
        history.open_chat(chat).unwrap().messages.into_iter().map(|m| m.id).collect();
    assert_eq!(left, [first]);
    assert!(!left.contains(&third));
    assert_eq!(found(&history, "two"), Vec::<i64>::new());
    assert_eq!(found(&history, "three"), Vec::<i64>::new());
    assert_eq!(history.open_chat(chat).unwrap().summary.updated_ms, 1_000);
    assert_eq!(found(&history, "kept"), [other]);
}
