"""Appends 100 orders to a new table: `client.py URL CATALOG TABLE SECONDS RESENDS COMMITS`. CATALOG is the catalog's own URL.

The HTTP layer resends a request at most RESENDS times. PyIceberg repeats a commit that has failed at most COMMITS times. After that the
application appends once more. To the table `conflict` another writer appends first. Prints the table's snapshots and rows, and how the
commits were answered.
"""

import logging
import sys

import pyarrow
import requests
import urllib3
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.exceptions import CommitFailedException

url, direct, name, seconds, resends, commits = sys.argv[1:]
logging.disable()
orders = pyarrow.table({"order": range(100)})
answers = []


def note(response, **_):
    if response.request.method == "POST":
        answers.extend(str(resend.status) for resend in response.raw.retries.history if resend.status)
        answers.append(response.headers.get("oncegate-status", str(response.status_code)))


def connect():
    catalog = RestCatalog("engine", uri=url, token="alice")
    retries = urllib3.Retry(
        int(resends), status_forcelist=[502, 503, 504], allowed_methods=None, backoff_factor=0.02, raise_on_status=False
    )
    catalog._session.mount("http://", requests.adapters.HTTPAdapter(max_retries=retries))
    catalog._session.hooks["response"].append(note)
    return catalog


def append(table):
    """Appends the orders, and once more after an error that the application takes for "not committed"."""
    for _ in range(2):
        try:
            return table.append(orders)
        except (CommitFailedException, requests.ConnectionError):
            table.refresh()


catalog = RestCatalog("direct", uri=direct, token="alice")
catalog.create_table(("shop", name), orders.schema, properties={"seconds": seconds, "commit.retry.num-retries": commits})
table = connect().load_table(("shop", name))
if name == "conflict":
    catalog.load_table(("shop", name)).append(orders)
try:
    append(table)
    rows = catalog.load_table(("shop", name)).scan().count()
except FileNotFoundError:  # a file of a snapshot that was committed
    rows = "unreadable"
print(len(catalog.load_table(("shop", name)).snapshots()), rows, *dict.fromkeys(answers))
