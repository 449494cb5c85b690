"""`reread doctor`: what this installation consists of, and what about it is known not to work, each with its remedy."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from flows.commands.output import document, say, size, table
from flows.running.ray_runner import OBJECT_STORE_BYTES
from flows.services import local
from flows.services.health import free_bytes, listens
from flows.services.pages import Prefect
from flows.services.processes import port_free
from kernels import toolchain
from kernels.backends import DISTRIBUTIONS
from kernels.toolchain import Rule
from kernels.triton_mode import library_version, triton_version
from storage.errors import ServiceError
from storage.home import home, is_url, local_home
from storage.masked import masked

LIBRARIES = ("torch", "triton", "ray", "prefect", "prefect-ray", "mlflow", "deepspeed", "transformers", "datasets",
             "pyarrow", "tokenizers", "tiktoken", "pydantic", "numpy")
OPTIONAL = ("flash-linear-attention", "mamba-ssm", "flash-attn")
PORTS = {"prefect": local.PREFECT_PORT, "mlflow": local.MLFLOW_PORT}
LEAST_FREE_BYTES = 1_000_000_000
OLD_LOCK_SECONDS = 600


def examine(json: bool) -> None:
    """Print the findings.

    :raises ServiceError: after printing, when something is known not to work
    """
    facts = gather()
    if json:
        document(facts)
    else:
        tell(facts)
    if not facts["ok"]:
        raise ServiceError(f"{len(facts['known_bad'])} known problems, listed above")


def gather() -> dict[str, Any]:
    """{ok, versions, devices, known_bad: [{problem, remedy}], toolchain: [rule], paths, ports, services}."""
    versions = {"python": platform.python_version(), "reread": version("reread"),
                **{name: version(name) for name in (*LIBRARIES, *OPTIONAL)}}
    found = devices()
    problems = list(known_bad(versions, found))
    concerning = _concerning(found)
    rules = [{**row, "here": rule in concerning} for row, rule in zip(toolchain.table(), toolchain.RULES)]
    return {"ok": not problems, "versions": versions, "devices": found, "known_bad": problems, "toolchain": rules,
            "paths": paths(),
            "ports": {name: {"port": port, "state": state_of_port(name, port)} for name, port in PORTS.items()},
            "services": [name for name in local.ORDER if local.running(name)]}


def version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def devices() -> dict[str, Any]:
    import psutil

    return {"cpu": platform.processor() or platform.machine(), "cores": len(os.sched_getaffinity(0)),
            "memory_bytes": psutil.virtual_memory().total, "shared_memory_bytes": free_bytes(Path("/dev/shm")), "gpus": _gpus()}


def _gpus() -> list[dict[str, Any]]:
    if not os.path.exists("/dev/nvidiactl"):
        return []
    import torch

    return [{"name": torch.cuda.get_device_name(number), "capability": list(torch.cuda.get_device_capability(number)),
             "memory_bytes": torch.cuda.get_device_properties(number).total_memory}
            for number in range(torch.cuda.device_count())]


def paths() -> dict[str, Any]:
    return {"home": home(), "local_home": str(local_home()), "free_bytes": free_bytes(local_home()),
            "prefect_home": os.environ.get("PREFECT_HOME"), "python": sys.executable}


def state_of_port(name: str, port: int) -> str:
    if port_free(port):
        return "free"
    record = local.running(name)
    return "ours" if record and record.url and record.url.endswith(f":{port}") else "taken; another will be used"


def known_bad(versions: dict[str, str | None], found: dict[str, Any]) -> Iterator[dict[str, str]]:
    """Combinations and conditions that were seen to fail."""
    for check in (_python, _requirements, _kernels_name, _kernel_rules, _places, _addresses, _stale_build):
        for problem, remedy in check(versions, found):
            yield {"problem": problem, "remedy": remedy}


def _python(versions, found) -> Iterator[tuple[str, str]]:
    if not (3, 11) <= sys.version_info[:2] <= (3, 12):
        yield f"Python {versions['python']} is not tested", "use Python 3.11 or 3.12"


def _requirements(versions, found) -> Iterator[tuple[str, str]]:
    from packaging.requirements import Requirement

    for text in importlib.metadata.requires("reread") or []:
        needed = Requirement(text)
        if needed.marker and not needed.marker.evaluate({"extra": ""}):
            continue
        have = version(needed.name)
        if have is None:
            yield f"{needed.name} is not installed", f"pip install '{needed.name}{needed.specifier}'"
        elif not needed.specifier.contains(have, prereleases=True):
            yield f"{needed.name} {have} is not {needed.specifier}", f"pip install '{needed.name}{needed.specifier}'"


def _kernels_name(versions, found) -> Iterator[tuple[str, str]]:
    """transformers looks for a distribution `kernels`, and for `kernels.__version__`; with ours it breaks."""
    if version("kernels"):
        yield ("the distribution `kernels` is installed; transformers takes our folder of that name for it and fails",
               "pip uninstall kernels")
    import kernels

    if hasattr(kernels, "__version__"):
        yield "kernels/__init__.py has a __version__; transformers then fails to import", "remove it"


def _kernel_rules(versions, found) -> Iterator[tuple[str, str]]:
    for rule in _concerning(found):
        concerned = ", ".join(rule.operations) or "all operations"
        yield f"{concerned} ({rule.form}) on this GPU: {rule.problem} ({rule.source})", rule.remedy


def _concerning(found: dict[str, Any]) -> list[Rule]:
    """The rules of the kernels' toolchain table that forbid something on this machine."""
    installed = {form: library_version(name) for form, name in DISTRIBUTIONS.items()}
    return list(toolchain.known_bad(
        {gpu["capability"][0] for gpu in found["gpus"]}, triton_version(),
        {form: number for form, number in installed.items() if number}))


def _places(versions, found) -> Iterator[tuple[str, str]]:
    place = local_home()
    existing = place if place.exists() else place.parent
    if existing.exists() and not existing.is_dir():
        yield f"{existing} is not a folder", "set REREAD_HOME to a folder of yours"
    elif existing.exists() and not os.access(existing, os.W_OK):
        yield f"{existing} cannot be written", "set REREAD_HOME to a folder of yours"
    if free_bytes(place) < LEAST_FREE_BYTES:
        yield (f"only {size(free_bytes(place))} are free under {place}",
               "free some, or set REREAD_HOME to a larger disk; the study `quick` writes about 150 MB")
    if found["shared_memory_bytes"] < OBJECT_STORE_BYTES and not os.environ.get("RAY_ADDRESS"):
        yield (f"/dev/shm has {size(found['shared_memory_bytes'])} free, Ray wants {size(OBJECT_STORE_BYTES)}",
               "enlarge it (docker run --shm-size=1g), or Ray goes through slower files")


def _addresses(versions, found) -> Iterator[tuple[str, str]]:
    api = os.environ.get("PREFECT_API_URL")
    if api and Prefect(api, timeout=3).well():
        yield f"PREFECT_API_URL is {masked(api)}; nothing answers there", "start that server, or unset the variable"
    ray = os.environ.get("RAY_ADDRESS")
    if ray and ray not in ("auto", "local") and not listens(ray):
        yield f"RAY_ADDRESS is {ray}; nothing listens there", "start that cluster, or unset the variable"
    tracking = os.environ.get("MLFLOW_TRACKING_URI", "")
    if tracking and not is_url(tracking) or tracking.startswith("file:"):
        yield (f"MLFLOW_TRACKING_URI is {tracking}; this MLflow refuses plain files",
               "use sqlite:////absolute/path/mlflow.db or the address of a server, or unset the variable")


def _stale_build(versions, found) -> Iterator[tuple[str, str]]:
    """A build of a torch extension that was killed leaves a lock; the next import waits for it for ever."""
    root = Path(os.environ.get("TORCH_EXTENSIONS_DIR", "~/.cache/torch_extensions")).expanduser()
    for lock in root.glob("*/*/lock"):
        if time.time() - lock.stat().st_mtime > OLD_LOCK_SECONDS:
            yield f"{lock} is left from a build that was killed; importing that extension hangs", f"rm {lock}"


def tell(facts: dict[str, Any]) -> None:
    table(["library", "version"], [[name, number or ("not installed, optional" if name in OPTIONAL else "missing")]
                                  for name, number in facts["versions"].items()])
    found, places = facts["devices"], facts["paths"]
    say(f"\n{found['cores']} cores, {size(found['memory_bytes'])} of memory, "
        + (", ".join(gpu["name"] for gpu in found["gpus"]) or "no GPU"))
    say(f"home {places['home']}, {size(places['free_bytes'])} free")
    say("ports " + ", ".join(f"{name} {one['port']} {one['state']}" for name, one in facts["ports"].items()))
    say("services " + (", ".join(facts["services"]) or "none running"))
    say("\nKernels known to go wrong (operations that are refused there, or run in plain torch):")
    table(["operations", "form", "GPU", "Triton, library", "use", "here"],
          [[rule["operations"], rule["form"], rule["gpus"], rule["triton"], rule["use"], "yes" if rule["here"] else "no"]
           for rule in facts["toolchain"]])
    for one in facts["known_bad"]:
        say(f"\nproblem: {one['problem']}\nremedy:  {one['remedy']}")
    if facts["ok"]:
        say("\nno known problem")
