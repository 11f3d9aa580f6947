// Shopify's client: `client.mjs URL KEY AMOUNT [literal]` refunds an order, and prints Oncegate's status and the refund, or the error.
import { createAdminApiClient } from '@shopify/admin-api-client'

const [url, key, amount, literal] = process.argv.slice(2)
const client = createAdminApiClient({
  storeDomain: url,
  apiVersion: '2026-04',
  accessToken: 'shpat_recipe',
  retries: 2,
  logger: () => {},
  // The client writes https in place of the scheme.
  customFetchApi: (address, init) => fetch(address.replace('https:', 'http:'), init),
})
const refund = (declared, argument) => `
  mutation Refund(${declared}$amount: String!) {
    refundCreate(orderId: "order-1", amount: $amount) @idempotent(key: ${argument}) { id amount }
  }`
const document = literal ? refund('', JSON.stringify(key)) : refund('$key: String!, ', '$key')
const { data, errors, headers } = await client.request(document, { variables: { ...(!literal && { key }), amount } })
const status = (headers ?? errors.response.headers).get('oncegate-status')
console.log(...[status, errors ? errors.networkStatusCode : data.refundCreate.id].filter(Boolean))
