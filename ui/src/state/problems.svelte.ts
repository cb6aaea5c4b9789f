import { toWireError, type Notice, type WireError } from "../backend";

export interface Problem {
  id: number;
  error: WireError;
}

export interface ShownNotice extends Notice {
  id: number;
}

/** What went wrong and has not been dismissed, and what the person should know from the start. */
export class Problems {
  errors = $state.raw<Problem[]>([]);
  notices = $state.raw<ShownNotice[]>([]);
  #nextId = 1;

  report(thrown: unknown): void {
    const error = toWireError(thrown);
    const same = this.errors.filter((p) => p.error.message !== error.message);
    this.errors = [...same, { id: this.#nextId++, error }];
  }

  notify(notices: Notice[]): void {
    this.notices = [...this.notices, ...notices.map((n) => ({ ...n, id: this.#nextId++ }))];
  }

  dismiss(id: number): void {
    this.errors = this.errors.filter((p) => p.id !== id);
    this.notices = this.notices.filter((n) => n.id !== id);
  }
}
