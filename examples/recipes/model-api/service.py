"""A fake model that says the words of the prompt, one event each 0.1 s. At the word `lost` it breaks off.

The id of the answer is the number of its execution. `sent` in each event is the time at which it was sent.
"""

import json
import time

from counting import CountingHandler, serve


class Model(CountingHandler):
    # Without this, the kernel may hold an event back until the one before has been acknowledged.
    disable_nagle_algorithm = True

    def chunk(self, data):
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))

    def event(self, number, delta, finish_reason=None):
        choice = {"index": 0, "delta": delta, "finish_reason": finish_reason}
        content = {"id": f"chatcmpl-{number}", "object": "chat.completion.chunk", "created": int(time.time()), "model": "echo"}
        self.chunk(b"data: %s\n\n" % json.dumps({**content, "choices": [choice], "sent": time.time()}).encode())

    def do_POST(self):
        words = json.loads(self.body())["messages"][-1]["content"].split()
        number = self.execute()
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        try:
            for word in words:
                time.sleep(0.1)
                if word == "lost":
                    self.close_connection = True
                    return
                self.event(number, {"role": "assistant", "content": f"{word} "})
            self.event(number, {}, "stop")
            self.chunk(b"data: [DONE]\n\n")
            self.chunk(b"")
        except ConnectionError:
            self.close_connection = True  # The client has left: one without Oncegate, for Oncegate stays.


serve(Model)
