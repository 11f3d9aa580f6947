// Sends one payment to $CONFORM_URL through one of Node's HTTP clients, with the client's own retries.
//
// Usage: conform_client.mjs CLIENT. The exit code is 0 if the payment is known to be done.

import { randomUUID } from "node:crypto";
import { createRequire } from "node:module";
import { setTimeout as pause } from "node:timers/promises";
import { pathToFileURL } from "node:url";

// Packages are found by NODE_PATH, which `import` does not read.
const require = createRequire(import.meta.url);
const load = async (name) => {
  const exported = await import(pathToFileURL(require.resolve(name)).href);
  return exported.default?.default ?? exported.default;
};

const url = `${process.env.CONFORM_URL}/pay`;
const order = { amount: Number(process.env.CONFORM_OPERATION) };
const fields = () => ({ authorization: "Bearer alice", "content-type": "application/json", "idempotency-key": randomUUID() });
const tries = 3;
const retried = [409, 429, 502, 503, 504];

async function fetchLoop() {
  const request = { method: "POST", headers: fields(), body: JSON.stringify(order) };
  for (let attempt = 0; attempt <= tries; attempt += 1) {
    try {
      const answer = await fetch(url, request);
      const body = await answer.json();
      if (answer.ok) return;
      if (body.retry !== "same_key") throw new RangeError(body.code);
      await pause(1000 * Number(answer.headers.get("retry-after") ?? 0.2));
    } catch (error) {
      if (error instanceof RangeError) throw error;
      await pause(200);
    }
  }
  throw new Error("no answer");
}

// With an interceptor, each try gets a key of its own: interceptors run again for a retry. That is wrong on purpose.
async function axiosRetry(inInterceptor) {
  const axios = await load("axios");
  const retry = await load("axios-retry");
  const session = axios.create({ timeout: 20_000 });
  if (inInterceptor) {
    session.interceptors.request.use((config) => {
      Object.assign(config.headers, fields());
      return config;
    });
  }
  retry(session, {
    retries: tries,
    retryDelay: retry.exponentialDelay ?? (() => 200),
    retryCondition: (error) => !error.response || retried.includes(error.response.status),
  });
  await session.post(url, order, inInterceptor ? {} : { headers: fields() });
}

await { fetch: fetchLoop, "axios-retry": () => axiosRetry(false), "new-key": () => axiosRetry(true) }[process.argv[2]]();
