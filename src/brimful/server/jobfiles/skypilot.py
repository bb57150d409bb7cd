"""SkyPilot's task YAML, as its documentation describes it (docs.skypilot.co, "YAML spec")."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from brimful.adapters.engines.devices import catalog_name
from brimful.errors import BadInput
from brimful.language import Quoted, say
from brimful.server.jobfiles.jobfile import JobFile, integer, mebibytes, resolved

# What a task may say and brimful cannot do; why: `jobfile.sky_<name>`.
CANNOT = ("file_mounts", "volumes", "service", "inputs", "outputs", "config", "event_callback", "pool")
CANNOT_RESOURCE = (
    *("use_spot", "any_of", "ordered", "ports", "image_id", "disk_size", "disk_tier", "instance_type"),
    *("autostop", "job_recovery", "accelerator_args", "network_tier", "labels"),
)
PLACES = {"infra", "cloud", "region", "zone"}
KNOWN = {"name", "workdir", "num_nodes", "resources", "envs", "secrets", "setup", "run"}
KNOWN_RESOURCE = {"accelerators", "cpus", "memory", *PLACES}


def is_skypilot(data: dict[str, Any]) -> bool:
    return "command" not in data and bool({"run", "resources", "setup", "num_nodes"} & data.keys())


def read_skypilot(data: dict[str, Any], path: Path) -> JobFile:
    resources = data.get("resources") or {}
    if not isinstance(resources, dict):
        raise BadInput(say("jobfile.resources_no_mapping", path=path))
    if not isinstance(data.get("run"), str) or not data["run"].strip():
        raise BadInput(say("jobfile.no_run", path=path))
    nodes = integer(data.get("num_nodes", 1), f"{path}: num_nodes")
    types, each = _accelerators(resources.get("accelerators"), path)
    setup = data.get("setup")
    script = f"set -e\n{setup}\n{data['run']}" if isinstance(setup, str) and setup.strip() else data["run"]
    body: dict[str, Any] = {
        "name": str(data.get("name") or ""),
        "folder": resolved(path.parent, data.get("workdir") or ".", f"{path}: workdir"),
        "command": ["bash", "-c", script],
        "gpus": each * nodes,
        "gpu_types": types,
        "within": "node" if nodes == 1 else "site",
        "env": {**_pairs(data.get("envs"), path), **_pairs(data.get("secrets"), path)},
    }
    if resources.get("cpus") is not None:
        body["cpus"] = _number(resources["cpus"], f"{path}: cpus") * nodes
    if resources.get("memory") is not None:
        body["memory_mib"] = mebibytes(resources["memory"], f"{path}: memory") * nodes
    found = JobFile(kind="skypilot", body=body)
    _name_the_rest(found, data, resources)
    if isinstance(setup, str) and setup.strip():
        found.notes.append(say("jobfile.sky_setup"))
    return found


def _name_the_rest(found: JobFile, data: dict[str, Any], resources: dict[str, Any]) -> None:
    for name in sorted(data.keys() - KNOWN):
        found.unsupported[name] = say(f"jobfile.sky_{name}" if name in CANNOT else "jobfile.no_field")
    for name in sorted(resources.keys() - KNOWN_RESOURCE):
        known = name in CANNOT_RESOURCE
        found.unsupported[f"resources.{name}"] = say(f"jobfile.sky_{name}" if known else "jobfile.no_field")
    for name in sorted(resources.keys() & PLACES):
        found.unsupported[f"resources.{name}"] = say("jobfile.sky_place")


def _accelerators(given: object, path: Path) -> tuple[list[str], int]:
    """'A100:4', {'A100': 4} or ['A100:4', 'H100:4']: the types, and how many on each node."""
    if given is None:
        return [], 1
    if isinstance(given, dict):
        pairs = list(given.items())
    else:
        words = given if isinstance(given, list) else [given]
        pairs = [(name, count or 1) for name, _, count in (str(word).partition(":") for word in words)]
    counts = {integer(count, f"{path}: accelerators", most=1024) for _, count in pairs}
    if len(counts) != 1:
        raise BadInput(say("jobfile.accelerators_differ", path=path))
    return [catalog_name(str(name)) for name, _ in pairs], counts.pop()


def _number(given: object, what: str) -> float:
    text = str(given).rstrip("+")
    try:
        return float(text)
    except ValueError as error:
        raise BadInput(say("jobfile.not_a_number", what=what, given=Quoted(text[:40]))) from error


def _pairs(given: object, path: Path) -> dict[str, str]:
    if given is None:
        return {}
    if not isinstance(given, dict):
        raise BadInput(say("jobfile.envs_no_mapping", path=path))
    empty = [str(name) for name, value in given.items() if value is None]
    if empty:
        raise BadInput(say("jobfile.env_without_value", path=path, name=empty[0]))
    return {str(name): str(value) for name, value in given.items()}
