// A gRPC-Web service of Connect's. It charges, and then finds that something behind it is unavailable if the order says so.
import { createRequire } from 'node:module';

const require = createRequire(import.meta.url);
const http = require('node:http');
const { connectNodeAdapter } = require('@connectrpc/connect-node');
const { Code, ConnectError } = require('@connectrpc/connect');
const { payments } = require('./grpc_web_schema.cjs');

const rows = [];
const routes = (router) =>
  router.service(payments(), {
    charge(request) {
      rows.push(request.value);
      if (request.value.startsWith('lose')) throw new ConnectError('the database', Code.Unavailable);
      return { value: String(rows.length) };
    },
    charges: () => ({ value: rows.join(' ') }),
  });
http.createServer(connectNodeAdapter({ routes })).listen(Number(process.argv[2]), '127.0.0.1');
