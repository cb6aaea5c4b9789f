const THOUSANDS = new Intl.NumberFormat("en-US");

export const NOTHING = "–";

export function tokS(value: number | null): string {
  if (value === null || !Number.isFinite(value)) return NOTHING;
  return value >= 1000 ? THOUSANDS.format(Math.round(value)) : value.toFixed(1);
}

export function percent(rate: number | null): string {
  return rate === null ? NOTHING : `${Math.round(rate * 100)}%`;
}

export function oneDecimal(value: number | null): string {
  return value === null ? NOTHING : value.toFixed(1);
}

export function count(value: number): string {
  return THOUSANDS.format(value);
}

export function milliseconds(ms: number | null): string {
  if (ms === null) return NOTHING;
  return ms < 1000 ? `${Math.round(ms)} ms` : `${(ms / 1000).toFixed(1)} s`;
}

/** 8 s, 1 min 4 s */
export function duration(ms: number): string {
  const seconds = Math.max(0, Math.round(ms / 1000));
  if (seconds < 60) return `${seconds} s`;
  return `${Math.floor(seconds / 60)} min ${seconds % 60} s`;
}

/** Sizes as the system shows memory: 1 GB = 1024 MB. */
export function bytes(n: number): string {
  if (n < 1024 ** 2) return `${Math.round(n / 1024)} KB`;
  if (n < 1024 ** 3) return `${Math.round(n / 1024 ** 2)} MB`;
  const gb = n / 1024 ** 3;
  return `${gb < 100 ? gb.toFixed(1) : Math.round(gb)} GB`;
}
