"""A GraphQL application of strawberry's under gunicorn."""

import strawberry
from flask import Flask
from strawberry.flask.views import GraphQLView

ROWS = []


@strawberry.type
class Query:
    @strawberry.field
    def charges(self) -> list[str]:
        return ROWS


@strawberry.type
class Mutation:
    @strawberry.mutation
    def charge(self, order: str) -> int:
        ROWS.append(order)
        return len(ROWS)

    @strawberry.mutation
    def charge_and_lose(self, order: str) -> int:
        """Charges, and then loses the connection to its database."""
        ROWS.append(order)
        raise ConnectionError("could not connect to the database")


application = Flask(__name__)
application.add_url_rule("/graphql", view_func=GraphQLView.as_view("graphql", schema=strawberry.Schema(Query, Mutation)))
