// A GraphQL application of Apollo Server's, with persisted queries as it has them by default.
import { createRequire } from 'node:module';

// Modules do not look in NODE_PATH.
const require = createRequire(import.meta.url);
const { ApolloServer } = require('@apollo/server');
const { startStandaloneServer } = require('@apollo/server/standalone');

const rows = [];
const typeDefs = 'type Query { charges: [String!]! } type Mutation { charge(order: String!): Int! chargeAndLose(order: String!): Int! }';
const resolvers = {
  Query: { charges: () => rows },
  Mutation: {
    charge: (_, { order }) => rows.push(order),
    chargeAndLose: (_, { order }) => {
      rows.push(order);
      throw new Error('could not connect to the database');
    },
  },
};
await startStandaloneServer(new ApolloServer({ typeDefs, resolvers }), { listen: { port: Number(process.argv[2]), host: '127.0.0.1' } });
