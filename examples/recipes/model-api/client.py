"""OpenAI's Python client: `client.py URL KEY PROMPT` prints a line for each try, with its `Oncegate-Status` and its words.

The client retries by itself if the connection breaks before the head of the response. After the head, the application does.
"""

import sys
import time

import openai

url, key, prompt = sys.argv[1:]
# By default, the client retries an unknown outcome, with pauses of its own.
retries = {"max_retries": 0} if "lost" in prompt else {}
client = openai.OpenAI(base_url=f"{url}/v1", api_key="sk-recipe", **retries)
fields = {"Idempotency-Key": key} if key else {}


def tell(*words):
    print(*filter(None, words), flush=True)


for _ in range(3):
    status, words, begun, sent = None, [], None, 0
    try:
        # The client sends no key of its own. The field is the same in its own retries.
        stream = client.chat.completions.create(
            model="echo", messages=[{"role": "user", "content": prompt}], stream=True, extra_headers=fields
        )
        status = stream.response.headers.get("oncegate-status")
        for chunk in stream:
            begun, sent = begun or time.time(), chunk.sent
            words.append((chunk.choices[0].delta.content or "").strip())
        # Read before the last event was sent: the events were not held back.
        tell(status, begun < sent and "live", chunk.id, *words)
        break
    except openai.APIConnectionError as error:
        # The next try has the same key and begins at the first word: what has come so far is dropped.
        tell(status, *words, type(error).__name__)
    except openai.APIStatusError as error:
        tell(error.response.headers.get("oncegate-status"), type(error).__name__)
        break
