use std::sync::Arc;

/// A shared, immutable stretch of bytes: usually a tensor inside a memory map, which it keeps alive.
#[derive(Clone)]
pub struct Bytes {
    owner: Arc<dyn AsRef<[u8]> + Send + Sync>,
    start: usize,
    len: usize,
    mapped: bool,
}

impl Bytes {
    /// A whole memory map, which a GPU may read page by page.
    ///
    /// # Safety
    /// The owner always gives the same bytes; they begin at a page, their last page is mapped to its end, and nothing
    /// writes to them while the owner lives.
    pub unsafe fn of_map(owner: Arc<dyn AsRef<[u8]> + Send + Sync>) -> Self {
        let len = owner.as_ref().as_ref().len();
        Self { owner, start: 0, len, mapped: true }
    }

    pub fn from_vec(data: Vec<u8>) -> Self {
        let len = data.len();
        Self { owner: Arc::new(data), start: 0, len, mapped: false }
    }

    /// A part of this stretch; `None` when it reaches past the end.
    pub fn slice(&self, start: usize, len: usize) -> Option<Self> {
        (start.checked_add(len)? <= self.len).then(|| Self {
            owner: self.owner.clone(),
            start: self.start + start,
            len,
            mapped: self.mapped,
        })
    }

    pub fn is_mapped(&self) -> bool {
        self.mapped
    }

    /// All of what this is a part of, for whoever hands it to a device; a copy of this keeps it alive.
    pub fn owner_slice(&self) -> &[u8] {
        self.owner.as_ref().as_ref()
    }

    /// Where this begins in `owner_slice`.
    pub fn offset(&self) -> usize {
        self.start
    }

    /// Whether `next` begins where this ends.
    pub fn is_followed_by(&self, next: &Self) -> bool {
        std::ptr::eq(self.owner_slice(), next.owner_slice()) && self.start + self.len == next.start
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
