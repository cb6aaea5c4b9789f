/// A probability for each token that has one, ids ascending.
#[derive(Debug, Clone, PartialEq)]
pub struct Distribution {
    ids: Vec<u32>,
    probs: Vec<f32>,
}

impl Distribution {
    /// `ids` ascending, `probs` summing to 1.
    pub fn new(ids: Vec<u32>, probs: Vec<f32>) -> Self {
        debug_assert!(ids.len() == probs.len() && ids.is_sorted());
        Self { ids, probs }
    }

    /// All the mass on one token: greedy.
    pub fn one_hot(id: u32) -> Self {
        Self { ids: vec![id], probs: vec![1.0] }
    }

    pub fn iter(&self) -> impl Iterator<Item = (u32, f32)> + '_ {
        self.ids.iter().copied().zip(self.probs.iter().copied())
    }

    pub fn probability(&self, id: u32) -> f32 {
        self.ids.binary_search(&id).map_or(0.0, |at| self.probs[at])
    }

    /// Inverse of the cumulative distribution in ascending id: the first id whose cumulative sum exceeds `u` in [0, 1).
    pub fn sample(&self, u: f64) -> u32 {
        let mut sum = 0.0;
        let mut last = 0;
        for (id, p) in self.iter() {
            if p > 0.0 {
                sum += f64::from(p);
                last = id;
                if u < sum {
                    return id;
                }
            }
        }
        // Rounding can leave the sum a hair below 1.
        last
    }
}
