module kubevirtbmc.dev/cmd/virtbmc

go 1.26.0

require (
	golang.org/x/sync v0.25.0
	google.golang.org/grpc v1.85.0
	kubevirtbmc.dev/pkg v0.0.0
	kubevirtbmc.dev/proto v0.0.0
	kubevirtbmc.dev/services/frontend-ipmi v0.0.0
	kubevirtbmc.dev/services/frontend-redfish v0.0.0
)

require (
	buf.build/gen/go/bufbuild/protovalidate/protocolbuffers/go v1.36.12-20260825204119-511051f7f437.1 // indirect
	github.com/beorn7/perks v1.0.1 // indirect
	github.com/cespare/xxhash/v2 v2.3.0 // indirect
	github.com/grpc-ecosystem/grpc-gateway/v2 v2.33.0 // indirect
	github.com/munnerz/goautoneg v0.0.0-20191010083416-a7dc8b61c822 // indirect
	github.com/prometheus/client_golang v1.25.0 // indirect
	github.com/prometheus/client_model v0.6.3 // indirect
	github.com/prometheus/common v0.72.0 // indirect
	github.com/prometheus/procfs v0.22.0 // indirect
	golang.org/x/net v0.62.0 // indirect
	golang.org/x/sys v0.49.0 // indirect
	golang.org/x/text v0.43.0 // indirect
	google.golang.org/genproto/googleapis/api v0.0.0-20261110000943-09e21b237f2c // indirect
	google.golang.org/genproto/googleapis/rpc v0.0.0-20261104224025-d1e00e9f33ab // indirect
	google.golang.org/protobuf v1.36.12 // indirect
)

replace (
	kubevirtbmc.dev/pkg => ../../pkg
	kubevirtbmc.dev/proto => ../../proto
	kubevirtbmc.dev/services/frontend-ipmi => ../../services/frontend-ipmi
	kubevirtbmc.dev/services/frontend-redfish => ../../services/frontend-redfish
)
