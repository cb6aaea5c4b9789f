import { expect, test } from "vitest";
import { FIELD_RULES, parseField, recommendedText, showNumber } from "../src/state/sampling";
import { eventually, started } from "./support";

const rule = (key: string) => FIELD_RULES.find((r) => r.key === key)!;

test.each([
  ["temperature", "0", 0],
  ["temperature", "0,7", 0.7],
  ["topP", "1", 1],
  ["topK", "40", 40],
  ["minP", "0.05", 0.05],
  ["seed", "9007199254740991", 9007199254740991],
  ["presencePenalty", "-1.5", -1.5],
  ["maxTokens", "", null],
])("%s takes %j", (key, text, value) => {
  expect(parseField(rule(key), text)).toEqual({ value, problem: null });
});

test.each([
  ["temperature", "-1"],
  ["temperature", "warm"],
  ["temperature", "1e1"],
  ["topP", "0"],
  ["topP", "1.1"],
  ["topK", "1.5"],
  ["minP", "1"],
  ["repetitionPenalty", "0"],
  ["seed", "-1"],
  ["seed", "9007199254740993"],
  ["maxTokens", "0"],
])("%s refuses %j with a sentence", (key, text) => {
  expect(parseField(rule(key), text).problem).toMatch(/\.$/);
});

test("a recommended f32 is shown without its rounding", () => {
  expect(showNumber(0.6000000238418579)).toBe("0.6");
  expect(recommendedText(rule("topK"), null)).toBe("0");
});

test("drafting is switched in the middle of a reply, and the engine follows", async () => {
  const { stores, backend } = await started((s) => {
    s.reply.thought = null;
    s.reply.answer = "word ".repeat(3000);
  });
  const { conversation, settings, live } = stores;
  conversation.draft = "Go";
  await conversation.send();
  await eventually(() => expect(live.stats?.drafting.state).toBe("on"));
  await settings.setDrafting(false);
  expect(backend.calls.at(-1)).toMatchObject({ cmd: "options_set", req: { draft: { kind: "off" } } });
  await eventually(() => expect(live.stats?.drafting.state).toBe("off"));
  await settings.setDepth("3");
  await eventually(() => expect(live.stats?.drafting.depth).toBe(3));
  expect(conversation.busy).toBe(true);
  await conversation.stop();
  await eventually(() => expect(conversation.busy).toBe(false));
});

test("switching drafting off and on brings the depth back", async () => {
  const { stores } = await started();
  const { settings } = stores;
  await settings.setDepth("5");
  await settings.setDrafting(false);
  expect(settings.depthChoice).toBe("5");
  await settings.setDrafting(true);
  expect(settings.options.draft).toEqual({ kind: "fixed", depth: 5 });
});

test("the sentence of an old reply is not shown for new options", async () => {
  const { stores } = await started();
  const { conversation, live, models, settings } = stores;
  conversation.draft = "Go";
  await conversation.send();
  await eventually(() => expect(conversation.busy).toBe(false));
  expect(live.draftingLine(models.loaded, settings.options)).toMatch(/faster than without/);
  await settings.setDrafting(false);
  expect(live.draftingLine(models.loaded, settings.options)).toBe("Drafting off.");
});

test("writes reach the engine in the order of the clicks", async () => {
  const { stores, backend } = await started();
  const { settings } = stores;
  await Promise.all([settings.setDrafting(false), settings.setDepth("2"), settings.change({ theme: "dark" })]);
  expect(backend.calls.slice(-3).map((c) => c.cmd)).toEqual(["options_set", "options_set", "settings_set"]);
  expect((backend.calls.at(-1)!.req as { options: { draft: unknown } }).options.draft).toEqual({ kind: "fixed", depth: 2 });
});

test("at the start the last model is loaded, else the starter", async () => {
  const last = await started((s) => (s.model = null));
  expect(last.backend.calls.find((c) => c.cmd === "model_load")?.req).toEqual({ id: "stepfun-ai/Step-3.5-Flash", anyway: false });
  const first = await started((s) => {
    s.model = null;
    s.settings.lastModel = null;
  });
  expect(first.backend.calls.find((c) => c.cmd === "model_load")?.req).toEqual({ id: "starter", anyway: false });
  expect(first.stores.models.loaded?.id).toBe("starter");
});
