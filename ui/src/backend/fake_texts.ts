import type { ChatSummary, LiveStats, LoadedModel, Message, ModelEntry, ReplyStats, Sampling } from "./types.gen";

const GIB = 1024 ** 3;
const MIB = 1024 ** 2;

const RECOMMENDED: Sampling = {
  temperature: 0.6,
  topP: 0.95,
  topK: 20,
  minP: null,
  repetitionPenalty: null,
  presencePenalty: null,
  frequencyPenalty: null,
  seed: null,
};

export const STEP_MODEL: LoadedModel = {
  id: "stepfun-ai/Step-3.5-Flash",
  name: "Step 3.5 Flash",
  label: "4-bit · head 8-bit",
  report: {
    name: "Step 3.5 Flash",
    folder: "/models/Step-3.5-Flash",
    family: "step3p5",
    layers: 45,
    parameters: 196_000_000_000,
    headParameters: 4_900_000_000,
    contextSize: 32768,
    vocabSize: 128896,
    quantisation: [
      { kind: "experts", storage: "4-bit g64", modules: 126, bytes: 96 * GIB },
      { kind: "attention", storage: "8-bit g64", modules: 180, bytes: 7 * GIB },
    ],
    head: { found: true, levels: 3, sentence: "MTP head with 3 levels, found in model-00044-of-00046.safetensors." },
    memory: {
      weights: 103 * GIB,
      head: 4.9 * GIB,
      kvPerToken: 98304,
      kvAtContext: 3 * GIB,
      context: 32768,
      needed: 112 * GIB,
      available: 121 * GIB,
    },
    norms: [],
    load: null,
    notes: [],
  },
  recommended: RECOMMENDED,
  thinks: true,
  loadMs: 9200,
  device: "Apple M3 Ultra",
};

export const STARTER_MODEL: LoadedModel = {
  ...STEP_MODEL,
  id: "starter",
  name: "SmolLM2 135M",
  label: "bf16 · head bf16",
  report: {
    ...STEP_MODEL.report,
    name: "SmolLM2 135M",
    folder: "/app/starter",
    family: "llama",
    layers: 30,
    parameters: 134_500_000,
    headParameters: 3_900_000,
    contextSize: 8192,
    vocabSize: 49152,
    quantisation: [{ kind: "all", storage: "bf16", modules: 211, bytes: 269 * MIB }],
    head: { found: true, levels: 1, sentence: "MTP head with 1 level, found in mtp.safetensors." },
    memory: { weights: 269 * MIB, head: 8 * MIB, kvPerToken: 23040, kvAtContext: 180 * MIB, context: 8192, needed: 470 * MIB, available: 6 * GIB },
  },
  recommended: { ...RECOMMENDED, temperature: 0.2, topP: 0.9, topK: null },
  thinks: false,
  loadMs: 240,
  device: "CPU (AVX2, 8 threads)",
};

export const NO_HEAD_MODEL: LoadedModel = {
  ...STEP_MODEL,
  id: "mlx-community/Step-3.5-Flash-4bit",
  label: "4-bit · no head",
  report: {
    ...STEP_MODEL.report,
    headParameters: 0,
    head: { found: false, levels: 0, sentence: "No MTP head in this checkpoint: the conversion left it out." },
    memory: { ...STEP_MODEL.report.memory, head: 0 },
  },
};

export const ENTRIES: ModelEntry[] = [
  { id: "starter", name: "SmolLM2 135M", source: "starter", folder: "Comes with the app", bytes: 277 * MIB, problem: null, ownHead: true, missing: false, repository: null, head: null, headName: null },
  { id: STEP_MODEL.id, name: "Step 3.5 Flash", source: "hub_cache", folder: STEP_MODEL.report.folder, bytes: 108 * GIB, problem: null, ownHead: true, missing: false, repository: STEP_MODEL.id, head: null, headName: null },
  { id: NO_HEAD_MODEL.id, name: "Step 3.5 Flash 4bit", source: "hub_cache", folder: "/models/Step-3.5-Flash-4bit", bytes: 103 * GIB, problem: null, ownHead: false, missing: false, repository: NO_HEAD_MODEL.id, head: null, headName: null },
  {
    id: "/data/models/hy3-preview",
    name: "hy3-preview",
    source: "folder",
    folder: "/data/models/hy3-preview",
    bytes: 61 * GIB,
    problem: "Two of 31 weight files are missing. Download them again into this folder.",
    ownHead: null,
    missing: false,
    repository: null,
    head: null,
    headName: null,
  },
];

export const ANSWER = `A head that predicts more than one token lets the trunk check several guesses in **one pass**.

The trunk reads its weights once per pass, and reading them is what takes the time. So a pass over three rows costs little more than a pass over one:

1. The head *drafts* two tokens after the last committed one.
2. The trunk *verifies* all three rows at once.
3. Every draft the trunk agrees with is kept, and the trunk's own next token comes for free.

\`\`\`rust
fn accept(p: f32, q: f32, u: f32) -> bool {
    // Keeps the law of the sampler: accept with min(1, p / q).
    u < (p / q).min(1.0)
}
\`\`\`

With accept rate $a$ at every depth, a cycle of depth $k$ brings

$$
1 + a + a^2 + \\dots + a^k = \\frac{1 - a^{k+1}}{1 - a}
$$

tokens on average. At $a = 0.78$ and $k = 2$ that is 2.39 tokens per cycle.

| Depth | Accept rate | Tokens per cycle |
|------:|------------:|-----------------:|
| 1 | 84 % | 1.84 |
| 2 | 62 % | 2.36 |
| 3 | 41 % | 2.57 |

> Drafting never changes the text. It changes only how many passes the text needs.

See [the paper](https://arxiv.org/abs/2404.19737) for how such heads are trained.
`;

export const THOUGHT = `The person asks why drafting helps. I should explain the memory bound first: decoding reads every active weight once per token, so the time is set by bandwidth and not by arithmetic.

Then the cycle: draft, verify, accept. I should give the accept rule, because it is the reason the text stays the same.

A small table of depths would make the trade visible. `;

export const QUESTION = "Why does drafting with an MTP head make decoding faster, and does it change the text?";

/** As Hy3 writes it: directly after what it says. */
export const TOOL_CALL = `I look it up.<tool_calls:opensource>
<tool_call:opensource>get_the_weather<tool_sep:opensource>
<arg_key:opensource>city</arg_key:opensource>
<arg_value:opensource>Köln *and* Bonn</arg_value:opensource>
</tool_call:opensource>
</tool_calls:opensource>`;

export function emptyReplyStats(): ReplyStats {
  return {
    prompt_tokens: 0,
    reused_tokens: 0,
    generated_tokens: 0,
    ttft_ms: 0,
    prefill_tok_s: 0,
    decode_tok_s: 0,
    cycles: 0,
    drafted: [],
    accepted: [],
    accept_rate: null,
    tokens_per_cycle: 0,
    depth: 0,
    rule: "residual",
    phase_ms: { draft: 0, verify: 0, sample: 0, other: 0 },
  };
}

export const STORED_STATS: ReplyStats = {
  prompt_tokens: 412,
  reused_tokens: 380,
  generated_tokens: 318,
  ttft_ms: 812,
  prefill_tok_s: 512,
  decode_tok_s: 41.2,
  cycles: 138,
  drafted: [138, 132],
  accepted: [116, 82],
  accept_rate: 0.78,
  tokens_per_cycle: 2.3,
  depth: 2,
  rule: "residual",
  phase_ms: { draft: 138 * 5.1, verify: 138 * 36.4, sample: 138 * 1.6, other: 138 * 2.9 },
};

export function emptyLive(model: LoadedModel): LiveStats {
  return {
    nowTokS: 0,
    decodeTokS: 0,
    prefillTokS: 0,
    ttftMs: 0,
    tokens: 0,
    cycles: 0,
    byDepth: [],
    acceptRate: null,
    acceptRateRecent: null,
    tokensPerCycle: 0,
    breakEven: null,
    phaseMs: { draft: 0, verify: 0, sample: 0, other: 0 },
    drafting: { state: "on", depth: 0, speedup: null, sentence: "Drafting on, measuring." },
    contextUsed: 0,
    contextSize: model.report.contextSize,
    kvBytes: 0,
  };
}

const HOUR = 3_600_000;

export const CHAT_TITLES: [title: string, hoursAgo: number][] = [
  ["Why drafting makes decoding faster", 0.2],
  ["Rename a column without downtime", 3],
  ["Recipe for rye bread, two loaves", 26],
  ["Explain sliding window attention", 31],
  ["Letter to the landlord about the heating", 74],
  ["Regex for ISO dates", 98],
  ["Reading list on information theory", 140],
  ["Trip to the Harz in March with two children and a dog", 700],
  ["Unit tests for the tokenizer", 1200],
];

export function firstChats(now: number): { summary: ChatSummary; messages: Message[] }[] {
  return CHAT_TITLES.map(([title, hoursAgo], i) => {
    const at = now - hoursAgo * HOUR;
    const summary = { id: i + 1, title, updatedMs: at };
    const question = i === 0 ? QUESTION : title;
    return { summary, messages: exchange(i * 1000 + 1, question, ANSWER, at) };
  });
}

export function exchange(firstId: number, question: string, answer: string, at: number): Message[] {
  return [
    { id: firstId, role: "user", text: question, thought: null, createdMs: at - 20_000, finish: null, stats: null, model: null },
    { id: firstId + 1, role: "assistant", text: answer, thought: THOUGHT, createdMs: at, finish: "stop", stats: STORED_STATS, model: "Step 3.5 Flash" },
  ];
}
