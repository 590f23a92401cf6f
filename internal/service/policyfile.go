package service

import (
	"context"
	"fmt"
	"os"

	"github.com/agentherald/herald/internal/config"
	"github.com/agentherald/herald/internal/config/reload"
	"github.com/agentherald/herald/internal/job/policy"
	"github.com/agentherald/herald/internal/store"
)

// openPolicyFile reads the operator's default policy. After a change it wakes the releaser, because the new policy may
// enable agents.
func (a *assembly) openPolicyFile(cfg *config.Config, o Options) (err error) {
	if cfg.PolicyFile == "" {
		return nil
	}
	a.policyFile, err = reload.Open(reload.Config[policy.Policy]{Name: "policy file", Path: cfg.PolicyFile, Read: os.ReadFile,
		Parse: func(raw []byte, read func(string) ([]byte, error)) (policy.Policy, error) {
			p, warnings, err := policy.Load(cfg.PolicyFile, raw, read)
			for _, w := range warnings {
				o.Logger.Warn("a filter of the policy file may have an unintended effect", "file", cfg.PolicyFile, "filter", w)
			}
			return p, err
		},
		Changed: func(_, p policy.Policy) bool {
			o.Logger.Info("the policy file changed", "file", cfg.PolicyFile, "filters", len(p.Filters))
			a.releaser.Wake()
			return true
		}, Logger: o.Logger, Ticks: o.PolicyTicks})
	if err != nil {
		return fmt.Errorf("HERALD_POLICY_FILE: %w", err)
	}
	o.Logger.Info("read the policy file", "file", cfg.PolicyFile, "filters", len(a.policyFile.Get().Filters))
	return nil
}

// watchPolicyFile reloads the file when it changes, until ctx is cancelled.
func (a *assembly) watchPolicyFile(ctx context.Context) {
	if a.policyFile != nil {
		a.policyFile.Run(ctx)
	}
}

// defaultPolicy returns the operator's default policy in force.
func (a *assembly) defaultPolicy() (p policy.Policy) {
	if a.policyFile != nil {
		p = a.policyFile.Get()
	}
	return p
}

// isDisabled reports whether the policy of an agent disables it.
func (a *assembly) isDisabled(agent store.Agent) bool {
	server, _ := a.serversFile.findServer(agent)
	return policy.Levels{Default: a.defaultPolicy(), Operator: server.Policy}.Settings().Disables()
}
