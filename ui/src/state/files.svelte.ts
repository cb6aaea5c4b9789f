import { toWireError, type Backend, type CheckEvent, type CheckReport, type DeletePlan, type ModelEntry, type WireError } from "../backend";
import type { Problems } from "./problems.svelte";

export type Check =
  | { id: string; kind: "running"; done: number; total: number; file: string; cancelling: boolean }
  | { id: string; kind: "finished"; report: CheckReport }
  | { id: string; kind: "failed"; error: WireError };

/** What is done with the files of a model on this disk: compared with the hub's, deleted, taken off the list. */
export class Files {
  /** The check that runs or ran last. */
  check = $state.raw<Check | null>(null);
  /** What deleting would do, waiting for the person's word. */
  plan = $state.raw<DeletePlan | null>(null);
  /** The model whose deletion is looked at or under way. */
  deleting = $state<string | null>(null);
  /** Called with the list as it is after a deletion. */
  onDeleted: (entries: ModelEntry[], id: string) => void = () => {};
  #backend: Backend;
  #problems: Problems;

  constructor(backend: Backend, problems: Problems) {
    this.#backend = backend;
    this.#problems = problems;
  }

  get checking(): boolean {
    return this.check?.kind === "running";
  }

  async compare(id: string): Promise<void> {
    if (this.checking) return;
    this.check = { id, kind: "running", done: 0, total: 0, file: "", cancelling: false };
    try {
      await this.#backend.call("model_check", { id }, (event) => this.#take(id, event));
    } catch (thrown) {
      this.#take(id, { kind: "failed", error: toWireError(thrown) });
    }
  }

  #take(id: string, event: CheckEvent): void {
    if (this.check?.kind !== "running" || this.check.id !== id) return;
    switch (event.kind) {
      case "progress":
        this.check = { ...this.check, done: event.done, total: event.total, file: event.file };
        return;
      case "finished":
        this.check = { id, kind: "finished", report: event.report };
        return;
      case "failed":
        this.check = { id, kind: "failed", error: event.error };
        return;
      case "cancelled":
        this.check = null;
    }
  }

  async cancelCheck(): Promise<void> {
    if (this.check?.kind !== "running") return;
    this.check = { ...this.check, cancelling: true };
    try {
      await this.#backend.call("model_cancel_check", null);
    } catch (thrown) {
      this.#problems.report(thrown);
      if (this.check?.kind === "running") this.check = { ...this.check, cancelling: false };
    }
  }

  dismissCheck(): void {
    if (!this.checking) this.check = null;
  }

  /** Asks what a deletion would free, before the person is asked. */
  async askDelete(id: string): Promise<void> {
    if (this.deleting !== null) return;
    this.deleting = id;
    this.plan = null;
    try {
      this.plan = await this.#backend.call("model_delete_plan", { id });
    } catch (thrown) {
      this.#problems.report(thrown);
    } finally {
      this.deleting = null;
    }
  }

  keep(): void {
    this.plan = null;
  }

  /** Bytes freed; null = nothing was deleted. */
  async confirmDelete(): Promise<number | null> {
    const plan = this.plan;
    if (plan === null || this.deleting !== null) return null;
    this.deleting = plan.id;
    try {
      const entries = await this.#backend.call("model_delete", { id: plan.id });
      this.onDeleted(entries, plan.id);
      if (this.check?.id === plan.id) this.check = null;
      return plan.onlyForgets ? null : plan.frees;
    } catch (thrown) {
      this.#problems.report(thrown);
      return null;
    } finally {
      this.plan = null;
      this.deleting = null;
    }
  }
}
