"""Prometheus metrics of the service, in a registry of their own."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

# Seconds; from a warm device's answer to the usual timeout.
_BOUNDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)


class ServiceMetrics:
    """What `/metrics` shows."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "trnx_requests",
            "Requests by path and status.",
            ("path", "status"),
            registry=self.registry,
        )
        self.seconds = Histogram(
            "trnx_request_seconds",
            "Seconds from a request's arrival to its answer.",
            ("path",),
            buckets=_BOUNDS,
            registry=self.registry,
        )
        self.in_flight = Gauge(
            "trnx_requests_in_flight", "Requests that are being answered.", registry=self.registry
        )
        self.waiting = Gauge(
            "trnx_rows_waiting", "Rows that wait or run.", ("engine",), registry=self.registry
        )
        self.batches = Counter(
            "trnx_batches",
            "Batches by compiled shape.",
            ("engine", "rows", "length"),
            registry=self.registry,
        )
        self.rows = Counter(
            "trnx_rows",
            "Rows that were asked for, padding excluded.",
            ("engine",),
            registry=self.registry,
        )
        self.ready = Gauge(
            "trnx_ready", "1 where the service takes requests.", registry=self.registry
        )
        self.warm_up = Gauge(
            "trnx_warm_up_seconds",
            "Seconds that compiling all shapes took.",
            registry=self.registry,
        )
        self.nki_share = Gauge(
            "trnx_nki_flops_share",
            "Share of matrix products' FLOPs in NKI kernels (backend trnx).",
            registry=self.registry,
        )

    def text(self) -> bytes:
        """In Prometheus' text format."""
        return generate_latest(self.registry)
