"""The client of MCP's Python SDK: `client.py URL KEY AMOUNT [progress]` calls the tool until it has an answer.

It prints a line for each try. With `progress`, the answer is a stream of events; else it is one JSON document, in which the SDK accepts
no other id than that of its request.
"""

import json
import sys
import time

import anyio
import httpx2
from mcp import Client, MCPError
from mcp.client.streamable_http import streamable_http_client
from mcp_types import CONNECTION_CLOSED

url, key, amount, *progress = sys.argv[1:]
sent = None


async def read_id(request):
    global sent
    message = json.loads(request.content or b"{}")
    if message.get("method") == "tools/call":
        sent = message["id"]


async def call(client):
    """Calls the tool, until it has an answer or the connection is broken. Returns the answer."""
    while True:
        steps, begun, ended = 0, None, 0

        async def note_step(_progress, _total, message):
            nonlocal steps, begun, ended
            steps, begun, ended = steps + 1, begun or time.time(), float(message)

        try:
            # The key is the same for each try. The SDK gives each its own JSON-RPC id.
            result = await client.call_tool(
                "charge",
                {"amount": int(amount)},
                progress_callback=note_step if progress else None,
                meta={"idempotencyKey": key},
            )
            # Shown before the last message was sent: the progress was not held back.
            live = f" after {steps} live steps" if steps and begun < ended else ""
            return result.content[0].text + live
        except MCPError as error:
            if error.code != CONNECTION_CLOSED:
                return f"error {error.code}"
            print(f"id {sent}: lost", flush=True)


async def main():
    http = httpx2.AsyncClient(headers={"Authorization": "Bearer alice"}, timeout=20, event_hooks={"request": [read_id]})
    for tries in range(3):
        try:
            async with Client(streamable_http_client(f"{url}/mcp", http_client=http)) as client:
                # A new connection numbers its messages anew. After this one the call has another id than in the try before.
                for _ in range(tries):
                    await client.list_tools()
                answer = await call(client)
                print(f"id {sent}: {answer}", flush=True)
                return
        except* httpx2.TransportError:
            # Before the head of the response, a broken connection ends the SDK's connection with this error.
            print(f"id {sent}: lost", flush=True)


anyio.run(main)
