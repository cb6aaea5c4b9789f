//! The launches of one layer for one step of decode or verify, in order, and what they read.

use super::attend::{AttendLaunch, attend};
use super::experts::{ExpertStack, experts_down, experts_gate_up, experts_sum};
use super::heads::{HeadsLaunch, heads};
use super::launch::{Arg, BufferId, Cache, FloatArray, Heads, Launch, LaunchError, Matrix, View};
use super::linear::{Finish, gate_up, linear};
use super::norm::rms_norm;
use super::router::{RouterSpec, RouterViews, router};
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
    (x, start, y): (View, View, View),
    scratch: u32,
    touched: usize,
) -> Result<Vec<Launch>, LaunchError> {
    if position + rows > layer.positions {
        return Err(LaunchError::Shape("a position past the rotation's table"));
    }
    let mut scratch = Scratch(scratch);
    let hidden = layer.o.n;
    let norm = |weight, x, y| {
        rms_norm(act, (rows, hidden), x, (weight, layer.plus_one, layer.eps), y, None)
    };
    let mut list = Vec::new();

    let normed = scratch.next();
    list.push(norm(layer.input_norm, x, normed));
    let [q, k, v, q_turned] = [(); 4].map(|()| scratch.next());
    let mut inputs = vec![(layer.q, q), (layer.k, k), (layer.v, v)];
    let gate = layer.gate.map(|m| (m, scratch.next()));
    inputs.extend(gate);
    for alike in group_alike(inputs) {
        list.push(linear(act, rows, normed, &alike, Finish::Keep, false)?);
    }
    list.push(heads(
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
            plus_one: layer.plus_one,
            eps: layer.eps,
            cache: layer.cache,
            q_out: q_turned,
        },
    )?);
    let [part_sum, part_top, seen, with_attention, feed_in] = [(); 5].map(|()| scratch.next());
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
    list.extend(attend(act, rows, position, &attention)?);
    list.push(linear(act, rows, seen, &[(layer.o, with_attention)], Finish::Add(x), false)?);
    list.push(norm(layer.feed_norm, with_attention, feed_in));
    match &layer.feed {
        Feed::Dense(mlp) => {
            gated(act, rows, mlp, (feed_in, with_attention, y), &mut scratch, &mut list)?;
        }
        Feed::Moe(moe) => {
            let rest = match &moe.shared {
                Some(shared) => {
                    let rest = scratch.next();
                    let views = (feed_in, with_attention, rest);
                    gated(act, rows, shared, views, &mut scratch, &mut list)?;
                    rest
                }
                None => with_attention,
            };
            routed(act, rows, moe, (feed_in, rest, y), &mut scratch, touched, &mut list)?;
        }
    }
    Ok(list)
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

/// y = residual + the MLP of x.
fn gated(
    act: FloatType,
    rows: usize,
    mlp: &Gated,
    (x, residual, y): (View, View, View),
    scratch: &mut Scratch,
    list: &mut Vec<Launch>,
) -> Result<(), LaunchError> {
    let wide = scratch.next();
    if mlp.gate.storage == mlp.up.storage {
        list.push(gate_up(act, rows, x, (&mlp.gate, &mlp.up), mlp.limit, wide)?);
    } else {
        let gate = scratch.next();
        let finish = Finish::Gate(gate, mlp.limit);
        list.push(linear(act, rows, x, &[(mlp.gate, gate)], Finish::Keep, false)?);
        list.push(linear(act, rows, x, &[(mlp.up, wide)], finish, false)?);
    }
    list.push(linear(act, rows, wide, &[(mlp.down, y)], Finish::Add(residual), false)?);
    Ok(())
}

/// y = rest + the weighted experts of x.
fn routed(
    act: FloatType,
    rows: usize,
    moe: &Moe,
    (x, rest, y): (View, View, View),
    scratch: &mut Scratch,
    touched: usize,
    list: &mut Vec<Launch>,
) -> Result<(), LaunchError> {
    let [logits, chosen, weights, order, runs, wide, each] = [(); 7].map(|()| scratch.next());
    let to = RouterViews { chosen, weights, order, runs };
    list.push(linear(act, rows, x, &[(moe.router, logits)], Finish::Keep, true)?);
    list.push(router(rows, &moe.spec, logits, &to)?);
    list.push(experts_gate_up(act, rows, &moe.stack, x, &to, wide, touched)?);
    list.push(experts_down(act, rows, &moe.stack, wide, &to, each, touched)?);
    let n_chosen = moe.spec.n_chosen;
    list.push(experts_sum(act, (rows, moe.stack.down.n), n_chosen, each, weights, rest, y));
    Ok(())
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
