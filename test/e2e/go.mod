module kubevirtbmc.dev/test/e2e

go 1.26.0

require (
	kubevirtbmc.dev/pkg v0.0.0
	kubevirtbmc.dev/test v0.0.0
	kubevirtbmc.dev/test/cluster v0.0.0
)

replace (
	kubevirtbmc.dev/api => ../../api
	kubevirtbmc.dev/pkg => ../../pkg
	kubevirtbmc.dev/proto => ../../proto
	kubevirtbmc.dev/test => ..
	kubevirtbmc.dev/test/cluster => ../cluster
)
