/*
 * Print the stored log of a stopped server of the npm package zmq-raft, with the package's reader.
 *
 *   NODE_PATH=build/interop-zmq/node_modules node stored_log.js DIRECTORY
 *
 * First {"snapshot": {index, term, bytes}}, then {"index": 7, "entry": "hexadecimal"} for each entry.
 */
"use strict";

const path = require("path");
const { server: { FileLog } } = require("zmq-raft");

const directory = process.argv[2];
const say = (line) => process.stdout.write(JSON.stringify(line) + "\n");

function snapshotBytes(snapshot) {
  return new Promise((resolve, reject) => {
    const chunks = [];
    if (snapshot.dataSize === 0) return resolve(Buffer.alloc(0));
    snapshot.createDataReadStream()
      .on("data", (chunk) => chunks.push(chunk))
      .on("error", reject)
      .on("end", () => resolve(Buffer.concat(chunks)));
  });
}

async function main() {
  const log = new FileLog(path.join(directory, "log"), path.join(directory, "snap"), true);
  await log.ready();
  const { snapshot } = log;
  const bytes = await snapshotBytes(snapshot);
  say({ snapshot: { index: snapshot.logIndex, term: snapshot.logTerm, bytes: bytes.toString("hex") } });
  for (let index = log.firstIndex; index <= log.lastIndex; index++) {
    say({ index, entry: (await log.getEntry(index)).toString("hex") });
  }
  await log.close();
}

main().catch((error) => {
  process.stderr.write(`${error.stack}\n`);
  process.exit(1);
});
