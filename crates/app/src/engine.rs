//! The one thread that owns the model and its caches. All else reaches it by messages and flags.

use crate::loaded::{LoadedCheckpoint, ModelPlace};
use crate::reply::{LiveOptions, ReplyEvent, ReplyRequest, run};
use crate::{error, from_engine};
use foretoken_engine::decode::{DepthController, Sequence};
use foretoken_protocol::{ErrorCode, GenerationOptions, LoadEvent, LoadedModel, WireError};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

type LoadSink = Box<dyn FnMut(LoadEvent) + Send>;
type ReplySink = Box<dyn FnMut(ReplyEvent) + Send>;

enum Job {
    Load {
        place: ModelPlace,
        on: LoadSink,
    },
    Unload,
    /// `seen` = version of the live options when it was queued; newer ones are meant for it.
    Reply {
        request: ReplyRequest,
        seen: u64,
        on: ReplySink,
    },
    Quit,
}

#[derive(Default)]
struct Shared {
    model: Mutex<Option<LoadedModel>>,
    cancel_load: AtomicBool,
    options: LiveOptions,
}

/// The engine's door.
pub struct Engine {
    jobs: Mutex<Sender<Job>>,
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// What the thread owns.
struct Running {
    loaded: LoadedCheckpoint,
    /// The newest conversation; another one starts over.
    sequence: Sequence,
    controller: DepthController,
}

impl Engine {
    pub fn start() -> Result<Self, WireError> {
        let (jobs, inbox) = channel::<Job>();
        let shared = Arc::new(Shared::default());
        let theirs = shared.clone();
        let work = move || {
            let mut running: Option<Running> = None;
            for job in inbox {
                match job {
                    Job::Load { place, mut on } => load(&place, &theirs, &mut running, &mut on),
                    Job::Unload => {
                        running = None;
                        theirs.set_model(None);
                    }
                    Job::Reply { request, seen, mut on } => {
                        reply(&theirs, &mut running, request, seen, &mut on)
                    }
                    Job::Quit => return,
                }
            }
        };
        let thread = std::thread::Builder::new().name("engine".to_owned()).spawn(work);
        let thread = thread.map_err(|e| {
            error(
                ErrorCode::Internal,
                format!("The engine could not start ({e}). Restart the computer."),
            )
        })?;
        Ok(Self { jobs: Mutex::new(jobs), shared, thread: Mutex::new(Some(thread)) })
    }

    fn send(&self, job: Job) -> Result<(), WireError> {
        let jobs = self.jobs.lock().unwrap_or_else(PoisonError::into_inner);
        jobs.send(job)
            .map_err(|_| error(ErrorCode::Internal, "The engine has stopped. Restart Foretoken."))
    }

    /// The model in memory.
    pub fn model(&self) -> Option<LoadedModel> {
        self.shared.model.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Queues a load; the model there before stays until the new one is ready.
    pub fn load(
        &self,
        place: ModelPlace,
        on: impl FnMut(LoadEvent) + Send + 'static,
    ) -> Result<(), WireError> {
        self.shared.cancel_load.store(false, Ordering::Release);
        self.send(Job::Load { place, on: Box::new(on) })
    }

    pub fn cancel_load(&self) {
        self.shared.cancel_load.store(true, Ordering::Release);
    }

    /// From now on there is no model; its memory is freed when what is queued is done.
    pub fn unload(&self) -> Result<(), WireError> {
        self.shared.set_model(None);
        self.send(Job::Unload)
    }

    /// Queues a reply; events come from the engine thread.
    pub fn reply(
        &self,
        request: ReplyRequest,
        on: impl FnMut(ReplyEvent) + Send + 'static,
    ) -> Result<(), WireError> {
        let seen = self.shared.options.version();
        self.send(Job::Reply { request, seen, on: Box::new(on) })
    }

    /// Takes effect between two cycles of the running reply.
    pub fn set_options(&self, options: GenerationOptions) {
        self.shared.options.set(options);
    }

    /// Ends the thread after what is queued; callers stop running replies first.
    pub fn shutdown(&self) {
        if self.send(Job::Quit).is_ok()
            && let Some(thread) = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take()
        {
            // A panic on that thread was already answered where it happened.
            drop(thread.join());
        }
        self.shared.set_model(None);
    }
}

impl Shared {
    fn set_model(&self, model: Option<LoadedModel>) {
        *self.model.lock().unwrap_or_else(PoisonError::into_inner) = model;
    }
}

fn defect() -> WireError {
    error(
        ErrorCode::Internal,
        "Something in Foretoken broke. Load the model again; your chats are safe.",
    )
}

fn load(place: &ModelPlace, shared: &Shared, running: &mut Option<Running>, on: &mut LoadSink) {
    let opened = catch_unwind(AssertUnwindSafe(|| {
        let progress = |done, total, what: &str| {
            on(LoadEvent::Progress { done, total, what: what.to_owned() })
        };
        LoadedCheckpoint::open(place, progress, || shared.cancel_load.load(Ordering::Acquire))
    }));
    on(match opened {
        Ok(Ok(Some(loaded))) => {
            let model = loaded.info.clone();
            let sequence = Sequence::new(loaded.model.clone());
            *running = Some(Running { loaded, sequence, controller: DepthController::default() });
            shared.set_model(Some(model.clone()));
            LoadEvent::Ready { model: Box::new(model) }
        }
        Ok(Ok(None)) => LoadEvent::Cancelled,
        Ok(Err(e)) => LoadEvent::Failed { error: from_engine(&e) },
        Err(_) => LoadEvent::Failed { error: defect() },
    });
}

fn reply(
    shared: &Shared,
    running: &mut Option<Running>,
    request: ReplyRequest,
    seen: u64,
    on: &mut ReplySink,
) {
    let Some(r) = running else {
        on(ReplyEvent::Failed(error(ErrorCode::NoModel, "No model is loaded. Choose one first.")));
        return;
    };
    let ran = catch_unwind(AssertUnwindSafe(|| {
        let options = (&shared.options, seen);
        run(&r.loaded, &mut r.sequence, &mut r.controller, options, request, &mut **on);
    }));
    if ran.is_err() {
        // The caches may be half written.
        r.sequence.clear();
        on(ReplyEvent::Failed(defect()));
    }
}
