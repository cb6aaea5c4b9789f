import { expect, test } from "vitest";
import { MACHINE, OFFERS } from "../src/backend/fake_shelf";
import { ENTRIES } from "../src/backend/fake_texts";
import { firstRealModel, fitsMachine, hubName, memoryClasses, offerBytes, repositoryOf, searchEntries, searchOffers, soldGb } from "../src/state/shelf";
import { parseEndpoint, parseLimit, parseProxy, showLimit } from "../src/state/hub_settings";

const GIB = 1024 ** 3;
const machine = (gib: number, diskFree = 1000 * GIB) => ({ memory: gib * GIB, available: gib * GIB * 0.7, diskFree });
const offer = (id: string) => OFFERS.find((o) => o.id === id)!;

test.each([
  ["acme/tiny", "acme/tiny"],
  ["  acme/tiny.v2 ", "acme/tiny.v2"],
  ["acme/tiny@refs/pr/1", "acme/tiny@refs/pr/1"],
  ["https://hub.example/acme/tiny", "acme/tiny"],
  ["https://hub.example/acme/tiny/tree/v2?x=1#files", "acme/tiny@v2"],
  ["https://hub.example/acme/tiny/tree/refs%2Fpr%2F1", "acme/tiny@refs/pr/1"],
  ["http://localhost:8080/acme/tiny/discussions/3", "acme/tiny"],
  ["hub.example/acme/tiny", "acme/tiny"],
  ["https://hub.example/acme/tiny/tree/%E0%A4%A", "acme/tiny@%E0%A4%A"],
])("%s names a repository", (text, name) => expect(hubName(text)).toBe(name));

test.each(["", "glm", "acme/", "/tiny", "acme/ti ny", "https://hub.example", "https://hub.example/acme", "a/b/c", "acme/tiny and more", "acme/tïny"])("%j names none", (text) => {
  expect(hubName(text)).toBeNull();
});

test("a repository is known by its name without the revision, also out of an address", () => {
  expect(repositoryOf("acme/tiny@v2")).toBe("acme/tiny");
  expect(repositoryOf("https://hub.example/acme/tiny/tree/v2")).toBe("acme/tiny");
});

test("a machine that reports a little less than it was sold with counts as what it was sold as", () => {
  expect(fitsMachine(offer("qwen3.5-9b"), machine(15.4))).toBe(true);
  expect(fitsMachine(offer("qwen3.5-9b"), machine(12))).toBe(false);
  expect(soldGb(machine(15.4))).toBe(16);
  expect(soldGb(machine(128))).toBe(128);
  expect(soldGb(machine(41))).toBe(41);
});

test("search and class filter together, the largest that fits first", () => {
  expect(searchOffers(OFFERS, "", null)).toHaveLength(OFFERS.length);
  expect(searchOffers(OFFERS, "HY3 4-bit", null).map((o) => o.id)).toEqual(["hy3-4bit"]);
  expect(searchOffers(OFFERS, "", 16).map((o) => o.id)).toEqual(["qwen3.5-9b", "qwen3.5-4b"]);
  expect(searchOffers(OFFERS, "hy3", 16)).toEqual([]);
  expect(searchEntries(ENTRIES, "data hy3").map((e) => e.name)).toEqual(["hy3-preview"]);
  expect(memoryClasses(OFFERS)).toEqual([8, 16, 32, 128, 256]);
});

test("the first real model is the largest that fits memory and disk, can run and is not here", () => {
  expect(firstRealModel(OFFERS, MACHINE)?.id).toBe("hy3");
  expect(firstRealModel(OFFERS, machine(32))?.id).toBe("glm-4.7-flash");
  expect(firstRealModel(OFFERS, machine(32, 10 * GIB))?.id).toBe("qwen3.5-9b");
  expect(firstRealModel(OFFERS, machine(4))).toBeNull();
  expect(firstRealModel([{ ...offer("qwen3.5-4b"), have: "x" }], machine(32))).toBeNull();
  expect(firstRealModel([{ ...offer("qwen3.5-4b"), bytes: null }], machine(32))).toBeNull();
});

test("a head from elsewhere is counted with the download, one in the files is not counted twice", () => {
  expect(offerBytes(offer("glm-4.7-flash"))).toBeCloseTo(17.3 * GIB, 0);
  expect(offerBytes(offer("step-3.5-flash"))).toBe(103 * GIB);
  expect(offerBytes(offer("gemma-mtp"))).toBeNull();
});

test("addresses, proxies and the limit are read strictly, and empty means none", () => {
  expect(parseEndpoint(" ")).toEqual({ value: null, problem: null });
  expect(parseEndpoint(" https://hub.example ")).toEqual({ value: "https://hub.example", problem: null });
  for (const wrong of ["hub.example", "ftp://hub.example", "https://", "socks5://x"]) expect(parseEndpoint(wrong).problem, wrong).toMatch(/whole address/);
  expect(parseProxy("socks5://127.0.0.1:9050").problem).toBeNull();
  expect(parseProxy("127.0.0.1:9050").problem).toMatch(/whole address/);
  expect(parseLimit("2,5")).toEqual({ value: 2621440, problem: null });
  for (const wrong of ["0", "-1", "fast", "Infinity", "5 MB"]) expect(parseLimit(wrong).problem, wrong).toMatch(/number above 0/);
  expect(showLimit(parseLimit("2.5").value)).toBe("2.5");
  expect(showLimit(null)).toBe("");
});
