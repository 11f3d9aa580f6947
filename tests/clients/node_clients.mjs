// Creates customers through one of Node's HTTP clients, with the client's own retries.
//
// Usage: node_clients.mjs CLIENT URL OPERATIONS
// Prints a line of JSON for each operation: the customer's id, or the error that the client has raised.

import { randomUUID } from "node:crypto";
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";

// Packages are found by NODE_PATH, which `import` does not read.
const require = createRequire(import.meta.url);
const load = async (name) => {
  const module = await import(pathToFileURL(require.resolve(name)).href);
  const exported = module.default ?? module;
  return exported.default ?? exported;
};

const [client, url, operations] = [process.argv[2], process.argv[3], Number(process.argv[4])];
const token = "sk_test_clients";
// Longer than the lease of an instance: a key that a killed instance was executing becomes unknown then.
const tries = 24;
const retried = [409, 502, 503, 504];

function report(name, result, error) {
  const status = error?.statusCode ?? error?.response?.statusCode ?? error?.response?.status ?? error?.status;
  const kind = error && (error.type ?? error.constructor.name);
  // undici tells the fields of the last answer, and not its body.
  const outcome = error?.headers?.["oncegate-status"];
  console.log(JSON.stringify({ operation: name, id: result ?? null, error: kind, status, outcome, text: error && String(error.message) }));
}

const fields = () => ({
  authorization: `Bearer ${token}`,
  "content-type": "application/x-www-form-urlencoded",
  "idempotency-key": randomUUID(),
});
const form = (name) => new URLSearchParams({ description: name }).toString();

async function run(create) {
  for (let number = 0; number < operations; number += 1) {
    const name = `${client}-${number}`;
    try {
      report(name, await create(name));
    } catch (error) {
      report(name, null, error);
    }
  }
}

async function stripeSdk() {
  const Stripe = await load("stripe");
  const { hostname, port } = new URL(url);
  const stripe = new Stripe(token, { protocol: "http", host: hostname, port, maxNetworkRetries: tries, telemetry: false });
  await run(async (name) => (await stripe.customers.create({ description: name })).id);

  // The SDK must raise its own error for each refusal. `refused-` operations are not counted.
  const idempotencyKey = `reused-${randomUUID()}`;
  await stripe.customers.create({ description: "node-reused" }, { idempotencyKey });
  for (const [name, call] of Object.entries({
    "refused-reused": () => stripe.customers.create({ description: "another body" }, { idempotencyKey }),
    "refused-unknown": () => stripe.rawRequest("POST", "/v1/broken", { amount: 1 }),
  })) {
    try {
      report(name, JSON.stringify(await call()));
    } catch (error) {
      report(name, null, error);
    }
  }
}

async function axiosRetry() {
  const axios = await load("axios");
  const retry = await load("axios-retry");
  const session = axios.create({ baseURL: url });
  retry(session, {
    retries: tries,
    retryDelay: () => 500,
    retryCondition: (error) => !error.response || retried.includes(error.response.status),
  });
  await run(async (name) => (await session.post("/v1/customers", form(name), { headers: fields() })).data.id);
}

async function got() {
  const got = await load("got");
  const retry = { limit: tries, methods: ["POST"], statusCodes: retried, calculateDelay: ({ computedValue }) => computedValue && 500 };
  await run(async (name) => (await got.post(`${url}/v1/customers`, { body: form(name), headers: fields(), retry }).json()).id);
}

async function undici() {
  const { Agent, RetryAgent, request } = await load("undici");
  const dispatcher = new RetryAgent(new Agent(), {
    maxRetries: tries,
    minTimeout: 500,
    maxTimeout: 500,
    methods: ["POST"],
    statusCodes: retried,
    errorCodes: ["ECONNRESET", "ECONNREFUSED", "EPIPE", "UND_ERR_SOCKET"],
  });
  await run(async (name) => {
    const answer = await request(`${url}/v1/customers`, { method: "POST", body: form(name), headers: fields(), dispatcher });
    const text = await answer.body.text();
    if (answer.statusCode !== 200) throw Object.assign(new Error(text), { statusCode: answer.statusCode });
    return JSON.parse(text).id;
  });
}

await { "stripe-node": stripeSdk, "axios-retry": axiosRetry, got, undici }[client]();
process.exit(0);
