import type { HubModel, LoadedModel, ModelEntry, ModelOffer } from "../../backend";
import { bytes, count } from "../shared/format";
import { headWords, isUnverified, offeredHeadWords, SOURCES } from "./words";

export interface Fact {
  name: string;
  value: string;
  /** It rests on one source or on arithmetic. */
  unverified: boolean;
}

export interface Known {
  offer: ModelOffer | null;
  entry: ModelEntry | null;
  hub: HubModel | null;
  loaded: LoadedModel | null;
}

/** What was looked at comes before what the catalogue claims, which alone can be unverified. */
export function factsOf({ offer, entry, hub, loaded }: Known): Fact[] {
  const report = loaded?.report ?? null;
  const facts: Fact[] = [];
  const add = (name: string, value: string | null | undefined, unverified = false) => {
    if (value !== null && value !== undefined && value !== "") facts.push({ name, value, unverified });
  };
  const claimed = (field: keyof ModelOffer) => isUnverified(offer, field);

  add("Family", report?.family ?? hub?.family ?? offer?.family, !report && !hub && claimed("family"));
  const layers = report?.layers ?? hub?.layers;
  if (layers) add("Layers", count(layers));
  if (report) {
    add("Parameters", `${count(report.parameters)}${report.headParameters > 0 ? `, of these ${count(report.headParameters)} in the head` : ""}`);
    add("Storage", report.quantisation.map((q) => `${q.kind} ${q.storage}, ${bytes(q.bytes)}`).join("; "));
    add("Longest context", `${count(report.contextSize)} tokens`);
  } else if (hub?.bits) add("Weights", `${hub.bits}-bit`);

  if (report) add("MTP head", report.head.sentence);
  else if (entry?.head) add("MTP head", `From ${entry.headName ?? entry.head}`);
  else if (entry) add("MTP head", entry.ownHead === null ? "Not known" : entry.ownHead ? "In its own files" : "None in its files");
  else if (hub) add("MTP head", headWords(hub.head));
  else if (offer) add("MTP head", offeredHeadWords(offer), claimed("head") || claimed("headBytes"));

  if (entry) {
    add("On the disk", bytes(entry.bytes));
    add("Source", SOURCES[entry.source]);
    if (entry.source !== "starter") add("Folder", entry.folder);
  } else if (hub) {
    add("Download", `${bytes(hub.bytes)} in ${count(hub.files)} files${hub.haveBytes > 0 ? `; ${bytes(hub.haveBytes)} are here already` : ""}`);
    add("Revision", `${hub.revision}, commit ${hub.commit.slice(0, 12)}`);
  } else if (offer) add("Download", offer.bytes === null ? "Not measured" : bytes(offer.bytes), claimed("bytes"));

  if (offer) {
    add("Made for", `${offer.memoryGb} GB of memory and more`, claimed("memoryGb"));
    add("Licence", offer.licence ?? "Not known", claimed("licence"));
  }
  return facts;
}
