import type { FakeSetup } from "./fake";
import { libraryPart } from "./fake_library";
import { ANSWER, ENTRIES, firstChats, STEP_MODEL, THOUGHT } from "./fake_texts";
import type { Settings } from "./types.gen";

/** What the window does by itself, so that a state can be looked at without hands. */
export interface Act {
  open?: number;
  send?: string;
  type?: string;
  search?: string;
  stopAfterMs?: number;
  view?: "models" | "settings";
  /** Looks for this among the models. */
  find?: string;
  /** Opens the page of an offer or of a model on the disk, by its id, or of a repository, by its name. */
  page?: string;
  /** Presses the buttons that say so, one after the other. */
  press?: string[];
}

export interface Scene {
  setup: () => FakeSetup;
  act: Act;
}

const realClock = { wait: (ms: number) => new Promise<void>((done) => setTimeout(done, ms)) };

const SETTINGS: Settings = {
  theme: "system",
  options: {
    draft: { kind: "auto" },
    rule: "residual",
    sampling: { temperature: null, topP: null, topK: null, minP: null, repetitionPenalty: null, presencePenalty: null, frequencyPenalty: null, seed: null },
    maxTokens: null,
    systemPrompt: null,
  },
  modelFolders: ["/data/models"],
  modelHeads: {},
  lastModel: STEP_MODEL.id,
  hubEndpoint: null,
  hubProxy: null,
  downloadLimit: null,
  sidebarOpen: true,
  livePanelOpen: true,
};

export function plainSetup(): FakeSetup {
  return {
    model: STEP_MODEL,
    settings: structuredClone(SETTINGS),
    notices: [],
    chats: firstChats(Date.now()),
    entries: structuredClone(ENTRIES),
    load: "succeeds",
    loadRefusal: null,
    headRefusal: null,
    library: libraryPart(),
    reply: {
      answer: ANSWER,
      thought: THOUGHT,
      promptTokens: 412,
      reusedTokens: 380,
      holdPrefillAt: null,
      holdAtCycle: null,
      failAtCycle: null,
      error: null,
      contextBefore: 3600,
      drafting: "pays",
    },
    platform: "linux",
    clock: realClock,
  };
}

export function scene(act: Act, change: (setup: FakeSetup) => void = () => {}): Scene {
  return {
    act,
    setup: () => {
      const setup = plainSetup();
      change(setup);
      return setup;
    },
  };
}
