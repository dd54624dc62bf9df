#!/usr/bin/env bash
# SPDX-FileCopyrightText: The KubeVirtBMC Authors
# SPDX-License-Identifier: Apache-2.0
#
# Copies the .proto files that ours import into third_party/, from the Go
# modules that carry them, so that buf needs no registry of its own.
set -euo pipefail
cd "$(dirname "$0")/.."

# dir MODULE@VERSION: the folder of a module in the module cache.
dir() {
	GOWORK=off GOFLAGS=-mod=mod go mod download -json "$1" | sed -n 's/^\t"Dir": "\(.*\)",$/\1/p'
}

# take SOURCE-DIR TARGET-DIR FILE...: copies files, keeping their paths.
take() {
	local from=$1 to=third_party/$2 file
	shift 2
	for file in "$@"; do
		install -D -m 0644 "$from/$file" "$to/$file"
	done
}

gateway1=$(dir github.com/grpc-ecosystem/grpc-gateway@v1.16.0)
take "$gateway1/third_party/googleapis" googleapis \
	LICENSE google/api/annotations.proto google/api/http.proto google/api/httpbody.proto
gateway2=$(dir github.com/grpc-ecosystem/grpc-gateway/v2@v2.33.0)
take "$gateway2" grpc-gateway \
	LICENSE protoc-gen-openapiv2/options/annotations.proto protoc-gen-openapiv2/options/openapiv2.proto
validate=$(dir github.com/bufbuild/protovalidate@v1.2.2)
take "$validate/proto/protovalidate" protovalidate buf/validate/validate.proto
install -m 0644 "$validate/LICENSE" third_party/protovalidate/LICENSE
