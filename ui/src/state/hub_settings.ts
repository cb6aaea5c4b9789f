const MB = 1024 ** 2;

export interface Parsed<T> {
  value: T | null;
  problem: string | null;
}

function address(text: string, schemes: string[], example: string): Parsed<string> {
  const trimmed = text.trim();
  if (trimmed === "") return { value: null, problem: null };
  const wrong = { value: null, problem: `Write a whole address, as ${example}.` };
  let url: URL;
  try {
    url = new URL(trimmed);
  } catch {
    return wrong;
  }
  if (!schemes.includes(url.protocol) || url.hostname === "") return wrong;
  return { value: trimmed, problem: null };
}

/** Empty = the environment's or the public one. */
export function parseEndpoint(text: string): Parsed<string> {
  return address(text, ["http:", "https:"], "https://hub.example");
}

/** Empty = the environment's. */
export function parseProxy(text: string): Parsed<string> {
  return address(text, ["http:", "https:", "socks5:", "socks5h:"], "http://127.0.0.1:3128");
}

/** MB per second, to bytes; empty = no limit. */
export function parseLimit(text: string): Parsed<number> {
  const trimmed = text.trim().replace(",", ".");
  if (trimmed === "") return { value: null, problem: null };
  const mb = Number(trimmed);
  if (!Number.isFinite(mb) || mb <= 0) return { value: null, problem: "Write a number above 0, or nothing for no limit." };
  return { value: Math.max(1, Math.round(mb * MB)), problem: null };
}

export function showLimit(bytesPerSecond: number | null): string {
  return bytesPerSecond === null ? "" : String(Math.round((bytesPerSecond / MB) * 100) / 100);
}
