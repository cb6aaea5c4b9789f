import { clearMocks, mockIPC, mockWindows } from "@tauri-apps/api/mocks";
import { afterEach, expect, test, vi } from "vitest";
import { tauriBackend } from "../src/backend/tauri";
import { Stores } from "../src/state";
import { STEP_MODEL } from "../src/backend/fake_texts";
import { FIRST_SETTINGS } from "../src/state/settings.svelte";
import { eventually, failure, live, message, replyStats, step } from "./support";
import type { ChatEvent } from "../src/backend";

interface Internals {
  runCallback(id: number, payload: unknown): void;
}

afterEach(async () => {
  await new Promise((done) => setTimeout(done));
  clearMocks();
});

/** A channel is serialised as "__CHANNEL__:<id>"; its messages arrive through the callback registered for <id>. */
function push(channel: unknown, index: number, event: unknown) {
  const id = typeof channel === "object" && channel !== null && "id" in channel ? Number((channel as { id: number }).id) : Number(String(channel).split(":")[1]);
  (window as unknown as { __TAURI_INTERNALS__: Internals }).__TAURI_INTERNALS__.runCallback(id, { message: event, index });
}

test("a request goes out as req, and null is left out", async () => {
  const seen: [string, unknown][] = [];
  mockIPC((cmd, args) => {
    seen.push([cmd, args]);
    return null;
  });
  await tauriBackend.call("chats_list", null);
  await tauriBackend.call("chat_stop", { chatId: 3 });
  expect(seen).toEqual([
    ["chats_list", {}],
    ["chat_stop", { req: { chatId: 3 } }],
  ]);
});

test("a streaming command always has its channel, and messages out of order are put in order", async () => {
  const events: ChatEvent[] = [];
  mockIPC((cmd, args) => {
    if (cmd !== "chat_send") return null;
    const { channel } = args as { channel: unknown };
    push(channel, 1, step("b"));
    push(channel, 0, step("a"));
    return null;
  });
  const req = { chatId: 1, text: "x", options: FIRST_SETTINGS.options };
  await tauriBackend.call("chat_send", req, (event) => events.push(event));
  expect(events.map((e) => (e.kind === "step" ? e.text : ""))).toEqual(["a", "b"]);
  await tauriBackend.call("chat_send", req);
});

test("errors are the engine's own, and strangers are given a sentence", async () => {
  mockIPC((cmd) => {
    if (cmd === "chat_open") throw failure;
    throw "not allowed by ACL";
  });
  await expect(tauriBackend.call("chat_open", { chatId: 1 })).rejects.toEqual(failure);
  await expect(tauriBackend.call("chats_list", null)).rejects.toMatchObject({ code: "internal", detail: "not allowed by ACL" });
});

test("a whole reply through the door, its events after the promise", async () => {
  let channel: unknown;
  mockIPC((cmd, args) => {
    switch (cmd) {
      case "app_info":
        return { version: "1", platform: "linux", settings: FIRST_SETTINGS, notices: [], model: STEP_MODEL };
      case "chats_list":
      case "models_list":
        return [];
      case "chat_create":
        return { id: 5, title: "", updatedMs: 1 };
      case "chat_send":
        channel = (args as { channel: unknown }).channel;
    }
    return null;
  });
  const stores = new Stores(tauriBackend);
  await stores.start();
  stores.conversation.draft = "hi";
  await stores.conversation.send();
  expect(stores.conversation.busy).toBe(true);
  push(channel, 0, { kind: "accepted", user: message({ id: 1, role: "user", text: "hi" }), reply: message(), title: "hi" });
  push(channel, 1, step("hel"));
  push(channel, 2, step("lo"));
  push(channel, 3, { kind: "finished", reason: "stop", stats: replyStats(), live: live() });
  await eventually(() => expect(stores.conversation.busy).toBe(false));
  expect(stores.conversation.entries.map((e) => e.message.text)).toEqual(["hi", "hello"]);
});

test("the Dock is given whole percents, and a desktop without it breaks nothing", async () => {
  const seen: unknown[] = [];
  mockIPC((cmd, args) => {
    if (cmd !== "plugin:window|set_progress_bar") throw "not allowed by ACL";
    seen.push((args as { value: unknown }).value);
    if (seen.length > 1) throw "no such thing here";
    return null;
  });
  mockWindows("main");
  tauriBackend.progress(0.424);
  tauriBackend.progress(null);
  await eventually(() => expect(seen).toEqual([{ status: "normal", progress: 42 }, { status: "none" }]));
});

test("a notification is shown where it is allowed, and left out where it is not", async () => {
  const shown: string[] = [];
  let permission = "granted";
  class Shown {
    constructor(title: string, options: { body: string }) {
      shown.push(`${title}: ${options.body}`);
    }
    static get permission() {
      return permission;
    }
    static requestPermission = () => Promise.resolve(permission);
  }
  vi.stubGlobal("Notification", Shown);
  mockIPC(() => {
    throw "plugin notification not found";
  });
  tauriBackend.notify("Ready", "It is here.");
  await eventually(() => expect(shown).toEqual(["Ready: It is here."]));
  permission = "denied";
  tauriBackend.notify("Ready", "Again.");
  permission = "default";
  tauriBackend.notify("Ready", "And again.");
  await new Promise((done) => setTimeout(done, 10));
  expect(shown).toHaveLength(1);
  vi.unstubAllGlobals();
});

test("the streams of downloads and of checks have their channel", async () => {
  const seen: [string, boolean][] = [];
  mockIPC((cmd, args) => {
    seen.push([cmd, "channel" in (args as object)]);
    return null;
  });
  await tauriBackend.call("downloads_watch", null, () => {});
  await tauriBackend.call("model_check", { id: "x" }, () => {});
  expect(seen).toEqual([
    ["downloads_watch", true],
    ["model_check", true],
  ]);
});
