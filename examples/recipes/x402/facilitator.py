"""x402's own facilitator, with the ledger. `GET /executions` answers the number of settlements; `POST /deposit` fills bob's account."""

import json

from counting import CountingHandler, serve
from ledger import NETWORK, Ledger
from x402 import x402FacilitatorSync
from x402.schemas import SettleRequest, VerifyRequest

ledger = Ledger()
facilitator = x402FacilitatorSync().register([NETWORK], ledger)


class Facilitator(CountingHandler):
    def do_GET(self):
        if self.path == "/supported":
            return self.answer(200, facilitator.get_supported().model_dump(by_alias=True, exclude_none=True))
        super().do_GET()

    def do_POST(self):
        body = self.body()
        if self.path == "/deposit":
            ledger.balances["bob"] += 1000
            return self.answer(200, {})
        request, act = (SettleRequest, facilitator.settle) if self.path == "/settle" else (VerifyRequest, facilitator.verify)
        request = request.model_validate(json.loads(body))
        done = act(request.payment_payload, request.payment_requirements)
        if self.path == "/settle" and done.success:
            self.execute()
        self.answer(200, done.model_dump(by_alias=True, exclude_none=True))


serve(Facilitator)
