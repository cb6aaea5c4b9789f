import { toWireError, type Backend, type ChatEvent, type Message, type WireError } from "../backend";
import type { Chats } from "./chats.svelte";
import type { Live } from "./live.svelte";
import type { Models } from "./models.svelte";
import type { Problems } from "./problems.svelte";
import { Entry, RunningReply } from "./reply.svelte";
import type { SettingsStore } from "./settings.svelte";

/** Where the text of a chat that does not exist yet is kept. */
const UNBORN = 0;

export interface Stores {
  backend: Backend;
  problems: Problems;
  settings: SettingsStore;
  models: Models;
  chats: Chats;
  live: Live;
}

/** The open chat, the one reply that may run (in this chat or another), and what is being typed. */
export class Conversation {
  /** null = a new chat, created when its first message is sent. */
  chatId = $state<number | null>(null);
  entries = $state.raw<Entry[]>([]);
  run = $state.raw<RunningReply | null>(null);
  /** Sent while the model was still loading. */
  waiting = $state.raw<{ chatId: number | null; text: string } | null>(null);
  draft = $state("");
  opening = $state(false);
  /** For the screen reader: the start and the end of a reply. */
  announcement = $state("");
  #s: Stores;
  #drafts = new Map<number, string>();
  /** Replies this window has seen run, which know more than what is stored. */
  #seen = new Map<number, Entry>();
  #visit = 0;
  #sendCount = 0;

  constructor(stores: Stores) {
    this.#s = stores;
  }

  get busy(): boolean {
    return this.run !== null;
  }

  get runsHere(): boolean {
    return this.run !== null && this.run.chatId === this.chatId;
  }

  get empty(): boolean {
    return this.entries.length === 0 && this.waiting === null;
  }

  newChat(): void {
    this.#leave(null);
    this.entries = [];
    this.opening = false;
    this.#s.live.showStored(null);
  }

  async open(chatId: number): Promise<void> {
    if (chatId === this.chatId) return;
    const visit = this.#leave(chatId);
    this.entries = [];
    this.opening = true;
    try {
      const chat = await this.#s.backend.call("chat_open", { chatId });
      if (visit !== this.#visit) return;
      this.entries = chat.messages.filter((m) => m.role !== "system").map((m) => this.#entryOf(m));
      const last = this.entries.findLast((e) => e.message.stats !== null);
      this.#s.live.showStored(last?.message.stats ?? null);
    } catch (thrown) {
      if (visit !== this.#visit) return;
      this.#s.problems.report(thrown);
      this.newChat();
    } finally {
      if (visit === this.#visit) this.opening = false;
    }
  }

  async remove(chatId: number): Promise<void> {
    if (this.run?.chatId === chatId) await this.stop();
    if (!(await this.#s.chats.remove(chatId))) return;
    this.#drafts.delete(chatId);
    if (this.chatId === chatId) this.newChat();
  }

  /** Sends what is typed, or keeps it until the model is there. */
  async send(): Promise<void> {
    const text = this.draft.trim();
    if (text === "" || this.busy || this.waiting) return;
    const { models } = this.#s;
    if (models.loaded) {
      this.draft = "";
      await this.#dispatch(this.chatId, text);
    } else if (models.loading) {
      this.draft = "";
      this.waiting = { chatId: this.chatId, text };
    } else {
      this.#s.problems.report({ code: "no_model", message: "No model is loaded. Choose a model, then send again.", detail: "" });
    }
  }

  /** The load of the model ended. */
  modelSettled(ready: boolean): void {
    const waiting = this.waiting;
    if (!waiting) return;
    this.waiting = null;
    if (ready) void this.#dispatch(waiting.chatId, waiting.text);
    else this.#giveBack(waiting.chatId, waiting.text);
  }

  takeBack(): void {
    if (!this.waiting) return;
    const { chatId, text } = this.waiting;
    this.waiting = null;
    this.#giveBack(chatId, text);
  }

  async stop(): Promise<void> {
    const run = this.run;
    if (!run) return this.takeBack();
    run.stopping = true;
    try {
      await this.#s.backend.call("chat_stop", { chatId: run.chatId });
    } catch (thrown) {
      run.stopping = false;
      this.#s.problems.report(thrown);
    }
  }

  /** Answers again; the reply and all after it leave only once the engine has taken the request. */
  async retry(messageId: number): Promise<void> {
    const chatId = this.chatId;
    if (this.busy || chatId === null) return;
    const run = this.#begin(chatId, {
      accepted: (entry) => {
        if (this.chatId !== chatId) return;
        const from = this.entries.findIndex((e) => e.message.id === messageId);
        this.entries = [...(from < 0 ? this.entries : this.entries.slice(0, from)), entry];
      },
      refused: () => {},
    });
    await this.#follow(run, (onEvent) =>
      this.#s.backend.call("chat_retry", { chatId, messageId, options: this.#s.settings.options }, onEvent),
    );
  }

  async #dispatch(chatId: number | null, text: string): Promise<void> {
    let id: number;
    try {
      id = chatId ?? (await this.#create());
    } catch (thrown) {
      this.#giveBack(chatId, text);
      this.#s.problems.report(thrown);
      return;
    }
    const shown = new Entry(`sent${++this.#sendCount}`, userMessage(text));
    if (this.chatId === id) this.entries = [...this.entries, shown];
    const run = this.#begin(id, {
      accepted: (entry, user) => {
        if (user) shown.message = user;
        if (this.chatId !== id) return;
        const known = this.entries.includes(shown) ? this.entries : [...this.entries, shown];
        this.entries = [...known.filter((e) => e !== shown && e.message.id !== entry.message.id), shown, entry];
      },
      refused: () => {
        this.entries = this.entries.filter((e) => e !== shown);
        this.#giveBack(id, text);
      },
    });
    await this.#follow(run, (onEvent) =>
      this.#s.backend.call("chat_send", { chatId: id, text, options: this.#s.settings.options }, onEvent),
    );
  }

  #begin(
    chatId: number,
    on: { accepted: (entry: Entry, user: Message | null) => void; refused: () => void },
  ): RunningReply {
    this.#s.live.begin();
    const run = new RunningReply(chatId, this.#s.live, {
      accepted: (user, entry, title) => {
        this.#seen.set(entry.message.id, entry);
        on.accepted(entry, user);
        this.#s.chats.touch(chatId, title, Date.now());
        this.announcement = "Reply started.";
      },
      ended: (error) => {
        this.run = null;
        if (!error) {
          this.announcement = "Reply finished.";
          return;
        }
        this.announcement = "Reply failed.";
        if (!run.entry) on.refused();
        this.#s.problems.report(error);
      },
    });
    this.run = run;
    return run;
  }

  async #follow(run: RunningReply, call: (onEvent: (event: ChatEvent) => void) => Promise<unknown>): Promise<void> {
    try {
      await call((event) => run.take(event));
    } catch (thrown) {
      run.fail(toWireError(thrown) satisfies WireError);
    }
  }

  async #create(): Promise<number> {
    const visit = this.#visit;
    const summary = await this.#s.backend.call("chat_create", null);
    this.#s.chats.touch(summary.id, summary.title, summary.updatedMs);
    if (visit === this.#visit && this.chatId === null) this.chatId = summary.id;
    return summary.id;
  }

  /** Text that could not be sent goes back to where it was typed, before what was typed since. */
  #giveBack(chatId: number | null, text: string): void {
    const join = (since: string) => (since.trim() === "" ? text : `${text}\n\n${since}`);
    if (this.chatId === chatId) this.draft = join(this.draft);
    else this.#drafts.set(chatId ?? UNBORN, join(this.#drafts.get(chatId ?? UNBORN) ?? ""));
  }

  #leave(next: number | null): number {
    this.#drafts.set(this.chatId ?? UNBORN, this.draft);
    this.chatId = next;
    this.draft = this.#drafts.get(next ?? UNBORN) ?? "";
    return ++this.#visit;
  }

  #entryOf(message: Message): Entry {
    const seen = this.#seen.get(message.id);
    if (!seen) return new Entry(`m${message.id}`, message);
    if (!seen.running && message.finish !== null) seen.message = message;
    return seen;
  }
}

function userMessage(text: string): Message {
  return { id: -1, role: "user", text, thought: null, createdMs: Date.now(), finish: null, stats: null, model: null };
}
