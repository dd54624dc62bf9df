// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package kubevirt

import (
	"context"
	"errors"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	kvv1 "kubevirt.io/api/core/v1"

	"kubevirtbmc.dev/pkg/hypervisor"
)

const (
	// settleTimeout bounds how long a caller waits for the watch after its
	// request was accepted, settleStep how long before the API is asked again
	// what there is to wait for.
	settleTimeout = 10 * time.Second
	settleStep    = time.Second
	// conditionTimeout bounds the wait for a condition that virt-handler writes
	// after it has done what was asked.
	conditionTimeout = 5 * time.Second
)

// Start is the start subresource.
func (h *Hypervisor) Start(ctx context.Context, ref hypervisor.Ref) error {
	return h.request(ctx, ref, func(ctx context.Context) error {
		return h.client.VirtualMachines(ref.Namespace).Start(ctx, ref.Name, &kvv1.StartOptions{})
	})
}

// Stop is the stop subresource.
func (h *Hypervisor) Stop(ctx context.Context, ref hypervisor.Ref, grace *time.Duration) error {
	options := &kvv1.StopOptions{}
	if grace != nil {
		// Whole seconds, rounded up: 0 has a meaning of its own.
		seconds := int64((max(*grace, 0) + time.Second - 1) / time.Second)
		options.GracePeriod = &seconds
	}
	return h.request(ctx, ref, func(ctx context.Context) error {
		return h.client.VirtualMachines(ref.Namespace).Stop(ctx, ref.Name, options)
	})
}

// Restart is the restart subresource.
func (h *Hypervisor) Restart(ctx context.Context, ref hypervisor.Ref) error {
	return h.request(ctx, ref, func(ctx context.Context) error {
		return h.client.VirtualMachines(ref.Namespace).Restart(ctx, ref.Name, &kvv1.RestartOptions{})
	})
}

// Reset is the reset subresource of the instance.
func (h *Hypervisor) Reset(ctx context.Context, ref hypervisor.Ref) error {
	return h.request(ctx, ref, func(ctx context.Context) error {
		return h.client.VirtualMachineInstances(ref.Namespace).Reset(ctx, ref.Name)
	})
}

// SoftReboot is the softreboot subresource of the instance.
func (h *Hypervisor) SoftReboot(ctx context.Context, ref hypervisor.Ref) error {
	return h.request(ctx, ref, func(ctx context.Context) error {
		return h.client.VirtualMachineInstances(ref.Namespace).SoftReboot(ctx, ref.Name)
	})
}

// Pause is the pause subresource of the instance.
func (h *Hypervisor) Pause(ctx context.Context, ref hypervisor.Ref) error {
	return h.freeze(ctx, ref, true, func(ctx context.Context) error {
		return h.client.VirtualMachineInstances(ref.Namespace).Pause(ctx, ref.Name, &kvv1.PauseOptions{})
	})
}

// Unpause is the unpause subresource of the instance.
func (h *Hypervisor) Unpause(ctx context.Context, ref hypervisor.Ref) error {
	return h.freeze(ctx, ref, false, func(ctx context.Context) error {
		return h.client.VirtualMachineInstances(ref.Namespace).Unpause(ctx, ref.Name, &kvv1.UnpauseOptions{})
	})
}

// freeze pauses or unpauses; the Paused condition follows shortly.
func (h *Hypervisor) freeze(ctx context.Context, ref hypervisor.Ref, paused bool, send func(context.Context) error) error {
	if err := h.request(ctx, ref, send); err != nil {
		return err
	}
	err := h.await(ctx, ref, conditionTimeout, func() bool {
		m, err := h.Get(ref)
		return err != nil || m.Instance == nil || m.Instance.Phase.Final() || m.Instance.Paused == paused
	})
	if errors.Is(err, errTimeout) {
		return nil
	}
	return err
}

// request sends a subresource request and waits until the caches show it.
func (h *Hypervisor) request(ctx context.Context, ref hypervisor.Ref, send func(context.Context) error) error {
	if err := h.checkReady(); err != nil {
		return err
	}
	vm, before := h.objects(ref)
	if vm == nil {
		return hypervisor.ErrNotFound
	}
	within, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	if err := translate(ctx, send(within)); err != nil {
		return err
	}
	return unseen(h.settle(ctx, ref, before))
}

// unseen is the error of a wait for the caches after a request was accepted: the
// caller who still wants to know is told that it was.
func unseen(err error) error {
	switch {
	case err == nil, errors.Is(err, context.Canceled):
		return err
	case errors.Is(err, errTimeout):
		return hypervisor.ErrUnseen
	default:
		return fmt.Errorf("%w: %w", hypervisor.ErrUnseen, err)
	}
}

// settle waits until the caches show a machine's objects as they are in the API
// now, after a request was accepted. before is the instance that the caches
// showed when it was sent.
func (h *Hypervisor) settle(ctx context.Context, ref hypervisor.Ref, before *kvv1.VirtualMachineInstance) error {
	end := time.Now().Add(settleTimeout)
	for {
		err := h.catchUp(ctx, ref, before)
		if !errors.Is(err, errTimeout) {
			return err
		}
		if time.Now().After(end) {
			return err
		}
	}
}

// catchUp waits a while for the caches to show what the API has.
func (h *Hypervisor) catchUp(ctx context.Context, ref hypervisor.Ref, before *kvv1.VirtualMachineInstance) error {
	within, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	// The machine first: what its status says of the instance is then not newer
	// than the instance.
	vm, err := h.client.VirtualMachines(ref.Namespace).Get(within, ref.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return translate(ctx, err)
	}
	vmi, err := h.client.VirtualMachineInstances(ref.Namespace).Get(within, ref.Name, metav1.GetOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return translate(ctx, err)
	}
	var wanted *kvv1.VirtualMachineInstance
	if err == nil {
		if of := owner(vmi); of != nil && of.UID == vm.UID {
			wanted = vmi
		}
	}
	return h.await(ctx, ref, settleStep, func() bool {
		cached, instance := h.objects(ref)
		switch {
		case cached == nil || cached.UID != vm.UID:
			return true
		case !shows(cached.ResourceVersion, vm.ResourceVersion):
			return false
		case wanted == nil:
			return instance == nil || before == nil || instance.UID != before.UID
		default:
			return instance != nil && shows(instance.ResourceVersion, wanted.ResourceVersion)
		}
	})
}

// SetRunStrategy patches spec.runStrategy, or the deprecated spec.running of a
// machine that has that.
func (h *Hypervisor) SetRunStrategy(ctx context.Context, ref hypervisor.Ref, from, to hypervisor.RunStrategy) error {
	vm, err := h.vm(ref)
	if err != nil {
		return err
	}
	if runStrategy(vm) != from {
		return hypervisor.ErrStale
	}
	return h.patch(ctx, ref, runStrategyPatch(vm, from, to))
}

// runStrategyPatch changes the field that the machine has. spec.running knows
// Always and Halted only; for another strategy spec.runStrategy replaces it.
func runStrategyPatch(vm *kvv1.VirtualMachine, from, to hypervisor.RunStrategy) patch {
	const running, strategy = "/spec/running", "/spec/runStrategy"
	switch {
	case vm.Spec.RunStrategy != nil:
		return patch{test(strategy, from), replace(strategy, to)}
	case vm.Spec.Running == nil:
		return patch{test(strategy, nil), test(running, nil), add(strategy, to)}
	case to == hypervisor.RunStrategyAlways || to == hypervisor.RunStrategyHalted:
		return patch{test(running, *vm.Spec.Running), replace(running, to == hypervisor.RunStrategyAlways)}
	default:
		return patch{test(running, *vm.Spec.Running), remove(running), add(strategy, to)}
	}
}

// DeleteInstance deletes the VirtualMachineInstance if it is that one.
func (h *Hypervisor) DeleteInstance(ctx context.Context, ref hypervisor.Ref, uid string) error {
	if err := h.checkReady(); err != nil {
		return err
	}
	vm, before := h.objects(ref)
	if vm == nil {
		return hypervisor.ErrNotFound
	}
	if before == nil || string(before.UID) != uid {
		return hypervisor.ErrNoInstance
	}
	within, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	exact := types.UID(uid)
	err := h.client.VirtualMachineInstances(ref.Namespace).Delete(within, ref.Name,
		metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &exact}})
	if apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
		return hypervisor.ErrNoInstance
	}
	if err := translate(ctx, err); err != nil {
		return err
	}
	return unseen(h.await(ctx, ref, settleTimeout, func() bool {
		_, vmi := h.objects(ref)
		return vmi == nil || string(vmi.UID) != uid || vmi.DeletionTimestamp != nil
	}))
}

// vm returns a machine's object from the caches.
func (h *Hypervisor) vm(ref hypervisor.Ref) (*kvv1.VirtualMachine, error) {
	if err := h.checkReady(); err != nil {
		return nil, err
	}
	vm, _ := h.objects(ref)
	if vm == nil {
		return nil, hypervisor.ErrNotFound
	}
	return vm, nil
}
