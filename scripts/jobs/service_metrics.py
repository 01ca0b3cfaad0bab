"""Prometheus metrics of the service, in a registry of their own."""

from __future__ import annotations

from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

# Seconds; from a warm device's answer to the usual timeout.
_BOUNDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)


class TextMetrics:
    """Metrics of one model's text, by the names of vLLM, whose dashboards show them:
    https://docs.vllm.ai/en/latest/usage/metrics.html."""

    def __init__(self, model: str, registry: CollectorRegistry) -> None:
        def made(kind: Any, name: str, help_: str, *labels: str, **options: Any) -> Any:
            metric = kind(
                f"vllm:{name}", help_, ("model_name", *labels), registry=registry, **options
            )
            return metric if labels else metric.labels(model)

        def seconds(name: str, help_: str) -> Histogram:
            histogram: Histogram = made(Histogram, name, help_, buckets=_BOUNDS)
            return histogram

        self.running: Gauge = made(Gauge, "num_requests_running", "Requests with a token.")
        self.waiting: Gauge = made(Gauge, "num_requests_waiting", "Requests without a token.")
        self.prompt_tokens: Counter = made(Counter, "prompt_tokens", "Tokens of prompts.")
        self.generated_tokens: Counter = made(Counter, "generation_tokens", "Tokens generated.")
        self.first_token = seconds("time_to_first_token_seconds", "To the first token.")
        self.between_tokens = seconds("inter_token_latency_seconds", "From token to token.")
        self.request_seconds = seconds("e2e_request_latency_seconds", "To the last token.")
        self._success: Counter = made(
            Counter, "request_success", "Requests that were finished.", "finished_reason"
        )
        self._model = model

    def finished(self, reason: str) -> None:
        """Count a finished request: "stop" or "length"."""
        self._success.labels(self._model, reason).inc()


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

        self._texts: dict[str, TextMetrics] = {}

    def text_of(self, model: str) -> TextMetrics:
        """Metrics of generated text."""
        if model not in self._texts:
            self._texts[model] = TextMetrics(model, self.registry)
        return self._texts[model]

    def text(self) -> bytes:
        """In Prometheus' text format."""
        return generate_latest(self.registry)
