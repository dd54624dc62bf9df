// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The KubeVirtBMC Authors

package main

import (
	"fmt"
	"hash/fnv"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"k8s.io/apimachinery/pkg/types"
	kvv1 "kubevirt.io/api/core/v1"
	"kubevirt.io/kubevirt/pkg/network/cache"
	netsetup "kubevirt.io/kubevirt/pkg/network/setup"
	"kubevirt.io/kubevirt/pkg/virt-launcher/virtwrap/api"
)

const (
	// podLink is a pod's link to the pod network.
	podLink = "eth0"
	// masqueradedGuest is the address that virt-launcher's DHCP server gives a
	// guest behind masquerade: the second of api.DefaultVMCIDR.
	masqueradedGuest = "10.0.2.2"
)

// describeNetwork fills a running machine's interfaces with virt-handler's own
// code, from what the stand-ins for libvirt and the guest agent say and from
// the addresses that the pod has.
func describeNetwork(vmi *kvv1.VirtualMachineInstance, podIPs []string) error {
	// New each time: its cache would hold on to what was not yet known.
	stat := netsetup.NewNetStat()
	var domain api.Domain
	for i := range vmi.Spec.Domain.Devices.Interfaces {
		spec := &vmi.Spec.Domain.Devices.Interfaces[i]
		if spec.State == kvv1.InterfaceStateAbsent {
			continue
		}
		mac := spec.MacAddress
		if mac == "" {
			mac = madeUpMAC(vmi.UID, spec.Name)
		}
		domain.Spec.Devices.Interfaces = append(domain.Spec.Devices.Interfaces, api.Interface{Alias: api.NewUserDefinedAlias(spec.Name), MAC: &api.MAC{MAC: mac}})
		known := &cache.PodIfaceCacheData{Iface: spec}
		if onPodNetwork(vmi, spec.Name) && len(podIPs) > 0 {
			known.PodIP, known.PodIPs = podIPs[0], podIPs
		}
		stat.CachePodInterfaceVolatileData(vmi, spec.Name, known)
		if vmi.Annotations[agentAnnotation] == "true" {
			domain.Status.Interfaces = append(domain.Status.Interfaces, guestInterface(i, mac, spec, known.PodIPs))
		}
	}
	return stat.UpdateStatus(vmi, &domain)
}

// guestInterface is what the guest agent tells about the guest's interface i:
// the address that it got by DHCP, and the link-local one that Linux adds.
func guestInterface(i int, mac string, spec *kvv1.Interface, podIPs []string) api.InterfaceStatus {
	s := api.InterfaceStatus{Mac: mac, InterfaceName: fmt.Sprintf("eth%d", i)}
	switch {
	case len(podIPs) == 0: // nobody on that network answers DHCP
	case spec.Masquerade != nil:
		s.IPs = append(s.IPs, masqueradedGuest)
	default:
		s.IPs = append(s.IPs, podIPs[0])
	}
	if a, err := net.ParseMAC(mac); err == nil && len(a) == 6 {
		s.IPs = append(s.IPs, linkLocal(a).String())
	}
	if len(s.IPs) > 0 {
		s.Ip = s.IPs[0]
	}
	return s
}

// onPodNetwork reports whether an interface is on the pod network.
func onPodNetwork(vmi *kvv1.VirtualMachineInstance, name string) bool {
	for _, n := range vmi.Spec.Networks {
		if n.Name == name {
			return n.Pod != nil
		}
	}
	return false
}

// linkLocal is the IPv6 address that an interface gives itself (RFC 4291,
// appendix A).
func linkLocal(a net.HardwareAddr) netip.Addr {
	return netip.AddrFrom16([16]byte{0: 0xfe, 1: 0x80, 8: a[0] ^ 2, 9: a[1], 10: a[2], 11: 0xff, 12: 0xfe, 13: a[3], 14: a[4], 15: a[5]})
}

// addresses lists the global addresses of a process's pod, IPv4 first. It is
// empty if the process or the link is gone.
func addresses(pid int) []string {
	ns, err := netns.GetFromPid(pid)
	if err != nil {
		return nil
	}
	defer ns.Close()
	h, err := netlink.NewHandleAt(ns)
	if err != nil {
		return nil
	}
	defer h.Close()
	link, err := h.LinkByName(podLink)
	if err != nil {
		return nil
	}
	var list []string
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		all, err := h.AddrList(link, family)
		if err != nil {
			return nil
		}
		for _, a := range all {
			if a.IP.IsGlobalUnicast() {
				list = append(list, a.IP.String())
				break // virt-handler takes the first of each family
			}
		}
	}
	return list
}

// madeUpMAC is the address of an interface that has none in its spec: locally
// administered, and different for each machine and interface.
func madeUpMAC(uid types.UID, name string) string {
	h := fnv.New64a()
	fmt.Fprint(h, uid, "/", name)
	sum := h.Sum(nil)
	return net.HardwareAddr{0x02, sum[0], sum[1], sum[2], sum[3], sum[4]}.String()
}
