"""OpenAI's SDK: `complete.py URL KEY` asks once, with the SDK's own retries, and prints the `Oncegate-Status` and the result."""

import sys

import openai

url, key = sys.argv[1:]
# In production the host is that of the URL.
client = openai.OpenAI(base_url=f"{url}/v1", api_key="sk-recipe", default_headers={"Host": "openai.egress.internal"})
messages = [{"role": "user", "content": "say hello"}]
try:
    answer = client.chat.completions.with_raw_response.create(
        model="echo", messages=messages, extra_headers={"Idempotency-Key": key}
    )
    print(answer.headers.get("oncegate-status"), answer.parse().id)
except openai.APIStatusError as error:
    print(error.response.headers.get("oncegate-status"), type(error).__name__)
