//! The law of the text with drafting is the sampler's own law, exactly: toy models whose law can be computed.

use candle_core::{Device, Tensor};
use foretoken_engine::Result;
use foretoken_engine::cache::{Cache, CacheKind, LayerCache};
use foretoken_engine::decode::{Distribution, Rule, SamplerSettings, Sequence, accept_probability};
use foretoken_engine::models::{HeadFeed, HeadStatus, Model, MtpHead, Trunk, TrunkShape};
use std::collections::HashMap;
use std::sync::Arc;

const VOCAB: usize = 6;
const SAMPLES: usize = 50_000;
/// Tokens whose joint law is compared.
const LENGTH: usize = 3;
const PROMPT: [u32; 3] = [1, 4, 2];

/// Logits of the token after (before, last): an arbitrary fixed table.
fn target_logits(before: u32, last: u32) -> Vec<f32> {
    let mix = |v: u32| {
        (before * 31 + last * 17 + v * 7 + 1)
            .wrapping_mul(2_654_435_761)
            .rotate_left(v + 3)
            .wrapping_mul(40_503)
    };
    (0..VOCAB as u32).map(|v| (mix(v) >> 20) as f32 / 4096.0 * 3.0).collect()
}

/// A head that is often right and often wrong.
fn draft_logits(before: u32, last: u32) -> Vec<f32> {
    target_logits(before, last)
        .iter()
        .enumerate()
        .map(|(v, l)| l * 0.6 + ((last as usize + v) % 3) as f32 * 0.5)
        .collect()
}

/// Hidden rows of the toys: [position, token before, token].
fn rows(data: Vec<[f32; 3]>) -> Tensor {
    let n = data.len();
    Tensor::from_vec(data.concat(), (n, 3), &Device::Cpu).expect("the shape fits")
}

fn read(t: &Tensor) -> Vec<[f32; 3]> {
    t.to_vec2::<f32>().expect("f32").into_iter().map(|r| [r[0], r[1], r[2]]).collect()
}

struct ToyTrunk;

impl Trunk for ToyTrunk {
    fn shape(&self) -> TrunkShape {
        TrunkShape { n_layers: 1, hidden: 3, vocab: VOCAB, context: 64 }
    }
    fn new_cache(&self) -> Cache {
        Cache::new(vec![LayerCache::new(CacheKind::Full, 3)])
    }
    fn forward(&self, tokens: &[u32], cache: &mut Cache) -> Result<Tensor> {
        let first = cache.len();
        let own = rows(
            tokens.iter().enumerate().map(|(i, t)| [(first + i) as f32, 0.0, *t as f32]).collect(),
        );
        let seen = read(&cache.layers[0].append(&own, &own)?.keys);
        let at = |p: usize| if p == 0 { 0.0 } else { seen[p - 1][2] };
        Ok(rows((first..first + tokens.len()).map(|p| [p as f32, at(p), seen[p][2]]).collect()))
    }
    fn norm(&self, hidden: &Tensor) -> Result<Tensor> {
        Ok(hidden.clone())
    }
    fn logits(&self, normed: &Tensor) -> Result<Tensor> {
        let out: Vec<f32> =
            read(normed).iter().flat_map(|r| target_logits(r[1] as u32, r[2] as u32)).collect();
        let n = out.len() / VOCAB;
        Ok(Tensor::from_vec(out, (n, VOCAB), &Device::Cpu)?)
    }
}

/// Checks every row it is fed: the position must be the cache's next, and the token must be the one the hidden's text goes on with.
struct ToyHead {
    levels: usize,
}

impl MtpHead for ToyHead {
    fn levels(&self) -> usize {
        self.levels
    }
    fn feed(&self) -> HeadFeed {
        HeadFeed::PreNorm
    }
    fn new_cache(&self, _level: usize) -> Cache {
        Cache::new(vec![LayerCache::new(CacheKind::Sliding { window: 4, slack: 18 }, 3)])
    }
    fn forward(
        &self,
        _level: usize,
        next_tokens: &[u32],
        hidden: &Tensor,
        cache: &mut Cache,
    ) -> Result<Tensor> {
        let first = cache.len();
        let fed = read(hidden);
        assert_eq!(fed.len(), next_tokens.len());
        for (i, row) in fed.iter().enumerate() {
            // A level's rows carry the position of the trunk row they stem from; past the last level it moves on by one.
            assert!(
                row[0] as usize == first + i || row[0] as usize + 1 == first + i,
                "a hole: row {} after {} rows",
                row[0],
                first + i
            );
        }
        let out = rows(
            fed.iter()
                .zip(next_tokens)
                .enumerate()
                .map(|(i, (r, t))| [(first + i) as f32, r[2], *t as f32])
                .collect(),
        );
        cache.layers[0].append(&out, &out)?;
        Ok(out)
    }
    fn logits(&self, _level: usize, hidden: &Tensor) -> Result<Tensor> {
        let out: Vec<f32> =
            read(hidden).iter().flat_map(|r| draft_logits(r[1] as u32, r[2] as u32)).collect();
        let n = out.len() / VOCAB;
        Ok(Tensor::from_vec(out, (n, VOCAB), &Device::Cpu)?)
    }
}

fn toy(levels: usize) -> Arc<Model> {
    Arc::new(Model {
        family: "toy",
        trunk: Box::new(ToyTrunk),
        head: Some(Box::new(ToyHead { levels })),
        head_status: HeadStatus::Found { place: "memory".to_owned() },
        trunk_modules: Vec::new(),
        head_modules: Vec::new(),
        kv: Default::default(),
        leftovers: Vec::new(),
    })
}

/// Exact joint law of the next LENGTH tokens.
fn exact_law(s: &SamplerSettings) -> HashMap<Vec<u32>, f64> {
    let mut law = HashMap::from([(PROMPT.to_vec(), 1.0f64)]);
    for _ in 0..LENGTH {
        let mut next = HashMap::new();
        for (text, p) in law {
            let logits = target_logits(text[text.len() - 2], text[text.len() - 1]);
            for (id, q) in s.distribution(&logits, None, &text).expect("finite").iter() {
                let mut longer = text.clone();
                longer.push(id);
                *next.entry(longer).or_insert(0.0) += p * f64::from(q);
            }
        }
        law = next;
    }
    law.into_iter().map(|(text, p)| (text[PROMPT.len()..].to_vec(), p)).collect()
}

/// Chi-square over its degrees of freedom as a number of standard deviations above its mean; outcomes expected less than 5 times
/// are put together.
fn surprise(counts: &HashMap<Vec<u32>, usize>, law: &HashMap<Vec<u32>, f64>) -> f64 {
    let samples: usize = counts.values().sum();
    for text in counts.keys() {
        assert!(law.get(text).is_some_and(|p| *p > 0.0), "{text:?} cannot be sampled and was");
    }
    let (mut chi, mut cells, mut rare) = (0.0, 0usize, (0.0, 0.0));
    for (text, p) in law {
        let (want, got) = (p * samples as f64, *counts.get(text).unwrap_or(&0) as f64);
        if want < 5.0 {
            rare = (rare.0 + want, rare.1 + got);
        } else {
            chi += (got - want).powi(2) / want;
            cells += 1;
        }
    }
    if rare.0 > 0.0 {
        chi += (rare.1 - rare.0).powi(2) / rare.0.max(1.0);
        cells += 1;
    }
    let freedom = cells.saturating_sub(1).max(1) as f64;
    (chi - freedom) / (2.0 * freedom).sqrt()
}

fn sample(
    model: &Arc<Model>,
    s: &SamplerSettings,
    rule: Rule,
    mut depth: impl FnMut(usize) -> usize,
) -> HashMap<Vec<u32>, usize> {
    let mut sequence = Sequence::new(model.clone());
    sequence.seed(7);
    let mut counts = HashMap::new();
    for i in 0..SAMPLES {
        sequence.set_prompt(&PROMPT).expect("fits");
        while sequence.needs_prefill() {
            sequence.prefill(64).expect("reads");
        }
        while sequence.tokens().len() < PROMPT.len() + LENGTH {
            sequence.step(depth(i), s, rule, &mut ()).expect("steps");
        }
        *counts
            .entry(sequence.tokens()[PROMPT.len()..PROMPT.len() + LENGTH].to_vec())
            .or_insert(0) += 1;
    }
    counts
}

/// Far beyond chance (about one in a million for a good generator), far below what a wrong rule gives.
const LIMIT: f64 = 5.0;

fn holds(settings: &[SamplerSettings]) {
    for s in settings {
        let law = exact_law(s);
        for (levels, depth) in [(1, 0), (1, 1), (1, 3), (3, 2)] {
            let got = surprise(&sample(&toy(levels), s, Rule::Residual, |_| depth), &law);
            assert!(
                got < LIMIT,
                "{s:?} at depth {depth} with {levels} levels: {got:.1} standard deviations"
            );
        }
    }
}

fn base(temperature: f32) -> SamplerSettings {
    SamplerSettings { temperature, ..Default::default() }
}

#[test]
fn plain_temperatures() {
    holds(&[base(0.3), base(0.7), base(1.0)]);
}

#[test]
fn with_filters() {
    let filters = |t| {
        [
            SamplerSettings { top_p: 0.8, ..base(t) },
            SamplerSettings { top_k: 3, ..base(t) },
            SamplerSettings { min_p: 0.15, ..base(t) },
        ]
    };
    holds(&[0.3, 0.7, 1.0].map(filters).concat());
}

#[test]
fn with_penalties_and_everything_together() {
    let penalties = |t| SamplerSettings {
        repetition_penalty: 1.4,
        presence_penalty: 0.3,
        frequency_penalty: 0.4,
        ..base(t)
    };
    let all = |t| SamplerSettings { top_p: 0.9, top_k: 4, min_p: 0.02, ..penalties(t) };
    holds(&[penalties(0.3), penalties(0.7), penalties(1.0), all(0.3), all(0.7), all(1.0)]);
}

#[test]
fn match_rule_and_depths_that_change_between_cycles() {
    let s = SamplerSettings { top_p: 0.9, ..base(0.8) };
    let law = exact_law(&s);
    assert!(surprise(&sample(&toy(1), &s, Rule::Match, |_| 2), &law) < LIMIT);
    let mut n = 0;
    let changing = sample(&toy(3), &s, Rule::Residual, |_| {
        n += 1;
        [0, 3, 1, 5, 2, 0, 8][n % 7]
    });
    assert!(surprise(&changing, &law) < LIMIT);
}

/// The classic mistake: after a refusal, drawing from the target instead of the residual. The test above must be able to see it.
#[test]
fn resampling_from_the_target_would_be_seen() {
    let s = base(1.0);
    let law = exact_law(&s);
    let mut rng = fastrand::Rng::with_seed(3);
    let mut counts = HashMap::new();
    for _ in 0..SAMPLES {
        let mut text = PROMPT.to_vec();
        while text.len() < PROMPT.len() + LENGTH {
            let of = |logits: Vec<f32>| s.distribution(&logits, None, &text).expect("finite");
            let (before, last) = (text[text.len() - 2], text[text.len() - 1]);
            let (p, q) = (of(target_logits(before, last)), of(draft_logits(before, last)));
            let draft = q.sample(rng.f64());
            let stands = rng.f64() < accept_probability(draft, &p, &q);
            text.push(if stands { draft } else { p.sample(rng.f64()) });
        }
        *counts.entry(text[PROMPT.len()..].to_vec()).or_insert(0) += 1;
    }
    let got = surprise(&counts, &law);
    assert!(
        got > 10.0 * LIMIT,
        "the wrong rule is only {got:.1} standard deviations off: the test is blind"
    );
}

#[test]
fn the_accept_rate_is_the_sum_of_the_smaller_probabilities() {
    for s in [base(0.7), SamplerSettings { top_k: 3, ..base(1.0) }] {
        let law = |logits: Vec<f32>| -> Distribution {
            s.distribution(&logits, None, &PROMPT).expect("finite")
        };
        let mut sequence = Sequence::new(toy(1));
        sequence.seed(11);
        let (mut accepted, mut want) = (0usize, 0.0);
        for _ in 0..SAMPLES {
            sequence.set_prompt(&PROMPT).expect("fits");
            while sequence.needs_prefill() {
                sequence.prefill(64).expect("reads");
            }
            accepted += sequence.step(1, &s, Rule::Residual, &mut ()).expect("steps").accepted;
        }
        let (before, last) = (PROMPT[1], PROMPT[2]);
        let (p, q) = (law(target_logits(before, last)), law(draft_logits(before, last)));
        want += q.iter().map(|(id, q)| f64::from(q.min(p.probability(id)))).sum::<f64>();
        let got = accepted as f64 / SAMPLES as f64;
        let deviation = (want * (1.0 - want) / SAMPLES as f64).sqrt();
        assert!((got - want).abs() < 5.0 * deviation, "accepted {got}, the sum is {want}");
    }
}
