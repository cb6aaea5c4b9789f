import { toWireError, type Backend, type DraftMode, type GenerationOptions, type Sampling, type Settings, type Theme, type WireError } from "../backend";
import type { Problems } from "./problems.svelte";

const NO_SAMPLING: Sampling = {
  temperature: null,
  topP: null,
  topK: null,
  minP: null,
  repetitionPenalty: null,
  presencePenalty: null,
  frequencyPenalty: null,
  seed: null,
};

export const FIRST_SETTINGS: Settings = {
  theme: "system",
  options: { draft: { kind: "auto" }, rule: "residual", sampling: NO_SAMPLING, maxTokens: null, systemPrompt: null },
  modelFolders: [],
  modelHeads: {},
  lastModel: null,
  hubEndpoint: null,
  hubProxy: null,
  downloadLimit: null,
  sidebarOpen: true,
  livePanelOpen: true,
};

export class SettingsStore {
  value = $state.raw<Settings>(FIRST_SETTINGS);
  /** Called after the options were changed by the person. */
  onOptions: () => void = () => {};
  #backend: Backend;
  #problems: Problems;
  #lastDraft: DraftMode = { kind: "auto" };
  /** One write after the other, so that the newest is the one that stays. */
  #writing: Promise<unknown> = Promise.resolve();

  constructor(backend: Backend, problems: Problems) {
    this.#backend = backend;
    this.#problems = problems;
  }

  get options(): GenerationOptions {
    return this.value.options;
  }

  adopt(settings: Settings): void {
    this.value = settings;
    if (settings.options.draft.kind !== "off") this.#lastDraft = settings.options.draft;
  }

  change(part: Partial<Omit<Settings, "options">>): Promise<void> {
    this.value = { ...this.value, ...part };
    return this.#write(() => this.#backend.call("settings_set", this.value));
  }

  /** For what the door may refuse: then all stays as it was, and the reason is answered. */
  async propose(part: Partial<Omit<Settings, "options">>): Promise<WireError | null> {
    let refusal: WireError | null = null;
    await this.#write(async () => {
      try {
        const taken = await this.#backend.call("settings_set", { ...this.value, ...part });
        // Only what was proposed: the rest may have been changed meanwhile.
        const own = Object.fromEntries(Object.keys(part).map((key) => [key, taken[key as keyof Settings]]));
        this.value = { ...this.value, ...own };
      } catch (thrown) {
        refusal = toWireError(thrown);
      }
    });
    return refusal;
  }

  /** Sent at once: the engine takes it up between two cycles of a running reply. */
  setOptions(part: Partial<GenerationOptions>): Promise<void> {
    const options = { ...this.value.options, ...part };
    this.adopt({ ...this.value, options });
    this.onOptions();
    return this.#write(() => this.#backend.call("options_set", options));
  }

  setSampling(part: Partial<Sampling>): Promise<void> {
    return this.setOptions({ sampling: { ...this.options.sampling, ...part } });
  }

  resetSampling(): Promise<void> {
    return this.setOptions({ sampling: NO_SAMPLING, maxTokens: null, systemPrompt: null });
  }

  get usesRecommended(): boolean {
    const { sampling, maxTokens, systemPrompt } = this.options;
    return Object.values(sampling).every((v) => v === null) && maxTokens === null && systemPrompt === null;
  }

  /** Switching on again brings back the depth chosen before. */
  setDrafting(on: boolean): Promise<void> {
    return this.setOptions({ draft: on ? this.#lastDraft : { kind: "off" } });
  }

  /** What the depth control shows; kept while drafting is off. */
  get depthChoice(): string {
    const draft = this.options.draft.kind === "off" ? this.#lastDraft : this.options.draft;
    return draft.kind === "fixed" ? String(draft.depth) : "auto";
  }

  /** Choosing a depth also switches drafting on. */
  setDepth(choice: string): Promise<void> {
    const depth = Number(choice);
    return this.setOptions({ draft: choice === "auto" ? { kind: "auto" } : { kind: "fixed", depth } });
  }

  #write(call: () => Promise<unknown>): Promise<void> {
    const done = this.#writing.then(call).then(
      () => {},
      (thrown) => this.#problems.report(thrown),
    );
    this.#writing = done;
    return done;
  }
}

export function resolveTheme(theme: Theme, systemDark: boolean): "light" | "dark" {
  if (theme !== "system") return theme;
  return systemDark ? "dark" : "light";
}
