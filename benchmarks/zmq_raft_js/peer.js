/*
 * One server of the npm package zmq-raft, until its standard input closes.
 *
 *   NODE_PATH=build/interop-zmq/node_modules node peer.js '{"id": "1", "peers": [["1", "tcp://127.0.0.1:4001"]],
 *       "ident": "word", "directory": "/path", "broadcast": "tcp://127.0.0.1:5001"}'
 *
 * Further keys: `bind`, if the server does not listen at its URL in the configuration; `watch`, if it installs snapshots
 * from `compact/snap.new` in its directory; `options` of the package (electionTimeoutMin, requestIdTtl, ...). It prints
 * one line when it listens, and each change of its state on the standard error. An error of the server ends it with
 * status 70, with a message on the standard error.
 */
"use strict";

const { server: { builder } } = require("zmq-raft");

const SERVER_ERROR = 70;

const tell = (line) => process.stderr.write(`${new Date().toISOString()} ${line}\n`);

function fail(error) {
  tell(`SERVER ERROR ${error && error.stack ? error.stack : error}`);
  process.exit(SERVER_ERROR);
}

const given = JSON.parse(process.argv[2]);
let running = null;

process.on("uncaughtException", fail);
process.on("unhandledRejection", fail);
process.stdin.resume();
process.stdin.on("end", () => {
  const exit = () => process.exit(0);
  if (running === null) exit();
  else running.close().then(exit, fail);
});

builder.build(Object.assign({}, given.options, {
  id: given.id,
  secret: given.ident,
  peers: given.peers,
  data: { path: given.directory, compact: { watch: Boolean(given.watch) } },
  router: given.bind ? { bind: given.bind } : {},
  broadcast: { url: given.broadcast },
  listeners: {
    error: fail,
    state: (state, term) => tell(`${state.description} in term ${term}`),
    config: (peers) => tell(`configuration ${JSON.stringify(peers)}`),
  },
})).then((raft) => {
  running = raft;
  process.stdout.write(JSON.stringify({ listening: raft.routerBindUrl }) + "\n");
}, fail);
