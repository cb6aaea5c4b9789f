import { getContext, setContext } from "svelte";
import type { AppInfo, Backend } from "../backend";
import { Chats } from "./chats.svelte";
import { Conversation } from "./conversation.svelte";
import { Live } from "./live.svelte";
import { Models, STARTER } from "./models.svelte";
import { Place } from "./place.svelte";
import { Problems } from "./problems.svelte";
import { SettingsStore } from "./settings.svelte";

/** Everything the window knows. Holds no rendering, so it runs in a test without a page. */
export class Stores {
  readonly backend: Backend;
  readonly problems = new Problems();
  readonly live = new Live();
  readonly place = new Place();
  readonly settings: SettingsStore;
  readonly models: Models;
  readonly chats: Chats;
  readonly conversation: Conversation;

  constructor(backend: Backend) {
    this.backend = backend;
    this.settings = new SettingsStore(backend, this.problems);
    this.models = new Models(backend, this.problems, this.settings);
    this.chats = new Chats(backend, this.problems);
    this.conversation = new Conversation(this);
    this.models.onSettled = (ready) => this.conversation.modelSettled(ready);
    this.settings.onOptions = () => this.live.optionsChanged();
  }

  async start(): Promise<void> {
    let info: AppInfo;
    try {
      info = await this.backend.call("app_info", null);
    } catch (thrown) {
      this.problems.report(thrown);
      return;
    }
    this.place.platform = info.platform;
    this.place.version = info.version;
    this.settings.adopt(info.settings);
    this.problems.notify(info.notices);
    void this.models.refresh();
    // Awaited, so that a list read before the first message cannot arrive after it.
    await this.chats.refresh();
    if (info.model) this.models.loaded = info.model;
    else await this.models.load(info.settings.lastModel ?? STARTER);
  }

  async openLink(url: string): Promise<void> {
    try {
      await this.backend.call("open_link", { url });
    } catch (thrown) {
      this.problems.report(thrown);
    }
  }
}

const KEY = Symbol("stores");

export function provideStores(stores: Stores): void {
  setContext(KEY, stores);
}

export function useStores(): Stores {
  return getContext<Stores>(KEY);
}
