// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The KubeVirtBMC Authors

package cluster

import (
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
)

// rootfsRecipe is the script that makes the Debian system of level real.
//
//go:embed rootfs.sh
var rootfsRecipe string

// rootfsKey identifies what the recipe makes. Newer versions of the packages
// in it do not change it: remove the cache to have those.
func rootfsKey() string {
	sum := sha256.Sum256([]byte(rootfsRecipe))
	return hex.EncodeToString(sum[:])[:24]
}
