// Charges an order with Apollo Client and its link for persisted queries: the hash alone first, and the document if the server does not
// know it. Both have the operation's key. Usage: apollo_client.mjs URL ORDER. Prints the result, or the error.
import { createRequire } from 'node:module';

const require = createRequire(import.meta.url);
const { ApolloClient, ApolloLink, HttpLink, InMemoryCache, gql } = require('@apollo/client');
const { PersistedQueryLink } = require('@apollo/client/link/persisted-queries');
const { createHash } = require('node:crypto');

const [url, order] = process.argv.slice(2);
const headers = { authorization: 'Bearer t', 'idempotency-key': order };
const sha256 = (text) => createHash('sha256').update(text).digest('hex');
const link = ApolloLink.from([new PersistedQueryLink({ sha256 }), new HttpLink({ uri: url, headers })]);
const client = new ApolloClient({ cache: new InMemoryCache(), link });
try {
  const mutation = gql`mutation Charge($order: String!) { charge(order: $order) }`;
  const { data } = await client.mutate({ mutation, variables: { order } });
  console.log(JSON.stringify({ charge: data.charge }));
} catch (error) {
  console.log(JSON.stringify({ error: error.message }));
}
