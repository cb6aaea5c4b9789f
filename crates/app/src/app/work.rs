//! What a download's worker does: a thread each, from the listing to the model in the list.

use super::{App, lock};
use crate::error::from_library;
use crate::fit::stored_head;
use crate::hub_error::{from_download, from_hub};
use crate::shelf::heads::{self, HeadFolders, Search, Trunk};
use crate::shelf::list::{Ended, Job, Stop};
use crate::shelf::record::Ask;
use crate::{check_head, error, from_engine};
use foretoken_engine::models::{self, LoadOptions, check_config};
use foretoken_library::download::{Event, FileState, Options, Outcome, Pending, forget, pending};
use foretoken_library::hub::{HubError, Listing, Retry};
use foretoken_library::{Download, DownloadError, HeadPlan, Hub, RepoId, RepoRef};
use foretoken_protocol::*;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// How often a worker looks at the list and the bandwidth.
const LOOK: Duration = Duration::from_millis(100);

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

impl App {
    /// Starts workers for what is queued and may run.
    pub(super) fn work(&self) {
        while let Some(job) = self.inner.downloads.next() {
            let (app, of) = (self.clone(), job.clone());
            let work = move || {
                // A panic in one download is that download's failure.
                let ran = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| app.run(&of)));
                let how = ran.unwrap_or_else(|_| {
                    let message = "Something in Foretoken broke. Resume the download; what was fetched is kept.";
                    Err(error(ErrorCode::Internal, message))
                });
                app.inner.downloads.ended(&of, how.unwrap_or_else(Ended::Failed));
                app.work();
            };
            let thread = std::thread::Builder::new().name("download".to_owned()).spawn(work);
            if let Err(e) = thread {
                let message = format!(
                    "The download could not start ({e}). Close other programs and resume it."
                );
                self.inner
                    .downloads
                    .ended(&job, Ended::Failed(error(ErrorCode::Internal, message)));
            }
        }
    }

    fn run(&self, job: &Job) -> Result<Ended, WireError> {
        let repo: RepoId = job.ask.repository.parse().map_err(|e| from_hub(&e))?;
        let at = RepoRef::new(repo, &job.ask.revision).map_err(|e| from_hub(&e))?;
        if job.ask.head_only { self.fetch_head(job, &at) } else { self.fetch_model(job, &at) }
    }

    fn fetch_model(&self, job: &Job, at: &RepoRef) -> Result<Ended, WireError> {
        let cache = &self.inner.paths.hub_cache;
        // What was begun goes on as it was, without asking what the branch is now.
        let begun = |p: &Pending| p.listing.repo == at.repo && p.listing.revision == at.revision();
        let listing = match pending(cache).into_iter().find(begun) {
            Some(pending) => Some(pending.listing),
            None => self
                .ask(job, |hub| hub.list(at))?
                .map(|listing| Listing { files: listing.model_files(), ..listing }),
        };
        let Some(listing) = listing else { return Ok(Ended::Stopped) };
        let has = |end: &str| listing.files.iter().any(|file| file.path.ends_with(end));
        if !has(".safetensors") || listing.file("config.json").is_none() {
            let message = format!(
                "{} holds no model Foretoken can read. Choose a version of it with config.json and safetensors files.",
                at.repo
            );
            return Err(error(ErrorCode::Unsupported, message));
        }
        self.show_total(job, listing.bytes(), listing.files.len());
        let queued = self.queue_head(job, at);
        let also_needed = *queued.as_ref().unwrap_or(&0);
        let hub = self.hub()?;
        let options = Options { also_needed, ..self.options() };
        let download = Download::start(&hub, cache, listing, options, self.listener(job));
        let followed = self.follow(job, download).map_err(|e| {
            if matches!(
                e,
                DownloadError::Hub(HubError::Changed { .. } | HubError::NoRevision { .. })
            ) && let Err(e) = forget(cache, &at.repo)
            {
                tracing::warn!(error = %e, "a listing that is out of date stays");
            }
            from_download(&e)
        })?;
        let Some(folder) = followed else { return Ok(Ended::Stopped) };
        // Without a line at the start there may be one now. The model is of use without a head, which can be asked for later.
        if queued.is_err()
            && let Err(e) = self.queue_head(job, at)
        {
            tracing::info!(detail = e.detail, "where the head is was not found out");
        }
        self.judge_head(&at.repo.to_string());
        // Another revision than the branch the name stands for is found by its folder.
        let name = at.repo.to_string();
        let is_named = self.library().resolve(&name).is_ok_and(|found| found == folder);
        let model = if is_named { name } else { folder.to_string_lossy().into_owned() };
        Ok(Ended::Done { model })
    }

    /// A model without a head of its own gets one from where it is known to be. Bytes that takes on the disk.
    fn queue_head(&self, job: &Job, at: &RepoRef) -> Result<u64, WireError> {
        let id = at.repo.to_string();
        if lock(&self.inner.settings).model_heads.contains_key(&id) {
            return Ok(0);
        }
        let hub = self.hub()?;
        let model = hub.inspect(at).map_err(|e| from_hub(&e))?;
        if !model.head.is_empty() || check_config(&model.config).is_err() {
            return Ok(0);
        }
        let Search::Found(found) = self.search_head(&hub, &model)? else { return Ok(0) };
        if job.control.stopped().is_some() {
            return Ok(0);
        }
        let ask = Ask {
            repository: found.model.listing.repo.to_string(),
            revision: found.model.listing.revision.clone(),
            head_only: true,
            for_model: Some(id),
        };
        // One that was paused or has failed is the person's to resume.
        if !self.inner.downloads.has(&ask) {
            self.inner.downloads.add(ask);
            self.work();
        }
        Ok(found.plan.bytes() + stored_head(&found.model))
    }

    /// For a trunk on the hub.
    pub(super) fn search_head(
        &self,
        hub: &Hub,
        model: &foretoken_library::hub::RemoteModel,
    ) -> Result<Search, WireError> {
        let readme = hub.read_small(&model.listing, "README.md").ok();
        let readme = readme.map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
        let repository = model.listing.repo.to_string();
        let trunk = Trunk {
            repository: Some(&repository),
            config: &model.config,
            readme: readme.as_deref(),
        };
        heads::find(hub, &trunk).map_err(|e| from_hub(&e))
    }

    fn fetch_head(&self, job: &Job, at: &RepoRef) -> Result<Ended, WireError> {
        let Some(model) = self.ask(job, |hub| hub.inspect(at))? else { return Ok(Ended::Stopped) };
        check_config(&model.config).map_err(|e| from_engine(&e))?;
        let hub = self.hub()?;
        let (model, plan) = match HeadPlan::new(&model) {
            Some(plan) => (model, plan),
            // The trunk was named: its head is looked for.
            None => match self.search_head(&hub, &model)? {
                Search::Found(found) => (found.model, found.plan),
                Search::Missing(sentence) => return Err(error(ErrorCode::NotFound, sentence)),
            },
        };
        let folders = HeadFolders::new(&self.inner.paths.heads(), &at.repo, &model);
        self.show_total(job, plan.bytes(), 1);
        if !folders.is_ready() {
            let options = Options { also_needed: stored_head(&model), ..self.options() };
            let download = plan.fetch(&hub, &folders.raw, options, self.listener(job));
            if self.follow(job, download).map_err(|e| from_download(&e))?.is_none() {
                return Ok(Ended::Stopped);
            }
            let attaching = |shown: &mut ModelDownload| {
                shown.state = DownloadState::Attaching;
                shown.speed = 0.0;
                shown.remaining_ms = None;
            };
            self.inner.downloads.update(job, true, attaching);
            folders.make_ready()?;
        }
        let head = folders.ready.to_string_lossy().into_owned();
        check_head(&self.library(), &head)?;
        if matches!(job.control.stopped(), Some(Stop::Cancel | Stop::Discard)) {
            return Ok(Ended::Stopped);
        }
        if let Some(id) = job.ask.for_model.clone() {
            // A trunk that is still on its way is tried when it has come.
            if self.library().resolve(&id).is_ok() {
                self.try_head(&id, &folders.ready)?;
            }
            let mut before = None;
            self.change_settings(|s| before = s.model_heads.insert(id, head.clone()))?;
            if let Some(before) = before.filter(|before| *before != head) {
                self.drop_unused_head(Path::new(&before));
            }
        }
        Ok(Ended::Done { model: job.ask.for_model.clone().unwrap_or(head) })
    }

    /// Loads trunk and head once, from the memory map: a head that does not fit would keep the model from loading.
    fn try_head(&self, id: &str, head: &Path) -> Result<(), WireError> {
        let trunk = self.library().resolve(id).map_err(|e| from_library(&e))?;
        let options = LoadOptions { head: Some(head), ..LoadOptions::default() };
        models::load(&trunk, options).map(drop).map_err(|e| from_engine(&e))
    }

    /// A head that came before its trunk, now that both are here.
    fn judge_head(&self, id: &str) {
        let head = lock(&self.inner.settings).model_heads.get(id).map(PathBuf::from);
        let ours = head.filter(|head| head.starts_with(self.inner.paths.heads()));
        let Some(Err(error)) = ours.map(|head| self.try_head(id, &head)) else { return };
        tracing::warn!(detail = error.detail, "a head does not fit its model");
        if let Err(e) = self.change_settings(|s| drop(s.model_heads.remove(id))) {
            tracing::warn!(detail = e.detail, "a head that does not fit stays on its model");
        }
        self.inner.downloads.fail_heads(id, &error);
    }

    fn show_total(&self, job: &Job, total: u64, files: usize) {
        self.inner.downloads.update(job, true, |shown| {
            shown.total = total;
            shown.files = files as u32;
        });
    }

    /// Asks the hub until it answers or somebody has to act; `None` = it was told to end.
    fn ask<T>(
        &self,
        job: &Job,
        ask: impl Fn(&Hub) -> Result<T, HubError>,
    ) -> Result<Option<T>, WireError> {
        let mut failed = 0;
        loop {
            let e = match ask(&self.hub()?) {
                _ if job.control.stopped().is_some() => return Ok(None),
                Ok(answer) => return Ok(Some(answer)),
                Err(e) => e,
            };
            let error = from_hub(&e);
            let Some(wait) = Retry::default().wait(&e, failed) else { return Err(error) };
            failed += 1;
            let waiting = DownloadState::Waiting { error, retry_ms: Some(millis(wait)) };
            self.inner.downloads.update(job, true, |shown| shown.state = waiting);
            if job.control.sleep(wait) {
                return Ok(None);
            }
        }
    }

    /// Waits for a download's end: its folder, or `None` when it was told to end.
    fn follow(&self, job: &Job, download: Download) -> Result<Option<PathBuf>, DownloadError> {
        let mut share = None;
        loop {
            match download.wait_a_while(LOOK) {
                Some(Ok(Outcome::Complete { folder })) => return Ok(Some(folder)),
                Some(Ok(Outcome::Stopped)) => return Ok(None),
                Some(Err(e)) => return Err(e),
                None => {}
            }
            match job.control.stopped() {
                Some(Stop::Pause | Stop::Discard) => download.pause(),
                Some(Stop::Cancel) => download.cancel(),
                None => {}
            }
            let now = self.options().bandwidth;
            if now != share {
                download.set_bandwidth(now);
                share = now;
            }
        }
    }

    /// The limit is for all downloads together.
    fn options(&self) -> Options {
        let limit = lock(&self.inner.settings).download_limit;
        let n = self.inner.downloads.n_working().max(1);
        Options { bandwidth: limit.map(|limit| (limit / n).max(1)), ..Options::default() }
    }

    fn listener(&self, job: &Job) -> impl Fn(Event) + Send + Sync + 'static {
        let (app, job, most) = (self.clone(), job.clone(), AtomicU64::new(0));
        move |event| {
            app.inner.downloads.update(&job, false, |shown| match &event {
                Event::Progress(p) => {
                    let moved = p.done > most.fetch_max(p.done, Ordering::Relaxed);
                    shown.done = p.done;
                    shown.total = p.total;
                    shown.speed = p.speed;
                    shown.remaining_ms = p.remaining.map(millis);
                    shown.files_ready = p.files_ready as u32;
                    shown.files = p.files as u32;
                    if p.done >= p.total && p.files_ready < p.files {
                        shown.state = DownloadState::Verifying;
                    } else if moved && p.speed > 0.0 {
                        shown.state = DownloadState::Running;
                    }
                }
                Event::File { state: FileState::Fetching { .. }, .. } => {
                    shown.state = DownloadState::Running;
                }
                Event::File { state: FileState::Waiting { error, wait }, .. } => {
                    shown.state = DownloadState::Waiting {
                        error: from_hub(error),
                        retry_ms: Some(millis(*wait)),
                    };
                }
                Event::File { .. } => {}
            });
        }
    }
}
