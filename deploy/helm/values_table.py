"""Writes the table of values at the end of the chart's README.md: the paths of values.schema.json, the defaults and comments of values.yaml.

    python3 deploy/helm/values_table.py            writes oncegate/README.md
    python3 deploy/helm/values_table.py --check    exits with 1 if the file would change
"""

import json
import pathlib
import re
import sys

import yaml

CHART = pathlib.Path(__file__).parent / "oncegate"
HEADING = "## Values\n"
# A parent chart's, and one that is refused: no values of this one.
OTHERS = {"global", "enabled", "terminationGracePeriodSeconds"}


def schema_leaves(schema, definitions, path=()):
    """The paths of the schema's values. A table of Oncegate's configuration is one value, and so is what Kubernetes describes."""
    for key, value in schema["properties"].items():
        value = definitions["monitor"] if value.get("$ref") == "#/definitions/monitor" else value
        if "properties" in value:
            yield from schema_leaves(value, definitions, (*path, key))
        elif path or key not in OTHERS:
            yield (*path, key)


def leaves():
    schema = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))
    return list(schema_leaves(schema, schema["definitions"]))


def get(values, path):
    """The value at a path, which must be there."""
    for key in path:
        values = values[key]
    return values


def comments(text):
    """The comment before each key, by the key's path."""
    found, block, stack = {}, [], []
    for line in text.splitlines():
        if comment := re.fullmatch(r" *# ?(.*)", line):
            block.append(comment[1])
        elif key := re.match(r"( *)([\w.]+):", line):
            stack = [*stack[: len(key[1]) // 2], key[2]]
            found[tuple(stack)] = " ".join(block)
            block = []
        else:
            block = []
    return found


def rows(text):
    values, told = yaml.safe_load(text), comments(text)
    shown = set()
    for path in leaves():
        default, meaning = get(values, path), told[path]
        group = path[:-1]
        if group and told[group] and group not in shown:
            shown.add(group)
            if path[-1] == "enabled":
                meaning = f"{told[group]} {meaning}".strip()
            else:
                yield ".".join(group), "", told[group]
        if not meaning:
            sys.exit(f"values.yaml: {'.'.join(path)} has no comment")
        shown_default = json.dumps(default, ensure_ascii=False, separators=(",", ":"))
        # A longer one is read in values.yaml.
        yield ".".join(path), f"`{shown_default}`" if len(shown_default) <= 60 else "", meaning


def main():
    file = CHART / "README.md"
    old = file.read_text(encoding="utf-8")
    table = "".join(f"| `{path}` | {default} | {meaning} |\n" for path, default, meaning in rows((CHART / "values.yaml").read_text(encoding="utf-8")))
    new = f"{old.partition(HEADING)[0]}{HEADING}\n| value | default | meaning |\n|---|---|---|\n{table}"
    if "--check" not in sys.argv:
        file.write_text(new, encoding="utf-8")
    elif new != old:
        sys.exit(f"{file} is old: run `python3 deploy/helm/values_table.py`")


if __name__ == "__main__":
    main()
