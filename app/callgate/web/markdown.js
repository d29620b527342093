// @ts-check
// Markdown as a model writes it, made of elements and text nodes: nothing of it is read as markup. Links stay text.

import { html } from "./lit.js";

const FENCE = /^\s{0,3}(`{3,}|~{3,})\s*([^`]*)$/;
const HEADING = /^\s{0,3}(#{1,6})\s+(.*?)\s*#*$/;
const RULE = /^\s{0,3}([-*_])(?:\s*\1){2,}\s*$/;
const QUOTE = /^\s{0,3}>\s?/;
const ITEM = /^(\s*)([-*+]|\d{1,9}[.)])\s+/;
const DASHES = /^\s*\|?\s*:?-+:?\s*(?:\|\s*:?-+:?\s*)*\|?\s*$/;
const INLINE = /(`+)([^`](?:[^\n]{0,2000}?[^`])?)\1(?!`)|\*\*(?=\S)([^\n]{0,2000}?\S)\*\*|~~(?=\S)([^\n]{0,2000}?\S)~~|(?<![\w*])\*(?=[^\s*])([^*\n]{0,2000}?[^\s*])\*(?![\w*])|(?<!\w)_(?=[^\s_])([^_\n]{0,2000}?[^\s_])_(?!\w)/g;
const DEEPEST = 6;
/** Longer texts are shown as they were written: a page that thinks for a second at each word is of no use. */
const LONGEST = 200_000;
const LONGEST_PARAGRAPH = 10_000;

/** @param {string} text @returns {unknown} */
export const markdown = (text) => (text.length > LONGEST ? html`<p>${text}</p>` : blocks(text.split("\n"), 0));

/** @param {string[]} lines @param {number} depth @returns {unknown[]} */
function blocks(lines, depth) {
  if (depth > DEEPEST) return [html`<p>${lines.join("\n")}</p>`];
  const found = [];
  let at = 0;
  while (at < lines.length) {
    const line = lines[at];
    if (!line.trim()) at += 1;
    else if (FENCE.test(line)) at = fence(lines, at, found);
    else if (HEADING.test(line)) {
      const [, signs, words] = /** @type {RegExpExecArray} */ (HEADING.exec(line));
      found.push(signs.length < 3 ? html`<h4>${inline(words)}</h4>` : html`<h5>${inline(words)}</h5>`);
      at += 1;
    } else if (RULE.test(line)) {
      found.push(html`<hr />`);
      at += 1;
    } else if (QUOTE.test(line)) {
      const quoted = [];
      while (at < lines.length && QUOTE.test(lines[at])) quoted.push(lines[at++].replace(QUOTE, ""));
      found.push(html`<blockquote>${blocks(quoted, depth + 1)}</blockquote>`);
    } else if (ITEM.test(line)) at = list(lines, at, depth, found);
    else if (isTable(lines, at)) at = table(lines, at, found);
    else at = paragraph(lines, at, found);
  }
  return found;
}

/** @param {string[]} lines @param {number} at @param {unknown[]} found */
function fence(lines, at, found) {
  const mark = /** @type {RegExpExecArray} */ (FENCE.exec(lines[at]))[1];
  const inside = [];
  for (at += 1; at < lines.length && !(lines[at].trim().startsWith(mark) && !lines[at].trim().replaceAll(mark[0], "")); at += 1) inside.push(lines[at]);
  found.push(html`<pre tabindex="0"><code>${inside.join("\n")}</code></pre>`);
  return at + 1;
}

/** @param {string[]} lines @param {number} at @param {number} depth @param {unknown[]} found */
function list(lines, at, depth, found) {
  const [, indent, mark] = /** @type {RegExpExecArray} */ (ITEM.exec(lines[at]));
  const isNumbered = /\d/.test(mark);
  const items = [];
  while (at < lines.length) {
    const [head, spaces, own] = ITEM.exec(lines[at]) ?? [];
    if (head === undefined || spaces.length > indent.length + 1 || /\d/.test(own) !== isNumbered) break;
    const item = [lines[at].slice(head.length)];
    for (at += 1; at < lines.length; at += 1) {
      const [next, inner] = ITEM.exec(lines[at]) ?? [];
      if (next !== undefined && inner.length <= indent.length + 1) break;
      const isIndented = /^(?:\s{2,}|\t)/.test(lines[at]);
      if (!lines[at].trim()) {
        if (!/^(?:\s{2,}|\t)\S/.test(lines[at + 1] ?? "")) break;
      } else if (!isIndented && (FENCE.test(lines[at]) || HEADING.test(lines[at]) || !lines[at - 1].trim())) break;
      item.push(lines[at].replace(/^(?: {1,4}|\t)/, ""));
    }
    items.push(item);
    if (!lines[at]?.trim() && ITEM.test(lines[at + 1] ?? "")) at += 1;
  }
  const drawn = items.map((item) => html`<li>${blocks(item, depth + 1)}</li>`);
  found.push(isNumbered ? html`<ol start=${parseInt(mark, 10)}>${drawn}</ol>` : html`<ul>${drawn}</ul>`);
  return at;
}

/** @param {string[]} lines @param {number} at */
const isTable = (lines, at) => lines[at].includes("|") && DASHES.test(lines[at + 1] ?? "") && (lines[at + 1] ?? "").includes("-");

/** @param {string[]} lines @param {number} at @param {unknown[]} found */
function table(lines, at, found) {
  const cells = (/** @type {string} */ line) => line.trim().replace(/^\||\|$/g, "").split("|").map((each) => each.trim());
  const heads = cells(lines[at]);
  const rows = [];
  for (at += 2; at < lines.length && lines[at].includes("|"); at += 1) rows.push(cells(lines[at]));
  found.push(html`<div class="scroll" tabindex="0" role="group" aria-label="A table in the answer"><table>
    <thead><tr>${heads.map((each) => html`<th>${inline(each)}</th>`)}</tr></thead>
    <tbody>${rows.map((row) => html`<tr>${heads.map((_, place) => html`<td>${inline(row[place] ?? "")}</td>`)}</tr>`)}</tbody></table></div>`);
  return at;
}

/** @param {string[]} lines @param {number} at @param {unknown[]} found */
function paragraph(lines, at, found) {
  const own = [lines[at]];
  for (at += 1; at < lines.length && lines[at].trim(); at += 1) {
    if (FENCE.test(lines[at]) || HEADING.test(lines[at]) || QUOTE.test(lines[at]) || ITEM.test(lines[at]) || isTable(lines, at)) break;
    own.push(lines[at]);
  }
  found.push(html`<p>${inline(own.join("\n"))}</p>`);
  return at;
}

/** @param {string} text @param {number} [depth] @returns {unknown[]} */
function inline(text, depth = 0) {
  if (text.length > LONGEST_PARAGRAPH || depth > DEEPEST) return [text];
  const found = [];
  let end = 0;
  for (const match of text.matchAll(INLINE)) {
    const [whole, , code, strong, gone, ...slanted] = match;
    found.push(text.slice(end, match.index));
    end = match.index + whole.length;
    if (code !== undefined) found.push(html`<code>${code}</code>`);
    else if (strong !== undefined) found.push(html`<strong>${inline(strong, depth + 1)}</strong>`);
    else if (gone !== undefined) found.push(html`<s>${inline(gone, depth + 1)}</s>`);
    else found.push(html`<em>${inline(slanted.find((each) => each !== undefined) ?? "", depth + 1)}</em>`);
  }
  return [...found, text.slice(end)];
}
