"""Secrets in places of manifests that nobody thinks of: each is told, and none is shown."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from trnx.eks.cli import app

# Nobody's; by its name or place alone, as it has no form.
PLAIN = "Zq7-correct-horse-batt3ry"
BASIC = base64.b64encode(f"user:{PLAIN}".encode()).decode()
DSN = "0123456789abcdef" * 2
Manifest = dict[str, Any]


def pod(**container: Any) -> Manifest:
    spec = {"containers": [{"name": "c", "image": "a.b/c:1", **container}]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": spec}


def shell(line: str) -> Manifest:
    return pod(command=["sh", "-c", line])


def get(**http: Any) -> Manifest:
    return pod(livenessProbe={"httpGet": {"port": 80, **http}})


def variable(name: str, value: str) -> Manifest:
    return pod(env=[{"name": name, "value": value}])


def thing(kind: str, version: str = "v1", **body: Any) -> Manifest:
    return {"apiVersion": version, "kind": kind, "metadata": {"name": "t"}, **body}


def config(name: str, text: str) -> Manifest:
    return thing("ConfigMap", data={name: text})


def noted(key: str, value: Any) -> Manifest:
    made = pod()
    made["metadata"]["annotations"] = {key: json.dumps(value)}
    return made


def node_class(**more: Any) -> Manifest:
    terms = [{"id": "x-1"}]
    spec = {"role": "r", "amiSelectorTerms": [{"alias": "al2023@latest"}]}
    spec |= {"subnetSelectorTerms": terms, "securityGroupSelectorTerms": terms}
    return thing("EC2NodeClass", "karpenter.k8s.aws/v1", spec={**spec, **more})


def volume(**more: Any) -> Manifest:
    spec = {"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteMany"], **more}
    return thing("PersistentVolume", spec=spec)


APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
PLACES: dict[str, Manifest] = {
    "a header of a probe": get(path="/", httpHeaders=[{"name": "X-Api-Key", "value": PLAIN}]),
    "a probe's path": get(path=f"/health?token={PLAIN}"),
    "a working folder": pod(workingDir=f"/x?password={PLAIN}"),
    "a hook": pod(
        lifecycle={"preStop": {"exec": {"command": ["sh", "-c", f"PW_TOKEN={PLAIN} x"]}}}
    ),
    "the object as applied": noted(APPLIED, {"env": [{"name": "HF_TOKEN", "value": PLAIN}]}),
    "an annotation": noted("alb.ingress.kubernetes.io/auth-idp-oidc", {"clientSecret": PLAIN}),
    "netrc": config(".netrc", f"machine api.wandb.ai login user password {PLAIN}"),
    "settings": config("a.ini", f"[db]\npassword = {PLAIN}\n"),
    "settings in YAML": config("a.yaml", f"db:\n  password: '{PLAIN}'\n"),
    "settings in XML": config("a.xml", f"<server><password>{PLAIN}</password></server>"),
    "pgpass": config(".pgpass", f"db.example.com:5432:runs:me:{PLAIN}"),
    "docker's logins": config("config.json", json.dumps({"auths": {"r": {"auth": BASIC}}})),
    "user data": node_class(userData=f"#!/bin/bash\nexport HF_TOKEN={PLAIN}\n"),
    "tags": node_class(tags={"apiToken": PLAIN}),
    "a signed address": variable("DATA", f"https://b.example.com/x?X-Amz-Signature={PLAIN}"),
    "a shared access signature": variable("DATA", f"https://b.example.com/x?sv=1&sig={PLAIN}"),
    "a connection string": variable("DB", f"Server=a;User Id=me;Password={PLAIN};"),
    "an account key": variable("AZ", f"AccountName=x;AccountKey={PLAIN}==;"),
    "JDBC": variable("DB", f"jdbc:postgresql://h/db?user=u&password={PLAIN}"),
    "Redis without a user": variable("R", f"redis://:{PLAIN}@h:6379/0"),
    "a DSN": variable("SENTRY_DSN", f"https://{DSN}@o1.ingest.sentry.io/1"),
    "docker login": shell(f"echo {PLAIN} | docker login -u me --password-stdin r"),
    "git over https": shell(f"git clone https://x-access-token:{PLAIN}@github.com/a/b"),
    "git's header": shell(f"git -c http.extraheader='AUTHORIZATION: basic {BASIC}' clone x"),
    "a program": pod(command=["python", "-c", f"os.environ['HF_TOKEN']='{PLAIN}'"]),
    "a call": pod(command=["python", "-c", f"login(token='{PLAIN}')"]),
    "attributes of a volume": volume(
        csi={"driver": "d", "volumeHandle": "h", "volumeAttributes": {"authToken": PLAIN}}
    ),
    "options of a mount": volume(
        nfs={"server": "h", "path": "/"}, mountOptions=[f"password={PLAIN}"]
    ),
    "parameters of storage": thing(
        "StorageClass", "storage.k8s.io/v1", provisioner="x", parameters={"password": PLAIN}
    ),
}


def told(manifest: Manifest, folder: Path) -> str:
    file = folder / "manifest.yaml"
    file.write_text(yaml.safe_dump(manifest))
    runner = CliRunner()
    arguments = ((), ("--json",), ("--strict",))
    return "".join(runner.invoke(app, ["validate", str(file), *more]).output for more in arguments)


@pytest.mark.parametrize("name", PLACES)
def test_is_told_and_not_shown(name: str, tmp_path: Path) -> None:
    output = told(PLACES[name], tmp_path)
    assert "plain-secret" in output
    joined = "".join(output.replace("│", "").split())
    for secret in (PLAIN, BASIC, DSN):
        assert secret not in output
        assert secret not in joined


def test_a_key_that_is_a_secret_is_not_shown(tmp_path: Path) -> None:
    output = told(pod(env=[{"name": "DB", "value": "x", PLAIN: "1"}]), tmp_path)
    assert "has no field" in output
    assert PLAIN not in "".join(output.split())


@pytest.mark.parametrize(
    "value",
    [
        "arn:aws:secretsmanager:us-west-2:111122223333:secret:hf",
        "$(HF_TOKEN)",
        "/run/secrets/token",
    ],
)
def test_what_names_a_secret_is_none(value: str, tmp_path: Path) -> None:
    assert "plain-secret" not in told(variable("WHERE", value), tmp_path)
