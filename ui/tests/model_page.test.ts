import { fireEvent, screen, waitFor, within } from "@testing-library/svelte";
import { expect, test, vi } from "vitest";
import type { DownloadState, WireError } from "../src/backend";
import { download, HUB_ERRORS } from "../src/backend/fake_shelf";
import { NO_HEAD_MODEL, STARTER_MODEL, STEP_MODEL } from "../src/backend/fake_texts";
import { REST_MS } from "../src/state/fits.svelte";
import { article, button, main, models, OFFER, page, REPOSITORY, TITLE, TYPED } from "./models_view";
import { failure } from "./support";

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
  await page(OFFER, (s) => (s.library.downloads = [download({ state })]));
  const bar = within(await screen.findByTestId("download"));
  expect(bar.getByTestId("download-line").textContent).toMatch(line);
  expect(bar.queryAllByRole("button").map((b) => b.textContent!.replace("…", ""))).toEqual(buttons);
  if (state.kind === "waiting" || state.kind === "failed") expect(bar.getByText(state.error.message)).toBeTruthy();
  const percent = Number(bar.getByRole("progressbar", { name: "Downloaded" }).getAttribute("value"));
  expect(percent).toBeCloseTo(6.9 / 17.3, 3);
});

test("how far it is is not claimed before it is known", async () => {
  await page(OFFER, (s) => (s.library.downloads = [download({ state: { kind: "preparing" }, done: 0, total: 0 })]));
  const bar = within(await screen.findByTestId("download")).getByRole("progressbar", { name: "Downloaded" });
  expect(bar.hasAttribute("value")).toBe(false);
});

test("what waits counts down by itself", async () => {
  vi.useFakeTimers({ toFake: ["setInterval", "clearInterval", "performance"] });
  try {
    await page(OFFER, (s) => (s.library.downloads = [download({ state: { kind: "waiting", error: HUB_ERRORS.rate, retryMs: 40_000 } })]));
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
  const { count, stores } = await page(OFFER, (s) => (s.library.downloads = [download()]));
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
  ["gated", HUB_ERRORS.gated, ["Open the model's page", "Set a token…", "Try again"]],
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
  stores.library.openAny(OFFER);
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
  expect((await screen.findByTestId("notice")).textContent).toContain("103 GB of Step 3.5 Flash 4bit are freed.");
  await fireEvent.click(article("hy3-preview").getByRole("button", { name: "Forget…" }));
  expect(await article("hy3-preview").findByText(/Its files stay where they are/)).toBeTruthy();
  expect(article("Step 3.5 Flash").getByRole<HTMLButtonElement>("button", { name: "Delete…" }).disabled).toBe(true);
});
