//! A panel: some outputs of a weight for the rows of x, in the order of sums that `int8.rs` lays down.

use super::lanes::{Codes, Int8, Nibbles, STRETCH, Whole};
use super::quantise::{EACH, Ends, Line};
use super::{BLOCK, GRAIN};
use crate::weight::{Affine, FloatType};
use std::mem::MaybeUninit;

/// Weight rows as they are read, from some row on: each of the three lies without a gap.
#[derive(Clone, Copy)]
struct View {
    codes: *const u8,
    scales: *const u8,
    biases: *const u8,
    float: FloatType,
    /// Of a row.
    blocks: usize,
    /// log2(group / 32).
    shift: u32,
}

impl View {
    /// From `blocks` blocks further on, where a group begins.
    #[inline(always)]
    fn after<F: Codes>(self, blocks: usize) -> Self {
        let scales = (blocks >> self.shift) * self.float.size();
        Self {
            codes: self.codes.wrapping_add(blocks * F::BLOCK_BYTES),
            scales: self.scales.wrapping_add(scales),
            biases: self.biases.wrapping_add(scales),
            ..self
        }
    }
}

/// Rows of x that share an unpacking.
pub(super) const MOST_ROWS: usize = 8;
/// Bytes of x that stay in the first-level cache while a panel goes by.
const NEAR: usize = 28 << 10;
/// Bytes ahead that codes are asked for.
const AHEAD: usize = 2048;
/// What a stretch of the weight does to the accumulators of R rows.
#[inline(always)]
unsafe fn stretch<I: Int8, F: Codes, const R: usize>(
    w: View,
    index: I::Index,
    x: &[*const Line; R],
    place: usize,
    acc: &mut [I::V; R],
) {
    unsafe {
        let groups = STRETCH >> w.shift;
        let scale = I::spread(I::table(w.scales, w.float, groups), index);
        let bias = I::spread(I::table(w.biases, w.float, groups), index);
        let mut lines = [std::ptr::null(); R];
        for r in 0..R {
            lines[r] = x[r].add(place).cast();
        }
        I::take::<F, R>(w.codes, (scale, bias), &lines, acc);
    }
}

/// What is left of several rows of the weight, side by side as a stretch.
#[repr(C, align(64))]
struct Beside {
    codes: [u8; STRETCH * BLOCK],
    scales: [u8; STRETCH * 4],
    biases: [u8; STRETCH * 4],
}

impl Beside {
    /// Where nothing is copied to, x is 0 and so is the scale.
    const EMPTY: Self =
        Self { codes: [0; STRETCH * BLOCK], scales: [0; STRETCH * 4], biases: [0; STRETCH * 4] };

    /// From the first `rows` rows of `w`, which begins at what is left: `codes` bytes of codes and `scales` of scales each,
    /// to slots of `slot` and `scale_slot` bytes. Inlined with numbers for them it becomes a few moves.
    #[inline(always)]
    unsafe fn take<F: Codes>(
        &mut self,
        w: View,
        (codes, slot): (usize, usize),
        (scales, scale_slot): (usize, usize),
        rows: usize,
    ) {
        for i in 0..rows {
            let row = w.after::<F>(i * w.blocks);
            unsafe {
                let to = self.codes.as_mut_ptr().add(i * slot);
                std::ptr::copy_nonoverlapping(row.codes, to, codes);
                let to = self.scales.as_mut_ptr().add(i * scale_slot);
                std::ptr::copy_nonoverlapping(row.scales, to, scales);
                let to = self.biases.as_mut_ptr().add(i * scale_slot);
                std::ptr::copy_nonoverlapping(row.biases, to, scales);
            }
        }
    }

    #[inline(always)]
    fn view(&self, w: View) -> View {
        View {
            codes: self.codes.as_ptr(),
            scales: self.scales.as_ptr(),
            biases: self.biases.as_ptr(),
            ..w
        }
    }
}

/// Stretches of what is left that 8 outputs have at most: those whose rows have a slot of 16 share with nobody.
const LEFTS: usize = GRAIN;

/// Gives each of `outputs` outputs from `first` on the lanes of its slot.
#[inline(always)]
unsafe fn share<I: Int8, const R: usize>(
    held: &mut [[I::V; GRAIN]; R],
    part: &[I::V; R],
    first: usize,
    slot: usize,
    outputs: usize,
) {
    for i in 0..outputs {
        for r in 0..R {
            let to = &mut held[r][first + i];
            unsafe { *to = I::add(*to, I::keep(part[r], i * slot, (i + 1) * slot)) };
        }
    }
}

/// `outputs` (at most 8) outputs from `first` on, for R rows of x. `beside` has as many as they need, empty where nothing is taken.
#[inline(always)]
unsafe fn eight<I: Int8, F: Codes, const R: usize>(
    w: View,
    index: I::Index,
    x: &[*const Line; R],
    out: &[*mut f32],
    (first, outputs): (usize, usize),
    beside: *mut Beside,
) {
    unsafe {
        let zero = I::splat(0.0);
        let mut held = [[zero; GRAIN]; R];
        let ends = Ends::of(w.blocks);
        let together = STRETCH / ends.slot;
        if ends.left > 0 {
            // Long before they are read again: what was just written in small pieces cannot be read whole at once.
            let size = w.float.size();
            let left = w.after::<F>(ends.stretches * STRETCH);
            let scales = ((ends.left >> w.shift) * size, (ends.slot >> w.shift) * size);
            if (ends.left, outputs, scales.0) == (2, GRAIN, 4) {
                let block = F::BLOCK_BYTES;
                (*beside).take::<F>(left, (2 * block, 2 * block), (4, 4), GRAIN);
            } else {
                let codes = (ends.left * F::BLOCK_BYTES, ends.slot * F::BLOCK_BYTES);
                for (i, o) in (0..outputs).step_by(together).enumerate() {
                    let rows = together.min(outputs - o);
                    (*beside.add(i)).take::<F>(left.after::<F>(o * w.blocks), codes, scales, rows);
                }
            }
        }
        for o in 0..outputs {
            let mut row = w.after::<F>(o * w.blocks);
            let mut acc = [zero; R];
            for s in 0..ends.stretches {
                let mut line = 0;
                while line < STRETCH * F::BLOCK_BYTES {
                    I::prefetch(row.codes.wrapping_add(AHEAD + line));
                    line += 64;
                }
                stretch::<I, F, R>(row, index, x, s * EACH, &mut acc);
                row = row.after::<F>(STRETCH);
            }
            for r in 0..R {
                held[r][o] = acc[r];
            }
        }
        if ends.left > 0 {
            for (i, o) in (0..outputs).step_by(together).enumerate() {
                let mut part = [zero; R];
                let place = ends.stretches * EACH;
                stretch::<I, F, R>((*beside.add(i)).view(w), index, x, place, &mut part);
                if together == GRAIN && outputs == GRAIN {
                    share::<I, R>(&mut held, &part, 0, 2, GRAIN);
                } else {
                    share::<I, R>(&mut held, &part, o, ends.slot, together.min(outputs - o));
                }
            }
        }
        for r in 0..R {
            let sums = I::sums(&held[r]);
            let to = out[r].wrapping_add(first);
            if outputs == GRAIN {
                std::ptr::copy_nonoverlapping(sums.as_ptr(), to, GRAIN);
            } else {
                std::ptr::copy_nonoverlapping(sums.as_ptr(), to, outputs);
            }
        }
    }
}

/// Outputs `first..end` for R rows of x, which stay in the first-level cache.
#[inline(always)]
unsafe fn sweep<I: Int8, F: Codes, const R: usize>(
    mut w: View,
    (first, end): (usize, usize),
    x: &[*const Line],
    out: &[*mut f32],
) {
    unsafe {
        let mut rows = [x[0]; R];
        rows.copy_from_slice(&x[..R]);
        let index = I::index(w.shift);
        let mut beside = [const { MaybeUninit::<Beside>::uninit() }; LEFTS];
        // Emptying all of them at each call was a hundredth of a step.
        let ends = Ends::of(w.blocks);
        let used = if ends.left > 0 { GRAIN.div_ceil(STRETCH / ends.slot) } else { 0 };
        for beside in beside.iter_mut().take(used) {
            beside.write(Beside::EMPTY);
        }
        let beside = beside.as_mut_ptr().cast();
        let mut at = first;
        while at < end {
            eight::<I, F, R>(w, index, &rows, out, (at, GRAIN.min(end - at)), beside);
            w = w.after::<F>(GRAIN * w.blocks);
            at += GRAIN;
        }
    }
}

#[inline(always)]
unsafe fn panel_of<I: Int8, F: Codes>(
    w: View,
    range: (usize, usize),
    x: &[*const Line],
    out: &[*mut f32],
) {
    let row = Ends::of(w.blocks).lines() * size_of::<Line>();
    let most = if x.len() > MOST_ROWS { (NEAR / row).clamp(1, MOST_ROWS) } else { MOST_ROWS };
    let mut r = 0;
    while r < x.len() {
        let m = (x.len() - r).min(most);
        let (x, out) = (&x[r..r + m], &out[r..r + m]);
        unsafe {
            match m {
                1 => sweep::<I, F, 1>(w, range, x, out),
                2 => sweep::<I, F, 2>(w, range, x, out),
                3 => sweep::<I, F, 3>(w, range, x, out),
                4 => sweep::<I, F, 4>(w, range, x, out),
                5 => sweep::<I, F, 5>(w, range, x, out),
                6 => sweep::<I, F, 6>(w, range, x, out),
                7 => sweep::<I, F, 7>(w, range, x, out),
                _ => sweep::<I, F, 8>(w, range, x, out),
            }
        }
        r += m;
    }
}

#[inline(always)]
unsafe fn body<I: Int8>(
    w: &Affine,
    x: &[*const Line],
    out: &[*mut f32],
    range: std::ops::Range<usize>,
    scratch: &mut [u8],
) {
    let (row, scale_row) = (w.k * w.bits / 8, w.k / w.group * w.scale_type.size());
    let [codes, scales, biases] =
        [&w.codes, &w.scales, &w.biases].map(|bytes| bytes.as_slice().as_ptr());
    let mut view = View {
        codes: codes.wrapping_add(range.start * row),
        scales: scales.wrapping_add(range.start * scale_row),
        biases: biases.wrapping_add(range.start * scale_row),
        float: w.scale_type,
        blocks: w.k / BLOCK,
        shift: (w.group / BLOCK).trailing_zeros(),
    };
    unsafe {
        match w.bits {
            4 => panel_of::<I, Nibbles>(view, (range.start, range.end), x, out),
            8 => panel_of::<I, Whole>(view, (range.start, range.end), x, out),
            bits => {
                let mut first = range.start;
                while first < range.end {
                    let end = (first + GRAIN).min(range.end);
                    for i in first..end {
                        let to = scratch.as_mut_ptr().add((i - first) * w.k);
                        I::unpack(codes.add(i * row), bits, w.k, to);
                    }
                    let unpacked = View { codes: scratch.as_ptr(), ..view };
                    panel_of::<I, I::Unpacked>(unpacked, (first, end), x, out);
                    view.scales = view.scales.wrapping_add(GRAIN * scale_row);
                    view.biases = view.biases.wrapping_add(GRAIN * scale_row);
                    first = end;
                }
            }
        }
    }
}

/// Which backend takes the products.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Backend {
    #[cfg(target_arch = "x86_64")]
    Avx512,
    #[cfg(target_arch = "x86_64")]
    Avx2,
    #[cfg(target_arch = "aarch64")]
    Neon,
    Portable,
}

/// As [`crate::lanes::backend`], where AVX-512 also needs its byte instructions and NEON its dot product.
pub(crate) fn backend() -> Backend {
    #[cfg(target_arch = "x86_64")]
    {
        use crate::lanes::Backend as Floats;
        let bytes = is_x86_feature_detected!("avx512vnni")
            && is_x86_feature_detected!("avx512vbmi")
            && is_x86_feature_detected!("avx512vl");
        match crate::lanes::backend() {
            Floats::Avx512 if bytes => Backend::Avx512,
            Floats::Avx512 | Floats::Avx2 => Backend::Avx2,
            Floats::Portable => Backend::Portable,
        }
    }
    #[cfg(target_arch = "aarch64")]
    match crate::lanes::backend() {
        crate::lanes::Backend::Neon if std::arch::is_aarch64_feature_detected!("dotprod") => {
            Backend::Neon
        }
        _ => Backend::Portable,
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    Backend::Portable
}

/// Outputs `range` of `w` for the rows of x.
pub(super) fn panel(
    w: &Affine,
    x: &[*const Line],
    out: &[*mut f32],
    range: std::ops::Range<usize>,
    scratch: &mut [u8],
) {
    // SAFETY: the backend is what this CPU has; rows, outputs and scratch are as long as `run` and `gated` make them.
    unsafe { panel_on(backend(), w, x, out, range, scratch) }
}

pub(super) unsafe fn panel_on(
    backend: Backend,
    w: &Affine,
    x: &[*const Line],
    out: &[*mut f32],
    range: std::ops::Range<usize>,
    scratch: &mut [u8],
) {
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,avx512vbmi,avx2,fma,f16c")]
    unsafe fn avx512(
        w: &Affine,
        x: &[*const Line],
        out: &[*mut f32],
        range: std::ops::Range<usize>,
        scratch: &mut [u8],
    ) {
        unsafe { body::<crate::lanes::Avx512>(w, x, out, range, scratch) }
    }
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn avx2(
        w: &Affine,
        x: &[*const Line],
        out: &[*mut f32],
        range: std::ops::Range<usize>,
        scratch: &mut [u8],
    ) {
        unsafe { body::<crate::lanes::Avx2>(w, x, out, range, scratch) }
    }
    #[cfg(target_arch = "aarch64")]
    #[target_feature(enable = "dotprod")]
    unsafe fn neon(
        w: &Affine,
        x: &[*const Line],
        out: &[*mut f32],
        range: std::ops::Range<usize>,
        scratch: &mut [u8],
    ) {
        unsafe { body::<crate::lanes::Neon>(w, x, out, range, scratch) }
    }
    unsafe {
        match backend {
            #[cfg(target_arch = "x86_64")]
            Backend::Avx512 => avx512(w, x, out, range, scratch),
            #[cfg(target_arch = "x86_64")]
            Backend::Avx2 => avx2(w, x, out, range, scratch),
            #[cfg(target_arch = "aarch64")]
            Backend::Neon => neon(w, x, out, range, scratch),
            Backend::Portable => body::<crate::lanes::Portable>(w, x, out, range, scratch),
        }
    }
}
