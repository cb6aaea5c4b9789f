//! The two hashes a file of the hub is known by, fed piece by piece.

use crate::hub::ContentId;
use sha1::Sha1;
use sha2::{Digest, Sha256};

#[derive(Clone)]
pub(crate) enum Hasher {
    Sha256(Sha256),
    GitBlob(Sha1),
}

impl Hasher {
    /// git hashes a blob behind a line with its length.
    pub fn new(id: &ContentId, size: u64) -> Self {
        match id {
            ContentId::Sha256(_) => Self::Sha256(Sha256::new()),
            ContentId::GitBlob(_) => {
                let mut sha = Sha1::new();
                sha.update(format!("blob {size}\0"));
                Self::GitBlob(sha)
            }
        }
    }

    pub fn update(&mut self, bytes: &[u8]) {
        match self {
            Self::Sha256(sha) => sha.update(bytes),
            Self::GitBlob(sha) => sha.update(bytes),
        }
    }

    /// Hash of what was fed so far.
    pub fn hex(&self) -> String {
        match self.clone() {
            Self::Sha256(sha) => hex(&sha.finalize()),
            Self::GitBlob(sha) => hex(&sha.finalize()),
        }
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}
