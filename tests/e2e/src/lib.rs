//! The built app in a real window, driven through WebKitWebDriver.
//!
//! Needs a display and a D-Bus session: `xvfb-run -a dbus-run-session -- cargo nextest run -p foretoken-e2e`.
//! The app is found beside the test program, or where FORETOKEN_APP says.

mod window;

use fantoccini::ClientBuilder;
use serde_json::json;
use std::future::Future;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};
use tokio::process::{Child, Command};
pub use window::Window;

/// Generous: the machine may build something else meanwhile. Nothing waits longer than it has to.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// A person's folders, empty at first; they outlive a window.
pub struct Home {
    folder: tempfile::TempDir,
}

impl Home {
    pub fn empty() -> Self {
        Self { folder: tempfile::tempdir().expect("a temporary folder") }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }
}

/// Opens the window on `home`, plays the scenario and closes the window. A failure leaves a picture and the page behind.
pub async fn play<F: Future<Output = ()> + Send + 'static>(
    home: &Home,
    name: &str,
    scenario: impl FnOnce(Window) -> F,
) {
    let played = Played::new(home, name, scenario).await;
    played.window.client.clone().close().await.ok();
    played.ended("the app ended after its window closed").await;
}

/// The same, but the app is killed at the end, as by a crash or a power cut.
pub async fn play_and_kill<F: Future<Output = ()> + Send + 'static>(
    home: &Home,
    name: &str,
    scenario: impl FnOnce(Window) -> F,
) {
    let played = Played::new(home, name, scenario).await;
    for pid in &played.app {
        let killed = Command::new("kill").arg("-KILL").arg(pid.to_string()).status().await;
        assert!(killed.is_ok_and(|status| status.success()), "the app was there to be killed");
    }
    played.ended("the app is gone").await;
}

/// A scenario that went well, its window still open.
struct Played {
    window: Window,
    /// Its driver, and the app with it, lives as long as this.
    _driver: Driver,
    app: Vec<u32>,
}

impl Played {
    async fn new<F: Future<Output = ()> + Send + 'static>(
        home: &Home,
        name: &str,
        scenario: impl FnOnce(Window) -> F,
    ) -> Self {
        let mut driver = Driver::start(home);
        let window = driver.open().await;
        let app = driver.children();
        if let Err(failure) = tokio::spawn(scenario(window.clone())).await {
            window.keep_evidence(name).await;
            eprintln!("{}", std::fs::read_to_string(home.path("log")).unwrap_or_default());
            window.client.clone().close().await.ok();
            std::panic::resume_unwind(failure.into_panic());
        }
        Self { window, _driver: driver, app }
    }

    async fn ended(&self, what: &str) {
        until(what, || {
            let alive = self.app.iter().any(|pid| Path::new(&format!("/proc/{pid}/exe")).exists());
            async move { (!alive).then_some(()) }
        })
        .await;
    }
}

struct Driver {
    process: Child,
    port: u16,
}

impl Driver {
    fn start(home: &Home) -> Self {
        let log = std::fs::File::options().create(true).append(true).open(home.path("log"));
        let free = std::net::TcpListener::bind("127.0.0.1:0")
            .and_then(|l| l.local_addr())
            .expect("a free port");
        let process = Command::new("WebKitWebDriver")
            .arg(format!("--port={}", free.port()))
            // Without it the app never answers the driver.
            .env("TAURI_WEBVIEW_AUTOMATION", "true")
            .env("FORETOKEN_MULTI", "1")
            .env("XDG_DATA_HOME", home.path("data"))
            .env("XDG_CONFIG_HOME", home.path("config"))
            .env("XDG_CACHE_HOME", home.path("cache"))
            .env("HF_HOME", home.path("hub"))
            .env("FORETOKEN_CHOOSE_FOLDER", home.path("chosen"))
            // What might say too much has to say it.
            .env("RUST_LOG", "warn,foretoken_app=trace,foretoken_library=trace,reqwest=trace")
            .env_remove("HF_TOKEN")
            .stdout(Stdio::null())
            .stderr(log.expect("writable"))
            .kill_on_drop(true)
            .spawn()
            .expect("WebKitWebDriver is installed (./dev setup)");
        Self { process, port: free.port() }
    }

    async fn open(&mut self) -> Window {
        let app = std::env::var_os("FORETOKEN_APP").map_or_else(beside_this_test, PathBuf::from);
        assert!(app.exists(), "build the app first: {} is not there", app.display());
        let wish = json!({ "webkitgtk:browserOptions": { "binary": app, "args": [] } });
        let address = format!("http://127.0.0.1:{}", self.port);
        let began = Instant::now();
        let client = until("a session with the window", || {
            let mut builder =
                ClientBuilder::new(hyper_util::client::legacy::connect::HttpConnector::new());
            builder.capabilities(wish.as_object().cloned().unwrap_or_default());
            let address = address.clone();
            async move { builder.connect(&address).await.ok() }
        })
        .await;
        Window { client, began, opened: Instant::now() }
    }

    /// The app runs as the driver's child.
    fn children(&self) -> Vec<u32> {
        let Some(pid) = self.process.id() else { return Vec::new() };
        let list =
            std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
        list.split_whitespace().filter_map(|pid| pid.parse().ok()).collect()
    }
}

/// A tiny checkpoint of the repository's.
pub fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../golden").join(name)
}

/// The files of a folder.
pub fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).expect("writable");
    for file in std::fs::read_dir(from).expect("a fixture").flatten() {
        std::fs::copy(file.path(), to.join(file.file_name())).expect("copies");
    }
}

fn beside_this_test() -> PathBuf {
    let me = std::env::current_exe().expect("the system knows our path");
    me.ancestors().nth(2).expect("target/<profile>/deps/<test>").join("foretoken-desktop")
}

/// Polls until there is a value; panics with the sentence that did not come true.
pub async fn until<T, F: Future<Output = Option<T>>>(what: &str, mut look: impl FnMut() -> F) -> T {
    let began = Instant::now();
    loop {
        if let Some(found) = look().await {
            return found;
        }
        assert!(began.elapsed() < PATIENCE, "waited {PATIENCE:?} in vain until {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
