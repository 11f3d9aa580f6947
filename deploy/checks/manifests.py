"""Checks manifests against the schemas of their kinds.

    python3 manifests.py FILE...

Kubernetes' own kinds are checked as each of VERSIONS has them, and custom kinds by custom_kinds.mjs.
"""

import functools
import json
import pathlib
import subprocess
import sys

import kubernetes_validate
import yaml
from kubernetes_validate import utils

# The oldest that the sidecar needs, and a current one.
VERSIONS = ["1.30", "1.37"]
HERE = pathlib.Path(__file__).parent


def is_own(manifest):
    """Whether it is one of Kubernetes' own kinds: of no group, or of one that an API server has without a definition."""
    group = manifest["apiVersion"].rpartition("/")[0]
    return "." not in group or (group.endswith(".k8s.io") and not group.startswith("gateway."))


def check_own(file, manifest):
    for version in VERSIONS:
        try:
            kubernetes_validate.validate(manifest, version, strict=True)
        except (kubernetes_validate.ValidationError, kubernetes_validate.SchemaNotFoundError) as error:
            place = ".".join(map(str, getattr(error, "path", [])))
            yield f"{file}: {manifest['kind']} {manifest['metadata']['name']}: {place}: {error.message} (Kubernetes {version})"


def main():
    # Otherwise it reads all definitions again for each manifest.
    utils.schema_contents = functools.cache(utils.schema_contents)
    read = [
        (file, manifest)
        for file in sys.argv[1:]
        for manifest in yaml.safe_load_all(pathlib.Path(file).read_text(encoding="utf-8"))
        if manifest
    ]
    problems = [problem for file, manifest in read if is_own(manifest) for problem in check_own(file, manifest)]
    custom = [{"file": file, "manifest": manifest} for file, manifest in read if not is_own(manifest)]
    # deploy/checks/run says so where they are not installed.
    if has_schemas := (HERE / "node_modules").is_dir():
        checked = subprocess.run(["node", HERE / "custom_kinds.mjs"], input=json.dumps(custom), capture_output=True, text=True, check=False)
        problems += [checked.stderr.rstrip()] * checked.returncode
    if problems:
        sys.exit("\n".join(problems))
    how = "" if has_schemas else " NOT checked"
    print(f"{len(read) - len(custom)} manifests by Kubernetes {' and '.join(VERSIONS)}, {len(custom)} of custom kinds{how}")


main()
