//! Every command of `foretoken_protocol::COMMANDS`, a line each. They run off the main thread.
//!
//! Adding one: the row in the protocol, a method of `foretoken_app::App`, a line here, its name in
//! `capabilities/main.json`. A house test compares the lists.

use foretoken_app::App;
use foretoken_protocol::*;
use tauri::ipc::{Channel, IpcResponse};
use tauri::{AppHandle, Builder, State, Wry, command, generate_handler};
use tauri_plugin_dialog::DialogExt;
use tauri_plugin_opener::OpenerExt;

type Answer<T> = Result<T, WireError>;

pub fn register(builder: Builder<Wry>) -> Builder<Wry> {
    builder.invoke_handler(generate_handler![
        app_info,
        settings_set,
        models_list,
        model_add_folder,
        model_choose_folder,
        model_set_head,
        model_load,
        model_cancel_load,
        model_unload,
        library_shelf,
        hub_inspect,
        model_find_head,
        model_fit,
        download_start,
        download_pause,
        download_resume,
        download_cancel,
        download_discard,
        downloads_watch,
        model_check,
        model_cancel_check,
        model_delete_plan,
        model_delete,
        token_state,
        token_set,
        chats_list,
        chat_create,
        chat_open,
        chat_rename,
        chat_delete,
        chats_search,
        chat_send,
        chat_retry,
        chat_stop,
        options_set,
        open_link,
    ])
}

/// A window that is gone hears nothing, and nobody else has to know.
fn into<T: IpcResponse + Send + 'static>(channel: Channel<T>) -> impl FnMut(T) + Send + 'static {
    move |event| drop(channel.send(event))
}

#[command(async)]
fn app_info(app: State<'_, App>) -> AppInfo {
    app.info()
}

#[command(async)]
fn settings_set(app: State<'_, App>, req: Settings) -> Answer<Settings> {
    app.settings_set(req)
}

#[command(async)]
fn models_list(app: State<'_, App>) -> Answer<Vec<ModelEntry>> {
    app.models_list()
}

#[command(async)]
fn model_add_folder(app: State<'_, App>, req: AddFolder) -> Answer<Vec<ModelEntry>> {
    app.model_add_folder(req)
}

/// A test cannot press the system's dialog: FORETOKEN_CHOOSE_FOLDER stands in for the person's choice.
#[command(async)]
fn model_choose_folder(handle: AppHandle) -> Option<AddFolder> {
    let chosen = || handle.dialog().file().blocking_pick_folder()?.into_path().ok();
    let folder = std::env::var_os("FORETOKEN_CHOOSE_FOLDER").map(Into::into).or_else(chosen)?;
    Some(AddFolder { folder: folder.to_string_lossy().into_owned() })
}

#[command(async)]
fn model_set_head(app: State<'_, App>, req: SetModelHead) -> Answer<Vec<ModelEntry>> {
    app.model_set_head(req)
}

#[command(async)]
fn model_load(app: State<'_, App>, req: LoadModel, channel: Channel<LoadEvent>) -> Answer<()> {
    app.model_load(req, into(channel))
}

#[command(async)]
fn model_cancel_load(app: State<'_, App>) -> Answer<()> {
    app.model_cancel_load()
}

#[command(async)]
fn model_unload(app: State<'_, App>) -> Answer<()> {
    app.model_unload()
}

#[command(async)]
fn library_shelf(app: State<'_, App>) -> Answer<Shelf> {
    app.library_shelf()
}

#[command(async)]
fn hub_inspect(app: State<'_, App>, req: HubName) -> Answer<HubModel> {
    app.hub_inspect(req)
}

#[command(async)]
fn model_find_head(app: State<'_, App>, req: ModelRef) -> Answer<HubHead> {
    app.model_find_head(req)
}

#[command(async)]
fn model_fit(app: State<'_, App>, req: FitRequest) -> Answer<Fit> {
    app.model_fit(req)
}

#[command(async)]
fn download_start(app: State<'_, App>, req: StartDownload) -> Answer<ModelDownload> {
    app.download_start(req)
}

#[command(async)]
fn download_pause(app: State<'_, App>, req: DownloadRef) -> Answer<()> {
    app.download_pause(req)
}

#[command(async)]
fn download_resume(app: State<'_, App>, req: DownloadRef) -> Answer<()> {
    app.download_resume(req)
}

#[command(async)]
fn download_cancel(app: State<'_, App>, req: DownloadRef) -> Answer<()> {
    app.download_cancel(req)
}

#[command(async)]
fn download_discard(app: State<'_, App>, req: DownloadRef) -> Answer<u64> {
    app.download_discard(req)
}

#[command(async)]
fn downloads_watch(app: State<'_, App>, channel: Channel<DownloadEvent>) -> Answer<()> {
    app.downloads_watch(into(channel))
}

#[command(async)]
fn model_check(app: State<'_, App>, req: ModelRef, channel: Channel<CheckEvent>) -> Answer<()> {
    app.model_check(req, into(channel))
}

#[command(async)]
fn model_cancel_check(app: State<'_, App>) -> Answer<()> {
    app.model_cancel_check()
}

#[command(async)]
fn model_delete_plan(app: State<'_, App>, req: ModelRef) -> Answer<DeletePlan> {
    app.model_delete_plan(req)
}

#[command(async)]
fn model_delete(app: State<'_, App>, req: ModelRef) -> Answer<Vec<ModelEntry>> {
    app.model_delete(req)
}

#[command(async)]
fn token_state(app: State<'_, App>) -> TokenState {
    app.token_state()
}

#[command(async)]
fn token_set(app: State<'_, App>, req: SetToken) -> Answer<TokenState> {
    app.token_set(req)
}

#[command(async)]
fn chats_list(app: State<'_, App>) -> Answer<Vec<ChatSummary>> {
    app.chats_list()
}

#[command(async)]
fn chat_create(app: State<'_, App>) -> Answer<ChatSummary> {
    app.chat_create()
}

#[command(async)]
fn chat_open(app: State<'_, App>, req: ChatRef) -> Answer<Chat> {
    app.chat_open(req)
}

#[command(async)]
fn chat_rename(app: State<'_, App>, req: RenameChat) -> Answer<ChatSummary> {
    app.chat_rename(req)
}

#[command(async)]
fn chat_delete(app: State<'_, App>, req: ChatRef) -> Answer<()> {
    app.chat_delete(req)
}

#[command(async)]
fn chats_search(app: State<'_, App>, req: Search) -> Answer<Vec<SearchHit>> {
    app.chats_search(req)
}

#[command(async)]
fn chat_send(app: State<'_, App>, req: SendMessage, channel: Channel<ChatEvent>) -> Answer<()> {
    app.chat_send(req, into(channel))
}

#[command(async)]
fn chat_retry(app: State<'_, App>, req: RetryMessage, channel: Channel<ChatEvent>) -> Answer<()> {
    app.chat_retry(req, into(channel))
}

#[command(async)]
fn chat_stop(app: State<'_, App>, req: ChatRef) -> Answer<()> {
    app.chat_stop(req)
}

#[command(async)]
fn options_set(app: State<'_, App>, req: GenerationOptions) -> Answer<()> {
    app.options_set(req)
}

/// A message is a model's text: nothing in it may open a file, a program or another scheme.
#[command(async)]
fn open_link(handle: AppHandle, req: OpenLink) -> Answer<()> {
    let refuse = |message: &str, detail: String| WireError {
        code: ErrorCode::InvalidOption,
        message: message.into(),
        detail,
    };
    let url = tauri::Url::parse(&req.url)
        .map_err(|e| refuse("This is not a link that can be opened.", e.to_string()))?;
    if !matches!(url.scheme(), "http" | "https") {
        return Err(refuse("Only http and https links are opened from a chat.", url.to_string()));
    }
    handle.opener().open_url(url, None::<&str>).map_err(|e| {
        refuse("The system's browser did not open. Copy the link instead.", e.to_string())
    })
}
