// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

// Package config has the configuration of standalone mode: which BMCs there
// are, where each answers and who may log in.
package config

import (
	"bytes"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
	"strings"

	"github.com/google/uuid"
	"go.yaml.in/yaml/v3"

	referencev1 "kubevirtbmc.dev/proto/gen/go/bmc/reference/v1"
	registryv1 "kubevirtbmc.dev/proto/gen/go/bmc/registry/v1"

	"kubevirtbmc.dev/pkg/ipmiuser"
)

// DefaultUsername is used where nothing names one.
const DefaultUsername = "admin"

// File is a configuration file, YAML.
type File struct {
	// Username and Password of the BMCs that name none of their own.
	Username string `yaml:"username"`
	Password string `yaml:"password"`
	// BMCs in the order of their ports.
	BMCs []BMC `yaml:"bmcs"`
}

// BMC is an entry of a File.
type BMC struct {
	// Name of the BMC; default: the name of its VM.
	Name string `yaml:"name"`
	// Namespace of the BMC and its VM; default: "default".
	Namespace string `yaml:"namespace"`
	// VM is the name of the VirtualMachine.
	VM string `yaml:"vm"`
	// Username and Password of this BMC; default: the file's.
	Username string `yaml:"username"`
	Password string `yaml:"password"`
}

// Credentials are the user name and password of BMCs that name none.
type Credentials struct {
	Username, Password string
	// Generated tells that the password was made by NewCredentials.
	Generated bool
}

// Ports are the ports of the first BMC; BMC number i, from 0, has the i-th port
// after each.
type Ports struct {
	IPMI, Redfish int
}

// Load reads a configuration file. Fields that it does not know are an error.
func Load(path string) (*File, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read configuration: %w", err)
	}
	return Parse(text)
}

// Parse reads the text of a configuration file and fills in its defaults.
func Parse(text []byte) (*File, error) {
	// This decoder takes a password as it stands, also where YAML has another
	// type for it: 0123 is no octal number here.
	decoder := yaml.NewDecoder(bytes.NewReader(text))
	decoder.KnownFields(true)
	var file File
	if err := decoder.Decode(&file); err != nil && !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("parse configuration: %w", err)
	}
	if err := decoder.Decode(new(File)); !errors.Is(err, io.EOF) {
		return nil, errors.New("parse configuration: more than one document")
	}
	for i := range file.BMCs {
		bmc := &file.BMCs[i]
		if bmc.Namespace == "" {
			bmc.Namespace = "default"
		}
		if bmc.Name == "" {
			bmc.Name = bmc.VM
		}
	}
	return &file, file.validate()
}

// Simulated returns the configuration of n simulated machines, sim-0 and on.
func Simulated(n int) *File {
	file := &File{}
	for i := range n {
		name := fmt.Sprintf("sim-%d", i)
		file.BMCs = append(file.BMCs, BMC{Name: name, Namespace: "default", VM: name})
	}
	return file
}

// The same rules as in bmc/reference/v1/reference.proto.
var (
	label     = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$`)
	subdomain = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$`)
)

func (f *File) validate() error {
	if len(f.BMCs) == 0 {
		return errors.New("configuration: no BMC in bmcs")
	}
	errs := []error{checkCredentials("configuration", f.Username, f.Password)}
	names, vms := map[string]bool{}, map[string]string{}
	for i, bmc := range f.BMCs {
		where := fmt.Sprintf("configuration: bmcs[%d]", i)
		if bmc.VM == "" {
			errs = append(errs, fmt.Errorf("%s: vm is missing", where))
			continue
		}
		if !label.MatchString(bmc.Namespace) {
			errs = append(errs, fmt.Errorf("%s: namespace %q is not a DNS label", where, bmc.Namespace))
		}
		for _, name := range []string{bmc.Name, bmc.VM} {
			if len(name) > 253 || !subdomain.MatchString(name) {
				errs = append(errs, fmt.Errorf("%s: name %q is not a DNS subdomain", where, name))
			}
		}
		key, vm := bmc.Namespace+"/"+bmc.Name, bmc.Namespace+"/"+bmc.VM
		if names[key] {
			errs = append(errs, fmt.Errorf("%s: BMC %s is there twice", where, key))
		}
		names[key] = true
		if other, ok := vms[vm]; ok {
			errs = append(errs, fmt.Errorf("%s: VM %s already has BMC %s", where, vm, other))
		}
		vms[vm] = bmc.Name
		errs = append(errs, checkCredentials(where, bmc.Username, bmc.Password))
	}
	return errors.Join(errs...)
}

func checkCredentials(where, username, password string) error {
	var errs []error
	if len(username) > ipmiuser.MaxName {
		errs = append(errs, fmt.Errorf("%s: username has %d bytes, IPMI carries %d", where, len(username), ipmiuser.MaxName))
	}
	if strings.Contains(username, ":") {
		errs = append(errs, fmt.Errorf("%s: username has a colon, which HTTP Basic authentication can't carry", where))
	}
	if len(password) > ipmiuser.MaxPassword {
		errs = append(errs, fmt.Errorf("%s: password has %d bytes, IPMI carries %d", where, len(password), ipmiuser.MaxPassword))
	}
	return errors.Join(errs...)
}

// NewCredentials returns what to use for BMCs that name no credentials: the
// file's, then the environment's (BMC_USERNAME, BMC_PASSWORD), then
// DefaultUsername and a random password.
func (f *File) NewCredentials(env func(string) string) (Credentials, error) {
	c := Credentials{Username: f.Username, Password: f.Password}
	if c.Username == "" {
		c.Username = env("BMC_USERNAME")
	}
	if c.Username == "" {
		c.Username = DefaultUsername
	}
	if c.Password == "" {
		c.Password = env("BMC_PASSWORD")
	}
	if c.Password == "" {
		c.Password = rand.Text()[:16] // 80 random bits.
		c.Generated = true
	}
	return c, checkCredentials("environment", c.Username, c.Password)
}

// Registry returns the BMCs as frontends learn them.
func (f *File) Registry(credentials Credentials, ports Ports) ([]*registryv1.BMC, error) {
	for _, p := range []struct {
		flag  string
		first int
	}{{"ipmi-port", ports.IPMI}, {"redfish-port", ports.Redfish}} {
		if last := p.first + len(f.BMCs) - 1; p.first < 1 || last > 65535 {
			return nil, fmt.Errorf("ports %d to %d from --%s for %d BMCs are not all between 1 and 65535", p.first, last, p.flag, len(f.BMCs))
		}
	}
	bmcs := make([]*registryv1.BMC, len(f.BMCs))
	for i, bmc := range f.BMCs {
		username, password := bmc.Username, bmc.Password
		if username == "" {
			username = credentials.Username
		}
		if password == "" {
			password = credentials.Password
		}
		both := []registryv1.Protocol{registryv1.Protocol_PROTOCOL_IPMI, registryv1.Protocol_PROTOCOL_REDFISH}
		bmcs[i] = &registryv1.BMC{
			Bmc:      &referencev1.BMCReference{Namespace: bmc.Namespace, Name: bmc.Name},
			Uuid:     uuid.NewSHA1(bmcNamespace, []byte(bmc.Namespace+"/"+bmc.Name)).String(),
			Accounts: []*registryv1.Account{{Username: username, Password: password, Role: registryv1.Role_ROLE_ADMINISTRATOR, Protocols: both}},
			Ipmi:     &registryv1.IPMIEndpoint{Udp: listener(ports.IPMI + i)},
			Redfish:  &registryv1.RedfishEndpoint{Https: listener(ports.Redfish + i)},
		}
	}
	return bmcs, nil
}

// Namespaces returns the namespaces of the BMCs, sorted, each once.
func (f *File) Namespaces() []string {
	var namespaces []string
	for _, bmc := range f.BMCs {
		namespaces = append(namespaces, bmc.Namespace)
	}
	slices.Sort(namespaces)
	return slices.Compact(namespaces)
}

// bmcNamespace makes the UUIDs of BMCs from their names, so that they outlive
// restarts.
var bmcNamespace = uuid.MustParse("0d2f5d56-2a5f-4f0c-9d6b-6d5d3f8a7b11")

func listener(port int) *registryv1.Listener {
	return &registryv1.Listener{Port: uint32(port)} //nolint:gosec // Registry checked the range.
}
