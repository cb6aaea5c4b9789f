import { expect, test, vi } from "vitest";
import { Live } from "../src/state/live.svelte";
import { RunningReply } from "../src/state/reply.svelte";
import { failure, live, message, replyStats, step } from "./support";

function begin() {
  const numbers = new Live();
  const ended = vi.fn();
  numbers.begin();
  const run = new RunningReply(1, numbers, { accepted: () => {}, ended });
  run.take({ kind: "accepted", user: null, reply: message(), title: "t" });
  return { run, numbers, ended };
}

const frame = () => new Promise<void>((done) => requestAnimationFrame(() => done()));

test("steps of one frame are shown together and in their order", async () => {
  const { run, numbers } = begin();
  run.take({ kind: "prefill", done: 3, total: 9, reused: 0 });
  expect(numbers.prefill).toEqual({ done: 3, total: 9, reused: 0 });
  for (const piece of ["a ", "b ", "c"]) run.take(step(piece, "", { tokens: 1 }));
  expect(run.entry!.message.text).toBe("");
  await frame();
  await frame();
  expect(run.entry!.message.text).toBe("a b c");
  expect(numbers.prefill).toBeNull();
});

test("the end of a reply takes along the text that waits for its frame", () => {
  const { run, numbers, ended } = begin();
  run.take(step("last words"));
  run.take({ kind: "finished", reason: "stop", stats: replyStats({ generated_tokens: 2 }), live: live({ tokens: 2 }) });
  expect(run.entry!.message).toMatchObject({ text: "last words", finish: "stop" });
  expect(run.entry!.message.stats!.generated_tokens).toBe(2);
  expect(run.entry!.running).toBe(false);
  expect(numbers.running).toBe(false);
  expect(ended).toHaveBeenCalledExactlyOnceWith(null);
});

test("a failure keeps what was written, and nothing is taken after the end", () => {
  const { run, ended } = begin();
  run.take(step("half a "));
  run.take({ kind: "failed", error: failure });
  run.take(step("ghost"));
  run.fail(failure);
  expect(run.entry!.message).toMatchObject({ text: "half a ", finish: "failed" });
  expect(ended).toHaveBeenCalledExactlyOnceWith(failure);
});

test("a thought is kept apart and timed until the answer begins", () => {
  vi.useFakeTimers();
  const { run } = begin();
  run.take(step("", "hm "));
  vi.advanceTimersByTime(300);
  expect(run.entry!.thinkingSince).not.toBeNull();
  vi.advanceTimersByTime(12_000);
  run.take(step("So", "yes"));
  vi.advanceTimersByTime(300);
  expect(run.entry!.message).toMatchObject({ text: "So", thought: "hm yes" });
  expect(run.entry!.thinkingSince).toBeNull();
  expect(Math.round(run.entry!.thoughtMs! / 1000)).toBe(12);
  vi.useRealTimers();
});
