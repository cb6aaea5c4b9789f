import type { FakeSetup, Handlers } from "./fake";
import { download, fitOf, hubModel, MACHINE, OFFERS } from "./fake_shelf";
import type { CheckEvent, CheckReport, Commands, DownloadEvent, Fit, HubHead, HubModel, Machine, ModelDownload, ModelEntry, ModelOffer, StartDownload, TokenPlace, WireError } from "./types.gen";

export type LibraryCommand = Extract<
  keyof Commands,
  | "library_shelf"
  | "hub_inspect"
  | "model_find_head"
  | "model_fit"
  | `download_${string}`
  | "downloads_watch"
  | "model_check"
  | "model_cancel_check"
  | `model_delete${string}`
  | `token_${string}`
>;

export interface LibraryPart {
  offers: ModelOffer[];
  machine: Machine;
  downloads: ModelDownload[];
  /** What differs from the usual answer about any name. */
  hub: Partial<HubModel>;
  hubError: WireError | null;
  shelfError: WireError | null;
  foundHead: HubHead;
  /** Downloads that are begun go on to their end; otherwise they stay as they are. */
  moves: boolean;
  check: CheckReport | "stays" | WireError;
  token: TokenPlace;
  keychain: boolean;
}

export function libraryPart(): LibraryPart {
  return {
    offers: structuredClone(OFFERS),
    machine: MACHINE,
    downloads: [],
    hub: {},
    hubError: null,
    shelfError: null,
    foundHead: { kind: "elsewhere", repository: "stepfun-ai/Step-3.5-Flash", bytes: 4.9 * 1024 ** 3 },
    moves: true,
    check: { repository: "stepfun-ai/Step-3.5-Flash", good: 46, damaged: [], missing: [], sentence: "All 46 files are as on the hub." },
    token: "none",
    keychain: true,
  };
}

function refusal(code: WireError["code"], message: string): WireError {
  return { code, message, detail: "" };
}

/** The shelf, the hub and the downloads without a network. */
export class FakeLibrary {
  readonly #setup: FakeSetup;
  readonly #watchers: ((event: DownloadEvent) => void)[] = [];
  #nextId = 1;
  #cancelCheck = false;

  constructor(setup: FakeSetup) {
    this.#setup = setup;
  }

  get #part(): LibraryPart {
    return this.#setup.library;
  }

  handlers(): Handlers<LibraryCommand> {
    const part = this.#part;
    return {
      library_shelf: () => {
        if (part.shelfError) throw part.shelfError;
        return { offers: part.offers, machine: part.machine, downloads: part.downloads };
      },
      hub_inspect: ({ text }) => {
        if (part.hubError) throw part.hubError;
        return hubModel(text, part.machine, part.hub);
      },
      model_find_head: () => {
        if (part.hubError) throw part.hubError;
        return part.foundHead;
      },
      model_fit: ({ id, context }) => this.#fit(id, context ?? 32768),
      download_start: (req) => this.#start(req),
      download_pause: ({ id }) => this.#put(id, { state: { kind: "paused" }, speed: 0, remainingMs: null }),
      download_resume: ({ id }) => this.#resume(id),
      download_cancel: ({ id }) => this.#drop(id),
      download_discard: ({ id }) => {
        const freed = this.#download(id).done;
        this.#drop(id);
        return freed;
      },
      downloads_watch: (_, onEvent) => {
        this.#watchers.push(onEvent);
        for (const download of part.downloads) onEvent({ kind: "changed", download });
        return null;
      },
      model_check: (_, onEvent) => this.#check(onEvent),
      model_cancel_check: () => {
        this.#cancelCheck = true;
        return null;
      },
      model_delete_plan: ({ id }) => {
        const entry = this.#entry(id);
        const onlyForgets = entry.source === "folder";
        return { id, folder: entry.folder, frees: onlyForgets ? 0 : entry.bytes, onlyForgets };
      },
      model_delete: ({ id }) => {
        part.offers = part.offers.map((o) => (o.have === id ? { ...o, have: null } : o));
        return (this.#setup.entries = this.#setup.entries.filter((e) => e.id !== id));
      },
      token_state: () => ({ place: part.token }),
      token_set: ({ token }) => {
        part.token = token === null ? "none" : part.keychain ? "keychain" : "memory";
        return { place: part.token };
      },
    };
  }

  /** As an event of the stream. */
  emit(event: DownloadEvent): void {
    for (const watcher of this.#watchers) watcher(event);
  }

  #entry(id: string): ModelEntry {
    const entry = this.#setup.entries.find((e) => e.id === id);
    if (!entry) throw refusal("not_found", "This model is not here any more. Look at the list again.");
    return entry;
  }

  #fit(id: string, context: number): Fit {
    const { machine, hub } = this.#part;
    const entry = this.#setup.entries.find((e) => e.id === id);
    if (entry) return fitOf(entry.bytes, 0, context, machine);
    const model = hubModel(id, machine, hub);
    return fitOf(model.fit.weights, model.fit.head, context, machine);
  }

  #download(id: string): ModelDownload {
    const found = this.#part.downloads.find((d) => d.id === id);
    if (!found) throw refusal("not_found", "This download is not in the list any more. Begin it again.");
    return found;
  }

  #put(id: string, change: Partial<ModelDownload>): null {
    const changed = { ...this.#download(id), ...change };
    this.#part.downloads = this.#part.downloads.map((d) => (d.id === id ? changed : d));
    this.emit({ kind: "changed", download: changed });
    return null;
  }

  #drop(id: string): null {
    this.#part.downloads = this.#part.downloads.filter((d) => d.id !== id);
    this.emit({ kind: "gone", id });
    return null;
  }

  #start(req: StartDownload): ModelDownload {
    const model = hubModel(req.repository, this.#part.machine, this.#part.hub);
    const total = req.headOnly ? 4.9 * 1024 ** 3 : model.bytes;
    const begun = download({ id: `new-${this.#nextId++}`, ...req, repository: model.repository, state: { kind: "queued" }, done: model.haveBytes, total, filesReady: 0 });
    this.#part.downloads = [...this.#part.downloads, begun];
    this.emit({ kind: "changed", download: begun });
    if (this.#part.moves) void this.#run(begun.id);
    return begun;
  }

  #resume(id: string): null {
    this.#put(id, { state: { kind: "queued" } });
    if (this.#part.moves) void this.#run(id);
    return null;
  }

  async #run(id: string): Promise<void> {
    const { clock } = this.#setup;
    const stopped = () => {
      const kind = this.#part.downloads.find((d) => d.id === id)?.state.kind;
      return kind === undefined || kind === "paused";
    };
    const { total, done, headOnly, forModel, repository } = this.#download(id);
    for (const kind of ["preparing", "running"] as const) {
      await clock.wait(300);
      if (stopped()) return;
      this.#put(id, { state: { kind } });
    }
    const steps = 60;
    for (let step = 1; step <= steps; step++) {
      await clock.wait(250);
      if (stopped()) return;
      const speed = 30e6 + 8e6 * Math.sin(step);
      const now = done + ((total - done) * step) / steps;
      this.#put(id, { done: now, speed, remainingMs: ((total - now) / speed) * 1000, filesReady: Math.floor((step / steps) * 11) });
    }
    this.#put(id, { state: { kind: headOnly ? "attaching" : "verifying" }, speed: 0, remainingMs: null });
    await clock.wait(800);
    if (stopped()) return;
    this.#arrive(forModel ?? repository, headOnly ? repository : null, total);
    this.#put(id, { state: { kind: "done", model: forModel ?? repository } });
  }

  #arrive(id: string, head: string | null, bytes: number): void {
    const s = this.#setup;
    if (head !== null) {
      s.entries = s.entries.map((e) => (e.id === id ? { ...e, head, headName: head } : e));
      return;
    }
    const entry: ModelEntry = { id, name: id.split("/").pop()!, source: "hub_cache", folder: `/models/${id}`, bytes, problem: null, ownHead: true, missing: false, repository: id, head: null, headName: null };
    s.entries = [...s.entries.filter((e) => e.id !== id), entry];
    this.#part.offers = this.#part.offers.map((o) => (o.repository === id ? { ...o, have: id } : o));
  }

  async #check(onEvent: (event: CheckEvent) => void): Promise<null> {
    const { clock, library } = this.#setup;
    const total = 108 * 1024 ** 3;
    this.#cancelCheck = false;
    for (let part = 0; part <= 20; part++) {
      onEvent({ kind: "progress", done: (total * part) / 20, total, file: `model-000${String(part + 1).padStart(2, "0")}-of-00046.safetensors` });
      if (library.check === "stays" && part === 9) while (!this.#cancelCheck) await clock.wait(100);
      if (this.#cancelCheck) {
        onEvent({ kind: "cancelled" });
        return null;
      }
      await clock.wait(60);
    }
    if (library.check !== "stays") onEvent("code" in library.check ? { kind: "failed", error: library.check } : { kind: "finished", report: library.check });
    return null;
  }
}
