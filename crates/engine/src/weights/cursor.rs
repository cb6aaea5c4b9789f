use super::checkpoint::{Checkpoint, TensorPlace};
use super::quant::Packing;
use crate::nn::{Linear, Norm};
use crate::{EngineError, Result};
use foretoken_kernels::{Affine, Dense, FloatType, Weight, WeightError};
use safetensors::Dtype;
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::rc::Rc;

/// A place in a checkpoint's names, walked like directories; remembers what was taken.
#[derive(Clone)]
pub struct Weights<'a> {
    checkpoint: &'a Checkpoint,
    prefix: String,
    taken: Rc<RefCell<BTreeSet<String>>>,
}

impl<'a> Weights<'a> {
    pub fn root(checkpoint: &'a Checkpoint) -> Self {
        Self { checkpoint, prefix: String::new(), taken: Rc::default() }
    }

    pub fn at(&self, name: impl std::fmt::Display) -> Self {
        Self { prefix: self.path(name), ..self.clone() }
    }

    fn path(&self, name: impl std::fmt::Display) -> String {
        if self.prefix.is_empty() { name.to_string() } else { format!("{}.{name}", self.prefix) }
    }

    pub fn has(&self, name: &str) -> bool {
        self.checkpoint.get(&self.path(name)).is_some()
    }

    /// The file a tensor was found in.
    pub fn place(&self, name: &str) -> Option<&'a std::path::Path> {
        self.checkpoint.get(&self.path(name)).map(|place| place.file.as_path())
    }

    fn take(&self, name: &str) -> Result<&'a TensorPlace> {
        let path = self.path(name);
        let place = self.checkpoint.get(&path).ok_or_else(|| EngineError::MissingTensor {
            name: path.clone(),
            folder: self.checkpoint.folder.clone(),
        })?;
        self.taken.borrow_mut().insert(path);
        Ok(place)
    }

    fn expect_shape(&self, name: &str, place: &TensorPlace, want: &[usize]) -> Result<()> {
        if place.shape == want {
            return Ok(());
        }
        Err(EngineError::ShapeMismatch {
            name: self.path(name),
            want: want.to_vec(),
            got: place.shape.clone(),
        })
    }

    fn float(&self, name: &str, place: &TensorPlace) -> Result<FloatType> {
        match place.dtype {
            Dtype::F32 => Ok(FloatType::F32),
            Dtype::F16 => Ok(FloatType::F16),
            Dtype::BF16 => Ok(FloatType::BF16),
            other => Err(EngineError::UnsupportedFormat {
                name: self.path(name),
                format: format!("{other:?}"),
            }),
        }
    }

    /// A plain tensor of this shape, as f32.
    pub fn vector(&self, name: &str, shape: &[usize]) -> Result<Vec<f32>> {
        let place = self.take(name)?;
        self.expect_shape(name, place, shape)?;
        let float = self.float(name, place)?;
        let raw = place.data.as_slice();
        Ok((0..shape.iter().product()).map(|i| float.get(raw, i)).collect())
    }

    /// `{name}.weight` [n, k], in whichever storage it has; quantised when `{name}.scales` exists.
    pub fn matrix(&self, name: &str, n: usize, k: usize) -> Result<Weight> {
        let here = self.at(name);
        let place = here.take("weight")?;
        let bad = |why: WeightError| EngineError::Corrupt {
            file: place.file.clone(),
            why: format!("the tensor {}: {why}", here.path("weight")),
        };
        if !here.has("scales") {
            here.expect_shape("weight", place, &[n, k])?;
            let float = here.float("weight", place)?;
            return Ok(Weight::Dense(Dense::new(place.data.clone(), float, (n, k)).map_err(bad)?));
        }
        let (scales, biases) = (here.take("scales")?, here.take("biases")?);
        if place.dtype != Dtype::U32 {
            let format = format!("{:?} beside scales", place.dtype);
            return Err(EngineError::UnsupportedFormat { name: here.path("weight"), format });
        }
        let packing = here.packing(place, scales, n, k)?;
        here.expect_shape("scales", scales, &[n, k / packing.group])?;
        here.expect_shape("biases", biases, &[n, k / packing.group])?;
        let float = here.float("scales", scales)?;
        if here.float("biases", biases)? != float {
            let format = "biases of another type than the scales".to_owned();
            return Err(EngineError::UnsupportedFormat { name: here.path("biases"), format });
        }
        let parts = (place.data.clone(), scales.data.clone(), biases.data.clone());
        let affine =
            Affine::new(parts.0, parts.1, parts.2, float, (packing.bits, packing.group), (n, k));
        Ok(Weight::Affine(affine.map_err(bad)?))
    }

    /// Bits and group from the shapes (n and k are known), checked against what the config says of this module.
    fn packing(
        &self,
        weight: &TensorPlace,
        scales: &TensorPlace,
        n: usize,
        k: usize,
    ) -> Result<Packing> {
        let mismatch = |want: Vec<usize>| EngineError::ShapeMismatch {
            name: self.path("weight"),
            want,
            got: weight.shape.clone(),
        };
        let ([rows, words], [_, groups]) = (weight.shape.as_slice(), scales.shape.as_slice())
        else {
            return Err(mismatch(vec![n, k]));
        };
        if *rows != n || *groups == 0 || words * 32 % k.max(1) != 0 || !k.is_multiple_of(*groups) {
            return Err(mismatch(vec![n, k]));
        }
        let found = Packing { bits: words * 32 / k, group: k / groups };
        let table = &self.checkpoint.quant;
        if let Some(Some(said)) = table.for_module(&self.prefix)
            && said != found
        {
            let format = format!(
                "{}-bit g{} while the config says {}-bit g{}",
                found.bits, found.group, said.bits, said.group
            );
            return Err(EngineError::UnsupportedFormat { name: self.path("weight"), format });
        }
        Ok(found)
    }

    /// A linear map k -> n without bias.
    pub fn linear(&self, name: &str, n: usize, k: usize) -> Result<Linear> {
        Ok(Linear::new(self.matrix(name, n, k)?))
    }

    /// A linear map with a bias vector `{name}.bias`.
    pub fn linear_with_bias(&self, name: &str, n: usize, k: usize) -> Result<Linear> {
        let bias = self.at(name).vector("bias", &[n])?;
        Ok(Linear::with_bias(self.matrix(name, n, k)?, bias)?)
    }

    /// An RMS norm `{name}.weight` [d] with an ordinary (not zero-centred) weight.
    pub fn norm(&self, name: &str, d: usize, eps: f32) -> Result<Norm> {
        Ok(Norm::new(self.at(name).vector("weight", &[d])?, eps))
    }

    /// Of `names` (relative), those that are absent.
    pub fn missing(&self, names: &[&str]) -> Vec<String> {
        names.iter().filter(|name| !self.has(name)).map(|name| self.path(name)).collect()
    }

    /// Tensors of the checkpoint nothing has asked for.
    pub fn leftovers(&self) -> Vec<String> {
        let taken = self.taken.borrow();
        self.checkpoint.names().filter(|name| !taken.contains(*name)).map(str::to_owned).collect()
    }
}
