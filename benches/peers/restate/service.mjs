// The same service without Restate, for Oncegate to forward to: node service.mjs PORT
import { createServer } from "node:http";

let executions = 0;

const server = createServer((request, response) => {
  const parts = [];
  request.on("data", (part) => parts.push(part));
  request.on("end", () => {
    const order = { ...JSON.parse(Buffer.concat(parts)), description: `order ${++executions}` };
    const body = JSON.stringify(order);
    response.writeHead(201, { "Content-Type": "application/json", "Content-Length": Buffer.byteLength(body) });
    response.end(body);
  });
});
// Longer than the rows of the others take: the outcome of a request on a connection that closes is unknown.
server.keepAliveTimeout = 60_000;
server.listen(Number(process.argv[2]), "127.0.0.1");
