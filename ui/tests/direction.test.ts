import { readdirSync, readFileSync } from "node:fs";
import { dirname, join, relative, resolve } from "node:path";
import { expect, test } from "vitest";

const SRC = resolve(__dirname, "../src");
const LONGEST_COMPONENT = 300;
const DOMAINS = ["chat", "models", "controls", "stats"];

function filesUnder(folder: string): string[] {
  return readdirSync(folder, { recursive: true, withFileTypes: true })
    .filter((f) => f.isFile() && /\.(ts|svelte)$/.test(f.name))
    .map((f) => join(f.parentPath, f.name));
}

interface Import {
  from: string;
  to: string;
  typeOnly: boolean;
}

const files = filesUnder(SRC);
const imports: Import[] = files.flatMap((file) =>
  [...readFileSync(file, "utf8").matchAll(/import\s+(type\s+)?(?:[^"';()]*?from\s+)?["']([^"']+)["']|import\(["']([^"']+)["']\)/g)].map((m) => {
    const target = m[2] ?? m[3]!;
    const to = target.startsWith(".") ? relative(SRC, resolve(dirname(file), target)) : target;
    return { from: relative(SRC, file), to, typeOnly: m[1] !== undefined };
  }),
);

function offenders(inside: string, allowed: (i: Import) => boolean): string[] {
  return imports.filter((i) => i.from.startsWith(inside) && !allowed(i)).map((i) => `${i.from} -> ${i.to}`);
}

const isOwn = (to: string) => !/^(backend|state|components|views)(\/|$)/.test(to);

test("only the backend folder knows Tauri", () => {
  expect(imports.filter((i) => i.to.startsWith("@tauri-apps") && !i.from.startsWith("backend/"))).toEqual([]);
});

test("backend knows nothing above it", () => {
  expect(offenders("backend/", (i) => i.to.startsWith("backend") || isOwn(i.to))).toEqual([]);
});

test("stores render nothing and know the door, not what is behind it", () => {
  expect(offenders("state/", (i) => i.to === "backend" || i.to.startsWith("state/") || i.to === "svelte")).toEqual([]);
});

test("shared components import nothing of a domain", () => {
  expect(offenders("components/shared/", (i) => i.to.startsWith("components/shared/") || isOwn(i.to))).toEqual([]);
});

test.each(DOMAINS)("components of %s keep to their domain", (domain) => {
  const own = `components/${domain}/`;
  const allowed = (i: Import) =>
    i.to.startsWith(own) || i.to.startsWith("components/shared/") || i.to.startsWith("state/") || (i.to === "backend" && i.typeOnly) || isOwn(i.to);
  expect(offenders(own, allowed)).toEqual([]);
});

test("views only put together", () => {
  expect(offenders("views/", (i) => i.to !== "backend" || i.typeOnly)).toEqual([]);
});

test("no component is long", () => {
  const long = files.filter((f) => readFileSync(f, "utf8").split("\n").length > LONGEST_COMPONENT && f.endsWith(".svelte"));
  expect(long).toEqual([]);
});
