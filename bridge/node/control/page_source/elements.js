"use strict";
// Elements, formats and explanations. Everything that a node, router or client has named becomes a text node or the value of
// an attribute that cannot run or load anything; nothing is read as HTML.
const SHARED = {};
const at = (id) => document.getElementById(id);
const SVG = at("marks").namespaceURI;

// h describes an element; patch makes the children of a node equal to descriptions and keeps equal ones, so that focus,
// selection, scrolling and open details survive an update, and an unchanged view costs no layout.
function h(tag, attributes, ...children) {
  return { tag, key: attributes?.key, attributes: attributes || {},
    children: children.flat(Infinity).filter((each) => each !== null && each !== undefined && each !== false && each !== "") };
}
function patch(parent, children) {
  const keyed = new Map();
  for (const each of parent.childNodes) if (each.key !== undefined) keyed.set(each.key, each);
  let place = parent.firstChild;
  for (const child of children) {
    let node = child.key === undefined ? place : keyed.get(child.key);
    if (!node || node.key !== child.key || (child.tag ? node.localName !== child.tag : node.nodeType !== 3)) node = made(parent, child);
    if (!child.tag) { if (node.data !== String(child)) node.data = String(child); } else update(node, child);
    if (node === place) place = place.nextSibling; else parent.insertBefore(node, place);
  }
  while (place) { const next = place.nextSibling; place.remove(); place = next; }
}
function made(parent, child) {
  if (!child.tag) return document.createTextNode("");
  const node = child.tag === "svg" || parent.namespaceURI === SVG ? document.createElementNS(SVG, child.tag) : document.createElement(child.tag);
  node.key = child.key;
  return node;
}
function update(node, { attributes, children }) {
  const before = node.given || {};
  for (const name of Object.keys(before)) if (!(name in attributes)) node.removeAttribute(name);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "key" || before[name] === value) continue;
    if (value === null || value === undefined || value === false) node.removeAttribute(name);
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.given = attributes;
  patch(node, children);
}
const show = (id, ...children) => patch(at(id), h("div", null, ...children).children);

// -- formats; all times are UTC, as in the log and in the terminal ------------------------------------------------------
const known = (value) => value === null || value === undefined ? "–" : String(value);
const two = (number) => String(number).padStart(2, "0");
function clock(ms) { const t = new Date(ms); return `${two(t.getUTCHours())}:${two(t.getUTCMinutes())}:${two(t.getUTCSeconds())}`; }
function moment(ms) {
  const t = new Date(ms);
  return `${Math.abs(Date.now() - ms) > 72000000 ? `${t.getUTCFullYear()}-${two(t.getUTCMonth() + 1)}-${two(t.getUTCDate())} ` : ""}${clock(ms)}`;
}
function duration(ms) {
  if (ms === null || ms === undefined) return "–";
  const s = Math.max(0, Math.round(ms / 1000));
  if (s < 60) return `${s} s`;
  if (s < 3600) return s % 60 ? `${Math.floor(s / 60)} min ${s % 60} s` : `${s / 60} min`;
  if (s < 86400) return s % 3600 < 60 ? `${Math.floor(s / 3600)} h` : `${Math.floor(s / 3600)} h ${Math.floor(s % 3600 / 60)} min`;
  return s % 86400 < 3600 ? `${Math.floor(s / 86400)} d` : `${Math.floor(s / 86400)} d ${Math.floor(s % 86400 / 3600)} h`;
}
const ago = (ms) => ms === null || ms === undefined ? "" : `${duration(ms)} ago`;
function figure(value, unit) {
  if (value === null || value === undefined) return "–";
  if (unit === "ms" && value >= 1000) return `${(value / 1000).toFixed(value < 10000 ? 1 : 0)} s`;
  if (unit === "ms" && value === 0) return "<1 ms";
  const text = value >= 10 || Number.isInteger(value) ? Math.round(value).toLocaleString("en") : value.toFixed(value < 1 ? 2 : 1);
  return unit ? `${text} ${unit}` : text;
}
const short = (address) => { const head = String(address).replace(/\.b32\.i2p$/, ""); return head.length <= 12 ? String(address) : `${head.slice(0, 12)}…`; };
const collator = new Intl.Collator("en", { numeric: true });
const many = (count, word) => `${count} ${word}${count === 1 ? "" : "s"}`;

// -- signs: a status has a sign as well as a color -----------------------------------------------------------------------
const MARKS = { ok: "✓", warning: "!", critical: "✕" };
const STATUS = { alive: ["●", "ok"], suspect: ["◐", "warning"], dead: ["✕", "critical"], left: ["○", "dim"] };
const severe = (severity) => severity in MARKS ? severity : "";
function status(name, more) {
  const [sign, classes] = STATUS[name] || ["?", ""];
  return h("span", { class: classes }, `${sign} ${known(name)}`, more);
}
// Commands in texts are between backticks.
const coded = (text) => String(text).split("`").map((part, place) => place % 2 ? h("code", null, part) : part);
const chip = (text, classes) => h("span", { class: `chip ${classes || ""}` }, text);

// -- words: a button with a dotted line explains its word; the texts are those of the glossary ----------------------------
function term(text, word) {
  return SHARED.words[word || text.toLowerCase()] ? h("button", { type: "button", class: "term", "data-word": word || text.toLowerCase() }, text) : text;
}
let explained = null;
function explain(button) {
  const box = at("explain"), word = button.dataset.word, place = button.getBoundingClientRect();
  patch(box, [h("strong", null, word), h("p", null, SHARED.words[word])]);
  box.showPopover();
  explained = button;
  const size = box.getBoundingClientRect();
  box.style.left = `${Math.max(8, Math.min(place.left, innerWidth - size.width - 8))}px`;
  box.style.top = `${place.bottom + size.height + 8 > innerHeight ? Math.max(8, place.top - size.height - 6) : place.bottom + 6}px`;
}

// A table; on a phone, `cards` shows each row as lines of label and value. A head is [label, class, word of the glossary].
function table(options, heads, rows) {
  const row = (each) => each.whole ? h("tr", { key: each.key, class: "plain" }, h("td", { class: "whole", colspan: heads.length }, each.whole))
    : h("tr", { key: each.key, class: each.class, id: each.id }, each.cells.map((cell, place) => {
      const { cell: content, class: classes } = cell !== null && cell !== undefined && "cell" in Object(cell) ? cell : { cell, class: "" };
      return h("td", { "data-label": heads[place][0], class: `${heads[place][1] || ""} ${classes}`.trim() }, content);
    }));
  return h("table", options, h("thead", null, h("tr", null, heads.map(([name, classes, word]) =>
    h("th", { scope: "col", class: classes === "mono" ? "" : classes }, term(name, word))))), h("tbody", null, rows.map(row)));
}
const facts = (rows) => h("table", { class: "facts" }, h("tbody", null, rows.filter(Boolean).map(([name, value, word]) =>
  h("tr", null, h("th", { scope: "row" }, term(name, word)), h("td", null, value)))));
