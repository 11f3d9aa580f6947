"""A REST catalog over PyIceberg's own catalog, in the folder of the argument. A table's property `seconds` says how long a commit takes."""

import json
import sys
import time

from counting import CountingHandler, serve
from pyiceberg.catalog.rest import ConfigResponse, CreateTableRequest, NamespaceResponse, TableResponse
from pyiceberg.catalog.rest.response import ErrorResponse, ErrorResponseMessage
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.table import CommitTableRequest

catalog = SqlCatalog("recipe", uri=f"sqlite:///{sys.argv[1]}/catalog.db", warehouse=f"file://{sys.argv[1]}/warehouse")


class Catalog(CountingHandler):
    def do_GET(self):
        match self.path.split("/")[1:]:
            case ["v1", "config"]:
                self.respond(ConfigResponse())
            case ["v1", "namespaces", namespace, "tables", name]:
                self.respond_with(catalog.load_table((namespace, name)))
            case _:
                super().do_GET()

    def do_POST(self):
        body = self.body()
        match self.path.split("/")[1:]:
            case ["v1", "namespaces"]:
                request = NamespaceResponse.model_validate_json(body)
                catalog.create_namespace(request.namespace)
                self.respond(request)
            case ["v1", "namespaces", namespace, "tables"]:
                # The model wants a place, and a client that leaves it to the catalog sends none.
                request = CreateTableRequest.model_validate({"location": None} | json.loads(body))
                table = catalog.create_table((namespace, request.name), request.table_schema, properties=request.properties)
                self.respond_with(table)
            case ["v1", "namespaces", namespace, "tables", name]:
                self.commit(catalog.load_table((namespace, name)), CommitTableRequest.model_validate_json(body))

    def commit(self, table, request):
        time.sleep(float(table.properties["seconds"]))
        try:
            done = catalog.commit_table(table, request.requirements, request.updates)
        except CommitFailedException as error:
            message = ErrorResponseMessage(message=str(error), type="CommitFailedException", code=409)
            return self.respond(ErrorResponse(error=message), 409)
        self.execute()
        self.respond(done)

    def respond_with(self, table):
        self.respond(TableResponse(metadata=table.metadata, metadata_location=table.metadata_location))

    def respond(self, model, status=200):
        try:
            self.answer(status, model.model_dump(mode="json"))
        except ConnectionError:
            self.close_connection = True  # The client has gone. The commit is made all the same.


serve(Catalog)
