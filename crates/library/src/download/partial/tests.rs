//! Every way a partial file and its journal can be left behind.

use super::*;
use sha2::{Digest, Sha256};

const SIZE: u64 = 1000;
const MARK: u64 = 100;

fn content() -> Vec<u8> {
    (0..SIZE).map(|i| (i * 7 % 251) as u8).collect()
}

fn id() -> ContentId {
    let hex = Sha256::digest(content()).iter().map(|b| format!("{b:02x}")).collect();
    ContentId::Sha256(hex)
}

struct Place {
    dir: tempfile::TempDir,
}

impl Place {
    fn new() -> Self {
        Self { dir: tempfile::tempdir().unwrap() }
    }

    fn path(&self) -> PathBuf {
        self.dir.path().join("blob.incomplete")
    }

    fn open(&self) -> Partial {
        Partial::open(&self.path(), &id(), SIZE, MARK, &AtomicBool::new(false)).unwrap().unwrap()
    }

    /// Fetches up to `to`, in pieces that do not fit the marks.
    fn fetch(&self, partial: &mut Partial, to: u64, bytes: &[u8]) {
        let (mut writing, mut hashing) = partial.halves().unwrap();
        for piece in bytes[partial.len as usize..to as usize].chunks(37) {
            writing.push(piece).unwrap();
            hashing.push(piece).unwrap();
        }
        partial.join(hashing);
    }
}

#[test]
fn takes_over_every_byte_and_proves_the_whole() {
    let place = Place::new();
    let mut partial = place.open();
    place.fetch(&mut partial, 250, &content());
    drop(partial);
    let mut again = place.open();
    assert_eq!((again.len, again.doubt), (250, Some(200)));
    place.fetch(&mut again, SIZE, &content());
    assert!(again.is_full());
    assert_eq!(again.wrong_hash(), None);
    let blob = place.dir.path().join("blob");
    again.finish(&blob).unwrap();
    assert_eq!(std::fs::read(blob).unwrap(), content());
    assert_eq!(std::fs::read_dir(place.dir.path()).unwrap().count(), 1, "no journal stays");
}

#[test]
fn whatever_is_cut_off_journal_and_file_the_resume_is_right() {
    for cut in 0..400 {
        let place = Place::new();
        let mut partial = place.open();
        place.fetch(&mut partial, 730, &content());
        drop(partial);
        let path = if cut % 2 == 0 { journal(&place.path()) } else { place.path() };
        let file = OpenOptions::new().write(true).open(&path).unwrap();
        file.set_len(file.metadata().unwrap().len().saturating_sub(cut)).unwrap();
        let mut again = place.open();
        assert_eq!(again.len, bytes_there(&place.path()), "no byte is dropped, cut {cut}");
        place.fetch(&mut again, SIZE, &content());
        assert_eq!(again.wrong_hash(), None, "cut {cut}");
    }
}

#[test]
fn bytes_that_a_power_cut_turned_to_zeros_are_dropped_from_the_last_good_mark_on() {
    let place = Place::new();
    let mut partial = place.open();
    place.fetch(&mut partial, 730, &content());
    let mut zeroed = content();
    zeroed.truncate(730);
    zeroed[430..].fill(0);
    std::fs::write(place.path(), &zeroed).unwrap();
    let mut again = place.open();
    assert_eq!((again.len, again.doubt), (400, None));
    place.fetch(&mut again, SIZE, &content());
    assert_eq!(again.wrong_hash(), None);
}

#[test]
fn a_wrong_tail_without_a_mark_costs_the_tail_only() {
    let place = Place::new();
    let mut partial = place.open();
    place.fetch(&mut partial, 730, &content());
    let mut zeroed = content();
    zeroed.truncate(730);
    zeroed[710..].fill(0);
    std::fs::write(place.path(), &zeroed).unwrap();
    let mut again = place.open();
    assert_eq!((again.len, again.doubt), (730, Some(700)));
    // The next run is interrupted too: the doubt must not be forgotten.
    place.fetch(&mut again, 905, &content());
    let mut again = place.open();
    assert_eq!((again.len, again.doubt), (905, Some(700)));
    place.fetch(&mut again, SIZE, &content());
    assert!(again.wrong_hash().is_some());
    assert!(again.go_back().unwrap());
    assert_eq!(again.len, 700);
    place.fetch(&mut again, SIZE, &content());
    assert_eq!(again.wrong_hash(), None);
}

#[test]
fn wrong_bytes_from_the_line_cost_the_file() {
    let place = Place::new();
    let mut wrong = content();
    wrong[5] ^= 1;
    let mut partial = place.open();
    place.fetch(&mut partial, SIZE, &wrong);
    assert!(partial.wrong_hash().is_some());
    assert!(!partial.go_back().unwrap());
    assert_eq!(partial.len, 0);
    place.fetch(&mut partial, SIZE, &content());
    assert_eq!(partial.wrong_hash(), None);
}

#[test]
fn a_file_that_was_cut_behind_our_back_gets_no_name() {
    let place = Place::new();
    let mut partial = place.open();
    place.fetch(&mut partial, SIZE, &content());
    OpenOptions::new().write(true).open(place.path()).unwrap().set_len(999).unwrap();
    assert_eq!(partial.wrong_hash(), None);
    let blob = place.dir.path().join("blob");
    assert!(partial.finish(&blob).is_err());
    assert!(!blob.exists());
}

#[test]
fn what_another_tool_began_is_continued() {
    let place = Place::new();
    std::fs::write(place.path(), &content()[..333]).unwrap();
    let mut partial = place.open();
    assert_eq!((partial.len, partial.doubt), (333, Some(0)));
    place.fetch(&mut partial, SIZE, &content());
    assert_eq!(partial.wrong_hash(), None);
}

#[test]
fn a_file_that_is_too_long_is_cut() {
    let place = Place::new();
    std::fs::write(place.path(), [content(), vec![1; 50]].concat()).unwrap();
    let partial = place.open();
    assert!(partial.is_full());
    assert_eq!(partial.wrong_hash(), None);
    assert_eq!(bytes_there(&place.path()), SIZE);
}

#[test]
fn hashing_again_stops_when_told() {
    let place = Place::new();
    std::fs::write(place.path(), content()).unwrap();
    let stopped = Partial::open(&place.path(), &id(), SIZE, MARK, &AtomicBool::new(true)).unwrap();
    assert!(stopped.is_none());
}

#[test]
fn small_files_are_hashed_as_git_does() {
    // `printf hello | git hash-object --stdin`
    let known = ContentId::GitBlob("b6fc4c620b67d95f953a5c1c1230aaab5db5a1b0".to_owned());
    let mut hash = Hasher::new(&known, 5);
    hash.update(b"hel");
    hash.update(b"lo");
    assert_eq!(hash.hex(), known.hex());
}
