import type { FakeSetup } from "./fake";
import { scene, type Act, type Scene } from "./fake_setup";
import { download, HUB_ERRORS } from "./fake_shelf";
import { NO_HEAD_MODEL, STARTER_MODEL, STEP_MODEL } from "./fake_texts";
import type { DownloadState, HubModel, ModelDownload, WireError } from "./types.gen";

const GIB = 1024 ** 3;
const PAGE = "glm-4.7-flash";

function models(act: Partial<Act>, change: (setup: FakeSetup) => void = () => {}): Scene {
  return scene({ view: "models", ...act }, change);
}

/** One download, in this state, on the page of what it fetches. */
function fetching(state: DownloadState, part: Partial<ModelDownload> = {}): Scene {
  return models({ page: PAGE }, (s) => (s.library.downloads = [download({ state, ...part })]));
}

function stopped(error: WireError): Scene {
  return fetching({ kind: "failed", error });
}

/** A repository that was typed in. */
function typed(hub: Partial<HubModel>, act: Partial<Act> = {}): Scene {
  return models({ page: "acme/Qwen3.6-27B-MTP-4bit", ...act }, (s) => (s.library.hub = hub));
}

function refused(error: WireError): Scene {
  return models({ page: "acme/GLM-4.7-Flahs" }, (s) => (s.library.hubError = error));
}

const TIGHT = { memory: 16 * GIB, available: 10.6 * GIB, diskFree: 12 * GIB };
const STOPPED_WAITING = { code: "offline" as const, message: "The network is gone.", detail: "connection reset by peer" };

export const LIBRARY_SCENES: Record<string, Scene> = {
  "first-start-offer": scene({}, (s) => {
    s.model = STARTER_MODEL;
    s.settings.lastModel = null;
    s.chats = [];
    s.entries = s.entries.slice(0, 1);
    s.library.machine = { memory: 32 * GIB, available: 24 * GIB, diskFree: 200 * GIB };
    s.library.offers = s.library.offers.map((o) => ({ ...o, have: null }));
  }),
  "library-queued": fetching({ kind: "queued" }, { done: 0 }),
  "library-preparing": fetching({ kind: "preparing" }, { done: 0, total: 0 }),
  "library-running": fetching({ kind: "running" }),
  "library-running-chat": scene({ open: 1 }, (s) => (s.library.downloads = [download()])),
  "library-running-list": models({}, (s) => {
    s.library.downloads = [
      download(),
      download({ id: "d2", repository: STEP_MODEL.id, headOnly: true, forModel: NO_HEAD_MODEL.id, state: { kind: "queued" }, done: 0, total: 4.9 * GIB }),
      download({ id: "d3", repository: "someone/Private-Mix-4bit", state: { kind: "failed", error: HUB_ERRORS.stale }, done: 2.2 * GIB, total: 9.8 * GIB }),
    ];
  }),
  "library-waiting": fetching({ kind: "waiting", error: STOPPED_WAITING, retryMs: null }),
  "library-waiting-soon": fetching({ kind: "waiting", error: HUB_ERRORS.rate, retryMs: 182_000 }),
  "library-paused": fetching({ kind: "paused" }),
  "library-verifying": fetching({ kind: "verifying" }, { done: 17.3 * GIB, filesReady: 10 }),
  "library-attaching": models({ page: NO_HEAD_MODEL.id }, (s) => {
    s.library.downloads = [download({ repository: STEP_MODEL.id, headOnly: true, forModel: NO_HEAD_MODEL.id, state: { kind: "attaching" }, done: 4.9 * GIB, total: 4.9 * GIB })];
  }),
  "library-done": models({}, (s) => (s.library.downloads = [download({ state: { kind: "done", model: STEP_MODEL.id }, repository: STEP_MODEL.id, done: 108 * GIB, total: 108 * GIB })])),
  "library-failed-gated": stopped(HUB_ERRORS.gated),
  "library-failed-private": stopped(HUB_ERRORS.private),
  "library-failed-name": stopped(HUB_ERRORS.wrongName),
  "library-failed-token": stopped(HUB_ERRORS.stale),
  "library-failed-rate": stopped(HUB_ERRORS.rate),
  "library-failed-disk": stopped({ code: "disk_full", message: "The disk is full: 10.4 GB more are needed, 1.2 GB are free. Make room, then resume.", detail: "No space left on device (os error 28)" }),
  "library-refused-gated": refused(HUB_ERRORS.gated),
  "library-refused-private": refused(HUB_ERRORS.private),
  "library-refused-name": refused(HUB_ERRORS.wrongName),
  "library-refused-token": refused(HUB_ERRORS.stale),
  "library-refused-rate": refused(HUB_ERRORS.rate),
  "library-offline": models({ page: PAGE }, (s) => (s.library.hubError = HUB_ERRORS.offline)),
  "library-unreadable": models({}, (s) => (s.library.shelfError = { code: "internal", message: "The list of models could not be read. Try again.", detail: "catalogue.toml: expected a table at line 40" })),
  "library-offer": models({ page: "hy3" }),
  "library-typed": typed({}),
  "library-typed-have": typed({ have: STEP_MODEL.id }),
  "library-typed-part": typed({ haveBytes: 12.1 * GIB }),
  "library-typed-headless": typed({ head: { kind: "missing", sentence: "No MTP head was found for this model: the conversion left it out, and no original is known." } }),
  "library-unsupported": typed({ family: "gemma4", problem: "The family gemma4 is not supported yet: the engine has no loader for it." }),
  "library-unsupported-offer": models({ page: "gemma-mtp" }),
  "library-too-large": models({ page: "hy3-4bit" }),
  "library-too-large-here": models({ page: STEP_MODEL.id }, (s) => {
    s.model = STARTER_MODEL;
    s.library.machine = TIGHT;
  }),
  "library-no-disk": models({ page: PAGE }, (s) => (s.library.machine = { ...s.library.machine, diskFree: 6 * GIB })),
  "library-small-machine": models({}, (s) => (s.library.machine = TIGHT)),
  "library-refused-load": models({ press: ["Unload", "Load"] }, (s) => {
    s.loadRefusal = { code: "out_of_memory", message: "Step 3.5 Flash needs 112 GB, and 24.3 GB are free. Close other apps, or choose a smaller model.", detail: "weights 103 GB, head 4.9 GB, cache 3.0 GB, working buffers 1.1 GB" };
  }),
  "library-local": models({ page: STEP_MODEL.id }),
  "library-needs-head": models({ page: NO_HEAD_MODEL.id }),
  "library-head-found": models({ page: NO_HEAD_MODEL.id, press: ["Find its MTP head"] }),
  "library-head-nowhere": models({ page: NO_HEAD_MODEL.id, press: ["Find its MTP head"] }, (s) => (s.library.foundHead = { kind: "missing", sentence: "No MTP head is known for this model. Choose a folder with one, or use it without." })),
  "library-missing-volume": models({}, (s) => {
    s.entries[3] = { ...s.entries[3]!, folder: "/Volumes/Archive/hy3-preview", missing: true, problem: "The volume Archive is not connected. Connect it, and the model is here again." };
  }),
  "library-checking": models({ page: STEP_MODEL.id, press: ["Check files"] }, (s) => (s.library.check = "stays")),
  "library-checked": models({ page: STEP_MODEL.id, press: ["Check files"] }),
  "library-damaged": models({ page: STEP_MODEL.id, press: ["Check files"] }, (s) => {
    const damaged = ["model-00017-of-00046.safetensors"];
    s.library.check = { repository: STEP_MODEL.id, good: 44, damaged, missing: ["tokenizer.json"], sentence: "One file is damaged and one is missing. Download the model again: only these two are fetched." };
  }),
  "library-delete": models({ page: NO_HEAD_MODEL.id, press: ["Delete…"] }),
  "library-forget": models({ page: "/data/models/hy3-preview", press: ["Forget…"] }),
  "library-search": models({ find: "glm" }),
  "library-search-name": models({ find: "acme/Qwen3.6-27B-MTP-4bit" }),
  "library-search-nothing": models({ find: "quince jam" }),
  "library-token-kept": scene({ view: "settings" }, (s) => (s.library.token = "keychain")),
  "library-token-environment": scene({ view: "settings" }, (s) => {
    s.library.token = "environment";
    s.settings.downloadLimit = 5 * 1024 ** 2;
    s.settings.hubEndpoint = "https://hub.example";
  }),
};
