// Idempotency by Idempotency-Key inside of a service, in its own PostgreSQL: in two commits, or in one transaction.
import { createHash } from "node:crypto";
import pg from "pg";

const RESERVE = {
  name: "reserve",
  text: "insert into idempotency_keys (caller, key, fingerprint) values ($1, $2, $3) on conflict do nothing returning key",
};
const COMPLETE = {
  name: "complete",
  text: "update idempotency_keys set status = $3, body = $4 where caller = $1 and key = $2",
};
const RELEASE = { name: "release", text: "delete from idempotency_keys where caller = $1 and key = $2" };
const FIND = {
  name: "find",
  text: "select fingerprint, status, body from idempotency_keys where caller = $1 and key = $2",
};

const hash = (text) => createHash("sha256").update(text).digest();
const refusal = (statusCode, message) => Object.assign(new Error(message), { statusCode });

/** Returns `once(request, execute)`: it executes the first request of a key, and answers the others with the stored response. */
export function idempotency(mode, connectionString) {
  // Each of two processes has eight connections: 16 and 32 were no faster. A pipelining client sends two statements at once
  // where the second need not wait for the result of the first.
  const pool = new pg.Pool({ connectionString, max: 8, pipeline: true });
  pool.on("error", (error) => console.error(error));
  const run = { "two-commits": inTwoCommits, "one-transaction": inOneTransaction }[mode];
  return (request, execute) => {
    const { id, fingerprint } = identify(request);
    return run(pool, id, fingerprint, execute);
  };
}

/** Returns the caller and the key of a request, and the hash of what a retry must not change. */
export function identify(request) {
  const { authorization = "", "idempotency-key": key } = request.headers;
  if (!key) throw refusal(400, "Idempotency-Key is required");
  const fingerprint = hash(`${request.method} ${request.url}\n${JSON.stringify(request.body)}`);
  return { id: [hash(authorization), key], fingerprint };
}

/** Reserves the key in a commit of its own: a duplicate is refused meanwhile, and the key stays reserved if the process dies. */
async function inTwoCommits(pool, id, fingerprint, execute) {
  const reserved = await pool.query({ ...RESERVE, values: [...id, fingerprint] });
  if (reserved.rowCount === 0) return replay(pool, id, fingerprint);
  let response;
  try {
    response = await execute();
  } catch (error) {
    await pool.query({ ...RELEASE, values: id });
    throw error;
  }
  await pool.query({ ...COMPLETE, values: [...id, response.status, response.body] });
  return response;
}

/** Holds a transaction open while it executes: a duplicate waits for its end, and the key is free again if the process dies. */
async function inOneTransaction(pool, id, fingerprint, execute) {
  const client = await pool.connect();
  try {
    const [, reserved] = await Promise.all([
      client.query("begin"),
      client.query({ ...RESERVE, values: [...id, fingerprint] }),
    ]);
    let response;
    if (reserved.rowCount === 0) {
      response = await replay(client, id, fingerprint);
      await client.query("commit");
    } else {
      response = await execute();
      const values = [...id, response.status, response.body];
      await Promise.all([client.query({ ...COMPLETE, values }), client.query("commit")]);
    }
    client.release();
    return response;
  } catch (error) {
    // Closing the connection rolls back.
    client.release(true);
    throw error;
  }
}

async function replay(connection, id, fingerprint) {
  const { rows: [stored] } = await connection.query({ ...FIND, values: id });
  return answer(stored, fingerprint);
}

/** Answers a duplicate from the row of its key. */
export function answer(stored, fingerprint) {
  if (!stored) throw refusal(409, "the first request of this key has just failed");
  if (!stored.fingerprint.equals(fingerprint)) throw refusal(422, "this key belongs to another request");
  if (stored.status === null) throw refusal(409, "the first request of this key is in progress");
  return { status: stored.status, body: stored.body, isReplay: true };
}
