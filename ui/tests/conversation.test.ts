import { expect, test } from "vitest";
import { ANSWER, THOUGHT } from "../src/backend/fake_texts";
import { eventually, failure, started } from "./support";

test("a message makes a chat, and its reply arrives whole", async () => {
  const { stores } = await started();
  const { conversation, chats } = stores;
  const before = chats.list.length;
  conversation.draft = "Why?";
  await conversation.send();
  expect(conversation.draft).toBe("");
  await eventually(() => expect(conversation.busy).toBe(false));
  expect(conversation.entries.map((e) => e.message.role)).toEqual(["user", "assistant"]);
  expect(conversation.entries[0]!.message.text).toBe("Why?");
  expect(conversation.entries[1]!.message.text).toBe(ANSWER);
  expect(conversation.entries[1]!.message.thought).toBe(THOUGHT);
  expect(conversation.entries[1]!.message.finish).toBe("stop");
  expect(chats.list.length).toBe(before + 1);
  expect(chats.list[0]!.title).toBe("Why?");
  expect(stores.live.numbers.acceptRate).toBeGreaterThan(0.5);
  expect(conversation.announcement).toBe("Reply finished.");
});

test("stop keeps what was written", async () => {
  const { stores, backend } = await started((s) => {
    s.reply.thought = null;
    s.reply.holdAtCycle = 5;
  });
  const { conversation } = stores;
  conversation.draft = "Why?";
  await conversation.send();
  await eventually(() => expect(conversation.entries[1]?.message.text).not.toBe(""));
  await conversation.stop();
  await eventually(() => expect(conversation.busy).toBe(false));
  expect(conversation.entries[1]!.message.finish).toBe("stopped");
  expect(ANSWER.startsWith(conversation.entries[1]!.message.text)).toBe(true);
  expect(backend.calls.some((c) => c.cmd === "chat_stop")).toBe(true);
});

test("a refused send gives the text back, before what was typed since", async () => {
  const { stores, backend } = await started();
  const { conversation, problems } = stores;
  backend.refuseNext.set("chat_send", failure);
  conversation.draft = "first";
  const sending = conversation.send();
  conversation.draft = "second";
  await sending;
  expect(conversation.draft).toBe("first\n\nsecond");
  expect(conversation.entries).toEqual([]);
  expect(problems.errors.map((p) => p.error.message)).toEqual([failure.message]);
  expect(conversation.busy).toBe(false);
});

test("the text comes back when the chat cannot be made", async () => {
  const { stores, backend } = await started();
  backend.refuseNext.set("chat_create", failure);
  stores.conversation.draft = "hello";
  await stores.conversation.send();
  expect(stores.conversation.draft).toBe("hello");
});

test("an error in the middle keeps both messages", async () => {
  const { stores } = await started((s) => {
    s.reply.thought = null;
    s.reply.failAtCycle = 8;
    s.reply.error = failure;
  });
  const { conversation, problems } = stores;
  conversation.draft = "Why?";
  await conversation.send();
  await eventually(() => expect(conversation.busy).toBe(false));
  expect(conversation.entries).toHaveLength(2);
  expect(conversation.entries[1]!.message.finish).toBe("failed");
  expect(conversation.entries[1]!.message.text.length).toBeGreaterThan(0);
  expect(problems.errors).toHaveLength(1);
});

test("a message sent while the model loads is sent when it is ready", async () => {
  const { stores } = await started();
  const { conversation, models } = stores;
  const loading = models.load("starter");
  conversation.draft = "Early";
  await conversation.send();
  expect(conversation.waiting?.text).toBe("Early");
  await loading;
  expect(conversation.waiting).toBeNull();
  await eventually(() => expect(conversation.entries[0]?.message.text).toBe("Early"));
  await eventually(() => expect(conversation.busy).toBe(false));
});

test("a message that waits comes back when the load fails", async () => {
  const { stores } = await started((s) => (s.load = "fails"));
  const loading = stores.models.load("starter");
  stores.conversation.draft = "Early";
  await stores.conversation.send();
  await loading;
  expect(stores.conversation.draft).toBe("Early");
  expect(stores.models.failed?.error.code).toBe("missing_tensor");
});

test("each chat keeps what is being typed in it", async () => {
  const { stores } = await started();
  const { conversation } = stores;
  conversation.draft = "for the new one";
  await conversation.open(1);
  expect(conversation.draft).toBe("");
  conversation.draft = "for the first";
  await conversation.open(2);
  await conversation.open(1);
  expect(conversation.draft).toBe("for the first");
  conversation.newChat();
  expect(conversation.draft).toBe("for the new one");
});

test("a reply goes on while another chat is looked at", async () => {
  const { stores } = await started((s) => (s.reply.thought = null));
  const { conversation } = stores;
  conversation.draft = "Why?";
  await conversation.send();
  await eventually(() => expect(conversation.entries).toHaveLength(2));
  const mine = conversation.chatId!;
  await conversation.open(1);
  expect(conversation.runsHere).toBe(false);
  conversation.draft = "not yet";
  await conversation.send();
  expect(conversation.draft).toBe("not yet");
  await conversation.open(mine);
  await eventually(() => expect(conversation.busy).toBe(false));
  expect(conversation.entries.at(-1)!.message.text).toBe(ANSWER);
});

test("a retry replaces the reply once it is accepted, and leaves it when refused", async () => {
  const { stores, backend } = await started((s) => (s.reply.answer = "Again."));
  const { conversation } = stores;
  await conversation.open(1);
  const old = conversation.entries[1]!.message;
  backend.refuseNext.set("chat_retry", failure);
  await conversation.retry(old.id);
  expect(conversation.entries[1]!.message).toBe(old);
  await conversation.retry(old.id);
  await eventually(() => expect(conversation.busy).toBe(false));
  expect(conversation.entries).toHaveLength(2);
  expect(conversation.entries[1]!.message.text).toBe("Again.");
});

test("deleting the open chat leaves an empty page", async () => {
  const { stores } = await started();
  await stores.conversation.open(1);
  await stores.conversation.remove(1);
  expect(stores.conversation.chatId).toBeNull();
  expect(stores.chats.list.some((c) => c.id === 1)).toBe(false);
});
