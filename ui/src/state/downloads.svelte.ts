import { toWireError, type Backend, type DownloadEvent, type DownloadState, type ModelDownload, type StartDownload, type WireError } from "../backend";
import { repositoryOf } from "./shelf";
import type { Problems } from "./problems.svelte";

type Kind = DownloadState["kind"];

const STOPPED: Kind[] = ["paused", "done", "failed"];

export type DownloadDeed = "download_pause" | "download_resume" | "download_cancel";

/** It goes on, by itself or right now. */
export function isMoving(download: ModelDownload): boolean {
  return !STOPPED.includes(download.state.kind);
}

/** Every download there is, as the app's one stream tells it. */
export class Downloads {
  list = $state.raw<ModelDownload[]>([]);
  /** Why the stream could not be opened. */
  problem = $state.raw<WireError | null>(null);
  /** Ids with a deed under way. */
  pending = $state.raw<string[]>([]);
  /** What is being started, by `keyOf`. */
  starting = $state.raw<string[]>([]);
  /** Called when one that this window saw running is done. */
  onDone: (download: ModelDownload) => void = () => {};
  onFailed: (download: ModelDownload, error: WireError) => void = () => {};
  #backend: Backend;
  #problems: Problems;
  #watching = false;
  #mine = new Set<string>();
  #told = new Set<string>();
  #percentShown: number | null = null;

  moving = $derived(this.list.filter(isMoving));
  /** Of all that move, together; null while nothing does. */
  fraction = $derived.by(() => {
    if (this.moving.length === 0) return null;
    const total = this.moving.reduce((sum, d) => sum + d.total, 0);
    return total > 0 ? Math.min(1, this.moving.reduce((sum, d) => sum + d.done, 0) / total) : 0;
  });

  constructor(backend: Backend, problems: Problems) {
    this.#backend = backend;
    this.#problems = problems;
  }

  /** Opens the stream; again only after it could not be opened. */
  async watch(): Promise<void> {
    if (this.#watching) return;
    this.#watching = true;
    this.problem = null;
    try {
      await this.#backend.call("downloads_watch", null, (event) => this.#take(event));
    } catch (thrown) {
      this.#watching = false;
      this.problem = toWireError(thrown);
    }
  }

  #take(event: DownloadEvent): void {
    if (event.kind === "gone") this.list = this.list.filter((d) => d.id !== event.id);
    else this.#put(event.download);
    this.#showProgress();
  }

  #put(download: ModelDownload): void {
    const before = this.list.find((d) => d.id === download.id);
    this.list = before ? this.list.map((d) => (d.id === download.id ? download : d)) : [...this.list, download];
    if (before && isMoving(before)) this.#mine.add(download.id);
    if (isMoving(download)) this.#told.delete(download.id);
    this.#tellEnd(download);
  }

  /** Once for each end, and not for one that was over when the window opened. */
  #tellEnd(download: ModelDownload): void {
    const { id, state } = download;
    if ((state.kind !== "done" && state.kind !== "failed") || !this.#mine.has(id) || this.#told.has(id)) return;
    this.#told.add(id);
    if (state.kind === "done") this.onDone(download);
    else this.onFailed(download, state.error);
  }

  #showProgress(): void {
    const percent = this.fraction === null ? null : Math.round(this.fraction * 100);
    if (percent === this.#percentShown) return;
    this.#percentShown = percent;
    this.#backend.progress(percent === null ? null : percent / 100);
  }

  /** The one that fetches this whole model, the newest if there were several. */
  of(repository: string | null): ModelDownload | null {
    if (repository === null) return null;
    return this.list.findLast((d) => !d.headOnly && repositoryOf(d.repository) === repositoryOf(repository)) ?? null;
  }

  /** The one that fetches a head for this model. */
  headFor(modelId: string): ModelDownload | null {
    return this.list.findLast((d) => d.headOnly && d.forModel === modelId) ?? null;
  }

  keyOf(req: Pick<StartDownload, "repository" | "forModel">): string {
    return `${repositoryOf(req.repository)} ${req.forModel ?? ""}`;
  }

  /** One that is there already is gone on with instead of begun a second time. */
  async start(req: StartDownload): Promise<void> {
    const key = this.keyOf(req);
    if (this.starting.includes(key)) return;
    const there = req.headOnly && req.forModel !== null ? this.headFor(req.forModel) : this.of(req.repository);
    if (there && there.state.kind !== "done") {
      if (!isMoving(there)) await this.act("download_resume", there.id);
      return;
    }
    this.starting = [...this.starting, key];
    try {
      const begun = await this.#backend.call("download_start", req);
      this.#mine.add(begun.id);
      const known = this.list.find((d) => d.id === begun.id);
      // What the stream said already is newer than the answer.
      if (known) this.#tellEnd(known);
      else this.#put(begun);
      this.#showProgress();
    } catch (thrown) {
      this.#problems.report(thrown);
    } finally {
      this.starting = this.starting.filter((k) => k !== key);
    }
  }

  act(deed: DownloadDeed, id: string): Promise<void> {
    if (deed === "download_resume") {
      this.#mine.add(id);
      this.#told.delete(id);
    }
    return this.#during(id, () => this.#backend.call(deed, { id }));
  }

  /** Bytes freed; null = it was refused. */
  async discard(id: string): Promise<number | null> {
    let freed: number | null = null;
    await this.#during(id, async () => (freed = await this.#backend.call("download_discard", { id })));
    return freed;
  }

  async #during(id: string, call: () => Promise<unknown>): Promise<void> {
    if (this.pending.includes(id)) return;
    this.pending = [...this.pending, id];
    try {
      await call();
    } catch (thrown) {
      this.#problems.report(thrown);
    } finally {
      this.pending = this.pending.filter((p) => p !== id);
    }
  }
}
