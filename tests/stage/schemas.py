"""Compares --json output with docs/schema/."""

import json
import pathlib
import sys

from world import Failed

try:
    import jsonschema
except ImportError:
    # Debian's modules, in case another python3 comes first on PATH.
    sys.path.append("/usr/lib/python3/dist-packages")
    try:
        import jsonschema
    except ImportError:
        jsonschema = None

FOLDER = pathlib.Path(__file__).resolve().parents[2] / "docs" / "schema"


def load():
    """Returns all schemas by name."""
    return {path.stem: json.loads(path.read_text()) for path in sorted(FOLDER.glob("*.json"))}


def is_able():
    return jsonschema is not None


def compare(name, document):
    """Raises Failed if `document` does not match docs/schema/NAME.json."""
    schema = json.loads((FOLDER / f"{name}.json").read_text())
    jsonschema.Draft7Validator.check_schema(schema)
    resolver = jsonschema.RefResolver(FOLDER.as_uri() + "/", schema)
    try:
        jsonschema.validate(document, schema, resolver=resolver)
    except jsonschema.ValidationError as error:
        at = "".join(f"[{part!r}]" for part in error.absolute_path)
        raise Failed(f"docs/schema/{name}.json: {error.message[:600]}\nat {at or 'the top'}") from None
