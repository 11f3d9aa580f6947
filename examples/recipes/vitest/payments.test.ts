import { expect } from 'vitest'
import { test as base } from './oncegate'
import { startPayments } from './service'

const test = base.extend<{ service: Awaited<ReturnType<typeof startPayments>>; serviceUrl: string }>({
  service: async ({}, use) => {
    const service = await startPayments()
    await use(service)
    service.close()
  },
  serviceUrl: ({ service }, use) => use(service.url),
})

async function pay(url: string, amount: number) {
  const headers = { 'Idempotency-Key': 'order-1', Authorization: 'Bearer alice', 'Content-Type': 'application/json' }
  const answer = await fetch(`${url}/v1/payments`, { method: 'POST', headers, body: JSON.stringify({ amount }) })
  return { status: answer.status, oncegate: answer.headers.get('oncegate-status'), body: await answer.json() }
}

test('a retry is executed once and replayed', async ({ oncegateUrl, service }) => {
  expect(await pay(oncegateUrl, 100)).toEqual({ status: 201, oncegate: 'executed', body: { payment: 1 } })
  expect(await pay(oncegateUrl, 100)).toEqual({ status: 201, oncegate: 'replayed', body: { payment: 1 } })
  expect(service.payments).toEqual([{ amount: 100 }])
})

test('after a lost answer a retry is not executed', async ({ oncegateUrl, service }) => {
  service.losesAnswers = true
  expect(await pay(oncegateUrl, 100)).toMatchObject({ status: 502, body: { code: 'upstream-broken' } })
  service.losesAnswers = false
  expect(await pay(oncegateUrl, 100)).toMatchObject({ status: 409, body: { code: 'outcome-unknown' } })
  expect(service.payments).toEqual([{ amount: 100 }])
})

test('another body under the same key is refused', async ({ oncegateUrl, service }) => {
  await pay(oncegateUrl, 100)
  expect(await pay(oncegateUrl, 900)).toMatchObject({ status: 422, body: { code: 'key-reused' } })
  expect(service.payments).toEqual([{ amount: 100 }])
})
