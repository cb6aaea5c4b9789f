import { Channel, invoke } from "@tauri-apps/api/core";
import { getCurrentWindow, ProgressBarStatus } from "@tauri-apps/api/window";
import { isPermissionGranted, requestPermission, sendNotification } from "@tauri-apps/plugin-notification";
import { toWireError, type Backend } from "./index";
import type { Commands } from "./types.gen";

type Streaming = { [K in keyof Commands]: [Commands[K]["event"]] extends [never] ? never : K }[keyof Commands];

/** A record and not a list, so that a new streaming command does not compile until it is named here. */
const STREAMING: Record<Streaming, true> = { model_load: true, chat_send: true, chat_retry: true, downloads_watch: true, model_check: true };

async function notify(title: string, body: string): Promise<void> {
  const allowed = (await isPermissionGranted()) || (await requestPermission()) === "granted";
  if (allowed) sendNotification({ title, body });
}

export const tauriBackend: Backend = {
  async call<K extends keyof Commands>(
    cmd: K,
    req: Commands[K]["req"],
    onEvent?: (event: Commands[K]["event"]) => void,
  ): Promise<Commands[K]["res"]> {
    const args: Record<string, unknown> = {};
    if (req !== null) args.req = req;
    if (cmd in STREAMING) {
      const channel = new Channel<Commands[K]["event"]>();
      channel.onmessage = (event) => onEvent?.(event);
      args.channel = channel;
    }
    try {
      return await invoke<Commands[K]["res"]>(cmd, args);
    } catch (thrown) {
      throw toWireError(thrown);
    }
  },
  progress(fraction) {
    const bar = fraction === null ? { status: ProgressBarStatus.None } : { status: ProgressBarStatus.Normal, progress: Math.round(fraction * 100) };
    // A desktop without such a bar answers with an error, which nobody can do anything about.
    Promise.resolve()
      .then(() => getCurrentWindow().setProgressBar(bar))
      .catch(() => {});
  },
  notify(title, body) {
    notify(title, body).catch(() => {});
  },
};
