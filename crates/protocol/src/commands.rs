/// One call from the window: names as in TypeScript, so that the window cannot invent a type.
#[derive(Debug, Clone, Copy)]
pub struct Command {
    pub name: &'static str,
    /// Type of the request object; `null` = no argument.
    pub request: &'static str,
    /// Type of the answer.
    pub response: &'static str,
    /// Type of the events sent through a channel while the call runs, if any.
    pub stream: Option<&'static str>,
}

const fn call(name: &'static str, request: &'static str, response: &'static str) -> Command {
    Command { name, request, response, stream: None }
}

const fn stream(name: &'static str, request: &'static str, event: &'static str) -> Command {
    Command { name, request, response: "null", stream: Some(event) }
}

/// Every command there is. The shell registers exactly these, and the window's `Commands` type is made from them.
///
/// Adding one: a row here, its structs beside the others, a method of `foretoken_app::App`, a line in the shell.
pub const COMMANDS: &[Command] = &[
    call("app_info", "null", "AppInfo"),
    call("settings_set", "Settings", "Settings"),
    call("models_list", "null", "ModelEntry[]"),
    call("model_add_folder", "AddFolder", "ModelEntry[]"),
    // Lets the person choose a folder with the system's dialog; null = nothing chosen.
    call("model_choose_folder", "null", "AddFolder | null"),
    // Takes effect at the next load.
    call("model_set_head", "SetModelHead", "ModelEntry[]"),
    stream("model_load", "LoadModel", "LoadEvent"),
    call("model_cancel_load", "null", "null"),
    call("model_unload", "null", "null"),
    // The catalogue, this machine and the downloads there are.
    call("library_shelf", "null", "Shelf"),
    // Reads configuration, index and headers of a repository; fetches nothing else.
    call("hub_inspect", "HubName", "HubModel"),
    // Where the head of a model on this disk could come from.
    call("model_find_head", "ModelRef", "HubHead"),
    call("model_fit", "FitRequest", "Fit"),
    call("download_start", "StartDownload", "ModelDownload"),
    call("download_pause", "DownloadRef", "null"),
    call("download_resume", "DownloadRef", "null"),
    // Keeps the bytes, and takes it off the list.
    call("download_cancel", "DownloadRef", "null"),
    // Takes it off the list and deletes the bytes; answers how many.
    call("download_discard", "DownloadRef", "number"),
    stream("downloads_watch", "null", "DownloadEvent"),
    // Hashes a model's files beside the hub's list.
    stream("model_check", "ModelRef", "CheckEvent"),
    call("model_cancel_check", "null", "null"),
    call("model_delete_plan", "ModelRef", "DeletePlan"),
    // Deletes a download of the hub cache; takes a person's folder off the list.
    call("model_delete", "ModelRef", "ModelEntry[]"),
    call("token_state", "null", "TokenState"),
    call("token_set", "SetToken", "TokenState"),
    call("chats_list", "null", "ChatSummary[]"),
    call("chat_create", "null", "ChatSummary"),
    call("chat_open", "ChatRef", "Chat"),
    call("chat_rename", "RenameChat", "ChatSummary"),
    call("chat_delete", "ChatRef", "null"),
    call("chats_search", "Search", "SearchHit[]"),
    // Stores the message, then streams the reply.
    stream("chat_send", "SendMessage", "ChatEvent"),
    // Replaces the given assistant message and all after it; answers the user message before it again.
    stream("chat_retry", "RetryMessage", "ChatEvent"),
    call("chat_stop", "ChatRef", "null"),
    // Takes effect between two cycles of a running reply, and is what `settings.options` becomes.
    call("options_set", "GenerationOptions", "null"),
    // Opens a link of a message in the system's browser; http and https only.
    call("open_link", "OpenLink", "null"),
];
