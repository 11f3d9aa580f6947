// A shop by graphql-http. It takes the directive and does not look at its key: each mutation is another refund.
import { createServer } from 'node:http'
import { buildSchema } from 'graphql'
import { createHandler } from 'graphql-http/lib/use/http'

const schema = buildSchema(`
  directive @idempotent(key: String!) on FIELD
  type Refund { id: ID! amount: String! }
  type Query { executions: Int! }
  type Mutation { refundCreate(orderId: ID!, amount: String!): Refund! }
`)
let executions = 0
const rootValue = {
  executions: () => executions,
  refundCreate: ({ amount }) => ({ id: `refund-${++executions}`, amount }),
}
const graphql = createHandler({ schema, rootValue })
const server = createServer((request, response) =>
  request.url === '/executions' ? response.end(`${executions}`) : graphql(request, response))
server.listen(0, '127.0.0.1', () => console.log(server.address().port))
