// Runs the script of the page in a simulated browser. Its stream delivers at most one view, after the views of all
// nodes. argv: the page. Prints the text of the element "state" after each step as one JSON list.
"use strict";
const fs = require("fs");
const vm = require("vm");
const source = fs.readFileSync(process.argv[2], "utf8").match(/<script>([\s\S]*)<\/script>/)[1];
const elements = new Map(), timers = [];
let nowMs = Date.UTC(2026, 0, 1, 10, 0, 0), aborted = 0, feed = null;

function element() {
  return { textContent: "", className: "", hidden: false, dataset: {}, value: "", childNodes: [], firstChild: null, style: {},
    classList: { toggle() {} }, insertBefore() {}, setAttribute() {}, addEventListener() {}, focus() {} };
}
const at = (id) => { if (!elements.has(id)) elements.set(id, element()); return elements.get(id); };
class Clock extends Date {
  constructor(...given) { super(...(given.length ? given : [nowMs])); }
  static now() { return nowMs; }
}
const RESPONSE = () => ({ ok: true, status: 200, body: { pipeThrough: () => ({ getReader: () => ({
  read: () => new Promise((resolve) => { feed = (text) => resolve({ value: text, done: false }); }) }) }) } });
const SIGHTS = { takenAtMs: nowMs, nodes: [{ nodeId: "1", name: "node-1", answered: true, verdict: "healthy", severity: "ok", members: {}, publishers: {} }] };
const store = { getItem: () => "", setItem() {}, removeItem() {} };
const world = {
  document: { body: element(), getElementById: at, createElement: element, createElementNS: element, createTextNode: element,
    addEventListener() {}, title: "" },
  window: { addEventListener() {} }, location: { hash: "", pathname: "/" }, history: { replaceState() {} },
  sessionStorage: store, localStorage: store,
  fetch: (target, options) => {
    if (target === "/v1/views") return Promise.resolve({ ok: true, json: async () => SIGHTS });
    if (!target.startsWith("/v1/stream")) return new Promise(() => {});
    options.signal.addEventListener("abort", () => { aborted += 1; });
    return process.argv[3] === "unanswered" ? new Promise(() => {}) : Promise.resolve(RESPONSE());
  },
  setTimeout: () => 0, clearTimeout() {}, clearInterval() {}, setInterval: (call) => { timers.push(call); return timers.length; },
  AbortController, TextDecoderStream: class {}, URLSearchParams, Date: Clock, console,
};
vm.runInNewContext(source.replace("function showAll() {", "function showAll() { return;"), world);
const settle = () => new Promise((resolve) => setImmediate(resolve));
const later = async (ms) => { nowMs += ms; timers.forEach((call) => call()); await settle(); return at("state").textContent; };

(async () => {
  const seen = [];
  for (let turn = 0; turn < 3; turn += 1) await settle();
  seen.push(await later(5000), await later(1500));
  if (feed) { feed('event: view\ndata: {"members":[]}\n\n'); await settle(); await settle(); seen.push(at("state").textContent); }
  seen.push(await later(31000), aborted);
  console.log(JSON.stringify(seen));
})();
