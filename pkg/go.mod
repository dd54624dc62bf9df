module kubevirtbmc.dev/pkg

go 1.26.0

require (
	kubevirtbmc.dev/proto v0.0.0
)

replace (
	kubevirtbmc.dev/proto => ../proto
)
