use super::*;
use candle_core::Device;

/// Keys and values as f16 see and are seen as f32 of the same numbers, alone and in company.
#[test]
fn halves_are_read_as_what_they_are() -> Result<()> {
    for (n_heads, n_kv_heads, head_dim, rows) in [
        (9, 3, 64, 1),
        (12, 2, 80, 5),
        (4, 4, 128, 3),
        // In blocks.
        (9, 3, 64, 30),
        (8, 2, 128, 21),
        (6, 2, 48, 33),
    ] {
        let keys = 37;
        let spec = AttendSpec {
            n_heads,
            n_kv_heads,
            head_dim,
            scale: 0.1,
            query_position: keys - rows,
            key_position: 0,
            origin: 0,
            window: None,
        };
        let q = tensor(rows, n_heads * head_dim, 1);
        let [k, v] = [2, 3].map(|seed| tensor(keys, n_kv_heads * head_dim, seed));
        let (k, v) = (to_half(&k)?, to_half(&v)?);
        let wide = |x: &Tensor| x.to_dtype(candle_core::DType::F32);
        let got = attend(&q, &k, &v, spec)?.to_vec2::<f32>()?;
        assert_eq!(got, attend(&q, &wide(&k)?, &wide(&v)?, spec)?.to_vec2::<f32>()?);
        assert!(attend(&q, &k, &wide(&v)?, spec).is_err());
    }
    Ok(())
}

#[test]
fn halves_are_the_nearest_and_stay_finite() -> Result<()> {
    let mut x: Vec<f32> = (0..200).map(|i| (i as f32 - 99.5) * 7.77e-4).collect();
    x.extend([1e30, -1e30, f32::INFINITY, 65519.0, 65504.0, 1e-9, -0.0, 6.1e-5, 3e-7]);
    let half = to_half(&Tensor::from_vec(x.clone(), x.len(), &Device::Cpu)?)?.to_vec1::<f16>()?;
    for (x, half) in x.iter().zip(half) {
        assert_eq!(half, f16::from_f32(x.clamp(-65504.0, 65504.0)), "{x}");
    }
    let nan = to_half(&Tensor::from_vec(vec![f32::NAN; 17], 17, &Device::Cpu)?)?;
    assert!(nan.to_vec1::<f16>()?.iter().all(|v| v.is_nan()));
    Ok(())
}

fn tensor(rows: usize, width: usize, seed: usize) -> Tensor {
    let v: Vec<f32> = (0..rows * width)
        .map(|i| (((i * 7919 + seed * 104729) % 2003) as f32 - 1001.0) / 700.0)
        .collect();
    Tensor::from_vec(v, (rows, width), &Device::Cpu).expect("the shape fits")
}

fn reference(q: &Tensor, k: &Tensor, v: &Tensor, s: AttendSpec) -> Vec<f64> {
    let [q, k, v] = [q, k, v].map(|t| t.to_vec2::<f32>().expect("f32"));
    let d = s.head_dim;
    let mut out = Vec::new();
    for (r, q) in q.iter().enumerate() {
        for h in 0..s.n_heads {
            let kv = h / (s.n_heads / s.n_kv_heads) * d;
            let p = s.query_position + r;
            let seen = |t: &usize| {
                let at = s.key_position + t;
                at <= p && s.window.is_none_or(|w| at + w > p)
            };
            let keys: Vec<usize> = (0..k.len()).filter(seen).collect();
            let score = |t: &usize| {
                let dot: f64 =
                    (0..d).map(|i| f64::from(q[h * d + i]) * f64::from(k[*t][kv + i])).sum();
                (dot * f64::from(s.scale)).exp()
            };
            let w: Vec<f64> = keys.iter().map(score).collect();
            let total: f64 = w.iter().sum();
            out.extend((0..d).map(|i| {
                keys.iter().zip(&w).map(|(t, w)| w / total * f64::from(v[*t][kv + i])).sum::<f64>()
            }));
        }
    }
    out
}

#[test]
fn agrees_with_the_formula_and_rows_stand_alone() -> Result<()> {
    for (n_heads, n_kv_heads, head_dim) in
        [(4, 2, 16), (9, 3, 64), (2, 1, 80), (16, 2, 32), (5, 1, 64)]
    {
        for (rows, query_position, window, key_position, origin) in [
            (1, 0, None, 0, 0),
            (5, 33, None, 0, 0),
            (17, 3, None, 0, 0),
            (8, 40, Some(16), 20, 0),
            (3, 5, Some(64), 0, 0),
            (40, 0, Some(7), 0, 0),
            (20, 33, Some(16), 33, 33),
            (5, 40, Some(16), 35, 35),
            // In blocks, the last with a window that begins to move.
            (40, 33, None, 0, 0),
            (37, 100, None, 3, 3),
            (70, 10, Some(48), 0, 0),
        ] {
            let spec = AttendSpec {
                n_heads,
                n_kv_heads,
                head_dim,
                scale: 0.2,
                query_position,
                key_position,
                origin,
                window,
            };
            let keys = query_position + rows - key_position;
            let (q, k, v) = (
                tensor(rows, n_heads * head_dim, 1),
                tensor(keys, n_kv_heads * head_dim, 2),
                tensor(keys, n_kv_heads * head_dim, 3),
            );
            let got = attend(&q, &k, &v, spec)?.flatten_all()?.to_vec1::<f32>()?;
            for (got, want) in got.iter().zip(reference(&q, &k, &v, spec)) {
                assert!((f64::from(*got) - want).abs() < 1e-5, "{spec:?}: {got} instead of {want}");
            }
            for r in 0..rows {
                let alone = attend(
                    &q.narrow(0, r, 1)?,
                    &k,
                    &v,
                    AttendSpec { query_position: query_position + r, ..spec },
                )?;
                let alone: Vec<u32> =
                    alone.flatten_all()?.to_vec1::<f32>()?.into_iter().map(f32::to_bits).collect();
                let width = n_heads * head_dim;
                let together: Vec<u32> =
                    got[r * width..(r + 1) * width].iter().map(|v| v.to_bits()).collect();
                assert_eq!(alone, together, "row {r} of {rows}");
            }
        }
    }
    Ok(())
}

/// A softmax over one key is 1 whatever its score, so it is the score that must be remembered.
#[test]
fn a_query_that_is_not_a_number_sees_nothing() -> Result<()> {
    let spec = AttendSpec {
        n_heads: 1,
        n_kv_heads: 1,
        head_dim: 16,
        scale: 1.0,
        query_position: 0,
        key_position: 0,
        origin: 0,
        window: None,
    };
    for keys in [1, 2, 3, 17] {
        let spec = AttendSpec { query_position: keys - 1, ..spec };
        let (k, v) = (tensor(keys, 16, 1), tensor(keys, 16, 2));
        let mut q = tensor(1, 16, 3).flatten_all()?.to_vec1::<f32>()?;
        q[5] = f32::NAN;
        let q = Tensor::from_vec(q, (1, 16), &Device::Cpu)?;
        let out = attend(&q, &k, &v, spec)?.flatten_all()?.to_vec1::<f32>()?;
        assert!(out.iter().all(|x| x.is_nan()), "{keys} keys: {out:?}");
    }
    Ok(())
}

#[test]
fn refuses_keys_that_are_gone() {
    let spec = AttendSpec {
        n_heads: 1,
        n_kv_heads: 1,
        head_dim: 16,
        scale: 1.0,
        query_position: 9,
        key_position: 6,
        origin: 0,
        window: Some(8),
    };
    assert!(attend(&tensor(1, 16, 1), &tensor(4, 16, 2), &tensor(4, 16, 3), spec).is_err());
}

/// In a block too: what lies at a position that a row does not see is nothing to it, not even 0 times infinity.
#[test]
fn later_values_are_nothing_to_a_row() -> Result<()> {
    let (rows, heads, d) = (33, 4, 64);
    let spec = AttendSpec {
        n_heads: heads,
        n_kv_heads: 2,
        head_dim: d,
        scale: 0.1,
        query_position: 20,
        key_position: 0,
        origin: 0,
        window: None,
    };
    let (q, k) = (tensor(rows, heads * d, 1), tensor(53, 2 * d, 2));
    let plain = tensor(53, 2 * d, 3);
    let want = attend(&q, &k, &plain, spec)?.to_vec2::<f32>()?;
    for (at, bad) in [(52, f32::INFINITY), (40, f32::NAN), (51, f32::NEG_INFINITY)] {
        let mut v = plain.to_vec2::<f32>()?;
        v[at].fill(bad);
        let v = Tensor::new(v, &Device::Cpu)?;
        let got = attend(&q, &k, &v, spec)?.to_vec2::<f32>()?;
        for (row, (got, want)) in got.iter().zip(&want).enumerate() {
            if 20 + row < at {
                assert_eq!(got, want, "row {row} beside {bad} at {at}");
            } else {
                assert!(got.iter().all(|v| !v.is_finite()), "row {row} sees {bad} at {at}");
            }
        }
    }
    Ok(())
}
