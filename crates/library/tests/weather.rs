//! Many faults at once, drawn at random. Whatever they are: a download ends with the right bytes or with an error, and
//! once the weather clears, with the right bytes. `FORETOKEN_WEATHER_SEED=N` repeats a case.

mod support;

use foretoken_library::download::Outcome;
use std::time::Duration;
use support::*;

const CASES: u64 = 24;

fn any_fault(rng: &mut fastrand::Rng) -> Fault {
    let at = rng.u64(..SHARD_BYTES as u64);
    let page = "<html>no</html>";
    let kind = match rng.u8(..12) {
        0 | 1 => Kind::Drop(at),
        2 => Kind::Stall(at, Duration::from_millis(rng.u64(..700))),
        3 => Kind::WrongByte(at),
        4 => Kind::Short(at),
        5 => Kind::NoRange,
        6 => Kind::OtherRange,
        7 => Kind::NoLength,
        8 => Kind::Status(
            rng.choice([403, 404, 416, 500, 503]).unwrap_or(500),
            None,
            "text/plain",
            "no",
        ),
        9 => Kind::Status(429, Some("0"), "text/plain", "slow down"),
        10 => Kind::Status(200, None, rng.choice(["text/html", "text/plain"]).unwrap_or(""), page),
        _ => Kind::OtherTag,
    };
    let stage = if rng.u8(..5) == 0 { Stage::Resolve } else { Stage::Bytes };
    let file = rng.choice(["", SHARD, "tokenizer.json"]).unwrap_or("");
    Fault { skip: rng.usize(..4), times: rng.usize(1..4), ..Fault::new(stage, file, kind) }
}

#[test]
fn after_any_weather_the_bytes_are_right() {
    let only = std::env::var("FORETOKEN_WEATHER_SEED").ok().and_then(|seed| seed.parse().ok());
    let first = only.unwrap_or_else(|| fastrand::u64(..1 << 40));
    let (mut ended, mut failed) = (0, 0);
    for seed in first..first + only.map_or(CASES, |_| 1) {
        let mut rng = fastrand::Rng::with_seed(seed);
        let scene = Scene::new();
        for _ in 0..rng.u8(1..6) {
            scene.mirror.fault(any_fault(&mut rng));
        }
        eprintln!("seed {seed}: {:?}", scene.mirror.with(|state| state.faults.clone()));
        match scene.run().result {
            Ok(Outcome::Complete { .. }) => {
                scene.assert_complete();
                ended += 1;
            }
            Ok(Outcome::Stopped) => panic!("nobody stopped it"),
            Err(error) => {
                eprintln!("  {error}");
                failed += 1;
            }
        }
        scene.mirror.with(|state| state.faults.clear());
        let ran = scene.run();
        assert!(ran.result.is_ok(), "the weather is clear: {:?}", ran.result);
        scene.assert_complete();
    }
    eprintln!("{ended} ended in spite of it, {failed} with an error and well afterwards");
}
