"""The thread that runs the model. In: jobs, from any thread. Out: pieces of text and an end, delivered to each job.

Jobs wait in a queue with a limit until the generator has a slot, and all that have one advance together, one step of
the model at a time. Between two steps the thread admits, cancels and delivers; nothing else touches the generator."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from tilewright.base.errors import UserError
from tilewright.llm.sampling import Sampling
from tilewright.llm.serve.errors import ApiError
from tilewright.llm.serve.metrics import Metrics
from tilewright.llm.serve.model import Running, ServedModel, Writer

LOGGER = logging.getLogger("tilewright.serve")
# A generator that fails this many steps in a row is taken as broken, and requests are refused.
MAX_FAILURES = 3
MAX_RETRY_SECONDS = 60
# The weight of the last request in the moving mean of the duration of requests.
MEAN_WEIGHT = 0.1


@dataclass(frozen=True)
class Piece:
    """Text that a job has gained, and how many tokens have been generated for it so far."""

    text: str
    tokens: int


@dataclass(frozen=True)
class End:
    """A job is over: `stop` (the model or a stop string ended it) or `length` (a limit did)."""

    reason: str
    tokens: int
    reused: int


@dataclass(frozen=True)
class Failure:
    """A job is over without an answer."""

    error: ApiError


Event = Piece | End | Failure


@dataclass(eq=False)
class Job:
    """One sequence to generate. `deliver` is called from the worker's thread and must not block."""

    prompt: Sequence[int]
    sampling: Sampling
    limit: int
    stops: Sequence[str]
    continues: bool  # whether the text continues that of the prompt
    deadline: float
    deliver: Callable[[Event], None]
    arrived: float = field(default_factory=time.monotonic)
    # What follows belongs to the worker.
    running: Running | None = None
    writer: Writer | None = None
    seen: int = 0
    cancelled: bool = False
    over: bool = False


class Worker:
    """Runs jobs on a model until it is stopped. `queue` is how many may wait for a slot; with `warm_up` the thread uses
    the time without jobs to compile what they will need."""

    def __init__(self, model: ServedModel, queue: int, metrics: Metrics, warm_up: bool = False) -> None:
        self.model = model
        self.is_warming = warm_up
        self._warming = model.warm_up()
        self.queue = queue
        self.metrics = metrics
        self._changed = threading.Condition()
        self._waiting: deque[Job] = deque()
        self._running: list[Job] = []
        self._draining = False
        self._stopping = False
        self._failures = 0
        self._mean_seconds = 1.0
        self._thread = threading.Thread(target=self._run, name="tilewright-serve", daemon=True)
        metrics.gauge("running_sequences", "Sequences that have a slot.", lambda: len(self._running))
        metrics.gauge("waiting_sequences", "Sequences that wait for a slot.", lambda: len(self._waiting))
        metrics.gauge("slots", "Sequences that can run at once.", lambda: model.slots)

    def start(self) -> None:
        self._thread.start()

    def submit(self, jobs: Sequence[Job]) -> None:
        """Takes all of these jobs, or raises an ApiError that says when to try again."""
        with self._changed:
            if self._draining:
                raise stopping()
            if not self.is_healthy:
                raise ApiError(503, "the model has failed and does not run any more", code="model_failed")
            free = self.model.slots + self.queue - len(self._running) - len(self._waiting)
            if len(jobs) > free:
                message = f"{len(self._running)} sequences are running and {len(self._waiting)} wait; try again later"
                raise ApiError(429, message, code="queue_full", retry_after=self._retry_seconds())
            self._waiting.extend(jobs)
            self._changed.notify_all()

    def cancel(self, jobs: Sequence[Job]) -> None:
        """Cancels jobs: their slots are free after the current step. Jobs that are over stay as they are."""
        with self._changed:
            for job in jobs:
                job.cancelled = True
                if job in self._waiting:
                    self._waiting.remove(job)
                    self._close(job, "cancelled")
            self._changed.notify_all()

    def drain(self) -> None:
        """Refuses new and waiting jobs; running ones continue."""
        with self._changed:
            self._draining = True
            while self._waiting:
                self._fail(self._waiting.popleft(), stopping())

    def cut(self) -> None:
        """Ends the running jobs with an error that says why."""
        with self._changed:
            for job in self._running:
                self._fail(job, stopping())

    def stop(self, timeout: float) -> bool:
        """End the thread after its current step. Returns whether it has ended within the time."""
        self.drain()
        self.cut()
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        if self._thread.is_alive():
            self._thread.join(timeout)
        return not self._thread.is_alive()

    @property
    def is_healthy(self) -> bool:
        return self._failures < MAX_FAILURES

    @property
    def is_draining(self) -> bool:
        return self._draining

    @property
    def running(self) -> int:
        return len(self._running)

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    # What follows runs on the worker's thread; where the queues change, under the lock.

    def _run(self) -> None:
        while self._prepare():
            if not self._running:
                self._warm_up()
                continue
            try:
                self.model.step()
                self._failures = 0
            except Exception as error:
                LOGGER.exception("a step of the model failed")
                self._failures += 1
                self._fail_all(f"the model failed: {type(error).__name__}")
                continue
            self.metrics.steps.inc()
            self.metrics.rows.observe(len(self._running))
            self._advance_all()

    def _prepare(self) -> bool:
        """Bring the generator up to date with the queues. Waits where there is nothing to do; False: stop."""
        with self._changed:
            while True:
                self._expire()
                self._release()
                self._admit()
                if self._running:
                    return True
                if self._stopping:
                    return False
                if self.is_warming:
                    return True
                if not self._waiting:
                    self._changed.wait()

    def _warm_up(self) -> None:
        """Compiles one more part of what requests need, while there is no request."""
        try:
            next(self._warming)
        except StopIteration:
            self.is_warming = False
        except Exception as error:
            # The request that needs it compiles it again, and is answered with the error where that fails as well.
            LOGGER.exception("what requests need could not be compiled ahead of them: %s", error)
            self.is_warming = False

    def _expire(self) -> None:
        now = time.monotonic()
        for job in [job for job in self._waiting if job.deadline <= now]:
            self._waiting.remove(job)
            message = "the request waited for a slot until its time was over"
            self._fail(job, ApiError(503, message, code="timeout", retry_after=self._retry_seconds()))
        for job in self._running:
            if job.deadline > now or job.over:
                continue
            if job.seen:
                self._end(job, "length")
            else:
                message = "the time of the request was over before its first token"
                self._fail(job, ApiError(503, message, code="timeout", retry_after=self._retry_seconds()))

    def _release(self) -> None:
        """Frees the slots of jobs that are over or cancelled."""
        for job in self._running:
            if job.cancelled and not job.over:
                self._close(job, "cancelled")
            if job.over and job.running is not None and not job.running.finished:
                job.running.cancel()
        self._running = [job for job in self._running if not job.over]

    def _admit(self) -> None:
        while self._waiting and len(self._running) < self.model.slots:
            job = self._waiting.popleft()
            try:
                job.writer = self.model.writer(job.stops, job.continues)
                job.running = self.model.start(job.prompt, job.sampling, job.limit)
            except UserError as error:
                self._fail(job, ApiError(400, f"{error.operation}: {error.message}", code="invalid_value"))
                continue
            except Exception as error:
                LOGGER.exception("a request could not be started")
                self._fail(job, ApiError(500, f"the request could not be started: {type(error).__name__}"))
                continue
            self._running.append(job)
            self.metrics.wait.observe(time.monotonic() - job.arrived)
            self.metrics.prompt_tokens.inc(len(job.prompt))

    def _advance_all(self) -> None:
        with self._changed:
            for job in self._running:
                try:
                    self._advance(job)
                except Exception as error:
                    LOGGER.exception("the text of a request could not be made")
                    self._fail(job, ApiError(500, f"the answer cannot be written: {type(error).__name__}"))

    def _advance(self, job: Job) -> None:
        """Deliver what a step has added to a job."""
        if job.over or job.running is None or job.writer is None:
            return
        gained = job.running.tokens[job.seen :]
        if gained and job.seen == 0:
            self.metrics.first_token.observe(time.monotonic() - job.arrived)
        text = ""
        for token in gained:
            text += job.writer.push(token)
            job.seen += 1
            self.metrics.generated_tokens.inc()
            if job.writer.stopped:
                break
        if text:
            job.deliver(Piece(text, job.seen))
        if job.writer.stopped:
            self._end(job, "stop")
        elif job.running.finished in ("stop", "length"):
            self._end(job, job.running.finished)
        elif job.running.finished:
            message = job.running.error.message if job.running.error else "the model failed on this request"
            self._fail(job, ApiError(500, message, code="model_failed"))

    def _end(self, job: Job, reason: str) -> None:
        if job.running is None or job.writer is None:
            return
        rest = "" if job.writer.stopped else job.writer.finish()
        if self._close(job, reason):
            self.metrics.reused_tokens.inc(job.running.reused)
            if rest:
                job.deliver(Piece(rest, job.seen))
            job.deliver(End(reason, job.seen, job.running.reused))

    def _fail(self, job: Job, error: ApiError) -> None:
        if self._close(job, "error"):
            job.deliver(Failure(error))

    def _fail_all(self, message: str) -> None:
        with self._changed:
            for job in self._running:
                self._fail(job, ApiError(500, message, code="model_failed"))

    def _close(self, job: Job, reason: str) -> bool:
        """Marks a job as over and counts it. Returns False if it was over already."""
        if job.over:
            return False
        job.over = True
        seconds = time.monotonic() - job.arrived
        self.metrics.finished.labels(reason).inc()
        self.metrics.duration.observe(seconds)
        if reason in ("stop", "length"):
            self._mean_seconds += MEAN_WEIGHT * (seconds - self._mean_seconds)
        return True

    def _retry_seconds(self) -> int:
        """An estimate of the time until all present jobs are done."""
        turns = (len(self._waiting) + len(self._running)) / self.model.slots
        return max(1, min(MAX_RETRY_SECONDS, round(turns * self._mean_seconds)))


def stopping() -> ApiError:
    return ApiError(503, "the server is stopping", code="server_stopping", retry_after=5)
