"""A service behind x402's own middleware: `POST /reports` takes half a second and costs 10 credits. The argument is the facilitator."""

import asyncio
import logging
import socket
import sys

import uvicorn
from fastapi import FastAPI
from ledger import NETWORK, LedgerService
from x402 import x402ResourceServer
from x402.extensions.payment_identifier import (
    PAYMENT_IDENTIFIER,
    declare_payment_identifier_extension,
    payment_identifier_resource_server_extension,
)
from x402.http import FacilitatorConfig, HTTPFacilitatorClient, PaymentOption, RouteConfig
from x402.http.middleware.fastapi import payment_middleware

logging.disable(logging.INFO)
server = x402ResourceServer(HTTPFacilitatorClient(FacilitatorConfig(url=f"http://{sys.argv[1]}")))
server.register(NETWORK, LedgerService())
server.register_extension(payment_identifier_resource_server_extension)
price = PaymentOption(scheme="exact", network=NETWORK, pay_to="the service", price="10")
extensions = {PAYMENT_IDENTIFIER: declare_payment_identifier_extension()}
app = FastAPI()
app.middleware("http")(payment_middleware({"POST /reports": RouteConfig(accepts=price, extensions=extensions)}, server))
executions = 0


@app.post("/reports")
async def report():
    global executions
    executions += 1
    number = executions
    await asyncio.sleep(0.5)
    return {"report": number}


@app.get("/executions")
async def tell_executions():
    return executions


listener = socket.create_server(("127.0.0.1", 0))
print(listener.getsockname()[1], flush=True)
uvicorn.Server(uvicorn.Config(app, log_level="warning")).run(sockets=[listener])
