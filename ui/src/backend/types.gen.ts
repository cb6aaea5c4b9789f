// Made from crates/protocol by `./dev bindings`. Do not edit.

export type ErrorCode = "not_found" | "corrupt" | "missing_tensor" | "shape_mismatch" | "unsupported" | "template" | "context_full" | "invalid_option" | "no_model" | "busy" | "out_of_memory" | "disk" | "disk_full" | "offline" | "gated" | "token_needed" | "token_stale" | "rate_limited" | "hub" | "internal";

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

export type ModelSource = "starter" | "folder" | "hub_cache" | "lm_studio";

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
 * Its folder is on a volume that is not there now; it is remembered.
 */
missing: boolean, 
/**
 * `owner/name` it is known to come from.
 */
repository: string | null, 
/**
 * Folder or `owner/name` whose MTP head is put on it in place of its own; `None` = its own, if it has one.
 */
head: string | null, 
/**
 * What a person calls that head: a fetched one lies in a folder that is named after a commit.
 */
headName: string | null, };

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

export type LoadModel = { id: string, 
/**
 * Load it although it does not seem to fit.
 */
anyway: boolean, };

export type AddFolder = { folder: string, };

export type SetModelHead = { id: string, 
/**
 * As in `ModelEntry`; must hold a head. `None` = the model's own.
 */
head: string | null, };

export type LoadEvent = { "kind": "progress", done: number, total: number, what: string, } | { "kind": "ready", model: LoadedModel, } | { "kind": "cancelled" } | { "kind": "failed", error: WireError, };

export type OfferedHead = { "kind": "included" } | { "kind": "elsewhere", repository: string, } | { "kind": "unknown" };

export type ModelOffer = { id: string, title: string, family: string, 
/**
 * False: the engine has no loader for the family yet.
 */
supported: boolean, repository: string, revision: string | null, head: OfferedHead, 
/**
 * Download of the trunk; `None` = nobody has measured it.
 */
bytes: number | null, 
/**
 * What the head adds to it.
 */
headBytes: number | null, 
/**
 * Smallest machine it makes sense on, in GB of memory.
 */
memoryGb: number, licence: string | null, notes: string | null, 
/**
 * Names of fields that rest on one source or on arithmetic.
 */
unverified: Array<string>, 
/**
 * Id of the model on this disk that came of it.
 */
have: string | null, };

export type Machine = { 
/**
 * Bytes of memory.
 */
memory: number, 
/**
 * Bytes a model may take now: free memory, on macOS at most the GPU's working-set limit.
 */
available: number, 
/**
 * Free bytes of the disk models are downloaded to.
 */
diskFree: number, };

export type Shelf = { offers: Array<ModelOffer>, machine: Machine, downloads: Array<ModelDownload>, };

export type TokenPlace = "none" | "keychain" | "memory" | "environment";

export type TokenState = { place: TokenPlace, };

export type SetToken = { token: string | null, };

export type HubName = { text: string, };

export type HubHead = { "kind": "here", bytes: number, } | { "kind": "elsewhere", repository: string, bytes: number, } | { "kind": "missing", sentence: string, };

export type HubModel = { repository: string, revision: string, commit: string, 
/**
 * `model_type`.
 */
family: string, 
/**
 * Why the engine could not run it, as a sentence; `None` = it could.
 */
problem: string | null, layers: number | null, bits: number | null, 
/**
 * Bytes of the files a download fetches, the head elsewhere not counted.
 */
bytes: number, 
/**
 * Of these, bytes on the disk already.
 */
haveBytes: number, files: number, head: HubHead, fit: Fit, 
/**
 * Its id when it is on this disk, complete.
 */
have: string | null, };

export type FitRequest = { 
/**
 * `ModelEntry::id`, or `HubModel::repository` of one inspected since the app began.
 */
id: string, 
/**
 * `None` = what the app would open it with.
 */
context: number | null, };

export type Fit = { weights: number, 
/**
 * MTP head, as it will be stored.
 */
head: number, 
/**
 * KV of trunk and head at `context` tokens.
 */
kv: number, 
/**
 * Activations and working buffers.
 */
working: number, needed: number, machine: Machine, 
/**
 * Tokens judged at.
 */
context: number, 
/**
 * Most tokens the model takes.
 */
contextMax: number, 
/**
 * Most tokens that fit, 0 = the model does not fit at all.
 */
contextFits: number, fits: boolean, 
/**
 * The verdict with its numbers.
 */
sentence: string, };

export type StartDownload = { 
/**
 * As in `HubName::text`.
 */
repository: string, 
/**
 * With `head_only`: the model on this disk (its id) that gets the head.
 */
forModel: string | null, 
/**
 * Only the MTP head, by the ranges of its tensors.
 */
headOnly: boolean, };

export type DownloadRef = { id: string, };

export type DownloadState = { "kind": "queued" } | { "kind": "preparing" } | { "kind": "running" } | { "kind": "waiting", error: WireError, retryMs: number | null, } | { "kind": "paused" } | { "kind": "verifying" } | { "kind": "attaching" } | { "kind": "done", model: string, } | { "kind": "failed", error: WireError, };

export type ModelDownload = { id: string, repository: string, headOnly: boolean, forModel: string | null, state: DownloadState, 
/**
 * Bytes on the disk, those of earlier runs included.
 */
done: number, total: number, 
/**
 * Bytes per second, lately.
 */
speed: number, 
/**
 * `None` while nothing moves.
 */
remainingMs: number | null, filesReady: number, files: number, };

export type DownloadEvent = { "kind": "changed", download: ModelDownload, } | { "kind": "gone", id: string, };

export type ModelRef = { 
/**
 * `ModelEntry::id`.
 */
id: string, };

export type DeletePlan = { id: string, folder: string, frees: number, 
/**
 * The folder belongs to the person: it is only taken off the list, and nothing is freed.
 */
onlyForgets: boolean, };

export type CheckReport = { 
/**
 * The repository the files were compared with.
 */
repository: string, good: number, 
/**
 * Names of files whose bytes are not the hub's.
 */
damaged: Array<string>, 
/**
 * Names of files of the hub that are not here.
 */
missing: Array<string>, sentence: string, };

export type CheckEvent = { "kind": "progress", done: number, total: number, file: string, } | { "kind": "finished", report: CheckReport, } | { "kind": "cancelled" } | { "kind": "failed", error: WireError, };

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
lastModel: string | null, 
/**
 * Address of the hub; `None` = the environment's, else the public one.
 */
hubEndpoint: string | null, 
/**
 * Proxy of downloads; `None` = the environment's.
 */
hubProxy: string | null, 
/**
 * Most bytes per second all downloads take together; `None` = no limit.
 */
downloadLimit: number | null, sidebarOpen: boolean, livePanelOpen: boolean, };

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
  library_shelf: { req: null; res: Shelf; event: never };
  hub_inspect: { req: HubName; res: HubModel; event: never };
  model_find_head: { req: ModelRef; res: HubHead; event: never };
  model_fit: { req: FitRequest; res: Fit; event: never };
  download_start: { req: StartDownload; res: ModelDownload; event: never };
  download_pause: { req: DownloadRef; res: null; event: never };
  download_resume: { req: DownloadRef; res: null; event: never };
  download_cancel: { req: DownloadRef; res: null; event: never };
  download_discard: { req: DownloadRef; res: number; event: never };
  downloads_watch: { req: null; res: null; event: DownloadEvent };
  model_check: { req: ModelRef; res: null; event: CheckEvent };
  model_cancel_check: { req: null; res: null; event: never };
  model_delete_plan: { req: ModelRef; res: DeletePlan; event: never };
  model_delete: { req: ModelRef; res: ModelEntry[]; event: never };
  token_state: { req: null; res: TokenState; event: never };
  token_set: { req: SetToken; res: TokenState; event: never };
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
