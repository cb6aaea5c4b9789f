import type { Backend } from "./index";
import { FakeLibrary, type LibraryCommand, type LibraryPart } from "./fake_library";
import { FakeReply, type Clock, type ReplyPlan } from "./fake_reply";
import { SCENES } from "./fake_scenes";
import { NO_HEAD_MODEL, STARTER_MODEL, STEP_MODEL } from "./fake_texts";
import type { ChatEvent, Commands, LoadEvent, LoadedModel, Message, ModelEntry, Notice, Settings, ChatSummary, WireError } from "./types.gen";

export interface FakeSetup {
  /** In memory when the window starts. */
  model: LoadedModel | null;
  settings: Settings;
  notices: Notice[];
  chats: { summary: ChatSummary; messages: Message[] }[];
  entries: ModelEntry[];
  load: "succeeds" | "stays" | "fails" | "cancelled";
  /** What a load is answered with unless it is wanted anyway; null = it is tried. */
  loadRefusal: WireError | null;
  /** What choosing a head is answered with; null = it is taken. */
  headRefusal: WireError | null;
  library: LibraryPart;
  reply: ReplyPlan;
  platform: string;
  clock: Clock;
}

export type Handlers<Some extends keyof Commands> = {
  [K in Some]: (
    req: Commands[K]["req"],
    onEvent: (event: Commands[K]["event"]) => void,
  ) => Promise<Commands[K]["res"]> | Commands[K]["res"];
};

const MODELS = [STARTER_MODEL, STEP_MODEL, NO_HEAD_MODEL];

function problem(code: WireError["code"], message: string, detail = ""): WireError {
  return { code, message, detail };
}

/** A folder by its last part, a repository by its whole name. */
function calledBy(head: string | null): string | null {
  return head?.startsWith("/") ? (head.split("/").at(-1) ?? head) : head;
}

/** As the engine says it of a model with a head from elsewhere. */
function withHead(model: LoadedModel, head: string): LoadedModel {
  const sentence = `MTP head with 3 levels in mtp.safetensors, from ${head.split("/").pop()}.`;
  return { ...model, label: "4-bit · head bf16", report: { ...model.report, head: { found: true, levels: 3, sentence } } };
}

/** The app without its engine: chats in memory, replies by a script. */
export class FakeBackend implements Backend {
  /** Every call, newest last, for tests. */
  readonly calls: { cmd: string; req: unknown }[] = [];
  /** The next call of this command is rejected. */
  refuseNext = new Map<keyof Commands, WireError>();
  /** What the Dock and the system's notifications were told, for tests. */
  readonly progressShown: (number | null)[] = [];
  readonly notified: { title: string; body: string }[] = [];
  readonly library: FakeLibrary;
  readonly #setup: FakeSetup;
  #settings: Settings;
  #model: LoadedModel | null;
  #running: { chatId: number; reply: FakeReply } | null = null;
  #cancelLoad = false;
  #nextId = 1_000_000;
  #handlers: Handlers<keyof Commands>;

  constructor(setup: FakeSetup) {
    this.#setup = setup;
    this.#settings = setup.settings;
    this.#model = setup.model;
    this.library = new FakeLibrary(setup);
    this.#handlers = { ...this.library.handlers(), ...this.#makeHandlers() };
  }

  async call<K extends keyof Commands>(
    cmd: K,
    req: Commands[K]["req"],
    onEvent: (event: Commands[K]["event"]) => void = () => {},
  ): Promise<Commands[K]["res"]> {
    this.calls.push({ cmd, req });
    await Promise.resolve();
    const refusal = this.refuseNext.get(cmd);
    if (refusal) {
      this.refuseNext.delete(cmd);
      throw refusal;
    }
    // What crosses a real door is a copy.
    return structuredClone(await this.#handlers[cmd](req, (event) => onEvent(structuredClone(event))));
  }

  progress(fraction: number | null): void {
    this.progressShown.push(fraction);
  }

  notify(title: string, body: string): void {
    this.notified.push({ title, body });
  }

  #makeHandlers(): Handlers<Exclude<keyof Commands, LibraryCommand>> {
    const s = this.#setup;
    return {
      app_info: () => ({ version: "0.1.0", platform: s.platform, settings: this.#settings, notices: s.notices, model: this.#model }),
      settings_set: (settings) => (this.#settings = settings),
      models_list: () => s.entries,
      model_add_folder: ({ folder }) => {
        const name = folder.split("/").pop() ?? folder;
        s.entries = [...s.entries, { id: folder, name, source: "folder", folder, bytes: 8.2e9, problem: null, ownHead: true, missing: false, repository: null, head: null, headName: null }];
        return s.entries;
      },
      model_choose_folder: () => ({ folder: "/data/models/GLM-4.7-Flash" }),
      model_set_head: ({ id, head }) => {
        if (head !== null && s.headRefusal) throw s.headRefusal;
        return (s.entries = s.entries.map((e) => (e.id === id ? { ...e, head, headName: calledBy(head) } : e)));
      },
      model_load: ({ id, anyway }, onEvent) => {
        if (s.loadRefusal && !anyway) throw s.loadRefusal;
        return this.#load(id, onEvent);
      },
      model_cancel_load: () => {
        this.#cancelLoad = true;
        return null;
      },
      model_unload: () => {
        this.#model = null;
        return null;
      },
      chats_list: () => s.chats.map((c) => c.summary),
      chat_create: () => {
        const summary = { id: this.#nextId++, title: "", updatedMs: Date.now() };
        s.chats = [{ summary, messages: [] }, ...s.chats];
        return summary;
      },
      chat_open: ({ chatId }) => this.#chat(chatId),
      chat_rename: ({ chatId, title }) => (this.#chat(chatId).summary = { ...this.#chat(chatId).summary, title }),
      chat_delete: ({ chatId }) => {
        s.chats = s.chats.filter((c) => c.summary.id !== chatId);
        return null;
      },
      chats_search: ({ query }) => this.#search(query),
      chat_send: ({ chatId, text, options }, onEvent) => {
        const chat = this.#chat(chatId);
        const ready = this.#readyModel();
        this.#settings = { ...this.#settings, options };
        const user: Message = { ...this.#message("user"), text };
        chat.messages.push(user);
        if (chat.summary.title === "") chat.summary = { ...chat.summary, title: text.split(/\s+/).slice(0, 8).join(" ") };
        return this.#answer(chat, user, ready, onEvent);
      },
      chat_retry: ({ chatId, messageId, options }, onEvent) => {
        const chat = this.#chat(chatId);
        const ready = this.#readyModel();
        this.#settings = { ...this.#settings, options };
        chat.messages = chat.messages.slice(0, chat.messages.findIndex((m) => m.id === messageId));
        return this.#answer(chat, null, ready, onEvent);
      },
      chat_stop: ({ chatId }) => {
        if (this.#running?.chatId === chatId) this.#running.reply.stopRequested = true;
        return null;
      },
      options_set: (options) => {
        this.#settings = { ...this.#settings, options };
        return null;
      },
      open_link: () => null,
    };
  }

  #message(role: Message["role"]): Message {
    return { id: this.#nextId++, role, text: "", thought: null, createdMs: Date.now(), finish: null, stats: null, model: null };
  }

  #chat(chatId: number) {
    const chat = this.#setup.chats.find((c) => c.summary.id === chatId);
    if (!chat) throw problem("not_found", "This chat does not exist any more. Start a new one.");
    return chat;
  }

  #readyModel(): LoadedModel {
    if (!this.#model) throw problem("no_model", "No model is loaded. Choose a model, then send again.");
    if (this.#running) throw problem("busy", "Another reply is being written. Stop it, or wait for its end.");
    return this.#model;
  }

  #answer(chat: { summary: ChatSummary; messages: Message[] }, user: Message | null, model: LoadedModel, onEvent: (event: ChatEvent) => void): null {
    const message: Message = { ...this.#message("assistant"), model: model.name };
    chat.messages.push(message);
    chat.summary = { ...chat.summary, updatedMs: Date.now() };
    const plan = { ...this.#setup.reply, thought: model.thinks ? this.#setup.reply.thought : null };
    const reply = new FakeReply(model, plan, () => this.#settings.options.draft, onEvent);
    this.#running = { chatId: chat.summary.id, reply };
    onEvent({ kind: "accepted", user, reply: message, title: chat.summary.title });
    void reply.run(message, this.#setup.clock).finally(() => (this.#running = null));
    return null;
  }

  #search(query: string) {
    const wanted = query.toLowerCase();
    return this.#setup.chats.flatMap(({ summary, messages }) => {
      const text = [summary.title, ...messages.map((m) => m.text)].find((t) => t.toLowerCase().includes(wanted));
      if (text === undefined) return [];
      const at = text.toLowerCase().indexOf(wanted);
      const end = at + wanted.length;
      const excerpt = `${text.slice(Math.max(0, at - 30), at)}\u0002${text.slice(at, end)}\u0003${text.slice(end, end + 50)}`;
      return [{ chatId: summary.id, title: summary.title, excerpt }];
    });
  }

  async #load(id: string, onEvent: (event: LoadEvent) => void): Promise<null> {
    const { clock, load } = this.#setup;
    const plain = MODELS.find((m) => m.id === id) ?? { ...STEP_MODEL, id };
    const head = this.#setup.entries.find((e) => e.id === id)?.head;
    const model = head ? withHead(plain, head) : plain;
    const total = model.report.memory.weights;
    this.#cancelLoad = false;
    this.#model = null;
    for (let part = 0; part <= 20; part++) {
      if (this.#cancelLoad || load === "cancelled") {
        onEvent({ kind: "cancelled" });
        return null;
      }
      onEvent({ kind: "progress", done: (total * part) / 20, total, what: part < 18 ? "Reading the trunk" : "Reading the MTP head" });
      if (load === "fails" && part === 6) {
        const detail = "missing tensor model.layers.12.mlp.gate.weight in model-00013-of-00046.safetensors";
        onEvent({ kind: "failed", error: problem("missing_tensor", "This checkpoint is incomplete: one weight of the trunk is missing. Download it again.", detail) });
        return null;
      }
      if (load === "stays" && part === 8) while (!this.#cancelLoad) await clock.wait(100);
      await clock.wait(30);
    }
    this.#model = model;
    onEvent({ kind: "ready", model });
    return null;
  }
}

/** `?state=NAME` shows one of the designed states, `?theme=dark|light` forces the theme, `?pace=8` plays faster. */
export function fakeFromUrl(url: URL): FakeBackend {
  const name = url.searchParams.get("state") ?? "default";
  const theme = url.searchParams.get("theme");
  const setup = (SCENES[name] ?? SCENES.default!).setup();
  if (theme === "dark" || theme === "light") setup.settings = { ...setup.settings, theme };
  const pace = Number(url.searchParams.get("pace"));
  if (pace > 0) {
    const { clock } = setup;
    setup.clock = { wait: (ms) => clock.wait(ms / pace) };
  }
  const platform = url.searchParams.get("platform");
  if (platform) setup.platform = platform;
  return new FakeBackend(setup);
}
