import type { Backend, ChatSummary, SearchHit } from "../backend";
import type { Problems } from "./problems.svelte";

export interface ChatGroup {
  label: string;
  chats: ChatSummary[];
}

const SEARCH_PAUSE_MS = 150;

export class Chats {
  list = $state.raw<ChatSummary[]>([]);
  query = $state("");
  /** null = no search. */
  hits = $state.raw<SearchHit[] | null>(null);
  #backend: Backend;
  #problems: Problems;
  #searchTimer: ReturnType<typeof setTimeout> | undefined;

  constructor(backend: Backend, problems: Problems) {
    this.#backend = backend;
    this.#problems = problems;
  }

  async refresh(): Promise<void> {
    try {
      this.list = newestFirst(await this.#backend.call("chats_list", null));
    } catch (thrown) {
      this.#problems.report(thrown);
    }
  }

  titleOf(id: number | null): string {
    return this.list.find((c) => c.id === id)?.title || "New chat";
  }

  /** A chat got a message, a title or both. */
  touch(id: number, title: string, updatedMs: number): void {
    this.list = newestFirst([{ id, title, updatedMs }, ...this.list.filter((c) => c.id !== id)]);
  }

  async rename(id: number, title: string): Promise<void> {
    const before = this.list;
    this.list = this.list.map((c) => (c.id === id ? { ...c, title } : c));
    try {
      const summary = await this.#backend.call("chat_rename", { chatId: id, title });
      this.list = this.list.map((c) => (c.id === id ? summary : c));
    } catch (thrown) {
      this.list = before;
      this.#problems.report(thrown);
    }
  }

  async remove(id: number): Promise<boolean> {
    try {
      await this.#backend.call("chat_delete", { chatId: id });
    } catch (thrown) {
      this.#problems.report(thrown);
      return false;
    }
    this.list = this.list.filter((c) => c.id !== id);
    this.hits = this.hits?.filter((h) => h.chatId !== id) ?? null;
    return true;
  }

  search(query: string): void {
    this.query = query;
    clearTimeout(this.#searchTimer);
    if (query.trim() === "") {
      this.hits = null;
      return;
    }
    this.#searchTimer = setTimeout(() => void this.#find(query), SEARCH_PAUSE_MS);
  }

  async #find(query: string): Promise<void> {
    try {
      const hits = await this.#backend.call("chats_search", { query: query.trim() });
      if (this.query === query) this.hits = hits;
    } catch (thrown) {
      this.#problems.report(thrown);
    }
  }
}

function newestFirst(chats: ChatSummary[]): ChatSummary[] {
  return [...chats].sort((a, b) => b.updatedMs - a.updatedMs || b.id - a.id);
}

export function groupByAge(chats: ChatSummary[], now: Date): ChatGroup[] {
  const today = new Date(now.getFullYear(), now.getMonth(), now.getDate()).getTime();
  const yesterday = new Date(now.getFullYear(), now.getMonth(), now.getDate() - 1).getTime();
  const lastWeek = new Date(now.getFullYear(), now.getMonth(), now.getDate() - 7).getTime();
  const groups: ChatGroup[] = [
    { label: "Today", chats: [] },
    { label: "Yesterday", chats: [] },
    { label: "Last 7 days", chats: [] },
    { label: "Older", chats: [] },
  ];
  for (const chat of chats) {
    const at = chat.updatedMs;
    const place = at >= today ? 0 : at >= yesterday ? 1 : at >= lastWeek ? 2 : 3;
    groups[place]!.chats.push(chat);
  }
  return groups.filter((g) => g.chats.length > 0);
}

/** Excerpts mark matches between U+0002 and U+0003. */
export function markedParts(excerpt: string): { text: string; match: boolean }[] {
  return excerpt
    .split(/(\u0002[^\u0003]*\u0003?)/)
    .filter((part) => part !== "")
    .map((part) => ({ text: part.replace(/[\u0002\u0003]/g, ""), match: part.startsWith("\u0002") }));
}
