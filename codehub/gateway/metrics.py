"""Metrics of the gateway, summed over its workers.

The workers are forked, and any of them may be scraped. They count in shared memory, in one row of numbers
for each worker that only that worker writes. A restarted worker continues its row.
"""

import mmap
from bisect import bisect_left
from collections.abc import Iterator
from itertools import accumulate
from typing import TYPE_CHECKING, Final

from codehub.gateway.http1.reply import Reply
from codehub.gateway.page_texts import TEXTS

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

BUCKETS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
PAGES: Final = tuple(sorted(key.removesuffix(".heading") for key in TEXTS["en"] if key.endswith(".heading")))
"""Every page of the gateway has a heading."""

_RELAYED: Final = tuple(("relayed", f"{number}xx") for number in range(1, 6))
_OWN: Final = (
    *(("page", page) for page in PAGES),
    ("redirect", ""),
    ("error", "4xx"),
    ("error", "5xx"),
    ("refused", ""),
    ("upstream_failed", ""),
)
_OUTCOMES: Final = (*_RELAYED, *_OWN)
_SLOT: Final = {outcome: slot for slot, outcome in enumerate(_OUTCOMES)}

ACCEPTED: Final = len(_OUTCOMES)
OPEN: Final = ACCEPTED + 1
WEBSOCKETS: Final = OPEN + 1
WAKES: Final = WEBSOCKETS + 1
LATENCY_SUM: Final = WAKES + 1
LATENCY: Final = LATENCY_SUM + 1

_NUMBER: Final = 8
_LINE: Final = 64
"""Bytes of a cache line: workers that shared one would slow each other down."""
_ROW: Final = -(-(LATENCY + len(BUCKETS) + 1) * _NUMBER // _LINE) * _LINE


class WorkerMetrics:
    """The row of one worker."""

    __slots__ = ("_row",)

    def __init__(self, row: "memoryview[float]") -> None:
        self._row = row
        row[OPEN] = row[WEBSOCKETS] = 0.0  # a killed worker could not count these down

    def count_connection(self) -> None:
        self._row[ACCEPTED] += 1
        self._row[OPEN] += 1

    def count_disconnection(self) -> None:
        self._row[OPEN] -= 1

    def count_websocket_opened(self) -> None:
        self._row[WEBSOCKETS] += 1

    def count_websocket_closed(self) -> None:
        self._row[WEBSOCKETS] -= 1

    def count_wake(self) -> None:
        self._row[WAKES] += 1

    def count_relay(self, status: int, seconds: float) -> None:
        """Count a response of an upstream, and the time to its first byte. On the hot path: about 1 us."""
        row = self._row
        row[min(status, 599) // 100 - 1] += 1
        row[LATENCY + bisect_left(BUCKETS, seconds)] += 1
        row[LATENCY_SUM] += seconds

    def count_reply(self, reply: Reply) -> None:
        """Count a reply of the gateway itself."""
        if reply.page:
            self._count("page", reply.page)
        elif 300 <= reply.status < 400:
            self._count("redirect")
        else:
            self._count("error", "5xx" if reply.status >= 500 else "4xx")

    def count_refusal(self) -> None:
        """Count a connection or request that was refused before it was parsed."""
        self._count("refused")

    def count_upstream_failure(self) -> None:
        self._count("upstream_failed")

    def _count(self, outcome: str, kind: str = "") -> None:
        self._row[_SLOT[outcome, kind]] += 1


class GatewayMetrics:
    """Rows of all workers. Create them before the fork."""

    def __init__(self, workers: int) -> None:
        memory = memoryview(mmap.mmap(-1, _ROW * workers))
        self._rows = [memory[number * _ROW : (number + 1) * _ROW].cast("d") for number in range(workers)]

    def of_worker(self, number: int) -> WorkerMetrics:
        """Return the row of a worker that starts now."""
        return WorkerMetrics(self._rows[number])

    def exposition(self) -> tuple[bytes, str]:
        # Imported at the first scrape: a gateway that is not scraped saves these 2 MB.
        from prometheus_client import CollectorRegistry
        from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

        registry = CollectorRegistry()
        registry.register(self)
        return generate_latest(registry), CONTENT_TYPE_LATEST

    def collect(self) -> "Iterator[Metric]":
        from prometheus_client.metrics_core import (
            CounterMetricFamily,
            GaugeMetricFamily,
            HistogramMetricFamily,
        )

        totals = [sum(column) for column in zip(*self._rows, strict=True)]
        requests = CounterMetricFamily(
            "codehub_gateway_requests", "Requests by outcome.", labels=["outcome", "kind"]
        )
        for outcome, count in zip(_OUTCOMES, totals, strict=False):
            requests.add_metric(outcome, count)
        yield requests
        yield CounterMetricFamily(
            "codehub_gateway_connections", "Connections accepted.", value=totals[ACCEPTED]
        )
        yield GaugeMetricFamily("codehub_gateway_open_connections", "Connections open.", value=totals[OPEN])
        yield GaugeMetricFamily(
            "codehub_gateway_open_websockets", "WebSockets open.", value=totals[WEBSOCKETS]
        )
        yield CounterMetricFamily(
            "codehub_gateway_wakes", "Workspaces started by opening them.", value=totals[WAKES]
        )
        latency = accumulate(totals[LATENCY : LATENCY + len(BUCKETS) + 1])
        names = [*map(str, BUCKETS), "+Inf"]
        yield HistogramMetricFamily(
            "codehub_gateway_relay_seconds",
            "Time from a request to the first byte of its upstream's response.",
            buckets=list(zip(names, latency, strict=True)),
            sum_value=totals[LATENCY_SUM],
        )
