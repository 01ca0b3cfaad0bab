"""Rules of job files about volumes: what is mounted where, the compile cache, checkpoints."""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Iterator

from trnx.eks.errors import Finding
from trnx.eks.model import Kind, TrnxJob, Volume

# Volumes that the renderer writes.
OWNED_VOLUMES = ("dshm", "neff-local", "neff-cache")
OWNED_MOUNTS = ("/dev/shm", "/var/cache/neff-local", "/var/cache/neff")
S3_DRIVER = "s3.csi.aws.com"
# Folders that an image needs as they are, and those that the kernel makes.
_SYSTEM = ("/bin", "/boot", "/etc", "/lib", "/lib64", "/opt", "/run", "/sbin", "/usr", "/var")
_KERNEL = ("/dev/", "/proc/", "/sys/")
_CHECKPOINTS = ("--checkpoint-dir", "--ckpt-dir")


def _volumes(job: TrnxJob) -> Iterator[Finding]:
    for field, owned in (("name", OWNED_VOLUMES), ("mount", OWNED_MOUNTS)):
        seen = set(owned)
        for index, volume in enumerate(job.volumes):
            value = getattr(volume, field)
            if value in seen:
                yield Finding(
                    "volumes",
                    f"volumes.{index}.{field}",
                    f"{value!r} is taken",
                    f"give the volume another {field}; trnx itself takes {', '.join(owned)}",
                )
            seen.add(value)
    many = max(job.nodes, job.shards, job.replicas) > 1
    for index, volume in enumerate(job.volumes):
        if many and volume.access_mode in ("ReadWriteOnce", "ReadWriteOncePod"):
            yield Finding(
                "access-mode",
                f"volumes.{index}.access_mode",
                f"a {volume.access_mode} claim cannot be mounted by pods on several nodes",
                "take a claim that is ReadWriteMany (FSx for Lustre, EFS), or one pod",
            )
        if not volume.read_only and volume.access_mode == "ReadOnlyMany":
            yield Finding(
                "access-mode",
                f"volumes.{index}.read_only",
                "a ReadOnlyMany claim cannot be written",
                "write read_only: true",
            )


def _paths(job: TrnxJob) -> Iterator[Finding]:
    """Paths mean what they say: no `..` in them, and no volume over a folder of the system."""
    places = [(f"volumes.{index}.mount", volume.mount) for index, volume in enumerate(job.volumes)]
    for field, path in [*places, ("cache", job.cache or "/")]:
        if posixpath.normpath(path) != path:
            yield Finding(
                "volumes",
                field,
                "`.` or `..` in a path leads elsewhere than it seems to",
                f"write {posixpath.normpath(path)}, if that is meant",
            )
    for field, path in places:
        plain = posixpath.normpath(path)
        if plain in _SYSTEM or f"{plain}/".startswith(_KERNEL):
            yield Finding(
                "volumes",
                field,
                f"a volume at {plain} hides what the image or the system has there",
                "mount it at a folder of its own, such as /data",
            )


def _holder(job: TrnxJob, path: str) -> tuple[int, Volume] | None:
    """The volume below whose mount a path lies: the deepest one."""
    found = [
        (index, volume)
        for index, volume in enumerate(job.volumes)
        if f"{path}/".startswith(f"{volume.mount}/")
    ]
    return max(found, key=lambda item: len(item[1].mount), default=None)


def _cache(job: TrnxJob) -> Iterator[Finding]:
    if job.the_cache is None:
        if job.kind == Kind.WARM_CACHE:
            yield Finding(
                "cache",
                "cache",
                "a warm-cache job without a cache keeps nothing",
                "write `cache:`, a path below a volume's mount",
            )
        return
    holder = _holder(job, job.the_cache)
    if holder is None and job.cache_s3:
        return
    if holder is None:
        yield Finding(
            "cache",
            "cache",
            f"{job.the_cache} is below no volume, so it is lost with the pod",
            "put it below the `mount` of one of `volumes`",
        )
        return
    index, volume = holder
    if volume.read_only:
        yield Finding(
            "cache",
            f"volumes.{index}.read_only",
            f"the cache {job.the_cache} must be written",
            "write read_only: false, or take another volume",
        )
    if volume.driver == S3_DRIVER:
        yield Finding(
            "s3-cache",
            f"volumes.{index}.driver",
            "the S3 CSI driver has no rename, which the NEFF cache writes with",
            "take FSx for Lustre or EFS for the cache; S3 is good for read-only weights",
        )


def _checkpoint_folder(job: TrnxJob) -> tuple[int, str] | None:
    """(index in `command`, folder) of the argument that says where checkpoints go."""
    for index, word in enumerate(job.command):
        flag, separator, value = word.partition("=")
        if flag in _CHECKPOINTS and separator:
            return index, value
        if word in _CHECKPOINTS and index + 1 < len(job.command):
            return index + 1, job.command[index + 1]
    return None


def _checkpoints(job: TrnxJob) -> Iterator[Finding]:
    found = _checkpoint_folder(job) if job.kind == Kind.TRAIN else None
    if found is None or "://" in found[1]:
        return
    index, folder = found
    holder = _holder(job, folder.rstrip("/"))
    if holder is None:
        problem = f"{folder} is below no volume: checkpoints are lost with the pod"
        fix = "put it below the `mount` of one of `volumes`"
    elif holder[1].read_only or holder[1].driver == S3_DRIVER:
        problem = f"{folder} is on {holder[1].claim}, where a checkpoint cannot be written whole"
        fix = "take a claim on FSx for Lustre or EFS that is not read_only"
    else:
        return
    yield Finding("checkpoint", f"command.{index}", problem, fix)


STORAGE_RULES: tuple[Callable[[TrnxJob], Iterator[Finding]], ...] = (
    _volumes,
    _paths,
    _cache,
    _checkpoints,
)
