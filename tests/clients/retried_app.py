"""A service for clients whose retries are spelled otherwise than their first tries: Digest, OAuth 1, gzip, OData batches.

Usage: retried_app.py PORT. Each operation is one row, and `GET /rows` has them all.
"""

import gzip
import re
import sys

from flask import Flask, Response, jsonify, request
from flask_httpauth import HTTPDigestAuth

app = Flask(__name__)
app.config["SECRET_KEY"] = "for these checks alone"
digest = HTTPDigestAuth(use_ha1_pw=False)
digest.get_password(lambda user: {"alice": "wonder"}.get(user))
ROWS = []

METADATA = """<?xml version="1.0" encoding="utf-8"?>
<edmx:Edmx Version="1.0" xmlns:edmx="http://schemas.microsoft.com/ado/2007/06/edmx">
 <edmx:DataServices m:DataServiceVersion="2.0" xmlns:m="http://schemas.microsoft.com/ado/2007/08/dataservices/metadata">
  <Schema Namespace="Shop" xmlns="http://schemas.microsoft.com/ado/2008/09/edm">
   <EntityType Name="Order">
    <Key><PropertyRef Name="Name"/></Key>
    <Property Name="Name" Type="Edm.String" Nullable="false"/>
   </EntityType>
   <EntityContainer Name="Container" m:IsDefaultEntityContainer="true">
    <EntitySet Name="Orders" EntityType="Shop.Order"/>
   </EntityContainer>
  </Schema>
 </edmx:DataServices>
</edmx:Edmx>"""


@app.get("/rows")
def rows():
    return jsonify(ROWS)


def create():
    body = request.get_data()
    ROWS.append((gzip.decompress(body) if request.headers.get("Content-Encoding") == "gzip" else body).decode())
    return {"row": len(ROWS)}, 201


@app.post("/digest")
@app.post("/tenant/digest")
@digest.login_required
def with_digest():
    return create()


@app.post("/plain")
@app.post("/tenant/oauth")
def plain():
    return create()


@app.get("/odata/$metadata")
def metadata():
    return Response(METADATA, content_type="application/xml")


@app.post("/odata/$batch")
def batch():
    """Creates the entities of all change sets, and answers each change set with the entities."""
    text = request.get_data(as_text=True)
    names = re.findall(r'"Name": "([^"]+)"', text)
    ROWS.extend(names)
    created = "".join(
        "--set\r\nContent-Type: application/http\r\nContent-Transfer-Encoding: binary\r\n\r\nHTTP/1.1 201 Created\r\n"
        f'Content-Type: application/json\r\n\r\n{{"d": {{"Name": "{name}"}}}}\r\n'
        for name in names
    )
    answer = f"--all\r\nContent-Type: multipart/mixed; boundary=set\r\n\r\n{created}--set--\r\n\r\n--all--\r\n"
    return Response(answer, 202, content_type="multipart/mixed; boundary=all")


app.run("127.0.0.1", int(sys.argv[1]), threaded=True)
