//! What a repository holds at a revision: the commit, and every file with its size and content id.

use super::fault::{About, host};
use super::{Hub, HubError, RepoId, RepoRef, check_path};
use reqwest::Url;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// No model is near it; a server that never stops naming pages is.
const MAX_FILES: usize = 200_000;

/// What a file's bytes must hash to; also its name in the cache.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ContentId {
    /// A large file's own hash.
    Sha256(String),
    /// A small file's hash as git stores it.
    GitBlob(String),
}

impl ContentId {
    pub fn hex(&self) -> &str {
        match self {
            Self::Sha256(hex) | Self::GitBlob(hex) => hex,
        }
    }

    /// Whether it has the form of such a hash: it becomes a file's name.
    pub(crate) fn is_valid(&self) -> bool {
        let digits = match self {
            Self::Sha256(_) => 64,
            Self::GitBlob(_) => 40,
        };
        self.hex().len() == digits
            && self.hex().bytes().all(|c| matches!(c, b'0'..=b'9' | b'a'..=b'f'))
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RemoteFile {
    pub path: String,
    pub size: u64,
    pub id: ContentId,
}

/// A repository's files at a commit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listing {
    pub repo: RepoId,
    /// What was asked for: a branch, a tag or the commit itself.
    pub revision: String,
    /// 40 hex digits: what everything else is asked at, so that a push in between changes nothing.
    pub commit: String,
    pub files: Vec<RemoteFile>,
}

impl Listing {
    pub fn file(&self, path: &str) -> Option<&RemoteFile> {
        self.files.iter().find(|file| file.path == path)
    }

    pub fn bytes(&self) -> u64 {
        self.files.iter().map(|file| file.size).sum()
    }

    /// What a model needs to run: weights, configuration, tokenizer, templates and the licence; not the copies of the
    /// weights in other formats, nor folders of them.
    pub fn model_files(&self) -> Vec<RemoteFile> {
        let wanted = |path: &str| {
            let ends = [".safetensors", ".json", ".jinja", ".txt", ".model", ".tiktoken", ".md"];
            !path.contains('/')
                && !path.starts_with('.')
                && !path.starts_with("consolidated")
                && (ends.iter().any(|end| path.ends_with(end)) || path.starts_with("LICENSE"))
        };
        self.files.iter().filter(|file| wanted(&file.path)).cloned().collect()
    }
}

#[derive(Deserialize)]
struct Info {
    sha: String,
}

#[derive(Deserialize)]
struct Row {
    #[serde(rename = "type")]
    kind: String,
    path: String,
    #[serde(default)]
    oid: String,
    #[serde(default)]
    size: u64,
    lfs: Option<Lfs>,
}

#[derive(Deserialize)]
struct Lfs {
    oid: String,
    size: u64,
}

impl Hub {
    /// The files of a repository, all pages of them.
    pub fn list(&self, repo: &RepoRef) -> Result<Listing, HubError> {
        let (hub, repo) = (self.clone(), repo.clone());
        self.wait_for(async move { hub.list_now(&repo).await })
    }

    pub(super) async fn list_now(&self, at: &RepoRef) -> Result<Listing, HubError> {
        let RepoRef { repo, .. } = at;
        let about = About { repo, revision: at.revision(), file: None };
        let parts = ["api", "models", repo.owner(), repo.name()];
        let url = self.address(&[&parts[..], &["revision", at.revision()]].concat());
        let (info, _): (Info, _) = self.json(&url, about).await?;
        let commit = info.sha;
        if !ContentId::GitBlob(commit.clone()).is_valid() {
            return Err(bad_listing(repo, "the commit is no hash"));
        }

        let mut url = self.address(&[&parts[..], &["tree", &commit]].concat());
        url.query_pairs_mut().append_pair("recursive", "true");
        let (mut files, mut names) = (Vec::new(), BTreeSet::new());
        loop {
            let (rows, next): (Vec<Row>, _) = self.json(&url, about).await?;
            let empty = rows.is_empty();
            for row in rows.into_iter().filter(|row| row.kind == "file") {
                let file = remote_file(row)
                    .map_err(|e| e.unwrap_or_else(|| bad_listing(repo, "an entry has no hash")))?;
                if !names.insert(file.path.clone()) {
                    return Err(bad_listing(repo, "it names a file twice"));
                }
                files.push(file);
            }
            let Some(next) = next.filter(|_| !empty) else { break };
            if files.len() > MAX_FILES || next == url {
                return Err(bad_listing(repo, "it does not end"));
            }
            url = next;
        }
        Ok(Listing { repo: repo.clone(), revision: at.revision().to_owned(), commit, files })
    }

    /// An answer of the API and the address of its next page, which is one of the endpoint's own.
    async fn json<T: serde::de::DeserializeOwned + Send>(
        &self,
        url: &Url,
        about: About<'_>,
    ) -> Result<(T, Option<Url>), HubError> {
        self.patiently(|| async {
            let answer = self.open(url.clone(), None, about).await?;
            let next = answer.header("link").and_then(next_page).and_then(|to| url.join(to).ok());
            let next = next.filter(|to| to.origin() == self.inner.endpoint.origin());
            let is_page = answer.header("content-type").is_some_and(|t| t.starts_with("text/html"));
            let from = host(&answer.url);
            let body = answer.read(self).await?;
            let value = serde_json::from_slice(&body).map_err(|e| match is_page {
                true => HubError::NotTheHub { host: from, why: "it sends a page instead of data" },
                false => HubError::BadAnswer {
                    what: format!("the listing of {}", about.repo),
                    why: e.to_string(),
                },
            })?;
            Ok((value, next))
        })
        .await
    }
}

/// `None` as the error: the row has no usable hash.
fn remote_file(row: Row) -> Result<RemoteFile, Option<HubError>> {
    check_path(&row.path)?;
    let (id, size) = match row.lfs {
        Some(lfs) => (ContentId::Sha256(lfs.oid), lfs.size),
        None => (ContentId::GitBlob(row.oid), row.size),
    };
    if !id.is_valid() {
        return Err(None);
    }
    Ok(RemoteFile { path: row.path, size, id })
}

fn bad_listing(repo: &RepoId, why: &str) -> HubError {
    HubError::BadAnswer { what: format!("the listing of {repo}"), why: why.to_owned() }
}

/// `<address>; rel="next"` of a Link header.
fn next_page(link: &str) -> Option<&str> {
    link.split(',').find_map(|part| {
        let (address, kind) = part.trim().split_once('>')?;
        kind.contains("rel=\"next\"").then_some(address.strip_prefix('<')?)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn next_page_is_found_among_links() {
        let link = "<http://h/a?x=1>; rel=\"first\", <http://h/b?cursor=2>; rel=\"next\"";
        assert_eq!(next_page(link), Some("http://h/b?cursor=2"));
        assert_eq!(next_page("<http://h/a>; rel=\"last\""), None);
        assert_eq!(next_page(""), None);
    }

    #[test]
    fn a_model_needs_its_weights_and_no_copies_of_them() {
        let file = |path: &str| RemoteFile {
            path: path.to_owned(),
            size: 1,
            id: ContentId::GitBlob("0".repeat(40)),
        };
        let names = [
            "config.json",
            "model-00001-of-00002.safetensors",
            "mtp.safetensors",
            "LICENSE",
            "original/x.safetensors",
            "consolidated.safetensors",
            "x.gguf",
            "pytorch_model.bin",
            ".gitattributes",
            "chat_template.jinja",
            "image.png",
        ];
        let listing = Listing {
            repo: "a/b".parse().expect("a name"),
            revision: "main".to_owned(),
            commit: "0".repeat(40),
            files: names.iter().copied().map(file).collect(),
        };
        let wanted: Vec<_> = listing.model_files().into_iter().map(|f| f.path).collect();
        let expected = [
            "config.json",
            "model-00001-of-00002.safetensors",
            "mtp.safetensors",
            "LICENSE",
            "chat_template.jinja",
        ];
        assert_eq!(wanted, expected);
    }
}
