module kubevirtbmc.dev/test

go 1.26.0

require (
	github.com/stmcginnis/gofish v0.22.0
	kubevirtbmc.dev/pkg v0.0.0
)

replace (
	kubevirtbmc.dev/pkg => ../pkg
	kubevirtbmc.dev/proto => ../proto
)
