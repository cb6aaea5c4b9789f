//! Whether a drafted token stands. Pure: no model, no clock (`reference/style.md` 2.2).

use super::Distribution;

/// A guess and the distribution it was drawn from.
#[derive(Debug, Clone, PartialEq)]
pub struct Draft {
    pub token: u32,
    pub q: Distribution,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rule {
    /// Leviathan et al. 2023: accept with min(1, p/q), else draw from the normalised max(p - q, 0).
    Residual,
    /// Draw the trunk's own token; the draft stands when it is the same.
    Match,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    Accepted,
    /// The token that stands in the draft's place.
    Replaced(u32),
}

/// min(1, p(x) / q(x)); 0 where the draft could not have been drawn.
pub fn accept_probability(token: u32, p: &Distribution, q: &Distribution) -> f64 {
    let (p, q) = (f64::from(p.probability(token)), f64::from(q.probability(token)));
    if q > 0.0 { (p / q).min(1.0) } else { 0.0 }
}

/// max(p - q, 0), normalised; `None` where p is nowhere above q, so that nothing can have been refused.
pub fn residual(p: &Distribution, q: &Distribution) -> Option<Distribution> {
    let mut q = q.iter().peekable();
    let mut ids = Vec::new();
    let mut rest = Vec::new();
    for (id, p) in p.iter() {
        while q.next_if(|(other, _)| *other < id).is_some() {}
        let q = q.next_if(|(other, _)| *other == id).map_or(0.0, |(_, q)| q);
        let over = f64::from(p) - f64::from(q);
        if over > 0.0 {
            ids.push(id);
            rest.push(over);
        }
    }
    let total: f64 = rest.iter().sum();
    // Below f32 rounding of p and q the difference is noise, not a residual.
    (total > 1e-7)
        .then(|| Distribution::new(ids, rest.into_iter().map(|v| (v / total) as f32).collect()))
}

/// `uniform` gives numbers in [0, 1).
pub fn judge(
    draft: &Draft,
    p: &Distribution,
    rule: Rule,
    uniform: &mut dyn FnMut() -> f64,
) -> Verdict {
    match rule {
        Rule::Residual => {
            if uniform() < accept_probability(draft.token, p, &draft.q) {
                return Verdict::Accepted;
            }
            let u = uniform();
            Verdict::Replaced(residual(p, &draft.q).as_ref().unwrap_or(p).sample(u))
        }
        Rule::Match => {
            let own = p.sample(uniform());
            if own == draft.token { Verdict::Accepted } else { Verdict::Replaced(own) }
        }
    }
}
