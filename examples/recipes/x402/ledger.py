"""A payment scheme of x402 with a ledger in the place of a chain: the parts of the client, of the service and of the facilitator.

As on a chain, a payment is signed by its payer, and its nonce is good for one transfer.
"""

import hashlib
import hmac
import json
import secrets
import threading

from x402 import AssetAmount, SettleResponse, VerifyResponse

NETWORK = "ledger:recipe"
ASSET = "credits"
SECRETS = {"alice": b"the secret of alice", "bob": b"the secret of bob"}


def sign(authorization):
    text = json.dumps(authorization, sort_keys=True).encode()
    return hmac.new(SECRETS[authorization["from"]], text, hashlib.sha256).hexdigest()


class LedgerClient:
    """Signs payments. Each has a nonce of its own, so each call of the application is another payment."""

    scheme = "exact"

    def __init__(self, payer):
        self.payer = payer

    def create_payment_payload(self, requirements):
        authorization = {
            "from": self.payer,
            "to": requirements.pay_to,
            "value": requirements.amount,
            "nonce": secrets.token_hex(16),
        }
        return {"authorization": authorization, "signature": sign(authorization)}


class LedgerService:
    """Prices in credits. A payment is verified before the work, and settled after it."""

    scheme = "exact"
    default_asset_transfer_method = "default"
    payment_flows = {"default": {"supported": ("authorization",), "default": "authorization"}}

    def parse_price(self, price, network):
        return AssetAmount(amount=price, asset=ASSET)

    def enhance_payment_requirements(self, requirements, kind, extensions):
        return requirements


class Ledger:
    """Verifies payments, and settles each once."""

    scheme = "exact"
    caip_family = "ledger:*"

    def __init__(self):
        self.lock = threading.Lock()
        self.balances = {"alice": 1000, "bob": 0}
        self.settled = {}

    def get_extra(self, network):
        return None

    def get_signers(self, network):
        return []

    def objection(self, payload, requirements):
        authorization = payload.payload["authorization"]
        value = int(authorization["value"])
        if not hmac.compare_digest(sign(authorization), payload.payload["signature"]):
            return "invalid_signature"
        if authorization["to"] != requirements.pay_to or value != int(requirements.amount):
            return "invalid_amount"
        if authorization["nonce"] in self.settled:
            return "nonce_already_used"
        return "insufficient_funds" if self.balances[authorization["from"]] < value else None

    def verify(self, payload, requirements, context=None):
        with self.lock:
            reason = self.objection(payload, requirements)
        return VerifyResponse(is_valid=reason is None, invalid_reason=reason)

    def settle(self, payload, requirements, context=None):
        authorization = payload.payload["authorization"]
        with self.lock:
            reason = self.objection(payload, requirements)
            if reason is not None:
                return SettleResponse(success=False, error_reason=reason, transaction="", network=NETWORK)
            self.balances[authorization["from"]] -= int(authorization["value"])
            self.settled[authorization["nonce"]] = f"tx-{len(self.settled) + 1}"
            return SettleResponse(success=True, transaction=self.settled[authorization["nonce"]], network=NETWORK)
