"""Square's SDK: `client.py URL KEY IMAGE` uploads an image until it has an answer, and prints a line for each try."""

import sys

import httpx
from square import Square
from square.core.api_error import ApiError

url, key, image = sys.argv[1:]
client = Square(base_url=url, token="alice")
request = {"idempotency_key": key, "image": {"type": "IMAGE", "id": "#tea", "image_data": {"caption": "Tea"}}}
for _ in range(3):
    try:
        # The SDK repeats no broken connection. Each call draws another boundary.
        made = client.catalog.images.with_raw_response.create(request=request, image_file=("tea.jpg", image.encode()))
    except httpx.TransportError:
        print("lost", flush=True)
        continue
    except ApiError as error:
        print(error.headers["oncegate-status"], error.status_code)
    else:
        print(*filter(None, (made.headers.get("oncegate-status"), made.data.image.id)))
    break
