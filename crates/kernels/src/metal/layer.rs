//! The launches of one layer, in order, and what they read: for a step of decode or verify, whose kernels read a weight once
//! for up to 8 rows, and for prefill, whose kernels take any number of rows and add in another order.

use super::attend::{AttendLaunch, attend, attend_rows};
use super::experts::{ExpertStack, experts_down, experts_gate_up, experts_sum};
use super::heads::{HeadsLaunch, heads};
use super::launch::{Arg, BufferId, Cache, FloatArray, Heads, Launch, LaunchError, Matrix, View};
use super::linear::{Finish, gate_up, linear};
use super::matmul::{PairInput, matmul, matmul_tiles};
use super::norm::rms_norm;
use super::router::{RouterSpec, RouterViews, Tiles, n_tiles, router, router_rows};
use crate::FloatType;

/// A gated MLP.
#[derive(Debug, Clone, Copy)]
pub struct Gated {
    pub gate: Matrix,
    pub up: Matrix,
    pub down: Matrix,
    pub limit: Option<f32>,
}

#[derive(Debug, Clone, Copy)]
pub struct Moe {
    /// hidden -> experts.
    pub router: Matrix,
    pub spec: RouterSpec,
    pub stack: ExpertStack,
    pub shared: Option<Gated>,
}

/// What follows attention.
#[derive(Debug, Clone, Copy)]
#[expect(
    clippy::large_enum_variant,
    reason = "plain data, made once a layer; a box would take Copy away"
)]
pub enum Feed {
    Dense(Gated),
    Moe(Moe),
}

#[derive(Debug, Clone, Copy)]
pub struct Layer {
    pub heads: Heads,
    pub q: Matrix,
    pub k: Matrix,
    pub v: Matrix,
    pub o: Matrix,
    /// hidden -> heads.
    pub gate: Option<Matrix>,
    pub q_norm: Option<FloatArray>,
    pub k_norm: Option<FloatArray>,
    /// Of q, k and v, as [`HeadsLaunch::bias`].
    pub bias: Option<View>,
    pub input_norm: FloatArray,
    pub feed_norm: FloatArray,
    /// Norms are stored around zero.
    pub plus_one: bool,
    pub eps: f32,
    /// [positions, half_turn] f32 each.
    pub cosines: View,
    pub sines: View,
    /// Of the two tables; a GPU would read past their end without a word.
    pub positions: usize,
    pub half_turn: usize,
    pub scale: f32,
    pub window: Option<usize>,
    pub origin: usize,
    pub cache: Cache,
    pub feed: Feed,
}

/// Numbers buffers that live within the step only; a buffer's size is the largest write that a launch declares for it.
struct Scratch(u32);

impl Scratch {
    fn next(&mut self) -> View {
        self.0 += 1;
        View::start(self.0 - 1)
    }
}

/// `x` [rows, hidden] to `y`, row 0 at `position`, which `start` holds as a u32. Scratch buffers are numbered from `scratch`
/// on. `touched`: distinct experts the rows go to, for the count of bytes; the launches do not depend on it.
pub fn decode_layer(
    act: FloatType,
    rows: usize,
    position: usize,
    layer: &Layer,
    places: (View, View, View),
    scratch: u32,
    touched: usize,
) -> Result<Vec<Launch>, LaunchError> {
    Pass::new(act, rows, Path::Step, scratch, touched).layer(position, layer, places)
}

/// The same for any number of rows, which read every matrix and every expert once together. A row's bits are not those of
/// [`decode_layer`], but they depend on the rows beside it as little.
pub fn prefill_layer(
    act: FloatType,
    rows: usize,
    position: usize,
    layer: &Layer,
    places: (View, View, View),
    scratch: u32,
    touched: usize,
) -> Result<Vec<Launch>, LaunchError> {
    Pass::new(act, rows, Path::Prefill, scratch, touched).layer(position, layer, places)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Path {
    Step,
    Prefill,
}

/// The list as it grows.
struct Pass {
    act: FloatType,
    rows: usize,
    path: Path,
    touched: usize,
    scratch: Scratch,
    list: Vec<Launch>,
}

impl Pass {
    fn new(act: FloatType, rows: usize, path: Path, scratch: u32, touched: usize) -> Self {
        Self { act, rows, path, touched, scratch: Scratch(scratch), list: Vec::new() }
    }

    fn layer(
        mut self,
        position: usize,
        layer: &Layer,
        (x, start, y): (View, View, View),
    ) -> Result<Vec<Launch>, LaunchError> {
        let (act, rows) = (self.act, self.rows);
        if position + rows > layer.positions {
            return Err(LaunchError::Shape("a position past the rotation's table"));
        }
        let hidden = layer.o.n;
        let norm = |weight, x, y| {
            rms_norm(act, (rows, hidden), x, (weight, layer.plus_one, layer.eps), y, None)
        };
        let normed = self.scratch.next();
        self.list.push(norm(layer.input_norm, x, normed));
        let [q, k, v, q_turned] = [(); 4].map(|()| self.scratch.next());
        let mut inputs = vec![(layer.q, q), (layer.k, k), (layer.v, v)];
        let gate = layer.gate.map(|m| (m, self.scratch.next()));
        inputs.extend(gate);
        self.products(normed, inputs)?;
        self.list.push(heads(
            act,
            rows,
            &HeadsLaunch {
                heads: layer.heads,
                q,
                k,
                v,
                cosines: layer.cosines,
                sines: layer.sines,
                half_turn: layer.half_turn,
                start,
                q_norm: layer.q_norm,
                k_norm: layer.k_norm,
                bias: layer.bias,
                plus_one: layer.plus_one,
                eps: layer.eps,
                cache: layer.cache,
                q_out: q_turned,
            },
        )?);
        let [part_sum, part_top, seen, with_attention, feed_in] =
            [(); 5].map(|()| self.scratch.next());
        let attention = AttendLaunch {
            heads: layer.heads,
            q: q_turned,
            cache: layer.cache,
            start,
            origin: layer.origin,
            window: layer.window,
            scale: layer.scale,
            gate: gate.map(|(_, view)| view),
            part_sum,
            part_top,
            y: seen,
        };
        match self.path {
            Path::Step => self.list.extend(attend(act, rows, position, &attention)?),
            Path::Prefill => self.list.push(attend_rows(act, rows, position, &attention)?),
        }
        self.product(seen, &layer.o, Finish::Add(x), (with_attention, false))?;
        self.list.push(norm(layer.feed_norm, with_attention, feed_in));
        match &layer.feed {
            Feed::Dense(mlp) => self.gated(mlp, (feed_in, with_attention, y))?,
            Feed::Moe(moe) => {
                let rest = match &moe.shared {
                    Some(shared) => {
                        let rest = self.scratch.next();
                        self.gated(shared, (feed_in, with_attention, rest))?;
                        rest
                    }
                    None => with_attention,
                };
                self.routed(moe, (feed_in, rest, y))?;
            }
        }
        Ok(self.list)
    }

    fn product(
        &mut self,
        x: View,
        m: &Matrix,
        finish: Finish,
        (y, float_out): (View, bool),
    ) -> Result<(), LaunchError> {
        let (act, rows) = (self.act, self.rows);
        self.list.push(match self.path {
            Path::Step => linear(act, rows, x, &[(*m, y)], finish, float_out)?,
            Path::Prefill => matmul(act, rows, x, m, finish, (y, float_out))?,
        });
        Ok(())
    }

    /// Several matrices of one x.
    fn products(&mut self, x: View, parts: Vec<(Matrix, View)>) -> Result<(), LaunchError> {
        if self.path == Path::Prefill {
            return parts
                .iter()
                .try_for_each(|(m, y)| self.product(x, m, Finish::Keep, (*y, false)));
        }
        for alike in group_alike(parts) {
            self.list.push(linear(self.act, self.rows, x, &alike, Finish::Keep, false)?);
        }
        Ok(())
    }

    /// y = residual + the MLP of x.
    fn gated(
        &mut self,
        mlp: &Gated,
        (x, residual, y): (View, View, View),
    ) -> Result<(), LaunchError> {
        let wide = self.scratch.next();
        if self.path == Path::Step && mlp.gate.storage == mlp.up.storage {
            let both = (&mlp.gate, &mlp.up);
            self.list.push(gate_up(self.act, self.rows, x, both, mlp.limit, wide)?);
        } else {
            let gate = self.scratch.next();
            self.product(x, &mlp.gate, Finish::Keep, (gate, false))?;
            self.product(x, &mlp.up, Finish::Gate(gate, mlp.limit), (wide, false))?;
        }
        self.product(wide, &mlp.down, Finish::Add(residual), (y, false))
    }

    /// y = rest + the weighted experts of x.
    fn routed(&mut self, moe: &Moe, (x, rest, y): (View, View, View)) -> Result<(), LaunchError> {
        let (act, rows, touched, stack) = (self.act, self.rows, self.touched, &moe.stack);
        let [logits, chosen, weights, order, runs, wide, each] =
            [(); 7].map(|()| self.scratch.next());
        self.product(x, &moe.router, Finish::Keep, (logits, true))?;
        match self.path {
            Path::Step => {
                let to = RouterViews { chosen, weights, order, runs };
                self.list.push(router(rows, &moe.spec, logits, &to)?);
                self.list.push(experts_gate_up(act, rows, stack, x, &to, wide, touched)?);
                self.list.push(experts_down(act, rows, stack, wide, &to, each, touched)?);
            }
            Path::Prefill => {
                let n = n_tiles(rows, &moe.spec);
                let tiles = Tiles { order, tiles: runs, n, n_chosen: stack.n_chosen, touched };
                let (gate, input) = (self.scratch.next(), (x, PairInput::Row));
                let finish = Finish::Gate(gate, stack.limit);
                let own = (wide, PairInput::Own);
                self.list.extend(router_rows(rows, &moe.spec, logits, (chosen, weights), &tiles)?);
                self.list.extend([
                    matmul_tiles(
                        act,
                        rows,
                        input,
                        &stack.gate,
                        &tiles,
                        Finish::Keep,
                        (gate, false),
                    )?,
                    matmul_tiles(act, rows, input, &stack.up, &tiles, finish, (wide, false))?,
                    matmul_tiles(act, rows, own, &stack.down, &tiles, Finish::Keep, (each, true))?,
                ]);
            }
        }
        let sum = (rows, stack.down.n);
        self.list.push(experts_sum(act, sum, stack.n_chosen, each, weights, rest, y));
        Ok(())
    }
}

/// Matrices of one storage share a launch: x is read once, and the launch is long enough to fill the GPU.
fn group_alike(parts: Vec<(Matrix, View)>) -> Vec<Vec<(Matrix, View)>> {
    let mut groups: Vec<Vec<(Matrix, View)>> = Vec::new();
    for part in parts {
        match groups.iter_mut().find(|g| g[0].0.storage == part.0.storage && g[0].0.k == part.0.k) {
            Some(group) => group.push(part),
            None => groups.push(vec![part]),
        }
    }
    groups
}

/// What a list of launches fetches, by what it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Traffic {
    pub launches: usize,
    /// From the buffers that were there before: weights, cache, tables, input.
    pub lasting: usize,
    /// What one launch wrote and another reads.
    pub between: usize,
}

/// Sums the declared reads; buffers numbered from `scratch` on live within the list.
pub fn traffic(list: &[Launch], scratch: BufferId) -> Traffic {
    let mut traffic = Traffic { launches: list.len(), ..Traffic::default() };
    for (_, arg) in list.iter().flat_map(|launch| &launch.args) {
        if let Arg::Read { at, bytes } = arg {
            if at.buffer < scratch {
                traffic.lasting += bytes;
            } else {
                traffic.between += bytes;
            }
        }
    }
    traffic
}
