// The program of a rival in Node: it takes orders as lines of JSON, and answers each with one. The orders are those of
// program.py, and so are the payloads.

import { createInterface } from "node:readline";

const now = () => (performance.timeOrigin + performance.now()) / 1000;
const pause = (ms) => new Promise((done) => setTimeout(done, ms));

export const url = process.env.RIVAL_URL;

function event(number) {
  return {
    account: `account-${String(number % 105).padStart(3, "0")}`,
    kind: "arrived",
    number,
    amount: number * 0.25,
    note: "somewhat more than sixty characters of text, as an event has it.",
  };
}

// rival: {setup, clear, bulk(payloads), single(payload), drain(handle), serve(handle) → stop()}, all asynchronous.
export async function run(rival) {
  let seen = {};
  let stop = async () => {};
  const orders = {
    setup: async () => (await rival.setup(), {}),
    clear: async () => (await rival.clear(), {}),
    bulk: async ({ jobs }) => {
      const payloads = Array.from({ length: jobs }, (_, number) => event(number));
      const began = performance.now();
      await rival.bulk(payloads);
      return { seconds: (performance.now() - began) / 1000 };
    },
    single: async ({ jobs }) => {
      const payload = event(1);
      const began = performance.now();
      for (let n = 0; n < jobs; n++) await rival.single(payload);
      return { seconds: (performance.now() - began) / 1000 };
    },
    drain: async () => {
      let jobs = 0;
      const began = now();
      await rival.drain(() => {
        jobs += 1;
      });
      return { began, ended: now(), jobs };
    },
    serve: async () => {
      seen = {};
      stop = await rival.serve((payload) => {
        seen[payload.number] = now();
      });
      return {};
    },
    served: async () => (await stop(), { times: seen }),
    send: async ({ pauses }) => {
      const times = {};
      for (const [number, seconds] of pauses.entries()) {
        await pause(1000 * seconds);
        await rival.single(event(number));
        times[number] = now();
      }
      return { times };
    },
  };
  for await (const line of createInterface({ input: process.stdin })) {
    const { do: name, ...given } = JSON.parse(line);
    process.stdout.write(JSON.stringify(await orders[name](given)) + "\n");
  }
  process.exit(0);
}
