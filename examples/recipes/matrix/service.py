"""A homeserver that takes messages. It does not remember the ids of transactions: each request is another event of the room."""

import urllib.parse

from counting import CountingHandler, serve


class Homeserver(CountingHandler):
    def do_PUT(self):
        self.body()
        match [urllib.parse.unquote(segment) for segment in self.path.strip("/").split("/")]:
            case ["_matrix", "client", "v3", "rooms", "!garden:example.org", "send", "m.room.message", _]:
                self.answer(200, {"event_id": f"event-{self.execute()}"})
            case _:
                self.answer(404, {"errcode": "M_NOT_FOUND", "error": self.path})


serve(Homeserver)
