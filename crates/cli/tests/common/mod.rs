//! Running the program and building model folders that are not what they should be.
#![allow(dead_code, reason = "each test file uses its own part")]

use serde_json::{Value, json};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use tempfile::TempDir;

/// What one run gave.
pub struct Run {
    pub code: i32,
    pub stdout: String,
    pub stderr: String,
}

impl Run {
    /// The objects on stdout; every line must be one.
    pub fn lines(&self) -> Vec<Value> {
        let parse = |line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{line:?}: {e}"));
        self.stdout.lines().map(parse).collect()
    }

    /// The last object of a run that went well.
    pub fn result(&self) -> Value {
        assert_eq!(self.code, 0, "{}", self.stderr);
        self.lines().pop().expect("a result")
    }

    /// The error of a run that was refused, in the promised form.
    pub fn refusal(&self, what: &str) -> Refusal {
        assert!(!self.stderr.contains("panicked"), "{what}: {}", self.stderr);
        assert!(self.code == 1 || self.code == 2, "{what}: exit code {}", self.code);
        let progress =
            |line: &str| serde_json::from_str::<Value>(line).is_ok_and(|v| v["kind"].is_string());
        assert!(self.stdout.lines().all(progress), "{what}: {}", self.stdout);
        let objects: Vec<Value> = self
            .stderr
            .lines()
            .filter_map(|line| serde_json::from_str(line).ok())
            .filter(Value::is_object)
            .collect();
        assert_eq!(objects.len(), 1, "{what}: {}", self.stderr);
        let object = objects[0].as_object().unwrap();
        let keys: Vec<&str> = object.keys().map(String::as_str).collect();
        assert_eq!(keys, ["code", "message", "detail"], "{what}");
        let text = |key: &str| object[key].as_str().unwrap().to_owned();
        let refusal = Refusal { code: text("code"), message: text("message") };
        // What is wrong, then what to do.
        let sentences =
            refusal.message.ends_with('.') && refusal.message.matches(['.', ':']).count() > 1;
        assert!(sentences, "{what}: {:?} names no next step", refusal.message);
        refusal
    }

    /// Refused with this code and a message that holds all of `words`.
    pub fn refused(&self, what: &str, code: &str, words: &[&str]) {
        let refusal = self.refusal(what);
        assert_eq!(refusal.code, code, "{what}: {}", refusal.message);
        for word in words {
            assert!(refusal.message.contains(word), "{what}: {:?} lacks {word:?}", refusal.message);
        }
    }
}

pub struct Refusal {
    pub code: String,
    pub message: String,
}

pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

pub fn starter() -> PathBuf {
    let here = std::env::var_os("FORETOKEN_STARTER").map(PathBuf::from);
    let dir = here.unwrap_or_else(|| root().join(".starter"));
    assert!(dir.join("config.json").is_file(), "the starter model is not built: run ./dev test");
    dir.canonicalize().unwrap()
}

/// A folder for one test; the program keeps its own things in there too.
pub struct Place {
    pub dir: TempDir,
}

impl Place {
    pub fn new() -> Self {
        Self { dir: tempfile::tempdir().unwrap() }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Writes a file and gives its path as an argument.
    pub fn file(&self, name: &str, content: impl AsRef<[u8]>) -> String {
        let path = self.path(name);
        std::fs::write(&path, content).unwrap();
        path.to_string_lossy().into_owned()
    }

    pub fn run(&self, args: &[&str]) -> Run {
        self.run_with_input(args, b"")
    }

    pub fn run_with_input(&self, args: &[&str], input: &[u8]) -> Run {
        self.run_in(args, input, &[])
    }

    /// With these variables besides.
    pub fn run_with(&self, args: &[&str], variables: &[(&str, &str)]) -> Run {
        self.run_in(args, b"", variables)
    }

    fn run_in(&self, args: &[&str], input: &[u8], variables: &[(&str, &str)]) -> Run {
        let mut child = Command::new(env!("CARGO_BIN_EXE_foretoken"))
            .args(args)
            .env("HOME", self.dir.path())
            .env("XDG_DATA_HOME", self.path("data"))
            .env("HF_HUB_CACHE", self.path("hub"))
            .env("FORETOKEN_STARTER", starter())
            .env_remove("FORETOKEN_LOG")
            // The person's own hub and keychain are not a test's matter.
            .env_remove("HF_ENDPOINT")
            .env_remove("HF_TOKEN")
            .env_remove("XDG_RUNTIME_DIR")
            .env("DBUS_SESSION_BUS_ADDRESS", "unix:path=/nonexistent")
            .env_remove("FORETOKEN_METAL")
            .envs(variables.iter().copied())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut stdin = child.stdin.take().unwrap();
        // A program that refuses its arguments never reads its input.
        drop(stdin.write_all(input));
        drop(stdin);
        let Output { status, stdout, stderr } = child.wait_with_output().unwrap();
        Run {
            code: status.code().unwrap_or(-1),
            stdout: String::from_utf8(stdout).unwrap(),
            stderr: String::from_utf8_lossy(&stderr).into_owned(),
        }
    }

    /// A copy of the tiny checkpoint, without a tokenizer.
    pub fn tiny(&self, name: &str) -> Folder {
        let folder = Folder(self.path(name));
        std::fs::create_dir(&folder.0).unwrap();
        for file in ["config.json", "model.safetensors"] {
            let raw = std::fs::read(root().join("tests/golden/llama-tiny").join(file)).unwrap();
            folder.write(file, raw);
        }
        folder
    }

    /// The tiny checkpoint with the starter's tokenizer, whose ids do not fit it, and its template.
    pub fn talking(&self, name: &str) -> Folder {
        let folder = self.tiny(name);
        for file in ["tokenizer.json", "tokenizer_config.json", "chat_template.jinja"] {
            std::fs::copy(starter().join(file), folder.0.join(file)).unwrap();
        }
        folder
    }
}

pub struct Folder(pub PathBuf);

/// Name, the header's entry without offsets, and the bytes.
pub type Tensor = (String, Value, Vec<u8>);
pub type Tensors = Vec<Tensor>;

impl Folder {
    pub fn arg(&self) -> &str {
        self.0.to_str().unwrap()
    }

    pub fn write(&self, file: &str, content: impl AsRef<[u8]>) {
        std::fs::write(self.0.join(file), content).unwrap();
    }

    pub fn read(&self, file: &str) -> Vec<u8> {
        std::fs::read(self.0.join(file)).unwrap()
    }

    pub fn remove(&self, file: &str) {
        std::fs::remove_file(self.0.join(file)).unwrap();
    }

    pub fn config(&self, change: impl FnOnce(&mut Value)) {
        let mut config: Value = serde_json::from_slice(&self.read("config.json")).unwrap();
        change(&mut config);
        self.write("config.json", config.to_string());
    }

    /// Rewrites the shard with other tensors.
    pub fn tensors(&self, change: impl FnOnce(&mut Tensors)) {
        let raw = self.read("model.safetensors");
        let mut tensors = tensors_of(&raw);
        change(&mut tensors);
        let (mut header, mut data) = (serde_json::Map::new(), Vec::new());
        for (name, info, bytes) in tensors {
            let mut info = info;
            info["data_offsets"] = json!([data.len(), data.len() + bytes.len()]);
            header.insert(name, info);
            data.extend(bytes);
        }
        let header = Value::Object(header).to_string();
        let mut out = (header.len() as u64).to_le_bytes().to_vec();
        out.extend(header.as_bytes());
        out.extend(data);
        self.write("model.safetensors", out);
    }
}

/// The tensors of a safetensors file in the order of their bytes.
pub fn tensors_of(raw: &[u8]) -> Tensors {
    let n = u64::from_le_bytes(raw[..8].try_into().unwrap()) as usize;
    let header: serde_json::Map<String, Value> = serde_json::from_slice(&raw[8..8 + n]).unwrap();
    let mut tensors: Vec<(usize, Tensor)> = Vec::new();
    for (name, mut info) in header {
        if name == "__metadata__" {
            continue;
        }
        let offset = |i: usize| info["data_offsets"][i].as_u64().unwrap() as usize;
        let (from, to) = (offset(0), offset(1));
        info.as_object_mut().unwrap().remove("data_offsets");
        tensors.push((from, (name, info, raw[8 + n + from..8 + n + to].to_vec())));
    }
    tensors.sort_by_key(|(from, _)| *from);
    tensors.into_iter().map(|(_, tensor)| tensor).collect()
}
