//! The commands about the catalogue, the hub and what fits.

use super::{Answer, App, lock};
use crate::error::from_library;
use crate::fit::{self, Shape, Sizes};
use crate::hub_error::from_hub;
use crate::shelf::heads::{self, Search, Trunk};
use crate::shelf::{check, endpoint};
use crate::{error, from_engine, memory};
use foretoken_engine::EngineError;
use foretoken_engine::models::{check_config, has_head};
use foretoken_library::download::bytes_here;
use foretoken_library::hub::{Listing, RemoteModel, RepoRef};
use foretoken_library::{Entry, HeadSource, Hub, Library, Offer, Support, catalogue};
use foretoken_protocol::*;
use std::path::Path;

/// What is needed to judge a model of the hub again, at another context.
pub(super) struct Seen {
    shape: Shape,
    sizes: Sizes,
}

/// Refuses a hub or a limit that cannot work.
pub(super) fn check_settings(settings: &Settings) -> Answer<()> {
    if settings.download_limit == Some(0) {
        let message =
            "A limit of 0 bytes per second would stop every download. Give a larger one, or none.";
        return Err(error(ErrorCode::InvalidOption, message));
    }
    if settings.hub_endpoint.is_none() && settings.hub_proxy.is_none() {
        return Ok(());
    }
    check(settings).map_err(|e| from_hub(&e))
}

fn bytes(gb: Option<f64>) -> Option<u64> {
    gb.map(|gb| (gb * 1e9) as u64)
}

/// Another tool may be in the middle of fetching it.
fn is_whole(entry: &Entry) -> bool {
    has_head(&entry.folder).is_ok()
}

fn offer(offer: Offer, library: &[Entry]) -> ModelOffer {
    let here = |e: &&Entry| e.repository.as_ref() == Some(&offer.repository) && is_whole(e);
    ModelOffer {
        have: library.iter().find(here).map(|e| e.id.clone()),
        id: offer.id,
        title: offer.title,
        family: offer.family,
        supported: offer.support == Support::Yes,
        repository: offer.repository,
        revision: offer.revision,
        head: match offer.head {
            HeadSource::Included => OfferedHead::Included,
            HeadSource::Repository { repository } | HeadSource::Original { repository } => {
                OfferedHead::Elsewhere { repository }
            }
            HeadSource::Unknown => OfferedHead::Unknown,
        },
        bytes: bytes(offer.size_gb),
        head_bytes: bytes(offer.head_gb),
        memory_gb: offer.memory_gb,
        licence: offer.licence,
        notes: offer.notes,
        unverified: offer.unverified,
    }
}

fn no_shape() -> WireError {
    let message = "The configuration of this model does not say how large it is. Choose another version of it.";
    error(ErrorCode::Unsupported, message)
}

impl App {
    pub(super) fn hub(&self) -> Answer<Hub> {
        let settings = lock(&self.inner.settings).clone();
        self.inner.connection.hub(&settings).map_err(|e| from_hub(&e))
    }

    fn machine(&self) -> Machine {
        memory::machine(&self.inner.paths.hub_cache)
    }

    pub fn library_shelf(&self) -> Answer<Shelf> {
        let here = self.library().list();
        Ok(Shelf {
            offers: catalogue().into_iter().map(|o| offer(o, &here)).collect(),
            machine: self.machine(),
            downloads: self.inner.downloads.all(),
        })
    }

    /// Lists a repository and reads its configuration and headers; nothing is fetched.
    pub fn hub_inspect(&self, request: HubName) -> Answer<HubModel> {
        let endpoint = endpoint(&lock(&self.inner.settings));
        let at = RepoRef::parse(&request.text, &endpoint).map_err(|e| from_hub(&e))?;
        let hub = self.hub()?;
        let model = hub.inspect(&at).map_err(|e| from_hub(&e))?;
        let shape = Shape::read(&model.config).ok_or_else(no_shape)?;
        let (head, donor) = self.head_of(&hub, &model)?;
        let sizes = Sizes::of_remote(&model, donor.as_ref());
        let repository = at.repo.to_string();
        let listing = Listing { files: model.listing.model_files(), ..model.listing.clone() };
        let here = self.library().list();
        let here = here.iter().find(|e| e.repository.as_ref() == Some(&repository) && is_whole(e));
        let fit = fit::fit(&shape, sizes, self.machine(), None);
        lock(&self.inner.seen).insert(repository.clone(), Seen { shape, sizes });
        let unsupported = check_config(&model.config).err().map(|e| from_engine(&e).message);
        let no_weights = (sizes.weights == 0).then(|| {
            "This repository has no safetensors files. Choose a version of the model that has."
                .to_owned()
        });
        Ok(HubModel {
            repository,
            revision: at.revision().to_owned(),
            commit: listing.commit.clone(),
            family: model.model_type.clone().unwrap_or_default(),
            problem: unsupported.or(no_weights),
            layers: model.n_layers.and_then(|n| u32::try_from(n).ok()),
            bits: model.bits().and_then(|n| u32::try_from(n).ok()),
            bytes: listing.bytes(),
            have_bytes: bytes_here(&self.inner.paths.hub_cache, &listing),
            files: listing.files.len() as u32,
            head,
            fit,
            have: here.map(|e| e.id.clone()),
        })
    }

    /// The head of a model of the hub, and the repository it is in when that is another.
    fn head_of(&self, hub: &Hub, model: &RemoteModel) -> Answer<(HubHead, Option<RemoteModel>)> {
        if !model.head.is_empty() {
            return Ok((HubHead::Here { bytes: model.head_bytes() }, None));
        }
        // The model is worth showing without it.
        match self.search_head(hub, model) {
            Ok(Search::Found(found)) => Ok((elsewhere(&found), Some(found.model))),
            Ok(Search::Missing(sentence)) => Ok((HubHead::Missing { sentence }, None)),
            Err(e) => Ok((HubHead::Missing { sentence: e.message }, None)),
        }
    }

    /// Where the head of a model on this disk could come from.
    pub fn model_find_head(&self, request: ModelRef) -> Answer<HubHead> {
        let library = self.library();
        let folder = library.resolve(&request.id).map_err(|e| from_library(&e))?;
        if has_head(&folder).map_err(|e| from_engine(&e))? {
            let sizes = Sizes::of_folder(&folder, None).map_err(|e| from_engine(&e))?;
            return Ok(HubHead::Here { bytes: sizes.head });
        }
        match self.search_head_of_folder(&library, &request.id, &folder)? {
            Search::Found(found) => Ok(elsewhere(&found)),
            Search::Missing(sentence) => Ok(HubHead::Missing { sentence }),
        }
    }

    fn search_head_of_folder(&self, library: &Library, id: &str, folder: &Path) -> Answer<Search> {
        let config = fit::read_config(folder).ok_or_else(|| {
            from_engine(&EngineError::FileMissing { file: folder.join("config.json") })
        })?;
        let readme = std::fs::read_to_string(folder.join("README.md")).ok();
        let repository = library.list().into_iter().find(|e| e.id == id).and_then(|e| e.repository);
        let trunk =
            Trunk { repository: repository.as_deref(), config: &config, readme: readme.as_deref() };
        heads::find(&self.hub()?, &trunk).map_err(|e| from_hub(&e))
    }

    pub fn model_fit(&self, request: FitRequest) -> Answer<Fit> {
        let FitRequest { id, context } = request;
        if context == Some(0) {
            let message = "A context of 0 tokens holds nothing. Give at least 1.";
            return Err(error(ErrorCode::InvalidOption, message));
        }
        let library = self.library();
        let folder = match library.resolve(&id) {
            Ok(folder) => folder,
            Err(e) => {
                let seen = lock(&self.inner.seen);
                let seen = seen.get(&id).ok_or_else(|| from_library(&e))?;
                return Ok(fit::fit(&seen.shape, seen.sizes, self.machine(), context));
            }
        };
        let donor = lock(&self.inner.settings).model_heads.get(&id).cloned();
        // A head that is not there now is left out; the load says so.
        let donor = donor.and_then(|head| library.resolve(&head).ok());
        let sizes = Sizes::of_folder(&folder, donor.as_deref()).map_err(|e| from_engine(&e))?;
        let shape = Shape::of_folder(&folder).ok_or_else(no_shape)?;
        Ok(fit::fit(&shape, sizes, self.machine(), context))
    }

    pub fn token_state(&self) -> TokenState {
        TokenState { place: self.inner.connection.tokens.place() }
    }

    pub fn token_set(&self, request: SetToken) -> Answer<TokenState> {
        let place = self.inner.connection.tokens.set(request.token.as_deref())?;
        Ok(TokenState { place })
    }
}

fn elsewhere(found: &heads::Found) -> HubHead {
    HubHead::Elsewhere {
        repository: found.model.listing.repo.to_string(),
        bytes: found.plan.bytes(),
    }
}
