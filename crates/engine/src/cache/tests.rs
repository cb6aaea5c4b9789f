use super::*;
use proptest::prelude::*;

const WIDTH: usize = 2;

/// Row `i` of a history: its first number names the position, its second the branch it was written on.
fn row(position: usize, branch: usize) -> [f32; 2] {
    [position as f32, branch as f32]
}

fn tensor(rows: &[[f32; 2]]) -> Tensor {
    Tensor::from_vec(rows.concat(), (rows.len(), WIDTH), &Device::Cpu).expect("the shape fits")
}

#[derive(Debug, Clone)]
enum Op {
    Append(usize),
    /// Rows to take back.
    Rewind(usize),
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let op = prop_oneof![
        4 => (1usize..9).prop_map(Op::Append),
        1 => (200usize..700).prop_map(Op::Append),
        4 => (0usize..9).prop_map(Op::Rewind),
        1 => (0usize..400).prop_map(Op::Rewind),
    ];
    prop::collection::vec(op, 1..60)
}

/// What every new row may look at must equal the plain vector's rows, whatever was appended and taken back before.
fn compare_with_a_vector(kind: CacheKind, ops: &[Op]) {
    let mut cache = LayerCache::new(kind, WIDTH);
    let mut plain: Vec<[f32; 2]> = Vec::new();
    let (window, slack) = match kind {
        CacheKind::Full => (usize::MAX, usize::MAX),
        CacheKind::Sliding { window, slack } => (window, slack),
    };
    let mut longest = 0;
    // The slack counts from the longest the cache has been.
    let mut furthest = 0;
    for (branch, op) in ops.iter().enumerate() {
        match *op {
            Op::Append(n) => {
                let first_new = plain.len();
                let new: Vec<_> = (0..n).map(|i| row(first_new + i, branch)).collect();
                plain.extend(&new);
                longest = longest.max(n);
                furthest = furthest.max(plain.len());
                let seen = cache.append(&tensor(&new), &tensor(&new)).expect("appends");
                let keys = seen.keys.to_vec2::<f32>().expect("f32");
                assert_eq!(keys, seen.values.to_vec2::<f32>().expect("f32"));
                assert_eq!(seen.first_position + keys.len(), plain.len());
                for query in first_new..plain.len() {
                    let oldest = (query + 1).saturating_sub(window);
                    assert!(
                        seen.first_position <= oldest,
                        "a row of the window of {query} is gone"
                    );
                    for p in oldest..=query {
                        assert_eq!(
                            keys[p - seen.first_position],
                            plain[p],
                            "position {p} seen by {query}"
                        );
                    }
                }
            }
            Op::Rewind(n) => {
                let len = plain.len().saturating_sub(n);
                let possible = cache.can_rewind(len);
                if kind == CacheKind::Full || len + slack >= furthest {
                    assert!(possible, "{n} rows of {} must be retractable", plain.len());
                }
                cache.rewind(len);
                plain.truncate(if possible { len } else { 0 });
                furthest = if possible { furthest } else { 0 };
            }
        }
        assert_eq!(cache.len(), plain.len());
        if let CacheKind::Sliding { window, slack } = kind {
            assert!(
                cache.n_bytes() <= 2 * 4 * WIDTH * (window + slack + 2 * STEP + 2 * longest),
                "not bounded"
            );
        }
    }
}

proptest! {
    #[test]
    fn full_equals_a_plain_vector(ops in ops()) {
        compare_with_a_vector(CacheKind::Full, &ops);
    }

    #[test]
    fn sliding_equals_a_plain_vector_in_its_window(ops in ops(), window in 1usize..40, slack in 0usize..12) {
        compare_with_a_vector(CacheKind::Sliding { window, slack }, &ops);
    }
}

#[test]
fn several_rows_across_the_window_edge_all_see_their_window() {
    let kind = CacheKind::Sliding { window: 4, slack: 2 };
    compare_with_a_vector(
        kind,
        &[
            Op::Append(6),
            Op::Append(2),
            Op::Rewind(2),
            Op::Append(2),
            Op::Append(7),
            Op::Append(300),
            Op::Append(3),
            Op::Rewind(2),
            Op::Append(5),
        ],
    );
}

#[test]
fn what_is_gone_cannot_be_rewound_to() {
    let mut cache = LayerCache::new(CacheKind::Sliding { window: 4, slack: 2 }, WIDTH);
    let rows: Vec<_> = (0..400).map(|i| row(i, 0)).collect();
    cache.append(&tensor(&rows), &tensor(&rows)).expect("appends");
    cache.append(&tensor(&rows[..1]), &tensor(&rows[..1])).expect("appends");
    assert!(cache.can_rewind(399) && !cache.can_rewind(100));
    cache.rewind(100);
    assert_eq!(cache.len(), 0, "a cache that cannot go back is empty, not wrong");
}
