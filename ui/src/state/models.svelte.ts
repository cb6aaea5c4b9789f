import { toWireError, type Backend, type LoadedModel, type LoadEvent, type ModelEntry, type WireError } from "../backend";
import type { Problems } from "./problems.svelte";
import type { SettingsStore } from "./settings.svelte";

export const STARTER = "starter";

export type Loading = { id: string; done: number; total: number; what: string; cancelling: boolean };

export class Models {
  loaded = $state.raw<LoadedModel | null>(null);
  loading = $state.raw<Loading | null>(null);
  /** Why the last load failed; the id can be tried again. */
  failed = $state.raw<{ id: string; error: WireError; anyway: boolean } | null>(null);
  entries = $state.raw<ModelEntry[]>([]);
  listed = $state(false);
  /** The model whose head is being changed. */
  settingHead = $state<string | null>(null);
  /** Why the head chosen last was refused; the one before is still set. */
  headProblem = $state.raw<{ id: string; error: WireError } | null>(null);
  /** Called when a load ended, with whether a model is ready. */
  onSettled: (ready: boolean) => void = () => {};
  #backend: Backend;
  #problems: Problems;
  #settings: SettingsStore;
  #attempt = 0;

  constructor(backend: Backend, problems: Problems, settings: SettingsStore) {
    this.#backend = backend;
    this.#problems = problems;
    this.#settings = settings;
  }

  nameOf(id: string): string {
    const entry = this.entries.find((e) => e.id === id);
    if (entry) return entry.name;
    return id === STARTER ? "the starter model" : (id.split("/").pop() ?? id);
  }

  /** `anyway`: although it does not seem to fit. */
  async load(id: string, anyway = false): Promise<void> {
    const attempt = ++this.#attempt;
    this.failed = null;
    this.loaded = null;
    this.loading = { id, done: 0, total: 0, what: "", cancelling: false };
    try {
      await this.#backend.call("model_load", { id, anyway }, (event) => {
        if (attempt === this.#attempt && this.loading) this.#take(id, anyway, event);
      });
    } catch (thrown) {
      if (attempt === this.#attempt && this.loading) this.#take(id, anyway, { kind: "failed", error: toWireError(thrown) });
    }
  }

  #take(id: string, anyway: boolean, event: LoadEvent): void {
    switch (event.kind) {
      case "progress":
        this.loading = { id, done: event.done, total: event.total, what: event.what, cancelling: this.loading?.cancelling ?? false };
        return;
      case "ready":
        this.loading = null;
        this.loaded = event.model;
        this.#remember(event.model.id);
        this.onSettled(true);
        return;
      case "failed":
        this.failed = { id, error: event.error, anyway };
        void this.#giveUp();
        return;
      case "cancelled":
        void this.#giveUp();
    }
  }

  /** The model from before may still be there, as when the load was refused; only the engine knows. */
  async #giveUp(): Promise<void> {
    const attempt = this.#attempt;
    this.loading = null;
    this.onSettled(false);
    const info = await this.#ask(() => this.#backend.call("app_info", null));
    if (attempt === this.#attempt) this.loaded = info?.model ?? null;
  }

  async unload(): Promise<void> {
    const done = await this.#ask(async () => {
      await this.#backend.call("model_unload", null);
      return true;
    });
    if (done) this.loaded = null;
  }

  #remember(id: string): void {
    const last = id === STARTER ? null : id;
    if (this.#settings.value.lastModel !== last) void this.#settings.change({ lastModel: last });
  }

  async cancelLoad(): Promise<void> {
    if (!this.loading) return;
    this.loading = { ...this.loading, cancelling: true };
    await this.#ask(() => this.#backend.call("model_cancel_load", null));
  }

  async refresh(): Promise<void> {
    const entries = await this.#ask(() => this.#backend.call("models_list", null));
    if (entries) this.entries = entries;
    this.listed = true;
  }

  /** Lets the person choose a folder, and lists what is in it. */
  async addFolder(): Promise<void> {
    const chosen = await this.#ask(() => this.#backend.call("model_choose_folder", null));
    if (!chosen) return;
    const entries = await this.#ask(() => this.#backend.call("model_add_folder", chosen));
    if (!entries) return;
    this.entries = entries;
    const folders = this.#settings.value.modelFolders;
    if (!folders.includes(chosen.folder)) this.#settings.adopt({ ...this.#settings.value, modelFolders: [...folders, chosen.folder] });
  }

  /** The starter's head fits nothing else. */
  donorsFor(id: string): ModelEntry[] {
    return this.entries.filter((e) => e.id !== id && e.id !== STARTER && e.ownHead === true);
  }

  /** Lets the person choose the folder whose head is put on this model. */
  async chooseHead(id: string): Promise<void> {
    const chosen = await this.#ask(() => this.#backend.call("model_choose_folder", null));
    if (chosen) await this.setHead(id, chosen.folder);
  }

  /** null = the model's own. A model in memory is loaded again, because only a load takes the head up. */
  async setHead(id: string, head: string | null): Promise<void> {
    if (this.settingHead !== null || this.loading) return;
    this.headProblem = null;
    this.settingHead = id;
    try {
      this.entries = await this.#backend.call("model_set_head", { id, head });
    } catch (thrown) {
      this.headProblem = { id, error: toWireError(thrown) };
      return;
    } finally {
      this.settingHead = null;
    }
    if (this.loaded?.id === id) await this.load(id);
  }

  async #ask<T>(call: () => Promise<T>): Promise<T | null> {
    try {
      return await call();
    } catch (thrown) {
      this.#problems.report(thrown);
      return null;
    }
  }
}
