"""The OpenAI-compatible paths: answers of the official client, refusals, streams, cancellation."""

from __future__ import annotations

import asyncio
import base64
import json
import threading
import time
from collections.abc import Iterator
from typing import Any

import httpx
import numpy as np
import openai
import pytest
import torch
import uvicorn

from trnx.jobs.continuous import ContinuousEngine
from trnx.jobs.engines import EmbeddingEngine, GenerationEngine
from trnx.jobs.errors import ModelError
from trnx.jobs.openai_api import add_openai_paths
from trnx.jobs.serve_flags import parse
from trnx.jobs.service import Service, make_app

CPU = torch.device("cpu")
FLAGS = ("--generate", "llama-tiny", "--batch-sizes", "4", "--lengths", "64", "--backend", "eager")
LIMITS = ("--queue", "8", "--max-body-bytes", "4000", "--read-timeout-seconds", "1")


class Running:
    """A service on a port of this machine, in a thread."""

    def __init__(self, writer: GenerationEngine, embedder: EmbeddingEngine) -> None:
        self.service = Service(parse("", [*FLAGS, *LIMITS]))
        for engine in (embedder, writer):
            self.service.add(engine)
        self.text = ContinuousEngine(writer.module, 4, 64, 8, "eager", None)
        self.text.warm_up()
        self.service.add_text(self.text)
        app = make_app(self.service)
        add_openai_paths(app, self.service)
        config = uvicorn.Config(app, port=0, log_level="warning", lifespan="off")
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=asyncio.run, args=(self._serve(),))
        self.url = ""

    async def _serve(self) -> None:
        for scheduler in self.service.schedulers.values():
            scheduler.start()
        await self._server.serve()
        for scheduler in self.service.schedulers.values():
            await scheduler.stop()

    def start(self) -> None:
        self._thread.start()
        while not self._server.started:
            time.sleep(0.01)
        self.text.start()
        self.service.set_ready(True)
        host, port = self._server.servers[0].sockets[0].getsockname()[:2]
        self.url = f"http://{host}:{port}"

    def stop(self) -> None:
        self._server.should_exit = True
        self._thread.join()
        self.text.stop()


@pytest.fixture(scope="module")
def writer() -> GenerationEngine:
    return GenerationEngine("llama-tiny", "eager", None, CPU)


@pytest.fixture(scope="module")
def running(writer: GenerationEngine) -> Iterator[Running]:
    found = Running(writer, EmbeddingEngine("minilm", "eager", None, CPU))
    found.start()
    yield found
    found.stop()


@pytest.fixture
def client(running: Running) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{running.url}/v1", api_key="none", max_retries=0) as found:
        yield found


@torch.no_grad()
def greedy(writer: GenerationEngine, prompt: str, count: int) -> list[int]:
    """Tokens of the model in eager, without a cache, padding or batches."""
    tokens = writer.tokens(prompt)
    first = len(tokens)
    for _ in range(count):
        logits = writer.module(input_ids=torch.tensor([tokens])).logits
        tokens.append(int(logits[0, -1].argmax()))
    return tokens[first:]


def test_completion_equals_eager_generation(
    client: openai.OpenAI, writer: GenerationEngine
) -> None:
    answer = client.completions.create(model="llama-tiny", prompt="tensor", max_tokens=6)
    expected = greedy(writer, "tensor", 6)
    assert 0 not in expected
    assert answer.object == "text_completion"
    assert answer.choices[0].text == writer.text(expected)
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (6, 6)


def test_streams_of_many_clients_equal_eager_generation(
    running: Running, writer: GenerationEngine
) -> None:
    prompts = ["a", "tensor", "the kernel runs on an engine of its own", "x" * 40, "yz", "matrix"]
    wanted = {prompt: greedy(writer, prompt, 8) for prompt in prompts}

    async def one(client: openai.AsyncOpenAI, prompt: str) -> str:
        stream = await client.completions.create(
            model="llama-tiny", prompt=prompt, max_tokens=8, stream=True
        )
        return "".join([chunk.choices[0].text async for chunk in stream])

    async def all_of_them() -> list[str]:
        url = f"{running.url}/v1"
        async with openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as client:
            return await asyncio.gather(*(one(client, prompt) for prompt in prompts))

    for prompt, found in zip(prompts, asyncio.run(all_of_them()), strict=True):
        tokens = wanted[prompt]
        assert found == writer.text(tokens[: tokens.index(0)] if 0 in tokens else tokens)
    assert running.text.running == running.text.waiting == 0


@pytest.mark.parametrize(
    "preset", ["llama-tiny", pytest.param("gpt2-tiny", marks=pytest.mark.slow)]
)
def test_compiled_batches_equal_eager_generation(preset: str) -> None:
    writer = GenerationEngine(preset, "eager", None, CPU)
    # Longer than a batch: the last prompt is cut into pieces.
    prompts = ["a", "tensor", "x" * 20]
    text = ContinuousEngine(writer.module, 2, 32, 8, "aot_eager", None)
    text.warm_up()
    text.start()

    async def tokens(prompt: str) -> list[int]:
        return [token async for token in text.stream(writer.tokens(prompt), 6, ())]

    async def all_of_them() -> list[list[int]]:
        return await asyncio.gather(*(tokens(prompt) for prompt in prompts))

    try:
        found = asyncio.run(all_of_them())
    finally:
        text.stop()
    assert found == [greedy(writer, prompt, 6) for prompt in prompts]


def test_shape_that_fails_is_named(
    writer: GenerationEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise RuntimeError("no memory")

    # The engine runs a copy of the module, so the class is what both share.
    monkeypatch.setattr(type(writer.module), "forward", fail)
    text = ContinuousEngine(writer.module, 2, 32, 8, "aot_eager", None)
    with pytest.raises(ModelError, match="failed on a batch of 2 tokens; the log says why"):
        text.warm_up()


def test_chat_and_its_stream(client: openai.OpenAI, writer: GenerationEngine) -> None:
    messages: Any = [{"role": "system", "content": "be short"}, {"role": "user", "content": "hi"}]
    prompt = "system: be short\nuser: hi\nassistant:"
    expected = writer.text(greedy(writer, prompt, 5))
    whole = client.chat.completions.create(model="llama-tiny", messages=messages, max_tokens=5)
    assert whole.choices[0].message.role == "assistant"
    assert whole.choices[0].message.content == expected
    stream = client.chat.completions.create(
        model="llama-tiny",
        messages=messages,
        max_completion_tokens=5,
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = list(stream)
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == expected
    assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == "length"
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 5


def test_text_is_drawn_by_temperature_and_seed(client: openai.OpenAI) -> None:
    body: dict[str, Any] = {"model": "llama-tiny", "prompt": "tensor", "max_tokens": 8}

    def text(**more: Any) -> str:
        return client.completions.create(**body, **more).choices[0].text

    drawn = text(temperature=1.0, seed=3)
    assert drawn == text(temperature=1.0, seed=3, top_p=1.0, presence_penalty=0.0)
    stream = client.completions.create(**body, temperature=1.0, seed=3, stream=True)
    assert "".join(chunk.choices[0].text for chunk in stream) == drawn
    assert text(temperature=1.0, seed=-4) != drawn
    assert len({text(temperature=1.0) for _ in range(3)}) == 3
    # So little of the distribution that only the most likely token is left.
    assert text(temperature=1.0, top_p=1e-6) == text() != drawn


@pytest.mark.parametrize("streamed", [False, True])
def test_text_ends_before_the_first_stop(
    client: openai.OpenAI, writer: GenerationEngine, streamed: bool
) -> None:
    whole = writer.text(greedy(writer, "matrix", 12))
    first, later = whole[3:5], whole[6:8]  # texts over several tokens
    assert whole.index(first) == 3
    chat: dict[str, Any] = {"model": "llama-tiny", "prompt": "matrix", "max_tokens": 12}
    stop = [later, "nowhere", first]
    if streamed:
        chunks = list(client.completions.create(**chat, stop=stop, stream=True))
        found = "".join(chunk.choices[0].text for chunk in chunks)
        reason = chunks[-1].choices[0].finish_reason
    else:
        answer = client.completions.create(**chat, stop=stop)
        assert answer.usage is not None
        assert 4 <= answer.usage.completion_tokens < 12
        found, reason = answer.choices[0].text, answer.choices[0].finish_reason
    assert (found, reason) == (whole[:3], "stop")
    answer = client.completions.create(**chat, stop="not there")
    assert (answer.choices[0].text, answer.choices[0].finish_reason) == (whole, "length")


@pytest.mark.parametrize("form", ["float", "base64"])
def test_embeddings_are_those_of_embed(form: str, running: Running) -> None:
    texts = ["a", "NeuronCores run kernels"]
    body = {"model": "minilm", "input": texts, "encoding_format": form}
    answer = httpx.post(f"{running.url}/v1/embeddings", json=body).json()
    expected = httpx.post(f"{running.url}/embed", json={"inputs": texts}).json()
    for entry, vector in zip(answer["data"], expected["embeddings"], strict=True):
        found = entry["embedding"]
        if form == "base64":
            found = np.frombuffer(base64.b64decode(found), dtype="<f4")
        np.testing.assert_allclose(found, vector, rtol=1e-6, atol=1e-7)
    assert answer["usage"]["prompt_tokens"] == expected["tokens"]


def test_official_client_reads_models_and_embeddings(client: openai.OpenAI) -> None:
    assert {model.id for model in client.models.list()} == {"minilm", "llama-tiny"}
    found = client.embeddings.create(model="minilm", input="one text")
    assert len(found.data[0].embedding) == 384
    with pytest.raises(openai.NotFoundError, match="no model 'other' here"):
        client.completions.create(model="other", prompt="a")


def _body(**values: Any) -> bytes:
    return json.dumps({"model": "llama-tiny", "prompt": "a", **values}).encode()


BAD: list[tuple[str, bytes, int, str]] = [
    ("completions", b"{", 400, "the body is not JSON"),
    ("completions", b"\xff\xfe", 400, ""),
    ("completions", b"", 422, "body"),
    ("completions", b"[]", 422, "the body is no JSON object"),
    ("completions", b"{}", 422, "model: Field required"),
    ("completions", b'{"model": "llama-tiny"}', 422, "prompt: Field required"),
    ("completions", _body(model="other"), 404, "no model 'other' here"),
    ("completions", _body(model=7), 422, "model: "),
    ("completions", _body(prompt=""), 422, "prompt: "),
    ("completions", _body(prompt=[1, 2]), 422, "prompt: "),
    ("completions", _body(prompt=None), 422, "prompt: "),
    ("completions", _body(max_tokens=0), 422, "max_tokens: "),
    ("completions", _body(max_tokens=-1), 422, "max_tokens: "),
    ("completions", _body(max_tokens="4"), 422, "max_tokens: "),
    ("completions", _body(max_tokens=1.5), 422, "max_tokens: "),
    ("completions", _body(max_tokens=10**9), 422, "at most 256 are allowed"),
    ("completions", _body(max_tokens=64), 422, "has 65 tokens; at most 64"),
    ("completions", _body(prompt="x" * 65), 422, "has 81 tokens; at most 64"),
    ("completions", _body(prompt="x" * 5000), 413, "more than 4000 bytes"),
    ("completions", _body(temperature=2.5), 422, "temperature: "),
    ("completions", _body(temperature=-1), 422, "temperature: "),
    ("completions", _body(n=2), 422, "n: "),
    ("completions", _body(stream="yes"), 422, "stream: "),
    ("completions", _body(best_of=3), 422, "best_of: "),
    ("completions", _body(stop=["a"] * 5), 422, "stop: "),
    ("completions", _body(stop=""), 422, "stop.0: "),
    ("completions", _body(presence_penalty=1), 422, "presence_penalty: "),
    ("completions", _body(logprobs=3), 422, "logprobs: "),
    ("completions", _body(top_k=3), 422, "top_k: Extra inputs"),
    ("completions", _body(stream_options={"other": 1}), 422, "stream_options.other: "),
    ("chat/completions", _body(), 422, "messages: Field required"),
    ("chat/completions", b'{"model": "llama-tiny", "messages": []}', 422, "messages: "),
    (
        "chat/completions",
        b'{"model": "llama-tiny", "messages": [{"role": "robot", "content": "a"}]}',
        422,
        "messages.0.role: ",
    ),
    (
        "chat/completions",
        b'{"model": "llama-tiny", "messages": [{"role": "user"}]}',
        422,
        "messages.0.content: ",
    ),
    ("embeddings", b'{"model": "minilm", "input": []}', 422, "input: "),
    ("embeddings", b'{"model": "minilm", "input": [1]}', 422, "input.0: "),
    ("embeddings", b'{"model": "llama-tiny", "input": "a"}', 404, "no model 'llama-tiny'"),
    ("embeddings", b'{"model": "minilm", "input": "a", "encoding_format": "x"}', 422, "encoding"),
    ("nothing", b"{}", 404, "Not Found"),
    ("models", b"{}", 405, "Method Not Allowed"),
]


def test_malformed_requests_get_the_right_4xx(running: Running) -> None:
    with httpx.Client(base_url=running.url) as client:
        for path, content, status, message in BAD:
            header = {"content-type": "application/json"}
            answer = client.post(f"/v1/{path}", content=content, headers=header)
            assert answer.status_code == status, (path, content[:60], answer.text)
            error = answer.json()["error"]
            assert message in error["message"], (path, content[:60], answer.text)
            assert error["type"] == "invalid_request_error"
        assert client.get("/health").status_code == 200


def test_full_queue_is_429(running: Running, client: openai.OpenAI) -> None:
    waiting = running.text._started
    try:
        waiting.update({f"held-{number}": False for number in range(8)})
        for stream in (False, True):
            with pytest.raises(openai.RateLimitError, match="the queue is full"):
                client.completions.create(model="llama-tiny", prompt="a", stream=stream)
    finally:
        waiting.clear()
    assert client.completions.create(model="llama-tiny", prompt="a", max_tokens=1).choices


def test_client_that_goes_away_ends_its_generation(running: Running, client: openai.OpenAI) -> None:
    body: dict[str, Any] = {"model": "llama-tiny", "prompt": "abc", "max_tokens": 60}
    stream = client.completions.create(**body, stream=True)
    next(iter(stream))
    stream.close()
    with pytest.raises(openai.APITimeoutError):
        client.with_options(timeout=0.005).completions.create(**body)
    end = time.monotonic() + 30
    while running.text.running + running.text.waiting:
        assert time.monotonic() < end
        time.sleep(0.01)
    # Nothing is left of either in the manager.
    assert not running.text._manager.output_router.result_handlers
    assert client.completions.create(model="llama-tiny", prompt="a", max_tokens=1).choices


def test_slow_body_is_408(running: Running) -> None:
    def trickle() -> Iterator[bytes]:
        yield b'{"model": '
        time.sleep(1.5)
        yield b'"x"}'

    header = {"content-type": "application/json"}
    answer = httpx.post(f"{running.url}/v1/completions", content=trickle(), headers=header)
    assert answer.status_code == 408
    assert "no whole body within 1 seconds" in answer.json()["error"]["message"]


def test_metrics_have_the_names_of_vllm(running: Running, client: openai.OpenAI) -> None:
    client.completions.create(model="llama-tiny", prompt="abc", max_tokens=4)
    text = httpx.get(f"{running.url}/metrics").text
    for name in (
        "num_requests_running",
        "num_requests_waiting",
        "prompt_tokens_total",
        "generation_tokens_total",
        "time_to_first_token_seconds_count",
        "inter_token_latency_seconds_count",
        "e2e_request_latency_seconds_count",
    ):
        assert f'vllm:{name}{{model_name="llama-tiny"}}' in text
    assert 'vllm:request_success_total{finished_reason="length",model_name="llama-tiny"}' in text
