"""x402's own client for `requests`: `client.py URL PAYER ID [FILE]` buys a report, and prints a line about the response.

A connection that breaks is retried by `requests` itself: below x402's client, so with the same payment. FILE keeps the payment for the
application's own retry.
"""

import pathlib
import sys

import urllib3
from ledger import NETWORK, LedgerClient
from x402 import PaymentRequiredHeadersResult, x402ClientSync
from x402.extensions.payment_identifier import append_payment_identifier_to_extensions
from x402.http import x402HTTPClientSync
from x402.http.clients import x402_requests
from x402.http.utils import decode_payment_required_header, decode_payment_response_header, encode_payment_signature_header

url, payer, identifier, *kept = sys.argv[1:]
client = x402ClientSync().register(NETWORK, LedgerClient(payer)).set_spend_controls({"allowed_assets": True})
http_client = x402HTTPClientSync(client)


@client.on_before_payment_creation
def add_identifier(context):
    append_payment_identifier_to_extensions(context.payment_required.extensions, identifier)


for file in map(pathlib.Path, kept):

    @client.on_after_payment_creation
    def keep_payment(context, file=file):
        file.write_text(encode_payment_signature_header(context.payment_payload))

    @http_client.on_payment_required
    def send_kept_payment(_context, file=file):
        return PaymentRequiredHeadersResult({"PAYMENT-SIGNATURE": file.read_text()}) if file.exists() else None


retries = urllib3.Retry(total=3, allowed_methods=None, backoff_factor=0.1)
response = x402_requests(http_client, max_retries=retries).post(f"{url}/reports", timeout=20)

words = [str(response.status_code), response.headers.get("oncegate-status")]
if "payment-response" in response.headers:
    settlement = decode_payment_response_header(response.headers["payment-response"])
    words.append(settlement.transaction or settlement.error_reason)
if "payment-required" in response.headers:
    words.append(decode_payment_required_header(response.headers["payment-required"]).error)
content = response.json()
words.append(content.get("code") or content.get("report"))
print(*filter(None, words))
