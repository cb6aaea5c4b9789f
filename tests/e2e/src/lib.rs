//! The built app in a real window, driven through WebKitWebDriver.
//!
//! Needs a display and a D-Bus session: `xvfb-run -a dbus-run-session -- cargo nextest run -p foretoken-e2e`.
//! The app is found beside the test program, or where FORETOKEN_APP says.

use fantoccini::{Client, ClientBuilder, Locator, elements::Element};
use serde_json::{Value, json};
use std::future::Future;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};
use tokio::process::{Child, Command};

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

#[derive(Clone)]
pub struct Window {
    pub client: Client,
    /// When the driver was asked to start the app.
    pub began: Instant,
    /// When the window answered the driver for the first time.
    pub opened: Instant,
}

/// Opens the window on `home`, plays the scenario and closes the window. A failure leaves a picture and the page behind.
pub async fn play<F: Future<Output = ()> + Send + 'static>(
    home: &Home,
    name: &str,
    scenario: impl FnOnce(Window) -> F,
) {
    let mut driver = Driver::start(home);
    let window = driver.open().await;
    let app = driver.children();
    let outcome = tokio::spawn(scenario(window.clone())).await;
    if outcome.is_err() {
        window.keep_evidence(name).await;
    }
    window.client.clone().close().await.ok();
    if let Err(failure) = outcome {
        std::panic::resume_unwind(failure.into_panic());
    }
    until("the app ended after its window closed", || {
        let alive = app.iter().any(|pid| Path::new(&format!("/proc/{pid}/exe")).exists());
        async move { (!alive).then_some(()) }
    })
    .await;
}

struct Driver {
    process: Child,
    port: u16,
}

impl Driver {
    fn start(home: &Home) -> Self {
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
            .stdout(Stdio::null())
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

/// A test id, or a selector that says so by its first character.
fn css(id: &str) -> String {
    if id.starts_with(['#', '.', '[']) { id.to_owned() } else { format!("[data-testid='{id}']") }
}

impl Window {
    pub async fn find(&self, id: &str) -> Element {
        until(&format!("{id} is there"), || self.look(id)).await
    }

    pub async fn look(&self, id: &str) -> Option<Element> {
        self.client.find(Locator::Css(&css(id))).await.ok()
    }

    /// Clicks as soon as it can be clicked.
    pub async fn click(&self, id: &str) {
        until(&format!("{id} can be clicked"), || async {
            let element = self.look(id).await?;
            if !element.is_enabled().await.ok()? {
                return None;
            }
            element.click().await.ok()
        })
        .await
    }

    /// Waits for the running reply to end after pressing stop, unless it ended by itself.
    pub async fn stop(&self) {
        until("the reply ends", || async {
            if let Some(stop) = self.look("stop").await {
                stop.click().await.ok();
            }
            (!self.streaming().await).then_some(())
        })
        .await
    }

    /// Text of the element once it is another than `old`.
    pub async fn changed(&self, id: &str, old: &str) -> String {
        until(&format!("{id} is another than {old:?}"), || async {
            self.text(id).await.filter(|new| new != old)
        })
        .await
    }

    /// The newest element of this kind, as the page holds it: whitespace included, rendered or not.
    pub async fn text(&self, id: &str) -> Option<String> {
        self.script(
            "return [...document.querySelectorAll(arguments[0])].at(-1)?.textContent ?? null",
            &css(id),
        )
        .await
    }

    pub async fn attribute(&self, id: &str, name: &str) -> Option<String> {
        let script = "return [...document.querySelectorAll(arguments[0])].at(-1)?.getAttribute(arguments[1]) ?? null";
        let found = self.client.execute(script, vec![json!(css(id)), json!(name)]).await.ok()?;
        found.as_str().map(Into::into)
    }

    /// Marks the newest element of this kind with `data-marked`, so that the one that replaces it can be told apart.
    pub async fn mark(&self, id: &str) {
        let script =
            "return [...document.querySelectorAll(arguments[0])].at(-1).dataset.marked = 'yes'";
        self.script(script, &css(id)).await.expect("there is one");
    }

    /// Text of the newest reply.
    pub async fn reply(&self) -> Option<String> {
        self.text("message'][data-role='assistant'] [data-testid='message-text").await
    }

    pub async fn streaming(&self) -> bool {
        self.attribute("message'][data-role='assistant", "data-streaming").await.as_deref()
            == Some("true")
    }

    pub async fn contains(&self, id: &str, text: &str) {
        until(&format!("{id} contains {text:?}"), || async {
            self.text(id).await?.contains(text).then_some(())
        })
        .await
    }

    pub async fn send(&self, prompt: &str) {
        let composer = self.usable("composer").await;
        composer.send_keys(prompt).await.expect("the composer takes keys");
        self.click("send").await;
    }

    pub async fn usable(&self, id: &str) -> Element {
        until(&format!("{id} is usable"), || async {
            let element = self.look(id).await?;
            (element.is_enabled().await.ok()? && element.is_displayed().await.ok()?)
                .then_some(element)
        })
        .await
    }

    /// Puts `keys` into the element, which has the focus afterwards.
    pub async fn press(&self, id: &str, keys: &str) {
        until(&format!("{id} takes keys"), || async {
            self.look(id).await?.send_keys(keys).await.ok()
        })
        .await
    }

    /// Replaces what a field holds. Typing depends on where its caret is; the page hears the same event either way.
    pub async fn fill(&self, id: &str, value: &str) {
        let field = self.usable(id).await;
        let script = "const [field, value] = arguments; field.value = value;
            for (const kind of ['input', 'change']) field.dispatchEvent(new Event(kind, { bubbles: true }))";
        let field = serde_json::to_value(&field).expect("an element reference");
        self.client
            .execute(script, vec![field, json!(value)])
            .await
            .expect("the page runs scripts");
    }

    pub async fn resize(&self, width: u32, height: u32) {
        self.client.set_window_size(width, height).await.expect("the window can be resized");
        until(&format!("the window is {width} x {height}"), || async {
            let size =
                self.client.execute("return [innerWidth, innerHeight]", vec![]).await.ok()?;
            (size == json!([width, height])).then_some(())
        })
        .await
    }

    /// Whether the person sees all of it without scrolling.
    pub async fn inside(&self, id: &str) -> bool {
        let script = "const at = document.querySelector(arguments[0])?.getBoundingClientRect();
            return at && at.width > 0 && at.left >= 0 && at.top >= 0 && at.right <= innerWidth && at.bottom <= innerHeight";
        self.client
            .execute(script, vec![json!(css(id))])
            .await
            .is_ok_and(|answer| answer == json!(true))
    }

    async fn script(&self, script: &str, argument: &str) -> Option<String> {
        self.client.execute(script, vec![json!(argument)]).await.ok()?.as_str().map(Into::into)
    }

    /// Calls a command as the page would.
    pub async fn call(&self, command: &str, args: Value) -> Result<Value, Value> {
        let script = "const [command, args, done] = arguments;
            window.__TAURI_INTERNALS__.invoke(command, args).then(ok => done({ ok }), err => done({ err }))";
        let answer = self
            .client
            .execute_async(script, vec![json!(command), args])
            .await
            .expect("the page runs scripts");
        match answer.get("err") {
            Some(error) => Err(error.clone()),
            None => Ok(answer["ok"].clone()),
        }
    }

    /// What the app has stored.
    pub async fn settings(&self) -> Value {
        self.call("app_info", json!({})).await.expect("app_info answers")["settings"].clone()
    }

    pub async fn change_settings(&self, change: impl FnOnce(&mut Value)) {
        let mut settings = self.settings().await;
        change(&mut settings);
        self.call("settings_set", json!({ "req": settings })).await.expect("settings_set answers");
    }

    /// Lightness of the page behind everything, 0..255.
    pub async fn lightness(&self) -> Option<u64> {
        let script = "const c = document.createElement('canvas').getContext('2d');
            const layers = [document.documentElement, document.body].map(e => getComputedStyle(e).backgroundColor);
            for (c.fillStyle of ['white', ...layers]) c.fillRect(0, 0, 1, 1);
            const [r, g, b] = c.getImageData(0, 0, 1, 1).data; return Math.round((r + g + b) / 3)";
        self.client.execute(script, vec![]).await.ok()?.as_u64()
    }

    /// Saves a picture when FORETOKEN_SHOTS names a folder.
    pub async fn shot(&self, name: &str) {
        if let Some(folder) = std::env::var_os("FORETOKEN_SHOTS") {
            self.save_picture(&Path::new(&folder).join(format!("{name}.png"))).await;
        }
    }

    async fn save_picture(&self, path: &Path) {
        // The driver hands out the frame before the newest change unless it is given time to paint.
        tokio::time::sleep(Duration::from_millis(1500)).await;
        if let Ok(png) = self.client.screenshot().await {
            std::fs::create_dir_all(path.parent().unwrap_or(path)).ok();
            std::fs::write(path, png).ok();
        }
    }

    async fn keep_evidence(&self, name: &str) {
        let folder = std::env::temp_dir().join("foretoken-e2e");
        let (picture, page) =
            (folder.join(format!("{name}.png")), folder.join(format!("{name}.html")));
        self.save_picture(&picture).await;
        std::fs::write(&page, self.client.source().await.unwrap_or_default()).ok();
        eprintln!("the window as it was: {} and {}", picture.display(), page.display());
    }
}
