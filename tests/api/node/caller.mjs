// Runs prepared statements on one connection: a line of JSON in, a line of JSON out, until standard input ends.
import { createInterface } from 'node:readline';
import pg from 'pg';

const client = new pg.Client({ connectionString: process.env.SQLQUEUE_URL });
await client.connect();
for await (const line of createInterface({ input: process.stdin })) {
  const { name, text, values } = JSON.parse(line);
  try {
    const { rows } = await client.query({ name, text, values });
    console.log(JSON.stringify({ rows }));
  } catch (error) {
    console.log(JSON.stringify({ code: error.code, message: error.message }));
  }
}
await client.end();
