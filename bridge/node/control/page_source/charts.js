// Strips and charts as plain SVG. The number of drawn elements does not grow with the number of spans or values: a strip is
// one path for each color, a line has at most one point for each pixel.
const HOUR_MS = 3600000, ROWS_SHOWN = 40, SERIES_SHOWN = 8, LABELS_SHOWN = 24;
const GROUPS = [["verdict", "Verdict"], ["leader", "Leader"], ["publisher", "Publisher"], ["node", "Nodes"], ["leaf", "Leaves"], ["alarm", "Alarms"]];
const CHARTS = { roundTrip: ["Round trip to each member", "round trip"], commitLag: ["Commit lag", "commit lag"], followerLag: ["Lag of each follower", "lag"] };
const GRAVITY = { ok: 0, warning: 1, critical: 2 };
let past = null, hours = 24, every = false;
const plots = new Map();
const hues = new Map();
// A node has one color everywhere.
function hue(name) {
  if (!hues.has(name)) hues.set(name, hues.size % 8);
  return `s${hues.get(name)}`;
}

function bounds() { return { toMs: past.toMs, fromMs: Math.max(past.toMs - hours * HOUR_MS, past.fromMs) }; }
// The shortest selectable time with everything that is recorded.
function usefulHours() {
  const first = past.rows.reduce((least, row) => row.spans.length ? Math.min(least, row.spans[0].startMs) : least, past.toMs);
  return [.25, 1, 6, 24].find((each) => past.toMs - first <= each * HOUR_MS) || 24;
}
const STEPS_MIN = [1, 2, 5, 10, 15, 30, 60, 120, 180, 240, 360, 720, 1440];
function timeTicks({ fromMs, toMs }, width) {
  const most = Math.max(2, Math.floor(width / 80)), step = 60000 * (STEPS_MIN.find((each) => (toMs - fromMs) / (each * 60000) <= most) || 1440);
  const ticks = [];
  for (let ms = Math.ceil(fromMs / step) * step; ms <= toMs; ms += step) ticks.push(ms);
  return ticks;
}
// `free` is the room at both ends for other labels.
const axisLabels = (range, width, left, y, free) => timeTicks(range, width).map((ms) => {
  const x = left + (ms - range.fromMs) / (range.toMs - range.fromMs) * width;
  return x > left + width - free || x < left + free ? null : h("text", { x: x.toFixed(1), y, "text-anchor": "middle" }, clock(ms).slice(0, 5));
});

// -- the timeline --------------------------------------------------------------------------------------------------------
function rowsOf() {
  const order = new Map(GROUPS.map(([kind], place) => [kind, place]));
  const label = (each) => each.kind === "leaf" ? `${known(each.owner)} ${each.name}` : known(each.name);
  return past.rows.filter((each) => order.has(each.kind)).sort((a, b) =>
    order.get(a.kind) - order.get(b.kind) || collator.compare(label(a), label(b)));
}
// Pieces of a strip in whole pixels; of several spans in one pixel the gravest is shown.
function pieces(row, range, width) {
  const scale = width / (range.toMs - range.fromMs), cells = new Array(width), found = [];
  for (const span of row.spans) {
    if (span.endMs <= range.fromMs || span.startMs >= range.toMs) continue;
    const from = Math.max(0, Math.floor((span.startMs - range.fromMs) * scale)), to = Math.min(width, Math.max(from + 1, Math.ceil((span.endMs - range.fromMs) * scale)));
    for (let x = from; x < to; x += 1) if (!cells[x] || GRAVITY[span.severity] > GRAVITY[cells[x].severity]) cells[x] = span;
  }
  for (let x = 0; x < width; x += 1) {
    const span = cells[x], last = found[found.length - 1];
    if (!span) continue;
    if (last && last.end === x && last.severity === span.severity && last.text === span.text) last.end += 1;
    else found.push({ x, end: x + 1, severity: span.severity, text: span.text });
  }
  return found;
}
function share(row, range) {
  let good = 0, all = 0;
  for (const each of row.spans) {
    const ms = Math.min(each.endMs, range.toMs) - Math.max(each.startMs, range.fromMs);
    if (ms > 0) { all += ms; if (each.severity === "ok") good += ms; }
  }
  if (!all) return "–";
  const percent = 100 * good / all;
  return percent === 100 ? "100 %" : `${(Math.floor(percent * 100) / 100).toFixed(percent < 99 ? 1 : 2)} %`;
}
function strip(row, range, width, isPhone) {
  const height = isPhone ? 20 : 18, named = row.kind === "leader" || row.kind === "publisher", paths = new Map(), texts = [];
  for (const each of pieces(row, range, width)) {
    const classes = named && each.text ? `area ${hue(each.text)}` : `f-${severe(each.severity) || "warning"}`;
    paths.set(classes, `${paths.get(classes) || ""}M${each.x} 0h${each.end - each.x}v${height}h${each.x - each.end}z`);
    if (named && each.text && texts.length < LABELS_SHOWN && each.end - each.x > 7 * each.text.length + 10) {
      texts.push(h("text", { x: each.x + 5, y: height - 5 }, each.text));
    }
  }
  const lines = timeTicks(range, width).map((ms) => `M${Math.round((ms - range.fromMs) / (range.toMs - range.fromMs) * width) + .5} 0v${height}`).join("");
  return h("svg", { width, height, viewBox: `0 0 ${width} ${height}`, "aria-hidden": "true" },
    row.kind === "alarm" ? h("line", { class: "grid-line", x2: width, y1: height / 2 + .5, y2: height / 2 + .5 }) : h("rect", { class: "empty", width, height }), h("path", { class: "grid-line", d: lines }),
    [...paths].map(([classes, d]) => [h("path", { class: classes, d }), classes === "f-warning" && h("path", { class: "f-hatch", d })]), texts);
}
const spanText = (each) => each.text || "none";
function labelOf(row) {
  if (row.kind === "verdict") return "Verdict";
  if (row.kind === "leader") return "Leader";
  if (row.kind === "publisher") return past.rows.filter((each) => each.kind === "publisher").length > 1 ? short(row.name) : "Publisher";
  return row.kind === "leaf" ? known(row.owner) : known(row.name);
}
function showTimeline() {
  const range = bounds(), rows = rowsOf(), drawn = every ? rows : rows.slice(0, ROWS_SHOWN), isPhone = innerWidth <= 760;
  const box = at("timeline"), width = Math.max(120, Math.floor(isPhone ? box.clientWidth : box.clientWidth - Math.min(170, box.clientWidth) - 62 - 20));
  const parts = [];
  let group = "";
  drawn.forEach((row, place) => {
    if (row.kind !== group && ["node", "leaf", "alarm"].includes(row.kind)) parts.push(h("h3", null, term(GROUPS.find(([kind]) => kind === row.kind)[1], row.kind === "node" ? "member" : row.kind)));
    group = row.kind;
    const owner = row.kind === "leaf" ? row.owner : row.kind === "node" ? row.name : null;
    parts.push(h("div", { class: "name", title: row.name || "" }, memberLink(owner, labelOf(row)), row.kind === "leaf" && [" ", h("span", { class: "dim mono" }, short(row.name).slice(0, 7))]),
      h("div", { class: "plot", "data-row": place }, strip(row, range, width, isPhone)),
      h("div", { class: "share" }, ["verdict", "node", "leaf"].includes(row.kind) ? share(row, range) : ""));
  });
  parts.push(h("div", { class: "pad" }), h("div", { class: "plot" }, h("svg", { class: "axis", width, height: 16, viewBox: `0 0 ${width} 16`, "aria-hidden": "true" },
    axisLabels(range, width, 0, 12, 56), h("text", { x: width, y: 12, "text-anchor": "end" }, clock(range.toMs)), h("text", { x: 0, y: 12 }, clock(range.fromMs).slice(0, 5)))), h("div", { class: "pad" }));
  patch(box, parts);
  plots.set("timeline", { range, rows: drawn });
  at("rows-more").hidden = rows.length <= ROWS_SHOWN;
  at("rows-more").textContent = every ? `Show ${ROWS_SHOWN} rows` : `Show all ${rows.length} rows`;
  at("past-left").textContent = [past.rowsLeftOut && many(past.rowsLeftOut, "row"), past.spansLeftOut && many(past.spansLeftOut, "older change")].filter(Boolean).map((each) => `${each} left out`).join(", ");
  showChanges();
}
function spanAt(row, ms) { return row.spans.find((each) => each.startMs <= ms && ms < each.endMs); }
function describeSpan(row, ms) {
  const span = spanAt(row, ms), name = row.kind === "leaf" ? `${known(row.owner)} ${short(row.name)}` : row.kind === "publisher" ? `publisher of ${short(row.name)}` : row.name || labelOf(row);
  if (!span) return [name, "nothing recorded: this node did not run, or knew nothing", local(ms)];
  return [`${name}: ${row.kind === "leader" && !span.text ? "no leader" : spanText(span)}`, `${moment(span.startMs)} UTC to ${span.endMs >= past.toMs ? "now" : moment(span.endMs)} (${duration(span.endMs - span.startMs)})`, local(ms)];
}
function local(ms) {
  const minutes = -new Date(ms).getTimezoneOffset();
  return minutes ? `pointed at ${moment(ms)} UTC, ${new Date(ms).toLocaleTimeString([], { hour12: false })} here` : "";
}
// The same changes as text, the newest first.
const CHANGES_SHOWN = 200;
function showChanges() {
  if (!at("changes-box").open) return;
  const range = bounds(), found = [];
  for (const row of rowsOf()) for (const span of row.spans) {
    if (span.endMs > range.fromMs && (span.severity !== "ok" || row.kind === "leader" || row.kind === "publisher")) found.push([row, span]);
  }
  found.sort((a, b) => b[1].startMs - a[1].startMs);
  show("changes", found.slice(0, CHANGES_SHOWN).map(([row, span]) => h("li", null, h("time", null, moment(span.startMs)),
    h("span", { class: severe(span.severity) }, MARKS[span.severity] || ""), h("span", null, `${describeSpan(row, span.startMs)[0]} (${duration(span.endMs - span.startMs)})`))),
  !found.length && h("li", null, "no change"), found.length > CHANGES_SHOWN && h("li", null, `… and ${found.length - CHANGES_SHOWN} earlier changes`));
}

// -- charts --------------------------------------------------------------------------------------------------------------
const nice = (value) => { const power = 10 ** Math.floor(Math.log10(value)); return power * [1, 2, 5, 10].find((each) => each * power >= value); };
// The scale ends above nearly all values; a single outlier would flatten the rest.
function scaleOf(values) {
  if (!values.length) return { top: 1, step: .5, clipped: false };
  const sorted = [...values].sort((a, b) => a - b), highest = sorted[sorted.length - 1], usual = sorted[Math.floor(.985 * (sorted.length - 1))];
  const aim = (values.length > 20 && usual > 0 && highest > 4 * usual ? 2 * usual : highest) || 1, step = nice(aim / 4);
  return { top: Math.ceil(aim / step - 1e-9) * step, step, clipped: highest > Math.ceil(aim / step - 1e-9) * step + 1e-9, highest };
}
function windowOf(series, range) {
  const first = Math.max(0, Math.floor((range.fromMs - past.fromMs) / past.stepMs)), last = Math.ceil((range.toMs - past.fromMs) / past.stepMs);
  return { first, values: series.values.slice(first, last) };
}
function statistics(values) {
  const real = values.filter((each) => each !== null);
  if (!real.length) return null;
  let last = null;
  for (let place = values.length - 1; place >= 0 && last === null; place -= 1) last = values[place];
  return { last, mean: real.reduce((a, b) => a + b, 0) / real.length, highest: real.reduce((a, b) => Math.max(a, b), -Infinity), isNow: values.slice(-2).some((each) => each !== null) };
}
function chart(id, kind, series, width) {
  const range = bounds(), height = 170, left = 46, right = 8, top = 8, inner = width - left - right, bottom = height - 20, unit = series[0].unit;
  const shown = series.map((each) => ({ ...each, ...windowOf(each, range) })).map((each) => ({ ...each, figures: statistics(each.values) }))
    .filter((each) => each.figures).sort((a, b) => b.figures.highest - a.figures.highest);
  const drawn = shown.slice(0, SERIES_SHOWN).sort((a, b) => collator.compare(known(a.name), known(b.name)));
  if (!drawn.length) return [h("p", { class: "dim" }, "no value in this time")];
  const scale = scaleOf(drawn.flatMap((each) => each.values.filter((value) => value !== null)));
  const y = (value) => bottom - Math.min(1, value / scale.top) * (bottom - top), span = range.toMs - range.fromMs;
  const ticks = [];
  for (let value = 0; value <= scale.top * 1.001; value += scale.step) ticks.push(value);
  const lines = drawn.map((each) => lineOf(each, range, inner, left, y, scale.top));
  plots.set(id, { range, drawn, unit, left, inner });
  return [h("svg", { class: "plot", "data-chart": id, width, height, viewBox: `0 0 ${width} ${height}`, role: "img",
    "aria-label": `${(CHARTS[kind] || [kind])[0]}: a chart of ${many(drawn.length, "line")} from 0 to ${figure(scale.top, unit)}; the table below has the figures` },
  ticks.map((value) => [h("line", { class: "grid-line", x1: left, x2: width - right, y1: Math.round(y(value)) + .5, y2: Math.round(y(value)) + .5 }),
    h("text", { x: left - 6, y: y(value) + 4, "text-anchor": "end" }, value ? figure(value, unit === "ms" ? unit : "") : "0")]),
  axisLabels({ fromMs: range.fromMs, toMs: range.fromMs + span }, inner, left, height - 5, 14),
  lines.map(({ classes, d, over, dot }) => [h("path", { class: `line ${classes}`, d }), over && h("path", { class: `dot ${classes}`, d: over }), dot && h("circle", { class: `dot ${classes}`, r: 2.5, cx: dot[0], cy: dot[1] })])),
  scale.clipped && h("p", { class: "dim small" }, `▲ above the scale; the highest value is ${figure(scale.highest, unit)}`),
  h("table", { class: "legend" }, h("thead", null, h("tr", null, [unit === "ms" ? "" : unit, "now", "mean", "highest"].map((text) => h("th", { scope: "col", class: text && text !== unit ? "number" : "" }, text)))),
    h("tbody", null, drawn.map((each) => h("tr", { key: each.name, class: each.figures.isNow ? "" : "old" }, h("td", null, h("span", { class: `swatch ${hue(known(each.name))}` }), each.name === null ? "this node" : memberLink(each.name)),
      [each.figures.isNow ? each.figures.last : null, each.figures.mean, each.figures.highest].map((value) => h("td", { class: "number" }, figure(value, unit === "ms" ? unit : ""))))))),
  shown.length > drawn.length && h("p", { class: "dim small" }, `the ${drawn.length} highest of ${shown.length} lines`)];
}
// A line with at most one point for each pixel, the highest value of that pixel; it ends at a gap.
function lineOf(series, range, inner, left, y, top) {
  const perStep = inner * past.stepMs / (range.toMs - range.fromMs), offset = left + (past.fromMs + (series.first + .5) * past.stepMs - range.fromMs) / (range.toMs - range.fromMs) * inner;
  let d = "", over = "", isOpen = false, alone = null;
  const bucket = Math.max(1, Math.ceil(1 / perStep));
  let dot = null;
  for (let place = 0; place < series.values.length; place += bucket) {
    let value = null;
    for (let each = place; each < Math.min(place + bucket, series.values.length); each += 1) {
      if (series.values[each] !== null && (value === null || series.values[each] > value)) value = series.values[each];
    }
    if (value === null) { if (alone) d += `M${alone}h2`; alone = null; isOpen = false; continue; }
    const x = (offset + place * perStep).toFixed(1), point = `${x} ${y(value).toFixed(1)}`;
    alone = isOpen ? null : point;
    d += `${isOpen ? "L" : "M"}${point}`;
    if (value > top) over += `M${x} ${(y(value) - 1).toFixed(1)}l-4 6h8z`;
    isOpen = true;
    dot = [x, y(value).toFixed(1)];
  }
  return { classes: hue(known(series.name)), d, over, dot };
}
function showCharts() {
  const kinds = new Map();
  for (const each of past.series) kinds.set(each.kind, [...(kinds.get(each.kind) || []), each]);
  const order = [...new Set([...Object.keys(CHARTS), ...kinds.keys()])].filter((kind) => kinds.has(kind)).slice(0, 6);
  show("charts", !order.length && h("section", { class: "wide" }, h("div", { class: "head" }, h("h2", null, "Round trip and commit lag")), h("p", { class: "dim" }, "No figures yet: the node records them each minute.")), order.map((kind) => {
    const [title, word] = CHARTS[kind] || [kind, null];
    const isWide = order.length === 1, width = Math.floor(at("charts").clientWidth / (isWide || innerWidth <= 760 ? 1 : 2)) - (isWide || innerWidth <= 760 ? 30 : 36);
    return h("section", { key: kind, class: isWide ? "wide" : "", "aria-label": title }, h("div", { class: "head" }, h("h2", null, term(title, word))), chart(`chart-${kind}`, kind, kinds.get(kind), Math.max(220, width)));
  }));
}
function showPast() {
  if (!past || document.hidden || past.toMs <= past.fromMs) return;
  for (const each of document.querySelectorAll("[data-hours]")) each.setAttribute("aria-pressed", String(Number(each.dataset.hours) === hours));
  showTimeline(); showCharts();
}

// -- details under the mouse, a finger, or the arrow keys ------------------------------------------------------------------
function point(x, y, lines, box) {
  const tip = at("tip"), cursor = at("cursor");
  patch(tip, lines.filter(Boolean).map((each) => h("div", null, each)));
  tip.hidden = cursor.hidden = false;
  const size = tip.getBoundingClientRect();
  tip.style.left = `${Math.max(6, Math.min(x + 12, innerWidth - size.width - 6))}px`;
  tip.style.top = `${y + 18 + size.height > innerHeight ? Math.max(4, y - size.height - 12) : y + 18}px`;
  cursor.style.left = `${x}px`; cursor.style.top = `${box.top}px`; cursor.style.height = `${box.height}px`;
}
function unpoint() { at("tip").hidden = at("cursor").hidden = true; }
function pointAt(target, x, y) {
  const row = target.closest("[data-row]"), drawing = target.closest("[data-chart]");
  if (row) {
    const { range, rows } = plots.get("timeline"), box = row.getBoundingClientRect(), whole = at("timeline").getBoundingClientRect();
    const ms = range.fromMs + (x - box.left) / box.width * (range.toMs - range.fromMs);
    point(x, y, describeSpan(rows[Number(row.dataset.row)], ms), whole);
  } else if (drawing) {
    const { range, drawn, unit, left, inner } = plots.get(drawing.dataset.chart), box = drawing.getBoundingClientRect();
    const part = Math.max(0, Math.min(1, (x - box.left - left) / inner)), ms = range.fromMs + part * (range.toMs - range.fromMs);
    const place = Math.floor((ms - past.fromMs) / past.stepMs);
    point(box.left + left + part * inner, y, [`${moment(past.fromMs + place * past.stepMs)} UTC`, ...drawn.map((each) => `${known(each.name)}: ${figure(each.values[place - each.first], unit)}`)], box);
  } else unpoint();
}
// With the keyboard: left and right go to the next change of a row or to the next value, up and down to another row.
let pointed = { row: 0, ms: 0 };
function step(key) {
  const { range, rows } = plots.get("timeline");
  if (!rows.length) return;
  const forward = key === "ArrowRight";
  if (key === "ArrowUp" || key === "ArrowDown") pointed.row = Math.max(0, Math.min(rows.length - 1, pointed.row + (key === "ArrowDown" ? 1 : -1)));
  if (!(pointed.ms >= range.fromMs && pointed.ms < range.toMs)) pointed.ms = range.toMs - 1;
  const row = rows[Math.min(pointed.row, rows.length - 1)];
  if (key === "ArrowLeft" || forward) {
    const edges = row.spans.flatMap((each) => [each.startMs, each.endMs]).filter((ms) => ms >= range.fromMs && ms < range.toMs && (forward ? ms > pointed.ms : ms < pointed.ms));
    if (edges.length) pointed.ms = forward ? edges[0] : edges[edges.length - 1];
  }
  const strip = at("timeline").querySelector(`[data-row="${rows.indexOf(row)}"]`), box = strip.getBoundingClientRect();
  const lines = describeSpan(row, pointed.ms);
  point(box.left + (pointed.ms - range.fromMs) / (range.toMs - range.fromMs) * box.width, box.bottom, lines, box);
  at("spoken").textContent = lines.join(", ");
}
