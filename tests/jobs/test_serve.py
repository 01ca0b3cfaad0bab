"""The HTTP service: answers, refusals, limits, load, draining."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch

from trnx.backend import demo
from trnx.jobs import models, serve
from trnx.jobs.drawn_weights import build_model
from trnx.jobs.engines import EmbeddingEngine, GenerationEngine
from trnx.jobs.scheduler import Item
from trnx.jobs.serve_flags import parse
from trnx.jobs.service import Service, make_app

ROOT = Path(__file__).resolve().parents[2]
SMALL = ("--batch-sizes", "2,4", "--lengths", "16,32", "--backend", "eager")
CPU = torch.device("cpu")
JSON = {"content-type": "application/json"}

Train = Callable[..., tuple[int, list[dict[str, Any]], str]]


@pytest.fixture(scope="module")
def embedder() -> EmbeddingEngine:
    return EmbeddingEngine("minilm", "eager", None, CPU)


@pytest.fixture(scope="module")
def writer() -> GenerationEngine:
    return GenerationEngine("llama-tiny", "eager", None, CPU)


def with_service(
    engines: Sequence[Any],
    body: Callable[[httpx.AsyncClient, Service], Awaitable[None]],
    *flags: str,
    ready: bool = True,
) -> None:
    async def main() -> None:
        service = Service(parse("", [*SMALL, "--generate", "llama-tiny", *flags]))
        for engine in engines:
            service.add(engine).start()
        service.set_ready(ready)
        transport = httpx.ASGITransport(make_app(service))
        async with httpx.AsyncClient(transport=transport, base_url="http://service") as client:
            await body(client, service)
        for scheduler in service.schedulers.values():
            await scheduler.stop()

    asyncio.run(main())


def test_embeddings_equal_those_of_the_model_whatever_the_padding(
    embedder: EmbeddingEngine,
) -> None:
    texts = ["a", "NeuronCores run kernels", "the quick brown fox jumps over the lazy dog"]
    model, _ = demo.load(torch.float32)
    tokens = embedder.tokenizer(texts, padding=True, return_tensors="pt")
    with torch.no_grad():
        expected = demo.embeddings(model, dict(tokens))

    async def body(client: httpx.AsyncClient, _: Service) -> None:
        answer = (await client.post("/embed", json={"inputs": texts})).json()
        torch.testing.assert_close(torch.tensor(answer["embeddings"]), expected)
        assert answer["tokens"] == int(tokens["attention_mask"].sum())
        alone = (await client.post("/embed", json={"inputs": texts[1]})).json()
        torch.testing.assert_close(torch.tensor(alone["embeddings"]), expected[1:2])

    with_service([embedder], body)


def greedy(prompt: str, count: int) -> list[int]:
    """Tokens of the same random model, without padding or batches."""
    config = models.build_config(models.PRESETS["llama-tiny"], 256, 2048, 0.0)
    model = build_model(config, 0).eval()
    tokens = list(prompt.encode())
    with torch.no_grad():
        for _ in range(count):
            tokens.append(int(model(input_ids=torch.tensor([tokens])).logits[0, -1].argmax()))
    return tokens[len(prompt) :]


def test_generated_text_equals_that_of_the_model_alone(writer: GenerationEngine) -> None:
    prompts = ["tensor", "a", "the kernel runs"]
    expected = [greedy(prompt, 6) for prompt in prompts]
    assert all(0 not in tokens for tokens in expected)

    async def body(client: httpx.AsyncClient, _: Service) -> None:
        requests = [{"prompt": prompt, "max_new_tokens": 6} for prompt in prompts]
        posts = [client.post("/generate", json=request) for request in requests]
        for answer, prompt, tokens in zip(
            await asyncio.gather(*posts), prompts, expected, strict=True
        ):
            assert answer.json() == {
                "text": writer.text(tokens),
                "tokens": 6,
                "finish_reason": "length",
                "prompt_tokens": len(prompt),
            }

    with_service([writer], body)


def test_sampling_follows_the_seed(writer: GenerationEngine) -> None:
    async def body(client: httpx.AsyncClient, _: Service) -> None:
        request = {"prompt": "x", "max_new_tokens": 8, "temperature": 1.5}
        texts = [
            (await client.post("/generate", json={**request, "seed": seed})).json()["text"]
            for seed in (1, 1, 2)
        ]
        assert texts[0] == texts[1] != texts[2]
        answer = await client.post("/generate", json=request)
        assert answer.status_code == 200

    with_service([writer], body)


BAD: list[tuple[str, bytes, int, str]] = [
    ("/embed", b'{"inputs": ', 400, "the body is not JSON"),
    ("/embed", b"\xff\xfe", 400, ""),
    ("/embed", b"", 422, "body"),
    ("/embed", b"[]", 422, "the body is no JSON object"),
    ("/embed", b"{}", 422, "inputs: Field required"),
    ("/embed", b'{"inputs": ""}', 422, "inputs.0: String should have at least 1 character"),
    ("/embed", b'{"inputs": []}', 422, "inputs: List should have at least 1 item"),
    ("/embed", b'{"inputs": 7}', 422, "inputs: Input should be a valid list"),
    ("/embed", b'{"inputs": ["a", 7]}', 422, "inputs.1: Input should be a valid string"),
    ("/embed", b'{"inputs": null}', 422, "inputs: Input should be a valid list"),
    ("/embed", b'{"inputs": "\\ud800"}', 422, "inputs.0: Input should be a valid string"),
    ("/embed", b'{"inputs": "a", "other": 1}', 422, "other: Extra inputs are not permitted"),
    (
        "/embed",
        json.dumps({"inputs": "a " * 40}).encode(),
        422,
        "inputs.0 has 42 tokens; at most 32",
    ),
    ("/embed", json.dumps({"inputs": ["a"] * 65}).encode(), 422, "65 texts; at most 64"),
    ("/embed", b'{"inputs": "' + b"a" * 2000 + b'"}', 413, "the body has more than 1000 bytes"),
    ("/generate", b'{"prompt": ""}', 422, "prompt: String should have at least 1 character"),
    ("/generate", b'{"prompt": "a", "max_new_tokens": 0}', 422, "max_new_tokens: "),
    ("/generate", b'{"prompt": "a", "max_new_tokens": 1.5}', 422, "max_new_tokens: "),
    ("/generate", b'{"prompt": "a", "max_new_tokens": "4"}', 422, "max_new_tokens: "),
    ("/generate", b'{"prompt": "a", "max_new_tokens": 300}', 422, "at most 256 are allowed"),
    ("/generate", b'{"prompt": "a", "max_new_tokens": 32}', 422, "has 33 tokens; at most 32"),
    ("/generate", b'{"prompt": "a", "temperature": -1}', 422, "temperature: "),
    ("/generate", b'{"prompt": "a", "temperature": NaN}', 422, "temperature: "),
    ("/generate", b'{"prompt": "a", "seed": -1}', 422, "seed: "),
    ("/nothing", b"{}", 404, "Not Found"),
    ("/ready", b"{}", 405, "Method Not Allowed"),
]


def test_bad_requests_get_4xx_that_say_why(
    embedder: EmbeddingEngine, writer: GenerationEngine
) -> None:
    async def body(client: httpx.AsyncClient, _: Service) -> None:
        for path, content, status, message in BAD:
            answer = await client.post(path, content=content, headers=JSON)
            assert answer.status_code == status, (path, content[:60], answer.text)
            assert message in answer.json()["error"]["message"], (path, content[:60], answer.text)
        # A body whose length nobody announced.
        chunks = [b'{"inputs": "', b"a" * 2000, b'"}']

        async def stream() -> Any:
            for chunk in chunks:
                yield chunk

        answer = await client.post("/embed", content=stream(), headers=JSON)
        assert answer.status_code == 413
        counted = (await client.get("/metrics")).text
        assert 'trnx_requests_total{path="/embed",status="413"} 2.0' in counted
        assert 'trnx_requests_total{path="other",status="404"} 1.0' in counted
        assert (await client.post("/embed", json={"inputs": "good"})).status_code == 200

    with_service([embedder, writer], body, "--max-body-bytes", "1000")


class Held:
    """Steps that wait until they are let go; text "break" raises."""

    def __init__(self, inner: EmbeddingEngine) -> None:
        self.go = threading.Event()
        self.inner = inner

    def step(self, items: Sequence[Item], rows: int, length: int) -> list[Any]:
        self.go.wait(30)
        if len(items[0].tokens) == 5:
            raise RuntimeError("secret detail")
        return self.inner.step(items, rows, length)


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch, embedder: EmbeddingEngine) -> Held:
    """The embedder, held back."""
    engine = EmbeddingEngine.__new__(EmbeddingEngine)
    vars(engine).update(vars(embedder))
    control = Held(embedder)
    monkeypatch.setattr(engine, "step", control.step)
    control.engine = engine  # type: ignore[attr-defined]
    return control


def test_full_queue_is_429_with_retry_after(held: Any) -> None:
    async def body(client: httpx.AsyncClient, service: Service) -> None:
        first = asyncio.create_task(client.post("/embed", json={"inputs": ["a", "b", "c"]}))
        while service.schedulers["embed"].waiting < 3:
            await asyncio.sleep(0.001)
        refused = await client.post("/embed", json={"inputs": "d"})
        assert refused.status_code == 429
        assert refused.headers["retry-after"] == "1"
        assert "the queue is full" in refused.json()["error"]["message"]
        held.go.set()
        assert (await first).status_code == 200

    with_service([held.engine], body, "--queue", "3")


def test_late_answer_is_504_and_gives_its_place_back(held: Any) -> None:
    async def body(client: httpx.AsyncClient, service: Service) -> None:
        late = await client.post("/embed", json={"inputs": "a"})
        assert late.status_code == 504
        assert "no answer within 0.05 seconds" in late.json()["error"]["message"]
        held.go.set()
        while service.schedulers["embed"].waiting:
            await asyncio.sleep(0.001)

    with_service([held.engine], body, "--timeout-seconds", "0.05")


def test_failing_model_is_500_and_the_service_goes_on(held: Any) -> None:
    held.go.set()

    async def body(client: httpx.AsyncClient, _: Service) -> None:
        failed = await client.post("/embed", json={"inputs": "a b c"})
        assert failed.status_code == 500
        assert "RuntimeError" in failed.json()["error"]["message"]
        assert "secret" not in failed.text
        assert (await client.post("/embed", json={"inputs": "a"})).status_code == 200

    with_service([held.engine], body)


def test_service_that_is_not_ready_says_so(embedder: EmbeddingEngine) -> None:
    async def body(client: httpx.AsyncClient, service: Service) -> None:
        assert (await client.get("/health")).status_code == 200
        assert (await client.get("/ready")).status_code == 503
        answer = await client.post("/embed", json={"inputs": "a"})
        assert answer.status_code == 503
        assert answer.headers["retry-after"] == "1"
        missing = await client.post("/generate", json={"prompt": "a"})
        assert missing.status_code == 404
        service.set_ready(True)
        assert (await client.get("/ready")).json() == {"status": "ready"}
        service.is_draining = True
        service.set_ready(False)
        assert (await client.get("/ready")).status_code == 503
        assert (await client.post("/embed", json={"inputs": "a"})).status_code == 200

    with_service([embedder], body, ready=False)


def test_health_is_answered_while_large_bodies_are_tokenised(
    embedder: EmbeddingEngine, writer: GenerationEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    go, busy = threading.Event(), threading.Semaphore(0)

    def slow(_: str) -> list[int]:
        busy.release()
        assert go.wait(60)
        return [1]

    async def body(client: httpx.AsyncClient, _: Service) -> None:
        monkeypatch.setattr(embedder, "tokens", slow)
        monkeypatch.setattr(writer, "tokens", slow)
        large = "tensor " * 10_000
        posts = [client.post("/embed", json={"inputs": large}) for _ in range(2)]
        posts += [client.post("/generate", json={"prompt": large}) for _ in range(2)]
        tasks = [asyncio.create_task(post) for post in posts]
        for _ in tasks:
            while not busy.acquire(blocking=False):
                await asyncio.sleep(0.001)
        answer = await client.get("/health")
        assert answer.status_code == 200
        assert not any(task.done() for task in tasks)
        go.set()
        assert [(await task).status_code for task in tasks] == [200] * 4

    with_service([embedder, writer], body)


def test_trained_checkpoint_is_served(train: Train, text: Path, tmp_path: Path) -> None:
    flags = ("--data", str(text), "--sequence-length", "32", "--batch", "2", "--steps", "2")
    assert train(*flags, "--backend", "eager", "--checkpoint-dir", str(tmp_path))[0] == 0
    trained = GenerationEngine(str(tmp_path), "eager", None, CPU)
    fresh = GenerationEngine("llama-tiny", "eager", None, CPU)
    assert trained.limit == 32
    tokens = [trained.tokens("The 5th")]
    assert not torch.equal(trained._logits(tokens, 2, 16), fresh._logits(tokens, 2, 16))


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--embed", "none"), "FlagError: nothing to serve"),
        (("--embed", "/no/such"), "ModelError: --embed /no/such: no such folder"),
        (
            ("--generate", "/no/such", "--embed", "none"),
            "ModelError: --generate /no/such: no preset",
        ),
        (("--lengths", "32,16"), "FlagError: --lengths must be ascending numbers"),
        (("--batch-sizes", "1,2,4", "--lengths", "8,16,32"), "FlagError: --batch-sizes times"),
        (("--port", "99999"), "FlagError: cannot listen on --host 127.0.0.1 --port 99999"),
        (("--queue", "0"), "FlagError: --queue must be positive"),
        (("--backend", "neuron"), "FlagError: --backend neuron needs torch-neuronx"),
    ],
)
def test_bad_flags_are_named_errors(
    flags: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert serve.main(["--port", "0", *flags]) == 1
    assert message in capsys.readouterr().err


def test_missing_extra_is_a_named_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    monkeypatch.delitem(sys.modules, "trnx.jobs.server", raising=False)
    assert serve.main(["--port", "0"]) == 1
    assert (
        "MissingJobsExtraError: this job needs the package uvicorn: pip install 'trnx[jobs]'"
        in capsys.readouterr().err
    )


def load_test(*flags: str) -> tuple[int, dict[str, Any]]:
    """scripts/bench/serve.py; its status and its object."""
    command = [sys.executable, str(ROOT / "scripts/bench/serve.py"), "--json", *flags]
    done = subprocess.run(command, capture_output=True, text=True, timeout=500, check=False)
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout.splitlines()[-1])


def assert_bars(status: int, seen: dict[str, Any]) -> None:
    assert status == 0, seen
    assert seen["bars_hold"]
    assert seen["clients"] == seen["drained"] == 64
    assert seen["errors"] == seen["drain_errors"] == {}
    assert seen["bad_answered_wrongly"] == []
    assert seen["bad_requests"] >= 30
    assert seen["requests"] + seen["streams"] >= 64
    assert seen["p99_seconds"] > 0
    assert seen["exit_status"] == seen["cut"] == 0
    assert seen["nki_share"] >= 0.9


def test_64_clients_for_a_short_time() -> None:
    assert_bars(*load_test("--seconds", "8", "--stream-share", "0.3"))


@pytest.mark.slow
def test_64_clients_for_a_minute() -> None:
    assert_bars(*load_test("--seconds", "60"))


def test_signal_while_shapes_are_compiled_ends_the_service() -> None:
    command = [sys.executable, str(ROOT / "scripts/jobs/serve.py"), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["event"] == "listening"
        process.send_signal(signal.SIGTERM)
        stopped = json.loads(process.stdout.readline())
        assert process.wait(60) == 0
    assert stopped == {"event": "stopped", "answered": 0, "cut": 0, "ready": False}
