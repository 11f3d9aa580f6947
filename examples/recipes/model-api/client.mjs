// OpenAI's Node client: `client.mjs URL KEY PROMPT` prints the same lines as client.py.
import OpenAI from 'openai'

const [url, key, prompt] = process.argv.slice(2)
// As in client.py.
const retries = prompt.includes('lost') ? { maxRetries: 0 } : {}
const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: 'sk-recipe', ...retries })
const headers = key ? { 'Idempotency-Key': key } : {}
const tell = (...words) => console.log(words.filter(Boolean).join(' '))

for (let tries = 0; tries < 3; tries++) {
  let status, id, begun, sent
  const words = []
  try {
    const question = { model: 'echo', messages: [{ role: 'user', content: prompt }], stream: true }
    // The client sends no key of its own. The field is the same in its own retries.
    const { data, response } = await client.chat.completions.create(question, { headers }).withResponse()
    status = response.headers.get('oncegate-status')
    for await (const chunk of data) {
      begun ??= Date.now() / 1000
      ;({ id, sent } = chunk)
      words.push((chunk.choices[0].delta.content ?? '').trim())
    }
    tell(status, begun < sent && 'live', id, ...words)
    break
  } catch (error) {
    if (error instanceof OpenAI.APIError && error.status) {
      tell(error.headers.get('oncegate-status'), error.constructor.name)
      break
    }
    // After the head, a broken connection is the error of `fetch`, and not one of the client.
    tell(status, ...words, error.constructor.name)
  }
}
