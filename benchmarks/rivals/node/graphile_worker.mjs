// graphile-worker with what its page on performance names: a local queue, completions in batches, many at once.

import { Logger, makeWorkerUtils, run as runWorker, runMigrations } from "graphile-worker";
import pg from "pg";

import { run, url } from "./program.mjs";

const CHUNK = 10_000;
const quiet = new Logger(() => () => {});
const pool = new pg.Pool({ connectionString: url, max: 12 });
const preset = {
  worker: {
    concurrentJobs: 24,
    maxPoolSize: 12,
    localQueue: { size: 500, refetchDelay: { durationMs: 10 } },
    completeJobBatchDelay: 0,
    failJobBatchDelay: 0,
  },
};
let utils;

async function started() {
  utils ??= await makeWorkerUtils({ pgPool: pool, logger: quiet });
  return utils;
}

async function working(handle) {
  const runner = await runWorker({
    preset,
    pgPool: pool,
    logger: quiet,
    noHandleSignals: true,
    taskList: { bench: async (payload) => handle(payload) },
  });
  return async () => {
    await runner.stop();
  };
}

await run({
  setup: () => runMigrations({ pgPool: pool, logger: quiet }),
  clear: () => pool.query("TRUNCATE graphile_worker._private_jobs"),
  bulk: async (payloads) => {
    const { addJobs } = await started();
    for (let at = 0; at < payloads.length; at += CHUNK) {
      await addJobs(payloads.slice(at, at + CHUNK).map((payload) => ({ identifier: "bench", payload })));
    }
  },
  single: async (payload) => (await started()).addJob("bench", payload),
  drain: async (handle) => {
    const stop = await working(handle);
    // Whether something is left is asked of the server: its own "run once" has no local queue.
    for (;;) {
      const { rows } = await pool.query("SELECT EXISTS (SELECT FROM graphile_worker._private_jobs) AS left");
      if (!rows[0].left) break;
      await new Promise((done) => setTimeout(done, 5));
    }
    await stop();
  },
  serve: working,
});
