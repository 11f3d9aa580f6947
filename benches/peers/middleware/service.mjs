// A service with fastify: node service.mjs PORT [REDIS_PORT]. With the port of a Redis it deduplicates by Idempotency-Key.
import { Idempotency } from "@node-idempotency/core";
import { RedisStorageAdapter } from "@node-idempotency/storage-adapter-redis";
import Fastify from "fastify";

const [port, redisPort] = process.argv.slice(2).map(Number);
const service = Fastify();

// The library's fastify plugin is not in every registry. Like it, these hooks call the library before and after the handler.
if (redisPort) {
  const storage = new RedisStorageAdapter({ url: `redis://127.0.0.1:${redisPort}` });
  await storage.connect();
  const idempotency = new Idempotency(storage, { enforceIdempotency: true });
  const describe = ({ headers, body, url, method }) => ({ headers, body, path: url, method });
  service.decorateRequest("isFirst", false);
  service.addHook("preHandler", async (request, reply) => {
    const stored = await idempotency.onRequest(describe(request));
    request.isFirst = !stored;
    if (stored) {
      reply.code(stored.additional.statusCode).type("application/json").send(stored.body);
      return reply;
    }
  });
  service.addHook("onSend", async (request, reply, body) => {
    if (request.isFirst) {
      await idempotency.onResponse(describe(request), { body, additional: { statusCode: reply.statusCode } });
    }
  });
}

let executions = 0;
service.post("/v1/payments", async (request, reply) => {
  reply.code(201);
  return { ...request.body, description: `order ${++executions}` };
});

await service.listen({ port, host: "127.0.0.1" });
