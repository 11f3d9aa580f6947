// An OAuth server by oidc-provider, with one public client. `POST /login` answers a refresh token of a new session, in place of a login.
import { createServer } from 'node:http'
import { Provider } from 'oidc-provider'

const app = {
  client_id: 'app',
  token_endpoint_auth_method: 'none',
  grant_types: ['authorization_code', 'refresh_token'],
  redirect_uris: ['https://app.example/callback'],
}
const provider = new Provider('https://login.example', { clients: [app], rotateRefreshToken: true })
// The first line of standard output is the port, and nobody reads the notes of the provider after it.
console.info = console.error
let executions = 0
provider.on('grant.success', () => executions++)

async function login() {
  const client = await provider.Client.find('app')
  const grant = new provider.Grant({ accountId: 'alice', clientId: 'app' })
  grant.addOIDCScope('offline_access')
  const grantId = await grant.save()
  return new provider.RefreshToken({ accountId: 'alice', client, grantId, scope: 'offline_access', gty: 'authorization_code' }).save()
}

const oauth = provider.callback()
const server = createServer(async (request, response) => {
  if (request.url === '/executions') response.end(`${executions}`)
  else if (request.url === '/login') response.end(await login())
  else oauth(request, response)
})
server.listen(0, '127.0.0.1', () => console.log(server.address().port))
