module kubevirtbmc.dev/cmd/kubevirtbmc

go 1.26.0

require (
	github.com/google/go-cmp v0.7.0
	github.com/google/uuid v1.6.0
	google.golang.org/grpc v1.85.0
	kubevirtbmc.dev/pkg v0.0.0
	kubevirtbmc.dev/proto v0.0.0
	sigs.k8s.io/yaml v1.6.0
)

require (
	buf.build/gen/go/bufbuild/protovalidate/protocolbuffers/go v1.36.12-20260825204119-511051f7f437.1 // indirect
	go.yaml.in/yaml/v2 v2.4.2 // indirect
	golang.org/x/net v0.62.0 // indirect
	golang.org/x/sys v0.49.0 // indirect
	golang.org/x/text v0.43.0 // indirect
	google.golang.org/genproto/googleapis/rpc v0.0.0-20261104224025-d1e00e9f33ab // indirect
	google.golang.org/protobuf v1.36.12 // indirect
)

replace (
	kubevirtbmc.dev/pkg => ../../pkg
	kubevirtbmc.dev/proto => ../../proto
)
