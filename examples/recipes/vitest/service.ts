// The service under test: payments, kept in an array.
import { once } from 'node:events'
import { createServer } from 'node:http'
import { json } from 'node:stream/consumers'
import type { AddressInfo } from 'node:net'

export async function startPayments() {
  const state = { payments: [] as unknown[], losesAnswers: false }
  const server = createServer(async (request, response) => {
    state.payments.push(await json(request))
    if (state.losesAnswers) {
      request.socket.destroy()
      return
    }
    response.writeHead(201, { 'Content-Type': 'application/json' }).end(JSON.stringify({ payment: state.payments.length }))
  })
  await once(server.listen(0, '127.0.0.1'), 'listening')
  const url = `http://127.0.0.1:${(server.address() as AddressInfo).port}`
  return Object.assign(state, { url, close: () => server.close().closeAllConnections() })
}
