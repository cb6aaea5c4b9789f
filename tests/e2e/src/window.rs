//! What is seen in the window and done with it.

use super::until;
use fantoccini::{Client, Locator, elements::Element};
use serde_json::{Value, json};
use std::path::Path;
use std::time::{Duration, Instant};

#[derive(Clone)]
pub struct Window {
    pub client: Client,
    /// When the driver was asked to start the app.
    pub began: Instant,
    /// When the window answered the driver for the first time.
    pub opened: Instant,
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

    pub async fn wait_for_text(&self) {
        until("the reply has text", || async {
            self.reply().await.filter(|text| !text.trim().is_empty())
        })
        .await;
    }

    /// The reply ended, and what it says.
    pub async fn finished(&self) -> String {
        until("the reply ends", || async { (!self.streaming().await).then_some(()) }).await;
        self.reply().await.expect("the reply stays on the page")
    }

    /// What is shown there, once it holds something.
    pub async fn number(&self, id: &str) -> String {
        until(&format!("{id} shows something"), || async {
            self.text(id).await.filter(|text| text.chars().any(char::is_alphanumeric))
        })
        .await
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

    pub(super) async fn keep_evidence(&self, name: &str) {
        let folder = std::env::temp_dir().join("foretoken-e2e");
        let (picture, page) =
            (folder.join(format!("{name}.png")), folder.join(format!("{name}.html")));
        self.save_picture(&picture).await;
        std::fs::write(&page, self.client.source().await.unwrap_or_default()).ok();
        eprintln!("the window as it was: {} and {}", picture.display(), page.display());
    }
}
