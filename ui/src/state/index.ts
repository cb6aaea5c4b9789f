import { getContext, setContext } from "svelte";
import type { AppInfo, Backend, ModelDownload } from "../backend";
import { Chats } from "./chats.svelte";
import { Conversation } from "./conversation.svelte";
import { Downloads } from "./downloads.svelte";
import { Library } from "./library.svelte";
import { Live } from "./live.svelte";
import { Models, STARTER } from "./models.svelte";
import { Place } from "./place.svelte";
import { Problems } from "./problems.svelte";
import { repositoryOf } from "./shelf";
import { SettingsStore } from "./settings.svelte";
import { Token } from "./token.svelte";

/** As the app's own default. */
const PUBLIC_HUB = "https://huggingface.co";

/** Everything the window knows. Holds no rendering, so it runs in a test without a page. */
export class Stores {
  readonly backend: Backend;
  readonly problems = new Problems();
  readonly live = new Live();
  readonly place = new Place();
  readonly settings: SettingsStore;
  readonly models: Models;
  readonly downloads: Downloads;
  readonly library: Library;
  readonly token: Token;
  readonly chats: Chats;
  readonly conversation: Conversation;

  constructor(backend: Backend) {
    this.backend = backend;
    this.settings = new SettingsStore(backend, this.problems);
    this.models = new Models(backend, this.problems, this.settings);
    this.downloads = new Downloads(backend, this.problems);
    this.library = new Library(backend, this.problems, this.models, this.downloads);
    this.token = new Token(backend);
    this.chats = new Chats(backend, this.problems);
    this.conversation = new Conversation(this);
    this.models.onSettled = (ready) => this.conversation.modelSettled(ready);
    this.downloads.onDone = (download) => this.#downloaded(download);
    this.downloads.onFailed = (download, error) => backend.notify(`Download stopped: ${this.#nameOf(download)}`, error.message);
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
    void this.downloads.watch();
    void this.models.refresh();
    void this.library.refresh();
    // Awaited, so that a list read before the first message cannot arrive after it.
    await this.chats.refresh();
    if (info.model) this.models.loaded = info.model;
    else await this.models.load(info.settings.lastModel ?? STARTER);
  }

  #nameOf(download: ModelDownload): string {
    if (download.forModel !== null) return this.models.nameOf(download.forModel);
    const offer = this.library.offers.find((o) => o.repository === repositoryOf(download.repository));
    return offer?.title ?? this.models.nameOf(download.repository);
  }

  #downloaded(download: ModelDownload): void {
    const name = this.#nameOf(download);
    const sentence = download.headOnly ? `${name} has its MTP head now.` : `${name} is downloaded and verified.`;
    this.problems.notify([{ sentence, detail: "" }]);
    this.backend.notify(download.headOnly ? "The MTP head is ready" : "The model is ready", sentence);
    void this.library.refreshAll();
  }

  /** The model's own page on the hub. */
  async openHubPage(repository: string): Promise<void> {
    const hub = this.settings.value.hubEndpoint ?? PUBLIC_HUB;
    await this.openLink(`${hub.replace(/\/+$/, "")}/${repositoryOf(repository)}`);
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
