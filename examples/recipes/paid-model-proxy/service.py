"""A proxy of paid models: `POST /v1/images` bills at its begin, and takes as long as the body says."""

import json
import time

from counting import CountingHandler, serve


class Images(CountingHandler):
    def do_POST(self):
        request = json.loads(self.body())
        number = self.execute()
        time.sleep(request["seconds"])
        try:
            self.answer(200, {"image": f"image {number}"})
        except ConnectionError:
            self.close_connection = True  # The edge has cut the connection. The image is made and billed all the same.


serve(Images)
