import threading

import pytest
from service import Payments

pytest_plugins = ["pytest_oncegate"]


@pytest.fixture
def service():
    with Payments() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


@pytest.fixture
def service_url(service):
    return f"http://127.0.0.1:{service.server_port}"
