//! Weight matrices [n, k] as they lie in a checkpoint: MLX affine quantised, or plain floats. Never copied.

use crate::Bytes;
use candle_core::{Device, Result, Tensor};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FloatType {
    F32,
    F16,
    BF16,
}

impl FloatType {
    pub fn size(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::BF16 => 2,
        }
    }

    /// Element `i` of little-endian raw data.
    pub fn get(self, raw: &[u8], i: usize) -> f32 {
        let half = |i: usize| [raw[2 * i], raw[2 * i + 1]];
        match self {
            Self::F32 => {
                f32::from_le_bytes([raw[4 * i], raw[4 * i + 1], raw[4 * i + 2], raw[4 * i + 3]])
            }
            Self::F16 => half::f16::from_le_bytes(half(i)).to_f32(),
            Self::BF16 => half::bf16::from_le_bytes(half(i)).to_f32(),
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::BF16 => "bf16",
        }
    }
}

/// Why parts do not make a weight.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WeightError {
    #[error("{part} has {got} bytes, {want} are needed")]
    Size { part: &'static str, want: usize, got: usize },
    #[error("{bits} bits in groups of {group} over rows of {k} cannot be run")]
    Format { bits: usize, group: usize, k: usize },
}

fn expect_size(
    part: &'static str,
    bytes: &Bytes,
    want: usize,
) -> std::result::Result<(), WeightError> {
    if bytes.len() == want {
        Ok(())
    } else {
        Err(WeightError::Size { part, want, got: bytes.len() })
    }
}

/// MLX affine: code u in a little-endian bit stream per row, value u * scale + bias per group of `group` along k.
#[derive(Debug, Clone)]
pub struct Affine {
    pub(crate) codes: Bytes,
    pub(crate) scales: Bytes,
    pub(crate) biases: Bytes,
    pub(crate) scale_type: FloatType,
    pub(crate) bits: usize,
    pub(crate) group: usize,
    pub(crate) n: usize,
    pub(crate) k: usize,
}

impl Affine {
    /// `codes` is [n, k * bits / 8] bytes, `scales` and `biases` are [n, k / group] of `scale_type`.
    pub fn new(
        codes: Bytes,
        scales: Bytes,
        biases: Bytes,
        scale_type: FloatType,
        (bits, group): (usize, usize),
        (n, k): (usize, usize),
    ) -> std::result::Result<Self, WeightError> {
        let known = matches!(bits, 1 | 2 | 3 | 4 | 5 | 6 | 8) && matches!(group, 32 | 64 | 128);
        if !known || k == 0 || !k.is_multiple_of(group) {
            return Err(WeightError::Format { bits, group, k });
        }
        expect_size("the packed weight", &codes, n * k * bits / 8)?;
        expect_size("scales", &scales, n * (k / group) * scale_type.size())?;
        expect_size("biases", &biases, n * (k / group) * scale_type.size())?;
        Ok(Self { codes, scales, biases, scale_type, bits, group, n, k })
    }

    /// The plain reference: row `row` as f32, product and sum in f32 (both exact for 16-bit scales up to rounding of the sum).
    pub fn dequantise_row(&self, row: usize, out: &mut [f32]) {
        let codes = self.codes.as_slice();
        let row_bytes = self.k * self.bits / 8;
        let codes = &codes[row * row_bytes..(row + 1) * row_bytes];
        let (scales, biases) = (self.scales.as_slice(), self.biases.as_slice());
        let groups = self.k / self.group;
        let mask = (1u32 << self.bits) - 1;
        for (i, out) in out.iter_mut().enumerate().take(self.k) {
            let bit = i * self.bits;
            let lo = u32::from(codes[bit / 8]);
            let hi = codes.get(bit / 8 + 1).copied().map_or(0, u32::from);
            let code = ((lo | hi << 8) >> (bit % 8)) & mask;
            let g = row * groups + i / self.group;
            *out = code as f32 * self.scale_type.get(scales, g) + self.scale_type.get(biases, g);
        }
    }

    fn select(&self, ids: &[u32]) -> Self {
        let pick = |b: &Bytes, row: usize| {
            let all = b.as_slice();
            Bytes::from_vec(
                ids.iter()
                    .flat_map(|&id| &all[id as usize * row..(id as usize + 1) * row])
                    .copied()
                    .collect(),
            )
        };
        let scale_row = self.k / self.group * self.scale_type.size();
        Self {
            codes: pick(&self.codes, self.k * self.bits / 8),
            scales: pick(&self.scales, scale_row),
            biases: pick(&self.biases, scale_row),
            n: ids.len(),
            ..*self
        }
    }
}

/// Plain floats [n, k].
#[derive(Debug, Clone)]
pub struct Dense {
    pub(crate) data: Bytes,
    pub(crate) float: FloatType,
    pub(crate) n: usize,
    pub(crate) k: usize,
}

impl Dense {
    pub fn new(
        data: Bytes,
        float: FloatType,
        (n, k): (usize, usize),
    ) -> std::result::Result<Self, WeightError> {
        expect_size("the weight", &data, n * k * float.size())?;
        Ok(Self { data, float, n, k })
    }
}

/// A matrix [n, k] in whichever storage the checkpoint has.
#[derive(Debug, Clone)]
pub enum Weight {
    Affine(Affine),
    Dense(Dense),
}

impl Weight {
    /// (n, k): outputs, inputs.
    pub fn dims(&self) -> (usize, usize) {
        match self {
            Self::Affine(w) => (w.n, w.k),
            Self::Dense(w) => (w.n, w.k),
        }
    }

    pub(crate) fn affine(&self) -> Option<&Affine> {
        match self {
            Self::Affine(w) => Some(w),
            Self::Dense(_) => None,
        }
    }

    pub fn n_bytes(&self) -> usize {
        match self {
            Self::Affine(w) => w.codes.len() + w.scales.len() + w.biases.len(),
            Self::Dense(w) => w.data.len(),
        }
    }

    /// e.g. "4-bit g32", "bf16".
    pub fn storage(&self) -> String {
        match self {
            Self::Affine(w) => format!("{}-bit g{}", w.bits, w.group),
            Self::Dense(w) => w.float.name().to_owned(),
        }
    }

    /// Row `row` as f32; `out` holds k values.
    pub fn row(&self, row: usize, out: &mut [f32]) {
        match self {
            Self::Affine(w) => w.dequantise_row(row, out),
            Self::Dense(w) => {
                let size = w.float.size() * w.k;
                let raw = &w.data.as_slice()[row * size..(row + 1) * size];
                for (i, out) in out.iter_mut().enumerate().take(w.k) {
                    *out = w.float.get(raw, i);
                }
            }
        }
    }

    /// Embedding lookup: f32 [ids, k]. Errors when an id is not below n.
    pub fn rows(&self, ids: &[u32], device: &Device) -> Result<Tensor> {
        let (n, k) = self.dims();
        let mut out = vec![0f32; ids.len() * k];
        for (id, out) in ids.iter().zip(out.chunks_mut(k)) {
            if *id as usize >= n {
                candle_core::bail!("row {id} of a table with {n} rows");
            }
            self.row(*id as usize, out);
        }
        Tensor::from_vec(out, (ids.len(), k), device)
    }

    /// `count` rows from `first`, sharing the storage: one expert of a stack. `None` when they reach past the end.
    pub fn part(&self, first: usize, count: usize) -> Option<Self> {
        let rows = |b: &Bytes, row: usize| b.slice(first.checked_mul(row)?, count * row);
        Some(match self {
            Self::Affine(w) => {
                let scale_row = w.k / w.group * w.scale_type.size();
                Self::Affine(Affine {
                    codes: rows(&w.codes, w.k * w.bits / 8)?,
                    scales: rows(&w.scales, scale_row)?,
                    biases: rows(&w.biases, scale_row)?,
                    n: count,
                    ..*w
                })
            }
            Self::Dense(w) => {
                Self::Dense(Dense { data: rows(&w.data, w.k * w.float.size())?, n: count, ..*w })
            }
        })
    }

    /// The rows `ids` as a matrix of its own, copied. Errors when an id is not below n.
    pub fn select(&self, ids: &[u32]) -> Result<Self> {
        let (n, _) = self.dims();
        if let Some(id) = ids.iter().find(|id| **id as usize >= n) {
            candle_core::bail!("row {id} of a table with {n} rows");
        }
        Ok(match self {
            Self::Affine(w) => Self::Affine(w.select(ids)),
            Self::Dense(w) => {
                let row = w.k * w.float.size();
                let all = w.data.as_slice();
                let data = ids
                    .iter()
                    .flat_map(|&id| &all[id as usize * row..(id as usize + 1) * row])
                    .copied()
                    .collect();
                Self::Dense(Dense { data: Bytes::from_vec(data), n: ids.len(), ..*w })
            }
        })
    }
}
