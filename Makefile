# Two commands set up everything on a fresh machine with Python >= 3.11: `make run` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check -q
# With compiled modules on the disk, the workers of pytest share the work of compiling tests and sources.
unexport PYTHONDONTWRITEBYTECODE
# Time limits of tests outside `make test`; pyproject.toml has the limits of `make test`.
HOURS := --timeout 3600 -o faulthandler_timeout=4000

.PHONY: run requirements test test-waiting test-spark dist test-packages soak \
	soak-jepsen soak-upgrade soak-kills soak-cluster watch-loop check interop interop-i2p interop-founding interop-s3 \
	interop-hdfs interop-connect interop-zmq interop-kafka bench simulate simulate-farm simulate-large pipeline docs \
	gallery reference clean

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "garlicfarm needs Python 3.11 or newer; try: make PYTHON=python3.12 run")'
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); exit 1; }

# pip verifies the SHA-256 of each file of the base, the production extras and the build backend. Modules are compiled
# here; otherwise each of the first processes of `make run` would compile all of them.
HASHED := requirements/build.txt requirements/base.txt
$(VENV)/base.stamp: $(BIN)/python pyproject.toml $(HASHED)
	@echo "installing the packages of a node into $(VENV): half a minute"
	@$(PIP) install --require-hashes $(HASHED:%=-r %) || \
		{ echo "the packages could not be installed: check the network, then run the same make again"; exit 1; }
	@$(PIP) install --no-deps --no-build-isolation -e .
	@$(BIN)/python -m compileall -q bridge consensus gossip
	@touch $@

# Packages used only by tests, benchmarks and documents have versions without hashes, because nodes do not run them. The
# runs of `make test` start together, so each would compile the modules that they share; pytest compiles `test_*.py`.
$(VENV)/all.stamp: constraints.txt $(VENV)/pipeline.stamp
	$(PIP) install -e '.[pipeline,zmq,kafka,test]' -c constraints.txt
	@$(BIN)/python -m compileall -q -j 2 -x '/test_' pipeline tests
	@touch $@

$(VENV)/pipeline.stamp: requirements/extras.txt $(VENV)/base.stamp
	$(PIP) install --require-hashes $(HASHED:%=-r %) -r $<
	@touch $@

# Run this after a change of the dependencies or of constraints.txt: it queries the index for the hashes of all files.
requirements: $(BIN)/python
	$(BIN)/python requirements/pin.py
	$(BIN)/python -m deploy.platforms

# The base and the extras `pipeline`, `zmq` and `kafka`.
pipeline: $(VENV)/pipeline.stamp

# A farm of three nodes on loopback; Ctrl-C stops it. FOR=60 stops it after 60 seconds.
run: $(VENV)/base.stamp
	$(BIN)/garlicfarm up --nodes 3 $(if $(FOR),--for $(FOR))

# Eight runs at the same time. Tests with real processes mostly wait, so they have four workers; the tests with Spark
# share one JVM and one process. The other tests use the processors that they leave: `nice` prefers the real processes,
# which would fail without processor time. Each worker collects all tests of its run, so these runs have no workers.
# Each run's output appears at its end. A failed run does not prevent the others.
# tests/conftest.py orders tests. TESTS="tests/spec tests/wire" runs some tests.
PARTS := node-1 node-2 pipeline-1 pipeline-2 simulation others
.PHONY: $(PARTS:%=test-%)
test: $(VENV)/all.stamp
ifdef TESTS
	$(BIN)/python -m pytest $(TESTS)
else
	@echo "eight runs at the same time: the output of each appears at its end"
	@$(MAKE) -k -j 8 $(if $(filter output-sync,$(.FEATURES)),--output-sync=target) test-waiting test-spark \
		$(PARTS:%=test-%)
endif

test-waiting: $(VENV)/all.stamp
	$(BIN)/python -m pytest -q -n 4 -m "not soak and not interop" tests/end_to_end

# The first test starts the JVM and its Python workers, which take minutes on a loaded machine.
test-spark: $(VENV)/all.stamp
	$(BIN)/python -m pytest -q --timeout 600 -o faulthandler_timeout=900 -m "not soak and not interop" tests/spark

# The two parts of a folder are divided by the first letters of the modules.
PART_node-1 := tests/node --ignore-glob 'tests/node/test_[!a-j]*'
PART_node-2 := tests/node --ignore-glob 'tests/node/test_[a-j]*'
PART_pipeline-1 := tests/pipeline --ignore-glob 'tests/pipeline/test_[!a-l]*'
PART_pipeline-2 := tests/pipeline --ignore-glob 'tests/pipeline/test_[a-l]*'
PART_simulation := tests/simulation
PART_others := $(patsubst %,--ignore tests/%,end_to_end interop node pipeline simulation spark)
$(PARTS:%=test-%): test-%: $(VENV)/all.stamp
	nice -n 3 $(BIN)/python -m pytest -q -m "not soak and not interop and not packages" $(PART_$*)

# Builds the sources, the wheel, the Debian package and the container image. DEB_PYTHON=3.13 DEB_ARCH=arm64 select
# another Debian release and architecture.
WHEEL := $(PIP) wheel --no-deps --no-build-isolation
STEP = printf '%s  %s\n' "$$(date +%T)"
DEB_OPTIONS = $(if $(DEB_PYTHON),--python $(DEB_PYTHON)) $(if $(DEB_ARCH),--arch $(DEB_ARCH))
dist: $(VENV)/all.stamp
	rm -rf dist build/lib* build/bdist*
	@$(STEP) "1 of 4: the sources"
	$(BIN)/python setup.py -q sdist -d dist
	@$(STEP) "2 of 4: the wheel"
	$(WHEEL) -w dist .
	@if command -v dpkg-deb >/dev/null; then $(STEP) "3 of 4: the Debian package" && $(BIN)/python -m deploy.deb \
	$(DEB_OPTIONS) $(if $(filter-out 3.11,$(DEB_PYTHON)),,&& $(STEP) "4 of 4: the container image" && \
	$(BIN)/python -m deploy.oci $(if $(DEB_ARCH),--arch $(DEB_ARCH))); else \
	echo "dpkg-deb is missing: skipping the Debian package and the container image (Debian: apt-get install dpkg)"; fi
	@ls -l dist

# Installs the Debian package in scratch copies of this machine: one alone, one with a real systemd, three on a LAN; and
# runs the image's steps. Three more are upgraded from the build of an older commit.
# Needs root on Debian. A skipped test names the missing program (mmdebstrap, lintian).
test-packages: dist
	$(BIN)/python -m pytest -q $(HOURS) -m packages tests/packages

# Tests that take minutes or much processor time: rolling restarts until each refresh has run, the pipeline's feedback
# with real processes, searches, and other slow stories.
soak: $(VENV)/all.stamp
	GARLICFARM_SOAK=1 $(BIN)/python -m pytest -q -s $(HOURS) -m "soak or search"

check: $(VENV)/all.stamp
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m tests.structure

# The Java I2P classes and a Java router on loopback read our structures and messages. Needs Maven and a Java
# development kit.
JAVA_I2P := 2.7.0
build/java/%-$(JAVA_I2P).jar:
	mvn -q -B dependency:copy -Dartifact=net.i2p:$*:$(JAVA_I2P) -DoutputDirectory=$(abspath build/java)

interop: $(VENV)/all.stamp build/java/i2p-$(JAVA_I2P).jar build/java/router-$(JAVA_I2P).jar
	$(BIN)/python -m pytest $(HOURS) -m interop tests/interop --ignore tests/interop/zmq --ignore tests/interop/kafka \
		--ignore tests/interop/i2p --ignore tests/interop/s3 --ignore tests/interop/hdfs

# A closed I2P network of 16 i2pd and four Java routers in a network namespace without a route out; the farm's stories
# on it. Needs root, Debian's archive (its packages of i2pd and of the SSH server are unpacked, not installed),
# iproute2, Maven and a Java development kit. TESTS="tests/interop/i2p/test_network.py" runs some stories. Maven does
# not offer Java's SAM bridge: I2P_SOURCE=DIRECTORY, a checkout of its repository i2p.i2p, adds the story with it.
I2P_BUILD := build/interop-i2p
I2P_JAVA := tests/interop/i2p/java
COUNTED := tests/interop/i2p/test_founding.py
$(I2P_BUILD)/packages.stamp:
	@command -v apt-get >/dev/null && command -v dpkg >/dev/null || \
		{ echo "make interop-i2p needs apt-get and dpkg, which unpack Debian's packages"; exit 1; }
	rm -rf $(I2P_BUILD)/archives $(I2P_BUILD)/root
	mkdir -p $(I2P_BUILD)/archives/partial
	apt-get -qq -y --no-install-recommends --reinstall --download-only \
		-o Dir::Cache::archives=$(abspath $(I2P_BUILD))/archives install i2pd openssh-server
	for package in $(I2P_BUILD)/archives/*.deb; do dpkg -x $$package $(I2P_BUILD)/root || exit 1; done
	@touch $@

$(I2P_BUILD)/jars.stamp: $(I2P_JAVA)/pom.xml
	@command -v mvn >/dev/null && command -v javac >/dev/null || \
		{ echo "make interop-i2p needs Maven and a Java development kit >= 17 (Debian: apt-get install maven)"; exit 1; }
	rm -rf $(I2P_BUILD)/jars
	mvn -q -B -f $< dependency:copy-dependencies -DoutputDirectory=$(abspath $(I2P_BUILD))/jars
	@touch $@

$(I2P_BUILD)/classes/NetworkRouter.class: $(wildcard $(I2P_JAVA)/*.java) $(I2P_BUILD)/jars.stamp
	mkdir -p $(@D)
	javac -Xlint:all,-processing,-classfile,-path -Werror -cp '$(I2P_BUILD)/jars/*' -d $(@D) $(filter %.java,$^)

I2P_SAM := apps/sam/java/src/net/i2p/sam
$(I2P_BUILD)/sam.stamp: $(I2P_BUILD)/jars.stamp
	mkdir -p $(I2P_BUILD)/sam
	javac -nowarn -cp '$(I2P_BUILD)/jars/*' -d $(I2P_BUILD)/sam $(I2P_SOURCE)/$(I2P_SAM)/*.java
	@touch $@

interop-i2p: $(VENV)/all.stamp $(I2P_BUILD)/packages.stamp $(I2P_BUILD)/classes/NetworkRouter.class \
		$(if $(I2P_SOURCE),$(I2P_BUILD)/sam.stamp)
	$(BIN)/python -m tests.interop.i2p -s -v $(HOURS) -m interop $(or $(TESTS),tests/interop/i2p --ignore $(COUNTED))

# From the packages of `make dist` and of Debian's i2pd to a published address, on three machines with systemd next to
# that network: the commands and questions of the operator are counted.
interop-founding: dist
	$(MAKE) interop-i2p TESTS=$(COUNTED)

# Our ØMQ Raft with the npm package zmq-raft, on loopback. Needs Node, a C++ compiler and the headers of libzmq. The
# package requires zeromq.js 5.2.8, which Node 20 cannot load, and omits its dependency `debug`; our package.json
# corrects both. zeromq.js is compiled here with its own script, against this system's libzmq: npm 11 runs scripts of
# packages only if they are allowed, and the prebuilt binaries of zeromq.js contain another libzmq.
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

# Apache Kafka's servers, tools and clients use our KRaft and our topic, on loopback. Needs Maven and a Java development
# kit. The pom has the jars (54 MB) and their versions; librdkafka comes with the extra `interop-kafka`.
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

# The additional jars of Spark's Kafka source and Kafka Connect's file sink.
$(KAFKA_BUILD)/readers.stamp: $(KAFKA_JAVA)/readers-pom.xml $(KAFKA_BUILD)/jars.stamp
	rm -rf $(KAFKA_BUILD)/readers
	mvn -q -B -f $< dependency:copy-dependencies -DincludeScope=runtime -DoutputDirectory=$(abspath $(KAFKA_BUILD))/readers \
		-DincludeArtifactIds=spark-sql-kafka-0-10_2.13,spark-token-provider-kafka-0-10_2.13,kafka-clients,commons-pool2,connect-file
	@touch $@

$(VENV)/interop-kafka.stamp: $(BIN)/python pyproject.toml constraints.txt | $(VENV)/all.stamp
	$(PIP) install -e '.[interop-kafka]' -c constraints.txt
	@touch $@

# Other clients: the drivers are ours; go.mod, package.json and requirements.txt have the versions.
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

# The pipeline's tables in a bucket of MinIO, which Go builds in some minutes. Needs Go 1.24 or newer.
MINIO := v0.0.0-20260212201848-7aac2a2c5b7c
build/interop-s3/minio:
	GOBIN=$(abspath $(@D)) go install github.com/minio/minio@$(MINIO)

interop-s3: $(VENV)/all.stamp build/interop-s3/minio
	$(BIN)/python -m pytest $(HOURS) -m "interop or soak" tests/interop/s3

# The pipeline's tables in HDFS: Hadoop's name node and a data node in one process. Needs Maven and Java 17 or newer.
HDFS_BUILD := build/interop-hdfs
$(HDFS_BUILD)/jars.stamp: tests/interop/hdfs/pom.xml
	@command -v mvn >/dev/null && command -v java >/dev/null || \
		{ echo "make interop-hdfs needs Maven and Java >= 17 (Debian: apt-get install maven)"; exit 1; }
	rm -rf $(HDFS_BUILD)/jars
	mvn -q -B -f $< dependency:copy-dependencies -DincludeScope=runtime -DoutputDirectory=$(abspath $(HDFS_BUILD))/jars
	@touch $@

$(VENV)/hdfs.stamp: $(BIN)/python pyproject.toml constraints.txt | $(VENV)/all.stamp
	$(PIP) install -e '.[pipeline,hdfs]' -c constraints.txt
	@touch $@

# A client of Spark Connect. Needs about a minute.
$(VENV)/interop-connect.stamp: $(BIN)/python pyproject.toml constraints.txt | $(VENV)/all.stamp
	$(PIP) install -e '.[pipeline,interop-connect]' -c constraints.txt
	@touch $@

interop-connect: $(VENV)/interop-connect.stamp
	$(BIN)/python -m pytest $(HOURS) -m interop tests/interop/test_spark_connect.py

interop-hdfs: $(VENV)/hdfs.stamp $(HDFS_BUILD)/jars.stamp
	$(BIN)/python -m pytest $(HOURS) -m "interop or soak" tests/interop/hdfs

interop-kafka: $(VENV)/interop-kafka.stamp $(KAFKA_BUILD)/classes/KafkaTools.class $(KAFKA_BUILD)/readers.stamp \
		$(KAFKA_BUILD)/go/stories $(KAFKA_BUILD)/js.stamp $(KAFKA_BUILD)/python.stamp
	@command -v kcat >/dev/null || echo "kcat is missing: its tests are skipped (Debian: apt-get install kcat)"
	$(BIN)/python -m pytest -s $(HOURS) -m interop tests/interop/kafka

# Builds the documents as a site with search, in build/site; fails for a broken link.
$(VENV)/docs.stamp: $(BIN)/python pyproject.toml constraints.txt | $(VENV)/base.stamp
	$(PIP) install -e '.[docs]' -c constraints.txt
	@touch $@

docs: $(VENV)/docs.stamp
	$(BIN)/python -m tests.reference.site
	$(BIN)/zensical build --strict --clean -f build/zensical.toml
	@echo "build/site/index.html"

# Makes pictures of `top`, `up` and the browser page in their states: minutes. `make docs` shows them. SURFACES="top"
# makes the pictures of one surface.
gallery: $(VENV)/all.stamp
	$(BIN)/python -m tests.gallery $(SURFACES)
	@echo "build/gallery/gallery.md"

# Writes the generated pages of docs/reference; a test fails if a page is stale.
reference: $(VENV)/all.stamp
	$(BIN)/python -m tests.reference

# Packages for benchmarks: ØMQ and Kafka, whose parts are measured.
$(VENV)/bench.stamp: constraints.txt $(VENV)/pipeline.stamp
	$(PIP) install -e '.[zmq,kafka]' -c constraints.txt
	@touch $@

bench: $(VENV)/bench.stamp
	$(BIN)/python -m benchmarks

# Simulates Raft under faults. ARGS="consensus --strategy zmq --seeds 2000" runs one protocol (append, fetch, zmq,
# kraft). Other simulations and searches:
# ARGS="gossip-fuzz --count 1000000", ARGS="gossip-experiments lifeguard",
# ARGS="NAME --count 500000" with a fuzzer of tests/simulation/decoders.py, ARGS="garlic-farm-joins",
# ARGS="log-time --seeds 1000".
simulate: $(VENV)/all.stamp
	$(BIN)/python -m tests.simulation $(ARGS)

# Trials of whole farms in virtual time, under faults and load. SEEDS=0:20 ARGS="--minimize"; the page simulation.md has
# all options.
SEEDS ?= 0:20
JOBS ?= 2
simulate-farm: $(VENV)/all.stamp
	nice $(BIN)/python -m tests.simulation.farm --seeds $(SEEDS) --jobs $(JOBS) $(ARGS)

# Compares ten thousand members, with thirty peers each, with a thousand members: a quarter of an hour. Then ten
# thousand trials of farms in chunks: about 19 hours of processor time. An interrupted run continues: it repeats neither
# the comparison in build/gossip-large.txt nor the finished chunks in build/farm-trials.json. Delete both to begin
# again.
build/gossip-large.txt: | $(VENV)/all.stamp
	@mkdir -p $(@D)
	nice $(BIN)/garlicfarm simulate gossip --members 10000 --capacity 30 --churn 0.2 --periods 200 --compare 1000 >$@.new
	@mv $@.new $@

simulate-large: build/gossip-large.txt
	@cat $<
	nice $(BIN)/python -m tests.simulation.farm --seeds 0:10000 --jobs $(JOBS) --minimize --resume build/farm-trials.json

# Visits every state of bounded groups in the model of consensus: a quarter of an hour of processor time.
# ARGS="--small" explores the small worlds of the tests, ARGS="fetch" the worlds whose names begin so.
.PHONY: model
model: $(VENV)/base.stamp
	nice $(BIN)/python -m tests.spec.model $(ARGS)

# Runs the pipeline under twenty SIGKILLs (a quarter of an hour); `soak-cluster`: on a standalone cluster (5 minutes).
soak-kills: $(VENV)/all.stamp
	$(BIN)/python -m tests.soak.pipeline_kills $(ARGS)

# Upgrades three nodes from the build of an older commit to this tree's, one by one, under load: two minutes.
UPGRADE_FROM ?= 64bdf48
soak-upgrade: $(VENV)/all.stamp
	$(BIN)/python -m tests.soak.upgrade --from $(UPGRADE_FROM)

# Runs five nodes in network namespaces under partitions, delays, wrong clocks, bad disks, pauses, kills and power cuts,
# and judges the history of clients of three protocols: docs/reference/soak-jepsen.md. Needs root, iproute2, nftables
# and a C compiler. ARGS="--seed 7 --runs 3 --minutes 5" selects the faults.
soak-jepsen: $(VENV)/all.stamp
	$(BIN)/python -m tests.soak.jepsen $(ARGS)

# Runs the end-to-end tests and watches the event loops of their processes: a quarter of an hour. Fails for a file
# operation, sync, name look-up, sleep or step above 50 ms in a loop, except those in tests/loop_watch/exceptions.toml.
watch-loop: $(VENV)/all.stamp
	$(BIN)/python -m pytest -q $(HOURS) -m "not soak and not interop" tests/end_to_end --watch-loop

soak-cluster: $(VENV)/all.stamp
	$(BIN)/python -m tests.soak.pipeline_cluster $(ARGS)

clean:
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
