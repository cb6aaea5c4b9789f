use foretoken_protocol::WireError;
use tauri::{AppHandle, Manager, WebviewWindowBuilder};
use tauri_plugin_dialog::{DialogExt, MessageDialogKind};

pub fn open(app: &AppHandle) -> tauri::Result<()> {
    // Not created by the configuration: a window without an opened `App` behind it would only show failing calls.
    let config = app.config().app.windows.first().expect("tauri.conf.json describes the window");
    WebviewWindowBuilder::from_config(app, config)?.build()?;
    Ok(())
}

pub fn show(app: &AppHandle) {
    if let Some(window) = app.get_webview_window("main") {
        window.unminimize().ok();
        window.show().ok();
        window.set_focus().ok();
    }
}

/// Says why the app cannot start, and ends it. On stderr too, for who starts it from a terminal.
pub fn refuse(app: &AppHandle, error: &WireError) {
    tracing::error!(detail = error.detail, "{}", error.message);
    let handle = app.clone();
    app.dialog()
        .message(&error.message)
        .title("Foretoken cannot start")
        .kind(MessageDialogKind::Error)
        .show(move |_| handle.exit(1));
}
