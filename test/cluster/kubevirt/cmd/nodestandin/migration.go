// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The KubeVirtBMC Authors

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	kvv1 "kubevirt.io/api/core/v1"
	"kubevirt.io/client-go/kubecli"
	"kubevirt.io/client-go/util"
	"kubevirt.io/kubevirt/pkg/certificates/bootstrap"
	"kubevirt.io/kubevirt/pkg/network/vmispec"
	kvtls "kubevirt.io/kubevirt/pkg/util/tls"
)

const (
	// migrationPath is where the virt-handler that a machine goes to takes it, by
	// the VMI's UID.
	migrationPath = "/v1/migrations/"
	// migrationCertificates is where virt-operator mounts the certificate that
	// virt-handler shows to another one; before 1.7 that is clientCertificates.
	migrationCertificates = "/etc/virt-handler/migrationservercertificates/"
	clientCertificates    = "/etc/virt-handler/clientcertificates/"
	// authorities is the ConfigMap with those who issued the others'.
	authorities = "kubevirt-ca"
	// evictionSource tells who wanted the migration; 1.6 has no name for it.
	evictionSource = "kubevirt.io/eviction-source"
	// takeOverAfter is how long the guest runs on the target before that takes over
	// the VMI. With the real ones it is 2 to 4 s, in which there is no console.
	takeOverAfter = 2 * time.Second
	// moveWithin is how long a machine may stand still on its way; no other
	// machine of the node gets on meanwhile.
	moveWithin = 5 * time.Second
)

// The order of what follows is virt-handler's (KubeVirt 1.7,
// pkg/virt-handler/migration-source.go and migration-target.go; 1.6 and 1.8 have
// the same). virt-controller, which is the real one, makes the pod to go to and
// puts the label of its node on the VMI. Then
//
//   - the target publishes its address and ports,
//   - the source moves the machine there and says when it began,
//   - the target says that it has the machine,
//   - and, a while later, that it runs and the migration has ended: it takes over
//     the VMI, whose node name is the target's now,
//   - the target declares the migration complete and takes off the label,
//   - the source's pod ends.

// departs moves a machine of ours to the node that waits for it, and reports
// whether the VMI has to be updated.
func (h *handler) departs(ctx context.Context, vmi *kvv1.VirtualMachineInstance, l *life) bool {
	s := vmi.Status.MigrationState
	if l == nil || s == nil || s.SourceNode != h.node || vmi.Status.NodeName != h.node || s.StartTimestamp != nil || s.EndTimestamp != nil {
		return false
	}
	if !l.has(moved) {
		if vmi.DeletionTimestamp != nil || s.AbortRequested || s.TargetNodeAddress == "" || len(s.TargetDirectMigrationNodePorts) == 0 {
			return false
		}
		l.departed = metav1.Now()
		if err := l.move(func(m memory) error { return h.send(ctx, vmi, m) }); err != nil {
			log.Printf("migrate %s/%s: %v", vmi.Namespace, vmi.Name, err)
			now := metav1.Now()
			s.Failed, s.FailureReason, s.EndTimestamp = true, err.Error(), &now
		}
	}
	s.StartTimestamp = &l.departed
	s.Mode = kvv1.MigrationPreCopy
	return true
}

// arrives takes over a machine that migrates to this node, step by step, and
// reports whether the VMI has to be updated.
func (h *handler) arrives(vmi *kvv1.VirtualMachineInstance, l *life) bool {
	s := vmi.Status.MigrationState
	now := metav1.Now()
	switch {
	case s == nil || vmi.Labels[kvv1.MigrationTargetNodeNameLabel] != h.node:
		return false
	case s.EndTimestamp != nil && s.Failed:
		h.end(vmi, l)
		delete(vmi.Labels, kvv1.MigrationTargetNodeNameLabel)
	case s.EndTimestamp != nil && s.Completed:
		// Without the label it must not be lost from sight.
		if _, here, err := h.instances.Get(vmi); err != nil || !here {
			return false
		}
		delete(vmi.Labels, kvv1.MigrationTargetNodeNameLabel)
	case l == nil:
		address := os.Getenv("MY_POD_IP")
		if vmi.DeletionTimestamp != nil || s.TargetNodeAddress == address {
			return false
		}
		s.TargetNodeAddress = address
		s.TargetDirectMigrationNodePorts = map[string]int{strconv.Itoa(consolePort): 0}
		if s.TargetState != nil {
			s.TargetState.NodeAddress = &address
			s.TargetState.DirectMigrationNodePorts = s.TargetDirectMigrationNodePorts
		}
	case !s.TargetNodeDomainDetected:
		s.TargetNodeDomainDetected = true
		if s.TargetState != nil {
			s.TargetState.DomainDetected = true
		}
	case s.EndTimestamp == nil:
		if now.Sub(l.arrived) < takeOverAfter {
			return false
		}
		s.TargetNodeDomainReadyTimestamp = &now
		if s.TargetState != nil {
			s.TargetState.DomainReadyTimestamp = &now
		}
		setCondition(vmi, kvv1.VirtualMachineInstanceMigrationRequired, false, "")
		if s.StartTimestamp == nil { // the source has not come to say so
			s.StartTimestamp = &l.departed
		}
		s.EndTimestamp = &now
		vmi.Labels[kvv1.NodeNameLabel] = h.node
		delete(vmi.Labels, kvv1.OutdatedLauncherImageLabel)
		delete(vmi.Annotations, evictionSource)
		vmi.Status.NodeName = h.node
		vmi.Status.LauncherContainerImageVersion = ""
		vmi.Status.EvacuationNodeName = ""
		vmi.Status.MigrationTransport = kvv1.MigrationTransportUnix
	default:
		s.Completed = true
	}
	return true
}

// transfer is a machine on its way.
type transfer struct {
	Departed metav1.Time `json:"departed"`
	Memory   memory      `json:"memory"`
}

// send takes the memory of a machine to the node that the VMI names.
func (h *handler) send(ctx context.Context, vmi *kvv1.VirtualMachineInstance, m memory) error {
	s := vmi.Status.MigrationState
	body, err := json.Marshal(transfer{Departed: metav1.Now(), Memory: m})
	if err != nil {
		return err
	}
	ports := make([]string, 0, len(s.TargetDirectMigrationNodePorts))
	for p := range s.TargetDirectMigrationNodePorts {
		ports = append(ports, p)
	}
	ctx, cancel := context.WithTimeout(ctx, moveWithin)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodPut, "https://"+net.JoinHostPort(s.TargetNodeAddress, ports[0])+migrationPath+string(vmi.UID), bytes.NewReader(body))
	if err != nil {
		return err
	}
	response, err := h.peers.Do(r)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(response.Body, 4096))
		return fmt.Errorf("%s: %s", response.Status, strings.TrimSpace(string(text)))
	}
	return nil
}

// receive answers another virt-handler that brings a machine.
func (h *handler) receive(w http.ResponseWriter, r *http.Request) {
	if !h.admit(w, r) {
		return
	}
	var t transfer
	if err := json.NewDecoder(io.LimitReader(r.Body, 1<<20)).Decode(&t); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	if err := h.take(types.UID(r.PathValue("uid")), t); err != nil {
		http.Error(w, err.Error(), http.StatusConflict)
	}
}

// take goes on with a machine that has come.
func (h *handler) take(uid types.UID, t transfer) error {
	for _, o := range h.arriving.List() {
		vmi := o.(*kvv1.VirtualMachineInstance)
		if vmi.UID != uid || vmi.DeletionTimestamp != nil {
			continue
		}
		h.mu.Lock()
		defer h.mu.Unlock()
		if l := h.lives[uid]; l != nil && !l.has(moved) {
			return errors.New("the machine is here already")
		}
		l := &life{machine: resumeMachine(vmi, t.Memory), pods: h.podsOf(vmi), departed: t.Departed, arrived: time.Now()}
		l.ips = l.addresses(podProcesses(mainProcess))
		h.lives[uid] = l
		return nil
	}
	return fmt.Errorf("no machine %s is expected", uid)
}

// newPeerClient returns a client that virt-handlers talk to each other with, by
// KubeVirt's own rules for who is one.
func newPeerClient(ctx context.Context, client kubecli.KubevirtClient) (*http.Client, error) {
	namespace, err := util.GetNamespace()
	if err != nil {
		return nil, err
	}
	issuers, informer := cache.NewInformerWithOptions(cache.InformerOptions{
		ListerWatcher: cache.NewListWatchFromClient(client.CoreV1().RESTClient(), "configmaps", namespace, fields.OneTermEqualSelector("metadata.name", authorities)),
		ObjectType:    &corev1.ConfigMap{},
		Handler:       cache.ResourceEventHandlerFuncs{},
	})
	go informer.Run(ctx.Done())
	dir := migrationCertificates
	if _, err := os.Stat(dir); errors.Is(err, os.ErrNotExist) {
		dir = clientCertificates
	}
	own := bootstrap.NewFileCertificateManager(dir+"tls.crt", dir+"tls.key")
	go own.Start()
	return &http.Client{Transport: &http.Transport{
		TLSClientConfig:   kvtls.SetupTLSForVirtHandlerClients(kvtls.NewCAManager(issuers, namespace, authorities), own, false),
		DisableKeepAlives: true,
	}}, nil
}

// describeMigratable says whether the machine can migrate, and how.
func describeMigratable(vmi *kvv1.VirtualMachineInstance) {
	c := kvv1.VirtualMachineInstanceCondition{Type: kvv1.VirtualMachineInstanceIsMigratable, Status: corev1.ConditionTrue}
	refuse := func(reason string, err error) {
		c.Status, c.Reason, c.Message = corev1.ConditionFalse, reason, err.Error()
	}
	local, err := localDisks(vmi)
	vmi.Status.MigrationMethod = kvv1.LiveMigration
	if local {
		vmi.Status.MigrationMethod = kvv1.BlockMigration
	}
	if err != nil {
		refuse(kvv1.VirtualMachineInstanceReasonDisksNotMigratable, err)
	}
	if err := vmispec.VerifyVMIMigratable(vmi, nil); err != nil {
		refuse(kvv1.VirtualMachineInstanceReasonInterfaceNotMigratable, err)
	}
	vmi.Status.Conditions = slices.DeleteFunc(vmi.Status.Conditions, func(old kvv1.VirtualMachineInstanceCondition) bool { return old.Type == c.Type })
	vmi.Status.Conditions = append(vmi.Status.Conditions, c)
}

// localDisks reports whether the machine has disks that are to be copied, or why
// one of them can't be.
func localDisks(vmi *kvv1.VirtualMachineInstance) (bool, error) {
	local := false
	for _, v := range vmi.Spec.Volumes {
		switch {
		case v.PersistentVolumeClaim != nil || v.DataVolume != nil:
			shared := slices.ContainsFunc(vmi.Status.VolumeStatus, func(s kvv1.VolumeStatus) bool {
				return s.Name == v.Name && s.PersistentVolumeClaimInfo != nil && slices.Contains(s.PersistentVolumeClaimInfo.AccessModes, corev1.ReadWriteMany)
			})
			if !shared {
				return true, fmt.Errorf("cannot migrate VMI: the claim of volume %s is not shared", v.Name)
			}
		case v.HostDisk != nil:
			if v.HostDisk.Shared == nil || !*v.HostDisk.Shared {
				return true, fmt.Errorf("cannot migrate VMI: host disk %s is not shared", v.Name)
			}
		default:
			local = true
		}
	}
	return local, nil
}
