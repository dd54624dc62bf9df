// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package reconciler

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"kubevirtbmc.dev/pkg/logkey"
)

// optional is a cache of what a role that may be left out lets the controller see.
// It begins where and when there is the role, and nobody waits for it.
type optional struct {
	role   *role
	rights *rights
	// namespaces are those to see; one that is empty: all, or what is in none.
	namespaces []string
	// fill makes a cache for some of those.
	fill func(namespaces []string) (cache.Cache, error)
	// objects are one of each kind.
	objects []client.Object
	// seen is told of each object that came, went or changed.
	seen func(client.Object)
	// changed is told when another cache counts, or there is another reason for none.
	changed  func()
	interval time.Duration
	log      *slog.Logger

	mu    sync.RWMutex
	cache cache.Cache        // nil: nothing can be seen
	stop  context.CancelFunc // ends cache
	// lacks are the namespaces that can't be seen, with the reason.
	lacks map[string]string

	known     chan struct{} // closed when it is known what can be seen
	knownOnce sync.Once
}

// Start implements manager.Runnable. It goes on when all can be seen, for a right can
// be taken away; answers of rights count for haveTime, so that costs little.
func (o *optional) Start(ctx context.Context) error {
	ticker := time.NewTicker(o.interval)
	defer ticker.Stop()
	for {
		err := o.look(ctx)
		if err != nil {
			o.log.WarnContext(ctx, "can't find out what the controller may do", "role", o.role.name, logkey.Error, err.Error())
		} else {
			o.knownOnce.Do(func() { close(o.known) })
		}
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
	}
}

// NeedLeaderElection implements manager.LeaderElectionRunnable: caches are filled
// before they are needed.
func (o *optional) NeedLeaderElection() bool { return false }

// look finds out what can be seen, begins with what is new of it and ends with what
// can't be seen any more.
func (o *optional) look(ctx context.Context) error {
	lacks := map[string]string{}
	var may []string
	for _, namespace := range o.namespaces {
		why, err := o.rights.lack(ctx, o.role, namespace)
		switch {
		case err != nil:
			return err
		case why != "":
			lacks[namespace] = why
		default:
			may = append(may, namespace)
		}
	}
	o.mu.RLock()
	before := o.lacks
	sees := o.cache != nil && len(lacks) == len(before) || o.cache == nil && len(may) == 0
	o.mu.RUnlock()
	if sees && maps.Equal(lacks, before) {
		return nil
	}
	for _, namespace := range slices.Sorted(maps.Keys(lacks)) {
		if lacks[namespace] != before[namespace] {
			o.log.WarnContext(ctx, "the controller goes without a role", "role", o.role.name, "lacks", lacks[namespace])
		}
	}
	var now cache.Cache
	var stop context.CancelFunc
	if len(may) > 0 {
		var err error
		now, stop, err = o.watch(ctx, may)
		switch {
		case ctx.Err() != nil:
			return nil //nolint:nilerr // It failed because the process ends.
		case err != nil:
			for _, namespace := range may {
				lacks[namespace] = fmt.Sprintf("what ClusterRole %s is for can't be read: %v", o.role.name, err)
			}
			o.log.WarnContext(ctx, "can't fill a cache", "role", o.role.name, logkey.Error, err.Error())
		}
	}
	o.mu.Lock()
	if o.stop != nil {
		o.stop()
	}
	o.cache, o.stop, o.lacks = now, stop, lacks
	o.mu.Unlock()
	o.changed()
	return nil
}

// watch fills a cache.
func (o *optional) watch(ctx context.Context, namespaces []string) (cache.Cache, context.CancelFunc, error) {
	objects, err := o.fill(namespaces)
	if err != nil {
		return nil, nil, err
	}
	ctx, stop := context.WithCancel(ctx)
	go func() {
		if err := objects.Start(ctx); err != nil {
			o.log.ErrorContext(ctx, "cache failed", "role", o.role.name, logkey.Error, err.Error())
		}
	}()
	filling, done := context.WithTimeout(ctx, fillTime)
	defer done()
	for _, object := range o.objects {
		informer, err := objects.GetInformer(filling, object)
		if err == nil {
			_, err = informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
				AddFunc: o.tell, DeleteFunc: o.tell,
				UpdateFunc: func(_, after any) { o.tell(after) },
			})
		}
		if err != nil {
			stop()
			return nil, nil, fmt.Errorf("watch %T: %w", object, err)
		}
	}
	return objects, stop, nil
}

func (o *optional) tell(object any) {
	if gone, ok := object.(toolscache.DeletedFinalStateUnknown); ok {
		object = gone.Obj
	}
	if object, ok := object.(client.Object); ok {
		o.seen(object)
	}
}

// reader reads what can be seen in a namespace. Where there is none, it says why.
func (o *optional) reader(namespace string) (reader client.Reader, lacks string) {
	o.mu.RLock()
	defer o.mu.RUnlock()
	for _, one := range []string{namespace, ""} {
		if why, ok := o.lacks[one]; ok {
			return nil, why
		}
	}
	if o.cache == nil {
		return nil, "it is not known yet what the controller may do"
	}
	return o.cache, ""
}

// reading is a client that reads from such a cache.
type reading struct {
	client.Client
	from *optional
}

// Get implements client.Reader.
func (r reading) Get(ctx context.Context, key client.ObjectKey, object client.Object, options ...client.GetOption) error {
	reader, lacks := r.from.reader(key.Namespace)
	if reader == nil {
		return errors.New(lacks)
	}
	return reader.Get(ctx, key, object, options...)
}

// List implements client.Reader.
func (r reading) List(ctx context.Context, list client.ObjectList, options ...client.ListOption) error {
	var in client.ListOptions
	reader, lacks := r.from.reader(in.ApplyOptions(options).Namespace)
	if reader == nil {
		return errors.New(lacks)
	}
	return reader.List(ctx, list, options...)
}
