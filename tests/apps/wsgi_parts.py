"""Parts of the WSGI applications."""

import urllib.parse

OVERRIDES = ["HTTP_X_HTTP_METHOD_OVERRIDE", "HTTP_X_HTTP_METHOD", "HTTP_X_METHOD_OVERRIDE"]


def fields(environ):
    """The request's fields, by their CGI names: `-` and `_` are the same there."""
    return [[name[5:], value] for name, value in environ.items() if name.startswith("HTTP_")]


def overriding(application):
    """Takes method overrides from fields and from the query, as many applications do."""

    def overridden(environ, start_response):
        query = urllib.parse.parse_qs(environ.get("QUERY_STRING", ""))
        methods = [environ[name] for name in OVERRIDES if name in environ] + query.get("_method", [])
        if methods:
            environ["REQUEST_METHOD"] = methods[0].upper()
        return application(environ, start_response)

    return overridden
