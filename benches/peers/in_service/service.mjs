// A service with fastify, one process for each core: node service.mjs PORT [MODE DATABASE], see idempotency.mjs and sqlite.mjs.
import cluster from "node:cluster";
import { readFileSync } from "node:fs";
import { availableParallelism } from "node:os";
import Fastify from "fastify";
import pg from "pg";
import { idempotency } from "./idempotency.mjs";

const [port, mode, database] = process.argv.slice(2);

if (cluster.isPrimary) {
  if (database && mode !== "sqlite") {
    const client = new pg.Client(database);
    await client.connect();
    await client.query(readFileSync(new URL("schema.sql", import.meta.url), "utf8"));
    await client.end();
  }
  // SQLite has one writer.
  const processes = mode === "sqlite" ? 1 : availableParallelism();
  for (let count = 0; count < processes; count++) cluster.fork();
} else {
  const once = await guard();
  const service = Fastify();
  let executions = 0;
  service.post("/v1/payments", async (request, reply) => {
    const { status, body, isReplay } = await once(request, () => ({
      status: 201,
      body: JSON.stringify({ ...request.body, description: `order ${process.pid}-${++executions}` }),
    }));
    reply.code(status).type("application/json");
    if (isReplay) reply.header("idempotent-replayed", "true");
    return body;
  });
  await service.listen({ port: Number(port), host: "127.0.0.1" });
}

async function guard() {
  if (!mode) return (_, execute) => execute();
  return mode === "sqlite" ? (await import("./sqlite.mjs")).idempotency(database) : idempotency(mode, database);
}
