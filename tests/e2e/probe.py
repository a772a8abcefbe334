"""A client that sends one ordinary request after the other, and measures how long each takes.

Runs in a separate process, because Chromium's driver keeps the test's busy. It ends when its standard
input closes. Any other answer than a 200 ends it early.
"""

import http.client
import json
import select
import sys
import time
from dataclasses import dataclass

from tests.waiting import PATIENCE

PAUSE = 0.02
"""Seconds between two requests."""


@dataclass(frozen=True)
class Request:
    host: str
    path: str
    cookies: str
    reconnects: bool
    """Whether each request has a new connection."""


class Probe:
    def __init__(self, port: int, request: Request) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
        self._request = request
        self.seconds: list[float] = []

    def send(self) -> None:
        request = self._request
        began = time.perf_counter()
        headers = {"Host": request.host, "Cookie": request.cookies}
        self._connection.request("GET", request.path, headers=headers)
        response = self._connection.getresponse()
        response.read()
        self.seconds.append(time.perf_counter() - began)
        assert response.status == 200, (request.path, response.status)
        if request.reconnects:
            self._connection.close()


def main(port: int, requests: dict[str, Request]) -> None:
    probes = {name: Probe(port, request) for name, request in requests.items()}
    print("ready", flush=True)
    while not select.select([sys.stdin], [], [], PAUSE)[0]:
        for probe in probes.values():
            probe.send()
    print(json.dumps({name: probe.seconds for name, probe in probes.items()}), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), {name: Request(**each) for name, each in json.loads(sys.argv[2]).items()})
