import { expect, test } from "vitest";
import { bytes, duration, milliseconds, tokS } from "../src/components/shared/format";
import { groupByAge, markedParts } from "../src/state/chats.svelte";
import { Live } from "../src/state/live.svelte";
import { resolveTheme } from "../src/state/settings.svelte";
import { failure, live, replyStats, started } from "./support";

test("chats are grouped by calendar days, not by hours", () => {
  const now = new Date(2026, 10, 29, 0, 30);
  const at = (day: number, hour: number) => new Date(2026, 10, day, hour).getTime();
  const chats = [at(29, 0), at(28, 23), at(28, 1), at(23, 12), at(22, 0), at(21, 23)].map((updatedMs, id) => ({ id, title: "", updatedMs }));
  expect(groupByAge(chats, now).map((g) => [g.label, g.chats.map((c) => c.id)])).toEqual([
    ["Today", [0]],
    ["Yesterday", [1, 2]],
    ["Last 7 days", [3, 4]],
    ["Older", [5]],
  ]);
});

test("matches of an excerpt are marked, also at its cut end", () => {
  expect(markedParts("a \u0002b\u0003 c \u0002d")).toEqual([
    { text: "a ", match: false },
    { text: "b", match: true },
    { text: " c ", match: false },
    { text: "d", match: true },
  ]);
});

test("a refused rename brings the old title back", async () => {
  const { stores, backend } = await started();
  const before = stores.chats.titleOf(1);
  backend.refuseNext.set("chat_rename", failure);
  await stores.chats.rename(1, "other");
  expect(stores.chats.titleOf(1)).toBe(before);
  expect(stores.problems.errors).toHaveLength(1);
});

test("a refused load leaves the model that is there", async () => {
  const { stores, backend } = await started();
  const model = stores.models.loaded;
  backend.refuseNext.set("model_load", { code: "busy", message: "A reply is running. Stop it first.", detail: "" });
  await stores.models.load("starter");
  await new Promise((done) => setTimeout(done));
  expect(stores.models.loaded?.id).toBe(model?.id);
  expect(stores.models.failed?.error.code).toBe("busy");
});

test("the history keeps thirty seconds at ten samples a second", () => {
  const numbers = new Live();
  numbers.begin();
  for (let at = 0; at < 60_000; at += 20) numbers.step(live({ tokens: 1, nowTokS: at }), at);
  expect(numbers.history.length).toBeLessThanOrEqual(302);
  expect(numbers.history.at(-1)!.tokS).toBe(59_980);
  expect(numbers.history[0]!.at).toBeGreaterThanOrEqual(29_900);
});

test("stored sums are shown per cycle", () => {
  const numbers = new Live();
  numbers.showStored(replyStats({ cycles: 4, drafted: [4, 2], accepted: [3, 1], phase_ms: { draft: 8, verify: 40, sample: 4, other: 2 } }));
  expect(numbers.numbers.phaseMs).toEqual({ draft: 2, verify: 10, sample: 1, other: 0.5 });
  expect(numbers.numbers.byDepth).toEqual([0.75, 0.5]);
});

test("numbers as a person reads them", () => {
  expect([tokS(41.23), tokS(1234.5), tokS(null)]).toEqual(["41.2", "1,235", "–"]);
  expect([milliseconds(812), milliseconds(12_340)]).toEqual(["812 ms", "12.3 s"]);
  expect([duration(12_300), duration(64_000)]).toEqual(["12 s", "1 min 4 s"]);
  expect([bytes(402 * 1024 ** 2), bytes(4.9 * 1024 ** 3), bytes(103 * 1024 ** 3)]).toEqual(["402 MB", "4.9 GB", "103 GB"]);
  expect([resolveTheme("system", true), resolveTheme("light", true)]).toEqual(["dark", "light"]);
});

test("a sentence about drafting can be read before the next one comes, except where the person switched", () => {
  const numbers = new Live();
  numbers.begin();
  const say = (at: number, sentence: string, state: "on" | "off" = "on") =>
    numbers.step(live({ drafting: { state, depth: 1, speedup: null, sentence } }), at);
  say(0, "one");
  say(100, "two");
  expect(numbers.drafting!.sentence).toBe("one");
  say(600, "three");
  expect(numbers.drafting!.sentence).toBe("three");
  say(616, "off", "off");
  expect(numbers.drafting!.sentence).toBe("off");
  say(632, "four");
  expect(numbers.drafting!.sentence).toBe("four");
  say(648, "five");
  numbers.end(live({ drafting: { state: "on", depth: 1, speedup: null, sentence: "last" } }), null);
  expect(numbers.drafting!.sentence).toBe("last");
});
