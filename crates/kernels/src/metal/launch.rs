//! A launch as plain data, and what weights, caches and buffers are to it.

use crate::FloatType;

/// A buffer by number. Who runs the launches says what the numbers stand for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BufferId(pub u32);

/// A place in a buffer, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct View {
    pub buffer: BufferId,
    pub offset: usize,
}

impl View {
    pub fn start(buffer: u32) -> Self {
        Self { buffer: BufferId(buffer), offset: 0 }
    }

    pub fn plus(self, bytes: usize) -> Self {
        Self { offset: self.offset + bytes, ..self }
    }
}

#[derive(Debug, Clone, PartialEq)]
pub enum Arg {
    /// `bytes` = what a launch that reads nothing twice has to fetch, which for weights and cache is what ours do.
    Read { at: View, bytes: usize },
    /// `bytes` from `at` on may be written, and the buffer must have them.
    Write { at: View, bytes: usize },
    /// Like `setBytes`.
    Data(Vec<u8>),
}

/// A function constant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Constant {
    Bool(bool),
    Int(i32),
}

/// Function constants of `common.metal`, by number.
pub(super) mod constant {
    pub const FLOAT_TYPE: u32 = 0;
    pub const GROUP_SIZE: u32 = 1;
    pub const FLOAT_OUT: u32 = 2;
    pub const HAS_SECOND: u32 = 3;
    pub const HAS_RESIDUAL: u32 = 6;
    pub const HAS_LIMIT: u32 = 7;
    pub const NORM_ADDS: u32 = 8;
    pub const PLUS_ONE: u32 = 9;
    pub const QUERY_NORM: u32 = 10;
    pub const KEY_NORM: u32 = 11;
    pub const CACHE_IS_RING: u32 = 12;
    pub const HAS_WINDOW: u32 = 13;
    pub const HAS_GATE: u32 = 14;
    pub const ROUTER_SOFTMAX: u32 = 15;
    pub const ROUTER_BIAS: u32 = 16;
    pub const ROUTER_RENORMALISE: u32 = 17;
    pub const GATES: u32 = 18;
    pub const HAS_TILES: u32 = 19;
    pub const HAS_BIAS: u32 = 20;
}

/// How many there are; 0 and 1 are numbers, the others flags.
pub const N_CONSTANTS: u32 = 21;

#[derive(Debug, Clone, PartialEq)]
pub struct Launch {
    /// With the type of activations at its end, e.g. `linear_b4_r2_bf16`.
    pub kernel: String,
    /// By number, every one of them: a kernel ignores those it does not know.
    pub constants: [Constant; N_CONSTANTS as usize],
    pub threadgroups: [usize; 3],
    pub threads: [usize; 3],
    /// (index, argument).
    pub args: Vec<(u32, Arg)>,
}

impl Launch {
    pub(super) fn new(operation: &str, act: Option<FloatType>) -> Self {
        let mut constants = [Constant::Bool(false); N_CONSTANTS as usize];
        constants[constant::FLOAT_TYPE as usize] = Constant::Int(0);
        constants[constant::GROUP_SIZE as usize] = Constant::Int(32);
        let kernel = act.map_or(operation.to_owned(), |act| format!("{operation}_{}", act.name()));
        Self { kernel, constants, threadgroups: [1; 3], threads: [1; 3], args: Vec::new() }
    }

    pub(super) fn flag(mut self, id: u32, on: bool) -> Self {
        self.constants[id as usize] = Constant::Bool(on);
        self
    }

    pub(super) fn floats(mut self, float: FloatType) -> Self {
        let number = match float {
            FloatType::F32 => 0,
            FloatType::F16 => 1,
            FloatType::BF16 => 2,
        };
        self.constants[constant::FLOAT_TYPE as usize] = Constant::Int(number);
        self
    }

    pub(super) fn storage(mut self, storage: Storage) -> Self {
        if let Storage::Affine { group, .. } = storage {
            self.constants[constant::GROUP_SIZE as usize] = Constant::Int(group as i32);
        }
        self.floats(storage.float())
    }

    pub(super) fn read(mut self, index: u32, at: View, bytes: usize) -> Self {
        self.args.push((index, Arg::Read { at, bytes }));
        self
    }

    pub(super) fn write(mut self, index: u32, at: View, bytes: usize) -> Self {
        self.args.push((index, Arg::Write { at, bytes }));
        self
    }

    /// Fields of a shape, each four bytes.
    pub(super) fn data(mut self, index: u32, fields: &[Field]) -> Self {
        let bytes = fields.iter().flat_map(|field| match field {
            Field::N(n) => (*n as u32).to_le_bytes(),
            Field::F(f) => f.to_le_bytes(),
        });
        self.args.push((index, Arg::Data(bytes.collect())));
        self
    }

    /// Codes, scales and biases at `index` and the two after it; plain floats are bound three times. `rows` of them
    /// are read, counted over all experts of a stack.
    pub(super) fn matrix(self, index: u32, m: &Matrix, rows: usize) -> Self {
        let (codes, scales) = (rows * m.row_bytes(), rows * m.scale_row_bytes());
        self.read(index, m.codes, codes).read(index + 1, m.scales, scales).read(
            index + 2,
            m.biases,
            scales,
        )
    }

    pub(super) fn grid(mut self, threadgroups: [usize; 3], threads: usize) -> Self {
        self.threadgroups = threadgroups;
        self.threads = [threads, 1, 1];
        self
    }
}

pub(super) enum Field {
    N(usize),
    F(f32),
}

/// Why there is no launch for what was asked: the caller uses the CPU, or copies the tensor to where it fits.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LaunchError {
    #[error("{0} rows in one launch; 1 to {1} can be")]
    Rows(usize, usize),
    #[error("no Metal kernel for {bits} bits in groups of {group}")]
    Format { bits: usize, group: usize },
    #[error("a tensor at byte {0} of its buffer is not aligned to {1}")]
    Alignment(usize, usize),
    #[error("the shapes do not fit: {0}")]
    Shape(&'static str),
}

/// How a matrix lies in its file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Storage {
    /// MLX affine; `scales` is the type of scales and biases.
    Affine {
        bits: usize,
        group: usize,
        scales: FloatType,
    },
    Dense(FloatType),
}

impl Storage {
    pub fn bits(self) -> usize {
        match self {
            Self::Affine { bits, .. } => bits,
            Self::Dense(float) => 8 * float.size(),
        }
    }

    fn float(self) -> FloatType {
        match self {
            Self::Affine { scales, .. } => scales,
            Self::Dense(float) => float,
        }
    }
}

/// A matrix [n, k], or a stack of such.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Matrix {
    pub storage: Storage,
    pub n: usize,
    pub k: usize,
    pub codes: View,
    /// Of plain floats, the same as `codes`, and so are the biases.
    pub scales: View,
    pub biases: View,
}

impl Matrix {
    /// Refuses what no kernel reads.
    pub fn check(&self) -> Result<(), LaunchError> {
        let mut align = 4;
        if let Storage::Affine { bits, group, scales } = self.storage {
            let known = matches!(bits, 2 | 3 | 4 | 5 | 6 | 8) && matches!(group, 32 | 64 | 128);
            if !known || !self.k.is_multiple_of(group) {
                return Err(LaunchError::Format { bits, group });
            }
            for at in [self.scales, self.biases] {
                if !at.offset.is_multiple_of(scales.size()) {
                    return Err(LaunchError::Alignment(at.offset, scales.size()));
                }
            }
        } else {
            align = self.storage.float().size();
        }
        if !self.codes.offset.is_multiple_of(align) {
            return Err(LaunchError::Alignment(self.codes.offset, align));
        }
        if self.n == 0 || self.k == 0 {
            return Err(LaunchError::Shape("an empty matrix"));
        }
        Ok(())
    }

    fn row_bytes(&self) -> usize {
        self.k * self.storage.bits() / 8
    }

    /// Of scales, and again of biases.
    fn scale_row_bytes(&self) -> usize {
        match self.storage {
            Storage::Affine { group, scales, .. } => self.k / group * scales.size(),
            Storage::Dense(_) => 0,
        }
    }

    pub fn n_bytes(&self) -> usize {
        self.n * (self.row_bytes() + 2 * self.scale_row_bytes())
    }
}

/// A vector of plain floats in its file: the weight of a norm, the bias of a router.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct FloatArray {
    pub at: View,
    pub float: FloatType,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Heads {
    pub q: usize,
    pub kv: usize,
    pub dim: usize,
}

/// Keys and values [slots, kv heads, head_dim] of a layer, in the type of activations.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Cache {
    pub keys: View,
    pub values: View,
    /// Absolute position of slot 0.
    pub base: usize,
    /// Slots.
    pub capacity: usize,
    /// Positions go around.
    pub ring: bool,
}
