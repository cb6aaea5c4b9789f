import { fireEvent, render, screen, waitFor, within } from "@testing-library/svelte";
import { expect, test } from "vitest";
import App from "../src/App.svelte";
import type { FakeSetup } from "../src/backend/fake";
import { NO_HEAD_MODEL, STEP_MODEL } from "../src/backend/fake_texts";
import { failure, started } from "./support";

const CHOOSE = "MTP head from another folder…";
const CHOSEN = "/data/models/GLM-4.7-Flash";

async function models(change: (setup: FakeSetup) => void = () => {}) {
  const ready = await started(change);
  ready.stores.place.go("models");
  render(App, { stores: ready.stores });
  await screen.findByRole("article", { name: "Step 3.5 Flash 4bit" });
  return ready;
}

const field = (name: string) => within(screen.getByRole("group", { name: `MTP head of ${name}` }));
const bare = () => field("Step 3.5 Flash 4bit");
const whole = () => field("Step 3.5 Flash");

test("every model that can be loaded has the field; one without a head says so", async () => {
  await models();
  expect(bare().getByText("No MTP head in this model: nothing is drafted.")).toBeTruthy();
  expect(bare().getByText(CHOOSE).classList).not.toContain("plain");
  expect(whole().queryByText(/No MTP head/)).toBeNull();
  expect(whole().getByText(CHOOSE).classList).toContain("plain");
  expect(screen.queryByRole("group", { name: "MTP head of hy3-preview" })).toBeNull();
});

test("a head is chosen with the dialog for folders and shown by its name", async () => {
  const { backend } = await models();
  const button = bare().getByText(CHOOSE);
  button.focus();
  await fireEvent.click(button);
  const shown = await bare().findByText("GLM-4.7-Flash");
  expect(shown.parentElement!.title).toBe(CHOSEN);
  expect(backend.calls.findLast((c) => c.cmd === "model_set_head")).toEqual({ cmd: "model_set_head", req: { id: NO_HEAD_MODEL.id, head: CHOSEN } });
  expect(bare().queryByText(CHOOSE)).toBeNull();
  // The button that was pressed is gone: the next one has the focus.
  await waitFor(() => expect(document.activeElement).toBe(bare().getByText("Change…")));
  // It is not in memory, so nothing is loaded for it.
  expect(backend.calls.some((c) => c.cmd === "model_load")).toBe(false);
});

test("a model on this computer can give its head", async () => {
  const { backend } = await models();
  const list = bare().getByLabelText<HTMLSelectElement>("MTP head from a model on this computer");
  expect([...list.options].map((o) => o.text)).toEqual(["or from a model here", "Step 3.5 Flash"]);
  await fireEvent.change(list, { target: { value: STEP_MODEL.id } });
  expect(await bare().findByText(STEP_MODEL.id)).toBeTruthy();
  expect(backend.calls.findLast((c) => c.cmd === "model_set_head")).toEqual({ cmd: "model_set_head", req: { id: NO_HEAD_MODEL.id, head: STEP_MODEL.id } });
});

test("closing the dialog changes nothing", async () => {
  const { backend, stores } = await models();
  const before = stores.models.entries;
  const call = backend.call.bind(backend);
  backend.call = ((cmd, req, on) => (cmd === "model_choose_folder" ? Promise.resolve(null) : call(cmd, req, on))) as typeof backend.call;
  await fireEvent.click(bare().getByText(CHOOSE));
  await waitFor(() => expect(stores.models.settingHead).toBeNull());
  expect(stores.models.entries).toEqual(before);
  expect(backend.calls.some((c) => c.cmd === "model_set_head")).toBe(false);
});

test("a refusal is said in the field and leaves what was set", async () => {
  const { backend, stores } = await models((s) => (s.entries[2]!.head = "acme/Step-Head"));
  backend.refuseNext.set("model_set_head", { ...failure, code: "not_found", message: "There is no MTP head in it. Choose another." });
  await fireEvent.click(bare().getByText("Change…"));
  const alert = await bare().findByRole("alert");
  expect(alert.textContent).toContain("There is no MTP head in it. Choose another.");
  expect(alert.textContent).toContain("cause");
  expect(bare().getByText("acme/Step-Head")).toBeTruthy();
  expect(stores.problems.errors).toEqual([]);
  expect(whole().queryByRole("alert")).toBeNull();
  await fireEvent.click(within(alert).getByLabelText("Dismiss"));
  expect(bare().queryByRole("alert")).toBeNull();
  expect(document.activeElement).toBe(bare().getByText("Change…"));
});

test("a head is removed, or the model's own is used again", async () => {
  const { backend } = await models((s) => {
    s.entries[1]!.head = "/data/heads/other";
    s.entries[2]!.head = "/data/heads/other";
  });
  await fireEvent.click(bare().getByText("Remove"));
  expect(await bare().findByText(CHOOSE)).toBeTruthy();
  expect(backend.calls.findLast((c) => c.cmd === "model_set_head")).toEqual({ cmd: "model_set_head", req: { id: NO_HEAD_MODEL.id, head: null } });
});

test("the model in memory is loaded again, with the fields closed meanwhile", async () => {
  const { stores } = await models((s) => (s.model = NO_HEAD_MODEL));
  expect(stores.models.loaded?.report.head.found).toBe(false);
  await fireEvent.click(bare().getByText(CHOOSE));
  await waitFor(() => expect(stores.models.loading).not.toBeNull());
  expect(bare().getByText<HTMLButtonElement>("Change…").disabled).toBe(true);
  expect(whole().getByText<HTMLButtonElement>(CHOOSE).disabled).toBe(true);
  await waitFor(() => expect(stores.models.loaded?.report.head.sentence).toContain("from GLM-4.7-Flash."));
  expect(screen.getByText(/, from GLM-4.7-Flash\.$/)).toBeTruthy();
  await waitFor(() => expect(bare().getByText<HTMLButtonElement>("Remove").disabled).toBe(false));
  await fireEvent.click(bare().getByText("Remove"));
  await waitFor(() => expect(stores.models.loaded?.report.head.found).toBe(false));
});

test("a head that does not fit fails the load, and the field still takes it back", async () => {
  const { stores } = await models((s) => {
    s.model = NO_HEAD_MODEL;
    s.load = "fails";
  });
  await fireEvent.click(bare().getByText(CHOOSE));
  await screen.findByTestId("error-banner");
  await waitFor(() => expect(bare().getByText<HTMLButtonElement>("Remove").disabled).toBe(false));
  expect(stores.models.entries[2]!.head).toBe(CHOSEN);
});

test("the drafting control of a model without a head leads to its field", async () => {
  const { stores } = await started((s) => (s.model = NO_HEAD_MODEL));
  render(App, { stores });
  const toggle = screen.getByTestId("draft-switch");
  const why = document.getElementById(toggle.getAttribute("aria-describedby")!)!;
  expect(why.textContent).toBe(`${NO_HEAD_MODEL.report.head.sentence} Choose a head for it under Models.`);
  await fireEvent.click(screen.getByTestId("add-head"));
  await waitFor(() => expect(document.activeElement).toBe(bare().getByText(CHOOSE)));
  expect(stores.place.headWanted).toBeNull();
});

test("a reply that starts in thought shows that it thinks, folded", async () => {
  const { stores } = await started((s) => (s.reply.holdAtCycle = 6));
  render(App, { stores });
  stores.conversation.draft = "Why?";
  await stores.conversation.send();
  const fold = await screen.findByRole("button", { name: /^Thinking…/ });
  expect(fold.getAttribute("aria-expanded")).toBe("false");
  const thought = document.getElementById(fold.getAttribute("aria-controls")!)!;
  expect(thought.hidden).toBe(true);
  expect(thought.textContent).not.toBe("");
  expect(screen.getAllByTestId("message-text").at(-1)!.textContent!.trim()).toBe("");
  await fireEvent.click(fold);
  expect(thought.hidden).toBe(false);
  await stores.conversation.stop();
  await waitFor(() => expect(stores.conversation.busy).toBe(false));
});
