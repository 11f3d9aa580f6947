"""An MCP server over streamable HTTP with one tool, `charge`, which takes five steps of 0.2 s and tells its progress."""

import logging
import socket
import time

import anyio
import uvicorn
from mcp.server.mcpserver import Context, MCPServer
from starlette.responses import JSONResponse

logging.disable(logging.INFO)
server = MCPServer("payments")
executions = 0


@server.tool()
async def charge(amount: int, context: Context) -> str:
    global executions
    executions += 1
    number = executions
    for step in range(1, 6):
        await anyio.sleep(0.2)
        # The time shows the client whether this message was held back.
        await context.report_progress(step, 5, str(time.time()))
    return f"charge {number} of {amount}"


@server.custom_route("/executions", methods=["GET"])
async def tell_executions(_request):
    return JSONResponse(executions)


listener = socket.create_server(("127.0.0.1", 0))
print(listener.getsockname()[1], flush=True)
uvicorn.Server(uvicorn.Config(server.streamable_http_app(), log_level="warning")).run(sockets=[listener])
