"""Descriptions of interfaces in OpenAPI and Swagger: a row for each operation, with its name and
what its description says."""

from collections.abc import Iterator, Mapping

VERSIONS = ("openapi", "swagger")
METHODS = ("get", "post", "put", "patch", "delete", "head", "options", "trace")


def operations_in(value: object) -> list[dict[str, str]]:
    """The operations of an interface as questions and answers; none for another value."""
    if not isinstance(value, dict) or value.keys().isdisjoint(VERSIONS):
        return []
    paths = value.get("paths")
    if not isinstance(paths, dict):
        return []
    rows = []
    for path, operations in paths.items():
        if isinstance(operations, dict):
            rows += list(_rows_of_path(path, operations))
    return rows


def _rows_of_path(path: str, operations: Mapping[str, object]) -> Iterator[dict[str, str]]:
    for method in METHODS:
        operation = operations.get(method)
        if not isinstance(operation, dict):
            continue
        called = f"{method.upper()} {path}"
        summary = _text(operation, "summary")
        description = _text(operation, "description")
        if summary and description and summary != description:
            yield {"question": f"{called}: {summary}", "answer": description}
        elif summary or description:
            yield {"question": called, "answer": description or summary}


def _text(operation: Mapping[str, object], name: str) -> str:
    return str(operation.get(name) or "").strip()
