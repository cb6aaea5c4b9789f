// Made from crates/protocol by `./dev bindings`. Do not edit.

export type ErrorCode = "not_found" | "corrupt" | "missing_tensor" | "shape_mismatch" | "unsupported" | "template" | "context_full" | "invalid_option" | "no_model" | "busy" | "out_of_memory" | "disk" | "internal";

export type WireError = { code: ErrorCode, message: string, detail: string, };

export type DraftMode = { "kind": "off" } | { "kind": "auto" } | { "kind": "fixed", depth: number, };

export type DraftRule = "residual" | "match";

export type Sampling = { 
/**
 * 0 = greedy.
 */
temperature: number | null, 
/**
 * (0, 1]; 1 = off.
 */
topP: number | null, 
/**
 * 0 = off.
 */
topK: number | null, 
/**
 * [0, 1); 0 = off.
 */
minP: number | null, 
/**
 * > 0; 1 = off.
 */
repetitionPenalty: number | null, 
/**
 * 0 = off.
 */
presencePenalty: number | null, 
/**
 * 0 = off.
 */
frequencyPenalty: number | null, 
/**
 * `None` = another text each time.
 */
seed: number | null, };

export type GenerationOptions = { draft: DraftMode, rule: DraftRule, sampling: Sampling, 
/**
 * Longest reply in tokens; `None` = to the end of the context.
 */
maxTokens: number | null, 
/**
 * Instructions placed before the conversation; `None` = the template's own default.
 */
systemPrompt: string | null, };

export type DepthCount = { drafted: number, accepted: number, };

export type PhaseMs = { draft: number, verify: number, sample: number, other: number, };

export type DraftingState = "on" | "off" | "paused" | "no_head";

export type Drafting = { state: DraftingState, 
/**
 * Depth of the newest cycle.
 */
depth: number, 
/**
 * Estimated speed relative to no drafting, from measured draft and verify times. `None` until both are measured.
 */
speedup: number | null, sentence: string, };

export type LiveStats = { 
/**
 * Decode speed over the last second.
 */
nowTokS: number, 
/**
 * Decode speed over the reply so far.
 */
decodeTokS: number, prefillTokS: number, ttftMs: number, 
/**
 * Tokens generated so far.
 */
tokens: number, cycles: number, byDepth: Array<DepthCount>, 
/**
 * accepted / drafted over all depths; `None` before the first draft.
 */
acceptRate: number | null, 
/**
 * accepted / drafted over the last 32 drafting cycles.
 */
acceptRateRecent: number | null, tokensPerCycle: number, 
/**
 * Accept rate per draft above which the current depth pays, from measured costs; `None` until measured.
 */
breakEven: number | null, 
/**
 * Mean per cycle.
 */
phaseMs: PhaseMs, drafting: Drafting, contextUsed: number, contextSize: number, kvBytes: number, };

export type ReplyStats = { prompt_tokens: number, 
/**
 * Prompt tokens whose cache was still there.
 */
reused_tokens: number, generated_tokens: number, ttft_ms: number, prefill_tok_s: number, decode_tok_s: number, cycles: number, 
/**
 * By draft position.
 */
drafted: Array<number>, accepted: Array<number>, accept_rate: number | null, tokens_per_cycle: number, 
/**
 * Depth of the newest cycle.
 */
depth: number, rule: string, 
/**
 * Sums over the reply.
 */
phase_ms: PhaseMs, };

export type Role = "system" | "user" | "assistant";

export type FinishReason = "stop" | "length" | "context_full" | "stopped" | "interrupted" | "failed";

export type Message = { id: number, role: Role, text: string, 
/**
 * Reasoning text of a thinking model, apart from the answer.
 */
thought: string | null, 
/**
 * Unix milliseconds.
 */
createdMs: number, 
/**
 * Assistant messages only; `None` while the reply runs.
 */
finish: FinishReason | null, stats: ReplyStats | null, 
/**
 * Display name of the model that wrote it.
 */
model: string | null, };

export type ChatSummary = { id: number, 
/**
 * First words of the first message until the person names it; empty for a new chat.
 */
title: string, 
/**
 * Unix milliseconds of the newest message.
 */
updatedMs: number, };

export type Chat = { summary: ChatSummary, messages: Array<Message>, };

export type ChatRef = { chatId: number, };

export type RenameChat = { chatId: number, title: string, };

export type Search = { query: string, };

export type SearchHit = { chatId: number, title: string, excerpt: string, };

export type SendMessage = { chatId: number, text: string, options: GenerationOptions, };

export type RetryMessage = { chatId: number, messageId: number, options: GenerationOptions, };

export type OpenLink = { url: string, };

export type ChatEvent = { "kind": "accepted", user: Message | null, reply: Message, title: string, } | { "kind": "prefill", done: number, total: number, reused: number, } | { "kind": "step", text: string, thought: string, live: LiveStats, } | { "kind": "finished", reason: FinishReason, stats: ReplyStats, live: LiveStats | null, } | { "kind": "failed", error: WireError, };

export type ModelSource = "starter" | "folder" | "hub_cache";

export type ModelEntry = { 
/**
 * What `load_model` takes: `starter`, `owner/name` or a folder.
 */
id: string, name: string, source: ModelSource, folder: string, bytes: number, 
/**
 * Why it cannot be loaded, as a sentence; `None` = it looks fine.
 */
problem: string | null, 
/**
 * Whether its own files hold an MTP head, by the names of their tensors; `None` = they could not be read.
 */
ownHead: boolean | null, 
/**
 * Folder or `owner/name` whose MTP head is put on it in place of its own; `None` = its own, if it has one.
 */
head: string | null, };

export type HeadInfo = { found: boolean, 
/**
 * Number of nextn layers found.
 */
levels: number, 
/**
 * Where it was found, or why not, as a sentence.
 */
sentence: string, };

export type ModuleQuant = { kind: string, storage: string, modules: number, bytes: number, };

export type MemoryUse = { weights: number, head: number, kvPerToken: number, 
/**
 * KV of trunk and head at `context` tokens.
 */
kvAtContext: number, context: number, 
/**
 * Sum at that context, working buffers included.
 */
needed: number, 
/**
 * What the machine has free now.
 */
available: number, };

export type NormConvention = "plain" | "one_added" | "as_trained";

export type NormStorage = { file: string, convention: NormConvention, };

export type LoadMeasure = { loadMs: number, 
/**
 * Bytes of the process in memory once it is loaded.
 */
resident: number, 
/**
 * Of these, bytes the load copied or computed; the rest lies in the files. `None` where the system does not tell.
 */
copied: number | null, };

export type InspectReport = { name: string, folder: string, family: string, layers: number, parameters: number, headParameters: number, contextSize: number, vocabSize: number, quantisation: Array<ModuleQuant>, head: HeadInfo, memory: MemoryUse, norms: Array<NormStorage>, 
/**
 * When it was asked for.
 */
load: LoadMeasure | null, 
/**
 * Harmless leftovers and other remarks, a sentence each.
 */
notes: Array<string>, };

export type LoadedModel = { id: string, name: string, 
/**
 * e.g. "4-bit · head bf16".
 */
label: string, report: InspectReport, 
/**
 * The model's recommended sampling, from generation_config.json.
 */
recommended: Sampling, 
/**
 * The reply starts inside a thought.
 */
thinks: boolean, loadMs: number, 
/**
 * "CPU (AVX-512, 2 threads)" or the GPU's name.
 */
device: string, };

export type LoadModel = { id: string, };

export type AddFolder = { folder: string, };

export type SetModelHead = { id: string, 
/**
 * As in `ModelEntry`; must hold a head. `None` = the model's own.
 */
head: string | null, };

export type LoadEvent = { "kind": "progress", done: number, total: number, what: string, } | { "kind": "ready", model: LoadedModel, } | { "kind": "cancelled" } | { "kind": "failed", error: WireError, };

export type Theme = "system" | "light" | "dark";

export type Settings = { theme: Theme, 
/**
 * What new replies are generated with.
 */
options: GenerationOptions, 
/**
 * Folders with models the person added.
 */
modelFolders: Array<string>, 
/**
 * Model id -> where its MTP head comes from, see `ModelEntry::head`. Changed by `model_set_head` only.
 */
modelHeads: { [key in string]: string }, 
/**
 * Loaded at the next start; `None` = starter.
 */
lastModel: string | null, sidebarOpen: boolean, livePanelOpen: boolean, };

export type Notice = { sentence: string, detail: string, };

export type AppInfo = { version: string, 
/**
 * "macos" or "linux".
 */
platform: string, settings: Settings, notices: Array<Notice>, 
/**
 * The model in memory, if one is loaded already.
 */
model: LoadedModel | null, };

/** Every command: what it takes, what it answers, what it streams. */
export interface Commands {
  app_info: { req: null; res: AppInfo; event: never };
  settings_set: { req: Settings; res: Settings; event: never };
  models_list: { req: null; res: ModelEntry[]; event: never };
  model_add_folder: { req: AddFolder; res: ModelEntry[]; event: never };
  model_choose_folder: { req: null; res: AddFolder | null; event: never };
  model_set_head: { req: SetModelHead; res: ModelEntry[]; event: never };
  model_load: { req: LoadModel; res: null; event: LoadEvent };
  model_cancel_load: { req: null; res: null; event: never };
  model_unload: { req: null; res: null; event: never };
  chats_list: { req: null; res: ChatSummary[]; event: never };
  chat_create: { req: null; res: ChatSummary; event: never };
  chat_open: { req: ChatRef; res: Chat; event: never };
  chat_rename: { req: RenameChat; res: ChatSummary; event: never };
  chat_delete: { req: ChatRef; res: null; event: never };
  chats_search: { req: Search; res: SearchHit[]; event: never };
  chat_send: { req: SendMessage; res: null; event: ChatEvent };
  chat_retry: { req: RetryMessage; res: null; event: ChatEvent };
  chat_stop: { req: ChatRef; res: null; event: never };
  options_set: { req: GenerationOptions; res: null; event: never };
  open_link: { req: OpenLink; res: null; event: never };
}
