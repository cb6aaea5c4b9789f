import { mount } from "svelte";
import App from "./App.svelte";
import "./app.css";
import { chooseBackend } from "./backend";
import { Stores } from "./state";

// Before the first paint: the person's own choice is known only after the first call.
document.documentElement.dataset.theme = window.matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";

const stores = new Stores(await chooseBackend());
mount(App, { target: document.getElementById("app")!, props: { stores } });
const started = stores.start();

if (!("__TAURI_INTERNALS__" in window)) {
  const { playScene } = await import("./scene");
  const name = new URL(window.location.href).searchParams.get("state") ?? "default";
  // A scene in which the load never ends must still be played.
  await Promise.race([started, new Promise((done) => setTimeout(done, 600))]);
  await playScene(stores, name);
}
