module kubevirtbmc.dev/test

go 1.26.0

require (
	github.com/stmcginnis/gofish v0.22.0
	google.golang.org/grpc v1.85.0
	google.golang.org/protobuf v1.36.12
	kubevirtbmc.dev/pkg v0.0.0
	kubevirtbmc.dev/proto v0.0.0
)

require (
	buf.build/gen/go/bufbuild/protovalidate/protocolbuffers/go v1.36.12-20260825204119-511051f7f437.1 // indirect
	github.com/cespare/xxhash/v2 v2.3.0 // indirect
	github.com/grpc-ecosystem/grpc-gateway/v2 v2.33.0 // indirect
	golang.org/x/net v0.62.0 // indirect
	golang.org/x/sys v0.49.0 // indirect
	golang.org/x/text v0.43.0 // indirect
	google.golang.org/genproto/googleapis/api v0.0.0-20261110000943-09e21b237f2c // indirect
	google.golang.org/genproto/googleapis/rpc v0.0.0-20261104224025-d1e00e9f33ab // indirect
)

replace (
	kubevirtbmc.dev/pkg => ../pkg
	kubevirtbmc.dev/proto => ../proto
)
