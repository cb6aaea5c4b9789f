import { vi } from "vitest";
import { FakeBackend, type FakeSetup } from "../src/backend/fake";
import { plainSetup } from "../src/backend/fake_setup";
import type { ChatEvent, LiveStats, Message, ReplyStats } from "../src/backend";
import { emptyLive, emptyReplyStats, STEP_MODEL } from "../src/backend/fake_texts";
import { Stores } from "../src/state";

/** Generous, because the machine may build something else meanwhile; nothing waits longer than it has to. */
export const PATIENCE_MS = 45_000;

export const eventually = (holds: () => void) => vi.waitFor(holds, { timeout: PATIENCE_MS, interval: 10 });

/** No waiting, but every step in its own task, as events from a real engine come. */
export const quickClock = { wait: () => new Promise<void>((done) => setTimeout(done, 0)) };

export function fake(change: (setup: FakeSetup) => void = () => {}): FakeBackend {
  const setup = plainSetup();
  setup.clock = quickClock;
  change(setup);
  return new FakeBackend(setup);
}

export async function started(change: (setup: FakeSetup) => void = () => {}): Promise<{ backend: FakeBackend; stores: Stores }> {
  const backend = fake(change);
  const stores = new Stores(backend);
  await stores.start();
  return { backend, stores };
}

export function message(part: Partial<Message> = {}): Message {
  return { id: 2, role: "assistant", text: "", thought: null, createdMs: 0, finish: null, stats: null, model: null, ...part };
}

export function live(part: Partial<LiveStats> = {}): LiveStats {
  return { ...emptyLive(STEP_MODEL), ...part };
}

export function step(text: string, thought = "", part: Partial<LiveStats> = {}): ChatEvent {
  return { kind: "step", text, thought, live: live(part) };
}

export function replyStats(part: Partial<ReplyStats> = {}): ReplyStats {
  return { ...emptyReplyStats(), ...part };
}

export const failure = { code: "internal" as const, message: "It broke. Try again.", detail: "cause" };
