import { toWireError, type Backend, type Fit, type WireError } from "../backend";

/** A hand that drags a slider passes many values; only where it rests is asked. */
export const REST_MS = 150;

/** What the models on the disk take at the context they would be opened with. */
export class Verdicts {
  byId = $state.raw<Record<string, Fit>>({});
  #backend: Backend;
  #round = 0;

  constructor(backend: Backend) {
    this.#backend = backend;
  }

  /** One after the other, since each reads headers from the disk. A model that cannot be judged goes without a verdict. */
  async judge(ids: string[]): Promise<void> {
    const round = ++this.#round;
    for (const id of ids) {
      const fit = await this.#backend.call("model_fit", { id, context: null }).catch(() => null);
      if (round !== this.#round) return;
      const { [id]: _, ...others } = this.byId;
      this.byId = fit ? { ...others, [id]: fit } : others;
    }
  }
}

/** The fit of the model whose page is open, at the context the person looks at. */
export class FitProbe {
  fit = $state.raw<Fit | null>(null);
  problem = $state.raw<WireError | null>(null);
  /** Where the slider stands; the fit may be of the value before. */
  context = $state<number | null>(null);
  #backend: Backend;
  #id: string | null = null;
  #attempt = 0;
  #timer: ReturnType<typeof setTimeout> | undefined;

  constructor(backend: Backend) {
    this.#backend = backend;
  }

  get stale(): boolean {
    return this.fit !== null && this.context !== null && this.fit.context !== this.context;
  }

  /** Without a fit to begin with, it is asked for. */
  open(id: string | null, first: Fit | null): void {
    clearTimeout(this.#timer);
    this.#attempt++;
    this.#id = id;
    this.fit = first;
    this.context = first?.context ?? null;
    this.problem = null;
    if (id !== null && first === null) void this.ask();
  }

  slide(context: number): void {
    this.context = context;
    clearTimeout(this.#timer);
    // An answer that is still under way is for a value that is not looked at any more.
    this.#attempt++;
    this.#timer = setTimeout(() => void this.ask(), REST_MS);
  }

  async ask(): Promise<void> {
    if (this.#id === null) return;
    const attempt = ++this.#attempt;
    this.problem = null;
    try {
      const fit = await this.#backend.call("model_fit", { id: this.#id, context: this.context });
      if (attempt !== this.#attempt) return;
      this.fit = fit;
      // The model may take less than was asked for.
      this.context = fit.context;
    } catch (thrown) {
      if (attempt === this.#attempt) this.problem = toWireError(thrown);
    }
  }
}
