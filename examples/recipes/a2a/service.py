"""An agent by A2A's Python SDK: each message is an order, which it charges in five steps of 0.2 s and tells its progress."""

import asyncio
import logging
import socket
import time

import uvicorn
from a2a.helpers import new_task_from_user_message, new_text_message, new_text_part
from a2a.server.agent_execution import AgentExecutor
from a2a.server.request_handlers import DefaultRequestHandlerV2
from a2a.server.routes import create_agent_card_routes, create_jsonrpc_routes
from a2a.server.tasks import InMemoryTaskStore, TaskUpdater
from a2a.types import AgentCapabilities, AgentCard, AgentInterface, AgentSkill
from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Route

logging.disable(logging.INFO)
listener = socket.create_server(("127.0.0.1", 0))
port = listener.getsockname()[1]
executions = 0


class Charges(AgentExecutor):
    async def execute(self, context, event_queue):
        global executions
        executions += 1
        number = executions
        task = new_task_from_user_message(context.message)
        await event_queue.enqueue_event(task)
        updater = TaskUpdater(event_queue, task.id, task.context_id)
        for _ in range(5):
            await asyncio.sleep(0.2)
            # The time shows the client whether this message was held back.
            await updater.start_work(new_text_message(str(time.time())))
        await updater.add_artifact([new_text_part(f"charge {number} of {context.get_user_input()}")])
        await updater.complete()

    async def cancel(self, context, event_queue):
        await TaskUpdater(event_queue, context.task_id, context.context_id).cancel()


card = AgentCard(
    name="payments",
    description="Charges orders",
    version="1",
    supported_interfaces=[AgentInterface(url=f"http://127.0.0.1:{port}/a2a", protocol_binding="JSONRPC", protocol_version="1.0")],
    capabilities=AgentCapabilities(streaming=True),
    default_input_modes=["text/plain"],
    default_output_modes=["text/plain"],
    skills=[AgentSkill(id="charge", name="charge", description="Charges an amount", tags=["payment"])],
)
handler = DefaultRequestHandlerV2(Charges(), InMemoryTaskStore(), card)


async def tell_executions(_request):
    return JSONResponse(executions)


routes = [Route("/executions", tell_executions), *create_agent_card_routes(card), *create_jsonrpc_routes(handler, "/a2a")]
print(port, flush=True)
uvicorn.Server(uvicorn.Config(Starlette(routes=routes), log_level="warning")).run(sockets=[listener])
