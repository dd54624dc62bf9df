// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The KubeVirtBMC Authors

package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	pluginapi "kubevirt.io/kubevirt/pkg/virt-handler/device-manager/deviceplugin/v1beta1"
)

// deviceCount is how many machines can have a device at once.
const deviceCount = 1000

// offerDevices tells kubelet of the devices that virt-launcher pods ask for.
// Nothing in those pods opens them, so that they need not exist.
func offerDevices(ctx context.Context) error {
	for _, name := range []string{"tun", "vhost-net", "kvm"} {
		if err := offerDevice(ctx, name); err != nil {
			return fmt.Errorf("offer device %s: %w", name, err)
		}
	}
	return nil
}

func offerDevice(ctx context.Context, name string) error {
	endpoint := "kubevirt-" + name + ".sock"
	path := pluginapi.DevicePluginPath + endpoint
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	l, err := net.Listen("unix", path)
	if err != nil {
		return err
	}
	s := grpc.NewServer()
	pluginapi.RegisterDevicePluginServer(s, devicePlugin{name: name})
	go s.Serve(l)
	conn, err := grpc.NewClient("unix://"+pluginapi.KubeletSocket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	_, err = pluginapi.NewRegistrationClient(conn).Register(ctx, &pluginapi.RegisterRequest{
		Version: pluginapi.Version, Endpoint: endpoint, ResourceName: "devices.kubevirt.io/" + name,
	})
	return err
}

// devicePlugin offers a device that is always there.
type devicePlugin struct{ name string }

func (devicePlugin) GetDevicePluginOptions(context.Context, *pluginapi.Empty) (*pluginapi.DevicePluginOptions, error) {
	return &pluginapi.DevicePluginOptions{}, nil
}

func (p devicePlugin) ListAndWatch(_ *pluginapi.Empty, stream pluginapi.DevicePlugin_ListAndWatchServer) error {
	r := &pluginapi.ListAndWatchResponse{}
	for i := range deviceCount {
		r.Devices = append(r.Devices, &pluginapi.Device{ID: fmt.Sprintf("%s%d", p.name, i), Health: pluginapi.Healthy})
	}
	if err := stream.Send(r); err != nil {
		return err
	}
	<-stream.Context().Done()
	return nil
}

func (devicePlugin) Allocate(_ context.Context, r *pluginapi.AllocateRequest) (*pluginapi.AllocateResponse, error) {
	a := &pluginapi.AllocateResponse{}
	for range r.ContainerRequests {
		a.ContainerResponses = append(a.ContainerResponses, &pluginapi.ContainerAllocateResponse{})
	}
	return a, nil
}

func (devicePlugin) PreStartContainer(context.Context, *pluginapi.PreStartContainerRequest) (*pluginapi.PreStartContainerResponse, error) {
	return &pluginapi.PreStartContainerResponse{}, nil
}
