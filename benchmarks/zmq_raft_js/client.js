/*
 * A client of the npm package zmq-raft, controlled by lines of JSON, until its standard input closes.
 *
 *   NODE_PATH=build/interop-zmq/node_modules node client.js '{"urls": ["tcp://127.0.0.1:4001"], "ident": "word"}'
 *
 * A command is {"n": 7, "do": "update", ...}; its reply is {"n": 7, "ok": ...} or {"n": 7, "error": "..."}. Commands
 * run concurrently. Request ids, entries and payloads are hexadecimal.
 *
 *   update         id, data                     → index of the committed entry
 *   config                                      → {leader, peers: [[id, url], ...]}, from the leader
 *   info           url                          → one server's facts about its log
 *   entries        after                        → {entries: [[index, entry], ...], snapshot: {index, bytes} or null}
 *   change         id, peers                    → index of the entry that begins the change
 *   subscribe      after                        → null, and then {"entry": [index, entry]} for each applied entry
 *   load           clients, seconds, bytes      → {elapsed_s, latencies_us, failures}: closed loops
 *   failover       seconds                      → {longest_ms, acknowledged, before_ms, after_ms}: one closed loop
 *
 * Every command may have `timeout`, the milliseconds before the package cancels it.
 */
"use strict";

const readline = require("readline");
const { client: { ZmqRaftClient, ZmqRaftPeerClient, ZmqRaftSubscriber }, utils: { id: { genIdent } } }
  = require("zmq-raft");

const TIMEOUT_MS = 30000;

const given = JSON.parse(process.argv[2]);
const connect = () => new ZmqRaftClient(given.urls, Object.assign({ secret: given.ident }, given.options));
const client = connect();
let subscriber = null;

const say = (line) => process.stdout.write(JSON.stringify(line) + "\n");
const microseconds = () => Number(process.hrtime.bigint() / 1000n);

async function entries({ after, timeout = TIMEOUT_MS }) {
  const found = [];
  let snapshot = null;
  await client.requestEntries(after, (status, batch, last, offset) => {
    if (offset === undefined) {
      batch.forEach((entry, at) => found.push([last - batch.length + 1 + at, entry.toString("hex")]));
    }
    else {
      if (offset === 0) snapshot = { index: last, bytes: "" };
      snapshot.bytes += batch.toString("hex");
    }
  }, timeout);
  return { entries: found, snapshot };
}

function subscribe({ after }) {
  subscriber = new ZmqRaftSubscriber(given.urls, Object.assign({ secret: given.ident, lastIndex: after }, given.options));
  subscriber.on("error", (error) => say({ subscription: String(error) }));
  subscriber.on("data", (chunk) => {
    if (chunk.isLogEntry) say({ entry: [chunk.logIndex, chunk.toString("hex")] });
    else say({ snapshot: [chunk.logIndex, chunk.toString("hex")] });
  });
  return null;
}

async function info({ url, timeout = TIMEOUT_MS }) {
  const one = new ZmqRaftPeerClient(url, { secret: given.ident, timeout });
  try {
    return await one.requestLogInfo(timeout);
  } finally {
    one.close();
  }
}

async function load({ clients, seconds, bytes, connections = 1 }) {
  const latencies = [], failures = {};
  const pool = Array.from({ length: connections }, connect);
  await Promise.all(pool.map((each) => each.requestConfig(TIMEOUT_MS)));
  const data = Buffer.alloc(bytes, "x");
  const begun = microseconds(), end = begun + seconds * 1e6;
  const loop = async (number) => {
    const own = pool[number % connections];
    for (let sent = microseconds(); sent < end; sent = microseconds()) {
      try {
        await own.requestUpdate(genIdent(), data, TIMEOUT_MS);
        latencies.push(microseconds() - sent);
      } catch (error) {
        failures[error.message] = (failures[error.message] || 0) + 1;
      }
    }
  };
  await Promise.all(Array.from({ length: clients }, (_, number) => loop(number)));
  const elapsed = (microseconds() - begun) / 1e6;
  pool.forEach((each) => each.close());
  return { elapsed_s: elapsed, latencies_us: latencies, failures };
}

async function failover({ seconds }) {
  const own = connect();
  const acknowledged = [];
  await own.requestConfig(TIMEOUT_MS);
  for (const end = Date.now() + seconds * 1000; Date.now() < end;) {
    await own.requestUpdate(genIdent(), Buffer.from("failover"), TIMEOUT_MS);
    acknowledged.push(Date.now());
  }
  own.close();
  let longest = 0, at = 1;
  for (let i = 1; i < acknowledged.length; i++) {
    if (acknowledged[i] - acknowledged[i - 1] > longest) {
      longest = acknowledged[i] - acknowledged[i - 1];
      at = i;
    }
  }
  return {
    longest_ms: longest, acknowledged: acknowledged.length, before_ms: acknowledged[at - 1], after_ms: acknowledged[at],
  };
}

const commands = {
  update: ({ id, data, timeout = TIMEOUT_MS }) => client.requestUpdate(id, Buffer.from(data, "hex"), timeout),
  config: ({ timeout = TIMEOUT_MS }) => client.requestConfig(timeout)
    .then(({ leaderId, peers }) => ({ leader: leaderId, peers })),
  change: ({ id, peers, timeout = TIMEOUT_MS }) => client.configUpdate(id, peers, timeout),
  entries, info, subscribe, load, failover,
};

readline.createInterface({ input: process.stdin }).on("line", async (line) => {
  const command = JSON.parse(line);
  try {
    say({ n: command.n, ok: await commands[command.do](command) });
  } catch (error) {
    say({ n: command.n, error: `${error.name}: ${error.message}` });
  }
}).on("close", () => {
  client.close();
  if (subscriber !== null) subscriber.close();
  process.exit(0);
});
