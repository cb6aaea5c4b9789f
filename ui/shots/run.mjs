// Pictures of the designed states, from the built window in a headless browser:
//   npm run build && npm run shots -- --out /tmp/shots [--state streaming,thinking] [--size 1280x800,640x480] [--theme light,dark]
import { spawn } from "node:child_process";
import { mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { createServer } from "node:http";
import { tmpdir } from "node:os";
import { extname, join, normalize } from "node:path";
import { parseArgs } from "node:util";

const DIST = new URL("../dist/", import.meta.url).pathname;
const CSP = "default-src 'self'; connect-src ipc: http://ipc.localhost; style-src 'self' 'unsafe-inline'; img-src 'self' data:; font-src 'self' data:";
const TYPES = { ".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".woff2": "font/woff2", ".woff": "font/woff", ".ttf": "font/ttf" };
const SETTLE_MS = 900;
const REPLY_MS = 2200;
const PACE = 6;

const { values } = parseArgs({
  options: {
    out: { type: "string", default: join(tmpdir(), "foretoken-shots") },
    state: { type: "string", default: "" },
    size: { type: "string", default: "1280x800,640x480" },
    theme: { type: "string", default: "light,dark" },
    scale: { type: "string", default: "1" },
    click: { type: "string", default: "" },
    script: { type: "string", default: "" },
    text: { type: "string", default: "16" },
  },
});

const scenes = ["fake_scenes", "fake_library_scenes"].map((name) => readFileSync(new URL(`../src/backend/${name}.ts`, import.meta.url), "utf8").split(/export const [A-Z_]*SCENES/)[1]).join("\n");
const all = [...scenes.matchAll(/^ {2}"?([a-z-]+)"?: /gm)].map((m) => m[1]);
const sending = new Set([...scenes.matchAll(/^ {2}"?([a-z-]+)"?: (?:running|scene\(\{ send)/gm)].map((m) => m[1]));
const states = values.state === "" ? all : values.state.split(",");

const server = createServer((request, response) => {
  const path = normalize(new URL(request.url, "http://x").pathname);
  const file = join(DIST, path === "/" ? "index.html" : path);
  try {
    const body = readFileSync(file);
    response.writeHead(200, { "content-type": TYPES[extname(file)] ?? "application/octet-stream", "content-security-policy": CSP });
    response.end(body);
  } catch {
    response.writeHead(404).end();
  }
});
await new Promise((ready) => server.listen(0, "127.0.0.1", ready));
const origin = `http://127.0.0.1:${server.address().port}`;

const profile = mkdtempSync(join(tmpdir(), "foretoken-shots-profile-"));
const browser = spawn(process.env.CHROMIUM ?? "/usr/bin/chromium", [
  "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking", "--disable-component-update",
  "--disable-sync", `--blink-settings=defaultFontSize=${values.text}`, "--hide-scrollbars", "--remote-debugging-port=0", `--user-data-dir=${profile}`, "about:blank",
]);
const endpoint = await new Promise((found, fail) => {
  let log = "";
  browser.stderr.on("data", (part) => {
    log += part;
    const at = /DevTools listening on (ws:\S+)/.exec(log);
    if (at) found(at[1]);
  });
  browser.on("exit", () => fail(new Error(log)));
});

const socket = new WebSocket(endpoint);
await new Promise((open) => (socket.onopen = open));
let nextId = 1;
const waiting = new Map();
socket.onmessage = ({ data }) => {
  const message = JSON.parse(data);
  if (message.id) waiting.get(message.id)?.(message);
  else if (message.method === "Runtime.exceptionThrown") console.error("exception:", message.params.exceptionDetails.exception?.description ?? message.params.exceptionDetails.text);
  else if (message.method === "Log.entryAdded") console.error("log:", message.params.entry.text, message.params.entry.url ?? "");
};
function send(method, params = {}, sessionId = undefined) {
  const id = nextId++;
  socket.send(JSON.stringify({ id, method, params, sessionId }));
  return new Promise((done, fail) => waiting.set(id, (m) => (m.error ? fail(new Error(`${method}: ${m.error.message}`)) : done(m.result))));
}

mkdirSync(values.out, { recursive: true });
const { targetId } = await send("Target.createTarget", { url: "about:blank" });
const { sessionId } = await send("Target.attachToTarget", { targetId, flatten: true });
const page = (method, params) => send(method, params, sessionId);
const sleep = (ms) => new Promise((done) => setTimeout(done, ms));
await page("Page.enable");
await page("Runtime.enable");
await page("Log.enable");
for (const size of values.size.split(",")) {
  const [width, height] = size.split("x").map(Number);
  await page("Emulation.setDeviceMetricsOverride", { width, height, deviceScaleFactor: Number(values.scale), mobile: false });
  for (const theme of values.theme.split(",")) {
    for (const state of states) {
      await page("Page.navigate", { url: `${origin}/?state=${state}&theme=${theme}&pace=${PACE}` });
      await sleep(sending.has(state) ? REPLY_MS : SETTLE_MS);
      if (values.click !== "") {
        await page("Runtime.evaluate", { expression: `document.querySelector(${JSON.stringify(values.click)})?.click()` });
        await sleep(300);
      }
      if (values.script !== "") {
        const { result } = await page("Runtime.evaluate", { expression: values.script, awaitPromise: true, returnByValue: true });
        if (result.value !== undefined) console.log(state, theme, size, JSON.stringify(result.value));
        await sleep(300);
      }
      const { data } = await page("Page.captureScreenshot", { format: "png" });
      writeFileSync(join(values.out, `${state}-${theme}-${size}.png`), Buffer.from(data, "base64"));
    }
  }
}
const gone = new Promise((exit) => browser.on("exit", exit));
await send("Browser.close");
await gone;
socket.close();
server.close();
// Its last child may still write its profile.
await sleep(500);
rmSync(profile, { recursive: true, force: true, maxRetries: 10, retryDelay: 200 });
