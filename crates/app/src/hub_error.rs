//! What went wrong between here and the hub, as sentences that end with the next step.

use crate::error::chain;
use crate::fit::gb;
use foretoken_library::{DownloadError, HubError};
use foretoken_protocol::{ErrorCode, WireError};
use std::error::Error;

fn wire(code: ErrorCode, message: String, e: &dyn Error) -> WireError {
    WireError { code, message, detail: chain(e) }
}

pub(crate) fn from_hub(e: &HubError) -> WireError {
    use ErrorCode as C;
    use HubError as E;
    let (code, message) = match e {
        E::BadName { text, why } => (
            C::InvalidOption,
            format!("“{text}” names no model: {why}. Type it as owner/name, or paste the address of its page."),
        ),
        E::UnsafePath { .. } => (
            C::Hub,
            "This repository has a file that would be written outside of its folder, so it is not downloaded. Choose another one.".to_owned(),
        ),
        E::Gated { repo } => (
            C::Gated,
            format!("{repo} asks its users to accept its terms first. Open its page, accept them, and try again with a token of that account."),
        ),
        E::Private { repo } => (
            C::TokenNeeded,
            format!("{repo} is private or does not exist. Check the name; if it is private, enter an access token in the settings."),
        ),
        E::Forbidden { repo } => (
            C::TokenNeeded,
            format!("Your access token may not read {repo}. Enter a token that may, or ask its owner for access."),
        ),
        E::StaleToken => (
            C::TokenStale,
            "The hub does not know your access token any more. Enter a new one in the settings.".to_owned(),
        ),
        E::NoRepository { repo } => {
            (C::NotFound, format!("There is no model {repo} on the hub. Check the spelling of owner and name."))
        }
        E::NoRevision { repo, revision } => {
            (C::NotFound, format!("{repo} has no revision {revision}. Leave it out for the newest, or name a branch, tag or commit it has."))
        }
        E::NoFile { repo, file } => {
            (C::NotFound, format!("{repo} has no {file}, so Foretoken cannot run it. Choose a version of it with safetensors files."))
        }
        E::RateLimited { wait } => {
            let when = match wait.map(|wait| wait.as_secs().max(1)) {
                None => "in a few minutes".to_owned(),
                Some(1) => "in 1 second".to_owned(),
                Some(seconds) => format!("in {seconds} seconds"),
            };
            (C::RateLimited, format!("The hub asks for fewer requests. Try again {when}; with an access token it allows more."))
        }
        E::Offline { host, .. } => {
            (C::Offline, format!("{host} cannot be reached. Check the network; what was downloaded is kept."))
        }
        E::Stalled { host, .. } | E::Dropped { host, .. } => {
            (C::Offline, format!("The line to {host} broke. Check the network; what was downloaded is kept."))
        }
        E::Untrusted { host, .. } => (
            C::Hub,
            format!("The certificate of {host} is not trusted. Check the clock of this machine and the proxy in the settings."),
        ),
        E::Server { status } => {
            (C::Hub, format!("The hub failed with status {status}. Try again later; what was downloaded is kept."))
        }
        E::AddressRefused { .. } | E::WrongRange { .. } => {
            (C::Hub, "The hub's file server refuses to go on. Try again later; what was downloaded is kept.".to_owned())
        }
        E::NotTheHub { host, .. } => (
            C::Hub,
            format!("{host} does not answer like the hub. Sign in to the network you are on, or check the hub's address in the settings."),
        ),
        E::Changed { .. } => {
            (C::Hub, "The model was changed on the hub meanwhile. Start the download again; what is the same is kept.".to_owned())
        }
        E::BadAnswer { what, .. } => {
            (C::Corrupt, format!("{what} cannot be read as it is on the hub. Try again, or choose another version of the model."))
        }
        E::Setup { why } => {
            (C::InvalidOption, format!("The connection cannot be set up: {why}. Check the hub's address and the proxy in the settings."))
        }
    };
    wire(code, message, e)
}

pub(crate) fn from_download(e: &DownloadError) -> WireError {
    use DownloadError as E;
    use ErrorCode as C;
    let (code, message) = match e {
        E::Hub(e) => return from_hub(e),
        E::NotEnoughDisk { folder, need, free } => (
            C::DiskFull,
            format!(
                "{} are needed in {} and {} are free. Free some space and go on; nothing is lost.",
                gb(*need),
                folder.display(),
                gb(*free)
            ),
        ),
        E::DiskFull { path } => (
            C::DiskFull,
            format!(
                "The disk is full at {}. Free some space and go on; nothing is lost.",
                path.display()
            ),
        ),
        E::ReadOnly { path } => (
            C::Disk,
            format!(
                "{} cannot be written to. Check the permissions of the folder.",
                path.display()
            ),
        ),
        E::WrongBytes { file, .. } => (
            C::Hub,
            format!(
                "{file} arrived damaged twice. Try again later, or over another network; the other files are kept."
            ),
        ),
        E::Busy { repo } => (
            C::Busy,
            format!(
                "{repo} is being downloaded right now. Cancel that first, or wait until it ends."
            ),
        ),
        E::Io { path, .. } => (
            C::Disk,
            format!(
                "{} cannot be read or written. Check the disk and the permissions.",
                path.display()
            ),
        ),
    };
    wire(code, message, e)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;
    use std::time::Duration;

    #[test]
    fn six_situations_are_six_sentences_with_a_next_step() {
        let repo: foretoken_library::RepoId = "acme/tiny".parse().expect("a name");
        let (r, host) = (|| repo.clone(), "hub".to_owned());
        let all = [
            (HubError::Gated { repo: r() }, ErrorCode::Gated),
            (HubError::Private { repo: r() }, ErrorCode::TokenNeeded),
            (HubError::NoRepository { repo: r() }, ErrorCode::NotFound),
            (HubError::StaleToken, ErrorCode::TokenStale),
            (HubError::RateLimited { wait: Some(Duration::from_secs(7)) }, ErrorCode::RateLimited),
            (HubError::Offline { host, why: String::new() }, ErrorCode::Offline),
        ];
        let stalled = HubError::Stalled { host: "hub".to_owned(), after: Duration::from_secs(30) };
        let wire = from_hub(&stalled);
        assert_eq!(wire.code, ErrorCode::Offline);
        assert_eq!(
            wire.message,
            "The line to hub broke. Check the network; what was downloaded is kept."
        );
        let mut seen = BTreeSet::new();
        for (e, code) in all {
            let wire = from_hub(&e);
            assert_eq!(wire.code, code, "{wire:?}");
            assert!(
                wire.message.ends_with('.') && wire.message.matches(['.', ';']).count() > 1,
                "{wire:?}"
            );
            assert!(seen.insert(wire.message));
        }
    }
}
