import { toWireError, type Backend, type TokenPlace, type WireError } from "../backend";

/** Where the access token of the hub is kept. The token itself only goes in, never out. */
export class Token {
  place = $state<TokenPlace | null>(null);
  busy = $state(false);
  problem = $state.raw<WireError | null>(null);
  #backend: Backend;

  constructor(backend: Backend) {
    this.#backend = backend;
  }

  refresh(): Promise<boolean> {
    return this.#take(() => this.#backend.call("token_state", null));
  }

  /** null forgets it. Whether it was taken. */
  set(token: string | null): Promise<boolean> {
    return this.#take(() => this.#backend.call("token_set", { token }));
  }

  async #take(call: () => Promise<{ place: TokenPlace }>): Promise<boolean> {
    if (this.busy) return false;
    this.busy = true;
    this.problem = null;
    try {
      this.place = (await call()).place;
      return true;
    } catch (thrown) {
      this.problem = toWireError(thrown);
      return false;
    } finally {
      this.busy = false;
    }
  }
}
