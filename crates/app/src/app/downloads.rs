//! The commands about downloads.

use super::{Answer, App, lock};
use crate::error;
use crate::error::from_library;
use crate::hub_error::{from_download, from_hub};
use crate::shelf::list::{Removed, Stop};
use crate::shelf::record::Ask;
use crate::shelf::{endpoint, heads};
use foretoken_library::download;
use foretoken_library::{DownloadError, RepoId, RepoRef};
use foretoken_protocol::*;
use std::time::Duration;

/// A worker in the middle of writing a head ends only after it.
const END: Duration = Duration::from_secs(60);

fn unknown() -> WireError {
    error(ErrorCode::NotFound, "This download is not in the list any more. Start it again.")
}

impl App {
    /// Goes on with what ran when the program ended. For a program that stays open, not for a command that is about
    /// something else.
    pub fn resume_downloads(&self) {
        self.inner.downloads.wake();
        self.work();
    }

    pub fn download_start(&self, request: StartDownload) -> Answer<ModelDownload> {
        let StartDownload { repository, for_model, head_only } = request;
        let endpoint = endpoint(&lock(&self.inner.settings));
        let at = RepoRef::parse(&repository, &endpoint).map_err(|e| from_hub(&e))?;
        if let Some(id) = &for_model {
            if !head_only {
                return Err(error(
                    ErrorCode::InvalidOption,
                    "Only a head is fetched for another model. Ask for the head alone, or name no model.",
                ));
            }
            self.library().resolve(id).map_err(|e| from_library(&e))?;
        }
        // The address of the hub and the proxy are looked at now, not by the worker.
        self.hub()?;
        let ask = Ask {
            repository: at.repo.to_string(),
            revision: at.revision().to_owned(),
            head_only,
            for_model,
        };
        if !ask.head_only {
            // Its head was paused or failed with an earlier attempt.
            for head in self.inner.downloads.heads_for(&ask.repository) {
                self.inner.downloads.resume(&head);
            }
        }
        let download = self.inner.downloads.add(ask);
        self.work();
        Ok(download)
    }

    pub fn download_pause(&self, request: DownloadRef) -> Answer<()> {
        if self.inner.downloads.pause(&request.id) { Ok(()) } else { Err(unknown()) }
    }

    pub fn download_resume(&self, request: DownloadRef) -> Answer<()> {
        if !self.inner.downloads.resume(&request.id) {
            return Err(unknown());
        }
        self.work();
        Ok(())
    }

    /// A head that was only asked for because of the model goes with it.
    fn take_off(&self, id: &str, stop: Stop) -> Answer<Removed> {
        let removed = self.inner.downloads.remove(id, stop).ok_or_else(unknown)?;
        if !removed.ask.head_only {
            for head in self.inner.downloads.heads_for(&removed.ask.repository) {
                self.inner.downloads.remove(&head, stop);
            }
        }
        self.work();
        Ok(removed)
    }

    pub fn download_cancel(&self, request: DownloadRef) -> Answer<()> {
        let removed = self.take_off(&request.id, Stop::Cancel)?;
        let repo: RepoId = removed.ask.repository.parse().map_err(|e| from_hub(&e))?;
        // A worker does this when it ends.
        if removed.control.is_none() && !removed.ask.head_only {
            download::forget(&self.inner.paths.hub_cache, &repo).map_err(|e| from_download(&e))?;
        }
        Ok(())
    }

    pub fn download_discard(&self, request: DownloadRef) -> Answer<u64> {
        let removed = self.take_off(&request.id, Stop::Discard)?;
        let repo: RepoId = removed.ask.repository.parse().map_err(|e| from_hub(&e))?;
        let busy = || from_download(&DownloadError::Busy { repo: repo.clone() });
        if removed.control.as_ref().is_some_and(|control| !control.wait_end(END)) {
            return Err(busy());
        }
        if removed.ask.head_only {
            return Ok(heads::begun(&self.inner.paths.heads(), &repo, true));
        }
        download::discard(&self.inner.paths.hub_cache, &repo).map_err(|e| from_download(&e))
    }

    pub fn downloads_watch(&self, on: impl FnMut(DownloadEvent) + Send + 'static) -> Answer<()> {
        self.inner.downloads.watch(on).map_err(|e| {
            let message = format!("The downloads cannot be watched ({e}). Restart Foretoken.");
            error(ErrorCode::Internal, message)
        })
    }
}
