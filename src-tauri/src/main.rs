//! The desktop app: a window, a menu and one-line commands over `foretoken_app`.
//!
//! Does not: know a model, hold state, decide anything about a chat.

mod commands;
#[cfg(target_os = "macos")]
mod mac;
mod window;

use foretoken_app::{App, Paths};
use tauri::{Manager, RunEvent};

fn main() {
    tracing_subscriber::fmt()
        .with_env_filter(
            tracing_subscriber::EnvFilter::try_from_default_env().unwrap_or_else(|_| "warn".into()),
        )
        .with_writer(std::io::stderr)
        .init();
    let mut builder = tauri::Builder::default();
    // One window per person. FORETOKEN_MULTI lets a test or a second data folder have its own; it must come first to
    // stop a second start before anything is opened.
    if std::env::var_os("FORETOKEN_MULTI").is_none() {
        builder = builder.plugin(tauri_plugin_single_instance::init(|app, _, _| window::show(app)));
    }
    builder = builder
        .plugin(tauri_plugin_dialog::init())
        .plugin(tauri_plugin_notification::init())
        .plugin(tauri_plugin_opener::init())
        .plugin(tauri_plugin_window_state::Builder::default().build())
        .setup(|app| {
            let resources = app.path().resource_dir().ok();
            match App::open(Paths::find(resources.as_deref())) {
                Ok(opened) => {
                    opened.resume_downloads();
                    app.manage(opened);
                    window::open(app.handle())?;
                }
                Err(error) => window::refuse(app.handle(), &error),
            }
            Ok(())
        });
    #[cfg(target_os = "macos")]
    {
        builder = builder.menu(mac::menu).on_window_event(mac::hide_instead_of_close);
    }
    commands::register(builder)
        .build(tauri::generate_context!())
        .expect("the configuration is compiled in")
        .run(|app, event| match event {
            // macOS ends without asking when the menu's Quit is chosen, hence both; shutdown may run twice.
            RunEvent::ExitRequested { .. } | RunEvent::Exit => {
                if let Some(opened) = app.try_state::<App>() {
                    opened.shutdown();
                }
            }
            #[cfg(target_os = "macos")]
            RunEvent::Reopen { .. } => window::show(app),
            _ => {}
        });
}
