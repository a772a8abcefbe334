"""Prometheus metrics of the API process. No label names a user or a workspace."""

from prometheus_client import Gauge

from codehub.asgi.metrics import RequestMetrics


class ApiMetrics(RequestMetrics):
    def __init__(self) -> None:
        super().__init__("api")
        self.streams = Gauge("codehub_api_event_streams", "Open event streams.", registry=self.registry)
