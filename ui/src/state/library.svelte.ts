import { toWireError, type Backend, type HubHead, type HubModel, type Machine, type ModelEntry, type ModelOffer, type WireError } from "../backend";
import type { Downloads } from "./downloads.svelte";
import { Files } from "./files.svelte";
import { FitProbe, Verdicts } from "./fits.svelte";
import type { Models } from "./models.svelte";
import type { Problems } from "./problems.svelte";
import { fetchedFrom, firstRealModel, memoryClasses, nameOf, repositoryOf, searchEntries, searchOffers } from "./shelf";

/** What a page is about. At least one of the three is known. */
export interface Page {
  offerId: string | null;
  entryId: string | null;
  /** As `HubName` wants it: what was typed or pasted is passed on as it is. */
  name: string | null;
}

export type HeadSearch = { kind: "looking" } | { kind: "found"; head: HubHead } | { kind: "failed"; error: WireError };

/** The models worth offering, and what the hub and the disk say of the one that is looked at. */
export class Library {
  offers = $state.raw<ModelOffer[]>([]);
  machine = $state.raw<Machine | null>(null);
  listed = $state(false);
  problem = $state.raw<WireError | null>(null);
  query = $state("");
  /** GB; null = all. */
  memoryClass = $state<number | null>(null);
  page = $state.raw<Page | null>(null);
  /** What was looked at last; the list puts the focus there again. */
  cameFrom = $state.raw<Page | null>(null);
  hub = $state.raw<HubModel | null>(null);
  looking = $state(false);
  hubProblem = $state.raw<WireError | null>(null);
  /** Heads that were looked for, by model id. */
  heads = $state.raw<Record<string, HeadSearch>>({});
  readonly probe: FitProbe;
  readonly verdicts: Verdicts;
  readonly files: Files;
  #backend: Backend;
  #models: Models;
  #downloads: Downloads;
  #look = 0;

  constructor(backend: Backend, problems: Problems, models: Models, downloads: Downloads) {
    this.#backend = backend;
    this.#models = models;
    this.#downloads = downloads;
    this.probe = new FitProbe(backend);
    this.verdicts = new Verdicts(backend);
    this.files = new Files(backend, problems);
    this.files.onDeleted = (entries, id) => this.#deleted(entries, id);
  }

  classes = $derived(memoryClasses(this.offers));
  /** A pasted address finds what it names. */
  #wanted = $derived(repositoryOf(this.query));
  foundOffers = $derived(searchOffers(this.offers, this.#wanted, this.memoryClass));
  foundEntries = $derived.by(() => searchEntries(this.#models.entries, this.#wanted));
  offer = $derived(this.offers.find((o) => o.id === this.page?.offerId) ?? null);
  /** It may have come to the disk while its page was open. */
  entry = $derived.by(() => {
    const state = this.#downloads.of(this.page?.name ?? null)?.state;
    const ids = [this.page?.entryId, this.hub?.have, this.offer?.have, state?.kind === "done" ? state.model : null];
    return this.#models.entries.find((e) => ids.includes(e.id)) ?? null;
  });
  first = $derived(this.machine ? firstRealModel(this.offers, this.machine) : null);

  async refresh(): Promise<void> {
    try {
      const shelf = await this.#backend.call("library_shelf", null);
      this.offers = shelf.offers;
      this.machine = shelf.machine;
      this.problem = null;
    } catch (thrown) {
      this.problem = toWireError(thrown);
    }
    this.listed = true;
  }

  /** The lists again, as after a download. */
  async refreshAll(): Promise<void> {
    await Promise.all([this.refresh(), this.#models.refresh()]);
  }

  /** Anew, because the list or the memory changed. */
  judge(): void {
    if (this.probe.fit) void this.probe.ask();
    void this.verdicts.judge(this.#models.entries.filter((e) => e.problem === null && !e.missing).map((e) => e.id));
  }

  offerOf(entry: ModelEntry): ModelOffer | null {
    return this.offers.find((o) => o.have === entry.id || o.repository === entry.repository) ?? null;
  }

  openOffer(offer: ModelOffer): void {
    const entryId = this.#models.entries.find((e) => e.id === offer.have)?.id ?? null;
    this.#open({ offerId: offer.id, entryId, name: nameOf(offer) });
  }

  openEntry(entry: ModelEntry): void {
    this.#open({ offerId: this.offerOf(entry)?.id ?? null, entryId: entry.id, name: entry.repository });
  }

  openName(name: string): void {
    const repository = repositoryOf(name);
    const entry = this.#models.entries.find((e) => e.id === repository);
    const offer = this.offers.find((o) => o.repository === repository);
    this.#open({ offerId: offer?.id ?? null, entryId: entry?.id ?? null, name });
  }

  /** By the id of an offer, of a model on the disk, or a name of the hub. */
  openAny(id: string): void {
    const offer = this.offers.find((o) => o.id === id);
    const entry = this.#models.entries.find((e) => e.id === id);
    if (offer) this.openOffer(offer);
    else if (entry) this.openEntry(entry);
    else this.openName(id);
  }

  /** The hub is asked only about what is not here: nothing goes out for a model on the disk. */
  #open(page: Page): void {
    this.page = page;
    this.#look++;
    this.hub = null;
    this.hubProblem = null;
    this.looking = false;
    this.files.keep();
    this.probe.open(page.entryId, null);
    if (page.entryId === null) void this.look();
  }

  close(): void {
    this.cameFrom = this.page;
    this.page = null;
    this.#look++;
    this.looking = false;
    this.probe.open(null, null);
  }

  /** The whole list from its begin, whatever was looked at or for. */
  showAll(): void {
    if (this.page) this.close();
    this.cameFrom = null;
    this.query = "";
  }

  /** Asks the hub about the page's name. */
  async look(): Promise<void> {
    const name = this.page?.name;
    if (!name) return;
    const look = ++this.#look;
    this.looking = true;
    this.hubProblem = null;
    try {
      const hub = await this.#backend.call("hub_inspect", { text: name });
      if (look !== this.#look) return;
      this.hub = hub;
      this.probe.open(hub.repository, hub.fit);
    } catch (thrown) {
      if (look === this.#look) this.hubProblem = toWireError(thrown);
    } finally {
      if (look === this.#look) this.looking = false;
    }
  }

  /** Nothing is fetched that is here already. */
  async download(name: string, have: string | null): Promise<void> {
    if (have !== null || this.#models.entries.some((e) => e.id === repositoryOf(name) && e.problem === null)) return;
    await this.#downloads.start({ repository: name, forModel: null, headOnly: false });
  }

  /** Fetches what is missing or damaged of a model that is here; what is good is not fetched again. */
  async mend(entry: ModelEntry): Promise<void> {
    const repository = fetchedFrom(entry);
    if (repository === null) return;
    this.files.dismissCheck();
    await this.#downloads.start({ repository, forModel: null, headOnly: false });
  }

  /** Where the head of a model on the disk is, by the catalogue or by what was looked for. */
  headOf(entry: ModelEntry): HubHead | null {
    const search = this.heads[entry.id];
    if (search?.kind === "found") return search.head;
    const offer = this.offerOf(entry);
    if (!offer || offer.head.kind !== "elsewhere" || offer.headBytes === null) return null;
    return { kind: "elsewhere", repository: offer.head.repository, bytes: offer.headBytes };
  }

  async findHead(id: string): Promise<void> {
    if (this.heads[id]?.kind === "looking") return;
    this.heads = { ...this.heads, [id]: { kind: "looking" } };
    let search: HeadSearch;
    try {
      search = { kind: "found", head: await this.#backend.call("model_find_head", { id }) };
    } catch (thrown) {
      search = { kind: "failed", error: toWireError(thrown) };
    }
    this.heads = { ...this.heads, [id]: search };
  }

  async getHead(entry: ModelEntry): Promise<void> {
    const head = this.headOf(entry);
    const repository = head?.kind === "elsewhere" ? head.repository : head?.kind === "here" ? entry.repository : null;
    if (repository === null || entry.head !== null) return;
    await this.#downloads.start({ repository, forModel: entry.id, headOnly: true });
  }

  #deleted(entries: ModelEntry[], id: string): void {
    this.#models.entries = entries;
    if (this.page?.entryId === id) this.close();
    void this.refresh();
  }
}
