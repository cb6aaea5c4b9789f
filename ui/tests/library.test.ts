import { fireEvent, render, screen, waitFor, within } from "@testing-library/svelte";
import { expect, test } from "vitest";
import App from "../src/App.svelte";
import type { FakeSetup } from "../src/backend/fake";
import { SCENES } from "../src/backend/fake_scenes";
import { download } from "../src/backend/fake_shelf";
import { NO_HEAD_MODEL, STEP_MODEL } from "../src/backend/fake_texts";
import { article, button, models, REPOSITORY, TITLE, TYPED } from "./models_view";
import { failure, quickClock, started } from "./support";

const field = () => screen.getByLabelText<HTMLInputElement>("Search models, or name one of the hub");

test("every scene of the library can be set up and opened", async () => {
  for (const name of Object.keys(SCENES).filter((n) => n.startsWith("library-"))) {
    const { setup, act } = SCENES[name]!;
    const { stores } = await started((s) => Object.assign(s, setup(), { clock: quickClock }));
    const { unmount } = render(App, { stores });
    if (act.view) stores.place.go(act.view);
    if (act.page) stores.library.openAny(act.page);
    await waitFor(() => expect(stores.library.looking).toBe(false));
    expect(screen.getByRole("main").textContent!.trim(), name).not.toBe("");
    unmount();
  }
});

test("cards say their state in words, and only what can be fetched has a button for it", async () => {
  await models((s) => (s.entries[3] = { ...s.entries[3]!, missing: true, problem: "The volume Archive is not connected. Connect it." }));
  const mark = (name: string) => article(name).getByTestId("mark").textContent;
  expect(mark("Step 3.5 Flash")).toBe("Loaded");
  expect(mark("Step 3.5 Flash 4bit")).toBe("Needs a head");
  expect(mark("SmolLM2 135M")).toBe("Ready");
  expect(mark("hy3-preview")).toBe("Volume not connected");
  expect(article("hy3-preview").queryByRole("button", { name: "Load" })).toBeNull();
  expect(article("hy3-preview").queryByRole("button", { name: "Check files" })).toBeNull();
  expect(article("hy3-preview").getByRole("button", { name: "Forget…" })).toBeTruthy();
  expect(mark("Qwen3.5 9B, 6-bit")).toBe("Available");
  expect(article("Qwen3.5 9B, 6-bit").getByText(/about 8\.1 GB/)).toBeTruthy();
  expect(mark("Hy3, 4-bit")).toBe("Does not fit");
  expect(mark("Gemma 4 with drafter")).toBe("Not supported yet");
  expect(mark("Step 3.5 Flash, 4-bit")).toBe("On the disk");
  for (const name of ["Hy3, 4-bit", "Gemma 4 with drafter", "Step 3.5 Flash, 4-bit"]) expect(article(name).queryByRole("button", { name: /^Download/ })).toBeNull();
  await waitFor(() => expect(article("Step 3.5 Flash 4bit").getByText(/^Needs \d/)).toBeTruthy());
});

test("the chips keep what a machine of that size can run, and the search filters both lists", async () => {
  await models();
  await fireEvent.click(screen.getByLabelText("16 GB"));
  expect(screen.queryByRole("article", { name: TITLE })).toBeNull();
  expect(screen.getByRole("article", { name: "Qwen3.5 9B, 6-bit" })).toBeTruthy();
  expect(screen.getByLabelText("Fits this computer (128 GB)")).toBeTruthy();
  await fireEvent.input(field(), { target: { value: "step" } });
  expect(screen.getByRole("article", { name: "Step 3.5 Flash 4bit" })).toBeTruthy();
  expect(screen.getByText("None of those offered matches.")).toBeTruthy();
  await fireEvent.input(field(), { target: { value: "quince jam" } });
  expect(screen.getByTestId("nothing-found").textContent).toContain("Nothing matches “quince jam”.");
  await fireEvent.keyDown(field(), { key: "Escape" });
  expect(field().value).toBe("");
  expect(screen.getByRole("article", { name: "SmolLM2 135M" })).toBeTruthy();
});

test("a name or an address is looked at with Enter, and nothing is fetched for it", async () => {
  const { backend, count } = await models();
  await fireEvent.input(field(), { target: { value: `https://hub.example/${TYPED}/tree/v2` } });
  expect(screen.getByRole("button", { name: `Look at ${TYPED}@v2` })).toBeTruthy();
  await fireEvent.keyDown(field(), { key: "Enter" });
  await waitFor(() => expect(button(/^Download \(/)).toBeTruthy());
  expect(backend.calls.find((c) => c.cmd === "hub_inspect")?.req).toEqual({ text: `https://hub.example/${TYPED}/tree/v2` });
  expect(screen.getByRole("heading", { level: 1 }).textContent).toBe(TYPED);
  expect(count("download_start")).toBe(0);
  await fireEvent.click(button(/^Download \(/));
  await waitFor(() => expect(screen.getByTestId("download").dataset.state).toBe("queued"));
  expect(screen.queryByRole("button", { name: /^Download \(/ })).toBeNull();
  expect(count("download_start")).toBe(1);
});

test("the keyboard reaches a page and comes back to where it was", async () => {
  const { stores } = await models();
  const title = article(TITLE).getByRole("button", { name: TITLE });
  title.focus();
  await fireEvent.click(title);
  await waitFor(() => expect(document.activeElement).toBe(screen.getByRole("heading", { level: 1, name: TITLE })));
  await fireEvent.keyDown(document.activeElement!, { key: "Escape" });
  expect(stores.library.page).toBeNull();
  await waitFor(() => expect(document.activeElement).toBe(article(TITLE).getByRole("button", { name: TITLE })));
  await fireEvent.click(article("SmolLM2 135M").getByRole("button", { name: "SmolLM2 135M" }));
  await fireEvent.click(await screen.findByLabelText("Back to all models"));
  await waitFor(() => expect(document.activeElement).toBe(article("SmolLM2 135M").getByRole("button", { name: "SmolLM2 135M" })));
});

test("a head the catalogue knows is offered without asking the hub; one that is nowhere is said", async () => {
  const { stores } = await models((s) => {
    s.entries[2]!.repository = REPOSITORY;
    s.library.foundHead = { kind: "missing", sentence: "No head is known for it. Use it without." };
  });
  expect(article("Step 3.5 Flash 4bit").getByRole("button", { name: "Get the MTP head (922 MB)" })).toBeTruthy();
  await stores.library.findHead(NO_HEAD_MODEL.id);
  expect(await screen.findByText("No head is known for it. Use it without.")).toBeTruthy();
});

test("a load that does not fit is refused with the numbers, and tried anyway once", async () => {
  const refusal = { ...failure, code: "out_of_memory" as const, message: "It needs 112 GB, and 24 GB are free." };
  const { backend, stores } = await models((s) => (s.loadRefusal = refusal));
  await fireEvent.click(article("SmolLM2 135M").getByRole("button", { name: "Load" }));
  const banner = within(await screen.findByTestId("error-banner"));
  expect(banner.getByText(refusal.message)).toBeTruthy();
  backend.refuseNext.set("model_load", refusal);
  await fireEvent.click(banner.getByRole("button", { name: "Try anyway" }));
  expect(backend.calls.findLast((c) => c.cmd === "model_load")?.req).toEqual({ id: "starter", anyway: true });
  const again = within(await screen.findByTestId("error-banner"));
  expect(again.queryByRole("button", { name: "Try anyway" })).toBeNull();
  await fireEvent.click(again.getByRole("button", { name: "Try again" }));
  await waitFor(() => expect(stores.models.failed?.anyway).toBe(false));
});

test("a shelf that cannot be read leaves the models here, and is read by a second try", async () => {
  let setup!: FakeSetup;
  const { stores } = await models((s) => {
    setup = s;
    s.library.shelfError = failure;
  });
  expect(screen.getByRole("article", { name: "Step 3.5 Flash" })).toBeTruthy();
  const alert = within((await screen.findByText(failure.message)).parentElement!);
  expect(stores.library.offers).toEqual([]);
  setup.library.shelfError = null;
  await fireEvent.click(alert.getByRole("button", { name: "Try again" }));
  expect(await screen.findByRole("article", { name: TITLE })).toBeTruthy();
  expect(screen.queryByText(failure.message)).toBeNull();
});

test("a download is seen from anywhere, and leads to the models", async () => {
  const { stores } = await started((s) => (s.library.downloads = [download()]));
  render(App, { stores });
  const line = await screen.findByTestId("download-status");
  expect(line.textContent!.trim()).toBe("Downloading40%");
  await fireEvent.click(line);
  expect(stores.place.view).toBe("models");
});

test("the first start offers the first real model that fits, and shows its download in its place", async () => {
  const scene = SCENES["first-start-offer"]!.setup();
  const { stores, backend } = await started((s) => Object.assign(s, scene, { clock: quickClock, library: { ...scene.library, moves: false } }));
  render(App, { stores });
  const offer = within(await screen.findByTestId("first-offer"));
  expect(screen.getByText(/GLM-4\.7-Flash, 4-bit fits this computer/)).toBeTruthy();
  await fireEvent.click(offer.getByRole("button", { name: "Download (17.3 GB)" }));
  expect(await screen.findByTestId("download")).toBeTruthy();
  expect(screen.queryByTestId("first-offer")).toBeNull();
  expect(backend.calls.findLast((c) => c.cmd === "download_start")?.req).toEqual({ repository: REPOSITORY, forModel: null, headOnly: false });
});

test("a head that came after the load asks for another load", async () => {
  const { backend, stores } = await models((s) => (s.model = NO_HEAD_MODEL));
  expect(article("Step 3.5 Flash 4bit").queryByRole("button", { name: "Load again" })).toBeNull();
  await backend.call("model_set_head", { id: NO_HEAD_MODEL.id, head: STEP_MODEL.id });
  await stores.models.refresh();
  await fireEvent.click(await article("Step 3.5 Flash 4bit").findByRole("button", { name: "Load again" }));
  await waitFor(() => expect(stores.models.loaded?.report.head.found).toBe(true));
  expect(article("Step 3.5 Flash 4bit").queryByRole("button", { name: "Load again" })).toBeNull();
});

test("a download that was broken off is completed, with what is here kept", async () => {
  const { backend } = await models((s) => (s.entries[2] = { ...s.entries[2]!, problem: "Three files are missing." }));
  const card = article("Step 3.5 Flash 4bit");
  expect(card.queryByRole("button", { name: "Load" })).toBeNull();
  await fireEvent.click(card.getByRole("button", { name: "Complete its files" }));
  expect(backend.calls.findLast((c) => c.cmd === "download_start")?.req).toEqual({ repository: NO_HEAD_MODEL.id, forModel: null, headOnly: false });
  expect(await screen.findByRole("group", { name: `Download of ${NO_HEAD_MODEL.id}` })).toBeTruthy();
  await waitFor(() => expect(article("Step 3.5 Flash 4bit").queryByRole("button", { name: "Complete its files" })).toBeNull());
  // A person's own folder came from nowhere that is known.
  expect(article("hy3-preview").queryByRole("button", { name: "Complete its files" })).toBeNull();
});

test("models are judged anew when what is loaded changes", async () => {
  const { stores, count } = await models();
  await waitFor(() => expect(stores.library.verdicts.byId[STEP_MODEL.id]).toBeTruthy());
  await new Promise((done) => setTimeout(done, 5));
  const before = count("model_fit");
  await stores.models.unload();
  await waitFor(() => expect(count("model_fit")).toBe(before + 3));
});

test("the way to a head leads out of the page of another model", async () => {
  const { stores } = await models((s) => (s.model = NO_HEAD_MODEL));
  stores.library.openAny("starter");
  stores.library.query = "smol";
  await screen.findByLabelText("Back to all models");
  stores.place.goToHead(NO_HEAD_MODEL.id);
  await waitFor(() => expect(document.activeElement?.textContent).toContain("MTP head from another folder…"));
  expect(stores.library.page).toBeNull();
  expect(stores.place.headWanted).toBeNull();
});

test("a second press on Models leaves the page of a model", async () => {
  const { stores } = await models();
  stores.library.openAny("starter");
  await screen.findByLabelText("Back to all models");
  await fireEvent.click(within(screen.getByRole("navigation")).getByRole("button", { name: "Models" }));
  expect(stores.library.page).toBeNull();
  expect(stores.place.view).toBe("models");
});

test("the address of a listed model finds it", async () => {
  await models();
  await fireEvent.input(field(), { target: { value: `https://hub.example/${REPOSITORY}/tree/main` } });
  expect(screen.getByRole("article", { name: TITLE })).toBeTruthy();
  await fireEvent.input(field(), { target: { value: TYPED } });
  expect(screen.getByTestId("nothing-found").textContent).toContain(`${TYPED} is not among the models listed here.`);
});
