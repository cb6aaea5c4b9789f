//! Weights where a runner's kernels can read them: in the mapped file as it lies, copied only what cannot be read there.

use super::{FloatArray, GpuError, Matrix, Runner, Storage, View};
use crate::{Bytes, FloatType, Weight};
use std::collections::HashMap;

/// Every file once.
pub struct Shelf<'r> {
    runner: &'r dyn Runner,
    /// By the address of the memory; `None` = it cannot be wrapped.
    files: HashMap<usize, Option<View>>,
    /// By address and length; the weights outlive the shelf's work.
    copies: HashMap<(usize, usize), View>,
    /// Bytes that weights take, in place or copied.
    pub n_bytes: u64,
    /// Of those, the copied ones.
    pub n_copied: u64,
    /// Of those, what the GPU holds once more with the file it comes from.
    n_twice: u64,
    /// The most there may be of that.
    room: Option<u64>,
}

impl<'r> Shelf<'r> {
    /// `room`: bytes of copies beside the files they come from; `None` = as many as there are.
    pub fn new(runner: &'r dyn Runner, room: Option<u64>) -> Self {
        let (files, copies) = (HashMap::new(), HashMap::new());
        Self { runner, files, copies, n_bytes: 0, n_copied: 0, n_twice: 0, room }
    }

    pub fn runner(&self) -> &'r dyn Runner {
        self.runner
    }

    /// f32 values in a buffer of their own.
    pub fn floats(&mut self, values: &[f32]) -> Result<FloatArray, GpuError> {
        let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        Ok(FloatArray { at: self.copy(&bytes, true)?, float: FloatType::F32 })
    }

    pub fn matrix(&mut self, weight: &Weight) -> Result<Matrix, GpuError> {
        self.stack(std::slice::from_ref(weight))
    }

    /// Matrices of one shape and storage as [parts, n, k] in one piece; the result says n and k of one. Parts that do not
    /// follow each other in one file are copied together.
    pub fn stack(&mut self, parts: &[Weight]) -> Result<Matrix, GpuError> {
        let shape = super::LaunchError::Shape("a stack of matrices that differ");
        let first = parts.first().ok_or(shape.clone())?;
        let ((n, k), storage) = (first.dims(), storage(first));
        if parts.iter().any(|part| part.dims() != (n, k) || self::storage(part) != storage) {
            return Err(shape.into());
        }
        let mut place = |pick: fn(&Weight) -> &Bytes, align| {
            let pieces: Vec<&Bytes> = parts.iter().map(pick).collect();
            self.place(&pieces, align)
        };
        let (codes, scales, biases) = match storage {
            Storage::Affine { scales: float, .. } => (
                place(|w| tensors(w)[0], 4)?,
                place(|w| tensors(w)[1], float.size())?,
                place(|w| tensors(w)[2], float.size())?,
            ),
            Storage::Dense(float) => {
                let at = place(|w| tensors(w)[0], float.size())?;
                (at, at, at)
            }
        };
        let matrix = Matrix { storage, n, k, codes, scales, biases };
        matrix.check()?;
        Ok(matrix)
    }

    fn place(&mut self, pieces: &[&Bytes], align: usize) -> Result<View, GpuError> {
        let follow = pieces.windows(2).all(|pair| pair[0].is_followed_by(pair[1]));
        let file = pieces.first().map_or(Ok(None), |first| self.file(first))?;
        if let (true, Some(first), Some(file)) = (follow, pieces.first(), file)
            && first.offset().is_multiple_of(align)
        {
            self.n_bytes += pieces.iter().map(|piece| piece.len() as u64).sum::<u64>();
            return Ok(file.plus(first.offset()));
        }
        match pieces {
            [one] => {
                // A tied head is the embedding once more.
                let key = (one.as_slice().as_ptr() as usize, one.len());
                if let Some(known) = self.copies.get(&key) {
                    return Ok(*known);
                }
                let view = self.copy(one.as_slice(), file.is_some())?;
                self.copies.insert(key, view);
                Ok(view)
            }
            many => {
                let slices: Vec<&[u8]> = many.iter().map(|piece| piece.as_slice()).collect();
                self.make_room(slices.iter().map(|slice| slice.len()).sum(), file.is_some())?;
                self.copy(&slices.concat(), file.is_some())
            }
        }
    }

    fn file(&mut self, bytes: &Bytes) -> Result<Option<View>, GpuError> {
        let address = bytes.owner_slice().as_ptr() as usize;
        if let Some(known) = self.files.get(&address) {
            return Ok(*known);
        }
        let view = if bytes.is_mapped() { self.runner.wrap(bytes)? } else { None };
        self.files.insert(address, view);
        Ok(view)
    }

    /// Refuses a copy before its memory is asked for.
    fn make_room(&self, bytes: usize, twice: bool) -> Result<(), GpuError> {
        let more = self.n_twice + bytes as u64;
        match self.room {
            Some(room) if twice && more > room => Err(GpuError::Copies(more)),
            _ => Ok(()),
        }
    }

    /// `twice`: what it comes from stays in a buffer too.
    fn copy(&mut self, bytes: &[u8], twice: bool) -> Result<View, GpuError> {
        self.make_room(bytes.len(), twice)?;
        let n = bytes.len() as u64;
        self.n_bytes += n;
        self.n_copied += n;
        self.n_twice += if twice { n } else { 0 };
        self.runner.put(bytes)
    }
}

fn storage(weight: &Weight) -> Storage {
    match weight {
        Weight::Affine(w) => Storage::Affine { bits: w.bits, group: w.group, scales: w.scale_type },
        Weight::Dense(w) => Storage::Dense(w.float),
    }
}

/// Codes, scales and biases; of plain floats three times the same.
fn tensors(weight: &Weight) -> [&Bytes; 3] {
    match weight {
        Weight::Affine(w) => [&w.codes, &w.scales, &w.biases],
        Weight::Dense(w) => [&w.data; 3],
    }
}
