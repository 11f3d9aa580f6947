"""Writes the chart's schema of `config.defaults`, `policy`, `services` and `routes`, from Oncegate's own schema.

    oncegate schema | python3 deploy/helm/schema.py            writes oncegate/values.schema.json
    oncegate schema | python3 deploy/helm/schema.py --check    exits with 1 if the file would change
"""

import json
import pathlib
import sys

FILE = pathlib.Path(__file__).parent / "oncegate/values.schema.json"


def show(name, definition):
    """A definition with one line for each property: a changed option is one changed line."""
    properties = definition.pop("properties", {})
    lines = [f"\n        {json.dumps(key)}: {json.dumps(value, ensure_ascii=False)}" for key, value in properties.items()]
    tail = f', "properties": {{{",".join(lines)}\n      }}}}' if lines else "}"
    return f'    "{name}": {json.dumps(definition, ensure_ascii=False)[:-1]}{tail}'


def main():
    # JSON Schema had `definitions` until draft 7, which Helm reads.
    schema = json.loads(sys.stdin.read().replace("#/$defs/", "#/definitions/"))
    text = FILE.read_text(encoding="utf-8")
    definitions = json.loads(text)["definitions"]
    definitions.update(schema["$defs"], policy=schema["properties"]["policy"])
    definitions.update({name: schema["properties"][name]["items"] for name in ("services", "routes")})
    shown = ",\n".join(show(name, definition) for name, definition in definitions.items())
    written_by_hand = text[: text.index('  "definitions": {\n')]
    new = f'{written_by_hand}  "definitions": {{\n{shown}\n  }}\n}}\n'
    if "--check" not in sys.argv:
        FILE.write_text(new, encoding="utf-8")
    elif new != text:
        sys.exit(f"{FILE} is old: run `oncegate schema | python3 deploy/helm/schema.py`")


main()
