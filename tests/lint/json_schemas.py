#!/usr/bin/env python3
"""Holds JSON documents against docs/schemas/. Usage: json_schemas.py ROOT [FILE...]

Without files: every recorded output in tests/golden that is a document, and every data file that
names a schema; besides, every schema that the sources name has its file, every file is linked from
docs/schemas.md or docs/schemas_tools.md, and none of them lets a field through that it does not
name. With files: these documents.

The schemas are JSON Schema, draft 2020-12. Of its words this validator knows those in WORDS, and
fails on any other, so that no word is ignored silently.
"""
import json
import pathlib
import re
import sys

ROOMS = ("base", "model", "topologies", "plan", "costmodel", "sim", "search", "executor", "cli")
# YAML that people write (topologies/README.md, docs/models/scenario.md); texts that are only
# hashed; the numbers of a page for its own script.
NO_DOCUMENTS = {"topology/1", "scenario/1", "model/1", "program/1", "picture/1"}
ANNOTATIONS = {"$schema", "$id", "$defs", "title", "description"}
WORDS = {"$ref", "type", "const", "enum", "properties", "required", "additionalProperties", "items",
         "minItems", "maxItems", "minimum", "maximum", "minLength", "pattern", "anyOf", "oneOf"}
TYPES = {"object": dict, "array": list, "string": str, "boolean": bool, "null": type(None)}


class Schemas:
    def __init__(self, folder):
        self.files = {f.name: json.loads(f.read_text(encoding="utf-8"))
                      for f in sorted(folder.glob("*.json"))}

    def find(self, reference, home):
        """The schema that "file#/$defs/name" means, and the file it stands in."""
        name, _, path = reference.partition("#")
        home = name or home
        schema = self.files[home]
        for step in path.split("/")[1:]:
            schema = schema[step]
        return schema, home

    def faults(self, value, schema, home, at="$"):
        """What is wrong with a value, as a list of sentences."""
        if "$ref" in schema:
            return self.faults(value, *self.find(schema["$ref"], home), at)
        if not has_type(value, schema.get("type")):
            return [f"{at}: {json.dumps(value)[:60]} is no {schema['type']}"]
        found = [f"{at}: {fault}" for fault in plain_faults(value, schema)]
        for word in ("anyOf", "oneOf"):
            branches = [self.faults(value, s, home, at) for s in schema.get(word, ())]
            fitting = branches.count([])
            if branches and (fitting == 0 or (word == "oneOf" and fitting > 1)):
                found += min(branches, key=len) or [f"{at}: {fitting} alternatives fit"]
        if isinstance(value, dict):
            found += self.object_faults(value, schema, home, at)
        if isinstance(value, list) and "items" in schema:
            for i, item in enumerate(value):
                found += self.faults(item, schema["items"], home, f"{at}[{i}]")
        return found

    def object_faults(self, value, schema, home, at):
        found = [f"{at}: no '{key}'" for key in schema.get("required", ()) if key not in value]
        for key, item in value.items():
            rule = schema.get("properties", {}).get(key, schema.get("additionalProperties", True))
            if rule is False:
                found.append(f"{at}: '{key}' is not documented")
            elif rule is not True:
                found += self.faults(item, rule, home, f"{at}.{key}")
        return found

    def own_faults(self, schema, home, at):
        """Words that are not known, references to nothing, objects that let any field through."""
        found = [f"{home}: {at}: unknown word '{w}'" for w in schema.keys() - ANNOTATIONS - WORDS]
        if "$ref" in schema:
            try:
                self.find(schema["$ref"], home)
            except KeyError:
                found.append(f"{home}: {at}: {schema['$ref']} is nowhere")
        if schema.get("type") == "object" and schema.get("additionalProperties", True) is True:
            found.append(f"{home}: {at}: lets undocumented fields through")
        parts = [(k, schema[k]) for k in ("items", "additionalProperties")
                 if isinstance(schema.get(k), dict)]
        for word in ("properties", "$defs"):
            parts += schema.get(word, {}).items()
        for word in ("anyOf", "oneOf"):
            parts += [(word, s) for s in schema.get(word, ())]
        for name, part in parts:
            found += self.own_faults(part, home, f"{at}.{name}")
        return found

    def document_faults(self, document):
        name = schema_of(document)
        if not name:
            return ["names no schema"]
        home = name.replace("/", "-") + ".json"
        if home not in self.files:
            return [f"no docs/schemas/{home}"]
        return self.faults(document, self.files[home], home)


def has_type(value, kind):
    if kind in ("integer", "number"):
        whole = isinstance(value, int) or (isinstance(value, float) and value.is_integer())
        number = isinstance(value, float) and kind == "number"
        return (whole or number) and not isinstance(value, bool)
    return kind is None or isinstance(value, TYPES[kind])


def plain_faults(value, schema):
    """Of a value by itself; words for another type say nothing of it."""
    if "const" in schema and value != schema["const"]:
        yield f"{value!r} is not {schema['const']!r}"
    if "enum" in schema and value not in schema["enum"]:
        yield f"{value!r} is none of {', '.join(map(str, schema['enum']))}"
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        if value < schema.get("minimum", value):
            yield f"{value} is below {schema['minimum']}"
        if value > schema.get("maximum", value):
            yield f"{value} is above {schema['maximum']}"
    if isinstance(value, str):
        if len(value) < schema.get("minLength", 0):
            yield "is too short"
        if "pattern" in schema and not re.search(schema["pattern"], value):
            yield f"{value!r} does not match {schema['pattern']}"
    if isinstance(value, list):
        if not schema.get("minItems", 0) <= len(value) <= schema.get("maxItems", len(value)):
            yield f"a list of {len(value)}"


def schema_of(document):
    """ "kind/version", or nothing."""
    if not isinstance(document, dict):
        return ""
    name = document.get("schema") or document.get("otherData", {}).get("schema")
    return name.removeprefix("orrery.") if isinstance(name, str) else ""


def recorded_documents(root):
    """The outputs of tests/golden that are JSON."""
    for file in sorted((root / "tests/golden").rglob("expected/*.txt")):
        output = file.read_text(encoding="utf-8").partition("--- stdout\n")[2]
        output = output.rpartition("--- stderr\n")[0]
        if output.startswith("{"):
            yield file, json.loads(output)


def data_documents(root):
    for folder in (*ROOMS, "experiments"):
        for file in sorted((root / folder).rglob("*.json")):
            document = json.loads(file.read_text(encoding="utf-8"))
            if schema_of(document):
                yield file, document


def named_schemas(root):
    """What production code calls its documents."""
    for room in ROOMS:
        for file in sorted((root / room).rglob("*.cc")):
            yield from re.findall(r'"orrery\.(\w+/\d+)"', file.read_text(encoding="utf-8"))


def main():
    root = pathlib.Path(sys.argv[1])
    schemas = Schemas(root / "docs/schemas")
    found, count = [], 0
    if sys.argv[2:]:
        documents = [(f, json.loads(pathlib.Path(f).read_text(encoding="utf-8")))
                     for f in sys.argv[2:]]
    else:
        documents = [*recorded_documents(root), *data_documents(root)]
        if not any(recorded_documents(root)):
            found.append("tests/golden: no recorded document")
        for home, schema in schemas.files.items():
            found += schemas.own_faults(schema, home, "$")
        for name in sorted(set(named_schemas(root)) - NO_DOCUMENTS):
            if name.replace("/", "-") + ".json" not in schemas.files:
                found.append(f"docs/schemas: orrery.{name} has no schema")
        pages = "".join((root / "docs" / p).read_text(encoding="utf-8")
                        for p in ("schemas.md", "schemas_tools.md"))
        found += [f"docs/schemas/{home} is linked from no page"
                  for home in schemas.files if f"schemas/{home}" not in pages]
    for file, document in documents:
        count += 1
        found += [f"{file}: {fault}" for fault in schemas.document_faults(document)]
    print("\n".join(found) if found else f"{count} documents match their schemas")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
