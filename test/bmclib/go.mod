module kubevirtbmc.dev/test/bmclib

go 1.26.0

require (
	github.com/bmc-toolbox/bmclib/v2 v2.3.5
	kubevirtbmc.dev/test v0.0.0
)

require (
	dario.cat/mergo v1.0.1 // indirect
	github.com/Jeffail/gabs/v2 v2.7.0 // indirect
	github.com/VictorLowther/simplexml v0.0.0-20180716164440-0bff93621230 // indirect
	github.com/VictorLowther/soap v0.0.0-20150314151524-8e36fca84b22 // indirect
	github.com/bmc-toolbox/common v0.0.0-20250112191656-b6de52e8303d // indirect
	github.com/ghodss/yaml v1.0.0 // indirect
	github.com/go-logr/logr v1.4.4 // indirect
	github.com/hashicorp/errwrap v1.1.0 // indirect
	github.com/hashicorp/go-multierror v1.1.1 // indirect
	github.com/jacobweinstock/iamt v0.0.0-20230502042727-d7cdbe67d9ef // indirect
	github.com/jacobweinstock/registrar v0.4.7 // indirect
	github.com/pkg/errors v0.9.1 // indirect
	github.com/satori/go.uuid v1.2.0 // indirect
	github.com/stmcginnis/gofish v0.20.0 // indirect
	go.opentelemetry.io/otel v1.29.0 // indirect
	go.opentelemetry.io/otel/trace v1.29.0 // indirect
	golang.org/x/net v0.62.0 // indirect
	golang.org/x/text v0.43.0 // indirect
	gopkg.in/yaml.v2 v2.4.0 // indirect
	kubevirtbmc.dev/pkg v0.0.0 // indirect
)

replace (
	kubevirtbmc.dev/api => ../../api
	kubevirtbmc.dev/pkg => ../../pkg
	kubevirtbmc.dev/pkg/bmcresource => ../../pkg/bmcresource
	kubevirtbmc.dev/pkg/kubeaccess => ../../pkg/kubeaccess
	kubevirtbmc.dev/proto => ../../proto
	kubevirtbmc.dev/test => ..
)

// Another one than bmclib's, which the Redfish tests of the module test need.
exclude github.com/stmcginnis/gofish v0.22.0
