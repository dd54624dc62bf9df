# SPDX-FileCopyrightText: The KubeVirtBMC Authors
# SPDX-License-Identifier: Apache-2.0

SHELL := /bin/bash
.DEFAULT_GOAL := help

# Builds without the workspace are the truth: go.work is for people and for
# tests over all modules.
MODULES := proto api pkg pkg/bmcresource pkg/kubeaccess services/power services/media services/controller services/frontend-ipmi services/frontend-redfish cmd/kubevirtbmc cmd/virtbmc test
# Not in the workspace: what they require must not lift anything there.
BED_MODULES := test/bmclib test/cluster test/e2e
BIN := $(CURDIR)/bin
VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)
COUNT ?= 3

.PHONY: help
help: ## Show this list.
	@awk 'BEGIN {FS = ":.*## "} /^[a-z0-9-]+:.*## / {printf "  %-18s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

##@ The two commands

.PHONY: run
run: build ## Run all services with three simulated VMs (COUNT=n for others) and print commands to try.
	@mkdir -p out
	bin/kubevirtbmc standalone --simulate $(COUNT) --ca-out out/ca.pem $(ARGS)

.PHONY: test
test: clients bin/gotestsum bin/grpcurl ## Run unit, contract, protocol and interop tests; no cluster needed.
	GOWORK=off hack/test.sh cluster test/cluster ./...
	GOWORK=off hack/test.sh bmclib test/bmclib ./...
	hack/test.sh test . work

##@ Building

.PHONY: build
build: ## Build kubevirtbmc (standalone mode) into bin/.
	GOWORK=off CGO_ENABLED=0 go -C cmd/kubevirtbmc build -trimpath -ldflags "-s -w -X main.version=$(VERSION)" -o $(BIN)/kubevirtbmc .

.PHONY: services
services: ## Build each service, and the dedicated agent, as a program of its own into bin/.
	@set -e; for program in $(addprefix services/,power media controller frontend-ipmi frontend-redfish) cmd/virtbmc; do \
		echo "bin/$${program##*/}"; \
		GOWORK=off CGO_ENABLED=0 go -C $$program build -trimpath -ldflags "-s -w" -o $(BIN)/$${program##*/} .; \
	done

.PHONY: generate
generate: tools-gen bin/buf ## Generate code and OpenAPI from the .proto files, code, the CRD and docs/api.md from the types of api/.
	bin/buf format -w proto
	bin/buf generate
	cd api && GOWORK=off $(BIN)/controller-gen object:headerFile=../hack/boilerplate.go.txt crd:crdVersions=v1 output:crd:dir=crds paths=./v1beta1
	GOWORK=off go -C api test ./v1beta1 -run TestReference -update

.PHONY: tidy
tidy: ## Bring the modules' requirements in step.
	go work sync
	@set -e; for m in $(MODULES); do echo "tidy $$m"; GOWORK=off go -C $$m mod tidy; done

##@ Checking

.PHONY: lint
lint: bin/buf bin/golangci-lint ## Lint Go, .proto files and shell scripts.
	hack/lint.sh

.PHONY: fmt
fmt: bin/buf bin/golangci-lint ## Format Go and .proto files.
	bin/buf format -w proto
	@set -e; for m in $(MODULES); do (cd $$m && GOWORK=off $(BIN)/golangci-lint fmt ./...); done

.PHONY: verify
verify: ## Fail if generated files or module requirements are out of step.
	hack/verify.sh

.PHONY: race
race: bin/gotestsum ## Run the unit tests under the race detector.
	hack/test.sh race . -race $(patsubst %,./%/...,$(filter-out proto test,$(MODULES)))

.PHONY: fuzz
fuzz: ## Fuzz each parser of network input for FUZZTIME (10s).
	hack/fuzz.sh

.PHONY: bench
bench: ## Run the benchmarks.
	go test -run '^$$' -bench . -benchmem $(patsubst %,./%/...,$(filter-out proto,$(MODULES)))

##@ Real clusters

LEVEL ?= kubevirt

.PHONY: cluster-up
cluster-up: ## Bring up a real cluster: LEVEL=api, kubevirt or real (see test/cluster).
	hack/install-cluster-packages.sh $(LEVEL)
	GOWORK=off go -C test/cluster run ./cmd/cluster up --level $(LEVEL)

.PHONY: cluster-down
cluster-down: ## Remove the cluster and whatever a crash left of one.
	GOWORK=off go -C test/cluster run ./cmd/cluster down

.PHONY: test-integration
test-integration: bin/gotestsum ## Run the suites on real KubeVirt (KUBECONFIG's, else one of level kubevirt) and compare it with the simulator.
	hack/install-cluster-packages.sh kubevirt
	GOWORK=off hack/test.sh bed test/cluster -tags integration -count 1 -timeout 30m ./...
	hack/with-cluster.sh api hack/test.sh controller-alone services/controller -tags integration -count 1 -p 1 -timeout 10m -run 'TestInstance|TestRebootPolicies|TestRollout|TestAPIs_of_others|TestDefinition_earlier' ./internal/reconciler ./internal/webhook
	hack/with-cluster.sh kubevirt hack/integration.sh

.PHONY: test-cert-manager
test-cert-manager: bin/gotestsum ## Let cert-manager's real controllers renew certificates under load (builds them: minutes).
	hack/install-cluster-packages.sh api
	GOWORK=off FORMAT=standard-verbose hack/with-cluster.sh api hack/test.sh cert-manager test -tags integration -count 1 -timeout 20m -v -run 'TestCertManager_underLoadOfKubernetes' ./processes

.PHONY: e2e
e2e: bin/gotestsum bin/grpcurl clients ## Drive a running VM with ipmitool and curl (KUBECONFIG's cluster, else one of level real).
	hack/install-cluster-packages.sh real
	GOWORK=off FORMAT=standard-verbose hack/test.sh e2e test/e2e -tags e2e -count 1 -timeout 30m -v ./...

##@ Tools

.PHONY: tools
tools: tools-gen bin/buf bin/golangci-lint bin/gotestsum bin/grpcurl ## Build the pinned tools into bin/.

.PHONY: tools-gen
tools-gen: bin/protoc-gen-go

bin/protoc-gen-go: tools/gen/go.mod
	GOWORK=off GOBIN=$(BIN) go -C tools/gen install tool
	@touch $@

bin/buf: tools/buf/go.mod
	GOWORK=off GOBIN=$(BIN) go -C tools/buf install tool
	@touch $@

bin/golangci-lint: tools/lint/go.mod
	GOWORK=off GOBIN=$(BIN) go -C tools/lint install tool
	@touch $@

bin/gotestsum bin/grpcurl &: tools/test/go.mod
	GOWORK=off GOBIN=$(BIN) go -C tools/test install tool
	@touch bin/gotestsum bin/grpcurl

.PHONY: clients
clients: ## Install the real BMC clients that the tests use (Debian packages; needs root), or name those missing.
	hack/install-clients.sh

.PHONY: clean
clean: ## Remove what was built.
	rm -rf bin out
