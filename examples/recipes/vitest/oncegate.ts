/**
 * Fixtures of vitest that run Oncegate before the service under test. Copy this file, and extend its `test` with your service:
 *
 *     import { test as base } from './oncegate'
 *     const test = base.extend<{ serviceUrl: string }>({ serviceUrl: async ({}, use) => use(await startService()) })
 *     test('a retry is replayed', async ({ oncegateUrl }) => { ... })
 *
 * - `oncegateUrl` is the URL of an Oncegate before `serviceUrl`.
 * - `startOncegate(upstream)` starts one before a service that the test has started, and gives its URL. It may be called again.
 * - `oncegateRoutes` are the files of routes, which your oncegate.toml includes too: routes.toml in the working directory. Extend it for
 *   others.
 *
 * The program is that of ONCEGATE_BINARY, else `oncegate` on the PATH. Each Oncegate has a free port and an empty embedded store,
 * and ends with its test. The log of a failed test's is printed.
 */
import { type ChildProcess, spawn } from 'node:child_process'
import { once } from 'node:events'
import { closeSync, mkdtempSync, openSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join, resolve } from 'node:path'
import { setTimeout as pause } from 'node:timers/promises'
import { test as base } from 'vitest'

// A start takes a tenth of a second; a busy machine may need more. At its end Oncegate waits for requests that still run. Vitest
// gives a test 5 s and a hook 10 s by default: testTimeout and hookTimeout.
const START_MS_MAX = 30_000
const END_MS_MAX = 10_000

// Tables that reach systems of production; a route has no key of such a name.
const PRODUCTION = /^[\s[]*(cache|consumers|events|services|telemetry)\s*[\].=]/m

// The line of the log, as JSON or as text.
const READY = /\bready\b.*?\blisten"?[=:]"?([^\s",]+)/

function configuration(routes: string[]) {
  for (const file of routes) {
    const found = PRODUCTION.exec(readFileSync(file, 'utf8'))
    if (found) throw new Error(`${file} has ${found[1]}: tests would reach what it names; move it to oncegate.toml`)
  }
  return `include = ${JSON.stringify(routes.map((file) => resolve(file)))}`
}

class Oncegate {
  readonly #folder = mkdtempSync(join(tmpdir(), 'oncegate-'))
  readonly #program = process.env.ONCEGATE_BINARY ?? 'oncegate'
  readonly #process: ChildProcess
  #startError?: Error

  constructor(upstream: string, routes: string[]) {
    const config = join(this.#folder, 'oncegate.toml')
    writeFileSync(config, configuration(routes))
    const log = openSync(join(this.#folder, 'oncegate.log'), 'w')
    const store = `sqlite:${join(this.#folder, 'oncegate.db')}`
    const options = ['--config', config, '--upstream', upstream, '--store', store, '--listen', '127.0.0.1:0', '--admin', '127.0.0.1:0']
    // The level of the line that says that it is ready.
    const env = { ...process.env, ONCEGATE_LOG: 'info', OTEL_SDK_DISABLED: 'true' }
    this.#process = spawn(this.#program, ['run', ...options], { stdio: ['ignore', log, log], env })
    this.#process.on('error', (error) => (this.#startError = error))
    closeSync(log)
  }

  get log() {
    return readFileSync(join(this.#folder, 'oncegate.log'), 'utf8')
  }

  get #hasEnded() {
    return this.#startError !== undefined || this.#process.exitCode !== null || this.#process.signalCode !== null
  }

  async url() {
    for (const until = Date.now() + START_MS_MAX; !this.#hasEnded && Date.now() < until; await pause(20)) {
      const ready = READY.exec(this.log)
      if (ready) return `http://${ready[1]}`
    }
    if (this.#startError) {
      throw new Error(`cannot run ${this.#program}: put it on the PATH, or set ONCEGATE_BINARY`, { cause: this.#startError })
    }
    throw new Error(`Oncegate ${this.#hasEnded ? `ended with ${this.#process.exitCode}` : 'is not ready'}; its log:\n${this.log}`)
  }

  async end() {
    if (!this.#hasEnded) {
      const ended = once(this.#process, 'exit')
      const kill = setTimeout(() => this.#process.kill('SIGKILL'), END_MS_MAX)
      this.#process.kill()
      await ended
      clearTimeout(kill)
    }
  }

  remove() {
    rmSync(this.#folder, { recursive: true })
  }
}

interface Fixtures {
  serviceUrl: string
  oncegateRoutes: string[]
  startOncegate: (upstream: string) => Promise<string>
  oncegateUrl: string
}

export const test = base.extend<Fixtures>({
  serviceUrl: async ({}, _use) => {
    throw new Error('extend the test with `serviceUrl`, the URL of your service')
  },
  // With options, as vitest takes an array for a value and its options.
  oncegateRoutes: [['routes.toml'], { auto: false }],
  startOncegate: async ({ oncegateRoutes, task }, use) => {
    const started: Oncegate[] = []
    await use((upstream) => {
      const oncegate = new Oncegate(upstream, oncegateRoutes)
      started.push(oncegate)
      return oncegate.url()
    })
    for (const oncegate of started.reverse()) {
      await oncegate.end()
      if (task.result?.state === 'fail') console.error(`log of Oncegate in "${task.name}":\n${oncegate.log}`)
      oncegate.remove()
    }
  },
  oncegateUrl: async ({ serviceUrl, startOncegate }, use) => {
    await use(await startOncegate(serviceUrl))
  },
})
