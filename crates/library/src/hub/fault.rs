//! What a refusal or a broken line means.

use super::{Hub, HubError, RepoId, retry};
use reqwest::header::HeaderMap;
use reqwest::{StatusCode, Url};

/// What a request is about, for the error.
#[derive(Clone, Copy)]
pub(super) struct About<'a> {
    pub repo: &'a RepoId,
    pub revision: &'a str,
    pub file: Option<&'a str>,
}

impl Hub {
    /// What a status that is no success means. Away from the endpoint it says nothing about the repository.
    pub(super) fn refusal(
        &self,
        ours: bool,
        status: StatusCode,
        headers: &HeaderMap,
        about: About<'_>,
    ) -> HubError {
        let text = |name: &str| headers.get(name).and_then(|v| v.to_str().ok());
        let repo = about.repo.clone();
        if status == StatusCode::TOO_MANY_REQUESTS {
            let wait = text("retry-after").and_then(retry::retry_after);
            let wait = wait.or_else(|| text("ratelimit").and_then(retry::window_left));
            return HubError::RateLimited { wait };
        }
        if !ours {
            return match status.as_u16() {
                400..=404 | 410 => HubError::AddressRefused { status: status.as_u16() },
                416 => HubError::WrongRange { file: about.file.unwrap_or_default().to_owned() },
                status => HubError::Server { status },
            };
        }
        let file = about.file.map(str::to_owned);
        let revision = about.revision.to_owned();
        match (status.as_u16(), text("x-error-code").unwrap_or_default()) {
            (401 | 403, "GatedRepo") => HubError::Gated { repo },
            (401, _) if self.inner.token.is_some() => HubError::StaleToken,
            (401, _) => HubError::Private { repo },
            (403, _) => HubError::Forbidden { repo },
            (404, "RevisionNotFound") => HubError::NoRevision { repo, revision },
            (404, "RepoNotFound") => HubError::NoRepository { repo },
            (404, _) => match file {
                Some(file) => HubError::NoFile { repo, file },
                None => HubError::NoRepository { repo },
            },
            (416, _) => HubError::WrongRange { file: file.unwrap_or_default() },
            (status, _) => HubError::Server { status },
        }
    }

    pub(super) fn line_error(&self, url: &Url, error: reqwest::Error) -> HubError {
        let host = host(url);
        if let Some(why) = distrust(&error) {
            HubError::Untrusted { host, why }
        } else if error.is_connect() {
            HubError::Offline { host, why: reason(error) }
        } else if error.is_timeout() {
            HubError::Stalled { host, after: self.inner.stall }
        } else {
            HubError::Dropped { host, why: reason(error) }
        }
    }
}

/// `host` or `host:port`, without the path: signed addresses are secrets.
pub(super) fn host(url: &Url) -> String {
    let name = url.host_str().unwrap_or_default();
    url.port().map_or_else(|| name.to_owned(), |port| format!("{name}:{port}"))
}

/// The innermost cause, which is the one that tells; never with the address.
pub(super) fn reason(error: reqwest::Error) -> String {
    let error = error.without_url();
    let mut cause: &dyn std::error::Error = &error;
    while let Some(deeper) = cause.source() {
        cause = deeper;
    }
    cause.to_string()
}

/// What is wrong with a certificate, if that is what an error comes from.
fn distrust(error: &(dyn std::error::Error + 'static)) -> Option<String> {
    if let Some(rustls::Error::InvalidCertificate(why)) = error.downcast_ref() {
        return Some(why.to_string());
    }
    // An io error names what it wraps, but not as its source.
    let inner = error.downcast_ref::<std::io::Error>().and_then(|io| io.get_ref());
    match inner {
        Some(inner) => distrust(inner),
        None => distrust(error.source()?),
    }
}
