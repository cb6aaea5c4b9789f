//! What can be wrong between here and the hub. A variant exists where a caller says or does something else.

use super::RepoId;
use std::time::Duration;

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HubError {
    #[error("{text:?} names no repository: {why}")]
    BadName { text: String, why: &'static str },
    /// A file name that leads out of its folder: such a repository is refused as a whole.
    #[error("the repository has a file named {name:?}, which leads out of its folder")]
    UnsafePath { name: String },
    /// The terms have to be accepted on the model's page, with the account the token belongs to.
    #[error("{repo} asks its users to accept its terms first")]
    Gated { repo: RepoId },
    /// Without a token the hub does not tell a private repository from one that does not exist.
    #[error("{repo} is private or does not exist")]
    Private { repo: RepoId },
    #[error("the access token may not read {repo}")]
    Forbidden { repo: RepoId },
    #[error("the hub does not know the access token any more")]
    StaleToken,
    #[error("there is no repository {repo}")]
    NoRepository { repo: RepoId },
    #[error("{repo} has no revision {revision}")]
    NoRevision { repo: RepoId, revision: String },
    #[error("{repo} has no file {file}")]
    NoFile { repo: RepoId, file: String },
    #[error("the hub asks for fewer requests")]
    RateLimited { wait: Option<Duration> },
    #[error("the server failed with status {status}")]
    Server { status: u16 },
    #[error("{host} cannot be reached ({why})")]
    Offline { host: String, why: String },
    /// Something in between reads along, or a clock is wrong.
    #[error("the certificate of {host} is not trusted ({why})")]
    Untrusted { host: String, why: String },
    #[error("{host} sent nothing for {} seconds", after.as_secs())]
    Stalled { host: String, after: Duration },
    #[error("the line to {host} broke ({why})")]
    Dropped { host: String, why: String },
    /// The address of a file's bytes is signed for a while; a new one is asked for.
    #[error("the file server refused the address it was given ({status})")]
    AddressRefused { status: u16 },
    /// A sign-in page of a network, or another program at that address.
    #[error("{host} does not answer like the hub ({why})")]
    NotTheHub { host: String, why: &'static str },
    #[error("{file} was changed on the hub")]
    Changed { file: String },
    #[error("the file server sends other bytes of {file} than were asked for")]
    WrongRange { file: String },
    #[error("{what} cannot be read: {why}")]
    BadAnswer { what: String, why: String },
    #[error("the connection cannot be set up: {why}")]
    Setup { why: String },
}

/// What to do about an error by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cure {
    /// Nothing: somebody has to act.
    None,
    /// The line: it comes back when it comes back.
    Line,
    /// The server: it is given a few chances.
    Server(Option<Duration>),
}

impl HubError {
    pub(crate) fn cure(&self) -> Cure {
        match self {
            Self::Offline { .. } | Self::Stalled { .. } | Self::Dropped { .. } => Cure::Line,
            Self::RateLimited { wait } => Cure::Server(*wait),
            // What the server says is our fault stays our fault.
            Self::Server { status } if *status < 500 && *status != 408 => Cure::None,
            Self::Server { .. }
            | Self::AddressRefused { .. }
            | Self::NotTheHub { .. }
            | Self::WrongRange { .. } => Cure::Server(None),
            _ => Cure::None,
        }
    }
}
