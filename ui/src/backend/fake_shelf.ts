import { STEP_MODEL } from "./fake_texts";
import type { ErrorCode, Fit, HubModel, Machine, ModelDownload, ModelOffer, WireError } from "./types.gen";

const GIB = 1024 ** 3;
const MIB = 1024 ** 2;

export const MACHINE: Machine = { memory: 128 * GIB, available: 121 * GIB, diskFree: 640 * GIB };

const OFFER: ModelOffer = {
  id: "",
  title: "",
  family: "qwen3_5",
  supported: true,
  repository: "",
  revision: null,
  head: { kind: "included" },
  bytes: null,
  headBytes: null,
  memoryGb: 8,
  licence: "Apache-2.0",
  notes: null,
  unverified: [],
  have: null,
};

export const OFFERS: ModelOffer[] = [
  { ...OFFER, id: "qwen3.5-4b", title: "Qwen3.5 4B, 4-bit", repository: "acme/Qwen3.5-4B-MTP-4bit", bytes: 2.6 * GIB, notes: "Small and quick; good at short questions." },
  { ...OFFER, id: "qwen3.5-9b", title: "Qwen3.5 9B, 6-bit", repository: "acme/Qwen3.5-9B-MTP-6bit", bytes: 8.1 * GIB, memoryGb: 16, unverified: ["bytes"] },
  {
    ...OFFER,
    id: "glm-4.7-flash",
    title: "GLM-4.7-Flash, 4-bit",
    family: "glm4_moe_lite",
    repository: "acme/GLM-4.7-Flash-4bit",
    head: { kind: "elsewhere", repository: "zai-org/GLM-4.7-Flash" },
    bytes: 16.4 * GIB,
    headBytes: 0.9 * GIB,
    memoryGb: 32,
    licence: "MIT",
  },
  { ...OFFER, id: "gemma-mtp", title: "Gemma 4 with drafter", family: "gemma4", supported: false, repository: "acme/Gemma-4-drafter", head: { kind: "unknown" }, memoryGb: 32, licence: null, unverified: ["memory_gb", "head"] },
  {
    ...OFFER,
    id: "step-3.5-flash",
    title: "Step 3.5 Flash, 4-bit",
    family: "step3p5",
    repository: STEP_MODEL.id,
    bytes: 103 * GIB,
    headBytes: 4.9 * GIB,
    memoryGb: 128,
    notes: "Three levels of drafting.",
    have: STEP_MODEL.id,
  },
  {
    ...OFFER,
    id: "hy3",
    title: "Hy3, 2 and 3 bits",
    family: "hy3",
    repository: "acme/Hy3-w2q3",
    head: { kind: "elsewhere", repository: "tencent/Hy3" },
    bytes: 94 * GIB,
    headBytes: 3.1 * GIB,
    memoryGb: 128,
    licence: null,
    notes: "Experts at 2 and 3 bits; the rest at 8.",
    unverified: ["bytes", "headBytes"],
  },
  { ...OFFER, id: "hy3-4bit", title: "Hy3, 4-bit", family: "hy3", repository: "acme/Hy3-4bit", bytes: 166 * GIB, headBytes: 3.1 * GIB, memoryGb: 256, licence: null },
];

const KV_PER_TOKEN = 98304;
/** Small models have small caches, roughly. */
const KV_PER_WEIGHTS = 12_000;
const WORKING = 0.4 * GIB;
export const CONTEXT_MAX = 262144;

function gb(n: number): string {
  return `${(n / GIB).toFixed(1)} GB`;
}

/** What a model of this size takes, as the engine judges it. */
export function fitOf(weights: number, head: number, context: number, machine: Machine): Fit {
  const perToken = Math.min(KV_PER_TOKEN, weights / KV_PER_WEIGHTS);
  const kv = context * perToken;
  const fixed = weights + head + WORKING;
  const needed = fixed + kv;
  const fits = needed <= machine.available;
  const contextFits = Math.max(0, Math.min(CONTEXT_MAX, Math.floor((machine.available - fixed) / perToken)));
  const most = contextFits > 0 ? `Up to ${contextFits.toLocaleString("en-US")} tokens fit.` : "It does not fit at any context.";
  const verdict = fits ? "Fits" : "Does not fit";
  const sentence = `${verdict}: it needs ${gb(needed)} at ${context.toLocaleString("en-US")} tokens, and ${gb(machine.available)} are free. ${most}`;
  return { weights, head, kv, working: WORKING, needed, machine, context, contextMax: CONTEXT_MAX, contextFits, fits, sentence };
}

const HUB_MODEL: HubModel = {
  repository: "",
  revision: "main",
  commit: "3f1c0b9a7d2e4f5061728394a5b6c7d8e9f00112",
  family: "qwen3_5",
  problem: null,
  layers: 48,
  bits: 4,
  bytes: 16.4 * GIB,
  haveBytes: 0,
  files: 9,
  head: { kind: "here", bytes: 0.8 * GIB },
  fit: fitOf(16.4 * GIB, 0.8 * GIB, 32768, MACHINE),
  have: null,
};

/** What the hub says of a name nobody has written a scene for. */
export function hubModel(text: string, machine: Machine, part: Partial<HubModel> = {}): HubModel {
  const repository = text.replace(/^https?:\/\/[^/]+\//, "").replace(/@.*$/, "").split("/").slice(0, 2).join("/");
  const offer = OFFERS.find((o) => o.repository === repository);
  const bytes = offer?.bytes ?? HUB_MODEL.bytes;
  const headBytes = offer?.headBytes ?? 0.8 * GIB;
  const head: HubModel["head"] = offer?.head.kind === "elsewhere" ? { ...offer.head, bytes: headBytes } : { kind: "here", bytes: headBytes };
  const problem = offer && !offer.supported ? `The family ${offer.family} is not supported yet: the engine has no loader for it.` : null;
  const known = { repository, problem, family: offer?.family ?? HUB_MODEL.family, bytes, head, have: offer?.have ?? null };
  return { ...HUB_MODEL, ...known, fit: fitOf(bytes, headBytes, 32768, machine), ...part };
}

export function download(part: Partial<ModelDownload> = {}): ModelDownload {
  const base: ModelDownload = {
    id: "d1",
    repository: "acme/GLM-4.7-Flash-4bit",
    headOnly: false,
    forModel: null,
    state: { kind: "running" },
    done: 6.9 * GIB,
    total: 17.3 * GIB,
    speed: 34.6 * MIB,
    remainingMs: 308_000,
    filesReady: 4,
    files: 11,
  };
  const still = part.state && part.state.kind !== "running" ? { speed: 0, remainingMs: null } : {};
  return { ...base, ...still, ...part };
}

/** The sentences a hub's refusals come as. */
export const HUB_ERRORS: Record<"gated" | "private" | "wrongName" | "stale" | "rate" | "offline", WireError> = {
  gated: error("gated", "The owner of this model asks you to accept its terms first. Open its page, accept them, then try again."),
  private: error("token_needed", "This model is private, or its name is wrong. Set an access token in Settings, then try again."),
  wrongName: error("not_found", "The hub has no model acme/GLM-4.7-Flahs. Check the name, then try again."),
  stale: error("token_stale", "The hub does not take the access token any more. Set a new one in Settings."),
  rate: error("rate_limited", "The hub asks for a pause because of too many requests. Try again in 3 minutes."),
  offline: error("offline", "The hub cannot be reached. Check the network, then try again."),
};

function error(code: ErrorCode, message: string): WireError {
  return { code, message, detail: `GET https://hub.example/api/models/acme/GLM-4.7-Flash-4bit\n${code}` };
}
