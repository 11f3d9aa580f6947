// Calls `Charge` over gRPC-Web with Connect's client. Usage: grpc_web_client.mjs URL METHOD ORDER. Prints the value and what Oncegate
// says of it, or the code of the error.
import { createRequire } from 'node:module';

const require = createRequire(import.meta.url);
const { createClient } = require('@connectrpc/connect');
const { createGrpcWebTransport } = require('@connectrpc/connect-node');
const { payments } = require('./grpc_web_schema.cjs');

const [baseUrl, method, value] = process.argv.slice(2);
const client = createClient(payments(), createGrpcWebTransport({ baseUrl, httpVersion: '1.1' }));
const result = {};
const headers = { authorization: 'Bearer t', 'idempotency-key': value ?? 'none' };
try {
  const onHeader = (fields) => (result.oncegate = fields.get('oncegate-status'));
  result.value = (await client[method]({ value }, { headers, onHeader })).value;
} catch (error) {
  Object.assign(result, { code: error.code, oncegate: error.metadata?.get('oncegate-status'), text: error.rawMessage });
}
console.log(JSON.stringify(result));
