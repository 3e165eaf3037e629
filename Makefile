# Gangway. "make help" lists the targets; everything runs on Linux with Go and make.
SHELL       := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

GO      ?= go
PREFIX  ?= /usr/local
DESTDIR ?=
T       ?= 60s

# The stamp is the commit's, not the clock's, so that two builds of a commit are
# the same bytes. Outside a git tree it says so.
VERSION := $(shell git describe --tags --match 'v*' --dirty 2>/dev/null || echo v0.0.0-dev)
COMMIT  := $(shell git rev-parse -q --verify HEAD 2>/dev/null)
DATE    := $(shell git log -1 --format=%cI 2>/dev/null)
CLI     := github.com/gangway-hpc/gangway/internal/cli
STAMP   := -trimpath -ldflags "-s -w -X $(CLI).version=$(VERSION) -X $(CLI).commit=$(COMMIT) -X $(CLI).date=$(DATE)"
MAINS   := ./cmd/gangway ./cmd/gangwayd
TOOL    := $(GO) tool -modfile=tools/go.mod
# What has goroutines, and no tests that only start other programs.
RACE    := ./internal/... ./squashfs/... ./image/... ./runtime/... ./hooks/... ./launcher/... ./sched/server
# go-nvml wraps what NVIDIA has deprecated too, and gcc would say so 30 times.
export CGO_CFLAGS := -O2 -g -Wno-deprecated-declarations
# Tests of random input start here, so that what fails is the change's doing;
# test-long takes a new seed each time.
export RAPID_SEED ?= 20261121

.PHONY: help build build-all demo gangway-nvml test test-long test-vm test-gpu check race bench fuzz install deb clean

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):[^#]*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 22

build: ## static bin/gangway and bin/gangwayd for this machine
	CGO_ENABLED=0 $(GO) build $(STAMP) -o bin/ $(MAINS)

build-all: ## both programs for amd64 and arm64 in bin/linux-ARCH/
	for arch in amd64 arm64; do \
		CGO_ENABLED=0 GOOS=linux GOARCH=$$arch $(GO) build $(STAMP) -o bin/linux-$$arch/ $(MAINS); \
	done

# The programs are static: one of them goes into an image.
demo: build ## the main job on this machine: registry, cluster, training; DEMO=quick takes seconds
	CGO_ENABLED=0 $(GO) build -trimpath -o bin/ ./test/demo ./examples/iris
	bin/demo -quick=$(if $(filter quick,$(DEMO)),true,false)

gangway-nvml: ## bin/gangway-nvml, which needs a C compiler
	CGO_ENABLED=1 $(GO) build $(STAMP) -o bin/ ./cmd/gangway-nvml

test: check build-all ## everything CI runs: check, both builds, all tests; says what was skipped
	$(GO) run ./test/gotest -again -show '^TestLinks$$' -timeout 30m ./...

test-long: ## all tests with long random runs (hours)
	RAPID_SEED=0 GANGWAY_TEST_LONG=1 $(GO) run ./test/gotest -count=1 -timeout 6h ./...

test-vm: ## cgroup v2, device filters and systemd, in a virtual machine (needs qemu-system-x86)
	$(GO) run ./test/vm

# Static, because it starts itself in containers; it can be carried to a machine without Go.
test-gpu: build ## GPUs in containers, on a machine that has one
	CGO_ENABLED=0 $(GO) build -trimpath -o bin/test-gpu ./test/gpu
	bin/test-gpu

check: race ## gofumpt, vet, go fix, staticcheck, deadcode, race detector
	out=$$($(TOOL) gofumpt -l .); echo -n "$$out"; test -z "$$out"
	$(GO) vet ./...
	$(GO) fix -diff ./...
	$(TOOL) staticcheck ./...
	out=$$($(TOOL) deadcode -test ./...); echo -n "$$out"; test -z "$$out"

# -short: the full random runs are in "make test"; here the races count.
race:
	@if command -v "$$($(GO) env CC)" >/dev/null; then set -x; CGO_ENABLED=1 $(GO) run ./test/gotest -again -race -short -timeout 30m $(RACE); \
	else echo "no C compiler: the race detector did not run"; fi

bench: build ## us and our peers in one run, with ratios
	test/bench/run.sh

fuzz: ## every fuzz target for T (60s)
	for pkg in $$($(GO) list ./...); do \
		for name in $$($(GO) test -list '^Fuzz' $$pkg | grep '^Fuzz' || true); do \
			$(GO) test -run '^$$' -fuzz "^$$name$$" -fuzzminimizetime 10x -fuzztime $(T) $$pkg; \
		done; \
	done

install: build ## programs, manual pages and completions into DESTDIR/PREFIX
	for p in gangway gangwayd; do \
		install -D -m 755 bin/$$p -t $(DESTDIR)$(PREFIX)/bin; \
		bin/$$p man $(DESTDIR)$(PREFIX)/share/man/man1; \
		install -D -m 644 <(bin/$$p completion bash) $(DESTDIR)$(PREFIX)/share/bash-completion/completions/$$p; \
		install -D -m 644 <(bin/$$p completion zsh) $(DESTDIR)$(PREFIX)/share/zsh/site-functions/_$$p; \
		install -D -m 644 <(bin/$$p completion fish) $(DESTDIR)$(PREFIX)/share/fish/vendor_completions.d/$$p.fish; \
	done

# Where the package goes, and what it holds is staged.
DEB_DIR := bin
deb: build ## bin/gangway_VERSION_ARCH.deb: programs, units, manual pages, completions
	rm -rf $(DEB_DIR)/deb
	$(MAKE) --no-print-directory -s install DESTDIR=$(DEB_DIR)/deb PREFIX=/usr
	packaging/stage $(DEB_DIR)/deb
	ARCH=$$($(GO) env GOARCH) VERSION=$(VERSION) STAGE=$(DEB_DIR)/deb SOURCE_DATE_EPOCH=$$(git log -1 --format=%ct 2>/dev/null || date +%s) \
		$(TOOL:go.mod=nfpm.mod) nfpm package -f packaging/nfpm.yaml -p deb -t $(DEB_DIR)/

clean: ## remove bin/
	rm -rf bin
