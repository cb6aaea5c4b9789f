import { expect, test } from "vitest";
import { ANSWER } from "../src/backend/fake_texts";
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
