import type { DownloadState, ErrorCode, Fit, HubHead, ModelDownload, ModelEntry, ModelOffer } from "../../backend";
import { bytes, percent } from "../shared/format";

export const SOURCES: Record<ModelEntry["source"], string> = {
  starter: "Comes with the app",
  folder: "Your folder",
  hub_cache: "Hub cache",
  lm_studio: "LM Studio",
};

/** What a model is to the person, in one or two words, and how it is coloured. */
export interface Mark {
  words: string;
  tone: "good" | "plain" | "warn" | "bad";
}

const DOWNLOADING: Record<DownloadState["kind"], Mark> = {
  queued: { words: "Queued", tone: "plain" },
  preparing: { words: "Preparing", tone: "plain" },
  running: { words: "Downloading", tone: "good" },
  waiting: { words: "Waiting", tone: "warn" },
  paused: { words: "Paused", tone: "plain" },
  verifying: { words: "Verifying", tone: "good" },
  attaching: { words: "Attaching the head", tone: "good" },
  done: { words: "Ready", tone: "good" },
  failed: { words: "Stopped", tone: "bad" },
};

export function downloadMark(download: ModelDownload): Mark {
  return DOWNLOADING[download.state.kind];
}

export function entryMark(entry: ModelEntry, fit: Fit | null, loaded: boolean): Mark {
  if (loaded) return { words: "Loaded", tone: "good" };
  if (entry.missing) return { words: "Volume not connected", tone: "warn" };
  if (entry.problem !== null) return { words: "Cannot be loaded", tone: "bad" };
  if (fit && !fit.fits) return { words: "Does not fit", tone: "warn" };
  if (entry.ownHead === false && entry.head === null) return { words: "Needs a head", tone: "warn" };
  return { words: "Ready", tone: "plain" };
}

export function offerMark(offer: ModelOffer, fits: boolean): Mark {
  if (offer.have !== null) return { words: "On the disk", tone: "plain" };
  if (!offer.supported) return { words: "Not supported yet", tone: "warn" };
  if (!fits) return { words: "Does not fit", tone: "warn" };
  return { words: "Available", tone: "plain" };
}

/** Both sizes in the unit of the larger: "6.9 of 17.3 GB". */
export function doneOf(done: number, total: number): string {
  const [whole, unit] = bytes(total).split(" ");
  const [part, partUnit] = bytes(done).split(" ");
  return partUnit === unit ? `${part} of ${whole} ${unit}` : `${part} ${partUnit} of ${whole} ${unit}`;
}

/** Rough on purpose: nobody needs the seconds of an hour. */
export function remaining(ms: number): string {
  const seconds = Math.round(ms / 1000);
  if (seconds < 60) return `${Math.max(1, seconds)} s`;
  const minutes = Math.round(seconds / 60);
  if (minutes < 60) return `${minutes} min`;
  const hours = Math.floor(minutes / 60);
  if (hours >= 48) return `${Math.round(hours / 24)} days`;
  return minutes % 60 === 0 ? `${hours} h` : `${hours} h ${minutes % 60} min`;
}

function speed(perSecond: number): string {
  return `${perSecond >= 1024 ** 2 ? `${(perSecond / 1024 ** 2).toFixed(1)} MB` : bytes(perSecond)}/s`;
}

/** What happens, with its numbers. Errors are said apart. */
export function downloadLine(download: ModelDownload, retryMs: number | null): string {
  const { state, done, total } = download;
  const sizes = total > 0 ? `${doneOf(done, total)} · ${percent(done / total)}` : "";
  switch (state.kind) {
    case "queued":
      return "Waits for the downloads before it.";
    case "preparing":
      return "Looking at what is here already…";
    case "running": {
      const left = download.remainingMs === null ? "" : ` · ${remaining(download.remainingMs)} left`;
      return `${sizes} · ${speed(download.speed)}${left}`;
    }
    case "waiting":
      return `${sizes}${sizes === "" ? "" : ". "}${retryMs === null ? "It goes on by itself when it can." : `It goes on by itself in ${remaining(retryMs)}.`}`;
    case "paused":
      return `${sizes}${sizes === "" ? "" : ". "}Nothing is lost.`;
    case "verifying":
      return `All ${bytes(total)} are here. Comparing the hashes…`;
    case "attaching":
      return "The head is here. Putting it on the model…";
    case "done":
      return "Downloaded and verified.";
    case "failed":
      return `${sizes}${sizes === "" ? "" : ". "}Nothing is lost.`;
  }
}

export type Step = "page" | "token" | "retry";

/** What can be done about a refusal, the likeliest first. */
export function stepsFor(code: ErrorCode): Step[] {
  if (code === "gated") return ["page", "token", "retry"];
  if (code === "token_needed" || code === "token_stale") return ["token", "retry"];
  return ["retry"];
}

export function headWords(head: HubHead): string {
  switch (head.kind) {
    case "here":
      return `In its own files, ${bytes(head.bytes)}`;
    case "elsewhere":
      return `In ${head.repository}: ${bytes(head.bytes)} of it are fetched`;
    case "missing":
      return head.sentence;
  }
}

export function offeredHeadWords(offer: ModelOffer): string {
  const size = offer.headBytes === null ? "" : `, ${bytes(offer.headBytes)}`;
  switch (offer.head.kind) {
    case "included":
      return `In its own files${size}`;
    case "elsewhere":
      return `In ${offer.head.repository}${size}`;
    case "unknown":
      return "Nobody has seen one";
  }
}

/** Names of fields may come in either spelling. */
function plain(field: string): string {
  return field.replace(/_/g, "").toLowerCase();
}

export function isUnverified(offer: ModelOffer | null, field: keyof ModelOffer): boolean {
  return offer?.unverified.some((name) => plain(name) === plain(field)) ?? false;
}
