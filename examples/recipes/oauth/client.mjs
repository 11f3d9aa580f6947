// openid-client: `client.mjs URL TABS TOKEN` refreshes a session in so many tabs of a browser at once, each until it has an answer. It
// prints the different results, and what the next refresh with the new token gives. With several tokens, it refreshes each session three
// times, and prints how many were lost.
import { allowInsecureRequests, Configuration, customFetch, None, refreshTokenGrant, ResponseBodyError } from 'openid-client'

const [url, tabs, ...tokens] = process.argv.slice(2)
const config = new Configuration({ issuer: 'https://login.example', token_endpoint: `${url}/token` }, 'app', undefined, None())
allowInsecureRequests(config)
const statuses = new Set()
config[customFetch] = async (...request) => {
  const response = await fetch(...request)
  statuses.add(response.headers.get('oncegate-status'))
  return response
}

// The client does not repeat a request whose answer is lost. The application does.
async function refresh(token, tries = 3) {
  try {
    return (await refreshTokenGrant(config, token)).refresh_token
  } catch (error) {
    if (error instanceof ResponseBodyError) return error.error
    if (tries === 1) throw error
    return refresh(token, tries - 1)
  }
}

async function round(token, count) {
  const results = new Set(await Promise.all(Array.from({ length: count }, () => refresh(token))))
  const words = [...results].map((result) => (result === 'invalid_grant' ? result : 'a new token'))
  console.log([...[...statuses].filter(Boolean).sort(), ...words.sort()].join(', '))
  statuses.clear()
  return [...results].find((result) => result !== 'invalid_grant') ?? token
}

async function isLost(token) {
  for (let time = 0; time < 3; time++) {
    token = await refresh(token)
    if (token === 'invalid_grant') return true
  }
  return false
}

if (tokens.length === 1) await round(await round(tokens[0], Number(tabs)), 1)
else {
  let lost = 0
  for (const token of tokens) lost += await isLost(token)
  console.log(lost)
}
