module kubevirtbmc.dev/test/cluster

go 1.26.0
