"""The metrics of a server. In: calls as requests arrive, run and end. Out: Prometheus' text for `/metrics`.

Every server has its own registry, so that two in one process do not add to each other's numbers."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest

SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)
ROWS = (1, 2, 4, 8, 16, 32, 64)


class Metrics:
    """The counters of one server."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        # The memory, processor time and open files of the process, where the system tells them.
        ProcessCollector(registry=self.registry)
        self.responses = self._counter("http_responses", "Responses by path and status.", ("path", "status"))
        self.finished = self._counter("finished", "Sequences that ended, by reason.", ("reason",))
        self.prompt_tokens = self._counter("prompt_tokens", "Tokens of prompts of admitted sequences.")
        self.reused_tokens = self._counter("reused_prompt_tokens", "Prompt tokens found in the cache of a slot.")
        self.generated_tokens = self._counter("generated_tokens", "Tokens that were generated.")
        self.steps = self._counter("steps", "Steps of the model.")
        self.rows = self._histogram("step_sequences", "Sequences that a step worked on.", ROWS)
        self.wait = self._histogram("queue_seconds", "From arrival to a slot.", SECONDS)
        self.first_token = self._histogram("first_token_seconds", "From arrival to the first token.", SECONDS)
        self.duration = self._histogram("sequence_seconds", "From arrival to the end of a sequence.", SECONDS)

    def gauge(self, name: str, help_text: str, read: Callable[[], float]) -> None:
        """A number that is asked for when the metrics are read."""
        Gauge(f"tilewright_{name}", help_text, registry=self.registry).set_function(read)

    def text(self) -> bytes:
        return generate_latest(self.registry)

    def _counter(self, name: str, help_text: str, labels: tuple[str, ...] = ()) -> Counter:
        return Counter(f"tilewright_{name}", help_text, labels, registry=self.registry)

    def _histogram(self, name: str, help_text: str, buckets: tuple[float, ...]) -> Histogram:
        return Histogram(f"tilewright_{name}", help_text, registry=self.registry, buckets=buckets)
