//! Random test data, as the kernels and as the CPU functions want it.

use crate::Memory;
use foretoken_kernels::metal::{Matrix, Storage};
use foretoken_kernels::{Affine, Bytes, Dense, FloatType, Weight};

/// Small deterministic generator: tests need no more.
pub struct Rng(pub u64);

impl Rng {
    pub fn bits(&mut self) -> u32 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) as u32
    }

    pub fn below(&mut self, n: usize) -> usize {
        self.bits() as usize % n
    }

    /// In -1..1.
    pub fn float(&mut self) -> f32 {
        (self.bits() & 0xff_ffff) as f32 / (1 << 23) as f32 - 1.0
    }
}

/// Activations of one type: what goes into a buffer and what comes out.
#[derive(Debug, Clone, Copy)]
pub struct Act(pub FloatType);

impl Act {
    pub const ALL: [Self; 3] = [Self(FloatType::F32), Self(FloatType::F16), Self(FloatType::BF16)];

    pub fn bytes(self, values: &[f32]) -> Vec<u8> {
        let one = |v: &f32| match self.0 {
            FloatType::F32 => v.to_le_bytes().to_vec(),
            FloatType::F16 => half::f16::from_f32(*v).to_le_bytes().to_vec(),
            FloatType::BF16 => half::bf16::from_f32(*v).to_le_bytes().to_vec(),
        };
        values.iter().flat_map(one).collect()
    }

    pub fn values(self, bytes: &[u8]) -> Vec<f32> {
        (0..bytes.len() / self.0.size()).map(|i| self.0.get(bytes, i)).collect()
    }

    /// To what this type can hold.
    pub fn round(self, values: &[f32]) -> Vec<f32> {
        self.values(&self.bytes(values))
    }

    /// Half a unit in the last place, relative.
    pub fn epsilon(self) -> f32 {
        match self.0 {
            FloatType::F32 => 0.0,
            FloatType::F16 => 1.0 / 2048.0,
            FloatType::BF16 => 1.0 / 256.0,
        }
    }
}

/// n values in -1..1.
pub fn floats(rng: &mut Rng, n: usize) -> Vec<f32> {
    (0..n).map(|_| rng.float()).collect()
}

/// A random matrix [n, k]: for the CPU, and in a buffer of its own each, behind some bytes as in a file.
pub fn matrix(
    rng: &mut Rng,
    memory: &mut Memory,
    storage: Storage,
    (n, k): (usize, usize),
) -> (Weight, Matrix) {
    match storage {
        Storage::Affine { .. } => quantised(rng, memory, storage, (n, k)),
        Storage::Dense(float) => {
            let data = Act(float).bytes(&floats(rng, n * k));
            let codes = memory.put(&[vec![0xff; 8], data.clone()].concat()).plus(8);
            let weight = Dense::new(Bytes::from_vec(data), float, (n, k)).expect("it fits");
            let matrix = Matrix { storage, n, k, codes, scales: codes, biases: codes };
            (Weight::Dense(weight), matrix)
        }
    }
}

pub fn quantised(
    rng: &mut Rng,
    memory: &mut Memory,
    storage: Storage,
    (n, k): (usize, usize),
) -> (Weight, Matrix) {
    let Storage::Affine { bits, group, scales: float } = storage else {
        panic!("{storage:?} has no codes");
    };
    // Any stream of bits is a valid stream of codes.
    let codes: Vec<u8> = (0..n * k * bits / 8).map(|_| rng.bits() as u8).collect();
    let step = 2.0 / (1 << bits) as f32;
    let groups = n * (k / group);
    // Scales may be negative.
    let scales: Vec<f32> = (0..groups).map(|_| step * rng.float()).collect();
    let biases: Vec<f32> = (0..groups).map(|_| 0.5 * rng.float()).collect();
    let (scales, biases) = (Act(float).bytes(&scales), Act(float).bytes(&biases));
    let mut place = |data: &[u8]| memory.put(&[&[0xff; 8], data].concat()).plus(8);
    let matrix = Matrix {
        storage,
        n,
        k,
        codes: place(&codes),
        scales: place(&scales),
        biases: place(&biases),
    };
    let [codes, scales, biases] = [codes, scales, biases].map(Bytes::from_vec);
    let weight = Affine::new(codes, scales, biases, float, (bits, group), (n, k)).expect("it fits");
    (Weight::Affine(weight), matrix)
}

/// Fails unless every value is within `tolerance` (absolute) plus the rounding of the type.
pub fn close(what: &str, act: Act, got: &[f32], want: &[f32], tolerance: f32) {
    assert_eq!(got.len(), want.len(), "{what}");
    for (i, (got, want)) in got.iter().zip(want).enumerate() {
        let allowed = tolerance + 1.01 * act.epsilon() * want.abs();
        assert!(
            (got - want).abs() <= allowed || (got.is_nan() && want.is_nan()),
            "{what}, value {i}: {got} instead of {want} (allowed {allowed})"
        );
    }
}
