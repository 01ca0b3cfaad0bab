"""Make the schemas of custom resources that trnx ships, from a folder of whole ones.

    python scripts/reduce_schemas.py FOLDER

FOLDER holds CustomResourceDefinitions (*.yaml) of the projects that scripts/eks/crds/README.md
names, or schemas of them (*.openapi.json.gz). Equal input gives equal bytes.
"""

from __future__ import annotations

import argparse
import gzip
import json
from pathlib import Path

from trnx.eks.fetch_schemas import reduced, write_schema, write_schemas

TARGET = Path(__file__).parent / "eks" / "crds"


def reduce_folder(source: Path, target: Path) -> list[str]:
    """Write the reduced schemas of a folder; their names."""
    names = []
    for path in sorted(source.glob("*.openapi.json.gz")):
        write_schema(reduced(json.loads(gzip.decompress(path.read_bytes()))), target / path.name)
        names.append(path.name)
    for path in sorted(source.glob("*.yaml")):
        names += write_schemas(path.read_text(), target)
    return names


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description="Make the schemas that trnx ships.")
    parser.add_argument("folder", type=Path, help="of whole schemas")
    names = reduce_folder(parser.parse_args().folder, TARGET)
    print(f"{len(names)} schemas in {TARGET}")


if __name__ == "__main__":
    main()
