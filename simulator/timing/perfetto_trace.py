"""A timeline as a native Perfetto trace: `write_trace`, and `TraceFile` to compose one of several.

Tracks: the critical path by source line; each queue with its instructions, and beneath it what it
waits for; DMA transfers of each ring; live bytes of SBUF and PSUM. An arrow leads from what was
waited for to what waited, and from a source line of the critical path to its instruction. Times
are those of the prediction, rounded to nanoseconds; the argument `picoseconds` of a slice is exact.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from trnx.simulator.costs.cost import COUNT
from trnx.simulator.errors import Location
from trnx.simulator.memory.storage import MemoryRegion
from trnx.simulator.timing.errors import needs
from trnx.simulator.timing.outputs import check_trace_path
from trnx.simulator.timing.schedule import queue_name
from trnx.simulator.timing.timeline import Timeline, wait_name

# Instructions shown of one timeline: the UI slows down beyond some millions of slices.
SHOWN = 200_000

_SEQUENCE = 1
_REGIONS = (MemoryRegion.sbuf, MemoryRegion.psum)


def _nanoseconds(ps: int) -> int:
    return (ps + 500) // 1000


class TraceFile:
    """Writes packets as they come; names and source lines are stored once. A context manager."""

    def __init__(self, path: Path) -> None:
        with needs("perfetto", "a trace"):
            from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as protos
            from perfetto.trace_builder.proto_builder import StreamingTraceProtoBuilder
        check_trace_path(path)
        self._event = protos.TrackEvent
        self._protos = protos
        self._file = path.open("wb")
        self._builder = StreamingTraceProtoBuilder(self._file)
        self._interned: dict[tuple[str, object], int] = {}
        self._tracks = 0
        self._flows = 0
        self._is_first = True

    def __enter__(self) -> TraceFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:  # fmt: skip
        self._file.close()

    def track(self, name: str, parent: int = 0, unit: str | None = None) -> int:
        """A new track beneath `parent`, after its siblings; a counter of `unit` where given."""
        self._tracks += 1
        packet = self._builder.create_packet()
        track = packet.track_descriptor
        track.uuid = self._tracks
        track.name = name
        track.sibling_order_rank = self._tracks
        track.child_ordering = self._protos.TrackDescriptor.EXPLICIT
        if parent:
            track.parent_uuid = parent
        if unit is not None:
            track.counter.unit_name = unit
        self._builder.write_packet(packet)
        return self._tracks

    def new_flow(self) -> int:
        """The number of a new arrow."""
        self._flows += 1
        return self._flows

    def slice(
        self,
        track: int,
        name: str,
        start_ps: int,
        end_ps: int,
        location: Location | None = None,
        *,
        flows_out: Iterable[int] = (),
        flows_in: Iterable[int] = (),
        **arguments: int | str,
    ) -> None:
        """One slice; those of a track come in order and do not overlap."""
        packet = self._packet(start_ps, track, self._event.TYPE_SLICE_BEGIN)
        event = packet.track_event
        event.name_iid = self._intern(packet, "event_names", name)
        if location is not None:
            event.source_location_iid = self._intern(packet, "source_locations", location)
        event.flow_ids.extend(flows_out)
        event.terminating_flow_ids.extend(flows_in)
        for key, value in {**arguments, "picoseconds": end_ps - start_ps}.items():
            annotation = event.debug_annotations.add()
            annotation.name_iid = self._intern(packet, "debug_annotation_names", key)
            if isinstance(value, int):
                annotation.int_value = value
            else:
                annotation.string_value = value
        self._builder.write_packet(packet)
        self._builder.write_packet(self._packet(end_ps, track, self._event.TYPE_SLICE_END))

    def count(self, track: int, ps: int, value: int) -> None:
        """The value of a counter from now on."""
        packet = self._packet(ps, track, self._event.TYPE_COUNTER)
        packet.track_event.counter_value = value
        self._builder.write_packet(packet)

    def _packet(self, ps: int, track: int, kind: int) -> Any:
        packet = self._builder.create_packet()
        packet.timestamp = _nanoseconds(ps)
        packet.trusted_packet_sequence_id = _SEQUENCE
        flags = self._protos.TracePacket
        packet.sequence_flags = flags.SEQ_NEEDS_INCREMENTAL_STATE
        if self._is_first:
            packet.sequence_flags |= flags.SEQ_INCREMENTAL_STATE_CLEARED
            self._is_first = False
        packet.track_event.type = kind
        packet.track_event.track_uuid = track
        return packet

    def _intern(self, packet: Any, column: str, value: str | Location) -> int:
        """The number of a name, which the packet that uses it first defines."""
        key = (column, value)
        known = self._interned.get(key)
        if known is not None:
            return known
        number = self._interned[key] = len(self._interned) + 1
        entry = getattr(packet.interned_data, column).add()
        entry.iid = number
        if isinstance(value, Location):
            entry.file_name = value.file
            entry.line_number = value.line
            entry.function_name = value.function
        else:
            entry.name = value
        return number


def write_trace(path: Path, name: str, target: str, parts: Sequence[tuple[Timeline, int]]) -> Path:
    """Timelines, each from its offset in ps, as one trace. Raises ProfileDependencyError."""
    with TraceFile(path) as file:
        tracks = TimelineTracks(file, file.track(f"{name} on {target}"), parts)
        for timeline, offset in parts:
            tracks.add(timeline, offset)
    return path


class TimelineTracks:
    """The tracks of timelines that follow each other; `add` in the order of time."""

    def __init__(self, file: TraceFile, root: int, parts: Sequence[tuple[Timeline, int]]) -> None:
        self._file = file
        self._path = file.track("critical path", root)
        queues = sorted({q for timeline, _ in parts for q in set(timeline.schedule.queue)})
        cores = sorted({q // COUNT for q in queues})
        self._has_cores = len(cores) > 1
        self._root = root
        self._queues: dict[int, int] = {}
        self._waits: dict[int, int] = {}
        for queue in queues:
            named = queue_name(queue, self._has_cores)
            self._queues[queue] = file.track(named, root)
            self._waits[queue] = file.track(f"{named} waits", root)
        self._lanes: dict[int, list[int]] = {}
        self._memory = {
            (core, region): file.track(self._memory_name(core, region), root, "bytes/partition")
            for core in cores
            for region in _REGIONS
        }

    def _memory_name(self, core: int, region: MemoryRegion) -> str:
        return f"core {core} {region.value}" if self._has_cores else region.value

    def add(self, timeline: Timeline, offset: int) -> None:
        """Everything of one timeline, of which the first SHOWN instructions."""
        shown = min(len(timeline.schedule.order), SHOWN)
        out, into = self._add_waits(timeline, offset, shown)
        self._add_path(timeline, offset, shown, into)
        self._add_queues(timeline, offset, shown, out, into)
        self._add_transfers(timeline, offset, shown)
        for (core, region), track in self._memory.items():
            for ps, value in zip(*timeline.memory_of(core, region), strict=True):
                self._file.count(track, offset + ps, value)
            self._file.count(track, offset + timeline.schedule.total_ps, 0)

    def _add_waits(
        self, timeline: Timeline, offset: int, shown: int
    ) -> tuple[dict[int, list[int]], dict[int, list[int]]]:
        """Waits as slices; the arrows that leave and that reach each position."""
        out: dict[int, list[int]] = {}
        into: dict[int, list[int]] = {}
        for wait in timeline.waits():
            if wait.position >= shown:
                break
            text = "start"
            if wait.cause >= 0:
                other = timeline.schedule.queue[wait.cause]
                text = wait_name(wait.reason, other, self._has_cores)
                if wait.cause < shown:
                    flow = self._file.new_flow()
                    out.setdefault(wait.cause, []).append(flow)
                    into.setdefault(wait.position, []).append(flow)
            self._file.slice(
                self._waits[wait.queue], text, offset + wait.start, offset + wait.end,
                timeline.location(wait.position),
            )  # fmt: skip
        return out, into

    def _add_path(
        self, timeline: Timeline, offset: int, shown: int, into: dict[int, list[int]]
    ) -> None:
        """The critical path, each stretch of one source line as one slice, with an arrow to its
        first instruction.
        """
        schedule = timeline.schedule
        path = [(p, until) for p, until in reversed(schedule.critical_path()) if p < shown]
        for place, stretch in itertools.groupby(path, lambda step: timeline.location(step[0])):
            steps = list(stretch)
            first, until = steps[0][0], steps[-1][1]
            flow = self._file.new_flow()
            into.setdefault(first, []).append(flow)
            self._file.slice(
                self._path, f"{Path(place.file).name}:{place.line}",
                offset + schedule.start[first], offset + until, place, flows_out=(flow,),
                queue=queue_name(schedule.queue[first], self._has_cores),
                instruction=timeline.opcode(first),
            )  # fmt: skip

    def _add_queues(
        self,
        timeline: Timeline,
        offset: int,
        shown: int,
        out: dict[int, list[int]],
        into: dict[int, list[int]],
    ) -> None:
        schedule = timeline.schedule
        for position in range(shown):
            start = schedule.start[position]
            self._file.slice(
                self._queues[schedule.queue[position]],
                timeline.opcode(position),
                offset + start,
                offset + schedule.free[position],
                timeline.location(position),
                flows_out=out.get(position, ()),
                flows_in=into.get(position, ()),
                index=schedule.order[position],
                visible_after_ns=_nanoseconds(schedule.visible[position] - start),
            )
        rest = len(schedule.order) - shown
        if rest:
            self._file.slice(
                self._path, f"{rest} more instructions are not shown",
                offset + schedule.start[shown], offset + schedule.total_ps,
            )  # fmt: skip

    def _add_transfers(self, timeline: Timeline, offset: int, shown: int) -> None:
        """From first to last byte. Transfers of a ring overlap, so each goes to the first of the
        ring's tracks that is free.
        """
        schedule = timeline.schedule
        moves = [p for p in range(shown) if schedule.begin[p] >= 0]
        ends: dict[int, list[int]] = {}
        for position in sorted(moves, key=lambda p: (schedule.begin[p], p)):
            queue = schedule.queue[position]
            begin, last = schedule.begin[position], schedule.last[position]
            busy = ends.setdefault(queue, [])
            lane = next((i for i, end in enumerate(busy) if end <= begin), len(busy))
            busy[lane : lane + 1] = [last]
            cost = schedule.cost(position)
            self._file.slice(
                self._lane(queue, lane), timeline.opcode(position), offset + begin, offset + last,
                timeline.location(position), bytes=cost.dma_bytes, hbm_bytes=cost.hbm_bytes,
                engines=cost.dma_engines,
            )  # fmt: skip

    def _lane(self, queue: int, lane: int) -> int:
        lanes = self._lanes.setdefault(queue, [])
        while len(lanes) <= lane:
            name = f"{queue_name(queue, self._has_cores)} transfers"
            lanes.append(self._file.track(name, self._root))
        return lanes[lane]
