// BullMQ on Node: the roles of host.py and an adapter in one.
const fs = require("fs");
const path = require("path");

const modules = process.env.PEERS_NODE_MODULES;
const { Queue, Worker } = require(path.join(modules, "bullmq"));

const connection = { host: "127.0.0.1", port: Number(process.env.PEERS_PORT), maxRetriesPerRequest: null };
const profile = process.env.PEERS_PROFILE || "default";
const holdMs = Number(process.env.PEERS_HOLD || 0) * 1000;
const chunk = 1000;
const warmJobs = 300;
const many = { concurrency: 100 };
const fast = { lockDuration: 2000, stalledInterval: 2000, ...many };
const options = { default: {}, best: many, hold: many, fast, hold_fast: fast };
const jobOptions = profile === "best" ? { removeOnComplete: true } : {};
const about = {
  name: "bullmq-node",
  bulk: "Queue.addBulk(1000)",
  adds: ["default"],
  sweep: [],
  profiles: {
    default: "concurrency 1",
    best: "concurrency 100, removeOnComplete",
    hold: "concurrency 100",
    fast: "lockDuration and stalledInterval 2 s, concurrency 100",
    hold_fast: "the same",
  },
  notes: "another language",
  limits: "keeps every finished job for good unless told otherwise; no dead letters; the hash tag is the user's affair",
};

const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));
const job = (i) => ({ i, p: "x".repeat(100) });

function record(i) {
  const bytes = Buffer.alloc(24);
  bytes.writeBigInt64LE(BigInt(i), 0);
  bytes.writeBigInt64LE(process.hrtime.bigint(), 8);
  bytes.writeInt32LE(process.pid, 16);
  return bytes;
}

let log = null;
async function handle(each) {
  if (log === null) log = fs.openSync(process.env.PEERS_HITS, "a");
  fs.writeSync(log, record(each.data.i));
  if (holdMs) await sleep(holdMs);
}

async function addBulk(queue, low, high) {
  const jobs = [];
  for (let i = low; i < high; i++) jobs.push({ name: "job", data: job(i), opts: jobOptions });
  await queue.addBulk(jobs);
}

async function add(queue, mode, jobs, seconds) {
  const end = seconds ? performance.now() + seconds * 1000 : Infinity;
  let added = 0;
  while (added < jobs && performance.now() < end) {
    if (mode === "bulk") {
      const high = Math.min(jobs, added + chunk);
      await addBulk(queue, added, high);
      added = high;
    } else {
      await queue.add("job", job(added), jobOptions);
      added++;
    }
  }
  return added;
}

async function produce(queue, mode, jobs, seconds, cold) {
  const warm = cold ? 0 : warmJobs;
  await add(queue, mode, warm, 0);
  const cpu = process.cpuUsage();
  const began = performance.now();
  const added = await add(queue, mode, Number(jobs), Number(seconds));
  const took = (performance.now() - began) / 1000;
  const used = process.cpuUsage(cpu);
  const rss = process.resourceUsage().maxRSS / 1024;
  const result = { jobs: added, warm, seconds: took, client_cpu_s: (used.user + used.system) / 1e6, rss_mb: rss };
  console.log(JSON.stringify(result));
}

async function latency(queue, jobs, gap, file) {
  const calls = [];
  const first = Number(process.env.PEERS_FIRST || 0);
  let due = performance.now();
  for (let i = first; i < first + Number(jobs); i++) {
    calls.push(record(i));
    await queue.add("job", job(i), jobOptions);
    due += Number(gap) * 1000;
    await sleep(Math.max(0, due - performance.now()));
  }
  fs.writeFileSync(file, Buffer.concat(calls));
}

async function main() {
  const [role, a, b, c, d] = process.argv.slice(2);
  if (role === "meta") {
    const { version } = require(path.join(modules, "bullmq/package.json"));
    console.log(JSON.stringify({ ...about, versions: { node: process.versions.node, bullmq: version } }));
    return;
  }
  if (role === "worker") {
    const worker = new Worker("q", handle, { connection, ...options[a] });
    worker.on("error", (error) => console.error(error.message));
    return;
  }
  const queue = new Queue("q", { connection });
  await queue.waitUntilReady();
  if (role === "produce") await produce(queue, a, b, c, d === "cold");
  else await latency(queue, a, b, c);
  await queue.close();
}

main().catch((error) => {
  console.error(error);
  process.exit(1);
});
