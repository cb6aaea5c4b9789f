import { fireEvent, render, screen, waitFor, within } from "@testing-library/svelte";
import { expect, test, vi } from "vitest";
import App from "../src/App.svelte";
import { SCENES } from "../src/backend/fake_scenes";
import { download, HUB_ERRORS } from "../src/backend/fake_shelf";
import type { DownloadState, WireError } from "../src/backend";
import { NO_HEAD_MODEL, STARTER_MODEL, STEP_MODEL } from "../src/backend/fake_texts";
import type { FakeSetup } from "../src/backend/fake";
import { REST_MS } from "../src/state/fits.svelte";
import { failure, quickClock, started } from "./support";

const PAGE = "glm-4.7-flash";
const TITLE = "GLM-4.7-Flash, 4-bit";
const REPOSITORY = "acme/GLM-4.7-Flash-4bit";
const TYPED = "acme/Qwen3.6-27B-MTP-4bit";

async function models(change: (s: FakeSetup) => void = () => {}) {
  const ready = await started((s) => {
    s.library.moves = false;
    change(s);
  });
  ready.stores.place.go("models");
  render(App, { stores: ready.stores });
  await waitFor(() => expect(ready.stores.library.listed && ready.stores.models.listed).toBe(true));
  const count = (cmd: string) => ready.backend.calls.filter((c) => c.cmd === cmd).length;
  return { ...ready, count };
}

async function page(id: string, change: (s: FakeSetup) => void = () => {}) {
  const ready = await models(change);
  ready.stores.library.openAny(id);
  await waitFor(() => expect(ready.stores.library.looking).toBe(false));
  return ready;
}

const article = (name: string) => within(screen.getByRole("article", { name }));
const main = () => within(screen.getByRole("main"));
const button = (name: string | RegExp) => main().getByRole<HTMLButtonElement>("button", { name });
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

const GIB = 1024 ** 3;
const states: [DownloadState, RegExp, string[]][] = [
  [{ kind: "queued" }, /^Waits for the downloads before it\.$/, ["Pause", "Cancel"]],
  [{ kind: "preparing" }, /^Looking at what is here already…$/, ["Pause", "Cancel"]],
  [{ kind: "running" }, /^6\.9 of 17\.3 GB · 40% · 34\.6 MB\/s · 5 min left$/, ["Pause", "Cancel"]],
  [{ kind: "waiting", error: HUB_ERRORS.offline, retryMs: null }, /It goes on by itself when it can\.$/, ["Pause", "Cancel"]],
  [{ kind: "waiting", error: HUB_ERRORS.rate, retryMs: 40_000 }, /It goes on by itself in 40 s\.$/, ["Pause", "Cancel"]],
  [{ kind: "paused" }, /^6\.9 of 17\.3 GB · 40%\. Nothing is lost\.$/, ["Resume", "Cancel", "Discard"]],
  [{ kind: "verifying" }, /^All 17\.3 GB are here\. Comparing the hashes…$/, ["Cancel"]],
  [{ kind: "attaching" }, /^The head is here\. Putting it on the model…$/, []],
  [{ kind: "failed", error: HUB_ERRORS.rate }, /40%\. Nothing is lost\.$/, ["Resume", "Cancel", "Discard"]],
];

test.each(states)("a download that is %o says what happens and has its buttons", async (state, line, buttons) => {
  await page(PAGE, (s) => (s.library.downloads = [download({ state })]));
  const bar = within(await screen.findByTestId("download"));
  expect(bar.getByTestId("download-line").textContent).toMatch(line);
  expect(bar.queryAllByRole("button").map((b) => b.textContent!.replace("…", ""))).toEqual(buttons);
  if (state.kind === "waiting" || state.kind === "failed") expect(bar.getByText(state.error.message)).toBeTruthy();
  const percent = Number(bar.getByRole("progressbar", { name: "Downloaded" }).getAttribute("value"));
  expect(percent).toBeCloseTo(6.9 / 17.3, 3);
});

test("what waits counts down by itself", async () => {
  vi.useFakeTimers({ toFake: ["setInterval", "clearInterval", "performance"] });
  try {
    await page(PAGE, (s) => (s.library.downloads = [download({ state: { kind: "waiting", error: HUB_ERRORS.rate, retryMs: 40_000 } })]));
    expect((await screen.findByTestId("download-line")).textContent).toMatch(/in 40 s/);
    vi.advanceTimersByTime(15_000);
    await waitFor(() => expect(screen.getByTestId("download-line").textContent).toMatch(/in 25 s/));
    vi.advanceTimersByTime(60_000);
    await waitFor(() => expect(screen.getByTestId("download-line").textContent).toMatch(/in 1 s/));
  } finally {
    vi.useRealTimers();
  }
});

test("pause, resume and discard do what they say; discarding asks first", async () => {
  const { count, stores } = await page(PAGE, (s) => (s.library.downloads = [download()]));
  await fireEvent.click(button(`Pause ${TITLE}`));
  await fireEvent.click(await main().findByRole("button", { name: `Discard ${TITLE}…` }));
  await waitFor(() => expect(document.activeElement?.textContent).toBe("Delete"));
  await fireEvent.keyDown(document.activeElement!, { key: "Escape" });
  await waitFor(() => expect(document.activeElement).toBe(button(`Resume ${TITLE}`)));
  // Escape took the question back and did not leave the page.
  expect(stores.library.page).not.toBeNull();
  expect(count("download_discard")).toBe(0);
  await fireEvent.click(button(`Discard ${TITLE}…`));
  await fireEvent.click(button("Delete"));
  await waitFor(() => expect(screen.queryByTestId("download")).toBeNull());
  expect((await screen.findByTestId("notice")).textContent).toContain(`6.9 GB of ${TITLE} are freed.`);
  expect(button(/^Download \(17\.3 GB\)$/)).toBeTruthy();
});

const refusals: [string, WireError, string[]][] = [
  ["gated", HUB_ERRORS.gated, ["Open the model's page", "Try again"]],
  ["private", HUB_ERRORS.private, ["Set a token…", "Try again"]],
  ["stale", HUB_ERRORS.stale, ["Set a token…", "Try again"]],
  ["wrong name", HUB_ERRORS.wrongName, ["Try again"]],
  ["rate limit", HUB_ERRORS.rate, ["Try again"]],
  ["offline", HUB_ERRORS.offline, ["Try again"]],
];

test.each(refusals)("a look refused as %s has its sentence and its buttons, and no download", async (_, error, buttons) => {
  const { backend, stores } = await page(TYPED, (s) => (s.library.hubError = error));
  const problem = within(await screen.findByTestId("hub-problem"));
  expect(problem.getByText(error.message)).toBeTruthy();
  expect(problem.getAllByRole("button").map((b) => b.textContent)).toEqual(buttons);
  expect(screen.queryByRole("button", { name: /^Download/ })).toBeNull();
  if (error.code === "gated") {
    await stores.settings.change({ hubEndpoint: "https://hub.example/" });
    await fireEvent.click(problem.getByText("Open the model's page"));
    expect(backend.calls.findLast((c) => c.cmd === "open_link")).toEqual({ cmd: "open_link", req: { url: `https://hub.example/${TYPED}` } });
  }
  const before = backend.calls.filter((c) => c.cmd === "hub_inspect").length;
  await fireEvent.click(problem.getByText("Try again"));
  expect(backend.calls.filter((c) => c.cmd === "hub_inspect")).toHaveLength(before + 1);
});

test("the six refusals are six sentences", () => {
  expect(new Set(refusals.map(([, error]) => error.message)).size).toBe(6);
});

test("a stale token leads to its field, which takes a new one and never shows it", async () => {
  const { backend, stores } = await page(PAGE, (s) => (s.library.downloads = [download({ state: { kind: "failed", error: HUB_ERRORS.stale } })]));
  await fireEvent.click(await main().findByText("Set a token…"));
  const input = await screen.findByLabelText<HTMLInputElement>("Access token", { selector: "input" });
  await waitFor(() => expect(document.activeElement).toBe(input));
  expect(input.type).toBe("password");
  expect(stores.place.tokenWanted).toBe(false);
  backend.refuseNext.set("token_set", { ...failure, message: "The keychain refused. Try again." });
  await fireEvent.input(input, { target: { value: "  secret " } });
  await fireEvent.submit(input.form!);
  expect((await screen.findByText("The keychain refused. Try again.")).getAttribute("role")).toBe("alert");
  expect(input.value).toBe("  secret ");
  await fireEvent.submit(input.form!);
  await waitFor(() => expect(screen.getByTestId("token-place").textContent).toBe("One is kept in the keychain."));
  expect(backend.calls.findLast((c) => c.cmd === "token_set")?.req).toEqual({ token: "secret" });
  await waitFor(() => expect(input.value).toBe(""));
  expect(document.body.innerHTML).not.toContain("secret");
  await fireEvent.click(screen.getByText("Forget it"));
  await waitFor(() => expect(screen.getByTestId("token-place").textContent).toBe("None is set. Public models need none."));
});

test("a token of the environment wins, so none can be typed that would be ignored", async () => {
  const { stores } = await models((s) => (s.library.token = "environment"));
  stores.place.goToToken();
  await waitFor(() => expect(screen.getByTestId("token-place").textContent).toContain("HF_TOKEN"));
  expect(screen.queryByLabelText("Access token", { selector: "input" })).toBeNull();
});

test("endpoint, proxy and limit are taken when the field is left; a refusal keeps what was set", async () => {
  const { backend, stores, count } = await models();
  stores.place.go("settings");
  const limit = await screen.findByLabelText<HTMLInputElement>("Most MB per second");
  await fireEvent.input(limit, { target: { value: "fast" } });
  await fireEvent.change(limit);
  expect(await screen.findByText(/number above 0/)).toBeTruthy();
  expect(count("settings_set")).toBe(0);
  await fireEvent.input(limit, { target: { value: "2.5" } });
  await fireEvent.change(limit);
  await waitFor(() => expect(stores.settings.value.downloadLimit).toBe(2621440));
  const endpoint = screen.getByLabelText<HTMLInputElement>("Address of the hub");
  backend.refuseNext.set("settings_set", { ...failure, code: "invalid_option", message: "No hub is there. Check the address." });
  await fireEvent.input(endpoint, { target: { value: "https://hub.example" } });
  await fireEvent.change(endpoint);
  expect(await screen.findByText("No hub is there. Check the address.")).toBeTruthy();
  expect(stores.settings.value.hubEndpoint).toBeNull();
  expect(stores.settings.value.downloadLimit).toBe(2621440);
  expect(endpoint.value).toBe("https://hub.example");
});

test("the slider asks once it rests, and shows only the newest answer", async () => {
  const { backend, stores } = await page(STEP_MODEL.id);
  await waitFor(() => expect(screen.getByTestId("fit")).toBeTruthy());
  const fits = () => backend.calls.filter((c) => c.cmd === "model_fit" && (c.req as { context: number | null }).context !== null);
  vi.useFakeTimers({ toFake: ["setTimeout", "clearTimeout"] });
  try {
    const slider = screen.getByLabelText<HTMLInputElement>("Context");
    for (const value of [40960, 65536, 262144]) await fireEvent.input(slider, { target: { value: String(value) } });
    expect(screen.getByText("262,144 tokens")).toBeTruthy();
    expect(screen.getByTestId("fit").getAttribute("aria-busy")).toBe("true");
    expect(fits()).toEqual([]);
    vi.advanceTimersByTime(REST_MS);
    expect(fits().map((c) => c.req)).toEqual([{ id: STEP_MODEL.id, context: 262144 }]);
  } finally {
    vi.useRealTimers();
  }
  await waitFor(() => expect(screen.getByTestId("fit").dataset.fits).toBe("false"));
  expect(within(screen.getByTestId("fit")).getByRole("status").textContent).toMatch(/^Does not fit: it needs \d/);
  // What was asked before the page was left changes nothing on the next one.
  stores.library.probe.slide(1024);
  stores.library.close();
  expect(stores.library.probe.fit).toBeNull();
  backend.refuseNext.set("model_fit", failure);
  stores.library.openAny(STARTER_MODEL.id);
  expect(await screen.findByText(failure.message)).toBeTruthy();
  await fireEvent.click(main().getByText("Try again"));
  await waitFor(() => expect(screen.getByTestId("fit")).toBeTruthy());
});

test("an answer of the hub about a page that was left is dropped", async () => {
  const { backend, stores } = await models();
  const call = backend.call.bind(backend);
  let answer = () => {};
  backend.call = (async (cmd: "hub_inspect", req: { text: string }, on: never) => {
    const result = await call(cmd, req, on);
    if (cmd === "hub_inspect" && req.text === TYPED) await new Promise<void>((done) => (answer = done));
    return result;
  }) as typeof backend.call;
  stores.library.openName(TYPED);
  expect(await screen.findByText(`Asking the hub about ${TYPED}…`)).toBeTruthy();
  stores.library.close();
  stores.library.openAny(PAGE);
  await waitFor(() => expect(stores.library.hub?.repository).toBe(REPOSITORY));
  answer();
  await new Promise((done) => setTimeout(done, 5));
  expect(stores.library.hub?.repository).toBe(REPOSITORY);
});

test("a page says what is not verified, what is missing and what does not fit", async () => {
  const { stores } = await page("hy3", (s) => (s.library.hubError = HUB_ERRORS.offline));
  const fact = (name: string) => main().getByText(name, { selector: "dt" }).nextElementSibling!.textContent!.replace(/\s+/g, " ").trim();
  expect(fact("Download")).toBe("94.0 GB unverified: from one source or from arithmetic");
  expect(fact("Licence")).toBe("Not known");
  expect(screen.queryByRole("button", { name: /^Download/ })).toBeNull();
  stores.library.close();
  stores.library.openAny("hy3-4bit");
  expect(await screen.findByText(/^Made for 256 GB of memory; this computer has 128 GB\.$/)).toBeTruthy();
});

test("what the hub says cannot run has no download", async () => {
  await page(TYPED, (s) => (s.library.hub = { problem: "The family gemma4 is not supported yet.", family: "gemma4" }));
  expect(await screen.findByText("The family gemma4 is not supported yet.")).toBeTruthy();
  expect(screen.queryByRole("button", { name: /^Download/ })).toBeNull();
  expect(screen.getByTestId("mark").textContent).toBe("Not supported yet");
});

test("a model too large can be fetched anyway, and room on the disk is counted", async () => {
  const { stores } = await page("hy3-4bit", (s) => (s.library.machine = { ...s.library.machine, diskFree: 20 * GIB }));
  expect(button(/^Download anyway \(166 GB\)$/).classList).not.toContain("primary");
  expect(main().getByText(/^The disk has no room for it: 166 GB are to be fetched, 20\.0 GB are free\.$/)).toBeTruthy();
  expect(stores.library.hub?.fit.contextFits).toBe(0);
});

test("only the rest is offered of what is half here, and nothing of what is here", async () => {
  await page(TYPED, (s) => (s.library.hub = { haveBytes: 12.1 * GIB }));
  expect(button("Download the rest (4.3 GB)")).toBeTruthy();
  expect(main().getByText(/12\.1 GB are here already/)).toBeTruthy();
});

test("a typed name that is on the disk is loaded, not fetched", async () => {
  await page(TYPED, (s) => (s.library.hub = { have: NO_HEAD_MODEL.id }));
  await waitFor(() => expect(button("Load")).toBeTruthy());
  expect(screen.queryByRole("button", { name: /^Download/ })).toBeNull();
});

test("one button gets the head: its size is said before, and only the head is fetched", async () => {
  const { backend, count } = await page(NO_HEAD_MODEL.id);
  expect(count("hub_inspect")).toBe(0);
  await fireEvent.click(button("Find its MTP head"));
  await fireEvent.click(await main().findByRole("button", { name: "Get the MTP head (4.9 GB)" }));
  expect(await main().findByRole("group", { name: "Download of the MTP head of Step 3.5 Flash 4bit" })).toBeTruthy();
  expect(backend.calls.findLast((c) => c.cmd === "download_start")?.req).toEqual({ repository: STEP_MODEL.id, forModel: NO_HEAD_MODEL.id, headOnly: true });
  expect(screen.queryByRole("button", { name: /^Get the MTP head/ })).toBeNull();
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

test("checking files runs, can be stopped, and names what is wrong with a way to mend it", async () => {
  const report = { repository: STEP_MODEL.id, good: 44, damaged: ["a.safetensors"], missing: ["tokenizer.json"], sentence: "One is damaged, one is missing." };
  const { backend, stores } = await page(STEP_MODEL.id, (s) => (s.library.check = "stays"));
  await fireEvent.click(button("Check files"));
  expect(await screen.findByText(/^Comparing with the hub: .* · 45%/)).toBeTruthy();
  // Another cannot begin meanwhile.
  await stores.library.files.compare(NO_HEAD_MODEL.id);
  expect(backend.calls.filter((c) => c.cmd === "model_check")).toHaveLength(1);
  await fireEvent.click(button("Stop"));
  await waitFor(() => expect(stores.library.files.check).toBeNull());
  stores.library.files.check = { id: STEP_MODEL.id, kind: "finished", report };
  const result = within(await screen.findByTestId("check-result"));
  expect(result.getByText(report.sentence)).toBeTruthy();
  expect(result.getByText(/damaged: a\.safetensors\s+missing: tokenizer\.json/)).toBeTruthy();
  await fireEvent.click(result.getByText("Fetch what is wrong again"));
  expect(backend.calls.at(-1)).toEqual({ cmd: "download_start", req: { repository: STEP_MODEL.id, forModel: null, headOnly: false } });
});

test("deleting says what it frees and leaves the page; a folder is only forgotten; a loaded model is not deleted", async () => {
  const { stores, count } = await page(NO_HEAD_MODEL.id);
  await fireEvent.click(button("Delete…"));
  const yes = await main().findByRole("button", { name: "Delete 103 GB" });
  await waitFor(() => expect(document.activeElement).toBe(yes));
  await fireEvent.keyDown(yes, { key: "Escape" });
  expect(count("model_delete")).toBe(0);
  expect(stores.library.page).not.toBeNull();
  await fireEvent.click(button("Delete…"));
  await fireEvent.click(await main().findByRole("button", { name: "Delete 103 GB" }));
  await waitFor(() => expect(stores.library.page).toBeNull());
  await waitFor(() => expect(screen.queryByRole("article", { name: "Step 3.5 Flash 4bit" })).toBeNull());
  await fireEvent.click(article("hy3-preview").getByRole("button", { name: "Forget…" }));
  expect(await article("hy3-preview").findByText(/Its files stay where they are/)).toBeTruthy();
  expect(article("Step 3.5 Flash").getByRole<HTMLButtonElement>("button", { name: "Delete…" }).disabled).toBe(true);
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
