"""A TCP link to one of several instances that loses responses, and counts them.

Usage: lossy_link.py PORT LOSE_EVERY INSTANCE_PORT...
Every LOSE_EVERY-th response is read to the end of what the instance has sent, thrown away, and the client's connection is reset. New
connections go to the instances in turn; one that does not accept is skipped. SIGTERM prints the number of lost responses.
"""

import asyncio
import signal
import socket
import struct
import sys

CHUNK = 65536


class Link:
    def __init__(self, lose_every, ports):
        self.lose_every, self.ports = lose_every, ports
        self.connections = self.responses = self.lost = 0

    async def connect(self):
        self.connections += 1
        first = self.connections % len(self.ports)
        for port in self.ports[first:] + self.ports[:first]:
            try:
                return await asyncio.open_connection("127.0.0.1", port)
            except OSError:
                continue
        return None

    async def accept(self, reader, writer):
        instance = await self.connect()
        if instance is None:
            return self.reset(writer)
        from_instance, to_instance = instance
        asked = asyncio.Event()
        tasks = [
            asyncio.create_task(self.forward_requests(reader, to_instance, asked)),
            asyncio.create_task(self.forward_responses(from_instance, writer, asked)),
        ]
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            task.cancel()
        for side in (writer, to_instance):
            side.close()

    async def forward_requests(self, reader, writer, asked):
        try:
            while data := await reader.read(CHUNK):
                asked.set()
                writer.write(data)
                await writer.drain()
        except OSError:
            pass

    async def forward_responses(self, reader, writer, asked):
        """Every first bytes after a request are a response: these clients send one request at a time on a connection."""
        try:
            while data := await reader.read(CHUNK):
                if asked.is_set():
                    asked.clear()
                    self.responses += 1
                    if self.responses % self.lose_every == 0:
                        self.lost += 1
                        return self.reset(writer)
                writer.write(data)
                await writer.drain()
        except OSError:
            pass

    def reset(self, writer):
        linger = struct.pack("ii", 1, 0)
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        writer.transport.abort()


async def main(port, lose_every, *ports):
    link = Link(int(lose_every), [int(port) for port in ports])
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    server = await asyncio.start_server(link.accept, "127.0.0.1", int(port))
    await stop.wait()
    server.close()
    print(link.lost, flush=True)


asyncio.run(main(*sys.argv[1:]))
