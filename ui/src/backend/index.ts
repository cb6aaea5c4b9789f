import type { Commands, WireError } from "./types.gen";

export type * from "./types.gen";

/** The only door to the engine. A rejected call carries a `WireError`. */
export interface Backend {
  /**
   * The promise of a streaming call may resolve before its stream ends: the last event tells the end,
   * `finished`/`failed` of a reply `ready`/`cancelled`/`failed` of a load,
   * `finished`/`cancelled`/`failed` of a check. `downloads_watch` ends with the window.
   */
  call<K extends keyof Commands>(
    cmd: K,
    req: Commands[K]["req"],
    onEvent?: (event: Commands[K]["event"]) => void,
  ): Promise<Commands[K]["res"]>;
  /** What the Dock or the taskbar shows of downloads, 0 to 1; null = nothing. Where the platform has no such place, nothing happens. */
  progress(fraction: number | null): void;
  /** A notification of the system. One that is not allowed is left out: the window says the same. */
  notify(title: string, body: string): void;
}

/** Anything that was thrown, as the error the window can show. */
export function toWireError(thrown: unknown): WireError {
  if (typeof thrown === "object" && thrown !== null && "code" in thrown && "message" in thrown) {
    const error = thrown as WireError;
    return { code: error.code, message: error.message, detail: error.detail ?? "" };
  }
  return { code: "internal", message: "Something failed inside the app. Try again.", detail: String(thrown) };
}

export async function chooseBackend(): Promise<Backend> {
  if ("__TAURI_INTERNALS__" in window) {
    const { tauriBackend } = await import("./tauri");
    return tauriBackend;
  }
  const { fakeFromUrl } = await import("./fake");
  return fakeFromUrl(new URL(window.location.href));
}
