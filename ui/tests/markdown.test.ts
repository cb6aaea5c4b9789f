import { expect, test } from "vitest";
import { ANSWER, TOOL_CALL } from "../src/backend/fake_texts";
import { GrowingMarkdown, renderBlocks } from "../src/components/chat/markdown";

function page(text: string): HTMLElement {
  const root = document.createElement("div");
  root.innerHTML = renderBlocks(text).map((b) => b.html).join("");
  return root;
}

const FORBIDDEN = "script, img, iframe, object, embed, style, form, svg:not(.katex svg), [onerror], [onclick], [onload], [src]";

test.each([
  ["<script>alert(1)</script>"],
  ["a <img src=x onerror=alert(1)> b"],
  ["<svg onload=alert(1)>"],
  ["<iframe src='https://example.org'></iframe>"],
  ["<style>body{display:none}</style>"],
  ["![x](https://example.org/a.png)"],
  ["![x](data:image/png;base64,AAAA)"],
  ["`<script>alert(1)</script>`"],
  ["```html\n<script>alert(1)</script>\n<img src=x onerror=alert(1)>\n```"],
  ["```\"><img src=x onerror=alert(1)>\nx\n```"],
  ["$\\href{javascript:alert(1)}{x}$"],
  ["$\\includegraphics{https://example.org/a.png}$"],
])("%s makes nothing that runs or loads", (text) => {
  const root = page(text);
  expect(root.querySelector(FORBIDDEN)).toBeNull();
  for (const link of root.querySelectorAll("a")) expect(link.getAttribute("href")).toMatch(/^https?:/);
});

test.each([["[x](javascript:alert(1))"], ["[x](JaVaScRiPt:alert(1))"], ["[x](data:text/html,<script>alert(1)</script>)"], ["[x](file:///etc/passwd)"], ["<javascript:alert(1)>"], ["[x](//example.org)"]])(
  "%s is no link",
  (text) => {
    expect(page(text).querySelector("a")).toBeNull();
    expect(page(text).textContent).toMatch(/x|alert/);
  },
);

test("raw tags are shown as they were written, harmless ones work", () => {
  expect(page("a <b onclick=x>c</b> H<sub>2</sub>O<br>d").textContent).toContain("<b onclick=x>");
  expect(page("H<sub>2</sub>O").querySelector("sub")?.textContent).toBe("2");
});

test("web links stay links", () => {
  expect(page("[x](https://example.org/a?b=1)").querySelector("a")?.getAttribute("href")).toBe("https://example.org/a?b=1");
});

test("code has its language, its colours and a copy button", () => {
  const root = page("```rust\nfn main() {}\n```");
  expect(root.querySelector(".code-head span")?.textContent).toBe("rust");
  expect(root.querySelector(".hljs-keyword")?.textContent).toBe("fn");
  expect(root.querySelector("button[data-copy]")).not.toBeNull();
});

const HY3_CALL = TOOL_CALL.slice(TOOL_CALL.indexOf("<"));
const STEP_CALL = "<tool_call>\n<function=get_the_weather>\n<parameter=city>\n*Köln*\n\n# Bonn\n</parameter>\n</function>\n</tool_call>";

test.each([[HY3_CALL], [STEP_CALL]])("a tool call is shown as it was written: %j", (call) => {
  const root = page(`I **look**.${call}\n\nThen *more*.`);
  expect(root.querySelectorAll("pre")).toHaveLength(1);
  expect(root.querySelector("pre code")?.textContent).toBe(call);
  expect(root.querySelector(".code-head span")?.textContent).toBe("tool call");
  expect(root.querySelector("strong")?.textContent).toBe("look");
  expect(root.querySelector("em")?.textContent).toBe("more");
  // While it grows the tag may be cut anywhere; nothing of it gets lost.
  const grower = new GrowingMarkdown();
  for (let end = 1; end <= call.length; end++) {
    const shown = document.createElement("div");
    shown.innerHTML = grower.render(call.slice(0, end)).map((b) => b.html).join("");
    if (end > call.indexOf("\n")) expect(shown.querySelector("pre code")?.textContent).toBe(call.slice(0, end).trimEnd());
  }
});

test("a call that is never closed stays readable, and a tag in prose is prose", () => {
  const broken = "<tool_call:opensource>weather</arg_value:opensource>\n\nand so on";
  expect(page(broken).textContent).toContain("<tool_call:opensource>weather</arg_value:opensource>");
  const open = "<tool_calls:opensource>\n<tool_call:opensource>weather</arg_value:opensource>";
  expect(page(open).querySelector("pre code")?.textContent).toBe(open);
  const prose = page("Write `<tool_call>` first and `</tool_call>` last, or <tool_call> as here.");
  expect(prose.querySelectorAll("code")).toHaveLength(2);
  expect(prose.querySelector("pre")).toBeNull();
  expect(prose.textContent).toContain("or <tool_call> as here");
});

test("formulas are set, money is not", () => {
  expect(page("At $a = 1$ and \\(b\\)").querySelectorAll(".katex")).toHaveLength(2);
  expect(page("$$\na^2\n\n+ b\n$$").querySelectorAll(".katex-display")).toHaveLength(1);
  expect(page("It costs $5 and then $6.").querySelector(".katex")).toBeNull();
  expect(page("$\\frac{$").textContent).toContain("frac");
});

test("a text that grows ends as the text rendered at once", () => {
  const grower = new GrowingMarkdown();
  for (let length = 0; length < ANSWER.length; length += 7) grower.render(ANSWER.slice(0, length));
  expect(grower.render(ANSWER).map((b) => b.html)).toEqual(renderBlocks(ANSWER).map((b) => b.html));
});

test("blocks before the newest are not made again", () => {
  const grower = new GrowingMarkdown();
  const first = grower.render("One.\n\nTwo.\n\nThr");
  const then = grower.render("One.\n\nTwo.\n\nThree");
  expect(then[0]).toBe(first[0]);
  expect(then[1]).toBe(first[1]);
  expect(then[2]!.html).toContain("Three");
});

test("every prefix of a hostile text stays harmless", () => {
  const text = "- a\n  <img src=x onerror=alert(1)>\n\n[x](javascript:alert(1)) <script>alert(1)</script> ```js\n<script>\n``` $$\\href{javascript:a}{b}$$";
  const grower = new GrowingMarkdown();
  for (let length = 1; length <= text.length; length++) {
    const root = document.createElement("div");
    root.innerHTML = grower.render(text.slice(0, length)).map((b) => b.html).join("");
    expect(root.querySelector(FORBIDDEN)).toBeNull();
    expect(root.querySelector("a:not([href^='http'])")).toBeNull();
  }
});
