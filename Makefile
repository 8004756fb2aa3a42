# Every target says what it does behind ##; `make` alone lists them.
.DEFAULT_GOAL := help
SHELL := /bin/bash

GO ?= go
BUF := $(GO) tool -modfile=$(CURDIR)/tools/buf/go.mod buf
LINT := $(GO) tool -modfile=$(CURDIR)/tools/lint/go.mod golangci-lint
FUZZTIME ?= 10s
TESTTIMEOUT ?= 15m
# Modules of their own: what they need is not in the product's go.mod, and the checker shares nothing with what it checks.
NESTED := examples tools/wsconf web/sample/e2e

.PHONY: help
help: ## List the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sort | awk -F':.*## ' '{printf "  %-12s %s\n", $$1, $$2}'

.PHONY: run
run: ## Everything in one process on embedded parts: gateway, StateServer on SQLite, Redis-compatible server
	$(GO) build -o bin/ ./cmd/sluice
	@exec bin/sluice dev

.PHONY: test
test: deps ## The whole test suite under the race detector; installs the servers it needs
	$(GO) test -race -timeout $(TESTTIMEOUT) ./...
	@set -e; for m in $(NESTED); do echo "cd $$m && $(GO) test -race ./..."; (cd $$m && $(GO) test -race -timeout $(TESTTIMEOUT) ./...); done

.PHONY: mainpath
mainpath: deps ## The main path at length: 10,000 messages each way, undisturbed and with kills in between
	SLUICE_TEST_NO_RACE=1 SLUICE_TEST_MESSAGES=10000 $(GO) test -count=1 -timeout $(TESTTIMEOUT) -v -run 'EachWay|Kills' ./test/

.PHONY: deps
deps: ## Install what the tests need and lack (redis-server, mariadb-server, chromium, nodejs, npm)
	@./scripts/deps

.PHONY: build
build: ## The programs, into bin/
	$(GO) build -trimpath -o bin/ ./cmd/...

.PHONY: gen
gen: ## Generate the code of api/ from the protos
	cd api && $(BUF) format -w && $(BUF) generate
	cd examples/documents-client/protocol && $(BUF) generate

.PHONY: check-gen
check-gen: ## Fail if the protos are not linted and formatted, or the generated code differs from them
	cd api && $(BUF) lint && $(BUF) format -d --exit-code >/dev/null
	@scripts/check-gen $(BUF)

.PHONY: lint
lint: ## golangci-lint with the list in .golangci.yml
	$(LINT) run ./...
	@set -e; for m in $(NESTED); do echo "cd $$m && golangci-lint run ./..."; (cd $$m && $(LINT) run ./...); done

.PHONY: fuzz
fuzz: ## Run every fuzz target for FUZZTIME (default 10s)
	@scripts/fuzz $(FUZZTIME)

.PHONY: bench-go
bench-go: ## The packages' own micro-benchmarks
	$(GO) test -run '^$$' -bench . -benchmem ./...
