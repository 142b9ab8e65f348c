// The stream of the node, requests for the rest, and what the user does.
// A view comes every two seconds. A node that is stopped keeps its connections open, so only the clock shows it.
const EVENTS_KEPT = 500, LOG_KEPT = 50, KEY = "garlicfarm-token", LIVE_MS = 6000, GIVE_UP_MS = 30000, PAST_MS = 60000, SIGHTS_MS = 10000, SOON_MS = 4000, APART_MS = 15000;
let token = "", cursor = 1, tries = 0, lastMs = 0, isAsked = false;

function showAll() {
  if (!view || document.hidden) return;
  outdated = outdatedReports();
  at("title").textContent = view.farm.cluster;
  at("seen-by").textContent = `as ${view.node.name} sees it${view.raft.role === "none" ? "" : `, ${view.raft.role === "leader" ? "the" : "a"} ${view.raft.role}`}; times are UTC`;
  at("farm").hidden = at("bar").hidden = at("tiles").hidden = false;
  for (const each of [...memberNames].sort(collator.compare).slice(0, MEMBERS_SHOWN)) hue(each);
  showVerdict(); showTiles(); showAlarms(); showMembers(); showPublished(); showLeaves(); showRaft();
  if (sights && areSightsPast() !== sightsArePast) showSights();
}
function receive(name, data, id) {
  if (name === "view") { view = JSON.parse(data); memberNames = new Set(view.members.map((each) => each.name)); showAll(); showLive(); }
  if (name === "takeOver") { take = JSON.parse(data); showTakeOver(); }
  if (name === "log") { logEntries = [...logEntries, ...JSON.parse(data).entries].slice(-LOG_KEPT); showLog(); }
  if (name === "trace") {
    events.push(JSON.parse(data));
    if (MOVES.test(events[events.length - 1].kind)) refreshSoon();
    if (events.length > EVENTS_KEPT) events = events.slice(-EVENTS_KEPT);
    cursor = Number(id) + 1;
  }
}

function showState(text, classes) {
  if (at("state").textContent !== text) at("state").textContent = text;
  at("state").className = classes;
  document.body.classList.toggle("stale", classes === "critical" && lastMs > 0);
}
function showLive() { lastMs = Date.now(); showState("live", "ok"); }
function watchSilence(begunMs, giveUp) {
  const silentMs = Date.now() - Math.max(lastMs, begunMs);
  if (silentMs >= LIVE_MS) showState(lastMs ? `not live since ${clock(lastMs)} (${ago(Date.now() - lastMs)}): the node does not answer; the page shows old data`
    : "the node does not answer; is it stopped or overloaded?", "critical");
  if (silentMs >= GIVE_UP_MS) giveUp.abort();
}
const authorized = (more) => ({ ...more, headers: token ? { Authorization: `Bearer ${token}` } : {} });

async function follow() {
  const giveUp = new AbortController(), begunMs = Date.now();
  const watch = setInterval(() => watchSilence(begunMs, giveUp), 500);
  try { return await readStream(giveUp.signal); } finally { clearInterval(watch); }
}
async function readStream(signal) {
  logEntries = [];
  const answer = await fetch(`/v1/stream?from=${cursor}&log=${LOG_KEPT}`, authorized({ signal }));
  if (answer.status === 401) { ask(token ? "The node does not accept this token." : "The node requires a token."); return false; }
  if (!answer.ok) throw new Error(`the node answered ${answer.status}`);
  showLive();
  at("login").hidden = true;
  at("forget").hidden = !token;
  tries = 0;
  if (!isAsked) { isAsked = true; repeat(requestPast, PAST_MS); repeat(requestSights, SIGHTS_MS); }
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return true;
    const blocks = (rest + value).split("\n\n");
    rest = blocks.pop();
    const before = cursor;
    for (const block of blocks) {
      const fields = Object.fromEntries(block.split("\n").map((line) => {
        const colon = line.indexOf(": ");
        return [line.slice(0, colon), line.slice(colon + 2)];
      }));
      receive(fields.event, fields.data, fields.id);
    }
    if (cursor !== before && !document.hidden) showEvents();
  }
}

// An older node, or one without a farm, lacks the history or the view of all nodes: the card shows that, and the rest works.
async function requested(path) {
  const giveUp = new AbortController(), timer = setTimeout(() => giveUp.abort(), GIVE_UP_MS);
  try {
    const answer = await fetch(path, authorized({ signal: giveUp.signal }));
    if (answer.ok) return await answer.json();
    const text = await answer.json().then((each) => each.error.text, () => "");
    throw new Error(answer.status === 404 ? "this node does not have it; nodes of a newer version do" : `the node answered ${answer.status}${text ? `: ${text}` : ""}`);
  } finally { clearTimeout(timer); }
}
async function requestPast() {
  if (document.hidden) return;
  try {
    const answer = await requested("/v1/history?hours=24");
    if (!Array.isArray(answer.rows) || !Array.isArray(answer.series)) throw new Error("its format is unknown");
    const isFirst = past === null;
    past = answer;
    if (isFirst) hours = usefulHours();
    at("past-problem").textContent = past.rows.length ? "" : "nothing recorded yet";
    at("past").hidden = !past.rows.length;
    showPast();
  } catch (error) { at("past-problem").textContent = `${past ? `the history is ${duration(Date.now() - past.toMs)} old` : "no history"}: ${error.message}`; }
  at("past").classList.toggle("old", Boolean(past) && at("past-problem").textContent !== "");
}
async function requestSights() {
  if (document.hidden) return;
  try { sights = await requested("/v1/views"); sightsProblem = ""; } catch (error) { sightsProblem = `no view of the other nodes: ${error.message}`; }
  at("sights").classList.toggle("old", sightsProblem !== "" && sights !== null);
  showSights();
}
function repeat(request, everyMs) { request().finally(() => setTimeout(() => repeat(request, everyMs), everyMs)); }
// A change of a member, leader, publisher, verdict or alarm is soon in the history and in the views of all nodes.
const MOVES = /^(member-|leader-|publisher-|verdict-|alarm-)/;
// A farm that changes again and again costs the node one request in a quarter of a minute.
let isRefreshing = false, refreshedMs = 0;
function refreshSoon() {
  if (isRefreshing || !isAsked) return;
  isRefreshing = true;
  setTimeout(() => { isRefreshing = false; refreshedMs = Date.now(); requestPast(); requestSights(); }, Math.max(SOON_MS, refreshedMs + APART_MS - Date.now()));
}

function ask(text) {
  sessionStorage.removeItem(KEY);
  localStorage.removeItem(KEY);
  token = "";
  showState(text, "dim");
  at("login").hidden = false;
  for (const id of ["farm", "verdict", "bar", "tiles"]) at(id).hidden = true;
  at("token").focus();
}
async function run() {
  for (;;) {
    try {
      if (!await follow()) return;
      throw new Error("the node ended the connection");
    } catch (error) {
      tries += 1;
      showState(lastMs ? `not connected since ${clock(lastMs)} (${error.message}); the page shows old data. Trying again …` : `not connected (${error.message}). Trying again …`, "critical");
      cursor = tries > 1 ? 1 : cursor;
      if (cursor === 1) events = [];
    }
    await new Promise((resolve) => setTimeout(resolve, Math.min(10000, 500 * 2 ** Math.min(tries, 5))));
  }
}

// -- what the user does --------------------------------------------------------------------------------------------------------
function goToMember(name) {
  const each = members().find((one) => one.name === name);
  if (!each) return;
  found = name;
  opened.add(each.nodeId);
  showMembers();
  const row = [...at("members").querySelectorAll("tr")].find((one) => one.key === each.nodeId);
  row.scrollIntoView({ block: "center" });
  row.querySelector("button").focus({ preventScroll: true });
}
document.addEventListener("click", (event) => {
  const button = event.target.closest("button");
  if (!button) { if (!event.target.closest("#explain")) explained = null; return; }
  const { member, toggle, word, go } = button.dataset;
  if (word) { if (explained === button && at("explain").matches(":popover-open")) at("explain").hidePopover(); else explain(button); }
  else if (member) goToMember(member);
  else if (toggle) { if (!opened.delete(toggle)) opened.add(toggle); showMembers(); }
  else if (go) { const card = at(go); if (card.matches("details")) card.open = true; card.closest("section, details").scrollIntoView({ block: "start" }); card.closest("section, details").focus({ preventScroll: true }); }
  else if (button.dataset.hours) { hours = Number(button.dataset.hours); showPast(); }
  else if (button.dataset.least) { least = button.dataset.least; showEvents(); }
  else if (button.dataset.everyNode) { everyNode = !everyNode; showSights(); }
  else if (button.id === "rows-more") { every = !every; showPast(); }
  else if (button.id === "forget") { ask("The token is removed from this browser."); location.reload(); }
});
for (const kind of ["pointermove", "pointerdown"]) document.addEventListener(kind, (event) => { if (past && event.target.closest) pointAt(event.target, event.clientX, event.clientY); });
document.addEventListener("scroll", () => { unpoint(); if (explained) { explained = null; at("explain").hidePopover(); } }, { passive: true });
at("timeline").addEventListener("keydown", (event) => {
  if (event.target === at("timeline") && event.key.startsWith("Arrow") && past) { event.preventDefault(); step(event.key); }
  if (event.key === "Escape") unpoint();
});
at("timeline").addEventListener("blur", unpoint);
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.matches("input")) return;
  if (event.key === "/") { event.preventDefault(); at("filter").focus(); }
  if (event.key === "?") { at("help").open = true; at("help").scrollIntoView(); }
});
at("filter").addEventListener("input", showEvents);
at("changes-box").addEventListener("toggle", () => { if (past) showChanges(); });
at("log-box").addEventListener("toggle", showLog);
document.addEventListener("visibilitychange", () => { if (!document.hidden) { showAll(); showEvents(); showPast(); if (isAsked) { requestPast(); requestSights(); } } });
let redraw = 0;
window.addEventListener("resize", () => { cancelAnimationFrame(redraw); redraw = requestAnimationFrame(showPast); });
at("login").addEventListener("submit", (event) => {
  event.preventDefault();
  token = at("token").value.trim();
  (at("keep").checked ? localStorage : sessionStorage).setItem(KEY, token);
  at("token").value = "";
  run();
});
icon("");
showHelp();
showTakeOver();
const given = new URLSearchParams(location.hash.slice(1)).get("token");
if (given) { sessionStorage.setItem(KEY, given); history.replaceState(null, "", location.pathname); }
token = sessionStorage.getItem(KEY) || localStorage.getItem(KEY) || "";
run();
