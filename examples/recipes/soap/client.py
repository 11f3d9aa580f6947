"""zeep: `client.py URL MESSAGE_ID AMOUNT` pays, and prints Oncegate's status and the payment, or the fault's code."""

import datetime
import pathlib
import sys

import requests
import zeep
from zeep.wsa import WsAddressingPlugin
from zeep.wsse.utils import WSU, get_security_header

url, message_id, amount = sys.argv[1:]
statuses = []


class KeptId(WsAddressingPlugin):
    """zeep draws an id for each call. The application's own is the same when the application calls again."""

    def egress(self, envelope, *rest):
        envelope, fields = super().egress(envelope, *rest)
        envelope.find(".//{*}MessageID").text = message_id
        return envelope, fields


class RepeatingTransport(zeep.Transport):
    """Sends the message again after a lost answer, with another time stamp."""

    def post_xml(self, address, envelope, headers):
        for _ in range(3):
            now = datetime.datetime.now(datetime.timezone.utc)
            times = WSU.Created(now.isoformat()), WSU.Expires((now + datetime.timedelta(minutes=1)).isoformat())
            security = get_security_header(envelope)
            security.clear()
            security.append(WSU.Timestamp(*times))
            try:
                response = super().post_xml(address, envelope, headers)
            except requests.ConnectionError:
                continue
            statuses.append(response.headers.get("oncegate-status"))
            return response
        sys.exit("no answer")


session = requests.Session()
session.auth = ("shop", "secret")
history = zeep.plugins.HistoryPlugin()
# `To` names the service and not the address of a link: it counts, and is the same in each try.
wsdl = pathlib.Path(__file__).with_name("payments.wsdl")
client = zeep.Client(str(wsdl), transport=RepeatingTransport(session=session), plugins=[KeptId("urn:example:payments"), history])
try:
    result = client.create_service("{urn:example:payments}Payments", f"{url}/payments").Pay(amount=amount)
    # The answer names the message to which it belongs.
    assert history.last_received["envelope"].findtext(".//{*}RelatesTo") == message_id
except zeep.exceptions.Fault as fault:
    result = fault.code
print(*filter(None, (*statuses, result)))
