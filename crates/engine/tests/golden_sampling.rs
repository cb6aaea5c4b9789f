//! Processed distributions and the accept rule against recorded values (`tests/golden/sampling/README.md`).

mod support;

use foretoken_engine::decode::{
    Distribution, Draft, Rule, SamplerSettings, Verdict, accept_probability, judge, residual,
};
use serde_json::Value;
use support::{golden, ids, json};

/// The README's tolerance in f32.
const TOLERANCE: f32 = 1e-5;

fn floats(value: &Value) -> Vec<f32> {
    value.as_array().expect("a list").iter().map(|v| v.as_f64().expect("a number") as f32).collect()
}

fn settings(case: &Value) -> SamplerSettings {
    let number = |key: &str| case[key].as_f64().expect("a number") as f32;
    SamplerSettings {
        temperature: number("temperature"),
        top_p: number("top_p"),
        top_k: number("top_k") as u32,
        min_p: number("min_p"),
        ..Default::default()
    }
}

fn close(got: &Distribution, want: &[f32], what: &str) {
    for (id, want) in want.iter().enumerate() {
        let off = (got.probability(id as u32) - want).abs();
        assert!(off < TOLERANCE, "{what}: token {id} is off by {off}");
    }
}

fn support(d: &Distribution) -> Vec<u32> {
    d.iter().filter(|(_, p)| *p > 0.0).map(|(id, _)| id).collect()
}

struct Case {
    p: Distribution,
    q: Distribution,
    data: Value,
}

fn cases() -> Vec<(String, Case)> {
    let file = json(&golden("sampling").join("sampling_golden.json"));
    let cases = file["cases"].as_array().expect("cases").iter().map(|case| {
        let s = settings(case);
        let of = |key: &str| s.distribution(&floats(&case[key]), None, &[]).expect("finite logits");
        let name = case["name"].as_str().expect("a name").to_owned();
        (
            name,
            Case {
                p: of("target_logits"),
                q: of("draft_logits"),
                data: case["mlx_lm_order"].clone(),
            },
        )
    });
    cases.collect()
}

#[test]
fn distributions_supports_residuals_and_rates() {
    let all = cases();
    assert_eq!(all.len(), 15);
    for (name, Case { p, q, data }) in &all {
        close(p, &floats(&data["p"]), &format!("{name} p"));
        close(q, &floats(&data["q"]), &format!("{name} q"));
        assert_eq!(support(p), ids(&data["support_p"]), "{name}");
        assert_eq!(support(q), ids(&data["support_q"]), "{name}");
        match (residual(p, q), data["residual"].is_null()) {
            (None, true) => {}
            (Some(got), false) => {
                close(&got, &floats(&data["residual"]), &format!("{name} residual"))
            }
            (got, _) => panic!("{name}: residual {got:?}"),
        }
        let mut rate = 0.0;
        for (id, want) in
            data["accept_prob_per_token"].as_array().expect("a list").iter().enumerate()
        {
            let id = id as u32;
            let got = accept_probability(id, p, q);
            match want.as_f64() {
                Some(want) => assert!(
                    (got - want).abs() < 1e-4 * (1.0 + want),
                    "{name}: {got} instead of {want}"
                ),
                None => assert_eq!(got, 0.0, "{name}: token {id} cannot be drafted"),
            }
            rate += got * f64::from(q.probability(id));
        }
        let want = data["accept_residual"].as_f64().expect("a rate");
        assert!(
            (rate - want).abs() < f64::from(TOLERANCE),
            "{name}: accepts {rate} instead of {want}"
        );
    }
}

#[test]
fn the_walkthrough_decides_and_emits_the_same() {
    let file = json(&golden("sampling").join("sampling_golden.json"));
    let all = cases();
    let mut seen = 0;
    for step in file["walkthrough"].as_array().expect("steps") {
        if step["order"] != "mlx_lm_order" {
            continue;
        }
        let case = &all.iter().find(|(name, _)| step["case"] == **name).expect("a known case").1;
        let number = |key: &str| step[key].as_f64();
        let token = case.q.sample(number("draft_u").expect("a number"));
        assert_eq!(u64::from(token), step["draft_token"].as_u64().expect("an id"), "{step}");
        let mut uniforms = [number("accept_u"), number("resample_u")].into_iter().flatten();
        let draft = Draft { token, q: case.q.clone() };
        // A step that needs a third number would be another rule.
        let verdict = judge(&draft, &case.p, Rule::Residual, &mut || {
            uniforms.next().expect("no further number is drawn")
        });
        assert_eq!(
            verdict == Verdict::Accepted,
            step["accepted"].as_bool().expect("a flag"),
            "{step}"
        );
        let emitted = if let Verdict::Replaced(next) = verdict { next } else { token };
        assert_eq!(u64::from(emitted), step["emitted"].as_u64().expect("an id"), "{step}");
        seen += 1;
    }
    assert!(seen > 10);
}

#[test]
fn penalties_follow_the_documented_arithmetic() {
    let logits = [2.0, -1.0, 0.5, 0.0];
    let s = SamplerSettings {
        temperature: 1.0,
        repetition_penalty: 2.0,
        presence_penalty: 0.25,
        frequency_penalty: 0.5,
        ..Default::default()
    };
    // Token 0 seen twice, token 1 once; 3 never.
    let got = s.distribution(&logits, None, &[0, 1, 0]).expect("finite");
    let want: Vec<f64> = [2.0 / 2.0 - 0.25 - 1.0, -2.0 - 0.25 - 0.5, 0.5, 0.0]
        .iter()
        .map(|l: &f64| l.exp())
        .collect();
    let total: f64 = want.iter().sum();
    for (id, w) in want.iter().enumerate() {
        assert!((f64::from(got.probability(id as u32)) - w / total).abs() < 1e-6);
    }
    // Only the newest 20 tokens count.
    let mut long = vec![0u32];
    long.extend([3; 20]);
    let far = s.distribution(&logits, None, &long).expect("finite");
    assert!(far.probability(0) > far.probability(2));
    // A reduced vocabulary is penalised by id, not by place.
    let ids = [5u32, 9];
    let reduced = s.distribution(&[1.0, 1.0], Some(&ids), &[9]).expect("finite");
    assert!(reduced.probability(5) > reduced.probability(9) && reduced.probability(9) > 0.0);
}

#[test]
fn out_of_range_settings_and_numbers_are_errors() {
    let ok = SamplerSettings::default();
    let bad = [
        SamplerSettings { temperature: -0.1, ..ok },
        SamplerSettings { temperature: f32::NAN, ..ok },
        SamplerSettings { top_p: 1.1, ..ok },
        SamplerSettings { top_p: 0.0, ..ok },
        SamplerSettings { min_p: 1.0, ..ok },
        SamplerSettings { repetition_penalty: 0.0, ..ok },
        SamplerSettings { presence_penalty: f32::INFINITY, ..ok },
    ];
    for s in bad {
        assert!(s.check().is_err(), "{s:?}");
    }
    assert!(ok.check().is_ok());
    for v in [f32::NAN, f32::INFINITY] {
        assert!(ok.distribution(&[0.0, v], None, &[]).is_err());
    }
}
