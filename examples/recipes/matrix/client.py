"""matrix-nio: `client.py URL TRANSACTION TEXT` sends a message, and prints Oncegate's status and the event, or the error."""

import asyncio
import sys

from nio import AsyncClient, RoomSendError

url, transaction, text = sys.argv[1:]


async def main():
    client = AsyncClient(url, "@alice:example.org")
    client.access_token = "token-of-a-device"
    # matrix-nio repeats the request by itself until there is an answer.
    message = {"msgtype": "m.text", "body": text}
    sent = await client.room_send("!garden:example.org", "m.room.message", message, tx_id=transaction)
    status = sent.transport_response.headers.get("oncegate-status")
    print(*filter(None, (status, sent.transport_response.status if isinstance(sent, RoomSendError) else sent.event_id)))
    await client.close()


asyncio.run(main())
