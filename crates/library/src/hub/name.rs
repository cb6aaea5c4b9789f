//! What a person types for a repository, read strictly: a name that is not exactly right is refused, never repaired.

use super::HubError;
use std::fmt;

/// The product's own hub; `HF_ENDPOINT` or the settings name another.
pub const DEFAULT_ENDPOINT: &str = "https://huggingface.co";
/// Hosts whose links are understood whatever the endpoint is: people paste them from a browser.
const LINK_HOSTS: [&str; 3] = ["huggingface.co", "www.huggingface.co", "hf.co"];
const DEFAULT_REVISION: &str = "main";
/// The hub's own limit for `owner/name`.
const MAX_NAME: usize = 96;

/// `owner/name`, both plain: they become parts of addresses and of a folder's name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RepoId {
    owner: String,
    name: String,
}

/// A repository at a branch, tag or commit.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct RepoRef {
    pub repo: RepoId,
    revision: String,
}

impl RepoId {
    pub fn new(owner: &str, name: &str) -> Result<Self, HubError> {
        let id = Self { owner: owner.to_owned(), name: name.to_owned() };
        let plain = |part: &str| {
            let inner = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
            let edge = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphanumeric() || c == '_');
            part.chars().all(inner) && edge(part.chars().next()) && edge(part.chars().last())
        };
        // "--" separates owner and name in the cache's folders, so neither may hold it.
        let doubled = |part: &str| part.contains("--") || part.contains("..");
        let why = if !plain(owner) || !plain(name) {
            "letters, digits, '.', '_' and '-' make a name, and it starts and ends with a letter or digit"
        } else if doubled(owner) || doubled(name) || name.ends_with(".git") {
            "no name holds '--' or '..' or ends in '.git'"
        } else if owner.len() + 1 + name.len() > MAX_NAME {
            "it is too long"
        } else {
            return Ok(id);
        };
        Err(HubError::BadName { text: id.to_string(), why })
    }

    pub fn owner(&self) -> &str {
        &self.owner
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// Folder in the hub cache.
    pub fn folder(&self) -> String {
        format!("models--{}--{}", self.owner, self.name)
    }
}

impl fmt::Display for RepoId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.owner, self.name)
    }
}

impl std::str::FromStr for RepoId {
    type Err = HubError;

    fn from_str(text: &str) -> Result<Self, HubError> {
        match text.split_once('/') {
            Some((owner, name)) => Self::new(owner, name),
            None => Err(bad(text, "it takes the form owner/name")),
        }
    }
}

impl RepoRef {
    pub fn new(repo: RepoId, revision: &str) -> Result<Self, HubError> {
        let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-' | '/' | '+');
        let parts_ok = revision
            .split('/')
            .all(|part| !part.is_empty() && !part.starts_with(['.', '-']) && !part.ends_with('.'));
        if revision.len() > 200
            || !revision.chars().all(plain)
            || !parts_ok
            || revision.contains("..")
        {
            return Err(bad(revision, "it is no branch, tag or commit"));
        }
        Ok(Self { repo, revision: revision.to_owned() })
    }

    /// The branch a repository opens with.
    pub fn main(repo: RepoId) -> Self {
        Self { repo, revision: DEFAULT_REVISION.to_owned() }
    }

    pub fn revision(&self) -> &str {
        &self.revision
    }

    /// `owner/name`, `owner/name@revision`, the same behind `hf:` or `hf://`, or a link to a page of the model.
    /// Links are understood for the hub itself and for the host of `endpoint`.
    pub fn parse(text: &str, endpoint: &str) -> Result<Self, HubError> {
        let text = text.trim();
        if let Some(link) = text.strip_prefix("https://").or_else(|| text.strip_prefix("http://")) {
            return from_link(text, link, endpoint);
        }
        let name = text.strip_prefix("hf://").or_else(|| text.strip_prefix("hf:")).unwrap_or(text);
        match name.split_once('@') {
            Some((repo, revision)) => Self::new(repo.parse()?, revision),
            None => Ok(Self::main(name.parse()?)),
        }
    }
}

fn from_link(text: &str, link: &str, endpoint: &str) -> Result<RepoRef, HubError> {
    let link = link.split(['?', '#']).next().unwrap_or_default().trim_end_matches('/');
    let (host, path) =
        link.split_once('/').ok_or_else(|| bad(text, "the link names no repository"))?;
    let own = endpoint.split("://").nth(1).unwrap_or_default().trim_end_matches('/');
    if !LINK_HOSTS.contains(&host) && host != own {
        return Err(bad(text, "the link leads to another site than the hub"));
    }
    let mut parts = path.split('/');
    let owner = parts.next().unwrap_or_default();
    if ["datasets", "spaces", "docs", "api", "papers", "collections", "models"].contains(&owner) {
        return Err(bad(text, "the link does not lead to a model"));
    }
    let repo = RepoId::new(owner, parts.next().unwrap_or_default())?;
    match (parts.next(), parts.next()) {
        (None, _) => Ok(RepoRef::main(repo)),
        // A branch with a slash arrives encoded; what follows the revision is a file or folder in it.
        (Some("tree" | "blob" | "resolve" | "raw" | "commit"), Some(revision)) => {
            RepoRef::new(repo, &revision.replace("%2F", "/"))
        }
        (Some("discussions" | "commits"), _) => Ok(RepoRef::main(repo)),
        _ => Err(bad(text, "the link does not lead to a model")),
    }
}

fn bad(text: &str, why: &'static str) -> HubError {
    // What was typed may be anything, a token in the wrong field included: only a little of it is repeated.
    HubError::BadName { text: text.chars().take(80).collect(), why }
}

/// Refuses a name in a listing that could lead out of the folder it is put into.
pub(crate) fn check_path(name: &str) -> Result<(), HubError> {
    let plain = |part: &str| {
        !part.is_empty()
            && part != "."
            && part != ".."
            && part.len() <= 255
            && !part.contains(['\\', ':'])
            && !part.chars().any(char::is_control)
    };
    if name.len() <= 1024 && name.split('/').all(plain) {
        return Ok(());
    }
    Err(HubError::UnsafePath { name: name.chars().take(200).collect() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Option<(String, String)> {
        let found = RepoRef::parse(text, "http://127.0.0.1:81").ok()?;
        Some((found.repo.to_string(), found.revision))
    }

    #[test]
    fn names_links_and_hf_forms() {
        let main = |r: &str| Some((r.to_owned(), "main".to_owned()));
        for text in [
            "acme/tiny",
            " acme/tiny ",
            "hf:acme/tiny",
            "hf://acme/tiny",
            "https://huggingface.co/acme/tiny",
            "https://hf.co/acme/tiny/",
            "https://huggingface.co/acme/tiny?library=mlx#files",
            "http://127.0.0.1:81/acme/tiny/tree/main",
            "https://huggingface.co/acme/tiny/blob/main/config.json",
            "https://huggingface.co/acme/tiny/discussions/3",
        ] {
            assert_eq!(parse(text), main("acme/tiny"), "{text}");
        }
        let at = |revision: &str| Some(("acme/tiny".to_owned(), revision.to_owned()));
        assert_eq!(parse("acme/tiny@v1.0"), at("v1.0"));
        assert_eq!(parse("hf:acme/tiny@refs/pr/1"), at("refs/pr/1"));
        assert_eq!(parse("https://huggingface.co/acme/tiny/tree/refs%2Fpr%2F1"), at("refs/pr/1"));
    }

    #[test]
    fn what_is_not_exactly_right_is_refused() {
        for text in [
            "",
            "tiny",
            "acme/",
            "/tiny",
            "../etc",
            "acme/..",
            "acme/tiny/more",
            "acme/ti--ny",
            "ac--me/tiny",
            "acme/tiny.git",
            "acme/.tiny",
            "acme/tiny@",
            "acme/tiny@../x",
            "acme/tiny@-x",
            "acme/ti ny",
            "acme/tïny",
            "acme\\tiny",
            "hf:hf:acme/tiny",
            "https://evil.example/acme/tiny",
            "https://huggingface.co",
            "https://huggingface.co/acme",
            "https://huggingface.co/datasets/acme/tiny",
            "https://huggingface.co/acme/tiny/tree/..",
            "https://huggingface.co@evil.example/acme/tiny",
            "ftp://huggingface.co/acme/tiny",
            "file:///etc/passwd",
        ] {
            assert_eq!(parse(text), None, "{text}");
        }
        assert!(parse(&format!("a/{}", "b".repeat(200))).is_none());
    }

    #[test]
    fn paths_that_leave_the_folder_are_refused() {
        for name in ["config.json", "a/b/c.safetensors", "..a", "a..b", "ü.txt"] {
            assert!(check_path(name).is_ok(), "{name}");
        }
        for name in [
            "", "/", "/etc/x", "..", "../x", "a/../x", "a/..", "./x", "a//x", "x/", "a\\..\\x",
            "c:x", "a\0b", "a\nb",
        ] {
            assert!(matches!(check_path(name), Err(HubError::UnsafePath { .. })), "{name:?}");
        }
        assert!(check_path(&"x".repeat(256)).is_err());
        assert!(check_path(&"x/".repeat(600)).is_err());
    }
}
