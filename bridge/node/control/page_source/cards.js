// One function for each card: from the view, or from the sights of all nodes, to elements.
let view = null, sights = null, sightsProblem = "", events = [], logEntries = [], take = null, least = "all", found = null;
const opened = new Set(), MEMBERS_SHOWN = 100;
let memberNames = new Set(), outdated = new Set();
const members = () => view ? view.members : [];
function memberLink(name, text) {
  const label = text === undefined ? known(name) : text;
  return name !== null && name !== undefined && memberNames.has(name)
    ? h("button", { type: "button", class: "link", "data-member": name, title: `show ${name} among the members` }, label) : label;
}
const reportOf = (raftId) => raftId === null ? undefined : view.reports.find((each) => each.raftId === raftId);
// The servers whose report is too old, or was sent before they died or left, as `outdated_reports` in farm_facts.py.
function outdatedReports() {
  const isDown = (each) => each.status === "dead" || each.status === "left", servers = view.members.filter((each) => each.raftId !== null && each.serverRole !== "none");
  const up = new Set([...servers.filter((each) => !isDown(each)).map((each) => each.raftId), ...view.raft.udpBlocked]), down = new Set(servers.filter(isDown).map((each) => each.raftId));
  return new Set(view.reports.filter((each) => each.stale || down.has(each.raftId) && !up.has(each.raftId)).map((each) => each.raftId));
}
const isOutdated = (report) => outdated.has(report.raftId);
const names = (list) => list.flatMap((each, place) => [place ? ", " : "", memberLink(each.name === null ? String(each.raftId) : each.name)]);

function showVerdict() {
  const { severity, text, advice } = view.verdict;
  show("verdict", h("p", null, `${MARKS[severity] || ""} `, coded(text)), advice && advice !== "nothing" && h("p", null, h("strong", null, "Do: "), coded(advice)));
  at("verdict").className = severe(severity);
  at("verdict").hidden = false;
  document.title = `${MARKS[severity] || ""} ${view.farm.cluster}`;
  icon(severity);
}
let iconShown = "";
function icon(severity) {
  const color = { ok: "#1a936f", warning: "#e0a526", critical: "#cf3a30" }[severity] || "#80868b";
  if (color === iconShown) return;
  iconShown = color;
  const drawn = `<svg xmlns="${SVG}" viewBox="0 0 32 32"><path fill="${color}" d="M16 2c1 5 9 9 9 17 0 6-4 11-9 11s-9-5-9-11c0-8 8-12 9-17z"/><path fill="none" stroke="#fff" stroke-width="1.6" d="M16 7c-5 6-5 16 0 22M16 7c5 6 5 16 0 22"/></svg>`;
  at("icon").setAttribute("hr" + "ef", `data:image/svg+xml,${encodeURIComponent(drawn)}`);
}

function showTiles() {
  const { raft } = view, counted = members().filter((each) => !each.evicted), alive = counted.filter((each) => each.status === "alive").length;
  const leaves = view.reports.flatMap((each) => each.leaves.map((leaf) => ({ ...leaf, healthy: leaf.healthy && !isOutdated(each) }))), healthy = leaves.filter((each) => each.healthy).length;
  const publishers = view.publishing.map((each) => each.publisherName);
  const tile = (label, word, value, classes, more) => h("div", { class: "tile" }, h("div", null, term(label, word)), h("div", { class: classes }, value), more && h("div", { class: "dim small" }, more));
  show("tiles",
    tile("Leader", "leader", raft.role === "none" ? "–" : raft.leaderId === null ? "none" : memberLink(raft.leaderName, raft.leaderName === null ? String(raft.leaderId) : undefined), raft.role !== "none" && raft.leaderId === null ? "critical" : "", raft.role === "none" ? "not a server yet" : `term ${raft.term}`),
    tile("Publisher", "publisher", !publishers.length ? "–" : publishers.every((each) => each === publishers[0]) ? publishers[0] === null ? "none" : memberLink(publishers[0]) : `${new Set(publishers).size} nodes`,
      publishers.includes(null) ? "critical" : "", view.publishing.length > 1 ? `${view.publishing.length} masters` : view.publishing[0]?.handedOverS ? `ends in ${duration(view.publishing[0].secondsToExpiry * 1000)}` : publishers.length ? "not handed over yet" : "no master"),
    tile("Members", "member", `${alive} of ${counted.length} alive`, alive === counted.length ? "" : "warning", view.verdict.kind === "no-quorum" ? "no quorum" : view.verdict.canLose === null ? "" : `can lose ${view.verdict.canLose || "none"}`),
    tile("Leaves", "leaf", leaves.length ? `${healthy} of ${leaves.length} healthy` : "none", healthy === leaves.length ? "" : "warning"),
    tile("Log", "log", raft.commitIndex.toLocaleString("en"), raft.standsStill ? "critical" : "", raft.standsStill ? "stands still" : raft.logTimeMs === null || raft.leaderId === null ? "entries" : `entries; log time ${clock(raft.logTimeMs)}`));
}

function showAlarms() {
  // The view has the gravest first. Without an alarm the card takes no room: the verdict shows that all is well.
  at("alarm-card").hidden = !view.alarms.length;
  show("alarms", view.alarms.map((each) => h("li", { key: each.kind, class: severe(each.severity) || "warning" }, `${MARKS[each.severity] || "!"} ${each.kind}: `, each.text === view.verdict.text ? "see above" : coded(each.text),
    each.action && !view.verdict.advice.includes(each.action) && h("div", { class: "small" }, "Do: ", coded(each.action)))));
}

// -- members ---------------------------------------------------------------------------------------------------------------
function roleOf(each) {
  if (each.evicted) return { cell: "evicted", class: "critical" };
  return each.raftId !== null && each.raftId === view.raft.leaderId ? h("strong", null, "leader") : each.serverRole === "none" ? "–" : each.serverRole;
}
const column = (key, classes) => { const [title, word] = SHARED.members[key]; return [title, classes, word]; };
function showMembers() {
  const lags = new Map(view.raft.followers.map((each) => [each.raftId, each.lagEntries]));
  // Of very many members the servers, and those that are not alive, come first.
  const isMinor = (each) => members().length > MEMBERS_SHOWN && each.serverRole === "none" && each.status === "alive" && !opened.has(each.nodeId);
  const sorted = [...members()].sort((a, b) => isMinor(a) - isMinor(b) || a.evicted - b.evicted || collator.compare(a.name, b.name));
  const rows = sorted.slice(0, MEMBERS_SHOWN).flatMap((each) => {
    const report = reportOf(each.raftId), isOpen = opened.has(each.nodeId);
    const lag = each.raftId !== null && each.raftId === view.raft.leaderId ? "–" : known(lags.get(each.raftId));
    const trip = each.isSelf ? "this node" : each.rttMs === null ? "–" : each.rttMs < 1 ? "<1 ms" : `${Math.round(each.rttMs)} ms`;
    return [{ key: each.nodeId, class: `${found === each.name ? "found" : ""} ${each.status === "dead" || each.status === "left" || each.evicted ? "old" : ""}`, cells: [
      h("button", { type: "button", class: "link", "data-toggle": each.nodeId, "aria-expanded": String(isOpen) }, `${isOpen ? "▾" : "▸"} ${each.name}`),
      status(each.status, each.status !== "alive" && each.statusAgeMs !== null ? h("span", { class: "dim" }, ` for ${duration(each.statusAgeMs)}`) : null),
      roleOf(each), trip, lag, report ? { cell: ago(report.ageMs), class: report.stale ? "warning" : "" } : { cell: "none", class: "dim" }, known(each.address)] },
    isOpen ? { key: `${each.nodeId} more`, whole: memberDetail(each, report) } : null];
  }).filter(Boolean);
  show("members", table({ class: "cards" }, [column("name"), column("status"), column("raft"), column("roundTrip", "number"), ["Lag", "number", "lag"], ["Report", "nowrap", "report"], column("address", "mono")], rows),
    sorted.length > MEMBERS_SHOWN && h("p", { class: "dim" }, `… and ${sorted.length - MEMBERS_SHOWN} more: `, h("code", null, "garlicfarm members")));
}
function memberDetail(each, report) {
  const line = (name, value, word) => value === null || value === undefined || value === "" ? null : [h("dt", null, term(name, word)), h("dd", null, value)];
  const shared = (key, value) => line(SHARED.members[key][0], value, SHARED.members[key][1]);
  const standings = view.publishing.map((one) => [one, one.standings.find((other) => other.raftId === each.raftId)]).filter(([, standing]) => standing);
  return h("div", { class: "columns" },
    h("dl", null, line("Node id", h("span", { class: "mono" }, each.nodeId), "nodeid"), shared("incarnation", `${each.generation}.${each.number}`), shared("raftId", each.raftId),
      shared("endpoint", h("span", { class: "mono" }, known(each.endpoint))), shared("peers", each.peerCount === null ? null : `${each.peerCount} of at most ${known(each.capacity)}`),
      line("Feature level", each.level, "feature level"), line("Certificate", each.certificate && h("span", { class: "mono" }, each.certificate))),
    report && h("dl", { class: isOutdated(report) ? "old" : "" }, line("Report", `${ago(report.ageMs)}${report.stale ? ", too old to count" : ""}`, "report"), line("Router", report.attached ? "attached" : "none attached", "router"),
      line("Leaves", `${lastReport(report)}${report.healthyDestinations} of ${report.destinations} healthy`, "leaf"),
      line("Figures", SHARED.figures.map(([key, label, unit]) => [label, figure(report[key], unit)]).filter(([, text]) => text !== "–").map((each) => each.join(" ")).join(", ")),
      report.clockOff && line("Clock", h("span", { class: "warning" }, "differs too much from the other clocks"), "log time"),
      report.directory && line("Directory", report.directory.problem || report.directory.address, "directory"), report.leaves.map((leaf) => line("Leaf", [h("span", { class: "mono" }, short(leaf.destination)), " ", leafHealth(leaf, report)], "leaf"))),
    standings.map(([one, standing]) => h("div", null, h("p", { class: "small dim" }, "publication of ", h("span", { class: "mono" }, short(one.master))), standingText(standing), scoreParts(standing))));
}

// -- publications ------------------------------------------------------------------------------------------------------------
function healthOf(entry) {
  if (entry.healthy) return h("span", { class: "ok" }, "● healthy");
  const found = entry.faults || [], own = found.filter((each) => each !== "server").map((each) => SHARED.faults[each] || each);
  const faults = [found.includes("server") && SHARED.faults.server, own.join(" and ")].filter(Boolean).join("; in its last report: ");
  return h("span", { class: "critical" }, faults ? `✕ unhealthy: ${faults}` : "✕ unhealthy");
}
const lastReport = (report) => isOutdated(report) ? "in its last report: " : "";
const leafHealth = (leaf, report) => healthOf(isOutdated(report) ? { healthy: false, faults: ["server", ...(leaf.faults || [])] } : leaf);
function standingText(each) {
  const text = each.choice || each.inability || (each.standby ? "standby" : "able to publish");
  return h("p", { class: each.inability ? "warning" : "" }, `${text}${each.failure ? ` – its router refused: ${each.failure}` : ""}`);
}
function scoreParts(each) {
  if (!each.parts?.length) return null;
  const highest = Math.max(1, ...each.parts.map((part) => Math.abs(part.points)));
  return h("table", { class: "bars small" }, h("tbody", null, each.parts.map((part) => h("tr", { class: "plain" }, h("th", { scope: "row" }, part.label), h("td", null, known(part.value)), h("td", { class: "number" }, part.points, part.maximum ? h("span", { class: "dim" }, ` of ${part.maximum}`) : null),
    h("td", null, h("svg", { width: 70, height: 8, "aria-hidden": "true" }, h("rect", { class: "empty", width: 70, height: 8, rx: 2 }), h("rect", { width: Math.round(70 * Math.max(0, part.points) / (part.maximum || highest)), height: 8, rx: 2 }))))),
    h("tr", { class: "plain" }, h("th", { scope: "row" }, term("score")), h("td"), h("td", { class: "number" }, h("strong", null, each.score)), h("td"))));
}
function showPublished() {
  show("published", view.publishing.map((each) => {
    const isNone = each.publisherName === null && each.publisherId === null;
    return h("div", { key: each.master },
      h("h3", { class: "mono" }, each.master),
      h("p", { class: isNone ? "critical" : "" }, isNone ? "no server can publish" : [term("publisher"), " ", memberLink(each.publisherName, each.publisherName === null ? String(each.publisherId) : undefined)], `: ${each.reason}`),
      h("p", { class: "dim" }, each.handedOverS === null ? ["not ", term("handed over"), " to a router"] : [term("handed over"), ` to the router of ${known(each.handedOverByName)} at ${moment(each.handedOverS * 1000)}; `,
        each.secondsToExpiry > 0 ? `it ends in ${duration(each.secondsToExpiry * 1000)}` : h("span", { class: "critical" }, `it ended ${duration(-each.secondsToExpiry * 1000)} ago`)]),
      h("p", { class: each.seen === null ? "dim" : each.seen ? "ok" : "critical" }, each.seen === null ? "no look-up by another router has decided yet" : each.seen ? ["● ", term("seen"), " by a look-up of another router"] : "✕ no other router finds it"),
      each.entries.length > 0 && table({ class: "cards" }, [["Node", "", "node"], ["Destination", "mono", "destination"], ["Cost", "number", "cost"], ["Health", "", "healthy"]], each.entries.map((entry) =>
        ({ key: entry.destination, cells: [memberLink(entry.name), entry.destination, entry.cost, healthOf(entry)] }))),
      each.standings.length > 0 && [h("h3", null, term("Candidates", "candidate")), table({ class: "cards" }, [["Server", "", "server"], ["Score", "number", "score"], ["Choice"]],
        [...each.standings].sort((a, b) => b.score - a.score).map((one) => ({ key: one.raftId, cells: [[memberLink(one.name === null ? String(one.raftId) : one.name), one.raftId === each.publisherId && chip("publisher", "ok"), one.standby && chip("standby")].flatMap((part) => [part, " "]),
          one.score, [standingText(one), one.parts?.length ? h("details", null, h("summary", null, "parts of the score"), scoreParts(one)) : null]] })))]);
  }), !view.publishing.length && h("p", { class: "dim" }, "no server names a master"));
}

// -- leaves ------------------------------------------------------------------------------------------------------------------
const titled = (name) => name.charAt(0).toUpperCase() + name.slice(1);
function condition(leaf, kind, report) {
  const prefix = lastReport(report), classOf = (name) => isOutdated(report) ? "dim" : name;
  const each = (leaf.conditions || []).find((one) => one.condition === kind);
  if (!each) {
    if ((leaf.faults || []).includes(kind)) return h("span", { class: classOf("critical") }, `${prefix}✕ ${SHARED.faults[kind] || "does not hold"}`);
    return leaf.healthy ? h("span", { class: classOf("ok") }, `${prefix}● holds`) : h("span", { class: "dim" }, "–");
  }
  const since = each.sinceMs === null || each.sinceMs === undefined ? "" : h("span", { class: "nowrap" }, ` for ${duration(each.sinceMs)}`);
  return [each.holds ? h("span", { class: classOf("ok") }, `${prefix}● holds`, since) : h("span", { class: classOf("critical") }, `${prefix}✕ ${SHARED.faults[kind] || "fails"}`, since, each.failures ? `, ${many(each.failures, "failure")}` : ""),
    each.lastError && h("div", { class: "small dim" }, `${each.holds ? "last error: " : ""}${each.lastError}`)];
}
function showLeaves() {
  const rows = view.reports.flatMap((report) => report.leaves.map((leaf) => ({ report, leaf, healthy: leaf.healthy && !isOutdated(report) })));
  rows.sort((a, b) => a.healthy - b.healthy || collator.compare(known(a.report.name), known(b.report.name)));
  show("leaves", rows.length ? table({ class: "cards" }, [["Node", "nowrap", "node"], ["Leaf", "mono nowrap", "leaf"], ["Health", "", "healthy"], ...SHARED.conditions.map(([, name, word]) => [titled(name), "", word]), ["Report", "nowrap", "report"]],
    rows.map(({ report, leaf }) => ({ key: `${report.raftId} ${leaf.destination}`, class: isOutdated(report) ? "old" : "", cells: [memberLink(report.name === null ? String(report.raftId) : report.name), h("span", { title: leaf.destination }, short(leaf.destination)),
      [leafHealth({ ...leaf, faults: [] }, report), leaf.excluded && h("div", { class: "warning small" }, "excluded by an operator")], ...SHARED.conditions.map(([kind]) => condition(leaf, kind, report)), { cell: ago(report.ageMs), class: report.stale ? "warning" : "dim" }] })))
    : h("p", { class: "dim" }, "no server reports a leaf"));
}

// -- which node sees what ------------------------------------------------------------------------------------------------------
const SMALL = 12;
function most(values) {
  const counts = new Map();
  for (const each of values) counts.set(each, (counts.get(each) || 0) + 1);
  return [...counts].sort((a, b) => b[1] - a[1])[0]?.[0];
}
// A node may have the name of a property that every object inherits.
const seenAs = (each, name) => Object.hasOwn(each.members || {}, name) ? each.members[name] : undefined;
function sightOf(each, name, isOdd) {
  const seen = seenAs(each, name);
  if (!seen) return h("span", { class: "dim", title: `${each.name} does not list ${name}` }, "·");
  return { cell: h("span", { class: STATUS[seen]?.[1], title: `${each.name} sees ${name}: ${seen}`, role: "img", "aria-label": seen }, name === each.name ? "–" : (STATUS[seen] || ["?"])[0]), class: isOdd ? "differs" : "" };
}
// True if this node has another leader, term or verdict now than when the views were requested. The views may come before
// the first view of the stream.
function areSightsPast() {
  const own = view && sights.nodes.find((each) => each.nodeId === view.node.nodeId);
  return Boolean(own) && (own.leader !== view.raft.leaderName || own.term !== view.raft.term || own.verdict !== view.verdict.kind);
}
let everyNode = false, sightsArePast = false;
function showSights() {
  if (!sights) { show("sights", h("p", { class: "dim" }, sightsProblem || "requesting …")); return; }
  sightsArePast = areSightsPast();
  const nodes = [...sights.nodes].sort((a, b) => collator.compare(a.name, b.name)), answered = nodes.filter((each) => each.answered);
  const usual = { leader: most(answered.map((each) => each.leader)), term: most(answered.map((each) => each.term)), severity: most(answered.map((each) => each.severity)) };
  const highest = Math.max(0, ...answered.map((each) => each.commitIndex || 0));
  const subjects = [...new Set(nodes.flatMap((each) => [each.name, ...Object.keys(each.members || {})]))].sort(collator.compare);
  const common = new Map(subjects.map((name) => [name, most(answered.map((each) => seenAs(each, name)).filter(Boolean))]));
  const differs = (each, name) => each.answered && seenAs(each, name) && seenAs(each, name) !== common.get(name);
  const masters = [...new Set(answered.flatMap((each) => Object.keys(each.publishers || {})))].sort().slice(0, 4), chosen = new Map(masters.map((master) => [master, most(answered.map((each) => each.publishers[master]))]));
  const isOdd = (each) => !each.answered || each.leader !== usual.leader || each.severity !== usual.severity || subjects.some((name) => differs(each, name)) || masters.some((master) => each.publishers[master] !== chosen.get(master));
  const isLarge = nodes.length > SMALL && !everyNode;
  const columns = subjects.filter((name) => !isLarge || common.get(name) !== "alive" || answered.some((each) => differs(each, name))).slice(0, 64), rows = nodes.filter((each) => !isLarge || isOdd(each)).slice(0, 64);
  const odd = answered.filter(isOdd);
  // An earlier view of a node that does not answer now is dimmed, and is not compared.
  const cell = (each, value, usualValue, text) => ({ cell: text === undefined ? known(value) : text, class: each.answered && value !== usualValue ? "differs" : "" });
  show("sights",
    h("p", null, sightsArePast ? "The farm has changed since; the views follow." : !answered.length ? "no node answered" : nodes.length === 1 ? "This node does not know another node yet." : answered.length === 1 && nodes.length > 1 ? h("span", { class: "warning" }, `! Only ${answered[0].name} answered.`) : odd.length ? h("span", { class: "warning" }, answered.length === 2 ? "! The 2 nodes that answered differ." : `! ${odd.length} of ${answered.length} nodes ${odd.length === 1 ? "differs" : "differ"} from the majority.`)
      : h("span", { class: "ok" }, `✓ All ${answered.length} nodes that answered see the same: leader ${known(usual.leader)}, term ${known(usual.term)}.`),
      !sightsArePast && answered.length < nodes.length && h("span", { class: "warning" }, ` Without an answer: ${nodes.filter((each) => !each.answered).map((each) => each.name).slice(0, 8).join(", ")}.`), h("span", { class: "dim" }, ` Requested at ${clock(sights.takenAtMs)}.`)),
    !sightsArePast && odd.length > 0 && h("ul", { class: "plain" }, odd.slice(0, 6).map((each) => h("li", { class: "warning" }, memberLink(each.name), ": ", [each.severity !== usual.severity && known(each.verdict), each.leader !== usual.leader && `leader ${each.leader === null ? "unknown" : each.leader}`,
      subjects.filter((name) => differs(each, name)).slice(0, 4).map((name) => `${name} ${seenAs(each, name)}`), masters.filter((master) => each.publishers[master] !== chosen.get(master)).slice(0, 2).map((master) => `publisher ${known(each.publishers[master])}`)].flat().filter(Boolean).join(", ")))),
    rows.length > 0 && h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "the view of each node" }, table({ class: `cards matrix ${sightsArePast ? "old" : ""}` }, [["Node", "", "node"], ["Verdict", "", "verdict"], ["Leader", "", "leader"], ["Term", "number", "term"], ["Committed", "number", "commit"], ...masters.map((master) => [masters.length > 1 ? `Publisher of ${short(master)}` : "Publisher", "", "publisher"]), ...columns.map((name) => [`→ ${name}`, "seen"])],
      rows.map((each) => each.verdict === null ? { key: each.nodeId, class: "old", cells: [memberLink(each.name), "did not answer", "", "", "", ...masters.map(() => ""), ...columns.map(() => "")] }
        : { key: each.nodeId, class: each.answered ? "" : "old", cells: [[memberLink(each.name), !each.answered && h("span", { class: "dim" }, ` ${ago(each.ageMs)}`)], cell(each, each.severity, usual.severity, h("span", { class: severe(each.severity) }, `${MARKS[each.severity] || ""} ${each.verdict}`)),
          cell(each, each.leader, usual.leader, each.leader === null ? "none" : undefined), cell(each, each.term, usual.term), each.answered && highest - each.commitIndex > 20 ? [known(each.commitIndex), h("span", { class: "warning" }, ` (−${highest - each.commitIndex})`)] : known(each.commitIndex),
          ...masters.map((master) => cell(each, each.publishers[master], chosen.get(master), each.publishers[master] ? undefined : "none")), ...columns.map((name) => sightOf(each, name, differs(each, name)))] }))),
    nodes.length > SMALL && h("p", null, isLarge && h("span", { class: "dim" }, `${nodes.length - rows.length} nodes see the same and are not listed, nor the ${subjects.length - columns.length} members that all see alive. `), h("button", { type: "button", "data-every-node": "1" }, everyNode ? "Show differences only" : "Show all")));
}

// -- Raft and the last take-over --------------------------------------------------------------------------------------------------
function showRaft() {
  const { raft, node } = view;
  const broken = raft.links.filter((each) => !each.connected);
  show("raft", facts([["Leader", raft.role === "none" ? "–" : raft.leaderId === null ? h("span", { class: "critical" }, `none${raft.leaderlessMs === null ? "" : ` for ${duration(raft.leaderlessMs)}`}`) : memberLink(raft.leaderName, raft.leaderName === null ? String(raft.leaderId) : undefined), "leader"],
    ["Term", raft.term, "term"], ["Committed", raft.commitIndex, "commit"], ["Applied here", raft.appliedIndex, "state machine"], ["Voters", raft.voters.length ? names(raft.voters) : "–", "voter"], raft.learners.length && ["Learners", names(raft.learners), "learner"],
    broken.length && ["Not connected", h("span", { class: "warning" }, broken.map((each) => known(each.name)).join(", ")), "link"], raft.waits.length && ["Pending changes", raft.waits.map((each) => h("div", null, each))],
    ["This node", [memberLink(node.name), `, ${node.phase}, up ${duration(node.uptimeMs)}`], "node"], ["Farm", [view.farm.cluster, view.farm.demo && " (demonstration)", h("span", { class: "dim mono" }, ` ${view.farm.label}`)], "farm"],
    view.farm.level !== null && ["Feature level", view.farm.level, "feature level"], ["Version", node.version]]));
}
function showTakeOver() {
  const steps = take ? take.steps : [], first = steps.length ? steps[0].timeMs : 0;
  show("take-over", steps.length ? [h("li", { class: "dim" }, `began ${moment(first)}`), ...steps.map((each) => h("li", null, h("span", { class: "mono" }, `+${((each.timeMs - first) / 1000).toFixed(1)} s `), each.detail))] : h("li", { class: "dim" }, "none since the node started"));
}

// -- events and the log --------------------------------------------------------------------------------------------------------------
// The names of members in an event are links to them.
function linked(text, event) {
  const wanted = [...new Set([...Object.values(event.data || {}), event.node].filter((each) => typeof each === "string" && each.length > 1 && memberNames.has(each)))];
  let parts = [text];
  for (const name of wanted.slice(0, 4)) {
    parts = parts.flatMap((part) => {
      const place = typeof part === "string" ? part.indexOf(name) : -1;
      return place < 0 || /[\w-]/.test(part[place + name.length] || " ") ? [part] : [part.slice(0, place), memberLink(name), part.slice(place + name.length)];
    });
  }
  return parts;
}
function showEvents() {
  const words = at("filter").value.trim().toLowerCase(), floor = { all: 0, warning: 1, critical: 2 }[least];
  const shown = events.filter((each) => (GRAVITY[each.severity] || 0) >= floor && (!words || each.text.toLowerCase().includes(words) || each.node.toLowerCase().includes(words)));
  show("events", [...shown].reverse().map((each) => h("li", { key: each.cursor, class: each.text.includes(found) ? "" : "" }, h("time", null, clock(each.timeMs)), h("span", { class: severe(each.severity), role: "img", "aria-label": each.severity }, each.severity === "ok" ? "·" : MARKS[each.severity] || "·"),
    h("span", { class: each.severity === "ok" ? "" : severe(each.severity) }, linked(each.text, each)))), !shown.length && h("li", null, h("span"), h("span"), h("span", { class: "dim" }, events.length ? "no event matches" : "no event yet")));
  at("event-count").textContent = shown.length === events.length ? many(events.length, "event") : `${shown.length} of ${many(events.length, "event")}`;
  for (const each of document.querySelectorAll("[data-least]")) each.setAttribute("aria-pressed", String(each.dataset.least === least));
}
function showLog() {
  if (!at("log-box").open) return;
  show("log", [...logEntries].reverse().map((each) => h("li", { key: each.index }, h("span", { class: "index" }, each.index), h("time", null, each.logTimeMs === null ? "–" : clock(each.logTimeMs)), h("span", { class: "dim" }, each.type), h("span", null, each.text))),
    !logEntries.length && h("li", { class: "dim" }, h("span", null, "–"), h("span"), h("span"), h("span", null, "no entry yet")));
}

// -- help ------------------------------------------------------------------------------------------------------------------------------
function showHelp() {
  show("words", Object.entries(SHARED.words).map(([word, meaning]) => [h("dt", null, word), h("dd", null, meaning)]));
}
