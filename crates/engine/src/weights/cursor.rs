use super::checkpoint::{Checkpoint, TensorPlace};
use super::names::{Names, ZeroCentred};
use super::quant::Packing;
use crate::nn::{Attention, AttentionSpec, Linear, Mlp, Norm, Rope};
use crate::{EngineError, Result};
use foretoken_kernels::{Activations, Affine, Dense, Experts, FloatType, Weight, WeightError};
use safetensors::Dtype;
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::rc::Rc;

/// A place in a checkpoint's names, walked like directories; remembers what was taken.
#[derive(Clone)]
pub struct Weights<'a> {
    checkpoint: &'a Checkpoint,
    prefix: String,
    names: Rc<Names>,
    taken: Rc<RefCell<BTreeSet<String>>>,
    activations: Activations,
}

impl<'a> Weights<'a> {
    pub fn root(checkpoint: &'a Checkpoint) -> Self {
        Self {
            checkpoint,
            prefix: String::new(),
            names: Rc::default(),
            taken: Rc::default(),
            activations: Activations::Exact,
        }
    }

    /// How the linear maps from here on see their x.
    pub fn seeing(self, activations: Activations) -> Self {
        Self { activations, ..self }
    }

    pub fn activations(&self) -> Activations {
        self.activations
    }

    /// The same tensors under the family's own names, see [`Names`].
    pub fn renamed(&self, table: &[(&str, &str)], norms: Option<ZeroCentred>) -> Result<Self> {
        Ok(Self { names: Rc::new(Names::new(self.checkpoint, table, norms)?), ..self.clone() })
    }

    pub fn at(&self, name: impl std::fmt::Display) -> Self {
        Self { prefix: self.path(name), ..self.clone() }
    }

    fn path(&self, name: impl std::fmt::Display) -> String {
        if self.prefix.is_empty() { name.to_string() } else { format!("{}.{name}", self.prefix) }
    }

    pub fn has(&self, name: &str) -> bool {
        self.get(name).is_some()
    }

    fn get(&self, name: &str) -> Option<&'a TensorPlace> {
        self.checkpoint.get(self.names.published(&self.path(name)))
    }

    /// Whether there is any tensor below this place.
    pub fn is_empty(&self) -> bool {
        let below = format!("{}.", self.prefix);
        !self.checkpoint.names().any(|name| self.names.ours(name).starts_with(&below))
    }

    /// The file a tensor was found in.
    pub fn place(&self, name: &str) -> Option<&'a std::path::Path> {
        self.get(name).map(|place| place.file.as_path())
    }

    fn take(&self, name: &str) -> Result<&'a TensorPlace> {
        let place = self.get(name).ok_or_else(|| EngineError::MissingTensor {
            name: self.in_file(name),
            folder: self.checkpoint.folder.clone(),
        })?;
        self.taken.borrow_mut().insert(self.names.published(&self.path(name)).to_owned());
        Ok(place)
    }

    /// A name as the checkpoint has it, for errors; what is missing goes by its nearest relative.
    fn in_file(&self, name: &str) -> String {
        let path = self.path(name);
        if self.has(name) {
            return self.names.published(&path).to_owned();
        }
        let mut above = path.as_str();
        while let Some((parent, _)) = above.rsplit_once('.') {
            let relative = self.checkpoint.names().find_map(|published| {
                let rest = self.names.ours(published).strip_prefix(parent)?;
                published.strip_suffix(rest).filter(|_| rest.starts_with('.'))
            });
            if let Some(published) = relative {
                return format!("{published}{}", &path[parent.len()..]);
            }
            above = parent;
        }
        path
    }

    fn expect_shape(&self, name: &str, place: &TensorPlace, want: &[usize]) -> Result<()> {
        if place.shape == want {
            return Ok(());
        }
        Err(EngineError::ShapeMismatch {
            name: self.in_file(name),
            want: want.to_vec(),
            got: place.shape.clone(),
        })
    }

    fn float(&self, name: &str, place: &TensorPlace) -> Result<FloatType> {
        match place.dtype {
            Dtype::F32 => Ok(FloatType::F32),
            Dtype::F16 => Ok(FloatType::F16),
            Dtype::BF16 => Ok(FloatType::BF16),
            other => Err(self.odd(name, format!("{other:?}"))),
        }
    }

    fn odd(&self, name: &str, format: String) -> EngineError {
        EngineError::UnsupportedFormat { name: self.in_file(name), format }
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
        self.stack(name, &[], n, k)
    }

    /// `{name}.weight` [lead.., n, k] as one matrix [lead * n, k].
    fn stack(&self, name: &str, lead: &[usize], n: usize, k: usize) -> Result<Weight> {
        let here = self.at(name);
        let place = here.take("weight")?;
        let bad = |error: WeightError| match error {
            WeightError::Format { bits, group, .. } => {
                here.odd("weight", format!("{bits} bits in groups of {group}"))
            }
            size => EngineError::Corrupt {
                file: place.file.clone(),
                why: format!("the tensor {}: {size}", here.in_file("weight")),
            },
        };
        let shape = |last: usize| [lead, &[n, last]].concat();
        // Only of a shape that was found as expected: the file bounds its product.
        let rows = || lead.iter().product::<usize>() * n;
        // Codes that lost their scales are no floats of another shape.
        if place.dtype != Dtype::U32 && !here.has("scales") && !here.has("biases") {
            here.expect_shape("weight", place, &shape(k))?;
            let float = here.float("weight", place)?;
            let dense = Dense::new(place.data.clone(), float, (rows(), k));
            return Ok(Weight::Dense(dense.map_err(bad)?));
        }
        let scales = here.take("scales")?;
        // Before the biases: the float modes have none.
        let float = here.float("scales", scales)?;
        let biases = here.take("biases")?;
        if place.dtype != Dtype::U32 {
            return Err(here.odd("weight", format!("{:?} beside scales", place.dtype)));
        }
        let packing = here.packing(place, scales, k)?;
        here.expect_shape("weight", place, &shape(k * packing.bits / 32))?;
        here.expect_shape("scales", scales, &shape(k / packing.group))?;
        here.expect_shape("biases", biases, &shape(k / packing.group))?;
        if here.float("biases", biases)? != float {
            return Err(here.odd("biases", "another type than the scales".to_owned()));
        }
        let parts = (place.data.clone(), scales.data.clone(), biases.data.clone());
        let (bits, group) = (packing.bits, packing.group);
        let affine = Affine::new(parts.0, parts.1, parts.2, float, (bits, group), (rows(), k));
        Ok(Weight::Affine(affine.map_err(bad)?))
    }

    /// Bits and group from the shapes (k is known), checked against what the config says of this module.
    fn packing(&self, weight: &TensorPlace, scales: &TensorPlace, k: usize) -> Result<Packing> {
        let columns = |place: &TensorPlace| place.shape.last().copied().unwrap_or(0);
        let (words, groups) = (columns(weight), columns(scales));
        let whole = |n: &usize| *n > 0 && k > 0 && n.is_multiple_of(k);
        let Some(bits) = words.checked_mul(32).filter(whole).map(|bits| bits / k) else {
            return Err(self.odd("weight", format!("{words} words over rows of {k}")));
        };
        if groups == 0 || !k.is_multiple_of(groups) {
            return Err(self.odd("scales", format!("{groups} groups over rows of {k}")));
        }
        let found = Packing { bits, group: k / groups };
        // The table goes by the file's own names.
        let published = self.in_file("weight");
        let said = self.checkpoint.quant.for_module(published.trim_end_matches(".weight"));
        match said.flatten().filter(|said| *said != found) {
            Some(Packing { bits, group }) => {
                let said = format!("{bits}-bit g{group}");
                let found = format!("{}-bit g{}", found.bits, found.group);
                Err(self.odd("weight", format!("{found} while the config says {said}")))
            }
            None => Ok(found),
        }
    }

    /// Rows of `{name}.weight`: what a router says of the number of its experts.
    pub fn n_rows(&self, name: &str) -> Result<usize> {
        let here = self.at(name);
        match here.take("weight")?.shape[..] {
            [rows, _] => Ok(rows),
            ref other => Err(here.odd("weight", format!("{other:?} in place of rows and columns"))),
        }
    }

    /// The gated MLPs of a layer's experts, [width, hidden] each way, whichever way they are stored: stacked by matrix
    /// (`gate_proj` [n, width, hidden]), with gate and up in one (`gate_up_proj`, gate first), or one by one (`{e}.gate_proj`).
    pub fn experts(&self, n: usize, width: usize, hidden: usize) -> Result<Experts> {
        let split = |all: &Weight, rows: usize, from: usize, count: usize| -> Vec<Weight> {
            (0..n).filter_map(|e| all.part(e * rows + from, count)).collect()
        };
        let stacked = |name: &str, rows: usize, k: usize| {
            Ok::<_, EngineError>(split(&self.stack(name, &[n], rows, k)?, rows, 0, rows))
        };
        let one_by_one = |name: &str, rows: usize, k: usize| {
            (0..n).map(|e| self.at(e).matrix(name, rows, k)).collect::<Result<Vec<_>>>()
        };
        let (gate, up, down) = if self.has("gate_up_proj.weight") {
            let both = self.stack("gate_up_proj", &[n], 2 * width, hidden)?;
            let part = |from| split(&both, 2 * width, from, width);
            (part(0), part(width), stacked("down_proj", hidden, width)?)
        } else if self.has("0.gate_proj.weight") {
            let more = (n..).take_while(|e| self.at(e).has("gate_proj.weight")).count();
            if more > 0 {
                // An expert nobody can be sent to is not one too many: the router lost its row.
                let (name, want, got) = (self.prefix.clone(), vec![n], vec![n + more]);
                return Err(EngineError::ShapeMismatch { name, want, got });
            }
            (
                one_by_one("gate_proj", width, hidden)?,
                one_by_one("up_proj", width, hidden)?,
                one_by_one("down_proj", hidden, width)?,
            )
        } else {
            (
                stacked("gate_proj", width, hidden)?,
                stacked("up_proj", width, hidden)?,
                stacked("down_proj", hidden, width)?,
            )
        };
        let (limit, activations) = (f32::INFINITY, self.activations);
        Ok(Experts { gate, up, down, limit, activations })
    }

    /// A linear map k -> n without bias.
    pub fn linear(&self, name: &str, n: usize, k: usize) -> Result<Linear> {
        Ok(Linear::new(self.matrix(name, n, k)?).seeing(self.activations))
    }

    /// A linear map with a bias vector `{name}.bias`.
    pub fn linear_with_bias(&self, name: &str, n: usize, k: usize) -> Result<Linear> {
        let bias = self.at(name).vector("bias", &[n])?;
        Ok(Linear::with_bias(self.matrix(name, n, k)?, bias)?.seeing(self.activations))
    }

    /// An RMS norm `{name}.weight` [d]; where the file stores the weight less one, one is added.
    pub fn norm(&self, name: &str, d: usize, eps: f32) -> Result<Norm> {
        let here = self.at(name);
        let mut weight = here.vector("weight", &[d])?;
        if here.place("weight").is_some_and(|file| self.names.is_zero_centred(file)) {
            weight.iter_mut().for_each(|w| *w += 1.0);
        }
        Ok(Norm::new(weight, eps))
    }

    /// `gate_proj`, `up_proj` and `down_proj` here.
    pub fn mlp(&self, width: usize, hidden: usize, limit: Option<f32>) -> Result<Mlp> {
        Ok(Mlp {
            gate: self.linear("gate_proj", width, hidden)?,
            up: self.linear("up_proj", width, hidden)?,
            down: self.linear("down_proj", hidden, width)?,
            limit,
        })
    }

    /// `q_proj`, `k_proj`, `v_proj` and `o_proj` here, with per-head norms when `norm_eps` says so.
    pub fn attention(
        &self,
        spec: AttentionSpec,
        hidden: usize,
        rope: Rope,
        norm_eps: Option<f32>,
    ) -> Result<Attention> {
        let (q, kv) = (spec.n_heads * spec.head_dim, spec.n_kv_heads * spec.head_dim);
        let norm = |name| norm_eps.map(|eps| self.norm(name, spec.head_dim, eps)).transpose();
        Ok(Attention {
            spec,
            q: self.linear("q_proj", q, hidden)?,
            k: self.linear("k_proj", kv, hidden)?,
            v: self.linear("v_proj", kv, hidden)?,
            o: self.linear("o_proj", hidden, q)?,
            q_norm: norm("q_norm")?,
            k_norm: norm("k_norm")?,
            gate: None,
            rope,
        })
    }

    /// Of `names` (relative), those that are absent.
    pub fn missing(&self, names: &[&str]) -> Vec<String> {
        names.iter().filter(|name| !self.has(name)).map(|name| self.in_file(name)).collect()
    }

    /// Errors on a bias nobody asked for beside a matrix that was: without it the matrix is another map.
    pub fn refuse_biases(&self) -> Result<()> {
        let taken = self.taken.borrow();
        let is_bias = |name: &&String| {
            let module = name.strip_suffix(".bias");
            module.is_some_and(|module| taken.contains(&format!("{module}.weight")))
        };
        match self.leftovers().iter().find(is_bias) {
            Some(name) => Err(EngineError::UnsupportedFormat {
                name: name.clone(),
                format: "a bias, which this family does not have".to_owned(),
            }),
            None => Ok(()),
        }
    }

    /// Tensors of the checkpoint nothing has asked for.
    pub fn leftovers(&self) -> Vec<String> {
        let taken = self.taken.borrow();
        self.checkpoint.names().filter(|name| !taken.contains(*name)).map(str::to_owned).collect()
    }
}
