import type { ChatEvent, Message, WireError } from "../backend";
import { nextFrame } from "./frame";
import type { Live } from "./live.svelte";

/** A message as the page shows it. Replacing `message` re-renders this one and no other. */
export class Entry {
  readonly key: string;
  message = $state.raw<Message>() as Message;
  running = $state(false);
  /** Unix ms at which the thought began, while it runs. */
  thinkingSince = $state<number | null>(null);
  /** How long the thought took; known only for replies this window has seen. */
  thoughtMs = $state<number | null>(null);

  constructor(key: string, message: Message) {
    this.key = key;
    this.message = message;
  }
}

export interface ReplyHooks {
  accepted(user: Message | null, entry: Entry, title: string): void;
  /** The stream is over; `error` when it failed. */
  ended(error: WireError | null): void;
}

type Step = Extract<ChatEvent, { kind: "step" }>;

/** One running reply: takes its events in order and shows them once per frame. */
export class RunningReply {
  readonly chatId: number;
  entry = $state.raw<Entry | null>(null);
  stopping = $state(false);
  over = false;
  #live: Live;
  #hooks: ReplyHooks;
  #steps: Step[] = [];
  #cancelFrame: (() => void) | null = null;

  constructor(chatId: number, live: Live, hooks: ReplyHooks) {
    this.chatId = chatId;
    this.#live = live;
    this.#hooks = hooks;
  }

  take(event: ChatEvent): void {
    if (this.over) return;
    switch (event.kind) {
      case "accepted": {
        const entry = new Entry(`m${event.reply.id}`, event.reply);
        entry.running = true;
        this.entry = entry;
        this.#hooks.accepted(event.user, entry, event.title);
        return;
      }
      case "prefill":
        this.#live.prefill = { done: event.done, total: event.total, reused: event.reused };
        return;
      case "step":
        this.#steps.push(event);
        this.#cancelFrame ??= nextFrame(() => this.#flush());
        return;
      case "finished":
        this.#flush();
        if (this.entry) {
          this.entry.message = { ...this.entry.message, finish: event.reason, stats: event.stats };
        }
        this.#end(null, () => this.#live.end(event.live, event.stats));
        return;
      case "failed":
        this.fail(event.error);
    }
  }

  fail(error: WireError): void {
    if (this.over) return;
    this.#flush();
    if (this.entry) this.entry.message = { ...this.entry.message, finish: "failed" };
    this.#end(error, () => this.#live.end(null, null));
  }

  #end(error: WireError | null, settle: () => void): void {
    this.over = true;
    settle();
    if (this.entry) {
      this.#closeThought(this.entry);
      this.entry.running = false;
    }
    this.#hooks.ended(error);
  }

  #flush(): void {
    this.#cancelFrame?.();
    this.#cancelFrame = null;
    const steps = this.#steps;
    this.#steps = [];
    const newest = steps.at(-1);
    if (!newest) return;
    this.#live.step(newest.live, performance.now());
    const entry = this.entry;
    if (!entry) return;
    const text = steps.map((s) => s.text).join("");
    const thought = steps.map((s) => s.thought).join("");
    if (thought !== "" && entry.thinkingSince === null && entry.thoughtMs === null) entry.thinkingSince = Date.now();
    if (text !== "") this.#closeThought(entry);
    if (text === "" && thought === "") return;
    const message = entry.message;
    entry.message = {
      ...message,
      text: message.text + text,
      thought: thought === "" ? message.thought : (message.thought ?? "") + thought,
    };
  }

  #closeThought(entry: Entry): void {
    if (entry.thinkingSince === null) return;
    entry.thoughtMs = Date.now() - entry.thinkingSince;
    entry.thinkingSince = null;
  }
}
