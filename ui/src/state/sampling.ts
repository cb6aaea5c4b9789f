import type { Sampling } from "../backend";

export type SamplingKey = keyof Sampling | "maxTokens";

export interface FieldRule {
  key: SamplingKey;
  label: string;
  /** What the number does, in few words. */
  hint: string;
  integer: boolean;
  min: number;
  max: number;
  /** The bound itself is not allowed. */
  openMin?: boolean;
  openMax?: boolean;
  /** What happens when neither the person nor the model says anything. */
  neutral: string;
  problem: string;
}

const LARGEST_U32 = 4294967295;

export const FIELD_RULES: FieldRule[] = [
  { key: "temperature", label: "Temperature", hint: "0 always takes the likeliest token", integer: false, min: 0, max: 10, neutral: "1",
    problem: "Temperature is a number from 0 to 10." },
  { key: "topP", label: "Top-p", hint: "1 is off", integer: false, min: 0, max: 1, openMin: true, neutral: "1",
    problem: "Top-p is above 0 and at most 1." },
  { key: "topK", label: "Top-k", hint: "0 is off", integer: true, min: 0, max: LARGEST_U32, neutral: "0",
    problem: "Top-k is a whole number, 0 or more." },
  { key: "minP", label: "Min-p", hint: "0 is off", integer: false, min: 0, max: 1, openMax: true, neutral: "0",
    problem: "Min-p is from 0 to below 1." },
  { key: "repetitionPenalty", label: "Repetition penalty", hint: "1 is off", integer: false, min: 0, max: 10, openMin: true, neutral: "1",
    problem: "The repetition penalty is above 0 and at most 10." },
  { key: "presencePenalty", label: "Presence penalty", hint: "0 is off", integer: false, min: -10, max: 10, neutral: "0",
    problem: "The presence penalty is from -10 to 10." },
  { key: "frequencyPenalty", label: "Frequency penalty", hint: "0 is off", integer: false, min: -10, max: 10, neutral: "0",
    problem: "The frequency penalty is from -10 to 10." },
  { key: "seed", label: "Seed", hint: "Repeats a text, at a fixed depth", integer: true, min: 0, max: Number.MAX_SAFE_INTEGER, neutral: "random",
    problem: "The seed is a whole number, 0 or more." },
  { key: "maxTokens", label: "Longest reply", hint: "Tokens; from the next reply on", integer: true, min: 1, max: LARGEST_U32, neutral: "to the end",
    problem: "The longest reply is a whole number of tokens, 1 or more." },
];

export type Parsed = { value: number | null; problem: null } | { problem: string };

/** An empty field means the model's recommended value. Both decimal marks are understood. */
export function parseField(rule: FieldRule, text: string): Parsed {
  const trimmed = text.trim().replace(",", ".");
  if (trimmed === "") return { value: null, problem: null };
  const wellFormed = rule.integer ? /^\d+$/.test(trimmed) : /^[+-]?(\d+\.?\d*|\.\d+)$/.test(trimmed);
  const value = Number(trimmed);
  const above = rule.openMin ? value > rule.min : value >= rule.min;
  const below = rule.openMax ? value < rule.max : value <= rule.max;
  if (!wellFormed || !above || !below) return { problem: rule.problem };
  return { value, problem: null };
}

/** f32 values come back from the engine with their rounding showing: 0.6 as 0.6000000238. */
export function showNumber(value: number): string {
  return Number.isInteger(value) ? String(value) : String(Number(value.toPrecision(6)));
}

export function recommendedText(rule: FieldRule, recommended: Sampling | null): string {
  if (rule.key === "maxTokens") return rule.neutral;
  const value = recommended?.[rule.key] ?? null;
  return value === null ? rule.neutral : showNumber(value);
}
