"""Follow a Dockerfile's install steps without docker: COPY, and each RUN that calls pip.

    python scripts/install/recipe.py scripts/eks/containers/Dockerfile.cpu FOLDER

makes FOLDER/source, with what COPY names, and FOLDER/venv, a virtual environment in which pip runs.
What trnx depends on is not installed again: a .pth file of the new environment names the folders
that this Python finds packages in. Python does not read the .pth files of such folders, so an
editable install that lies there is not in effect; checks.py makes sure of it.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import venv
from fnmatch import fnmatch
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def instructions(text: str) -> list[tuple[str, str]]:
    """(instruction, arguments) of a Dockerfile; continued lines are joined."""
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n\s*", " ", "\n".join(lines))
    return [
        (name.upper(), rest.strip())
        for name, _, rest in (line.partition(" ") for line in joined.splitlines() if line.strip())
    ]


def copy(dockerfile: Path, steps: list[tuple[str, str]], target: Path) -> None:
    """What COPY copies, less what the .dockerignore file beside the Dockerfile names."""
    ignored = dockerfile.with_name(f"{dockerfile.name}.dockerignore").read_text().split()
    patterns = [pattern.removeprefix("**/") for pattern in ignored]

    def is_ignored(_: str, names: list[str]) -> set[str]:
        return {name for name in names if any(fnmatch(name, pattern) for pattern in patterns)}

    for _, rest in (step for step in steps if step[0] == "COPY"):
        *sources, destination = rest.split()
        for source in sources:
            if source.endswith("/"):
                shutil.copytree(ROOT / source, target / destination, ignore=is_ignored)
            else:
                shutil.copy(ROOT / source, target / destination)


def package_folders() -> list[str]:
    """Where this Python finds installed packages: its own folder, and what .pth files name."""
    bare = [sys.executable, "-I", "-S", "-c", "import json, sys; print(json.dumps(sys.path))"]
    known = json.loads(subprocess.run(bare, capture_output=True, text=True, check=True).stdout)
    return [folder for folder in sys.path[1:] if folder not in known and Path(folder).is_dir()]


def make_environment(folder: Path) -> Path:
    """A virtual environment without packages of its own; its Python."""
    venv.create(folder, symlinks=True)
    python = folder / "bin" / "python"
    ask = [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
    own = Path(subprocess.run(ask, capture_output=True, text=True, check=True).stdout.strip())
    (own / "dependencies.pth").write_text("\n".join(package_folders()) + "\n")
    return python


def main() -> int:
    """Command line: 0 where every step succeeded."""
    dockerfile, folder = Path(sys.argv[1]), Path(sys.argv[2]).resolve()
    steps = instructions(dockerfile.read_text())
    source = folder / "source"
    source.mkdir(parents=True)
    copy(dockerfile, steps, source)
    python = make_environment(folder / "venv")
    environment = {
        **os.environ,
        "PATH": f"{python.parent}{os.pathsep}{os.environ['PATH']}",
        # An option that says "no": 0 is to say no to isolation. setuptools is there already.
        "PIP_NO_BUILD_ISOLATION": "0",
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "PIP_ROOT_USER_ACTION": "ignore",
        "TORCH_INDEX_URL": "",
    }
    runs = [rest for name, rest in steps if name == "RUN" and "pip install" in rest]
    if not any("'.[" in run for run in runs):
        raise SystemExit(f"{dockerfile} has no step that installs trnx")
    for run in runs:
        # The image's /tmp is this folder's.
        command = run.replace("/tmp/", f"{folder}/").replace("pip install", "pip install --quiet")
        subprocess.run(["sh", "-e", "-c", command], cwd=source, env=environment, check=True)
    [command] = [json.loads(rest) for name, rest in steps if name == "CMD"]
    (folder / "command.json").write_text(json.dumps(command))
    return 0


if __name__ == "__main__":
    sys.exit(main())
