import type { Drafting, GenerationOptions, LiveStats, LoadedModel, PhaseMs, ReplyStats } from "../backend";

export const HISTORY_MS = 30_000;
const SAMPLE_MS = 100;
/** What a person can do about a model without a head. */
export const HEAD_STEP = "Choose a head for it under Models.";
/** Shortest time a sentence stays: the depth may change with every cycle, and nobody reads sixty sentences a second. */
const SENTENCE_MS = 500;

export interface Sample {
  at: number;
  tokS: number;
}

export interface Prefill {
  done: number;
  total: number;
  reused: number;
}

/** The numbers of one reply, whether it runs now or was read from the chat. */
export interface Numbers {
  nowTokS: number | null;
  replyTokS: number | null;
  prefillTokS: number | null;
  ttftMs: number | null;
  acceptRate: number | null;
  /** By draft position; null where nothing was drafted. */
  byDepth: (number | null)[];
  tokensPerCycle: number | null;
  breakEven: number | null;
  /** Mean per cycle. */
  phaseMs: PhaseMs | null;
}

const NO_NUMBERS: Numbers = {
  nowTokS: null,
  replyTokS: null,
  prefillTokS: null,
  ttftMs: null,
  acceptRate: null,
  byDepth: [],
  tokensPerCycle: null,
  breakEven: null,
  phaseMs: null,
};

export class Live {
  stats = $state.raw<LiveStats | null>(null);
  stored = $state.raw<ReplyStats | null>(null);
  /** What the panel says about drafting: the newest, or one from a moment ago. */
  drafting = $state.raw<Drafting | null>(null);
  prefill = $state.raw<Prefill | null>(null);
  running = $state(false);
  history = $state.raw<Sample[]>([]);
  /** The options were changed after the newest sentence, which therefore may not be true any more. */
  sentenceStale = $state(false);
  #draftingSince = -Infinity;

  begin(): void {
    this.stats = null;
    this.drafting = null;
    this.stored = null;
    this.prefill = null;
    this.running = true;
  }

  step(stats: LiveStats, at: number): void {
    this.stats = stats;
    this.prefill = null;
    this.sentenceStale = false;
    this.#say(stats.drafting, at);
    const newest = this.history.at(-1);
    // Steps come faster than the picture is fine: the newest sample stands for all of its tenth of a second.
    const kept = newest && at - newest.at < SAMPLE_MS ? this.history.slice(0, -1) : this.history;
    const sampleAt = kept === this.history ? at : newest!.at;
    this.history = [...kept.filter((s) => at - s.at <= HISTORY_MS), { at: sampleAt, tokS: stats.nowTokS }];
  }

  /** What the person switched is said at once. */
  #say(drafting: Drafting, at: number): void {
    const shown = this.drafting;
    const switched = shown === null || (shown.state === "off") !== (drafting.state === "off");
    if (!switched && at - this.#draftingSince < SENTENCE_MS) return;
    if (shown?.sentence !== drafting.sentence) this.#draftingSince = at;
    this.drafting = drafting;
  }

  end(stats: LiveStats | null, reply: ReplyStats | null): void {
    if (stats) {
      this.stats = stats;
      this.drafting = stats.drafting;
    }
    this.stored = reply;
    this.prefill = null;
    this.running = false;
  }

  optionsChanged(): void {
    if (!this.running) this.sentenceStale = true;
  }

  /** The numbers of the newest reply of a chat that was opened. */
  showStored(stats: ReplyStats | null): void {
    if (this.running) return;
    this.stats = null;
    this.drafting = null;
    this.stored = stats;
    this.history = [];
  }

  get numbers(): Numbers {
    if (this.stats) return fromLive(this.stats, this.running);
    if (this.stored) return fromStored(this.stored);
    return NO_NUMBERS;
  }

  get contextFill(): number | null {
    return this.stats && this.stats.contextSize > 0 ? this.stats.contextUsed / this.stats.contextSize : null;
  }

  /** The engine's own sentence while it is true; between replies what the next one will do. */
  draftingLine(model: LoadedModel | null, options: GenerationOptions): string {
    if (!model) return "Waiting for a model.";
    if (!model.report.head.found) return `${model.report.head.sentence} ${HEAD_STEP}`;
    if (this.drafting && !this.sentenceStale) return this.drafting.sentence;
    if (options.draft.kind === "off") return "Drafting off.";
    if (options.draft.kind === "auto") return "Drafting on, depth chosen while it runs.";
    return `Drafting on, depth ${options.draft.depth}.`;
  }
}

function fromLive(live: LiveStats, running: boolean): Numbers {
  // One token has no speed yet.
  const decoding = live.tokens > 1;
  return {
    nowTokS: running && decoding ? live.nowTokS : null,
    replyTokS: decoding ? live.decodeTokS : null,
    prefillTokS: live.prefillTokS,
    ttftMs: live.ttftMs,
    acceptRate: live.acceptRate,
    byDepth: live.byDepth.map((d) => (d.drafted > 0 ? d.accepted / d.drafted : null)),
    tokensPerCycle: live.cycles > 0 ? live.tokensPerCycle : null,
    breakEven: live.breakEven,
    phaseMs: live.cycles > 0 ? live.phaseMs : null,
  };
}

function fromStored(reply: ReplyStats): Numbers {
  const perCycle = (sum: number) => sum / Math.max(reply.cycles, 1);
  return {
    nowTokS: null,
    replyTokS: reply.decode_tok_s,
    prefillTokS: reply.prefill_tok_s,
    ttftMs: reply.ttft_ms,
    acceptRate: reply.accept_rate,
    byDepth: reply.drafted.map((n, i) => (n > 0 ? (reply.accepted[i] ?? 0) / n : null)),
    tokensPerCycle: reply.cycles > 0 ? reply.tokens_per_cycle : null,
    breakEven: null,
    phaseMs:
      reply.cycles > 0
        ? {
            draft: perCycle(reply.phase_ms.draft),
            verify: perCycle(reply.phase_ms.verify),
            sample: perCycle(reply.phase_ms.sample),
            other: perCycle(reply.phase_ms.other),
          }
        : null,
  };
}
