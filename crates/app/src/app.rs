mod disk;
mod downloads;
mod hub;
mod models;
mod work;

use crate::error::{from_history, from_settings};
use crate::history::History;
use crate::shelf::{Connection, list::Downloads};
use crate::{
    Engine, Paths, Prompt, ReplyEvent, ReplyRequest, Tokens, check_options, error, settings,
};
use foretoken_engine::text::TurnText;
use foretoken_protocol::*;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

type Answer<T> = Result<T, WireError>;

/// Downloads that do not end in this time are ended by the program's end, which loses nothing either.
const LAST_WAIT: Duration = Duration::from_secs(3);
/// How often a running reply is saved.
const SAVE_EVERY: Duration = Duration::from_millis(500);

/// Everything behind the window: one method per command. Cheap to clone.
#[derive(Clone)]
pub struct App {
    inner: Arc<Inner>,
}

struct Inner {
    paths: Paths,
    engine: Engine,
    history: Arc<History>,
    settings: Mutex<Settings>,
    notices: Vec<Notice>,
    running: Mutex<Option<Running>>,
    connection: Connection,
    downloads: Downloads,
    /// Models of the hub that were looked at, by `owner/name`.
    seen: Mutex<BTreeMap<String, hub::Seen>>,
    /// Places of the model in memory and of the one being loaded.
    in_use: Mutex<models::InUse>,
    checking: Mutex<Option<Arc<AtomicBool>>>,
}

/// The reply being generated.
struct Running {
    chat_id: i64,
    message_id: i64,
    stop: Arc<AtomicBool>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // What is behind these locks is replaced whole, so a panic elsewhere cannot have left it half changed.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn now_ms() -> i64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |d| d.as_millis() as i64)
}

impl App {
    /// Opens chats and settings, making the folder if it is not there. What was damaged is set aside and named in a notice.
    pub fn open(paths: Paths) -> Answer<Self> {
        Self::open_with(paths, Tokens::of_system())
    }

    /// The same with the access token from elsewhere than the system's keychain.
    pub fn open_with(paths: Paths, tokens: Tokens) -> Answer<Self> {
        std::fs::create_dir_all(&paths.data).map_err(|e| WireError {
            code: ErrorCode::Disk,
            message: format!(
                "The folder {} cannot be made. Check the free space and its permissions.",
                paths.data.display()
            ),
            detail: e.to_string(),
        })?;
        let (history, lost_chats) =
            History::open(&paths.data.join("chats.sqlite3")).map_err(|e| from_history(&e))?;
        let (settings, lost_settings) = settings::load(&paths.data.join("settings.json"));
        let inner = Inner {
            engine: Engine::start()?,
            history: Arc::new(history),
            settings: Mutex::new(settings),
            notices: lost_chats.into_iter().chain(lost_settings).collect(),
            running: Mutex::new(None),
            connection: Connection::new(tokens),
            downloads: Downloads::open(&paths.data, &paths.hub_cache),
            seen: Mutex::default(),
            in_use: Mutex::default(),
            checking: Mutex::default(),
            paths,
        };
        Ok(Self { inner: Arc::new(inner) })
    }

    pub fn info(&self) -> AppInfo {
        AppInfo {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            platform: std::env::consts::OS.to_owned(),
            settings: lock(&self.inner.settings).clone(),
            notices: self.inner.notices.clone(),
            model: self.inner.engine.model(),
        }
    }

    /// Heads stay as they are: they have a command of their own, which looks at them, and the caller's may be older.
    pub fn settings_set(&self, new: Settings) -> Answer<Settings> {
        check_options(&new.options)?;
        hub::check_settings(&new)?;
        let mut settings = lock(&self.inner.settings);
        let new = Settings { model_heads: settings.model_heads.clone(), ..new };
        self.store_settings(&mut settings, new.clone())?;
        Ok(new)
    }

    fn change_settings(&self, change: impl FnOnce(&mut Settings)) -> Answer<()> {
        let mut settings = lock(&self.inner.settings);
        let mut new = settings.clone();
        change(&mut new);
        self.store_settings(&mut settings, new)
    }

    /// The lock is held until the file is written, so that two changes cannot undo each other.
    fn store_settings(&self, settings: &mut Settings, new: Settings) -> Answer<()> {
        settings::save(&self.inner.paths.data.join("settings.json"), &new)
            .map_err(|e| from_settings(&e))?;
        *settings = new;
        Ok(())
    }

    pub fn chats_list(&self) -> Answer<Vec<ChatSummary>> {
        self.inner.history.list().map_err(|e| from_history(&e))
    }

    pub fn chat_create(&self) -> Answer<ChatSummary> {
        self.inner.history.create().map_err(|e| from_history(&e))
    }

    pub fn chat_open(&self, request: ChatRef) -> Answer<Chat> {
        self.inner.history.open_chat(request.chat_id).map_err(|e| from_history(&e))
    }

    pub fn chat_rename(&self, request: RenameChat) -> Answer<ChatSummary> {
        self.inner.history.rename(request.chat_id, &request.title).map_err(|e| from_history(&e))
    }

    pub fn chat_delete(&self, request: ChatRef) -> Answer<()> {
        self.stop_reply(Some(request.chat_id));
        self.inner.history.delete(request.chat_id).map_err(|e| from_history(&e))
    }

    pub fn chats_search(&self, request: Search) -> Answer<Vec<SearchHit>> {
        self.inner.history.search(&request.query).map_err(|e| from_history(&e))
    }

    /// Stores the message and queues its reply.
    pub fn chat_send(
        &self,
        request: SendMessage,
        on: impl FnMut(ChatEvent) + Send + 'static,
    ) -> Answer<()> {
        if request.text.trim().is_empty() {
            return Err(error(
                ErrorCode::InvalidOption,
                "There is nothing to answer. Write a message first.",
            ));
        }
        let begin = |history: &History| {
            history.add_user(request.chat_id, &request.text, now_ms()).map(Some)
        };
        self.start_reply(request.chat_id, request.options, begin, on)
    }

    /// Replaces an assistant message and all after it.
    pub fn chat_retry(
        &self,
        request: RetryMessage,
        on: impl FnMut(ChatEvent) + Send + 'static,
    ) -> Answer<()> {
        let begin = |history: &History| {
            history.truncate_from(request.chat_id, request.message_id).map(|()| None)
        };
        self.start_reply(request.chat_id, request.options, begin, on)
    }

    fn start_reply(
        &self,
        chat_id: i64,
        options: GenerationOptions,
        begin: impl FnOnce(&History) -> Result<Option<Message>, crate::history::HistoryError>,
        mut on: impl FnMut(ChatEvent) + Send + 'static,
    ) -> Answer<()> {
        check_options(&options)?;
        let model = self.inner.engine.model();
        let model = model
            .ok_or_else(|| error(ErrorCode::NoModel, "No model is loaded. Choose one first."))?;
        // Held until the reply is registered, so that two sends cannot both find it free.
        let mut running = lock(&self.inner.running);
        if running.is_some() {
            return Err(error(
                ErrorCode::Busy,
                "Another reply is being written. Stop it first, or wait until it ends.",
            ));
        }
        let history = &self.inner.history;
        let user = begin(history).map_err(|e| from_history(&e))?;
        let reply =
            history.begin_reply(chat_id, &model.name, now_ms()).map_err(|e| from_history(&e))?;
        let chat = history.open_chat(chat_id).map_err(|e| from_history(&e))?;
        let stop = Arc::new(AtomicBool::new(false));
        *running = Some(Running { chat_id, message_id: reply.id, stop: stop.clone() });
        drop(running);

        let turns = turns(&chat, reply.id, options.system_prompt.as_deref());
        let mut saving = Saving {
            history: history.clone(),
            id: reply.id,
            text: String::new(),
            thought: String::new(),
            saved: Instant::now(),
        };
        on(ChatEvent::Accepted { user, reply: reply.clone(), title: chat.summary.title });
        let (app, id) = (self.clone(), reply.id);
        let request = ReplyRequest { prompt: Prompt::Turns(turns), options, stop };
        let queued = self.inner.engine.reply(request, move |event| {
            let event = saving.take(event);
            if matches!(event, ChatEvent::Finished { .. } | ChatEvent::Failed { .. }) {
                lock(&app.inner.running).take_if(|r| r.message_id == id);
            }
            on(event);
        });
        queued.inspect_err(|_| {
            *lock(&self.inner.running) = None;
            if let Err(e) =
                self.inner.history.finish_reply(id, "", None, FinishReason::Failed, None)
            {
                tracing::warn!(error = %e, "a failed reply was not saved");
            }
        })
    }

    pub fn chat_stop(&self, request: ChatRef) -> Answer<()> {
        self.stop_reply(Some(request.chat_id));
        Ok(())
    }

    /// Stops the reply of a chat, or whichever runs.
    fn stop_reply(&self, chat_id: Option<i64>) {
        if let Some(running) = &*lock(&self.inner.running)
            && chat_id.is_none_or(|id| id == running.chat_id)
        {
            running.stop.store(true, Ordering::Release);
        }
    }

    /// For the running reply, from its next cycle on, and for those to come.
    pub fn options_set(&self, options: GenerationOptions) -> Answer<()> {
        check_options(&options)?;
        self.inner.engine.set_options(options.clone());
        self.change_settings(|s| s.options = options)
    }

    /// Stops what runs, saves it and ends the engine thread. Downloads go on at the next start.
    pub fn shutdown(&self) {
        self.stop_reply(None);
        self.inner.engine.cancel_load();
        self.cancel_check();
        self.inner.downloads.close(LAST_WAIT);
        self.inner.engine.shutdown();
    }
}

/// The conversation before a reply, as the template sees it. Replies that failed before their first word are left out.
fn turns(chat: &Chat, reply: i64, system: Option<&str>) -> Vec<TurnText> {
    let system = system.map(str::trim).filter(|text| !text.is_empty());
    let mut out: Vec<TurnText> = Vec::new();
    out.extend(system.map(|text| TurnText {
        role: "system".to_owned(),
        content: text.to_owned(),
        reasoning: None,
    }));
    for message in chat.messages.iter().filter(|m| m.id != reply) {
        let role = match message.role {
            Role::System => "system",
            Role::User => "user",
            Role::Assistant if message.text.is_empty() => continue,
            Role::Assistant => "assistant",
        };
        out.push(TurnText {
            role: role.to_owned(),
            content: message.text.clone(),
            reasoning: message.thought.clone(),
        });
    }
    out
}

/// Keeps the database up to a running reply.
struct Saving {
    history: Arc<History>,
    id: i64,
    text: String,
    thought: String,
    saved: Instant,
}

impl Saving {
    fn thought(&self) -> Option<&str> {
        Some(self.thought.as_str()).filter(|t| !t.is_empty())
    }

    fn finish(&self, reason: FinishReason, stats: Option<&ReplyStats>) -> Result<(), WireError> {
        self.history
            .finish_reply(self.id, &self.text, self.thought(), reason, stats)
            .map_err(|e| from_history(&e))
    }

    fn take(&mut self, event: ReplyEvent) -> ChatEvent {
        match event {
            ReplyEvent::Prefill { done, total, reused } => {
                ChatEvent::Prefill { done, total, reused }
            }
            ReplyEvent::Step { text, thought, live } => {
                self.text.push_str(&text);
                self.thought.push_str(&thought);
                if self.saved.elapsed() >= SAVE_EVERY {
                    self.saved = Instant::now();
                    // The text is still in memory; the next save or the end tries again.
                    if let Err(e) = self.history.save_progress(self.id, &self.text, self.thought())
                    {
                        tracing::warn!(error = %e, "a running reply was not saved");
                    }
                }
                ChatEvent::Step { text, thought, live }
            }
            ReplyEvent::Finished { reason, stats, live, .. } => {
                match self.finish(reason, Some(&stats)) {
                    Ok(()) => ChatEvent::Finished { reason, stats, live },
                    Err(error) => ChatEvent::Failed { error },
                }
            }
            ReplyEvent::Failed(error) => {
                if let Err(e) = self.finish(FinishReason::Failed, None) {
                    tracing::warn!(detail = e.detail, "a failed reply was not saved");
                }
                ChatEvent::Failed { error }
            }
        }
    }
}
