// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package reconciler

import (
	"context"
	"fmt"
	"slices"
	"time"

	"kubevirtbmc.dev/api/v1beta1"
	"kubevirtbmc.dev/services/controller/internal/agent"
)

// movingTime is how often a BMC is looked at that waits for other frontends or for
// the end of its agent.
const movingTime = 2 * time.Second

// modeInUse is what serves a BMC now. One that is to get other frontends keeps
// those that it has until the others are connected.
func modeInUse(status *v1beta1.FrontendStatus, target v1beta1.FrontendMode, connected bool) v1beta1.FrontendMode {
	if status == nil || status.Mode == "" || connected {
		return target
	}
	return status.Mode
}

// modeOf is the mode of what serves.
func modeOf(agent string) v1beta1.FrontendMode {
	if agent != "" {
		return v1beta1.FrontendModeDedicated
	}
	return v1beta1.FrontendModeShared
}

// connected tells whether the frontends are that a BMC is to have.
func (r *bmcs) connected(w wanted) bool {
	w.mode = w.target
	return r.registry.Connected(w.agent(), w.protocols()...)
}

// releaseShared gives back the ports that a BMC had of the shared frontends, when
// they serve it no more.
func (r *bmcs) releaseShared(o *observation) {
	shared := func(f frontend) bool { return f.status.Agent == "" }
	if o.want.mode == v1beta1.FrontendModeDedicated && !slices.ContainsFunc(o.frontends, shared) {
		r.release(o.want.ref)
	}
}

// agentPorts are the ports at which an agent serves.
func agentPorts(w *wanted) map[listener]int32 {
	b := w.agentBMC()
	ports := b.Ports()
	has := map[listener]int32{}
	for _, l := range w.listeners() {
		switch l {
		case listenHTTP:
			has[l] = ports.HTTP
		case listenHTTPS:
			has[l] = ports.HTTPS
		case listenIPMI:
			has[l] = ports.IPMI
		}
	}
	return has
}

// agentBMC is what the agent of a BMC has to know of it.
func (w *wanted) agentBMC() agent.BMC {
	return agent.BMC{
		Namespace: w.ref.Namespace, Name: w.ref.Name, UID: w.uid, Generation: w.generation, Machine: w.machine,
		Networks: w.networks, Resources: w.dedicated.Resources, NodeSelector: w.dedicated.NodeSelector,
	}
}

// reconcileAgent makes the agent what it is to be, and removes one that is not
// needed any more. It returns when to look again; 0: when something changes.
func (r *bmcs) reconcileAgent(ctx context.Context, o *observation) (time.Duration, error) {
	w := o.want
	if o.kept != "" {
		return retryTime, nil
	}
	if r.agents == nil {
		if w.target == v1beta1.FrontendModeDedicated {
			o.agent.Waiting = "this controller has no image of dedicated agents (--agent-image-name)"
		}
		return 0, nil
	}
	if _, lacks := r.agentObjects.reader(w.ref.Namespace); lacks != "" {
		if w.target == v1beta1.FrontendModeDedicated || w.mode == v1beta1.FrontendModeDedicated {
			o.agent.Refused = lacks
		}
		return 0, nil // It is looked at again when there is the role.
	}
	if o.served() && (w.target == v1beta1.FrontendModeDedicated || w.mode == v1beta1.FrontendModeDedicated) {
		if problem := agent.NetworkProblem(w.networks, w.ref.Namespace, r.networks); problem != "" {
			o.agent.Refused = problem
			return 0, nil // Until the BMC or the flag is another.
		}
		var err error
		o.agent, err = r.agents.Keep(ctx, w.agentBMC())
		switch {
		case err != nil:
			return 0, fmt.Errorf("keep agent: %w", err)
		case o.agent.Refused != "":
			return retryTime, nil
		case w.mode != w.target:
			return movingTime, nil
		case o.agent.Outdated:
			return retryTime, nil
		}
		return 0, nil
	}
	if o.legacy {
		return 0, nil // Its agent may look like one of ours.
	}
	done, err := r.agents.Remove(ctx, w.agentBMC())
	if err != nil {
		return 0, fmt.Errorf("remove agent: %w", err)
	}
	if !done {
		return movingTime, nil
	}
	return 0, nil
}

// agentTrouble is why an agent does not serve.
func (o *observation) agentTrouble() *trouble {
	switch {
	case o.agent.Refused != "":
		return &trouble{v1beta1.ReasonAgentRefused, "the dedicated agent can't be run: " + o.agent.Refused}
	case o.agent.Waiting != "":
		return &trouble{v1beta1.ReasonAgentNotReady, o.agent.Waiting}
	}
	return &trouble{v1beta1.ReasonAgentNotReady, "the dedicated agent is not connected"}
}

// serving is what condition FrontendReady says of frontends that serve.
func (o *observation) serving() string {
	switch {
	case o.want.mode == o.want.target && o.agent.Refused != "":
		return "the dedicated agent serves the BMC, but not as it is to be: " + o.agent.Refused
	case o.want.mode == o.want.target && o.agent.Outdated:
		return "the dedicated agent serves the BMC; it gets a new version when fewer others are unavailable"
	case o.want.mode == o.want.target:
		return "the frontends serve the BMC"
	case o.want.mode == v1beta1.FrontendModeShared:
		return "the shared frontends serve the BMC until its agent does: " + o.agentTrouble().message
	}
	return "the dedicated agent serves the BMC until the shared frontends are connected"
}
