import { expect, test } from "vitest";
import { download, HUB_ERRORS } from "../src/backend/fake_shelf";
import type { ModelDownload } from "../src/backend";
import { NO_HEAD_MODEL, STEP_MODEL } from "../src/backend/fake_texts";
import type { FakeSetup } from "../src/backend/fake";
import { Downloads } from "../src/state/downloads.svelte";
import { eventually, failure, started } from "./support";

const GIB = 1024 ** 3;
const REPOSITORY = "acme/GLM-4.7-Flash-4bit";
const start = { repository: REPOSITORY, forModel: null, headOnly: false };

async function watching(downloads: ModelDownload[] = [], change: (s: FakeSetup) => void = () => {}) {
  const ready = await started((s) => {
    s.library.downloads = downloads;
    s.library.moves = false;
    change(s);
  });
  await eventually(() => expect(ready.stores.downloads.list).toHaveLength(downloads.length));
  const count = (cmd: string) => ready.backend.calls.filter((c) => c.cmd === cmd).length;
  const say = (part: Partial<ModelDownload>) => ready.backend.library.emit({ kind: "changed", download: download(part) });
  return { ...ready, count, say };
}

test("the stream is followed: what is there, what changes, what goes", async () => {
  const { stores, backend, say } = await watching([download({ state: { kind: "paused" } })]);
  expect(stores.downloads.list[0]!.state.kind).toBe("paused");
  expect(stores.downloads.fraction).toBeNull();
  say({ done: 8 * GIB, total: 16 * GIB });
  say({ id: "d2", repository: "acme/other", done: 0, total: 16 * GIB });
  expect(stores.downloads.list.map((d) => d.id)).toEqual(["d1", "d2"]);
  expect(stores.downloads.fraction).toBe(0.25);
  backend.library.emit({ kind: "gone", id: "d2" });
  expect(stores.downloads.list.map((d) => d.id)).toEqual(["d1"]);
  expect(stores.downloads.fraction).toBe(0.5);
  // A stranger's id takes nothing away.
  backend.library.emit({ kind: "gone", id: "nobody" });
  expect(stores.downloads.list).toHaveLength(1);
});

test("the Dock is told whole percents, and null when nothing moves", async () => {
  const { backend, say } = await watching();
  say({ done: 0.1001 * GIB, total: GIB });
  say({ done: 0.1002 * GIB, total: GIB });
  say({ done: 0.2 * GIB, total: GIB });
  say({ state: { kind: "paused" }, done: 0.2 * GIB, total: GIB });
  expect(backend.progressShown).toEqual([0.1, 0.2, null]);
});

test("a total that is not known yet is nothing of it, and never a number that is none", async () => {
  const { stores, say } = await watching();
  say({ state: { kind: "preparing" }, done: 0, total: 0 });
  expect(stores.downloads.fraction).toBe(0);
});

test("the end is told once, with the lists read again; one that was over at the start is not told", async () => {
  const done = { kind: "done" as const, model: REPOSITORY };
  const { stores, backend, say, count } = await watching([download({ id: "old", state: done })]);
  say({ state: { kind: "verifying" } });
  const lists = count("models_list");
  say({ state: done });
  say({ state: done });
  expect(backend.notified).toEqual([{ title: "The model is ready", body: "GLM-4.7-Flash, 4-bit is downloaded and verified." }]);
  expect(stores.problems.notices.map((n) => n.sentence)).toEqual(["GLM-4.7-Flash, 4-bit is downloaded and verified."]);
  await eventually(() => expect(count("models_list")).toBe(lists + 1));
});

test("a failure is told with its sentence, and again after a second try", async () => {
  const { stores, backend, say, count } = await watching([download()]);
  const failed = { kind: "failed" as const, error: HUB_ERRORS.stale };
  say({ state: failed });
  expect(backend.notified).toEqual([{ title: "Download stopped: GLM-4.7-Flash, 4-bit", body: HUB_ERRORS.stale.message }]);
  await stores.downloads.act("download_resume", "d1");
  expect(count("download_resume")).toBe(1);
  say({ state: failed });
  expect(backend.notified).toHaveLength(2);
});

test("a stream that cannot be opened says so, and a second try opens it; one that is open is not opened again", async () => {
  const { backend, stores, count } = await watching([download()]);
  await stores.downloads.watch();
  expect(count("downloads_watch")).toBe(1);
  const fresh = new Downloads(backend, stores.problems);
  backend.refuseNext.set("downloads_watch", failure);
  await fresh.watch();
  expect(fresh.problem).toEqual(failure);
  expect(fresh.list).toEqual([]);
  await fresh.watch();
  expect(fresh.problem).toBeNull();
  expect(fresh.list).toHaveLength(1);
});

test("nothing is begun twice: not while it is being begun, not while it runs", async () => {
  const { stores, count } = await watching();
  await Promise.all([stores.downloads.start(start), stores.downloads.start({ ...start, repository: `${REPOSITORY}@main` })]);
  expect(count("download_start")).toBe(1);
  expect(stores.downloads.list).toHaveLength(1);
  await stores.downloads.start(start);
  expect(count("download_start")).toBe(1);
  expect(count("download_resume")).toBe(0);
});

test.each(["paused", "failed"] as const)("one that is %s goes on instead of being begun again", async (kind) => {
  const state = kind === "failed" ? { kind, error: HUB_ERRORS.offline } : { kind };
  const { stores, count } = await watching([download({ state })]);
  await stores.downloads.start(start);
  expect(count("download_start")).toBe(0);
  expect(count("download_resume")).toBe(1);
});

test("the download of a head and of the whole model are two", async () => {
  const { stores, count } = await watching([download({ repository: STEP_MODEL.id, headOnly: true, forModel: NO_HEAD_MODEL.id })]);
  expect(stores.downloads.of(STEP_MODEL.id)).toBeNull();
  expect(stores.downloads.headFor(NO_HEAD_MODEL.id)?.id).toBe("d1");
  expect(stores.downloads.headFor(STEP_MODEL.id)).toBeNull();
  await stores.downloads.start({ repository: STEP_MODEL.id, forModel: NO_HEAD_MODEL.id, headOnly: true });
  expect(count("download_start")).toBe(0);
});

test("what is on the disk is not fetched, whoever asks", async () => {
  const { stores, count } = await watching();
  await eventually(() => expect(stores.library.listed && stores.models.listed).toBe(true));
  await stores.library.download(STEP_MODEL.id, null);
  await stores.library.download(`${STEP_MODEL.id}@main`, null);
  await stores.library.download(REPOSITORY, "some/model");
  await stores.library.getHead({ ...stores.models.entries[2]!, head: "acme/head" });
  expect(count("download_start")).toBe(0);
  await stores.library.download(REPOSITORY, null);
  expect(count("download_start")).toBe(1);
});

test("a refused start or deed is said, and can be tried again", async () => {
  const { stores, backend, count } = await watching();
  backend.refuseNext.set("download_start", failure);
  await stores.downloads.start(start);
  expect(stores.problems.errors.map((p) => p.error)).toEqual([failure]);
  expect(stores.downloads.starting).toEqual([]);
  await stores.downloads.start(start);
  const id = stores.downloads.list[0]!.id;
  backend.refuseNext.set("download_pause", { ...failure, message: "Not now. Try again." });
  await stores.downloads.act("download_pause", id);
  expect(stores.downloads.pending).toEqual([]);
  expect(stores.problems.errors.map((p) => p.error.message)).toContain("Not now. Try again.");
  await Promise.all([stores.downloads.act("download_pause", id), stores.downloads.act("download_pause", id)]);
  expect(count("download_pause")).toBe(2);
  expect(await stores.downloads.discard("gone")).toBeNull();
});

test("an answer to the start that is older than the stream does not bring the past back", async () => {
  const { stores, backend } = await watching();
  const call = backend.call.bind(backend);
  backend.call = (async (cmd: "download_start", req: typeof start, on: never) => {
    const begun = await call(cmd, req, on);
    if (cmd === "download_start") backend.library.emit({ kind: "changed", download: { ...begun, state: { kind: "done", model: REPOSITORY } } });
    return begun;
  }) as typeof backend.call;
  await stores.downloads.start(start);
  expect(stores.downloads.list.map((d) => d.state.kind)).toEqual(["done"]);
  expect(backend.notified).toHaveLength(1);
});

test("a whole download arrives, and a head sits on its model", async () => {
  const { stores, backend } = await started();
  await stores.downloads.start(start);
  await eventually(() => expect(backend.notified).toHaveLength(1));
  await eventually(() => expect(stores.models.entries.some((e) => e.id === REPOSITORY)).toBe(true));
  await eventually(() => expect(stores.library.offers.find((o) => o.repository === REPOSITORY)?.have).toBe(REPOSITORY));
  await stores.library.findHead(NO_HEAD_MODEL.id);
  await stores.library.getHead(stores.models.entries.find((e) => e.id === NO_HEAD_MODEL.id)!);
  await eventually(() => expect(stores.models.entries.find((e) => e.id === NO_HEAD_MODEL.id)!.head).toBe(STEP_MODEL.id));
  expect(backend.notified[1]).toEqual({ title: "The MTP head is ready", body: "Step 3.5 Flash 4bit has its MTP head now." });
  expect(backend.progressShown.at(-1)).toBeNull();
});
