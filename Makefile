# Two commands set up everything on a fresh machine with Python >= 3.11: `make run` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check -q
# The limits of a test that is no part of `make test`; pyproject.toml has the others.
HOURS := --timeout 3600 -o faulthandler_timeout=4000

.PHONY: run requirements test test-waiting compiled test-compiled dist test-packages soak soak-upgrade soak-kills soak-cluster watch-loop check interop interop-zmq interop-kafka bench \
	simulate simulate-large pipeline docs gallery reference clean

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "garlicfarm needs Python 3.11 or newer; try: make PYTHON=python3.12 run")'
	@$(PYTHON) -m venv $(VENV)

# pip verifies each file of the base, of the extras that run in production and of the build backend by its SHA-256.
# Modules are compiled once here; otherwise each of the first processes of `make run` would compile all of them.
HASHED := requirements/build.txt requirements/base.txt
$(VENV)/base.stamp: $(BIN)/python pyproject.toml $(HASHED)
	@echo "installing what a node needs into $(VENV): half a minute"
	@$(PIP) install --require-hashes $(HASHED:%=-r %)
	@$(PIP) install --no-deps --no-build-isolation -e .
	@$(BIN)/python -m compileall -q bridge consensus gossip
	@touch $@

# The packages that only tests, benchmarks and documents need have versions without hashes: no node runs them.
$(VENV)/all.stamp: constraints.txt $(VENV)/pipeline.stamp
	$(PIP) install -e '.[pipeline,zmq,kafka,test]' -c constraints.txt
	@touch $@

$(VENV)/pipeline.stamp: requirements/extras.txt $(VENV)/base.stamp
	$(PIP) install --require-hashes $(HASHED:%=-r %) -r $<
	@touch $@

# After a change of the dependencies or of constraints.txt: asks the index for the hashes of all files.
requirements: $(BIN)/python
	$(BIN)/python requirements/pin.py
	$(BIN)/python -m deploy.platforms

# The base and the extras `pipeline`, `zmq` and `kafka`.
pipeline: $(VENV)/pipeline.stamp

# A farm of three nodes on loopback; Ctrl-C stops it. FOR=60 stops it after 60 seconds.
run: $(VENV)/base.stamp
	$(BIN)/garlicfarm up --servers 3 $(if $(FOR),--for $(FOR))

# Tests that need only a processor use two of them. Farms of real processes, and Spark, mostly wait: four files at a time.
# tests/conftest.py names the tests that stay on one worker, and the first. TESTS="tests/spec tests/wire" runs some tests.
WAITING_TESTS := tests/end_to_end tests/spark
test: $(VENV)/all.stamp
ifdef TESTS
	$(BIN)/python -m pytest $(TESTS)
else
	$(BIN)/python -m pytest -q -n 2 -m "not soak and not interop and not packages" $(WAITING_TESTS:%=--ignore %)
	@if $(CAN_COMPILE); then $(MAKE) -j 2 test-waiting compiled && $(MAKE) test-compiled; \
	else $(MAKE) test-waiting && echo "no C compiler: the compiled modules are not tested"; fi
endif

# While these wait, `make test` compiles.
test-waiting: $(VENV)/all.stamp
	$(BIN)/python -m pytest -q -n 4 -m "not soak and not interop" $(WAITING_TESTS)

# The wheel of this platform with mypyc's modules (setup.py), unpacked aside: about a minute of one processor after a
# change of what is compiled. Packages without compiled modules are taken from this tree.
CAN_COMPILE = command -v $(CC) >/dev/null && test -e \
	"$$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("include"))')/Python.h"
WHEEL := $(PIP) wheel --no-deps --no-build-isolation
build/compiled.stamp: setup.py pyproject.toml $(shell find consensus -name '*.py') | $(VENV)/all.stamp
	rm -rf build/compiled build/compiled-wheel
	GARLICFARM_COMPILED=1 nice $(WHEEL) -w build/compiled-wheel .
	$(PIP) install --no-deps --target build/compiled build/compiled-wheel/*.whl
	rm -rf build/compiled/bin build/compiled/bridge build/compiled/gossip build/compiled/pipeline
	@touch $@

compiled: build/compiled.stamp

# They run again after a change of compiled sources, of tests or of the runner, and after a failure.
COMPILED_TESTS := tests/run_compiled.py $(shell find tests/spec tests/wire tests/simulation -name '*.py')
build/compiled-tests.stamp: build/compiled.stamp $(COMPILED_TESTS)
	PYTHONSAFEPATH=1 PYTHONPATH=build/compiled:. $(BIN)/python -m tests.run_compiled
	@touch $@

test-compiled: build/compiled-tests.stamp

# Sources, the pure wheel, with a C compiler also the wheel of this platform, which pip prefers where it fits; the Debian
# package out of these, and the container image. DEB_PYTHON=3.13 DEB_ARCH=arm64: for another release, for another machine.
DEB_OPTIONS = $(if $(DEB_PYTHON),--python $(DEB_PYTHON)) $(if $(DEB_ARCH),--arch $(DEB_ARCH))
dist: $(VENV)/all.stamp
	rm -rf dist build/lib* build/bdist* build/temp* build/mypyc
	@echo "building: sdist, wheel, compiled wheel, Debian package, image; this takes several minutes"
	$(BIN)/python setup.py -q sdist -d dist
	$(WHEEL) -w dist .
	@if $(CAN_COMPILE); then rm -rf build/lib*; GARLICFARM_COMPILED=1 $(WHEEL) -w dist .; fi
	@if command -v dpkg-deb >/dev/null; then $(BIN)/python -m deploy.deb $(DEB_OPTIONS) \
	$(if $(filter-out 3.11,$(DEB_PYTHON)),,&& $(BIN)/python -m deploy.oci $(if $(DEB_ARCH),--arch $(DEB_ARCH))); else \
	echo "no dpkg-deb: no Debian package and no container image are built (Debian: apt-get install dpkg)"; fi
	@ls -l dist

# Installs the Debian package in scratch copies of this machine, one alone and three on a LAN, and runs the image's steps:
# as root, on Debian. What a test lacks here (mmdebstrap, lintian) it names when it is skipped.
test-packages: dist
	$(BIN)/python -m pytest -q $(HOURS) -m packages tests/packages

# What takes minutes, or much time of all processors: rolling restarts until every refresh has come round, the pipeline's
# feedback with real processes, and the slowest of the other stories.
soak: $(VENV)/all.stamp
	GARLICFARM_SOAK=1 $(BIN)/python -m pytest -q -s $(HOURS) -m "soak or search"

check: $(VENV)/all.stamp
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m tests.structure

# Our structures and messages in the hands of the Java I2P classes and of a Java router on loopback; needs Maven and a
# Java development kit.
JAVA_I2P := 2.7.0
build/java/%-$(JAVA_I2P).jar:
	mvn -q -B dependency:copy -Dartifact=net.i2p:$*:$(JAVA_I2P) -DoutputDirectory=$(abspath build/java)

interop: $(VENV)/all.stamp build/java/i2p-$(JAVA_I2P).jar build/java/router-$(JAVA_I2P).jar
	$(BIN)/python -m pytest $(HOURS) -m interop tests/interop --ignore tests/interop/zmq --ignore tests/interop/kafka

# Our ØMQ Raft beside the npm package zmq-raft, on loopback; needs Node, a C++ compiler and the headers of libzmq. The
# package names zeromq.js 5.2.8, which Node 20 does not load, and does not name `debug`, which it needs: our package.json
# does. zeromq.js is compiled here by its own script, against the libzmq of this system: npm 11 leaves the scripts of
# installed packages out unless they are allowed, and the binaries that zeromq.js brings have a libzmq of their own.
ZMQ_PACKAGE := build/interop-zmq
$(ZMQ_PACKAGE).stamp: benchmarks/zmq_raft_js/package.json
	@command -v node >/dev/null && command -v npm >/dev/null || \
		{ echo "make interop-zmq needs Node >= 20 with npm (Debian: apt-get install nodejs npm)"; exit 1; }
	@command -v c++ >/dev/null && pkg-config --exists libzmq || { echo "make interop-zmq needs a C++ compiler, pkg-config \
	and the headers of libzmq (Debian: apt-get install g++ make python3 pkg-config libzmq3-dev)"; exit 1; }
	rm -rf $(ZMQ_PACKAGE)
	mkdir -p $(ZMQ_PACKAGE)
	cp $< $(ZMQ_PACKAGE)
	cd $(ZMQ_PACKAGE) && npm install --ignore-scripts --no-package-lock --no-audit --no-fund
	rm -rf $(ZMQ_PACKAGE)/node_modules/zeromq/prebuilds
	cd $(ZMQ_PACKAGE)/node_modules/zeromq && npm_config_zmq_external=true npm run build:libzmq -- --zmq_external=true \
		>../../build.log 2>&1 || { cat ../../build.log; exit 1; }
	cd $(ZMQ_PACKAGE) && test "$$(node -p 'require("zmq-raft"), require("zeromq").version')" = \
		"$$(pkg-config --modversion libzmq)"
	@touch $@

interop-zmq: $(VENV)/all.stamp $(ZMQ_PACKAGE).stamp
	$(BIN)/python -m pytest -s $(HOURS) -m interop tests/interop/zmq tests/end_to_end/test_zmq_how_to.py

# Our KRaft and our topic in the hands of Apache Kafka's servers, tools and clients, on loopback; needs Maven and a Java
# development kit. The jars (54 MB) and their versions are those of the pom; librdkafka comes with an extra of ours.
KAFKA_JAVA := tests/interop/kafka/java
KAFKA_BUILD := build/interop-kafka
$(KAFKA_BUILD)/jars.stamp: $(KAFKA_JAVA)/pom.xml
	@command -v mvn >/dev/null && command -v javac >/dev/null || \
		{ echo "make interop-kafka needs Maven and a Java development kit >= 17 (Debian: apt-get install maven)"; exit 1; }
	rm -rf $(KAFKA_BUILD)/jars
	mvn -q -B -f $< dependency:copy-dependencies -DincludeScope=runtime -DoutputDirectory=$(abspath $(KAFKA_BUILD))/jars
	@touch $@

$(KAFKA_BUILD)/classes/KafkaTools.class: $(KAFKA_JAVA)/KafkaTools.java $(KAFKA_BUILD)/jars.stamp
	mkdir -p $(@D)
	javac -Xlint:all,-processing,-classfile -Werror -cp '$(KAFKA_BUILD)/jars/*' -d $(@D) $<

# What Spark's own Kafka source and Kafka Connect's file sink consist of beside what is there already.
$(KAFKA_BUILD)/readers.stamp: $(KAFKA_JAVA)/readers-pom.xml $(KAFKA_BUILD)/jars.stamp
	rm -rf $(KAFKA_BUILD)/readers
	mvn -q -B -f $< dependency:copy-dependencies -DincludeScope=runtime -DoutputDirectory=$(abspath $(KAFKA_BUILD))/readers \
		-DincludeArtifactIds=spark-sql-kafka-0-10_2.13,spark-token-provider-kafka-0-10_2.13,kafka-clients,commons-pool2,connect-file
	@touch $@

$(VENV)/interop-kafka.stamp: $(BIN)/python pyproject.toml constraints.txt | $(VENV)/all.stamp
	$(PIP) install -e '.[interop-kafka]' -c constraints.txt
	@touch $@

# Clients of other makes: their drivers are ours, and their versions those of go.mod, package.json and requirements.txt.
$(KAFKA_BUILD)/go/stories: $(wildcard tests/interop/kafka/go/*)
	@command -v go >/dev/null || { echo "make interop-kafka needs Go >= 1.26"; exit 1; }
	mkdir -p $(@D)
	cd tests/interop/kafka/go && go build -o $(abspath $@) .

$(KAFKA_BUILD)/js.stamp: $(wildcard tests/interop/kafka/js/*)
	@command -v npm >/dev/null || \
		{ echo "make interop-kafka needs Node >= 20 with npm (Debian: apt-get install nodejs npm)"; exit 1; }
	rm -rf $(KAFKA_BUILD)/js
	mkdir -p $(KAFKA_BUILD)/js
	cp $^ $(KAFKA_BUILD)/js
	cd $(KAFKA_BUILD)/js && npm install --ignore-scripts --no-package-lock --no-audit --no-fund
	@touch $@

$(KAFKA_BUILD)/python.stamp: tests/interop/kafka/python/requirements.txt
	rm -rf $(KAFKA_BUILD)/python
	mkdir -p $(KAFKA_BUILD)
	$(BIN)/python -m venv $(KAFKA_BUILD)/python
	$(KAFKA_BUILD)/python/bin/python -m pip --disable-pip-version-check -q install -r $<
	@touch $@

interop-kafka: $(VENV)/interop-kafka.stamp $(KAFKA_BUILD)/classes/KafkaTools.class $(KAFKA_BUILD)/readers.stamp \
		$(KAFKA_BUILD)/go/stories $(KAFKA_BUILD)/js.stamp $(KAFKA_BUILD)/python.stamp
	@command -v kcat >/dev/null || echo "no kcat on this machine: its tests are skipped (Debian: apt-get install kcat)"
	$(BIN)/python -m pytest -s $(HOURS) -m interop tests/interop/kafka

# The documents as a site with search, in build/site; a link that leads nowhere fails.
$(VENV)/docs.stamp: $(BIN)/python pyproject.toml constraints.txt | $(VENV)/base.stamp
	$(PIP) install -e '.[docs]' -c constraints.txt
	@touch $@

docs: $(VENV)/docs.stamp
	$(BIN)/python -m tests.reference.site
	$(BIN)/zensical build --strict --clean -f build/zensical.toml
	@echo "build/site/index.html"

# Pictures of `top`, `up` and the page for browsers, of a farm of real processes: half a minute. `make docs` shows them.
gallery: $(VENV)/all.stamp
	$(BIN)/python -m tests.reference.gallery
	@echo "build/gallery/gallery.md"

# Writes the pages of docs/reference that are made of the code; a test fails when one is stale.
reference: $(VENV)/all.stamp
	$(BIN)/python -m tests.reference

# What the benchmarks compare with: a client for etcd, and PySyncObj; and ØMQ, whose sockets are measured.
$(VENV)/bench.stamp: constraints.txt $(VENV)/pipeline.stamp
	$(PIP) install -e '.[bench,zmq,kafka]' -c constraints.txt
	@touch $@

bench: $(VENV)/bench.stamp
	$(BIN)/python -m benchmarks

# Raft under faults. ARGS="consensus --strategy zmq --seeds 2000": one protocol only (append, fetch, zmq, kraft).
# ARGS="gossip-fuzz --count 1000000", ARGS="gossip-experiments lifeguard",
# ARGS="meta-lease-set-fuzz --count 500000", ARGS="i2cp-fuzz --count 500000",
# ARGS="garlic-farm-fuzz --count 500000", ARGS="entry-fuzz --count 500000", ARGS="garlic-farm-joins",
# ARGS="zmq-raft-fuzz --count 500000", ARGS="log-time --seeds 1000": the others.
simulate: $(VENV)/all.stamp
	$(BIN)/python -m tests.simulation $(ARGS)

# Ten thousand members with thirty peers each, beside a thousand: a quarter of an hour.
simulate-large: $(VENV)/base.stamp
	nice $(BIN)/garlicfarm simulate gossip --members 10000 --capacity 30 --churn 0.2 --periods 200 --compare 1000

# The pipeline under twenty SIGKILLs, and on a standalone cluster: a quarter of an hour, and five minutes.
soak-kills: $(VENV)/all.stamp
	$(BIN)/python -m tests.soak.pipeline_kills $(ARGS)

# Three nodes of an older commit's build become nodes of this tree's, one by one, under load: two minutes.
UPGRADE_FROM ?= 64bdf48
soak-upgrade: $(VENV)/all.stamp
	$(BIN)/python -m tests.soak.upgrade --from $(UPGRADE_FROM)

# All end-to-end stories with a watch on the event loops of their processes: a quarter of an hour. Fails for a file
# operation, a sync, a look-up, a sleep or a step above 50 ms in a loop that tests/loop_watch/exceptions.toml does not allow.
watch-loop: $(VENV)/all.stamp
	$(BIN)/python -m pytest -q $(HOURS) -m "not soak and not interop" tests/end_to_end --watch-loop

soak-cluster: $(VENV)/all.stamp
	$(BIN)/python -m tests.soak.pipeline_cluster $(ARGS)

clean:
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
