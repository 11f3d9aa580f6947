"""The service of payments.wsdl. It refuses a message whose time stamp has expired, and pays as often as it is asked."""

import datetime
from xml.etree import ElementTree

from counting import CountingHandler, serve

HEADER = "{http://schemas.xmlsoap.org/soap/envelope/}Header/"
ADDRESSING = "{http://www.w3.org/2005/08/addressing}"
SECURITY = "{http://docs.oasis-open.org/wss/2004/01/oasis-200401-wss-wssecurity-secext-1.0.xsd}Security/"
UTILITY = "{http://docs.oasis-open.org/wss/2004/01/oasis-200401-wss-wssecurity-utility-1.0.xsd}"
ANSWER = """<s:Envelope xmlns:s="http://schemas.xmlsoap.org/soap/envelope/">
<s:Header><a:RelatesTo xmlns:a="http://www.w3.org/2005/08/addressing">{}</a:RelatesTo></s:Header>
<s:Body><PayResponse xmlns="urn:example:payments"><payment>payment {} of {}</payment></PayResponse></s:Body>
</s:Envelope>"""
FAULT = """<s:Envelope xmlns:s="http://schemas.xmlsoap.org/soap/envelope/">
<s:Body><s:Fault><faultcode>s:Client</faultcode><faultstring>expired</faultstring></s:Fault></s:Body>
</s:Envelope>"""


class Payments(CountingHandler):
    def do_POST(self):
        envelope = ElementTree.fromstring(self.body())
        expires = envelope.findtext(f"{HEADER}{SECURITY}{UTILITY}Timestamp/{UTILITY}Expires")
        if datetime.datetime.fromisoformat(expires) < datetime.datetime.now(datetime.timezone.utc):
            return self.answer_xml(500, FAULT)
        message, amount = envelope.findtext(f"{HEADER}{ADDRESSING}MessageID"), envelope.findtext(".//{urn:example:payments}amount")
        self.answer_xml(200, ANSWER.format(message, self.execute(), amount))

    def answer_xml(self, status, text):
        self.send_response(status)
        self.send_header("Content-Type", "text/xml; charset=utf-8")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())


serve(Payments)
