use std::sync::Arc;

/// A shared, immutable stretch of bytes: usually a tensor inside a memory map, which it keeps alive.
#[derive(Clone)]
pub struct Bytes {
    owner: Arc<dyn AsRef<[u8]> + Send + Sync>,
    start: usize,
    len: usize,
}

impl Bytes {
    /// `None` when the range does not lie inside the owner.
    pub fn new(
        owner: Arc<dyn AsRef<[u8]> + Send + Sync>,
        start: usize,
        len: usize,
    ) -> Option<Self> {
        let total = owner.as_ref().as_ref().len();
        (start.checked_add(len)? <= total).then_some(Self { owner, start, len })
    }

    pub fn from_vec(data: Vec<u8>) -> Self {
        let len = data.len();
        Self { owner: Arc::new(data), start: 0, len }
    }

    /// A part of this stretch; `None` when it reaches past the end.
    pub fn slice(&self, start: usize, len: usize) -> Option<Self> {
        (start.checked_add(len)? <= self.len).then(|| Self {
            owner: self.owner.clone(),
            start: self.start + start,
            len,
        })
    }

    pub fn as_slice(&self) -> &[u8] {
        &self.owner.as_ref().as_ref()[self.start..self.start + self.len]
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

impl std::fmt::Debug for Bytes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Bytes({})", self.len)
    }
}
