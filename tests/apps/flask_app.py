"""A Flask application under gunicorn."""

from flask import Flask, jsonify, request

from wsgi_parts import fields, overriding

app = Flask(__name__)
ROWS = []


@app.get("/posts", strict_slashes=False)
def listed():
    return jsonify(ROWS)


@app.post("/posts", strict_slashes=False)
def created():
    ROWS.append(request.get_json())
    return {"row": len(ROWS), "fields": fields(request.environ)}, 201


@app.post("/notes")
def noted():
    return {"fields": fields(request.environ)}, 201


application = overriding(app)
