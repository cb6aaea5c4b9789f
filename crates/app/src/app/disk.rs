//! The commands about files of models that are here: compared with the hub, and deleted.

use super::{Answer, App, lock};
use crate::error;
use crate::error::from_library;
use crate::hub_error::{from_download, from_hub};
use crate::shelf::heads;
use foretoken_library::download::{self, FileCheck, check, note_damaged};
use foretoken_library::hub::{Listing, RemoteFile, RepoRef};
use foretoken_library::{Entry, HubError, RepoId, Source};
use foretoken_protocol::*;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Shortest time between two events of a check.
const EVERY: Duration = Duration::from_millis(250);

/// A path as it really is: the same model may be named by a link.
fn real(path: &Path) -> PathBuf {
    path.canonicalize().unwrap_or_else(|_| path.to_owned())
}

impl App {
    fn entry(&self, id: &str) -> Answer<Entry> {
        let library = self.library();
        let entry = library.list().into_iter().find(|entry| entry.id == id);
        entry.ok_or_else(|| match library.resolve(id) {
            Err(e) => from_library(&e),
            Ok(_) => error(
                ErrorCode::NotFound,
                format!("{id} is not in the list of models. Add the folder first."),
            ),
        })
    }

    fn is_in_use(&self, folder: &Path) -> bool {
        let folder = real(folder);
        self.folders_in_use().iter().any(|used| real(used).starts_with(&folder))
    }

    /// What deleting would free, or why it cannot be.
    pub fn model_delete_plan(&self, request: ModelRef) -> Answer<DeletePlan> {
        let entry = self.entry(&request.id)?;
        let heads = self.own_heads(&entry.id);
        let in_use = || {
            let message = format!("{} is in use. Unload the model first.", entry.name);
            error(ErrorCode::Busy, message)
        };
        if heads.iter().any(|folder| self.is_in_use(folder)) {
            return Err(in_use());
        }
        let of_heads: u64 = heads.iter().map(|folder| heads::bytes_below(folder)).sum();
        let (folder, frees, only_forgets) = match entry.source {
            Source::Starter => {
                let message =
                    "The starter model comes with the app and stays. Load another one instead.";
                return Err(error(ErrorCode::InvalidOption, message));
            }
            Source::LmStudio => {
                let message = "This model belongs to LM Studio. Delete it there.";
                return Err(error(ErrorCode::InvalidOption, message));
            }
            // It is only taken off the list: whatever reads it may go on.
            Source::Folder => (entry.folder, 0, true),
            Source::HubCache => {
                let repo: RepoId = entry.id.parse().map_err(|e| from_hub(&e))?;
                let folder = self.inner.paths.hub_cache.join(repo.folder());
                if self.is_in_use(&folder) {
                    return Err(in_use());
                }
                if self.inner.downloads.works_on(&entry.id) {
                    return Err(from_download(&foretoken_library::DownloadError::Busy { repo }));
                }
                (folder, download::size(&self.inner.paths.hub_cache, &repo), false)
            }
        };
        Ok(DeletePlan {
            id: entry.id,
            folder: folder.to_string_lossy().into_owned(),
            frees: frees + of_heads,
            only_forgets,
        })
    }

    /// Head folders of ours that are on this model and on no other.
    fn own_heads(&self, id: &str) -> Vec<PathBuf> {
        let settings = lock(&self.inner.settings);
        let Some(head) = settings.model_heads.get(id).map(PathBuf::from) else { return Vec::new() };
        let shared = settings.model_heads.iter().any(|(of, h)| of != id && Path::new(h) == head);
        let ours = self.is_our_head(&head) && head.is_dir();
        if ours && !shared { vec![head] } else { Vec::new() }
    }

    /// `<data>/heads/<repository>/<commit>`, and nothing that only begins like it.
    fn is_our_head(&self, head: &Path) -> bool {
        let repository = head.parent().filter(|of| of.file_name().is_some());
        head.file_name().is_some()
            && repository.and_then(Path::parent) == Some(&*self.inner.paths.heads())
    }

    /// A head of ours that no model has any more; what is loaded stays.
    pub(super) fn drop_unused_head(&self, head: &Path) {
        let used = lock(&self.inner.settings).model_heads.values().any(|h| Path::new(h) == head);
        if used || !self.is_our_head(head) || self.is_in_use(head) {
            return;
        }
        if let Err(error) = std::fs::remove_dir_all(head) {
            tracing::warn!(%error, "a head that no model has stays");
        }
    }

    pub fn model_delete(&self, request: ModelRef) -> Answer<Vec<ModelEntry>> {
        let plan = self.model_delete_plan(request)?;
        let heads = self.own_heads(&plan.id);
        if !plan.only_forgets {
            let repo: RepoId = plan.id.parse().map_err(|e| from_hub(&e))?;
            download::delete(&self.inner.paths.hub_cache, &repo).map_err(|e| from_download(&e))?;
        }
        self.change_settings(|s| {
            s.model_folders.retain(|folder| *folder != plan.id);
            s.model_heads.remove(&plan.id);
            if s.last_model.as_deref() == Some(plan.id.as_str()) {
                s.last_model = None;
            }
        })?;
        heads.iter().for_each(|head| self.drop_unused_head(head));
        self.inner.downloads.drop_of(&plan.id);
        self.models_list()
    }

    /// Compares a model's files with the hub's list; returns at once.
    pub fn model_check(
        &self,
        request: ModelRef,
        mut on: impl FnMut(CheckEvent) + Send + 'static,
    ) -> Answer<()> {
        let entry = self.entry(&request.id)?;
        let repository = entry.repository.clone().ok_or_else(|| {
            let message = format!("Nothing says which repository {} comes from, so there is nothing to compare it with. Download it from the hub instead.", entry.name);
            error(ErrorCode::NotFound, message)
        })?;
        let stop = Arc::new(AtomicBool::new(false));
        {
            let mut checking = lock(&self.inner.checking);
            if checking.is_some() {
                let message = "Another model is being checked. Wait until it ends, or cancel it.";
                return Err(error(ErrorCode::Busy, message));
            }
            *checking = Some(Arc::clone(&stop));
        }
        let app = self.clone();
        let work = move || {
            let end = app.check_now(&entry, &repository, &stop, &mut on);
            *lock(&app.inner.checking) = None;
            on(match end {
                Ok(Some(report)) => CheckEvent::Finished { report },
                Ok(None) => CheckEvent::Cancelled,
                Err(error) => CheckEvent::Failed { error },
            });
        };
        std::thread::Builder::new().name("check".to_owned()).spawn(work).map(drop).map_err(|e| {
            *lock(&self.inner.checking) = None;
            let message =
                format!("The check could not start ({e}). Close other programs and try again.");
            error(ErrorCode::Internal, message)
        })
    }

    pub fn model_cancel_check(&self) -> Answer<()> {
        self.cancel_check();
        Ok(())
    }

    pub(super) fn cancel_check(&self) {
        if let Some(stop) = &*lock(&self.inner.checking) {
            stop.store(true, Ordering::Relaxed);
        }
    }

    fn check_now(
        &self,
        entry: &Entry,
        repository: &str,
        stop: &AtomicBool,
        on: &mut impl FnMut(CheckEvent),
    ) -> Answer<Option<CheckReport>> {
        let repo: RepoId = repository.parse().map_err(|e| from_hub(&e))?;
        // A snapshot of the cache has its commit as a name; another folder is compared with what the hub has now.
        let commit = entry.folder.file_name().map(|name| name.to_string_lossy().into_owned());
        let at = match (entry.source, commit) {
            (Source::HubCache, Some(commit)) => {
                RepoRef::new(repo, &commit).map_err(|e| from_hub(&e))?
            }
            _ => RepoRef::main(repo),
        };
        let listing = self.hub()?.list(&at).map_err(|e| match e {
            HubError::NoRevision { .. } => {
                let message = format!("The hub does not keep this version of {repository} any more, so there is nothing to compare it with. Download the newest instead.");
                WireError { message, ..from_hub(&e) }
            }
            e => from_hub(&e),
        })?;
        let listing = Listing { files: listing.model_files(), ..listing };
        let total = listing.bytes();
        let mut told = None::<Instant>;
        let progress = |done: u64| {
            if told.is_none_or(|told| told.elapsed() >= EVERY) || done == total {
                told = Some(Instant::now());
                on(CheckEvent::Progress { done, total, file: file_at(&listing.files, done) });
            }
        };
        let checked =
            check(&entry.folder, &listing, stop, progress).map_err(|e| from_download(&e))?;
        let Some(checked) = checked else { return Ok(None) };
        let report = report(repository, &checked, entry.source == Source::HubCache);
        // A file of the right size would be taken for complete by the next download. A report is one without the note.
        if entry.source == Source::HubCache
            && let Err(error) = note_damaged(&self.inner.paths.hub_cache, &listing, &checked)
        {
            tracing::warn!(%error, "what is damaged was not noted");
        }
        Ok(Some(report))
    }
}

/// Name of the file the byte belongs to.
fn file_at(files: &[RemoteFile], done: u64) -> String {
    let mut end = 0;
    let at = files.iter().find(|file| {
        end += file.size;
        done < end
    });
    at.or(files.last()).map_or(String::new(), |file| file.path.clone())
}

fn report(repository: &str, checked: &[(RemoteFile, FileCheck)], can_mend: bool) -> CheckReport {
    let names = |kind: &FileCheck| -> Vec<String> {
        checked.iter().filter(|(_, is)| is == kind).map(|(file, _)| file.path.clone()).collect()
    };
    let good = names(&FileCheck::Good).len() as u32;
    let (damaged, missing) = (names(&FileCheck::Differs), names(&FileCheck::Missing));
    let next = match can_mend {
        true => "Download the model again: only these files are fetched.",
        false => "If they were not changed on purpose, download the model again.",
    };
    let n_files = |n: usize| match n {
        1 => "1 file is".to_owned(),
        n => format!("{n} files are"),
    };
    let mut parts = Vec::new();
    if !damaged.is_empty() {
        parts.push(format!("{} damaged ({})", n_files(damaged.len()), damaged.join(", ")));
    }
    if !missing.is_empty() {
        parts.push(format!("{} missing ({})", n_files(missing.len()), missing.join(", ")));
    }
    let sentence = match parts.is_empty() {
        true => format!("All {good} files are exactly those of {repository}."),
        false => format!("Compared with {repository}, {}. {next}", parts.join(" and ")),
    };
    CheckReport { repository: repository.to_owned(), good, damaged, missing, sentence }
}
