import DOMPurify from "dompurify";
import katex from "katex";
import { Marked, type Token, type TokenizerAndRendererExtension, type Tokens } from "marked";
import { codeBlock } from "./code";
import { escapeHtml } from "./escape";

const ALLOWED_TAGS = [
  "p", "br", "hr", "h1", "h2", "h3", "h4", "h5", "h6", "strong", "em", "del", "code", "pre", "blockquote", "ul", "ol", "li",
  "table", "thead", "tbody", "tr", "th", "td", "a", "span", "div", "button", "sub", "sup", "kbd", "input",
];
const ALLOWED_ATTR = ["href", "class", "align", "start", "type", "checked", "disabled", "data-copy", "data-math", "title"];
/** Values that are no addresses; the sanitiser would otherwise hold them against the link pattern. */
const NOT_A_LINK = ["class", "align", "start", "type", "checked", "disabled", "data-copy", "data-math", "title"];

/** Raw tags of a text that do no harm and mean something; all others are shown as they were written. */
const HARMLESS_TAG = /^<\/?(?:br|sub|sup|kbd)\s*\/?>$/i;

const LINK = /^https?:\/\//i;

interface MathToken extends Tokens.Generic {
  tex: string;
  display: boolean;
}

/** KaTeX output goes in after the sanitiser, so that the allow-list needs neither styles nor SVG. */
let formulas: string[] = [];

function renderMath(token: Tokens.Generic): string {
  const { tex, display } = token as MathToken;
  const html = katex.renderToString(tex.trim(), { displayMode: display, throwOnError: false, trust: false, strict: "ignore", maxExpand: 200, maxSize: 40 });
  formulas.push(html);
  return `<span data-math="${formulas.length - 1}"></span>`;
}

/** An open formula at the end of a running text counts as one, as an open code fence does. */
const mathBlock: TokenizerAndRendererExtension = {
  name: "mathBlock",
  level: "block",
  start: (src) => src.match(/^ {0,3}(?:\$\$|\\\[)/m)?.index,
  tokenizer(src) {
    const found = /^ {0,3}\$\$([\s\S]*?)(?:\$\$ *(?:\n|$)|$(?![\s\S]))/.exec(src) ?? /^ {0,3}\\\[([\s\S]*?)(?:\\\] *(?:\n|$)|$(?![\s\S]))/.exec(src);
    if (!found || found[1]!.trim() === "") return undefined;
    return { type: "mathBlock", raw: found[0], tex: found[1]!, display: true };
  },
  renderer: (token) => `<div class="formula">${renderMath(token)}</div>`,
};

/** `$5 and $6` is money: no space inside the marks, no digit after the closing one. */
const mathInline: TokenizerAndRendererExtension = {
  name: "mathInline",
  level: "inline",
  start: (src) => src.match(/\$|\\\(|\\\[/)?.index,
  tokenizer(src) {
    const found =
      /^\$\$([^$]+?)\$\$/.exec(src) ?? /^\$(?![\s$])((?:\\.|[^$\\\n])*?[^\s\\$]|[^\s\\$])\$(?!\d)/.exec(src) ?? /^\\\(([\s\S]+?)\\\)/.exec(src) ?? /^\\\[([\s\S]+?)\\\]/.exec(src);
    if (!found) return undefined;
    return { type: "mathInline", raw: found[0], tex: found[1]!, display: found[0].startsWith("$$") || found[0].startsWith("\\[") };
  },
  renderer: renderMath,
};

/**
 * A tool call as the families write it: a tag on its own line, or one that is followed by the tool's name. Kept as it was
 * written, because its line ends and underscores mean something. Not closed = it goes on to the end of the text.
 */
const TOOL_CALL = /<(tool_calls?)(:\w+)?>(?=[^\S\n]*(?:\n|$(?![\s\S]))|[\w.-]+<tool_sep)/;

const toolCall: TokenizerAndRendererExtension = {
  name: "toolCall",
  level: "block",
  start: (src) => {
    // A tag in back quotes is spoken of, not used.
    const at = src.search(TOOL_CALL);
    return at < 0 || src[at - 1] === "`" ? undefined : at;
  },
  tokenizer(src) {
    const open = TOOL_CALL.exec(src);
    if (!open || open.index > 0) return undefined;
    const close = `</${open[1]}${open[2] ?? ""}>`;
    const end = src.indexOf(close);
    const raw = end < 0 ? src : src.slice(0, end + close.length);
    return { type: "toolCall", raw };
  },
  renderer: (token) => codeBlock(token.raw.trimEnd(), "", "tool call"),
};

const marked = new Marked({
  gfm: true,
  extensions: [mathBlock, mathInline, toolCall],
  renderer: {
    code: ({ text, lang }) => codeBlock(text, lang ?? ""),
    html: ({ text }) => (HARMLESS_TAG.test(text.trim()) ? text : escapeHtml(text)),
    // Nothing is loaded from a text: a picture is shown as a link to it.
    image: ({ href, text }) => (LINK.test(href) ? `<a href="${escapeHtml(href)}">${escapeHtml(text || href)}</a>` : escapeHtml(text)),
    link({ href, tokens }) {
      const inner = this.parser.parseInline(tokens);
      return LINK.test(href) ? `<a href="${escapeHtml(href)}" title="${escapeHtml(href)}">${inner}</a>` : inner;
    },
  },
});

export interface Block {
  raw: string;
  html: string;
}

function toHtml(tokens: Token[], links: Tokens.Def[] | Record<string, unknown>): string {
  formulas = [];
  const list = Object.assign([...tokens], { links });
  const clean = DOMPurify.sanitize(marked.parser(list as Token[] & { links: Record<string, Pick<Tokens.Link, "href" | "title">> }), {
    ALLOWED_TAGS,
    ALLOWED_ATTR,
    ADD_URI_SAFE_ATTR: NOT_A_LINK,
    ALLOW_DATA_ATTR: false,
    ALLOWED_URI_REGEXP: LINK,
  });
  return clean.replace(/<span data-math="(\d+)"><\/span>/g, (_, n: string) => formulas[Number(n)] ?? "");
}

function blocksOf(text: string): { blocks: Block[]; tokens: Token[] } {
  const tokens = marked.lexer(text);
  const blocks = tokens.filter((t) => t.type !== "space").map((t) => ({ raw: t.raw, html: toHtml([t], tokens.links) }));
  return { blocks, tokens };
}

export function renderBlocks(text: string): Block[] {
  return blocksOf(text).blocks;
}

/**
 * Renders a text that grows at its end. Blocks before the newest one are final and are not parsed again;
 * a link defined after its use stays plain until the reply is rendered as a whole.
 */
export class GrowingMarkdown {
  #text = "";
  #finalLength = 0;
  #finals: Block[] = [];

  render(text: string): Block[] {
    if (!text.startsWith(this.#text)) {
      this.#finalLength = 0;
      this.#finals = [];
    }
    this.#text = text;
    const tokens = marked.lexer(text.slice(this.#finalLength));
    const lastIdx = tokens.findLastIndex((t) => t.type !== "space");
    for (const token of tokens.slice(0, Math.max(lastIdx, 0))) {
      // The lexer may normalise a raw text (tabs, line ends); then its length says nothing, and all stays open.
      if (!text.startsWith(token.raw, this.#finalLength)) return [...this.#finals, ...blocksOf(text.slice(this.#finalLength)).blocks];
      this.#finalLength += token.raw.length;
      if (token.type !== "space") this.#finals = [...this.#finals, { raw: token.raw, html: toHtml([token], tokens.links) }];
    }
    const open = tokens[lastIdx];
    return open ? [...this.#finals, { raw: open.raw, html: toHtml([open], tokens.links) }] : this.#finals;
  }
}
