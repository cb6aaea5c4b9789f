import type { Machine, ModelEntry, ModelOffer } from "../backend";

const GIB = 1024 ** 3;
/** Systems keep a part of the memory they are sold with: a 16 GB computer reports 15 and something. */
const KEPT_BACK = 0.9;

const NAME = /^[\w.-]+\/[\w.-]+(@[^\s@]+)?$/;

function decoded(part: string): string {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

/** What the text names on the hub, `owner/name` with its revision if there is one; null = it is not such a name. */
export function hubName(text: string): string | null {
  const trimmed = text.trim();
  const withScheme = /^https?:\/\//i.test(trimmed);
  const parts = trimmed.replace(/^https?:\/\//i, "").replace(/[?#].*$/, "").split("/").filter((part) => part !== "");
  // An address without its scheme: a host, then owner and name.
  if (!withScheme && !(parts.length > 2 && parts[0]!.includes("."))) return NAME.test(trimmed) ? trimmed : null;
  const [, owner, name, kind, revision] = parts;
  const at = revision && ["tree", "blob", "resolve"].includes(kind!) ? `@${decoded(revision)}` : "";
  const found = `${owner}/${name}${at}`;
  return owner !== undefined && name !== undefined && NAME.test(found) ? found : null;
}

/** The repository of a name or an address, its revision left out. */
export function repositoryOf(text: string): string {
  return (hubName(text) ?? text).replace(/@.*$/, "");
}

/** As `HubName` wants it. */
export function nameOf(offer: ModelOffer): string {
  return offer.revision === null ? offer.repository : `${offer.repository}@${offer.revision}`;
}

/** Where the files of a model on the disk were downloaded from; null = not by a download. */
export function fetchedFrom(entry: ModelEntry): string | null {
  return entry.source === "hub_cache" && !entry.missing ? entry.repository : null;
}

export function fitsMachine(offer: ModelOffer, machine: Machine): boolean {
  return machine.memory >= offer.memoryGb * GIB * KEPT_BACK;
}

/** The memory a machine was sold with, in GB. */
export function soldGb(machine: Machine): number {
  const gb = machine.memory / GIB;
  return [4, 8, 16, 18, 24, 32, 36, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024].find((size) => size >= gb && gb >= size * KEPT_BACK) ?? Math.round(gb);
}

/** Download with its head, where the head is fetched from elsewhere. */
export function offerBytes(offer: ModelOffer): number | null {
  if (offer.bytes === null) return null;
  return offer.bytes + (offer.head.kind === "elsewhere" ? (offer.headBytes ?? 0) : 0);
}

export function memoryClasses(offers: ModelOffer[]): number[] {
  return [...new Set(offers.map((o) => o.memoryGb))].sort((a, b) => a - b);
}

function contains(query: string, texts: (string | null)[]): boolean {
  const words = query.toLowerCase().split(/\s+/).filter((word) => word !== "");
  const all = texts.filter((t) => t !== null).join("\n").toLowerCase();
  return words.every((word) => all.includes(word));
}

/** Those that make sense on a machine of this class, the largest of them first; with no class in the catalogue's order. */
export function searchOffers(offers: ModelOffer[], query: string, memoryGb: number | null): ModelOffer[] {
  const found = offers.filter((o) => (memoryGb === null || o.memoryGb <= memoryGb) && contains(query, [o.title, o.repository, o.family, o.notes]));
  return memoryGb === null ? found : found.sort((a, b) => b.memoryGb - a.memoryGb);
}

export function searchEntries(entries: ModelEntry[], query: string): ModelEntry[] {
  return entries.filter((e) => contains(query, [e.name, e.id, e.folder, e.repository]));
}

/** The best to begin with: the largest that fits the memory and the disk and can run. */
export function firstRealModel(offers: ModelOffer[], machine: Machine): ModelOffer | null {
  const able = offers.filter((o) => o.supported && o.have === null && fitsMachine(o, machine) && (offerBytes(o) ?? Infinity) <= machine.diskFree);
  return able.reduce<ModelOffer | null>((best, o) => (best === null || o.memoryGb > best.memoryGb ? o : best), null);
}
