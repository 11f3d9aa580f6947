// The service as a handler of Restate's SDK: node handler.mjs PORT
import * as restate from "@restatedev/restate-sdk";

// The SDK calls this function of Node.js 22; earlier versions do not have it.
Promise.withResolvers ??= () => {
  const parts = {};
  parts.promise = new Promise((resolve, reject) => Object.assign(parts, { resolve, reject }));
  return parts;
};

let executions = 0;
const create = async (context, order) => ({ ...order, description: `order ${++executions}` });

restate.serve({
  services: [restate.service({ name: "payments", handlers: { create } })],
  port: Number(process.argv[2]),
});
