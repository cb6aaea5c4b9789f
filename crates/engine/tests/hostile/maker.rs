//! Makes a broken checkpoint: a copy of a fixture in a folder of its own, and the ways to damage it.

use crate::support::golden;
use safetensors::tensor::{TensorView, serialize};
use safetensors::{Dtype, SafeTensors};
use serde_json::Value;
use std::path::{Path, PathBuf};

pub const INDEX: &str = "model.safetensors.index.json";

/// A tensor on its way from one file to another.
#[derive(Debug, Clone)]
pub struct Stored {
    pub name: String,
    pub dtype: Dtype,
    pub shape: Vec<usize>,
    pub data: Vec<u8>,
}

impl Stored {
    /// Elements `at` become `value`; floats only.
    pub fn set(&mut self, at: impl IntoIterator<Item = usize>, value: f32) {
        let raw = match self.dtype {
            Dtype::F32 => value.to_le_bytes().to_vec(),
            Dtype::BF16 => half::bf16::from_f32(value).to_le_bytes().to_vec(),
            other => panic!("{} is {other:?}", self.name),
        };
        for i in at {
            self.data[i * raw.len()..(i + 1) * raw.len()].copy_from_slice(&raw);
        }
    }

    pub fn len(&self) -> usize {
        self.shape.iter().product()
    }

    /// The first `n` of its rows, or as many more copies of the first.
    pub fn rows(&mut self, n: usize) {
        let row = self.data.len() / self.shape[0];
        let first = self.data[..row].to_vec();
        self.data.truncate(n * row);
        while self.data.len() < n * row {
            self.data.extend(&first);
        }
        self.shape[0] = n;
    }
}

pub struct Folder(tempfile::TempDir);

impl Folder {
    /// A fixture's files but for its golden values.
    pub fn of(fixture: &str) -> Self {
        let dir = tempfile::tempdir().expect("a folder");
        for file in std::fs::read_dir(golden(fixture)).expect("the fixture") {
            let file = file.expect("a file").path();
            let name = file.file_name().and_then(|name| name.to_str()).expect("a name");
            if name.starts_with("model") || name.starts_with("mtp") || name == "config.json" {
                std::fs::copy(&file, dir.path().join(name)).expect("copies");
            }
        }
        Self(dir)
    }

    pub fn path(&self) -> &Path {
        self.0.path()
    }

    pub fn read(&self, file: &str) -> Vec<u8> {
        std::fs::read(self.path().join(file)).expect("the file is there")
    }

    pub fn write(&self, file: &str, raw: impl AsRef<[u8]>) {
        std::fs::write(self.path().join(file), raw).expect("writes");
    }

    pub fn remove(&self, file: &str) {
        std::fs::remove_file(self.path().join(file)).expect("the file is there");
    }

    /// A file with its bytes changed.
    pub fn bytes(&self, file: &str, edit: impl FnOnce(&mut Vec<u8>)) {
        let mut raw = self.read(file);
        edit(&mut raw);
        self.write(file, raw);
    }

    pub fn json(&self, file: &str, edit: impl FnOnce(&mut Value)) {
        let mut value = serde_json::from_slice(&self.read(file)).expect("JSON");
        edit(&mut value);
        self.write(file, value.to_string());
    }

    pub fn config(&self, edit: impl FnOnce(&mut Value)) {
        self.json("config.json", edit);
    }

    /// A setting by its name, or by its path when it starts with a slash.
    pub fn set(&self, key: &str, value: impl Into<Value>) {
        self.config(|c| match c.pointer_mut(key).filter(|_| key.starts_with('/')) {
            Some(place) => *place = value.into(),
            None => c[key] = value.into(),
        });
    }

    fn shards(&self) -> Vec<PathBuf> {
        let files = std::fs::read_dir(self.path()).expect("a folder");
        let files = files.map(|file| file.expect("a file").path());
        let mut all: Vec<PathBuf> =
            files.filter(|file| file.extension().is_some_and(|end| end == "safetensors")).collect();
        all.sort();
        all
    }

    /// Every shard's tensors, changed and written again.
    pub fn shard_by_shard(&self, mut edit: impl FnMut(&mut Vec<Stored>)) {
        for file in self.shards() {
            let mut tensors = stored(&file);
            edit(&mut tensors);
            write(&file, &tensors);
        }
    }

    /// Leaves out the tensors whose name fits; there must be one.
    pub fn lose(&self, lost: impl Fn(&str) -> bool) {
        let mut n = 0;
        self.shard_by_shard(|tensors| {
            let before = tensors.len();
            tensors.retain(|t| !lost(&t.name));
            n += before - tensors.len();
        });
        assert!(n > 0, "there is no such tensor");
    }

    /// Changes the tensors whose name fits; there must be one.
    pub fn each(&self, wanted: impl Fn(&str) -> bool, edit: impl Fn(&mut Stored)) {
        let mut n = 0;
        self.shard_by_shard(|tensors| {
            for t in tensors.iter_mut().filter(|t| wanted(&t.name)) {
                n += 1;
                edit(t);
            }
        });
        assert!(n > 0, "there is no such tensor");
    }

    pub fn tensor(&self, name: &str, edit: impl Fn(&mut Stored)) {
        self.each(|n| n == name, edit);
    }

    pub fn get(&self, name: &str) -> Stored {
        let all = self.shards().into_iter().flat_map(|file| stored(&file));
        all.into_iter().find(|t| t.name == name).unwrap_or_else(|| panic!("no {name}"))
    }

    /// Puts a tensor into the first shard.
    pub fn add(&self, tensor: Stored) {
        let file = &self.shards()[0];
        let mut tensors = stored(file);
        tensors.push(tensor);
        write(file, &tensors);
    }

    /// A copy of a tensor under another name, changed.
    pub fn copy(&self, name: &str, to: &str, edit: impl FnOnce(&mut Stored)) {
        let mut copy = Stored { name: to.to_owned(), ..self.get(name) };
        edit(&mut copy);
        self.add(copy);
    }

    /// A shard whose header says something else; its data stays.
    pub fn header(&self, shard: &str, edit: impl FnOnce(&mut Value)) {
        self.bytes(shard, |raw| {
            let n = u64::from_le_bytes(raw[..8].try_into().expect("eight bytes")) as usize;
            let mut header = serde_json::from_slice(&raw[8..8 + n]).expect("a header");
            edit(&mut header);
            let header = header.to_string();
            let length = (header.len() as u64).to_le_bytes();
            *raw = [&length, header.as_bytes(), &raw[8 + n..]].concat();
        });
    }
}

pub fn stored(file: &Path) -> Vec<Stored> {
    let raw = std::fs::read(file).expect("weights");
    let all = SafeTensors::deserialize(&raw).expect("safetensors");
    let own = |(name, t): (String, TensorView<'_>)| {
        let (shape, data) = (t.shape().to_vec(), t.data().to_vec());
        Stored { name, dtype: t.dtype(), shape, data }
    };
    all.tensors().into_iter().map(own).collect()
}

pub fn write(file: &Path, tensors: &[Stored]) {
    let views = tensors.iter().map(|t| {
        let view = TensorView::new(t.dtype, t.shape.clone(), &t.data);
        (t.name.clone(), view.unwrap_or_else(|e| panic!("{}: {e}", t.name)))
    });
    std::fs::write(file, serialize(views, None).expect("serialises")).expect("writes");
}
