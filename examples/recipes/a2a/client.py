"""The client of A2A's Python SDK: `client.py URL MESSAGE_ID TEXT [stream]` sends a message until it has the task's result.

It prints a line for each try: the number of JSON-RPC ids so far, and the result. With `stream`, the answer is a stream of events.
"""

import asyncio
import json
import sys
import time

import httpx
from a2a.client import A2ACardResolver, A2AClientError, ClientConfig, create_client
from a2a.helpers import get_artifact_text, get_message_text, new_text_message
from a2a.types import Role, SendMessageRequest

url, message_id, text, *stream = sys.argv[1:]
ids = set()


async def read_id(request):
    if request.method == "POST":
        ids.add(json.loads(request.content)["id"])


async def send(client, message):
    """Sends the message, and returns the text of the result."""
    result, steps, begun, ended = None, 0, None, 0
    # The SDK gives each call another JSON-RPC id. The id of the message is the application's.
    async for event in client.send_message(SendMessageRequest(message=message)):
        if event.HasField("status_update") and event.status_update.status.HasField("message"):
            steps, begun, ended = steps + 1, begun or time.time(), float(get_message_text(event.status_update.status.message))
        artifacts = [event.artifact_update.artifact] if event.HasField("artifact_update") else event.task.artifacts
        for artifact in artifacts:
            result = get_artifact_text(artifact)
    # Shown before the last step was told: the steps were not held back.
    live = f" after {steps} live steps" if steps and begun < ended else ""
    return f"{result}{live}"


async def main():
    async with httpx.AsyncClient(headers={"Authorization": "Bearer alice"}, timeout=20, event_hooks={"request": [read_id]}) as http:
        card = await A2ACardResolver(http, url).get_agent_card()
        # The card has the address of the agent itself. A real one has that of Oncegate.
        card.supported_interfaces[0].url = f"{url}/a2a"
        client = await create_client(card, ClientConfig(streaming=bool(stream), httpx_client=http))
        message = new_text_message(text, role=Role.ROLE_USER)
        message.message_id = message_id
        for _ in range(3):
            try:
                answer = await send(client, message)
            except A2AClientError as error:
                if isinstance(error.__cause__, httpx.TransportError):
                    print(f"id {len(ids)}: lost", flush=True)
                    continue
                answer = str(error).partition(": ")[0]
            print(f"id {len(ids)}: {answer}", flush=True)
            return


asyncio.run(main())
