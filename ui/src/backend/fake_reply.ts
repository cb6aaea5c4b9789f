import { emptyLive, emptyReplyStats } from "./fake_texts";
import type { ChatEvent, DraftMode, FinishReason, LiveStats, LoadedModel, Message, ReplyStats, WireError } from "./types.gen";

export interface ReplyPlan {
  answer: string;
  thought: string | null;
  promptTokens: number;
  reusedTokens: number;
  /** Prefill stays at this many tokens. */
  holdPrefillAt: number | null;
  /** Decoding stays after this many cycles. */
  holdAtCycle: number | null;
  failAtCycle: number | null;
  error: WireError | null;
  contextBefore: number;
  /** Auto finds that drafting does not pay. */
  drafting: "pays" | "loses";
}

export interface Clock {
  wait(ms: number): Promise<void>;
}

const TRUNK_MS = 34.2;
const ROW_MS = 1.1;
const DRAFT_MS = 2.55;
const SAMPLE_MS = 1.6;
const OTHER_MS = 2.9;
const KEEP_RATES = [0.84, 0.74, 0.66, 0.6, 0.55, 0.5, 0.46, 0.42];
const RECENT_CYCLES = 24;

function tokensOf(text: string): string[] {
  return text.match(/\s*\S{1,5}|\s+/g) ?? [];
}

/** The same numbers in every run, so that pictures of two builds can be compared. */
function seededRandom(seed: number): () => number {
  let state = seed;
  return () => {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    return state / 4294967296;
  };
}

/** A stand-in for the engine: reads a prompt, then writes a given text in cycles of draft and verify. */
export class FakeReply {
  stopRequested = false;
  #model: LoadedModel;
  #plan: ReplyPlan;
  #draftMode: () => DraftMode;
  #emit: (event: ChatEvent) => void;
  #random = seededRandom(7);
  #live: LiveStats;
  #drafted: number[] = [];
  #accepted: number[] = [];
  #sums = { draft: 0, verify: 0, sample: 0, other: 0 };
  #recent: { tokens: number; ms: number }[] = [];

  constructor(model: LoadedModel, plan: ReplyPlan, draftMode: () => DraftMode, emit: (event: ChatEvent) => void) {
    this.#model = model;
    this.#plan = plan;
    this.#draftMode = draftMode;
    this.#emit = emit;
    this.#live = { ...emptyLive(model), prefillTokS: 512, ttftMs: 812, contextUsed: plan.contextBefore + plan.promptTokens };
  }

  async run(message: Message, clock: Clock): Promise<void> {
    await this.#prefill(clock);
    const thought = tokensOf(this.#plan.thought ?? "");
    const answer = tokensOf(this.#plan.answer);
    while (!this.stopRequested && thought.length + answer.length > 0) {
      if (this.#plan.failAtCycle === this.#live.cycles && this.#plan.error) {
        message.finish = "failed";
        this.#emit({ kind: "failed", error: this.#plan.error });
        return;
      }
      if (this.#live.contextUsed >= this.#live.contextSize) return this.#finish(message, "context_full");
      const { tokens, ms } = this.#cycle();
      const step = { thought: "", text: "" };
      for (let i = 0; i < tokens; i++) {
        if (thought.length > 0) step.thought += thought.shift();
        else step.text += answer.shift() ?? "";
      }
      message.text += step.text;
      if (step.thought !== "") message.thought = (message.thought ?? "") + step.thought;
      this.#emit({ kind: "step", ...step, live: this.#live });
      if (this.#plan.holdAtCycle !== null && this.#live.cycles >= this.#plan.holdAtCycle) await this.#untilStopped(clock);
      await clock.wait(ms);
    }
    this.#finish(message, this.stopRequested ? "stopped" : "stop");
  }

  async #prefill(clock: Clock): Promise<void> {
    const { promptTokens: total, reusedTokens: reused, holdPrefillAt } = this.#plan;
    for (let done = reused; done < total; done += 520) {
      this.#emit({ kind: "prefill", done, total, reused });
      if (holdPrefillAt !== null && done >= holdPrefillAt) await this.#untilStopped(clock);
      if (this.stopRequested) return;
      await clock.wait(120);
    }
    this.#emit({ kind: "prefill", done: total, total, reused });
  }

  async #untilStopped(clock: Clock): Promise<void> {
    while (!this.stopRequested) await clock.wait(100);
  }

  #depth(): number {
    const mode = this.#draftMode();
    if (!this.#model.report.head.found || mode.kind === "off") return 0;
    if (mode.kind === "fixed") return mode.depth;
    return this.#plan.drafting === "loses" ? 0 : Math.min(2, this.#model.report.head.levels);
  }

  #cycle(): { tokens: number; ms: number } {
    const depth = this.#depth();
    let kept = 0;
    for (let i = 0; i < depth; i++) {
      this.#drafted[i] = (this.#drafted[i] ?? 0) + 1;
      if (this.#random() > (KEEP_RATES[i] ?? 0.4)) break;
      this.#accepted[i] = (this.#accepted[i] ?? 0) + 1;
      kept++;
    }
    const tokens = kept + 1;
    const cost = { draft: depth * DRAFT_MS, verify: TRUNK_MS + depth * ROW_MS, sample: SAMPLE_MS, other: OTHER_MS };
    const ms = cost.draft + cost.verify + cost.sample + cost.other;
    this.#sums.draft += cost.draft;
    this.#sums.verify += cost.verify;
    this.#sums.sample += cost.sample;
    this.#sums.other += cost.other;
    this.#recent = [...this.#recent, { tokens, ms }].slice(-RECENT_CYCLES);
    this.#live = this.#numbersAfter(depth, tokens);
    return { tokens, ms };
  }

  #numbersAfter(depth: number, tokens: number): LiveStats {
    const before = this.#live;
    const cycles = before.cycles + 1;
    const total = before.tokens + tokens;
    const sumMs = Object.values(this.#sums).reduce((a, b) => a + b, 0);
    const recentMs = this.#recent.reduce((a, r) => a + r.ms, 0);
    const drafted = this.#drafted.reduce((a, b) => a + b, 0);
    const accepted = this.#accepted.reduce((a, b) => a + b, 0);
    const contextUsed = before.contextUsed + tokens;
    const rate = drafted > 0 ? accepted / drafted : null;
    return {
      ...before,
      cycles,
      tokens: total,
      nowTokS: (this.#recent.reduce((a, r) => a + r.tokens, 0) / recentMs) * 1000,
      decodeTokS: (total / sumMs) * 1000,
      byDepth: this.#drafted.map((n, i) => ({ drafted: n, accepted: this.#accepted[i] ?? 0 })),
      acceptRate: rate,
      acceptRateRecent: rate,
      tokensPerCycle: total / cycles,
      breakEven: this.#plan.drafting === "loses" ? 0.71 : depth > 0 ? (DRAFT_MS + ROW_MS) / TRUNK_MS + 0.12 : null,
      phaseMs: {
        draft: this.#sums.draft / cycles,
        verify: this.#sums.verify / cycles,
        sample: this.#sums.sample / cycles,
        other: this.#sums.other / cycles,
      },
      drafting: this.#drafting(depth),
      contextUsed,
      kvBytes: contextUsed * this.#model.report.memory.kvPerToken,
    };
  }

  #drafting(depth: number): LiveStats["drafting"] {
    const mode = this.#draftMode();
    const head = this.#model.report.head;
    if (!head.found) return { state: "no_head", depth: 0, speedup: null, sentence: head.sentence };
    if (mode.kind === "off") return { state: "off", depth: 0, speedup: null, sentence: "Drafting off: one token per pass." };
    if (depth === 0) {
      const sentence = "Drafting paused: a draft costs 4.1 ms and saves 2.9 ms here. Trying again in 128 tokens.";
      return { state: "paused", depth: 0, speedup: 0.94, sentence };
    }
    const speedup = 1 + 0.3 * Math.min(depth, 3) ** 0.8;
    return { state: "on", depth, speedup, sentence: `Drafting on, depth ${depth}: ${speedup.toFixed(1)}x faster than without.` };
  }

  #finish(message: Message, reason: FinishReason): void {
    const live = this.#live;
    const stats: ReplyStats = {
      ...emptyReplyStats(),
      prompt_tokens: this.#plan.promptTokens,
      reused_tokens: this.#plan.reusedTokens,
      generated_tokens: live.tokens,
      ttft_ms: live.ttftMs,
      prefill_tok_s: live.prefillTokS,
      decode_tok_s: live.decodeTokS,
      cycles: live.cycles,
      drafted: [...this.#drafted],
      accepted: this.#drafted.map((_, i) => this.#accepted[i] ?? 0),
      accept_rate: live.acceptRate,
      tokens_per_cycle: live.tokensPerCycle,
      depth: live.drafting.depth,
      phase_ms: { ...this.#sums },
    };
    message.finish = reason;
    message.stats = stats;
    this.#emit({ kind: "finished", reason, stats, live: live.tokens > 0 ? live : null });
  }
}
