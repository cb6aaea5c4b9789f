import hljs from "highlight.js/lib/core";
import bash from "highlight.js/lib/languages/bash";
import c from "highlight.js/lib/languages/c";
import cpp from "highlight.js/lib/languages/cpp";
import csharp from "highlight.js/lib/languages/csharp";
import css from "highlight.js/lib/languages/css";
import diff from "highlight.js/lib/languages/diff";
import go from "highlight.js/lib/languages/go";
import ini from "highlight.js/lib/languages/ini";
import java from "highlight.js/lib/languages/java";
import javascript from "highlight.js/lib/languages/javascript";
import json from "highlight.js/lib/languages/json";
import kotlin from "highlight.js/lib/languages/kotlin";
import lua from "highlight.js/lib/languages/lua";
import makefile from "highlight.js/lib/languages/makefile";
import markdown from "highlight.js/lib/languages/markdown";
import php from "highlight.js/lib/languages/php";
import python from "highlight.js/lib/languages/python";
import r from "highlight.js/lib/languages/r";
import ruby from "highlight.js/lib/languages/ruby";
import rust from "highlight.js/lib/languages/rust";
import sql from "highlight.js/lib/languages/sql";
import swift from "highlight.js/lib/languages/swift";
import typescript from "highlight.js/lib/languages/typescript";
import xml from "highlight.js/lib/languages/xml";
import yaml from "highlight.js/lib/languages/yaml";
import { escapeHtml } from "./escape";

const LANGUAGES = {
  bash, c, cpp, csharp, css, diff, go, ini, java, javascript, json, kotlin, lua, makefile, markdown, php, python, r, ruby, rust,
  sql, swift, typescript, xml, yaml,
};
for (const [name, language] of Object.entries(LANGUAGES)) hljs.registerLanguage(name, language);

/** Above this the colours cost more than a frame while a block grows. */
const LONGEST_COLOURED = 20_000;

/** `label` stands at its head; by default the language. */
export function codeBlock(text: string, info: string, label?: string): string {
  const lang = info.trim().split(/\s/)[0] ?? "";
  const known = lang !== "" && hljs.getLanguage(lang) !== undefined && text.length <= LONGEST_COLOURED;
  const body = known ? hljs.highlight(text, { language: lang, ignoreIllegals: true }).value : escapeHtml(text);
  return (
    `<div class="code"><div class="code-head"><span>${escapeHtml(label ?? lang)}</span>` +
    `<button type="button" class="code-copy" data-copy="1">Copy</button></div>` +
    `<pre><code>${body}</code></pre></div>`
  );
}
