use crate::{EngineError, Result};
use safetensors::Dtype;
use serde_json::{Map, json};
use std::fs::File;
use std::io::{Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

/// A tensor a file will hold.
#[derive(Debug, Clone)]
pub(super) struct Entry {
    pub name: String,
    pub dtype: Dtype,
    pub shape: Vec<usize>,
}

impl Entry {
    pub fn n_bytes(&self) -> u64 {
        (self.shape.iter().product::<usize>() * self.dtype.bitsize() / 8) as u64
    }
}

/// A safetensors file written in pieces, in any order: the crate of that name writes from whole tensors in memory only.
pub(super) struct ShardWriter {
    path: PathBuf,
    file: File,
    /// Where each entry's bytes begin in the file, in the entries' order.
    starts: Vec<u64>,
}

/// Metadata every file of the layout carries.
const FORMAT: &str = "mlx";

impl ShardWriter {
    /// Writes the header. Entries of wide elements come first in the file, so that each lies on a multiple of its own size.
    pub fn create(path: &Path, entries: &[Entry]) -> Result<Self> {
        let mut order: Vec<usize> = (0..entries.len()).collect();
        order.sort_by_key(|i| (std::cmp::Reverse(entries[*i].dtype.bitsize()), *i));
        let mut header = Map::new();
        header.insert("__metadata__".to_owned(), json!({"format": FORMAT}));
        let (mut at, mut starts) = (0u64, vec![0u64; entries.len()]);
        for i in order {
            let entry = &entries[i];
            starts[i] = at;
            let end = at + entry.n_bytes();
            header.insert(
                entry.name.clone(),
                json!({"dtype": entry.dtype, "shape": entry.shape, "data_offsets": [at, end]}),
            );
            at = end;
        }
        let mut text = serde_json::to_vec(&header).expect("a JSON object serialises");
        text.resize(text.len().next_multiple_of(8), b' ');
        let base = 8 + text.len() as u64;
        starts.iter_mut().for_each(|start| *start += base);
        let io = || EngineError::io(path);
        let mut file = File::create(path).map_err(io())?;
        file.write_all(&(text.len() as u64).to_le_bytes()).map_err(io())?;
        file.write_all(&text).map_err(io())?;
        file.set_len(base + at).map_err(io())?;
        Ok(Self { path: path.to_owned(), file, starts })
    }

    /// Bytes of entry `i`, `offset` bytes from its beginning.
    pub fn write(&mut self, i: usize, offset: u64, bytes: &[u8]) -> Result<()> {
        let at = SeekFrom::Start(self.starts[i] + offset);
        let done = self.file.seek(at).and_then(|_| self.file.write_all(bytes));
        done.map_err(EngineError::io(&self.path))
    }

    /// Returns once the disk has it.
    pub fn finish(self) -> Result<()> {
        self.file.sync_all().map_err(EngineError::io(self.path))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::weights::Shard;

    #[test]
    fn pieces_in_any_order_read_back() {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let path = dir.path().join("model.safetensors");
        let entry = |name: &str, dtype, shape: &[usize]| Entry {
            name: name.to_owned(),
            dtype,
            shape: shape.to_vec(),
        };
        let entries = [entry("half", Dtype::BF16, &[3]), entry("word", Dtype::U32, &[2, 1])];
        let mut writer = ShardWriter::create(&path, &entries).expect("creates");
        writer.write(1, 4, &[5, 6, 7, 8]).expect("writes");
        writer.write(0, 0, &[1, 1, 2, 2, 3, 3]).expect("writes");
        writer.write(1, 0, &[1, 2, 3, 4]).expect("writes");
        writer.finish().expect("syncs");
        let shard = Shard::open(&path).expect("a valid file");
        assert_eq!(shard.raw("word").expect("there").as_slice(), [1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(shard.raw("half").expect("there").as_slice(), [1, 1, 2, 2, 3, 3]);
    }
}
