"""A Django application of one file under gunicorn."""

import json

from django.conf import settings
from django.core.wsgi import get_wsgi_application
from django.http import HttpResponseNotAllowed, JsonResponse
from django.urls import re_path
from django.views.decorators.csrf import csrf_exempt

from wsgi_parts import fields, overriding

settings.configure(
    ROOT_URLCONF=__name__,
    SECRET_KEY="for these checks alone",
    ALLOWED_HOSTS=["127.0.0.1"],
    MIDDLEWARE=["django.middleware.common.CommonMiddleware"],
)
ROWS = []


@csrf_exempt
def posts(request):
    if request.method == "POST":
        ROWS.append(json.loads(request.body))
        return JsonResponse({"row": len(ROWS), "fields": fields(request.META)}, status=201)
    return JsonResponse(ROWS, safe=False) if request.method == "GET" else HttpResponseNotAllowed(["GET", "POST"])


@csrf_exempt
def notes(request):
    return JsonResponse({"fields": fields(request.META)}, status=201)


urlpatterns = [re_path(r"^posts/?$", posts), re_path(r"^notes$", notes)]
application = overriding(get_wsgi_application())
