"""What the API server itself says of manifests: a server-side dry run, nothing is kept."""

from __future__ import annotations

from collections.abc import Sequence

from trnx.eks.cluster.api import Api
from trnx.eks.documents import Manifest
from trnx.eks.errors import AbsentError, ConflictError, Finding, InvalidError, NotInstalledError
from trnx.eks.reading import mapping, title

_FIX = "do what the message says; admission webhooks of the cluster have a say here too"


def check(api: Api, manifests: Sequence[Manifest]) -> list[Finding]:
    """A finding for each manifest that the server refuses.

    Raises:
        ClusterError: the server cannot be asked, or not by this user.
    """
    findings = []
    for manifest in manifests:
        namespace = str(mapping(manifest, "metadata").get("namespace", "default"))
        try:
            api.apply(manifest, namespace, dry_run=True)
        except (AbsentError, ConflictError, InvalidError, NotInstalledError) as error:
            message = f"{type(error).__name__}: {error}"
            findings.append(Finding("server", title(manifest), message, _FIX))
    return findings
