// pg-boss with batches, bursts while they are full, and notifications.

import { PgBoss } from "pg-boss";
import pg from "pg";

import { run, url } from "./program.mjs";

const CHUNK = 10_000;
const QUEUE = "bench";
const pool = new pg.Pool({ connectionString: url, max: 2 });
const options = { connectionString: url, max: 4, supervise: false, schedule: false, useListenNotify: true };
let sender;

async function started() {
  if (!sender) {
    sender = new PgBoss(options);
    sender.on("error", (error) => console.error(error));
    await sender.start();
  }
  return sender;
}

async function working(handle) {
  const boss = await started();
  const id = await boss.work(
    QUEUE,
    { batchSize: 1000, burstWhenBatchFull: true, pollingIntervalSeconds: 0.5, notifyPollingIntervalSeconds: 0.5 },
    async (jobs) => {
      for (const job of jobs) handle(job.data);
    },
  );
  return async () => {
    await boss.offWork(QUEUE, { id, wait: true });
  };
}

await run({
  setup: async () => {
    const boss = await started();
    await boss.createQueue(QUEUE, { notify: true });
  },
  clear: () => pool.query("TRUNCATE pgboss.job"),
  bulk: async (payloads) => {
    const boss = await started();
    for (let at = 0; at < payloads.length; at += CHUNK) {
      await boss.insert(
        QUEUE,
        payloads.slice(at, at + CHUNK).map((data) => ({ data })),
      );
    }
  },
  single: async (payload) => (await started()).send(QUEUE, payload),
  drain: async (handle) => {
    const stop = await working(handle);
    for (;;) {
      const { rows } = await pool.query(
        "SELECT EXISTS (SELECT FROM pgboss.job WHERE name = $1 AND state < 'completed') AS left",
        [QUEUE],
      );
      if (!rows[0].left) break;
      await new Promise((done) => setTimeout(done, 5));
    }
    await stop();
  },
  serve: working,
});
