// An OpenID provider by oidc-provider, with its development pages: `node oidc_provider.mjs ISSUER PAGE CLIENT SECRET`.
// It prints a line as soon as it answers, rotates its key for each line on its standard input, and ends with the input.
import { generateKeyPairSync } from 'node:crypto'
import { createServer } from 'node:http'
import { createInterface } from 'node:readline'
import { createMemoryAdapter } from '../../../examples/recipes/node_modules/oidc-provider/lib/adapters/memory_adapter.js'
import { Provider } from '../../../examples/recipes/node_modules/oidc-provider/lib/index.js'

const [issuer, page, client_id, client_secret] = process.argv.slice(2)
const groups = { ann: ['payments-ops'], bob: ['payments-ops'], carl: ['support'], dora: ['staff'] }
// Its sessions outlast a rotation.
const adapter = createMemoryAdapter()
// Nobody reads its notes on the standard output.
console.info = console.error

function start() {
  const key = generateKeyPairSync('rsa', { modulusLength: 2048 }).privateKey.export({ format: 'jwk' })
  const provider = new Provider(issuer, {
    clients: [{ client_id, client_secret, redirect_uris: [`${page}/sign-in/oidc/callback`] }],
    jwks: { keys: [key] },
    adapter,
    claims: { openid: ['sub'], profile: ['preferred_username'], groups: ['groups'] },
    // Else the ID token has the `sub` alone, and the other claims are at an endpoint that Oncegate does not ask.
    conformIdTokenClaims: false,
    findAccount: (_, id) => ({
      accountId: id,
      claims: () => ({ sub: id, preferred_username: `${id}@ops.example`, groups: groups[id] }),
    }),
  })
  return provider.callback()
}

let answer = start()
const { hostname, port } = new URL(issuer)
const server = createServer((request, response) => {
  // Its pages would load a font from another host.
  response.setHeader('Content-Security-Policy', "style-src 'unsafe-inline'")
  answer(request, response)
})
server.listen(port, hostname, async () => {
  console.log('ready')
  for await (const _ of createInterface(process.stdin)) {
    answer = start()
    console.log('rotated')
  }
  process.exit()
})
