# SPDX-License-Identifier: Apache-2.0
"""The Kubernetes manifests: their form, strictly, and that what they start fits together."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from .commands import DEPLOY, parsed, settings_of

yaml = pytest.importorskip("yaml", reason="needs PyYAML")

KUBERNETES = DEPLOY / "kubernetes"
RANKS = 4


def documents(path: Path) -> list[Any]:
    return [one for one in yaml.safe_load_all(path.read_text()) if one]


def manifests() -> Iterator[Any]:
    """Yield the objects that Kubernetes itself knows. Pods of other kinds are turned into jobs."""
    for path in sorted(KUBERNETES.glob("*/*.yaml")):
        for one in documents(path):
            if one["kind"] == "JobSet":
                yield from (as_job(job["name"], job["template"]["spec"]) for job in one["spec"]["replicatedJobs"])
            elif one["kind"] == "PyTorchJob":
                for name, replicas in one["spec"]["pytorchReplicaSpecs"].items():
                    pods = {"template": replicas["template"]}
                    pods["template"]["spec"].setdefault("restartPolicy", replicas["restartPolicy"])
                    yield as_job(name.lower(), pods)
            elif one["kind"] != "Kustomization":
                yield one


def as_job(name: str, spec: Any) -> Any:
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name}, "spec": spec}


def pods() -> Iterator[tuple[str, Any]]:
    """Yield the kind and name of each object that starts pods, and the pods' specification."""
    for one in manifests():
        if template := one["spec"].get("template") if "spec" in one else None:
            yield f"{one['kind']} {one['metadata']['name']}", template["spec"]


def find(kind: str, name: str) -> Any:
    (one,) = [one for one in manifests() if (one["kind"], one["metadata"]["name"]) == (kind, name)]
    return one


def test_they_are_as_kubernetes_says() -> None:
    checker = pytest.importorskip("kubernetes_validate", reason="needs kubernetes-validate (100 MB)")
    checked = list(manifests())
    assert len(checked) > 12
    for one in checked:
        checker.validate(one, "1.33", strict=True)
    wrong = find("StatefulSet", "controller")
    wrong["spec"]["template"]["spec"]["hostNetwrok"] = True
    with pytest.raises(checker.ValidationError):
        checker.validate(wrong, "1.33", strict=True)


@pytest.mark.parametrize("folder", ["controller", "switch"])
def test_kustomize_makes_them(tmp_path: Path, folder: str) -> None:
    """The commands are those at the top of the file."""
    if (kubectl := shutil.which("kubectl")) is None:
        pytest.skip("needs kubectl")
    shutil.copytree(DEPLOY, tmp_path / "deploy")
    for name in ("controller", folder):
        place = tmp_path / "deploy" / "kubernetes" / name
        lines = (place / "kustomization.yaml").read_text().split("apiVersion")[0]
        commands = [line[3:] for line in lines.splitlines() if line.startswith("#   ")]
        script = "\n".join(line.replace("kubectl apply --kustomize .", "true") for line in commands)
        done = subprocess.run(["sh", "-ec", script], cwd=place, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
    done = subprocess.run([kubectl, "kustomize", place], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    made = list(yaml.safe_load_all(done.stdout))
    secrets = {one["metadata"]["name"] for one in made if one["kind"] in ("Secret", "ConfigMap")}
    used = {
        volume["secret"]["secretName"] if "secret" in volume else volume["configMap"]["name"]
        for one in made
        if one["kind"] in ("StatefulSet", "Deployment")
        for volume in one["spec"]["template"]["spec"]["volumes"]
        if "secret" in volume or "configMap" in volume
    }
    assert used == secrets
    assert all("-" in name for name in secrets)  # of their contents, so that a change rolls the pods


def test_pods_may_do_nothing_that_they_need_not() -> None:
    found = dict(pods())
    assert len(found) == 6
    for name, pod in found.items():
        assert pod["automountServiceAccountToken"] is False, name
        assert pod["securityContext"]["runAsNonRoot"] is True, name
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}, name
        for container in pod["containers"]:
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }, name
            assert {"requests", "limits"} <= set(container["resources"]), name
            mounts = {mount["name"] for mount in container["volumeMounts"]}
            claims = {"data"} if name == "StatefulSet etcd" else set()
            assert mounts == {volume["name"] for volume in pod["volumes"]} | claims, name
        assert pod.get("hostNetwork", False) == ("StatefulSet" not in name), name


def test_the_controllers_are_called_as_they_accept_it() -> None:
    spec = find("StatefulSet", "controller")["spec"]
    (container,) = spec["template"]["spec"]["containers"]
    args = [one.replace("$(POD_IP)", "10.1.0.7") for one in container["args"]]
    settings = settings_of(KUBERNETES / "controller" / "controller.toml", args)
    assert (settings.listen, settings.standby, settings.metrics) == ("10.1.0.7:7700", True, "0.0.0.0:7701")
    assert spec["replicas"] == 2
    (etcd,) = find("StatefulSet", "etcd")["spec"]["template"]["spec"]["containers"]
    members = [f"etcd-{number}.etcd.p4reduce.svc" for number in range(3)]
    assert settings.store == f"etcd://{','.join(members)}"
    cluster = ",".join(f"etcd-{number}=https://{member}:2380" for number, member in enumerate(members))
    assert f"--initial-cluster={cluster}" in etcd["command"]
    (switch,) = find("Deployment", "switch")["spec"]["template"]["spec"]["containers"]
    given = parsed([one.replace("$(NODE_IP)", "10.0.0.5") for one in switch["args"]])
    (one,) = settings.switches
    assert one["switch"] == given["grpc"]
    assert given["port"] == [f"1=udp:{one['address'][0]}:31314"]
    assert given["tls_ca"] is not None


def test_probes_are_of_ports_that_there_are() -> None:
    for name, pod in pods():
        for container in pod["containers"]:
            ports = {port["name"] for port in container.get("ports", ())}
            probes = [container[key] for key in container if key.endswith("Probe")]
            assert bool(probes) != name.startswith("Job"), name
            for probe in probes:
                way = probe.get("tcpSocket") or probe["httpGet"]
                assert way["port"] in ports, name


def test_policies_let_through_what_is_needed() -> None:
    default = find("NetworkPolicy", "nothing-else")["spec"]
    assert default == {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}
    for name in ("controller", "etcd"):
        labels = find("StatefulSet", name)["spec"]["template"]["metadata"]["labels"]
        spec = find("NetworkPolicy", name)["spec"]
        assert spec["podSelector"]["matchLabels"] == labels
        assert find("Service", name)["spec"]["selector"] == labels
        assert find("PodDisruptionBudget", name)["spec"]["selector"]["matchLabels"] == labels
        assert all(rule["from"] and rule["ports"] for rule in spec["ingress"])
        assert all(rule["to"] and rule["ports"] for rule in spec["egress"])
    ports = {port["port"] for rule in find("NetworkPolicy", "controller")["spec"]["egress"] for port in rule["ports"]}
    assert ports == {2379, 7700, 9559, 53}


def env_of(container: Any) -> dict[str, Any]:
    return {one["name"]: one.get("value", one.get("valueFrom")) for one in container["env"]}


def test_ranks_of_a_jobset_find_each_other() -> None:
    (jobset,) = documents(KUBERNETES / "training" / "jobset.yaml")
    name, (job,) = jobset["metadata"]["name"], jobset["spec"]["replicatedJobs"]
    spec = job["template"]["spec"]
    assert (spec["parallelism"], spec["completions"], spec["completionMode"]) == (RANKS, RANKS, "Indexed")
    (container,) = spec["template"]["spec"]["containers"]
    env = env_of(container)
    assert env["WORLD_SIZE"] == str(RANKS)
    # Pods are called JOBSET-JOB-INDEX-RANK, in the subdomain of the JobSet.
    assert env["MASTER_ADDR"] == f"{name}-{job['name']}-0-0.{name}"
    assert env["RANK"]["fieldRef"]["fieldPath"] == "metadata.annotations['batch.kubernetes.io/job-completion-index']"
    names = list(env)
    assert env["JOB"] == f"{name}-$(ATTEMPT)"
    assert names.index("ATTEMPT") < names.index("JOB")  # only what stands before is put in
    assert spec["backoffLimit"] == 0


def test_ranks_of_a_pytorchjob_are_as_many() -> None:
    (job,) = documents(KUBERNETES / "training" / "pytorchjob.yaml")
    replicas = job["spec"]["pytorchReplicaSpecs"]
    assert {name: one["replicas"] for name, one in replicas.items()} == {"Master": 1, "Worker": RANKS - 1}
    master, worker = (one["template"]["spec"] for one in replicas.values())
    assert master == worker
    (container,) = master["containers"]
    assert container["name"] == "pytorch"  # as the operator has it
    assert not {"RANK", "WORLD_SIZE", "MASTER_ADDR"} & set(env_of(container))


@pytest.mark.parametrize("kind", ["jobset", "pytorchjob"])
def test_ranks_know_both_controllers(kind: str) -> None:
    (job,) = documents(KUBERNETES / "training" / f"{kind}.yaml")
    text = yaml.safe_dump(job)
    service = find("StatefulSet", "controller")["spec"]["serviceName"]
    addresses = ",".join(f"controller-{number}.{service}.p4reduce.svc:7700" for number in range(2))
    assert f"value: {addresses}" in text
    assert "name: P4REDUCE_TOKEN" in text
    assert "P4REDUCE_TLS_CA" in text
