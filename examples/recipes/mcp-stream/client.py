"""The client of MCP's Python SDK: `client.py URL KEY TITLE` calls the tool until it has a result, and prints a line for each try."""

import sys
import time

import anyio
import httpx2
from mcp import Client, MCPError
from mcp.client.streamable_http import streamable_http_client

url, key, title = sys.argv[1:]
STEPS = 15


def tell(*words):
    print(*filter(None, words), flush=True)


async def call():
    """Calls the tool once. Returns whether no other call is needed.

    Each call has a connection of its own, whose messages the SDK numbers anew: a retry must have the same JSON-RPC id.
    """
    status, steps, begun, sent = None, 0, None, 0

    async def add_key(request):
        # The key is for the tool call alone, and not for what the SDK sends before it. It sends this field from version 2026-07-28 on.
        if request.headers.get("mcp-method") == "tools/call":
            request.headers["Idempotency-Key"] = key

    async def read_status(response):
        nonlocal status
        status = response.headers.get("oncegate-status") or status

    async def show_progress(_progress, _total, message):
        nonlocal steps, begun, sent
        steps, begun, sent = steps + 1, begun or time.time(), float(message)

    http = httpx2.AsyncClient(
        headers={"Authorization": "Bearer alice"},
        timeout=30,
        event_hooks={"request": [add_key], "response": [read_status]},
    )
    async with http, Client(streamable_http_client(f"{url}/mcp", http_client=http)) as client:
        try:
            result = await client.call_tool("report", {"title": title, "steps": STEPS}, progress_callback=show_progress)
        except MCPError as error:
            tell(status, f"{steps} steps", str(error))
            return status in ("key-reused", "unknown")
    # Shown before the last message was sent: the progress was not held back.
    tell(status, begun < sent and "live", f"{steps} steps", result.content[0].text)
    return True


async def main():
    for _ in range(3):
        try:
            if await call():
                break
        except* httpx2.TransportError:
            # Before the head of the response, a broken connection ends the SDK's connection with this error.
            tell("broken")


anyio.run(main)
