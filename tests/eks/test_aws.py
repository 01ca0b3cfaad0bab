"""What asks AWS, against moto: digests, the cache on S3, facts of instance types."""

from __future__ import annotations

import hashlib
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Any

import boto3
import pytest
import yaml
from botocore.stub import Stubber
from moto import mock_aws
from typer.testing import CliRunner

from trnx.eks import cache_run, s3_cache
from trnx.eks.cli import app
from trnx.eks.cluster.ec2 import describe, differences
from trnx.eks.cluster.ecr import with_digest
from trnx.eks.errors import AwsError
from trnx.eks.instances import INSTANCES, instance_from_facts

EXAMPLES = Path(__file__).resolve().parents[2] / "scripts/eks/examples"
REGISTRY = "111122223333.dkr.ecr.us-west-2.amazonaws.com"
REGION = "us-west-2"

runner = CliRunner()


@pytest.fixture
def aws(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Services in memory, and credentials that are none."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    monkeypatch.setenv("AWS_DEFAULT_REGION", REGION)
    with mock_aws():
        yield


def _push(tag: str, name: str = "trnx") -> str:
    ecr = boto3.client("ecr", region_name=REGION)
    ecr.create_repository(repositoryName=name, registryId="111122223333")
    manifest = json.dumps(
        {
            "schemaVersion": 2,
            "mediaType": "application/vnd.docker.distribution.manifest.v2+json",
            "config": {"digest": f"sha256:{hashlib.sha256(tag.encode()).hexdigest()}"},
            "layers": [],
        }
    )
    ecr.put_image(
        repositoryName=name, imageManifest=manifest, imageTag=tag, registryId="111122223333"
    )
    (image,) = ecr.describe_images(repositoryName=name, registryId="111122223333")["imageDetails"]
    return str(image["imageDigest"])


@pytest.mark.usefixtures("aws")
def test_digest_of_a_tag() -> None:
    digest = _push("2026.11-sdk2.33.0")
    image = f"{REGISTRY}/trnx:2026.11-sdk2.33.0"
    assert with_digest(image) == f"{image}@{digest}"
    assert with_digest(f"{image}@{digest}") == f"{image}@{digest}"
    result = runner.invoke(
        app, ["render", str(EXAMPLES / "kernel.yaml"), "--resolve-digest", "--json"]
    )
    assert result.exit_code == 0
    assert f"{image}@{digest}" in result.stdout


@pytest.mark.usefixtures("aws")
@pytest.mark.parametrize(
    ("image", "message"),
    [
        (f"{REGISTRY}/trnx:missing", "has no tag missing"),
        (f"{REGISTRY}/other:1", "has no ECR repository other"),
        (f"{REGISTRY}/trnx", "no tag"),
        ("public.ecr.aws/neuron/x:1", "private ECR"),
        ("docker.io/library/busybox:1", "private ECR"),
    ],
)
def test_digests_that_there_are_not(image: str, message: str) -> None:
    _push("1")
    with pytest.raises(AwsError, match=message):
        with_digest(image)


def test_no_credentials(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    with pytest.raises(AwsError, match=r"no AWS credentials.*aws sso login"):
        with_digest(f"{REGISTRY}/trnx:1")


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("ExpiredTokenException", "have expired"),
        ("AccessDeniedException", "IAM policy"),
        ("ThrottlingException", "ThrottlingException: no"),
    ],
)
def test_what_aws_refuses(code: str, message: str) -> None:
    from botocore.exceptions import ClientError

    from trnx.eks.aws_client import guard

    error: Any = {"Error": {"Code": code, "Message": "no"}}
    with pytest.raises(AwsError, match=message), guard("ECR"):
        raise ClientError(error, "DescribeImages")


@pytest.fixture
def bucket(aws: None) -> str:  # noqa: ARG001
    boto3.client("s3", region_name="us-east-1").create_bucket(Bucket="caches")
    return "s3://caches/neff/v1"


def _keys() -> list[str]:
    answer = boto3.client("s3", region_name="us-east-1").list_objects_v2(Bucket="caches")
    return [item["Key"] for item in answer.get("Contents", [])]


def test_a_cache_goes_to_s3_and_comes_back(bucket: str, tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    (here / "ab/cd").mkdir(parents=True)
    (here / "ab/cd/abcd.neff").write_bytes(b"neff" * 1000)
    (here / "ab/cd/half.tmp").write_bytes(b"half")
    assert s3_cache.store(here, bucket) == 1
    assert _keys() == ["neff/v1/ab/cd/abcd.neff"]
    assert s3_cache.store(here, bucket) == 0
    assert s3_cache.fetch(bucket, there) == 1
    assert (there / "ab/cd/abcd.neff").read_bytes() == b"neff" * 1000
    assert s3_cache.fetch(bucket, there) == 0
    assert [path.name for path in there.rglob("*") if path.is_file()] == ["abcd.neff"]


def test_generated_kernels_are_neither_stored_nor_fetched(bucket: str, tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    for name in ("trnx/source/ab/abcd.json", "trnx/plan/ab/abcd.json"):
        (here / name).parent.mkdir(parents=True)
        (here / name).write_text("{}")
    assert s3_cache.store(here, bucket) == 1
    assert _keys() == ["neff/v1/trnx/plan/ab/abcd.json"]
    s3 = boto3.client("s3", region_name="us-east-1")
    for key in ("trnx/source/cd/evil.json", "./trnx/./source/cd/evil.json"):
        s3.put_object(Bucket="caches", Key=f"neff/v1/{key}", Body=b"{}")
    assert s3_cache.fetch(bucket, there) == 1
    found = [path.relative_to(there).as_posix() for path in there.rglob("*") if path.is_file()]
    assert found == ["trnx/plan/ab/abcd.json"]


def test_keys_that_lead_elsewhere_are_left_out(bucket: str, tmp_path: Path) -> None:
    s3 = boto3.client("s3", region_name="us-east-1")
    for key in ("neff/v1/../../evil", "neff/v1//abs/evil", "neff/v1/folder/", "neff/v10/other"):
        s3.put_object(Bucket="caches", Key=key, Body=b"x")
    assert s3_cache.fetch(bucket, tmp_path / "cache") == 0
    assert list(tmp_path.rglob("*evil*")) == []


@pytest.mark.usefixtures("aws")
def test_a_bucket_that_is_not_there(tmp_path: Path) -> None:
    (tmp_path / "a.neff").touch()
    for copy in (
        lambda: s3_cache.fetch("s3://none/x", tmp_path),
        lambda: s3_cache.store(tmp_path, "s3://none/x"),
    ):
        with pytest.raises(AwsError, match="NoSuchBucket"):
            copy()
    with pytest.raises(AwsError, match="no address on S3"):
        s3_cache.fetch("https://none/x", tmp_path)


COMPILE = """
import os, pathlib, sys
shared = pathlib.Path(sys.argv[1])
local = pathlib.Path(os.environ["TORCH_NEURONX_NEFF_LOCAL_CACHE_DIR"])
for name in sys.argv[2:]:
    local.mkdir(exist_ok=True); (local / name).write_text(name); (shared / name).write_text(name)
"""


def test_the_cache_around_a_command(
    bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def run(place: str, *names: str) -> Any:
        cache = tmp_path / place / "cache"
        monkeypatch.setenv("TORCH_NEURONX_NEFF_LOCAL_CACHE_DIR", str(tmp_path / place / "local"))
        command = [sys.executable, "-c", COMPILE, str(cache), *names]
        flags = [f"--folder={cache}", f"--s3={bucket}", "--must-store", "--", *command]
        assert cache_run.main(flags) == 0
        return cache_run.parse_line(capfd.readouterr().out.splitlines()[-1])

    first = run("one", "a.neff", "b.neff")
    assert (first["neffs_before"], first["neffs_after"]) == (0, 2)
    assert (first["hits"], first["misses"], first["stored"]) == (0, 2, 2)
    second = run("two", "b.neff", "c.neff")
    assert (second["fetched"], second["hits"], second["misses"], second["stored"]) == (2, 1, 1, 1)


@pytest.mark.usefixtures("aws")
def test_a_cache_that_cannot_be_reached_costs_no_job(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    flags = [f"--folder={tmp_path / 'cache'}", "--s3=s3://none/x"]
    command = ["--", sys.executable, "-c", "import sys; sys.exit(int(sys.argv[1]))"]
    assert cache_run.main([*flags, *command, "0"]) == 0
    assert cache_run.main([*flags, "--must-store", *command, "0"]) == 1
    assert cache_run.main([*flags, "--must-store", *command, "7"]) == 7
    assert "cache_run: warning: " in capfd.readouterr().err
    assert cache_run.main([f"--folder={tmp_path}", "--", "no-such-program"]) == 127


STOPPED = """
import pathlib, signal, sys, time
def stop(*_):
    pathlib.Path(sys.argv[1], "late.neff").touch()
    sys.exit(75)
signal.signal(signal.SIGTERM, stop)
print("ready", flush=True)
time.sleep(60)
"""


def test_sigterm_reaches_the_command_and_the_cache_is_counted(tmp_path: Path) -> None:
    command = [sys.executable, "-c", STOPPED, str(tmp_path)]
    runs = [sys.executable, "-m", "trnx.eks.cache_run", f"--folder={tmp_path}", "--", *command]
    with subprocess.Popen(runs, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGTERM)
        report = cache_run.parse_line(process.stdout.readline())
        assert process.wait() == 75
    assert report is not None
    assert (report["exit_status"], report["neffs_after"]) == (75, 1)


def test_signals_end_as_shells_say_it(tmp_path: Path) -> None:
    code = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
    assert cache_run.main([f"--folder={tmp_path}", "--", sys.executable, "-c", code]) == 137


def test_instance_types_are_as_ec2_says() -> None:
    names = [name for name in INSTANCES if name != "trn2u.48xlarge"]
    with mock_aws():
        assert {
            name: differences(INSTANCES[name], facts)
            for name, facts in describe(names, REGION).items()
        } == {name: [] for name in names}


def test_instance_command(aws: None) -> None:  # noqa: ARG001
    shown = runner.invoke(app, ["instance", "trn2.3xlarge"])
    assert shown.exit_code == 0
    assert yaml.safe_load(shown.stdout) == {
        "instance": "trn2.3xlarge",
        "instance_facts": {
            "devices": 1,
            "physical_cores_per_device": 8,
            "default_lnc": 2,
            "efa": 1,
        },
    }
    for name, message in (("m5.large", "no Neuron devices"), ("trn9.none", "InvalidInstanceType")):
        failed = runner.invoke(app, ["instance", name, "--json"])
        assert isinstance(failed.exception, AwsError)
        assert message in str(failed.exception)


def _checks(*arguments: str) -> tuple[int, dict[str, dict[str, str]], dict[str, Any]]:
    result = runner.invoke(app, ["instances", "--check", *arguments, "--json"])
    assert isinstance(result.exception, SystemExit | None), result.exception
    answer = json.loads(result.stdout.splitlines()[-1])
    return result.exit_code, {item["name"]: item for item in answer["checks"]}, answer


def test_table_of_instance_types_has_source_and_date() -> None:
    answer = json.loads(runner.invoke(app, ["instances", "--json"]).stdout)
    assert "checks" not in answer
    names = {row["name"] for row in answer["instances"]}
    assert names > set(INSTANCES)
    families = {name.partition(".")[0] for name in names}
    families |= {row["generation"] for row in answer["unnamed"]}
    assert families == {"trn1", "trn1n", "trn2", "trn2u", "trn3", "inf2"}
    for row in [*answer["instances"], *answer["unnamed"]]:
        assert row["source"]
        assert date.fromisoformat(row["read"]).year >= 2026
    assert {row["name"] for row in answer["instances"] if row["jobs"]} == set(INSTANCES)
    shown = runner.invoke(app, ["instances"]).stdout
    assert all(name in shown for name in names | {"trn3"})


@pytest.mark.usefixtures("aws")
def test_the_whole_table_is_held_against_ec2() -> None:
    code, found, answer = _checks()
    assert (code, answer["ok"]) == (0, True)
    silent = {name for name, item in found.items() if item["result"] != "same"}
    # moto's copy of EC2's answer for trn2u says nothing of devices.
    assert silent == {"trn2u.48xlarge"}
    assert found["trn2u.48xlarge"]["result"] == "unknown"
    assert "same     inf2.48xlarge" in runner.invoke(app, ["instances", "--check"]).stdout


def test_what_ec2_says_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    def answer(name: str, count: int, efa: int) -> dict[str, Any]:
        devices = [{"Count": count, "CoreInfo": {"Count": 8, "Version": 3}, "Name": "Trainium2"}]
        network = {"EfaInfo": {"MaximumEfaInterfaces": efa}}
        info = {"NeuronDevices": devices}
        return {"InstanceType": name, "NeuronInfo": info, "NetworkInfo": network}

    keys = {"aws_access_key_id": "testing", "aws_secret_access_key": "testing"}
    ec2 = boto3.client("ec2", region_name=REGION, **keys)
    filters = [{"Name": "instance-type", "Values": ["trn*", "inf2.*"]}]
    pages = [
        {"InstanceTypes": [answer("trn2.48xlarge", 8, 32)], "NextToken": "more"},
        {"InstanceTypes": [answer("trn3.new", 4, 8), answer("trn2.3xlarge", 1, 1)]},
    ]
    monkeypatch.setattr("trnx.eks.cluster.ec2.client", lambda *_: ec2)
    with Stubber(ec2) as stub:
        stub.add_response("describe_instance_types", pages[0], {"Filters": filters})
        stub.add_response(
            "describe_instance_types", pages[1], {"Filters": filters, "NextToken": "more"}
        )
        code, found, whole = _checks()
    assert (code, whole["ok"]) == (1, False)
    assert found["trn2.48xlarge"] == {
        "name": "trn2.48xlarge",
        "result": "differs",
        "message": "devices: 16 here, 8 by EC2; EFA interfaces: 16 here, 32 by EC2",
    }
    assert found["trn2.3xlarge"]["result"] == "same"
    assert found["trn3.new"]["result"] == "new"
    assert "trnx eks instance trn3.new" in found["trn3.new"]["message"]
    assert found["inf2.xlarge"]["message"] == "the region does not offer it"


def test_checking_without_credentials(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    for arguments in (["--json"], []):
        failed = runner.invoke(app, ["instances", "--check", "--region", REGION, *arguments])
        assert isinstance(failed.exception, AwsError)
        assert "no AWS credentials" in str(failed.exception)
        assert "aws sso login" in str(failed.exception)


def test_differences_are_told() -> None:
    ours = INSTANCES["trn2.48xlarge"]
    theirs = instance_from_facts("trn2.48xlarge", 8, 8, 2, 16)
    assert theirs is not None
    assert differences(ours, theirs) == ["devices: 16 here, 8 by EC2"]
