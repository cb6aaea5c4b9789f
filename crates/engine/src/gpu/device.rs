//! What trunk and head share: the runner, the buffers the host fills before a pass, and the tables of the rotation.

use crate::Result;
use candle_core::{Device as Cpu, Tensor};
use foretoken_kernels::metal::{BufferId, Finish, GpuError, Launch, Matrix, Runner, SCRATCH, View};
use foretoken_kernels::metal::{LaunchError, linear, matmul};
use foretoken_kernels::{FloatType, RopeTable};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Scratch buffers of a pass; a layer's own come after them.
#[derive(Clone, Copy)]
pub(super) enum Scratch {
    Embedded,
    /// What `eh_proj` reads.
    Joined,
    /// Into the first block.
    Input,
    /// Out of the blocks, in turns.
    Even,
    Odd,
    Normed,
    /// By a level to the next one.
    HandedOn,
    Logits,
}

impl Scratch {
    pub fn view(self) -> View {
        View { buffer: BufferId(SCRATCH.0 + self as u32), offset: 0 }
    }
}

pub(super) const LAYER_SCRATCH: u32 = SCRATCH.0 + 16;

/// Rows a launch of a step takes.
pub(super) const MAX_ROWS: usize = 8;

/// Rows that go through the stack at once in prefill: each reads all weights a little less, and scratch grows with them.
pub(super) const CHUNK: usize = 256;

/// Which kernels add up a row. A row's bits depend on this and on nothing else.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Path {
    /// Up to [`MAX_ROWS`] rows read a weight once.
    Step,
    /// Any number of them.
    Prefill,
}

impl Path {
    /// For rows that nobody compares bit by bit: what reads least.
    pub fn of(rows: usize) -> Self {
        if rows > MAX_ROWS { Self::Prefill } else { Self::Step }
    }
}

/// Positions of the rotation's tables are made so many at a time.
const TABLE_STEP: usize = 1024;

pub(super) struct Device {
    pub runner: Arc<dyn Runner>,
    pub act: FloatType,
    /// Held from filling the inputs to reading the results: scratch is everybody's.
    inputs: Mutex<Inputs>,
}

/// A buffer that grows.
#[derive(Default)]
struct Room(Option<(View, usize)>);

impl Room {
    fn fill(&mut self, runner: &dyn Runner, data: &[u8]) -> Result<View> {
        match self.0 {
            Some((view, size)) if data.len() <= size => {
                runner.write(view, data)?;
                Ok(view)
            }
            old => {
                if let Some((view, _)) = old {
                    self.0 = None;
                    runner.free(view.buffer);
                }
                let view = runner.put(data)?;
                self.0 = Some((view, data.len()));
                Ok(view)
            }
        }
    }
}

struct Table {
    of: Arc<RopeTable>,
    cosines: View,
    sines: View,
    positions: usize,
}

#[derive(Default)]
pub(super) struct Inputs {
    tokens: Room,
    starts: Room,
    rows: Room,
    tables: Vec<Table>,
}

impl Inputs {
    pub fn tokens(&mut self, device: &Device, tokens: &[u32]) -> Result<View> {
        self.tokens.fill(&*device.runner, &words(tokens))
    }

    pub fn starts(&mut self, device: &Device, starts: &[u32]) -> Result<View> {
        self.starts.fill(&*device.runner, &words(starts))
    }

    /// f32 rows, in the type of activations.
    pub fn rows(&mut self, device: &Device, rows: &Tensor) -> Result<View> {
        let rows = rows.flatten_all()?.to_vec1::<f32>()?;
        self.rows.fill(&*device.runner, &device.encode(&rows))
    }

    /// Cosines, sines and how many positions they have: at least `positions`, where the table goes so far.
    pub fn table(
        &mut self,
        device: &Device,
        of: &Arc<RopeTable>,
        positions: usize,
    ) -> Result<(View, View, usize)> {
        let known = self.tables.iter().position(|table| Arc::ptr_eq(&table.of, of));
        if let Some(table) = known.and_then(|at| self.tables.get(at))
            && table.positions >= positions
        {
            return Ok((table.cosines, table.sines, table.positions));
        }
        let wanted = positions.next_multiple_of(TABLE_STEP);
        // Twice what there was, so that a long text does not make them again and again.
        let had = known.map_or(0, |at| self.tables[at].positions);
        let (cosines, sines) = of.first(wanted.max(2 * had));
        let positions = cosines.len() / of.half_turn().max(1);
        let [cosines, sines] = [floats(&cosines), floats(&sines)].map(|t| device.runner.put(&t));
        let table = Table { of: of.clone(), cosines: cosines?, sines: sines?, positions };
        let found = (table.cosines, table.sines, table.positions);
        if let Some(at) = known {
            let old = std::mem::replace(&mut self.tables[at], table);
            [old.cosines, old.sines].iter().for_each(|view| device.runner.free(view.buffer));
        } else {
            self.tables.push(table);
        }
        Ok(found)
    }
}

fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

fn floats(floats: &[f32]) -> Vec<u8> {
    floats.iter().flat_map(|float| float.to_le_bytes()).collect()
}

impl Device {
    pub fn new(runner: Arc<dyn Runner>) -> Result<Self, GpuError> {
        Ok(Self { act: runner.activations(), runner, inputs: Mutex::default() })
    }

    pub fn inputs(&self) -> MutexGuard<'_, Inputs> {
        self.inputs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn encode(&self, values: &[f32]) -> Vec<u8> {
        match self.act {
            FloatType::F32 => floats(values),
            FloatType::F16 => {
                values.iter().flat_map(|v| half::f16::from_f32(*v).to_le_bytes()).collect()
            }
            FloatType::BF16 => {
                values.iter().flat_map(|v| half::bf16::from_f32(*v).to_le_bytes()).collect()
            }
        }
    }

    /// [rows, n] activations as an f32 tensor.
    pub fn read(&self, at: View, (rows, n): (usize, usize)) -> Result<Tensor> {
        self.read_as(self.act, at, (rows, n))
    }

    /// The same of f32 values.
    pub fn read_floats(&self, at: View, (rows, n): (usize, usize)) -> Result<Tensor> {
        self.read_as(FloatType::F32, at, (rows, n))
    }

    fn read_as(&self, float: FloatType, at: View, (rows, n): (usize, usize)) -> Result<Tensor> {
        let raw = self.runner.read(at, rows * n * float.size())?;
        let values: Vec<f32> = (0..rows * n).map(|i| float.get(&raw, i)).collect();
        Ok(Tensor::from_vec(values, (rows, n), &Cpu::Cpu)?)
    }

    /// y [rows, n] = x m^T; `float_out` for logits.
    pub fn product(
        &self,
        (path, rows): (Path, usize),
        (x, m, y): (View, &Matrix, View),
        float_out: bool,
        list: &mut Vec<Launch>,
    ) -> Result<(), LaunchError> {
        if path == Path::Prefill {
            list.push(matmul(self.act, rows, x, m, Finish::Keep, (y, float_out))?);
            return Ok(());
        }
        let size = self.act.size();
        let y_row = m.n * if float_out { 4 } else { size };
        for first in (0..rows).step_by(MAX_ROWS) {
            let (x, y) = (x.plus(first * m.k * size), y.plus(first * y_row));
            let some = MAX_ROWS.min(rows - first);
            list.push(linear(self.act, some, x, &[(*m, y)], Finish::Keep, float_out)?);
        }
        Ok(())
    }
}
