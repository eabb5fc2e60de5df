# SPDX-License-Identifier: Apache-2.0
# `make help` lists the targets. Everything is set up in .venv/, with pip alone.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip install -q --disable-pip-version-check
SHOWN  := $(filter-out -q,$(PIP))
# The CPU build of torch is enough here and gigabytes smaller; where its index is out of reach, the default index serves.
TORCH       ?= torch==2.13.0
TORCH_INDEX ?= https://download.pytorch.org/whl/cpu
# Commands and the Debian packages that they come with. On a Debian machine root gets what is missing; others do without.
TOOLS       := mnexec:mininet ifconfig:net-tools ip:iproute2 ping:iputils-ping iperf3:iperf3 spin:spin \
               etcd:etcd-server tshark:tshark
C_SOURCES   := CMakeLists.txt $(wildcard hostlib/csrc/CMakeLists.txt hostlib/csrc/*/*.[ch] \
               targets/csrc/CMakeLists.txt targets/csrc/*.[ch] simulator/csrc/*)
# Options for the demo: make demo ARGS="--workers 2 --drop-rate 0.05"
ARGS   ?=

.DEFAULT_GOAL := help
.PHONY: help setup gradients dist demo bench fuzz fuzz-controller figures pictures docs test test-all lint p4 p4-tofino proto clean

help:  ## list what can be made
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-16s %s\n", $$1, $$2}'

setup: $(VENV)/.ready $(VENV)/.tools  ## install everything into .venv; as root also tools for tests, where apt-get has them

$(VENV)/.ready: pyproject.toml bench/pyproject.toml Makefile $(C_SOURCES)
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "1/3 PyTorch: 0.2 GB to fetch from $(TORCH_INDEX), or 2.7 GB from the default index"
	$(PIP) --no-deps --retries 0 --index-url $(TORCH_INDEX) '$(TORCH)' 2>/dev/null || $(SHOWN) '$(TORCH)'
	@echo "2/3 tools that build the C code"
	$(PIP) 'scikit-build-core>=0.11' cmake ninja
	@echo "3/3 p4reduce and what its parts and tests need; the C code is compiled last, in about a minute"
	$(SHOWN) --no-build-isolation -e '.[dev]' -e ./bench
	@echo "installed into $(VENV)/; for the command p4reduce in this shell: . $(BIN)/activate"
	touch $@

$(VENV)/.tools: Makefile
	@mkdir -p $(VENV); missing=; for tool in $(TOOLS); do \
	    command -v $${tool%%:*} >/dev/null || missing="$$missing $${tool#*:}"; done; \
	if [ -n "$$missing" ] && [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	    export DEBIAN_FRONTEND=noninteractive; \
	    { apt-get update -qq && apt-get install -qq -y --no-install-recommends $$missing >/dev/null; } \
	        || echo "not installed:$$missing; tests that need them are skipped"; \
	elif [ -n "$$missing" ]; then echo "not here, and tests that need them are skipped:$$missing"; fi
	@touch $@

# Some 100 MB more. With torch named, pip takes the torchvision that fits it.
gradients: setup  ## install what `p4reduce bench gradients` trains real architectures with
	$(PIP) --no-build-isolation '$(TORCH)' -e './bench[gradients]'

# For this machine. Others take what cibuildwheel builds (CONTRIBUTING.md).
DIST   ?= dist
dist: setup  ## build all wheels into dist/, from which pip installs every extra: --find-links dist
	PATH="$(abspath $(BIN)):$$PATH" $(BIN)/python -m pip wheel -q --disable-pip-version-check --no-deps --no-build-isolation \
	    --wheel-dir $(DIST) . ./bench
	@ls $(DIST)/*.whl

# Help needs no PyTorch and no C code: in place of all that `setup` installs, some 60 MB that print it.
HELP   := $(filter --help -h,$(ARGS))
$(VENV)/.help: Makefile
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	test -e $(VENV)/.ready || $(PIP) 'grpcio>=1.49.1' 'numpy>=1.26' 'protobuf>=3.20.3,<8' 'rich>=13' 'typer>=0.15'
	@touch $@
RUN    := $(if $(HELP),PYTHONPATH=hostlib:controller:targets:bench $(BIN)/python -m p4reduce,$(BIN)/p4reduce)
READY  := $(if $(HELP),$(VENV)/.help,setup)

demo: $(READY)  ## train a language model whose gradients the P4 program adds up
	$(RUN) demo $(ARGS)

# The tables of docs/benchmarks.md; shaped links need root. Longer, and on any machine: p4reduce bench allreduce
BENCH := $(BIN)/p4reduce bench allreduce --overlap all --sparsity block $(ARGS)
bench: setup  ## measure allreduce beside Gloo and MPI, on links of a chosen rate and on this machine (root)
	$(BENCH) --link 1gbit --workers 2 --numel 25MiB --density 1,0.1,0.01 --json out/bench-1gbit.json --plot out/bench-1gbit.png
	$(BENCH) --link 200mbit --workers 8 --numel 25MiB --density 1,0.1,0.01 --json out/bench-200mbit.json --plot out/bench-200mbit.png
	$(BENCH) --link 50mbit --workers 8 --numel 25MiB --density 1,0.1,0.01 --json out/bench-50mbit.json --plot out/bench-50mbit.png
	$(BENCH) --workers 4 --numel 100MiB --density 1,0.1,0.01,0 --json out/bench-loopback.json --plot out/bench-loopback.png

# What the README's first picture is drawn from: about five minutes on a machine with little else to do.
figures: setup  ## measure the README's figures again (root), then draw its pictures
	$(BIN)/p4reduce bench allreduce --systems p4reduce,gloo --link 50mbit --workers 2,4,8 --numel 8MiB \
	    --density 1,0.3,0.1,0.03,0.01 --overlap all --sparsity block --repeat 3 --json docs/figures/allreduce-50mbit.json
	$(BIN)/python -m website.pictures

pictures: setup  ## draw the README's pictures again, from docs/figures/
	$(BIN)/python -m website.pictures

docs: setup  ## build the documentation as a site, build/site/index.html; nothing is fetched for it
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

# The packet parsers of both ends. Inputs that reached something new are kept in build/corpus, for the next time.
FUZZ_SECONDS ?= 300
FUZZ := -max_total_time=$(FUZZ_SECONDS) -print_final_stats=1 -artifact_prefix=build/corpus/found-
fuzz:  ## let libFuzzer at the parsers of workers and of the native switch, FUZZ_SECONDS each (needs clang)
	cmake -S . -B build/fuzz -DCMAKE_C_COMPILER=clang -DP4REDUCE_SANITIZE=address,undefined -DP4REDUCE_FUZZ=ON
	cmake --build build/fuzz --target fuzz_receive native_fuzz_frames native_fuzz_datagrams
	$(PYTHON) targets/csrc/fuzz/seeds.py build/corpus && mkdir -p build/corpus/receive
	build/fuzz/hostlib/csrc/fuzz_receive $(FUZZ) -max_len=2048 build/corpus/receive
	build/fuzz/targets/csrc/native_fuzz_frames $(FUZZ) -max_len=8192 build/corpus/frames
	build/fuzz/targets/csrc/native_fuzz_datagrams $(FUZZ) -max_len=8192 build/corpus/datagrams

fuzz-controller: setup  ## say random things to a controller, by its service and by packet-in, for FUZZ_SECONDS
	$(BIN)/python -m tests.controller.fuzz --seconds $(FUZZ_SECONDS) $(ARGS)

# How many tests run at a time: many wait rather than compute. Options for pytest: make test ARGS="-x tests/e2e"
JOBS   ?= $(shell n=$$(($$(nproc) * 2)); echo $$((n < 1 ? 1 : n > 6 ? 6 : n)))
# The many processes that tests start shall not compile the package again each.
PYTEST := PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest --durations 10
BESIDE := -n $(JOBS) --dist worksteal
test: setup $(VENV)-p4runtime-shell/.ready  ## run the tests that see most, which takes minutes
	$(PYTEST) $(BESIDE) -m "not slow and not serial" $(ARGS)

# Tests marked serial run last, one at a time; without ARGS, no files but theirs are collected. pytest ends with 5 if
# ARGS leaves no test of a kind.
SERIAL = $(shell grep -rlE '(@|= .*)pytest\.mark\.serial' tests)
test-all: setup $(VENV)-p4runtime-shell/.ready  ## run every test that this machine can run
	@failed=0; \
	$(PYTEST) $(BESIDE) -m "not serial" $(ARGS) || test $$? = 5 || failed=1; \
	$(PYTEST) -m serial $(or $(ARGS),$(SERIAL)) || test $$? = 5 || failed=1; \
	exit $$failed

# p4runtime-shell needs an old protobuf, so it has an environment of its own; the tests use it as a foreign client.
$(VENV)-p4runtime-shell/.ready: Makefile
	test -x $(VENV)-p4runtime-shell/bin/python || $(PYTHON) -m venv $(VENV)-p4runtime-shell
	$(VENV)-p4runtime-shell/bin/python -m pip install -q --disable-pip-version-check p4runtime-shell==0.0.6 protobuf==3.20.3
	touch $@

lint: setup  ## style and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# With P4C=docker or P4C=podman, p4c runs in the P4 project's container image. Neither needs what `setup` installs.
P4C    ?=
p4:  ## compile the P4 program again (needs p4c, or P4C=docker)
	$(PYTHON) p4src/compile.py $(if $(P4C),--p4c $(P4C)) $(ARGS)

# A binary for a board: make p4-tofino ARGS="--cpu-port 192 --out build/tofino tofino1-64"
p4-tofino:  ## compile it for Tofino and show what it takes (needs p4c with its Tofino backend)
	$(PYTHON) p4src/tofino.py $(ARGS)

# What newer tools write would ask for a protobuf as new as theirs, which training hosts need not have. What these write
# runs with protobuf 3.20.3 to 7. Python 3.10 to 3.12. The types keep what somebody uses: fields, but not their numbers.
$(VENV)-proto/.ready: Makefile
	test -x $(VENV)-proto/bin/python || $(PYTHON) -m venv $(VENV)-proto
	$(VENV)-proto/bin/python -m pip install -q --disable-pip-version-check grpcio-tools==1.62.3 'setuptools<81'
	touch $@

proto: $(VENV)-proto/.ready  ## generate the stubs of the control service, of etcd and of BF Runtime again
	$(VENV)-proto/bin/python -m grpc_tools.protoc --proto_path=hostlib --python_out=hostlib --pyi_out=hostlib \
	    p4reduce/control/jobs.proto
	$(VENV)-proto/bin/python -m grpc_tools.protoc --proto_path=controller --python_out=controller --pyi_out=controller \
	    p4reduce_controller/etcd/rpc.proto
	$(VENV)-proto/bin/python -m grpc_tools.protoc --proto_path=targets --python_out=targets --pyi_out=targets \
	    p4reduce_targets/bfrt/bfruntime.proto
	sed -i '/_FIELD_NUMBER: _ClassVar/d; /__slots__ = /d' hostlib/p4reduce/control/*_pb2.pyi \
	    controller/p4reduce_controller/etcd/*_pb2.pyi targets/p4reduce_targets/bfrt/*_pb2.pyi

clean:  ## remove what was set up and built
	rm -rf $(VENV) $(VENV)-p4runtime-shell $(VENV)-proto build dist out .mypy_cache .pytest_cache .ruff_cache .hypothesis
