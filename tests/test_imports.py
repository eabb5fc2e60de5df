# SPDX-License-Identifier: Apache-2.0
"""Imports run one way: between the packages, between the folders of each, and between files."""

import ast
import functools
import re
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from importlib.util import resolve_name
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TESTS = ROOT / "tests"
PACKAGES = {
    "p4reduce": ROOT / "hostlib",
    "p4reduce_controller": ROOT / "controller",
    "p4reduce_targets": ROOT / "targets",
    "p4reduce_simulator": ROOT / "simulator",
    "p4reduce_bench": ROOT / "bench",
    "p4reduce_topos": ROOT / "bmv2_topos",
}
MAY_IMPORT = {
    "p4reduce": set(),
    "p4reduce_controller": {"p4reduce"},
    "p4reduce_targets": {"p4reduce"},
    "p4reduce_simulator": {"p4reduce", "p4reduce_targets", "p4reduce_bench"},
    "p4reduce_bench": {"p4reduce", "p4reduce_controller", "p4reduce_targets"},
    "p4reduce_topos": {"p4reduce", "p4reduce_controller", "p4reduce_targets", "p4reduce_bench"},
}

# Folders of the host library that communicators are built on, and what of it each may import besides itself.
BELOW = {
    "p4reduce.protocol": {"p4reduce.errors"},
    "p4reduce.control": {"p4reduce.errors"},
    "p4reduce.transport": {"p4reduce.errors", "p4reduce.protocol"},
    "p4reduce.engine": {"p4reduce.errors", "p4reduce.protocol", "p4reduce.transport"},
    "p4reduce.fastpath": {"p4reduce.errors", "p4reduce.protocol", "p4reduce.transport", "p4reduce.engine.engine"},
    "p4reduce.local": {
        "p4reduce.errors",
        "p4reduce.protocol",
        "p4reduce.transport",
        "p4reduce.engine.engine",
        "p4reduce.fastpath",
    },
}

# The folders of a package, and the files beside them: each may import only those before it.
ORDER = {
    "p4reduce": "errors protocol transport control engine fastpath local tensors settings collectives backends join "
    "submit api ddp distributed commands trace __main__",
    "p4reduce_controller": "base tenants switches jobs observability store etcd p4runtime settings fabric webpage "
    "service standby commands doctor",
    "p4reduce_simulator": "library network workload simulation elements running peers texts report plan figures cli",
    "p4reduce_bench": "options outputs recordings processes peers allreduce analyze gradients training demo cli",
}


def module_of(path: Path, root: Path) -> str:
    parts = path.relative_to(root).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {
    module_of(path, root): path
    for package, root in PACKAGES.items()
    for path in sorted((root / package).rglob("*.py"))
    if "_pb2" not in path.name  # generated
}


def imported(tree: ast.AST, package: str) -> Iterator[str]:
    """Yield the names that a file imports anywhere. Imports for type checkers alone do not run, and are left out."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.expr):  # has no statements in it
            continue
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            origin = resolve_name("." * node.level + (node.module or ""), package)
            yield from (f"{origin}.{alias.name}" for alias in node.names)
        yield from imported(node, package)


def our_module(name: str) -> str | None:
    """Return our module that `name` is, or that defines it, or None if it is not ours."""
    while name and name not in MODULES:
        name = name.rpartition(".")[0]
    return name or None


def imports_of(module: str, path: Path) -> set[str]:
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    names = imported(ast.parse(path.read_text()), package)
    return {found for name in names if (found := our_module(name)) is not None} - {module}


@functools.cache
def all_imports() -> dict[str, set[str]]:
    """Return what each module imports of ours. Parsing all files takes a second, which collection does not spend."""
    return {module: imports_of(module, path) for module, path in MODULES.items()}


def test_files_are_found() -> None:
    assert all_imports()["p4reduce.api.communicator"] > {"p4reduce.settings", "p4reduce.engine.handle"}


@pytest.mark.parametrize("package", PACKAGES)
def test_packages_import_only_what_they_build_on(package: str) -> None:
    wrong = {
        f"{module} imports {other}"
        for module, others in all_imports().items()
        for other in others
        if module.partition(".")[0] == package
        and (other_package := other.partition(".")[0]) != package
        and other_package not in MAY_IMPORT[package]
    }
    assert not wrong


@pytest.mark.parametrize("folder", BELOW)
def test_folders_import_only_what_is_below_them(folder: str) -> None:
    wrong = {
        f"{module} imports {other}"
        for module, others in all_imports().items()
        for other in others - {"p4reduce"}  # it holds them all, and imports errors alone
        if f"{module}.".startswith(f"{folder}.")
        and not any(f"{other}.".startswith(f"{below}.") for below in {folder, *BELOW[folder]})
    }
    assert not wrong


@pytest.mark.parametrize("package", ORDER)
def test_folders_import_only_what_is_before_them(package: str) -> None:
    order = {f"{package}.{folder}": layer for layer, folder in enumerate(ORDER[package].split())}

    def layer_of(module: str) -> int:
        return order[".".join(module.split(".")[:2])]

    wrong = {
        f"{module} imports {other}"
        for module, others in all_imports().items()
        for other in others
        if module.startswith(f"{package}.") and other.startswith(f"{package}.") and layer_of(other) > layer_of(module)
    }
    assert not wrong


@pytest.mark.parametrize("package", PACKAGES)
def test_no_file_imports_itself_by_way_of_others(package: str) -> None:
    graph = {
        module: {other for other in others if other.partition(".")[0] == package}
        for module, others in all_imports().items()
        if module.partition(".")[0] == package
    }
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(f"a circle of imports: {' <- '.join(error.args[1])}")


# These make Python find the files beside a script, as where Python itself runs it.
CHANGE_THE_PATH = {"support/scripts.py", "examples/dying.py", "examples/ray_cluster.py"}
TEST_FILES = ("test_", "conftest")


def test_tests_import_what_is_shared_and_no_other_tests() -> None:
    """They share tests/support, and files of their own folder that are no tests."""
    wrong = []
    for path in sorted(TESTS.rglob("*.py")):
        own, text = path.relative_to(TESTS), path.read_text()
        for name in imported(ast.parse(text), ".".join(path.relative_to(ROOT).parent.parts)):
            _, _, rest = name.partition("tests.") if name.startswith("tests.") else ("", "", "support")
            folder, *files = rest.split(".")
            if folder not in ("support", own.parts[0]) or "*" in name or (files and files[0].startswith(TEST_FILES)):
                wrong.append(f"{own} imports {name}")
        if str(own) not in CHANGE_THE_PATH and re.search(r"\bsys\.path\.(append|insert|extend|remove)", text):
            wrong.append(f"{own} changes sys.path")
    assert not wrong
