//! The commands about models.

use super::{Answer, App, lock};
use crate::error::from_library;
use crate::{ModelPlace, check_head, from_engine, place};
use foretoken_engine::EngineError;
use foretoken_engine::models::has_head;
use foretoken_library::{Entry, Library, Source, name_of};
use foretoken_protocol::*;
use std::path::{Path, PathBuf};

/// Folders of models and heads that must stay as they are.
#[derive(Default)]
pub(super) struct InUse {
    loaded: Vec<PathBuf>,
    loading: Vec<Vec<PathBuf>>,
}

fn problem(entry: &Entry, e: &EngineError, folder: &str) -> String {
    match e {
        _ if entry.missing => format!(
            "The folder {folder} is not there. Connect the drive it is on, or take it off the list."
        ),
        EngineError::FileMissing { .. } => {
            "This folder holds no config.json. Choose the folder of a downloaded model.".to_owned()
        }
        e => from_engine(e).message,
    }
}

/// A folder by its name, a repository as it is.
fn called(head: &str) -> String {
    let path = Path::new(head);
    if path.is_absolute() { name_of(path) } else { head.to_owned() }
}

impl App {
    pub(super) fn library(&self) -> Library {
        self.inner.paths.library(&lock(&self.inner.settings).model_folders)
    }

    pub fn models_list(&self) -> Answer<Vec<ModelEntry>> {
        let heads = lock(&self.inner.settings).model_heads.clone();
        let entries = self.library().list().into_iter().map(|entry| {
            let folder = entry.folder.to_string_lossy().into_owned();
            // Names only: a model can be of any size.
            let own_head = has_head(&entry.folder);
            ModelEntry {
                problem: own_head.as_ref().err().map(|e| problem(&entry, e, &folder)),
                own_head: own_head.ok(),
                head_name: heads.get(&entry.id).map(|head| called(head)),
                head: heads.get(&entry.id).cloned(),
                missing: entry.missing,
                repository: entry.repository,
                id: entry.id,
                name: entry.name,
                source: match entry.source {
                    Source::Starter => ModelSource::Starter,
                    Source::Folder => ModelSource::Folder,
                    Source::HubCache => ModelSource::HubCache,
                    Source::LmStudio => ModelSource::LmStudio,
                },
                folder,
                bytes: entry.bytes,
            }
        });
        Ok(entries.collect())
    }

    pub fn model_add_folder(&self, request: AddFolder) -> Answer<Vec<ModelEntry>> {
        if !Path::new(&request.folder).is_dir() {
            return Err(from_library(&foretoken_library::LibraryError::NoFolder {
                folder: request.folder.into(),
            }));
        }
        self.change_settings(|s| {
            if !s.model_folders.contains(&request.folder) {
                s.model_folders.push(request.folder);
            }
        })?;
        self.models_list()
    }

    /// The head a model is loaded with from now on. Whether it fits is seen then; that there is one, now.
    pub fn model_set_head(&self, request: SetModelHead) -> Answer<Vec<ModelEntry>> {
        let SetModelHead { id, head } = request;
        if let Some(head) = &head {
            let library = self.library();
            library.resolve(&id).map_err(|e| from_library(&e))?;
            check_head(&library, head)?;
        }
        let mut before = None;
        self.change_settings(|s| {
            before = match head {
                Some(head) => s.model_heads.insert(id, head),
                // Also of a model that is gone: what was set can always be taken back.
                None => s.model_heads.remove(&id),
            };
        })?;
        if let Some(before) = before {
            self.drop_unused_head(Path::new(&before));
        }
        self.models_list()
    }

    /// Returns at once; a running reply is stopped first.
    pub fn model_load(
        &self,
        request: LoadModel,
        mut on: impl FnMut(LoadEvent) + Send + 'static,
    ) -> Answer<()> {
        let head = lock(&self.inner.settings).model_heads.get(&request.id).cloned();
        let place = match place(&self.library(), request.id, head.as_deref()) {
            Ok(place) => ModelPlace { anyway: request.anyway, ..place },
            Err(error) => {
                on(LoadEvent::Failed { error });
                return Ok(());
            }
        };
        self.stop_reply(None);
        let app = self.clone();
        let folders: Vec<PathBuf> =
            [place.folder.clone()].into_iter().chain(place.head.clone()).collect();
        lock(&self.inner.in_use).loading.push(folders.clone());
        let queued = self.inner.engine.load(place, move |event| {
            if !matches!(event, LoadEvent::Progress { .. }) {
                let mut in_use = lock(&app.inner.in_use);
                if let Some(i) = in_use.loading.iter().position(|loading| *loading == folders) {
                    in_use.loading.remove(i);
                }
                if matches!(event, LoadEvent::Ready { .. }) {
                    in_use.loaded = folders.clone();
                }
            }
            if let LoadEvent::Ready { model } = &event {
                // Remembering the model is not worth failing its load for.
                if let Err(e) = app.change_settings(|s| s.last_model = Some(model.id.clone())) {
                    tracing::warn!(detail = e.detail, "the last model was not remembered");
                }
            }
            on(event);
        });
        queued.inspect_err(|_| lock(&self.inner.in_use).loading.clear())
    }

    pub fn model_cancel_load(&self) -> Answer<()> {
        self.inner.engine.cancel_load();
        Ok(())
    }

    /// Folders that hold what is in memory, or is being put there.
    pub(super) fn folders_in_use(&self) -> Vec<PathBuf> {
        let in_use = lock(&self.inner.in_use);
        let loaded = in_use.loaded.iter().filter(|_| self.inner.engine.model().is_some());
        loaded.chain(in_use.loading.iter().flatten()).cloned().collect()
    }

    pub fn model_unload(&self) -> Answer<()> {
        self.stop_reply(None);
        self.inner.engine.unload()
    }
}
