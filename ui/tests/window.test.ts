import { fireEvent, render, screen, waitFor, within } from "@testing-library/svelte";
import { expect, test } from "vitest";
import App from "../src/App.svelte";
import { NO_HEAD_MODEL } from "../src/backend/fake_texts";
import type { FakeSetup } from "../src/backend/fake";
import { failure, started } from "./support";

async function open(change: (setup: FakeSetup) => void = () => {}) {
  const ready = await started(change);
  render(App, { stores: ready.stores });
  return ready;
}

const composer = () => screen.getByTestId<HTMLTextAreaElement>("composer");

async function type(text: string) {
  await fireEvent.input(composer(), { target: { value: text } });
}

test("Enter sends, the text streams in, and the numbers are shown", async () => {
  await open((s) => (s.reply.thought = null));
  await type("Why?");
  await fireEvent.keyDown(composer(), { key: "Enter" });
  await waitFor(() => expect(screen.getByTestId("stop")).toBeTruthy());
  await waitFor(() => expect(screen.getAllByTestId("message").at(-1)!.dataset.streaming).toBe("false"));
  const [user, reply] = screen.getAllByTestId("message");
  expect(user!.dataset.role).toBe("user");
  expect(within(user!).getByTestId("message-text").textContent).toBe("Why?");
  expect(reply!.dataset.role).toBe("assistant");
  expect(within(reply!).getByTestId("message-text").textContent).toContain("A head that predicts more than one token");
  expect(within(reply!).getByTestId("message-stats").textContent).toMatch(/^\s*\d+\.\d tok\/s · \d+% · \d\.\d\/cycle/);
  for (const id of ["live-now", "live-reply", "live-prefill", "live-accept", "live-tokens-per-cycle"]) expect(screen.getByTestId(id).textContent).toMatch(/\d/);
  expect(screen.getByTestId("live-ttft").textContent).toBe("812 ms");
  expect(Number(screen.getByTestId("live-depth-1").dataset.rate)).toBeGreaterThan(0.5);
  expect(screen.getByTestId("drafting-line").textContent).toMatch(/Drafting on, depth 2/);
  expect(screen.getByTestId("send")).toBeTruthy();
});

test("Shift+Enter and the Enter of a composition do not send", async () => {
  const { backend } = await open();
  await type("にほ");
  await fireEvent.keyDown(composer(), { key: "Enter", shiftKey: true });
  await fireEvent.keyDown(composer(), { key: "Enter", isComposing: true });
  await fireEvent.keyDown(composer(), { key: "Enter", keyCode: 229 });
  expect(backend.calls.some((c) => c.cmd === "chat_send" || c.cmd === "chat_create")).toBe(false);
  expect(composer().value).toBe("にほ");
});

test("Escape stops the reply", async () => {
  await open((s) => {
    s.reply.thought = null;
    s.reply.holdAtCycle = 4;
  });
  await type("Why?");
  await fireEvent.keyDown(composer(), { key: "Enter" });
  await waitFor(() => expect(screen.getAllByTestId("message")).toHaveLength(2));
  await fireEvent.keyDown(composer(), { key: "Escape" });
  await waitFor(() => expect(screen.getByText("Stopped.")).toBeTruthy());
});

test("a refused send leaves the text in the composer and says why", async () => {
  const { backend } = await open();
  backend.refuseNext.set("chat_send", failure);
  await type("Keep me");
  await fireEvent.click(screen.getByTestId("send"));
  await waitFor(() => expect(screen.getByTestId("error-banner").textContent).toContain(failure.message));
  expect(composer().value).toBe("Keep me");
  await fireEvent.click(within(screen.getByTestId("error-banner")).getByLabelText("Dismiss"));
  expect(screen.queryByTestId("error-banner")).toBeNull();
});

test("the drafting switch and the depth call the engine at once", async () => {
  const { backend } = await open();
  const toggle = screen.getByTestId("draft-switch");
  expect(toggle.getAttribute("role")).toBe("switch");
  expect(toggle.getAttribute("aria-checked")).toBe("true");
  await fireEvent.click(toggle);
  expect(toggle.getAttribute("aria-checked")).toBe("false");
  await waitFor(() => expect(backend.calls.at(-1)).toMatchObject({ cmd: "options_set", req: { draft: { kind: "off" } } }));
  await fireEvent.change(screen.getByTestId("depth-select"), { target: { value: "4" } });
  await waitFor(() => expect(backend.calls.at(-1)).toMatchObject({ cmd: "options_set", req: { draft: { kind: "fixed", depth: 4 } } }));
  expect(toggle.getAttribute("aria-checked")).toBe("true");
});

test("without a head the switch is off, disabled, and says why", async () => {
  await open((s) => (s.model = NO_HEAD_MODEL));
  const toggle = screen.getByTestId<HTMLButtonElement>("draft-switch");
  expect(toggle.disabled).toBe(true);
  expect(toggle.getAttribute("aria-checked")).toBe("false");
  expect(screen.getByTestId("drafting-line").textContent).toBe(`${NO_HEAD_MODEL.report.head.sentence} Choose a head for it under Models.`);
});

test("sampling: recommended values are shown, wrong ones are marked and not sent", async () => {
  const { backend, stores } = await open();
  await fireEvent.click(screen.getByTestId("sampling-button"));
  const field = await screen.findByTestId<HTMLInputElement>("temperature-input");
  expect(field.placeholder).toBe("0.6");
  await fireEvent.input(field, { target: { value: "99" } });
  expect(field.getAttribute("aria-invalid")).toBe("true");
  expect(screen.getByText("Temperature is a number from 0 to 10.")).toBeTruthy();
  expect(backend.calls.some((c) => c.cmd === "options_set")).toBe(false);
  await fireEvent.input(field, { target: { value: "0.9" } });
  await waitFor(() => expect(backend.calls.at(-1)).toMatchObject({ cmd: "options_set", req: { sampling: { temperature: 0.9 } } }));
  await fireEvent.click(screen.getByTestId("sampling-reset"));
  expect(stores.settings.usesRecommended).toBe(true);
  expect(screen.getByTestId<HTMLInputElement>("temperature-input").value).toBe("");
  await fireEvent.keyDown(screen.getByTestId("temperature-input"), { key: "Escape" });
  expect(screen.queryByTestId("temperature-input")).toBeNull();
  expect(document.activeElement).toBe(screen.getByTestId("sampling-button"));
});

test("shortcuts: new chat, search, and an empty result", async () => {
  const { stores } = await open();
  await stores.conversation.open(1);
  await fireEvent.keyDown(window, { key: "n", ctrlKey: true });
  expect(stores.conversation.chatId).toBeNull();
  await fireEvent.keyDown(window, { key: "f", ctrlKey: true });
  const search = screen.getByLabelText<HTMLInputElement>("Search chats");
  await waitFor(() => expect(document.activeElement).toBe(search));
  await fireEvent.input(search, { target: { value: "quince jam" } });
  expect(await screen.findByText("Nothing found for “quince jam”.")).toBeTruthy();
  await fireEvent.keyDown(search, { key: "Escape" });
  expect(screen.getAllByTestId("chat-item").length).toBeGreaterThan(5);
});

test("chats by keyboard: arrows, rename with F2, delete with a question", async () => {
  const { stores } = await open();
  const rows = await screen.findAllByTestId("chat-item");
  rows[0]!.focus();
  await fireEvent.keyDown(rows[0]!, { key: "ArrowDown" });
  expect(document.activeElement).toBe(rows[1]);
  await fireEvent.keyDown(rows[1]!, { key: "F2" });
  const name = screen.getByLabelText("Name of the chat");
  await fireEvent.input(name, { target: { value: "Renamed" } });
  await fireEvent.keyDown(name, { key: "Enter" });
  await waitFor(() => expect(stores.chats.titleOf(2)).toBe("Renamed"));
  const renamed = await screen.findByTitle("Renamed");
  await fireEvent.keyDown(renamed, { key: "Delete" });
  await fireEvent.click(screen.getByText("Delete"));
  await waitFor(() => expect(stores.chats.list.some((c) => c.id === 2)).toBe(false));
});

test("links of a reply go to the system, the window stays", async () => {
  const { backend, stores } = await open();
  await stores.conversation.open(1);
  const link = await screen.findByText("the paper");
  const stays = await fireEvent.click(link);
  expect(stays).toBe(false);
  expect(backend.calls.at(-1)).toEqual({ cmd: "open_link", req: { url: "https://arxiv.org/abs/2404.19737" } });
});

test("notices can be dismissed; the reply of a crash says so", async () => {
  const { stores } = await open((s) => {
    s.notices = [{ sentence: "The chats were set aside.", detail: "why" }];
    s.chats[0]!.messages[1]!.finish = "interrupted";
  });
  expect(screen.getByTestId("notice").textContent).toContain("The chats were set aside.");
  await fireEvent.click(within(screen.getByTestId("notice")).getByLabelText("Dismiss"));
  expect(screen.queryByTestId("notice")).toBeNull();
  await stores.conversation.open(1);
  expect(await screen.findByText("The last reply was saved up to here.")).toBeTruthy();
});

test("a long chat draws its end first", async () => {
  const { stores } = await open((s) => {
    const one = s.chats[0]!.messages;
    s.chats[0]!.messages = Array.from({ length: 200 }, (_, i) => ({ ...one[i % 2]!, id: i + 1, text: `message ${i}` }));
  });
  await stores.conversation.open(1);
  await waitFor(() => expect(screen.getAllByTestId("message")).toHaveLength(30));
  expect(screen.getAllByTestId("message").at(-1)!.textContent).toContain("message 199");
  await fireEvent.click(screen.getByText("Show earlier messages"));
  expect(screen.getAllByTestId("message")).toHaveLength(60);
});
